"""A server under mixed load, bad requests, clients that hang up and `kill -9`: nothing is lost, nothing is left.

The load takes VITRUVIAN_SOAK_SECONDS, 20 by default; 60 for a minute, and 1200 for 20 minutes:

    VITRUVIAN_SOAK_SECONDS=1200 python -m pytest tests/integration/test_serve_soak.py
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.helpers.server import Client, ServerProcess, archive, jpeg
from tests.integration.cli_case import CHECKPOINTS
from vitruvian.tasks import find_task

SECONDS = float(os.environ.get("VITRUVIAN_SOAK_SECONDS", "20"))
CLIENTS = 8
TASKS = ("pose", "parts", "matte", "embed", "segment")
MODELS = [f"--model={find_task(task).name}={name}" for name, task in CHECKPOINTS.items() if task in TASKS]
IMAGES = [jpeg(number) for number in range(4)]


def one_request(client: Client, rng: random.Random, statuses: Counter[int]) -> None:
    task, body = rng.choice(TASKS), rng.choice(IMAGES)
    query = {"points": [9, 7]} if task == "segment" else {}
    dice = rng.random()
    if dice < 0.1:
        bad = rng.choice(
            [{"body": b"no image"}, {"body": body[:300]}, {"body": body, "color": "1"}, {"body": body, "as": "x"}]
        )
        answer = client.post(f"/v1/{task}", **bad)  # type: ignore[arg-type]
        assert 400 <= answer.status < 500, answer.body
    elif dice < 0.2:
        connection = client.connect()
        connection.putrequest("POST", f"/v1/{task}?as=plot")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body if rng.random() < 0.5 else body[:100])
        connection.close()
        return
    elif dice < 0.3:
        image = client.post("/v1/images", body)
        assert image.status in (201, 429), image.body
        if image.status == 201:
            answer = client.post(f"/v1/images/{image.json['id']}/segment", {"points": [9, 7]})
            statuses[answer.status] += 1
            client.delete(f"/v1/images/{image.json['id']}")
        return
    else:
        answer = client.post(f"/v1/{task}", body, **query, **{"as": rng.choice(["json", "plot", "npz"])})
        assert answer.status in (200, 429), answer.body
    statuses[answer.status] += 1


def load(client: Client, seconds: float) -> Counter[int]:
    """Send requests from several clients at the same time, and return how often each status was the answer."""
    statuses: Counter[int] = Counter()
    failures: list[BaseException] = []
    end = time.monotonic() + seconds

    def run(seed: int) -> None:
        rng = random.Random(seed)
        try:
            while time.monotonic() < end:
                one_request(client, rng, statuses)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return statuses


@pytest.mark.timeout(300 + 2 * SECONDS)
def test_a_busy_server_that_is_killed(checkpoints: Path, tmp_path: Path) -> None:
    arguments = (*MODELS, "--data", tmp_path, "--limit", "queue=16", "--limit", "images=8")
    server = ServerProcess(*arguments, cwd=checkpoints)
    client = server.client
    early = client.post("/v1/jobs", IMAGES[0], task="embed", name="a.jpg").json["id"]
    load(client, SECONDS / 4)  # fills caches
    before = psutil.Process(server.process.pid).memory_info().rss
    statuses = load(client, SECONDS * 3 / 4)
    after = psutil.Process(server.process.pid).memory_info().rss
    assert not [status for status in statuses if status >= 500], statuses
    assert statuses[200] > 10
    assert statuses[415] + statuses[422] + statuses[406] > 0
    assert after < before * 1.05 + 2e6, (before, after)
    assert client.metric("vitruvian_pending_bytes") == 0
    assert not list((tmp_path / "tmp").iterdir())

    assert client.wait_for_job(early)["state"] == "done"
    many = archive({f"{number:03d}.jpg": jpeg(number) for number in range(200)})
    running = client.post("/v1/jobs", many, task="embed", name="a.zip", save="json").json["id"]
    waiting = client.post("/v1/jobs", IMAGES[1], task="pose", name="b.jpg").json["id"]
    out = tmp_path / "jobs" / running / "out"
    while len(list(out.glob("*.json"))) < 10:
        time.sleep(0.01)
    (worker,) = psutil.Process(server.process.pid).children()
    server.kill()
    worker.wait(60)  # the process of the job ends with the server
    done = {path: path.stat().st_mtime_ns for path in out.glob("*.json")}
    assert len(done) < 200
    (tmp_path / "jobs" / "AAAAAAAAAAAAAAAAAAAAAA" / "input").mkdir(parents=True)  # what a killed upload leaves

    server = ServerProcess(*arguments, cwd=checkpoints)
    client = server.client
    assert [client.wait_for_job(job)["state"] for job in (early, running, waiting)] == ["done"] * 3
    finished = client.get(f"/v1/jobs/{running}").json
    assert (finished["done"], finished["failed"], len(finished["files"])) == (200, 0, 200)
    kept = [path for path, stamp in done.items() if path.stat().st_mtime_ns == stamp]
    assert len(kept) >= len(done) - 8  # all but those that were being written
    for job in (early, running, waiting):
        assert client.delete(f"/v1/jobs/{job}").status == 204
    assert not list((tmp_path / "jobs").iterdir())
    assert server.stop() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs", "jobs.sqlite"]
