"""Jobs on a real Ray cluster of three nodes: nothing is lost or done twice when workers, nodes or the driver die."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.helpers.pipelines import parts_of, sample_image
from tests.integration.cli_case import save_images
from tests.integration.ray_cluster import STORE, free_port, start_cluster
from tests.unit.files.clips import make_clip

ray = pytest.importorskip("ray")
from vitruvian import cli, pipeline  # noqa: E402
from vitruvian.errors import InputError, VitruvianError, VitruvianWarning  # noqa: E402
from vitruvian.results import Result  # noqa: E402
from vitruvian.scale import JobSummary, PipelineSpec, map_dataset, run_on_ray  # noqa: E402
from vitruvian.scale.chunk_runner import ChunkActor, ChunkRunner, Stages  # noqa: E402
from vitruvian.scale.placement import Placement  # noqa: E402
from vitruvian.scale.shards import ChunkCounts  # noqa: E402
from vitruvian.scale.sources import SourceItem  # noqa: E402
from vitruvian.scale.worker import FileEncoder  # noqa: E402

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes: the head with the driver, and two with a core for a worker. Tests that lose a machine add others."""
    port = free_port()
    # A killed node refuses connections and is found dead after 5 checks. A busy one has 10 s for each answer.
    checks = {"health_check_period_ms": 500}
    with start_cluster(num_cpus=0, ray_client_server_port=port, _system_config=checks) as nodes:
        nodes.client_address = f"ray://127.0.0.1:{port}"
        for _ in range(2):
            nodes.add_node(num_cpus=1, object_store_memory=STORE)
        yield nodes


def lose(cluster: Any, node: Any) -> None:
    """Kill all processes of a node, as if its machine was lost, and wait until Ray knows."""
    cluster.remove_node(node, allow_graceful=False)
    while any(one["Alive"] and one["NodeID"] == node.node_id for one in ray.nodes()):
        time.sleep(0.1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    model, processor = parts_of("pose")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    save_images(folder, 12)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    return folder


@dataclass(frozen=True)
class DangerousEncoder:
    """Encodes results, but some sources end the process: `poison` with a segmentation fault, `once` the first time."""

    marker: str

    def __call__(self, result: Result) -> dict[str, bytes]:
        name = Path(str(result.source)).stem
        if name == "poison":
            ctypes.string_at(0)
        if name == "once" and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return FileEncoder(("json",))(result)


def run(checkpoint: str, images: Path, out: Path, **options: Any) -> JobSummary:
    spec = PipelineSpec(task="pose", model=checkpoint, device="cpu")
    return run_on_ray(spec, [str(images)], out, **{"workers": 1, "chunk_size": 3} | options)


def rows(out: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of all shards by the name of the file; a source that is there twice is an error."""
    found = pq.read_table(out, partitioning=None).to_pylist()
    by_name = {Path(row["source"]).name: row for row in found}
    assert len(by_name) == len(found), "a source has two rows"
    return by_name


def test_shards_hold_the_results_of_one_machine(
    cluster: Any, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the cluster was started in another folder
    folder, out = Path("in"), Path("out")
    save_images(folder, 8)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    formats = ["json", "npz", "plot"]
    summary = run(checkpoint, folder, out, workers=2, formats=formats)
    assert (summary.done, summary.failed, summary.crashed) == (8, 1, 0)
    found = rows(out)
    assert found["broken.jpg"]["status"] == "failed"
    assert "broken.jpg" in found["broken.jpg"]["error"]
    pipe = pipeline("pose", checkpoint, device="cpu")
    for name in ("000.jpg", "007.jpg"):
        result = pipe(str(folder / name))
        assert json.loads(found[name]["json"]) == result.to_dict()
        result.save("one.npz")
        assert found[name]["npz"] == Path("one.npz").read_bytes()
    again = run(checkpoint, folder, out, formats=formats)
    assert (again.done, again.failed, again.skipped) == (0, 0, 9)
    with pytest.raises(InputError, match="settings"):
        run(checkpoint, folder, out, formats=["npz"])

    save_images(folder, 1, size_hw=(60, 30))  # 000.jpg again, larger: its row is replaced
    changed = run(checkpoint, folder, out, formats=formats)
    assert (changed.done, changed.skipped) == (1, 8)
    found = rows(out)
    assert [found[f"{number:03d}.jpg"]["height"] for number in range(3)] == [60, 40, 40]


def test_crashing_sources_are_set_aside_and_the_rest_is_done_once(
    cluster: Any, checkpoint: str, tmp_path: Path
) -> None:
    save_images(tmp_path / "in", 6)
    for name in ("poison", "once"):
        (tmp_path / "in" / f"{name}.jpg").write_bytes((tmp_path / "in" / "001.jpg").read_bytes())
    encode = DangerousEncoder(str(tmp_path / "marker"))
    summary = run(checkpoint, tmp_path / "in", tmp_path / "out", encode=encode, formats=["json"])
    found = rows(tmp_path / "out")
    assert (summary.done, summary.failed, summary.crashed) == (7, 0, 1)
    assert found["poison.jpg"]["status"] == "crashed"
    assert "3 times" in found["poison.jpg"]["error"]
    assert found["once.jpg"]["status"] == "done"
    assert len(found) == 8


def test_a_node_that_is_removed_loses_nothing(cluster: Any, checkpoint: str, images: Path, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    removed = []

    def remove(_: JobSummary) -> None:
        if not removed:
            removed.append(True)
            lose(cluster, node)

    # Two of the four cores are on this node, so at least one of the three workers is.
    summary = run(checkpoint, images, tmp_path / "out", workers=3, cpus_per_worker=1, chunk_size=1, progress=remove)
    assert removed
    assert (summary.done, summary.failed, summary.crashed) == (12, 1, 0)
    assert len(rows(tmp_path / "out")) == 13


def read_and_crash(items: Any, folder: str) -> list[str]:
    """Read a source that ends the process the first four times: Ray runs it twice for each crash that counts."""
    attempt = len(list(Path(folder).iterdir()))
    if attempt < 4:
        (Path(folder) / f"crash-{attempt}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [item.name for item in items]


class StuckActor(ChunkActor):
    """Gets stuck with the first chunk, and tells on which machine."""

    def __init__(self, folder: str) -> None:
        self._machine = Path(folder) / "machine"

    def load(self) -> None:
        pass

    def process(self, items: Any, contents: list[str]) -> tuple[bool, list[str]]:
        if not self._machine.exists():
            self._machine.write_text(ray.get_runtime_context().get_node_id())
            time.sleep(10_000)  # until the machine is removed
        return True, contents


def list_names(name: str, *results: list[str]) -> ChunkCounts:
    return ChunkCounts(name, sum(map(len, results)), 0, 0, ())


def list_crashed(item: SourceItem, message: str) -> list[str]:
    raise AssertionError(message)


def gpu_runner(folder: Path) -> ChunkRunner:
    """Return a runner with a worker that needs a GPU, of which no node that stays has any."""
    stages = Stages(
        actor=StuckActor,
        arguments=(str(folder),),
        read=read_and_crash,
        read_arguments=(str(folder),),
        write=list_names,
        crashed=list_crashed,
    )
    return ChunkRunner(stages, first_shard=0, placement=Placement(1, 0, 1), rows_per_shard=1)


def test_a_lost_machine_is_not_a_crash(cluster: Any, tmp_path: Path) -> None:
    """Two crashes and a lost machine: with a third crash the source would be set aside."""
    node = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE)

    def run_job() -> list[ChunkCounts]:
        return list(gpu_runner(tmp_path).run([[SourceItem("a.jpg", "a.jpg")]]))

    def run_and_replace_machine() -> list[ChunkCounts]:
        nonlocal node
        job = ThreadPoolExecutor().submit(run_job)
        while not (tmp_path / "machine").exists() and not job.done():
            time.sleep(0.05)
        lose(cluster, node)
        while not any("joins" in str(one.message) for one in warned.list) and not job.done():
            time.sleep(0.05)
        node = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE)
        return job.result()

    with pytest.warns(VitruvianWarning, match="waits until one joins") as warned:
        counts = run_and_replace_machine()
    assert [one.done for one in counts] == [1]
    lose(cluster, node)
    with pytest.raises(InputError, match="expected a machine with 0 cores and 1 GPUs"):
        run_job()


def test_a_pipeline_on_ray_writes_the_files_of_one_machine(
    cluster: Any, checkpoint: str, images: Path, tmp_path: Path
) -> None:
    pipe = pipeline("pose", checkpoint, device="cpu", detect="whole")
    on_ray = pipe.on_ray(workers=1)
    sources = [str(images / "broken.jpg"), *(str(images / f"{number:03d}.jpg") for number in range(3))]
    summary = on_ray(sources, save=tmp_path / "ray" / "{stem}.json")
    assert (summary.done, summary.failed) == (3, 1)
    assert on_ray(sources, save=tmp_path / "ray" / "{stem}.json").skipped == 4
    list(pipe(sources, save=tmp_path / "one" / "{stem}.json"))
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert len(files) == 3
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "ray").glob("*.json")}
    with pytest.raises(InputError, match=r"options: .*got 'no_such_option'"):
        on_ray(sources, save=tmp_path / "ray", no_such_option=1)
    with pytest.raises(VitruvianError, match="no-such-folder"):  # one error, not one for each source
        run(str(tmp_path / "no-such-folder"), images, tmp_path / "out")


def visible_files(root: Path) -> dict[Path, bytes]:
    files = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes() for name, path in files.items() if not any(part.startswith(".") for part in name.parts)
    }


def test_commands_give_the_files_of_one_machine_for_split_videos_too(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the cluster was started in another folder
    model, processor = parts_of("semantic")
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    save_images(tmp_path / "in", 3)
    scene = sample_image(4, (48, 64))
    make_clip(tmp_path / "in" / "clip.mp4", [np.roll(scene, number, 1) for number in range(50)], rate=2, sound="aac")
    words = ["semantic", "in", "-m", "model", "-s", "json,png,mp4", "-q"]
    assert cli.run([*words, "-o", "one"]) == 0
    assert cli.run([*words, "-o", "ray", "--ray", "--workers", "2", "--split-seconds", "10"]) == 0
    found = [visible_files(Path(root)) for root in ("one", "ray")]
    assert len(found[0]) == 3 * 2 + 2 + 50
    assert found[0] == found[1]
    again = [*words, "-o", "ray", "--split-seconds", "10", "--ray", cluster.client_address]
    assert cli.run(again) == 0  # all are done
    assert cli.run(["pose", "in", "-o", "no", "--ray", "--split-seconds", "10"]) == 2


def test_a_killed_driver_resumes(cluster: Any, checkpoint: str, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = (
        "import sys, ray; from vitruvian.scale import PipelineSpec, run_on_ray\n"
        "address, model, images, out = sys.argv[1:]\n"
        "run_on_ray(PipelineSpec(task='pose', model=model, device='cpu'), [images], out, address=address, workers=1,"
        " chunk_size=1)"
    )
    command = [sys.executable, "-c", script, cluster.client_address, checkpoint, str(images), str(out)]
    for _ in range(3):  # on a busy machine Ray gives up starting the process that serves a client
        driver = subprocess.Popen(command)
        while not list(out.glob("part-*.parquet")) and driver.poll() is None:
            time.sleep(0.01)
        driver.kill()
        driver.wait()
        if list(out.glob("part-*.parquet")):
            break
    before = len(rows(out))
    assert 0 < before < 13
    summary = run(checkpoint, images, out)
    assert summary.done + summary.failed + summary.skipped == 13
    assert summary.skipped >= before
    assert run(checkpoint, images, out).skipped == 13  # removes rows that tasks of the killed driver wrote meanwhile
    assert len(rows(out)) == 13


def test_dataset_of_bytes_is_mapped(cluster: Any, checkpoint: str, images: Path) -> None:
    dataset = ray.data.from_items([{"id": i, "bytes": (images / f"{i:03d}.jpg").read_bytes()} for i in range(4)])
    mapped = map_dataset(dataset, "pose", model=checkpoint, batch_size=2).take_all()
    assert sorted(row["id"] for row in mapped) == [0, 1, 2, 3]
    assert all(row["status"] == "done" and json.loads(row["json"])["task"] == "pose" for row in mapped)
