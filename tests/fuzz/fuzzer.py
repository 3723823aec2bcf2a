"""Runs one target: mutated inputs from a seed, each with its outcome."""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import TARGETS, Seed
from vitruvian.errors import VitruvianError


@dataclass(frozen=True)
class Outcome:
    """What happened to one input.

    Attributes:
        path: The file, in the folder of the target.
        kind: "result", "error" (a `VitruvianError`) or "exception" (any other).
        detail: The traceback of an exception.
    """

    path: str
    kind: str
    detail: str = ""


def fuzz(target: str, folder: Path, seed: int) -> Iterator[Outcome]:
    """Yield the outcomes of endless inputs for a target. The files are written to `folder`, which is empty."""
    seeds = TARGETS[target](folder)
    rng = random.Random(f"{target} {seed}")
    while True:
        one = rng.choice(seeds)
        yield run_input(one, folder, one.mutate(one.content, rng))


def run_input(seed: Seed, folder: Path, content: bytes) -> Outcome:
    """Read one mutated input."""
    path = folder / seed.path
    path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed.read(path)
    except VitruvianError:
        return Outcome(seed.path, "error")
    except Exception:
        return Outcome(seed.path, "exception", traceback.format_exc())
    return Outcome(seed.path, "result")
