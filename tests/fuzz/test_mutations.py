"""A few hundred mutated inputs for each target, with a fixed seed. `make fuzz` runs many more, with fresh ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.fuzz.fuzzer import fuzz
from tests.fuzz.targets import TARGETS, servers

INPUTS = {
    "images": 800,
    "videos": 60,
    "checkpoints": 80,
    "configurations": 150,
    "converters": 40,
    "tables": 600,
    "journals": 300,
    "calls": 250,
    "labels": 300,
    "states": 8,
    "sources": 200,
    "requests": 120,
}
SEED = 1


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    servers.close()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_every_input_gives_a_result_or_an_error_of_ours(target: str, tmp_path: Path) -> None:
    if target == "videos":
        pytest.importorskip("av")
    outcomes = list(itertools.islice(fuzz(target, tmp_path, SEED), INPUTS[target]))
    raw = [outcome.detail for outcome in outcomes if outcome.kind == "exception"]
    assert not raw, f"{len(raw)} exceptions; the first:\n{raw[0]}"
    assert {outcome.kind for outcome in outcomes} == {"error", "result"}  # inputs are neither all valid nor all broken
