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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.integration.cli_case import save_images
from tests.unit.pipelines.case import parts_of

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

from vitruvian import pipeline  # noqa: E402
from vitruvian.errors import InputError, VitruvianError  # noqa: E402
from vitruvian.results import Result  # noqa: E402
from vitruvian.scale import JobSummary, PipelineSpec, map_dataset, run_on_ray  # noqa: E402
from vitruvian.scale.worker import FileEncoder  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(180)


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
