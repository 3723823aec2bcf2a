"""The command of a job, and the names of its results."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from vitruvian.serving.job_process import JobProcess
from vitruvian.serving.job_table import Job
from vitruvian.serving.jobs import Jobs
from vitruvian.serving.settings import Settings
from vitruvian.serving.task_requests import JOB_REQUESTS


@pytest.mark.parametrize(
    ("options", "detects"),
    [
        ({}, True),
        ({"max_people": 2}, True),
        ({"boxes": [[1, 2, 30, 40]]}, False),
        ({"tile": 128}, False),
        ({"tile": True}, False),
        ({"detect": "whole"}, False),
    ],
)
def test_the_choice_of_a_client_goes_before_the_detector_of_the_server(
    options: dict[str, object], detects: bool, tmp_path: Path
) -> None:
    jobs = Jobs(Settings(models={"normals": "builtin"}, data=tmp_path, detector="builtin"))
    arguments = tuple(JOB_REQUESTS["normals"].read(options).arguments())
    command = jobs._command(Job("a" * 22, None, "normals", arguments, {"0001.jpg": "a.jpg"}))
    assert ("--detect=builtin" in command) == detects


@pytest.mark.parametrize(
    ("names", "stems"),
    [
        (["beach.jpg", "a*b.jpg"], ["beach", "a_b"]),
        (["x.jpg", "x.png"], ["x_0001", "x_0002"]),
        (["x.jpg", "x.png", "x_0001.jpg"], ["x_0001", "x_0002", "x_0001_0003"]),
        (["a*b.jpg", "a?b.jpg"], ["a_b_0001", "a_b_0002"]),
        (["..", "été 日本.png"], ["file", "été 日本"]),
    ],
)
def test_every_result_has_a_name_of_its_own(names: list[str], stems: list[str], tmp_path: Path) -> None:
    jobs = Jobs(Settings(models={"embed": "builtin"}, data=tmp_path))
    sources = {f"{number:04d}.jpg": name for number, name in enumerate(names, 1)}
    job = Job("a" * 22, None, "embed", (), sources)
    out = tmp_path / "jobs" / job.id / "out"
    out.mkdir(parents=True)
    for stored in sources:
        (out / f"{Path(stored).stem}_embed.json").write_text(stored)
    found = jobs.files(job)
    assert sorted(found) == sorted(f"{stem}_embed.json" for stem in stems)
    assert len(set(found.values())) == len(names)


def test_lines_of_a_command_may_be_long(tmp_path: Path) -> None:
    """A video with a file for each of 100,000 frames lists them in one line."""

    async def read() -> list[int]:
        program = "print('a' * 5_000_000); print('b')"
        process = await JobProcess.start([sys.executable, "-c", program], tmp_path, {})
        sizes = [len(line) async for line in process.lines()]
        assert await process.wait() == (0, "")
        return sizes

    assert asyncio.run(read()) == [5_000_000, 1]
