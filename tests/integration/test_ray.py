"""Jobs on a real Ray cluster of three nodes: nothing is lost or done twice when workers, nodes or the driver die."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.integration.cli_case import save_images
from tests.unit.files.clips import make_clip
from tests.unit.pipelines.case import parts_of, sample_image

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

from vitruvian import cli, pipeline  # noqa: E402
from vitruvian.errors import InputError, VitruvianError  # noqa: E402
from vitruvian.results import Result  # noqa: E402
from vitruvian.scale import JobSummary, PipelineSpec, map_dataset, run_on_ray  # noqa: E402
from vitruvian.scale.chunk_runner import ChunkActor, ChunkCounts, ChunkRunner, Stages  # noqa: E402
from vitruvian.scale.placement import Placement  # noqa: E402
from vitruvian.scale.sources import SourceItem  # noqa: E402
from vitruvian.scale.worker import FileEncoder  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("ray")]  # one cluster at a time


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes: the head with the driver's tasks, and two with the resources of workers."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # for worker processes
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options = {"object_store_memory": 80_000_000, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **options})
    nodes.add_node(num_cpus=1, object_store_memory=80_000_000)
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


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
    save_images(folder, 24)
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
    return run_on_ray(spec, [str(images)], out, **{"workers": 2, "chunk_size": 5, "cpus_per_worker": 0.5} | options)


def rows(out: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of all shards by the name of the file; a source that is there twice is an error."""
    found = pq.read_table(out, partitioning=None).to_pylist()
    by_name = {Path(row["source"]).name: row for row in found}
    assert len(by_name) == len(found), "a source has two rows"
    return by_name


def test_shards_hold_the_results_of_one_machine(cluster: Any, checkpoint: str, images: Path, tmp_path: Path) -> None:
    summary = run(checkpoint, images, tmp_path / "out", save=["json", "npz", "plot"])
    assert (summary.done, summary.failed, summary.crashed) == (24, 1, 0)
    found = rows(tmp_path / "out")
    assert found["broken.jpg"]["status"] == "failed"
    assert "broken.jpg" in found["broken.jpg"]["error"]
    pipe = pipeline("pose", checkpoint, device="cpu")
    for name in ("000.jpg", "023.jpg"):
        result = pipe(str(images / name))
        assert json.loads(found[name]["json"]) == result.to_dict()
        result.save(tmp_path / "one.npz")
        assert found[name]["npz"] == (tmp_path / "one.npz").read_bytes()
    again = run(checkpoint, images, tmp_path / "out", save=["json", "npz", "plot"])
    assert (again.done, again.failed, again.skipped) == (0, 0, 25)


def test_crashing_sources_are_set_aside_and_the_rest_is_done_once(
    cluster: Any, checkpoint: str, images: Path, tmp_path: Path
) -> None:
    for name in ("poison", "once"):
        (images / f"{name}.jpg").write_bytes((images / "001.jpg").read_bytes())
    try:
        summary = run(
            checkpoint, images, tmp_path / "out", encode=DangerousEncoder(str(tmp_path / "marker")), save=["json"]
        )
    finally:
        for name in ("poison", "once"):
            (images / f"{name}.jpg").unlink()
    found = rows(tmp_path / "out")
    assert (summary.done, summary.failed, summary.crashed) == (25, 1, 1)
    assert found["poison.jpg"]["status"] == "crashed"
    assert "3 times" in found["poison.jpg"]["error"]
    assert found["once.jpg"]["status"] == "done"
    assert len(found) == 27


def test_a_node_that_is_removed_loses_nothing(cluster: Any, checkpoint: str, images: Path, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=2, resources={"volatile": 1}, object_store_memory=80_000_000)
    removed = []

    def remove(_: JobSummary) -> None:
        if not removed:
            removed.append(True)
            cluster.remove_node(node, allow_graceful=False)

    summary = run(checkpoint, images, tmp_path / "out", workers=4, chunk_size=2, progress=remove)
    assert removed
    assert (summary.done, summary.failed, summary.crashed) == (24, 1, 0)
    assert len(rows(tmp_path / "out")) == 25


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
            time.sleep(1000)  # until the machine is removed
        return True, contents


def list_names(name: str, *results: list[str]) -> ChunkCounts:
    return ChunkCounts(name, sum(map(len, results)), 0, 0, ())


def list_crashed(item: SourceItem, message: str) -> list[str]:
    raise AssertionError(message)


def test_a_lost_machine_is_not_a_crash(cluster: Any, tmp_path: Path) -> None:
    """Two crashes and a lost machine: with a third crash the source would be set aside."""
    nodes = [cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=80_000_000) for _ in range(2)]
    stages = Stages(
        actor=StuckActor,
        arguments=(str(tmp_path),),
        read=read_and_crash,
        read_arguments=(str(tmp_path),),
        write=list_names,
        crashed=list_crashed,
    )
    runner = ChunkRunner(stages, first_shard=0, placement=Placement(1, 0, 1), rows_per_shard=1)

    def remove_machine() -> None:
        machine = tmp_path / "machine"
        while not machine.exists() or not machine.read_text():
            time.sleep(0.05)
        lost = next(node for node in nodes if node.node_id == machine.read_text())
        nodes.remove(lost)
        cluster.remove_node(lost, allow_graceful=False)

    thread = threading.Thread(target=remove_machine, daemon=True)
    thread.start()
    counts = list(runner.run([[SourceItem("a.jpg", "a.jpg")]]))
    thread.join()
    cluster.remove_node(nodes[0])
    assert [one.done for one in counts] == [1]


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
    with pytest.raises(InputError, match="no such option"):
        on_ray(sources, save=tmp_path / "ray", no_such_option=1)


def test_commands_give_the_files_of_one_machine_for_split_videos_too(cluster: Any, tmp_path: Path) -> None:
    model, processor = parts_of("semantic")
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    save_images(tmp_path / "in", 3)
    scene = sample_image(4, (48, 64))
    make_clip(tmp_path / "in" / "clip.mp4", [np.roll(scene, number, 1) for number in range(50)], rate=2, sound="aac")
    words = ["semantic", str(tmp_path / "in"), "-m", str(tmp_path / "model"), "-s", "json,png,mp4", "-q"]
    assert cli.run([*words, "-o", str(tmp_path / "one")]) == 0
    assert cli.run([*words, "-o", str(tmp_path / "ray"), "--ray", "--workers", "2", "--split-seconds", "10"]) == 0
    found = [
        {
            path.relative_to(root): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and path.name[0] != "."
        }
        for root in (tmp_path / "one", tmp_path / "ray")
    ]
    found = [{name: data for name, data in files.items() if not str(name).startswith(".")} for files in found]
    assert len(found[0]) == 3 * 2 + 2 + 50
    assert found[0] == found[1]
    assert cli.run([*words, "-o", str(tmp_path / "ray"), "--ray", "--split-seconds", "10"]) == 0  # all are done
    assert cli.run(["pose", str(tmp_path / "in"), "-o", str(tmp_path / "no"), "--ray", "--split-seconds", "10"]) == 2


def test_a_killed_driver_resumes(cluster: Any, checkpoint: str, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = (
        "import sys, ray; from vitruvian.scale import PipelineSpec, run_on_ray\n"
        "address, model, images, out = sys.argv[1:]\n"
        "run_on_ray(PipelineSpec(task='pose', model=model, device='cpu'), [images], out, address=address, workers=1,"
        " chunk_size=2, cpus_per_worker=0.5)"
    )
    driver = subprocess.Popen([sys.executable, "-c", script, cluster.address, checkpoint, str(images), str(out)])
    deadline = time.monotonic() + 240
    while not list(out.glob("part-*.parquet")) and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    before = len(rows(out))
    assert 0 < before < 25
    summary = run(checkpoint, images, out)
    assert summary.done + summary.failed + summary.skipped == 25
    assert summary.skipped >= before
    assert len(rows(out)) == 25


def test_changed_sources_replace_their_rows(cluster: Any, checkpoint: str, tmp_path: Path) -> None:
    save_images(tmp_path / "in", 3)
    run(checkpoint, tmp_path / "in", tmp_path / "out")
    save_images(tmp_path / "in", 1, size_hw=(60, 30))  # 000.jpg again, larger
    summary = run(checkpoint, tmp_path / "in", tmp_path / "out")
    assert (summary.done, summary.skipped) == (1, 2)
    found = rows(tmp_path / "out")
    assert [found[f"{number:03d}.jpg"]["height"] for number in range(3)] == [60, 40, 40]


def test_other_settings_are_refused(cluster: Any, checkpoint: str, tmp_path: Path) -> None:
    save_images(tmp_path / "in", 1)
    run(checkpoint, tmp_path / "in", tmp_path / "out")
    with pytest.raises(InputError, match="settings"):
        run(checkpoint, tmp_path / "in", tmp_path / "out", save=["npz"])


def test_a_model_that_cannot_be_opened_is_one_error(cluster: Any, images: Path, tmp_path: Path) -> None:
    with pytest.raises(VitruvianError, match="no-such-folder"):
        run(str(tmp_path / "no-such-folder"), images, tmp_path / "out")


def test_dataset_of_bytes_is_mapped(cluster: Any, checkpoint: str, images: Path) -> None:
    dataset = ray.data.from_items([{"id": i, "bytes": (images / f"{i:03d}.jpg").read_bytes()} for i in range(4)])
    mapped = map_dataset(dataset, "pose", model=checkpoint, batch_size=2, cpus_per_worker=0.5).take_all()
    assert sorted(row["id"] for row in mapped) == [0, 1, 2, 3]
    assert all(row["status"] == "done" and json.loads(row["json"])["task"] == "pose" for row in mapped)
