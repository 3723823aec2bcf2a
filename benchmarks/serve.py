"""`vitruvian serve` under load, next to the pipeline alone and to LitServe around the reference's model.

    python benchmarks/serve.py                                     # CPU: a small pose model, images of 720p
    python benchmarks/serve.py --device cuda --model pose-0.4b --size 1080x1920 --seconds 15
    python benchmarks/serve.py --model tiny                        # what the server itself costs
    python benchmarks/serve.py --soak 1200                         # mixed requests for 20 minutes
    python benchmarks/serve.py --clicks large --size 1080x1920     # clicks on a stored image, with SAM 2

Poses of whole images, with random weights. The pipeline runs over the same JPEG files in memory and makes the same
JSON, in a process of its own: over a stream of images, and over one image after another, which is what one client asks
for. Clients run in processes of their own and send one request after another. LitServe decodes with Pillow and runs the
processor, the model and the post-processing of transformers in batches; it is skipped with a reason where litserve,
transformers or torchvision are not installed.

Prints the rate of the pipeline, and for each server and number of clients requests per second, their share of the
pipeline's rate (goal: 0.85; for one client, of its rate with one image at a time), the median and 99th percentile of
the latency, and the CPU time of an answer, which depends less on other work of the machine. Our server adds the mean
size of its batches and the mean time of each stage. With --rounds everything is measured so many times in turn, and the
medians are compared. With --soak it prints statuses, and the server's memory over time; with --clicks the time of the
first click on an image, with storing it, and that of further clicks. Writes all of it to --out as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

GOAL = 0.85
MAX_GROWTH = 0.05  # of the memory in a soak
IMAGES = 16  # different ones
BATCH = 8  # of LitServe; ours chooses
START_SECONDS = 180
OURS = "vitruvian"
POSE_PATH, LITSERVE_PATH = "/v1/pose?detect=whole", "/predict"


# ------------------------------------------------------------------------------------------------ what is measured


def write_inputs(root: Path, options: argparse.Namespace) -> None:
    """Write the checkpoint and the images."""
    import numpy as np
    import torch
    from common.random_inputs import add_noise, save_checkpoint, small_sapiens2, smooth_image
    from PIL import Image

    from vitruvian.bench.workloads import Workload, benchmark_model

    if options.model == "tiny":
        model = small_sapiens2("pose", (128, 96))
    elif options.model == "small":
        model = small_sapiens2("pose", (256, 192), channels=(32, 32), hidden_size=256, layers=6, intermediate_size=1024)
    else:
        one = benchmark_model(f"sapiens2-{options.model}")
        model = one.build(Workload(1, one.size_hw, 0, torch.float32, torch.device("cpu")))
    save_checkpoint(model, root / "model")
    generator = np.random.default_rng(0)
    height, width = (int(side) for side in options.size.split("x"))
    smooth = smooth_image((height, width), generator)
    for number in range(IMAGES):
        image = add_noise(np.roll(smooth, number * 37, 1), 6, generator)
        Image.fromarray(image).save(root / f"{number:02d}.jpg", quality=90)


def read_images(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(root.glob("*.jpg"))]


def run_pipeline(root: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return images per second of the pipeline: of a stream of images (`rate`), and one at a time (`single`)."""
    from vitruvian import pipeline
    from vitruvian.filesystem.json_files import json_text

    images = read_images(root)
    pipe = pipeline("pose", root / "model", device=options.device, detect="whole", keep_image=False)

    def source(seconds: float) -> Iterator[bytes]:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            yield from images

    def save(result: Any) -> None:
        json_text(result.to_dict()).encode()

    for _ in pipe(source(min(3.0, options.seconds)), save=save):  # warmup, CUDA graphs
        pass
    start, cpu, count = time.perf_counter(), time.process_time(), 0
    for _ in pipe(source(options.seconds), save=save):
        count += 1
    rate, cpu_each = count / (time.perf_counter() - start), (time.process_time() - cpu) / count
    pipe(images[0])  # warmup
    start, count = time.perf_counter(), 0
    for image in source(options.seconds / 2):
        save(pipe(image))
        count += 1
    return {"rate": rate, "cpu": cpu_each, "single": count / (time.perf_counter() - start)}


def run_litserve(root: Path, options: argparse.Namespace) -> None:
    """Serve the reference's model with LitServe until the process is ended."""
    import litserve
    from litserve_api import PoseApi

    api = PoseApi(root / "model", max_batch_size=BATCH, batch_timeout=0.005)
    accelerator = "cuda" if options.device.startswith("cuda") else "cpu"
    server = litserve.LitServer(api, accelerator=accelerator, timeout=120, workers_per_device=1)
    server.run(
        port=int(options.address.rpartition(":")[2]), host="127.0.0.1", log_level="warning", generate_client_file=False
    )


# ------------------------------------------------------------------------------------------------ servers and clients


@contextlib.contextmanager
def our_server(
    root: Path, options: argparse.Namespace, *models: str, port: int = 0
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `vitruvian serve`; yield its address and process."""
    names = models or (f"pose={root / 'model'}",)
    command = [sys.executable, "-m", "vitruvian", "serve", f"--port={port}", f"--device={options.device}"]
    command += [f"--data={root / 'data'}", *(f"--model={name}" for name in names)]
    paths = [str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if "http://" in line), "")
        found = re.search(r"http://([\d.:]+)", line)
        if found is None:
            raise SystemExit(f"the server does not start: {line}")
        threading.Thread(target=lambda: sys.stderr.writelines(process.stderr), daemon=True).start()  # type: ignore[arg-type]
        wait_for(found[1], "/readyz")
        yield found[1], process
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def lit_server(root: Path, options: argparse.Namespace) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run LitServe; yield its address and process."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, __file__, "--one", "litserve", str(root), f"--device={options.device}"]
    command += ["--address", address]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
    try:
        wait_for(address, "/health")
        yield address, process
    finally:
        os.killpg(process.pid, 15)  # with its workers
        process.wait(60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for(address: str, path: str) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection(address, timeout=5)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"{address}{path}: no answer")


def run_clients(address: str, path: str, images: list[bytes], clients: int, seconds: float) -> dict[str, Any]:
    """Send requests from threads of this process, one after another in each; return latencies and statuses."""
    bodies = [as_form(image) if path == LITSERVE_PATH else (image, {"Content-Type": "image/jpeg"}) for image in images]
    latencies: list[float] = []
    answers: list[int] = []  # outside of the measured time too
    statuses: Counter[int] = Counter()
    start = time.monotonic() + 0.5
    warm, end = start + min(2.0, seconds / 4), start + seconds

    def run(number: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=120)
        time.sleep(max(0.0, start - time.monotonic()))
        while (begin := time.monotonic()) < end:
            connection.request("POST", path, *bodies[number % len(bodies)])
            answer = connection.getresponse()
            answer.read()
            number += 1
            answers.append(answer.status)
            if warm <= time.monotonic() < end:
                statuses[answer.status] += 1
            if warm <= begin:
                latencies.append(time.monotonic() - begin)
            if answer.status == 429:
                time.sleep(0.05)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"latencies": latencies, "statuses": statuses, "seconds": end - warm, "answers": len(answers)}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children."""
    if importlib.util.find_spec("psutil") is None:
        return float("nan")
    import psutil

    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def as_form(image: bytes) -> tuple[bytes, dict[str, str]]:
    """Return an image as a form, which LitServe takes: body and headers."""
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return head + image + b"\r\n--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}


def measure_load(address: str, path: str, root: Path, clients: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run clients in processes of their own; return the rate and the percentiles of the latency."""
    count = min(clients, options.client_processes)
    shares = [clients // count + (number < clients % count) for number in range(count)]
    command = [sys.executable, __file__, "--one", "clients", str(root), "--address", address, "--path", path]
    command += ["--seconds", str(options.seconds)]
    processes = [
        subprocess.Popen([*command, "--clients", str(share)], stdout=subprocess.PIPE, text=True) for share in shares
    ]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    latencies = sorted(value for one in found for value in one["latencies"])
    statuses: Counter[str] = Counter()
    for one in found:
        statuses.update(one["statuses"])
    good = statuses.get("200", 0)
    return {
        "clients": clients,
        "rate": sum(one["statuses"].get("200", 0) / one["seconds"] for one in found),
        "p50": statistics.median(latencies) if latencies else None,
        "p99": latencies[min(len(latencies) - 1, int(len(latencies) * 0.99))] if latencies else None,
        "good": good,
        "answers": sum(one["answers"] for one in found),
        "statuses": dict(statuses),
    }


def missing_for_litserve() -> str | None:
    """Return what LitServe around the reference's model lacks here."""
    missing = [name for name in ("litserve", "transformers", "torchvision") if importlib.util.find_spec(name) is None]
    return ", ".join(missing) or None


# ------------------------------------------------------------------------------------------------ clicks


def clicks(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Store images in a server with SAM 2, and click on them; return seconds."""
    import torch

    from vitruvian import Sam2Config, Sam2ImageProcessor, Sam2Model
    from vitruvian.bench.timing import describe_machine

    torch.manual_seed(0)
    Sam2Model(Sam2Config.variant(options.clicks)).save_pretrained(root / "sam2")
    Sam2ImageProcessor().save_pretrained(root / "sam2")
    height, width = (int(side) for side in options.size.split("x"))
    rng = random.Random(0)
    first: list[float] = []
    further: list[float] = []
    with our_server(root, options, f"segment={root / 'sam2'}") as (address, _):
        connection = http.client.HTTPConnection(address, timeout=120)

        def ask(path: str, body: bytes, kind: str) -> dict[str, Any]:
            connection.request("POST", path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                raise SystemExit(f"{path}: {answer.status} {text.decode()}")
            return dict(json.loads(text))

        for image in read_images(root):
            start = time.monotonic()
            path = f"/v1/images/{ask('/v1/images', image, 'image/jpeg')['id']}/segment"
            for number in range(10):
                points = [[[rng.randrange(width), rng.randrange(height)]]]
                begin = start if number == 0 else time.monotonic()
                ask(path, json.dumps({"points": points, "labels": [[1]]}).encode(), "application/json")
                (further if number else first).append(time.monotonic() - begin)
    times = {"first": sorted(first), "further": sorted(further)}
    print(f"{describe_machine(torch.device(options.device))}; SAM 2 {options.clicks}, images of {options.size}")
    for name, taken in times.items():
        p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
        print(f"{name} click: p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms")
    return times


# ------------------------------------------------------------------------------------------------ soak


class SoakClients:
    """Clients that send mixed requests, a tenth of them bad, some of which hang up, and start jobs."""

    def __init__(self, address: str, images: list[bytes]) -> None:
        self.address, self.images = address, images
        self.statuses: Counter[int] = Counter()
        self.refused = 0  # connections and requests, while the server is down or loads its models
        self.jobs: list[str] = []
        self.errors: list[str] = []  # time and path of each 5xx
        self._started = time.monotonic()
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(8)]

    def __enter__(self) -> SoakClients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def ask(self, method: str, path: str, body: bytes | None = None, *, hang_up: bool = False) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer, or zeros."""
        connection = http.client.HTTPConnection(self.address, timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            if hang_up:
                return 0, b""
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.stop.is_set():
            body = rng.choice(self.images) if rng.random() > 0.1 else b"no image"
            kind, dice = rng.choice(("json", "plot", "npz")), rng.random()
            path = f"/v1/{rng.choice(('pose', 'parts', 'normals', 'matte', 'embed'))}?as={kind}"
            try:
                if dice < 0.02:
                    status, answer = self.ask("POST", "/v1/jobs?task=embed&name=a.jpg", rng.choice(self.images))
                    if status == 201:
                        self.jobs.append(json.loads(answer)["id"])
                elif dice < 0.1:
                    status, answer = self.ask("POST", "/v1/images", body)
                    if status == 201:
                        status, answer = self.ask("POST", f"/v1/images/{json.loads(answer)['id']}/pose")
                else:
                    status, answer = self.ask("POST", path, body, hang_up=dice > 0.9)
            except (OSError, http.client.HTTPException):
                self.refused += 1
                self.stop.wait(0.5)
                continue
            if status == 503 and b"loading" in answer:  # after the restart
                self.refused += 1
                self.stop.wait(0.5)
            elif status:
                self.statuses[status] += 1
                if status >= 500:
                    self.errors.append(f"{status} after {time.monotonic() - self._started:.0f} s: {path}")


def soak(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Send mixed requests to the built-in model; kill the server in the middle; follow its memory and the jobs."""
    import psutil

    memory: list[list[float]] = [[], []]  # before and after the server was killed
    port = free_port()  # the same after the restart
    with SoakClients(f"127.0.0.1:{port}", read_images(root)) as clients:
        for part in (0, 1):
            with our_server(root, options, "builtin", port=port) as (_, process):
                end = time.monotonic() + options.soak / 2
                while time.monotonic() < end:
                    memory[part].append(psutil.Process(process.pid).memory_info().rss / 1e6)
                    time.sleep(max(0.05, options.soak / 80))
                if part == 0:
                    process.kill()
                    continue
                clients.stop.set()
                states = Counter(wait_for_job(clients, job) for job in clients.jobs)
                for job in clients.jobs:
                    clients.ask("DELETE", f"/v1/jobs/{job}")
    growth = [rise(part) for part in memory]
    errors = sum(count for status, count in clients.statuses.items() if status >= 500)
    lost = sum(count for state, count in states.items() if state != "done")
    left = [path.name for path in (root / "data").rglob("*") if path.is_file() and "sqlite" not in path.name]
    print(f"statuses: {dict(clients.statuses)}; refused while it was down or loading: {clients.refused}")
    print(f"memory in MB: {' | '.join(' '.join(f'{one:.0f}' for one in part) for part in memory)}")
    print(f"memory from the second quarter to the last, before and after kill -9: {growth[0]:+.1%}, {growth[1]:+.1%}")
    print(f"5xx: {', '.join(clients.errors) or 'none'}; jobs: {dict(states)}; files left: {left or 'none'}")
    passed = not errors and not lost and not left and max(growth) <= MAX_GROWTH
    print(f"goals (no 5xx, memory within {MAX_GROWTH:.0%}, no job lost, no file left): {'met' if passed else 'missed'}")
    found = {"statuses": dict(clients.statuses), "memory_mb": memory, "growth": growth, "left": left}
    return found | {"jobs": dict(states), "refused": clients.refused, "passed": passed}


def rise(values: list[float]) -> float:
    """Return how much the median of the last quarter is above that of the second."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) / statistics.median(values[quarter : 2 * quarter]) - 1


def wait_for_job(clients: SoakClients, job: str) -> str:
    """Return the final state of a job."""
    while True:
        status, answer = clients.ask("GET", f"/v1/jobs/{job}")
        state = json.loads(answer)["state"] if status == 200 else f"status {status}"
        if state not in ("queued", "running"):
            return str(state)
        time.sleep(0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="small", help="tiny, small, or a Sapiens2 pose model: pose-0.4b, pose-1b")
    parser.add_argument("--size", default="720x1280", help="height x width of the images")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--client-processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=1, help="times that everything is measured")
    parser.add_argument("--no-litserve", action="store_true", help="leave LitServe out")
    parser.add_argument("--soak", type=float, default=0.0, help="seconds of mixed load instead")
    parser.add_argument("--clicks", help="clicks on stored images instead, with a SAM 2 model: tiny, small, …")
    parser.add_argument("--out", type=Path, help="file for the measurements")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, root = options.one[0], Path(options.one[1])
        if kind == "clients":
            found = run_clients(options.address, options.path, read_images(root), options.clients[0], options.seconds)
            print(json.dumps(found))
        elif kind == "pipeline":
            print(json.dumps(run_pipeline(root, options)))
        else:
            run_litserve(root, options)
        return 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_inputs(root, options)
        measured = (clicks if options.clicks else soak if options.soak else compare)(root, options)
    if options.out is not None:
        options.out.write_text(json.dumps(measured, indent=2) + "\n")
    return 0 if measured.get("passed", True) else 1


def compare(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the pipeline, our server and LitServe in turn."""
    import torch

    from vitruvian.bench.timing import describe_machine

    packages = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
    if lacking := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise SystemExit(f"vitruvian serve needs {', '.join(lacking)}, which this environment lacks.")
    print(f"{describe_machine(torch.device(options.device))}; {options.model}, images of {options.size}")
    servers: dict[str, Any] = {OURS: (our_server, POSE_PATH)}
    missing = missing_for_litserve()
    if options.no_litserve or missing:
        print(f"LitServe is left out: {f'{missing} not installed' if missing else '--no-litserve'}")
    else:
        servers["LitServe + transformers"] = (lit_server, LITSERVE_PATH)
    alone: list[dict[str, float]] = []
    rows: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        alone.append(measure_pipeline(root, options))
        for name, (start, path) in servers.items():
            with start(root, options) as (address, process):
                rows += [
                    measure_server(name, address, process.pid, path, root, clients, options)
                    for clients in options.clients
                ]
    pipeline, single = (statistics.median(one[name] for one in alone) for name in ("rate", "single"))
    rates = {
        (name, clients): statistics.median(
            row["rate"] for row in rows if (row["server"], row["clients"]) == (name, clients)
        )
        for name in servers
        for clients in options.clients
    }
    print(f"medians of {options.rounds}: the pipeline {pipeline:.1f} images/s, {single:.1f} one at a time")
    for (name, clients), rate in rates.items():
        share = rate / (single if clients == 1 else pipeline)
        verdict = f"; goal {GOAL}: {'met' if share >= GOAL else 'missed'}" if name == OURS else ""
        others = f" ({rate / pipeline:.2f} of a stream)" if clients == 1 else ""
        print(f"{name:24s} {clients:3d} clients: {rate:7.1f} requests/s, {share:.2f} of the pipeline{others}{verdict}")
    return {"pipeline": alone, "rows": rows, "model": options.model, "size": options.size}


def measure_pipeline(root: Path, options: argparse.Namespace) -> dict[str, float]:
    """Run `run_pipeline` in a process of its own."""
    from common.measure import run_in_new_process

    arguments = [f"--device={options.device}", f"--seconds={options.seconds}"]
    alone: dict[str, Any] = run_in_new_process(__file__, "--one", "pipeline", str(root), *arguments)
    if "error" in alone:
        raise SystemExit(f"pipeline: {alone['error']}")
    print(
        f"the pipeline alone: {alone['rate']:.1f} images/s, {alone['cpu'] * 1e3:.0f} ms of CPU each; "
        f"{alone['single']:.1f} images/s one at a time",
        flush=True,
    )
    return alone


def measure_server(
    name: str, address: str, pid: int, path: str, root: Path, clients: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure a server with so many clients, and print a line."""
    cpu, before = cpu_seconds(pid), stage_sums(address) if name == OURS else {}
    row = {"server": name} | measure_load(address, path, root, clients, options)
    row["cpu"] = (cpu_seconds(pid) - cpu) / max(1, row["answers"])
    times = "p50 {p50:.3f} s, p99 {p99:.3f} s".format(**row) if row["good"] else "no answers"
    print(
        f"{name:24s} {clients:3d} clients: {row['rate']:7.1f} requests/s; {times}; {row['cpu'] * 1e3:.0f} ms of CPU; "
        f"statuses {row['statuses']}",
        flush=True,
    )
    if name == OURS:
        after = stage_sums(address)
        row["means"] = {
            stage: (total - before.get(stage, (0.0, 0.0))[0]) / max(1.0, count - before.get(stage, (0.0, 0.0))[1])
            for stage, (total, count) in after.items()
        }
        batch = row["means"].pop("batch", float("nan"))
        stages = ", ".join(f"{stage} {mean * 1e3:.1f}" for stage, mean in row["means"].items())
        print(f"{'':24s} batches of {batch:.1f}; ms: {stages}", flush=True)
    return row


def stage_sums(address: str) -> dict[str, tuple[float, float]]:
    """Return sum and count of the time of each stage, and of the sizes of batches, from the metrics of our server."""
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/metrics")
    found: dict[str, dict[str, float]] = {}
    for line in connection.getresponse().read().decode().splitlines():
        if match := re.match(r"vitruvian_(stage_seconds|batch_size)_(sum|count)\{(.*)\} (\S+)", line):
            stage = re.search(r'stage="(\w+)"', match[3])
            found.setdefault("batch" if stage is None else stage[1], {})[match[2]] = float(match[4])
    return {stage: (one["sum"], one["count"]) for stage, one in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
