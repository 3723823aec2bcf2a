"""Mutated inputs for each target, with a fixed seed, and every number of every configuration replaced.

`make fuzz` runs many more, with fresh seeds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families import CASES
from tests.fuzz.fuzzer import fuzz, run_input
from tests.fuzz.targets import TARGETS, Seed, build_model, servers

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


@pytest.mark.parametrize("number", [-1, 0])
def test_a_configuration_with_a_wrong_number_gives_a_model_or_an_error_of_ours(number: int, tmp_path: Path) -> None:
    raw = []
    replaced: set[tuple[str, str]] = set()
    for case in CASES:
        case.config().save_pretrained(tmp_path)
        seed = Seed("config.json", (tmp_path / "config.json").read_bytes(), build_model(case.cls))
        for place, changed in _with_number(json.loads(seed.content), number):
            if place not in replaced:
                replaced.add(place)
                outcome = run_input(seed, tmp_path, json.dumps(changed).encode())
                raw += [(place, outcome.detail)] if outcome.kind == "exception" else []
    assert len(replaced) > 150
    assert not raw, f"{[place for place, _ in raw]}; the first:\n{raw[0][1]}"


def _with_number(config: dict[str, Any], number: int) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield copies of a configuration with one number replaced, or the first of a list, and where that is."""
    for name, value in config.items():
        if isinstance(value, dict) and "model_type" in value:
            for place, part in _with_number(value, number):
                yield place, config | {name: part}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (config["model_type"], name), config | {name: number}
        elif isinstance(value, list) and value and isinstance(value[0], int | float):
            yield (config["model_type"], name), config | {name: [number, *value[1:]]}
