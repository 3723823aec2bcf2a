"""How many workers fit a cluster, and what each gets."""

from __future__ import annotations

from typing import Any

import pytest

from vitruvian.errors import InputError
from vitruvian.scale.placement import Placement, choose_placement


def nodes(*resources: tuple[float, float]) -> list[dict[str, Any]]:
    """Return what `ray.nodes()` tells of machines with (cores, GPUs), and one that is gone."""
    live = [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in resources]
    return [*live, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]


@pytest.mark.parametrize(
    ("machines", "workers", "gpus", "expected"),
    [
        (nodes((2, 0)), None, None, Placement(2, 1, 0)),
        (nodes((2, 0)), 1, None, Placement(1, 2, 0)),  # one worker has all cores, as the plain command
        (nodes((1, 0), (1, 0), (2, 0)), 2, None, Placement(2, 1, 0)),  # two cores for each are on no two machines
        (nodes((1, 0)), 4, None, Placement(4, 0.25, 0)),
        (nodes((8, 0), (32, 4)), None, None, Placement(4, 1, 1)),
        (nodes((32, 1)), None, 0.25, Placement(4, 1, 0.25)),
        (nodes((2, 1)), 4, 0.25, Placement(4, 0.5, 0.25)),
        (nodes((32, 2)), None, 0.4, Placement(4, 1, 0.4)),  # two on each GPU: the rest of 0.2 is not joined
        (nodes((64, 8)), None, 4, Placement(2, 1, 4)),
    ],
)  # fmt: skip
def test_placement(machines: Any, workers: int | None, gpus: float | None, expected: Placement) -> None:
    assert choose_placement(machines, workers, None, gpus) == expected


@pytest.mark.parametrize(
    ("workers", "cpus", "gpus", "message"),
    [
        (5, None, 0.4, "workers: expected at most 4"),
        (None, None, 1.5, "gpus_per_worker: expected a fraction"),
        (0, None, None, "workers: expected at least 1"),
        (None, 0.0, 0.0, "cpus_per_worker: expected more than 0"),
        (3, 16.0, 0.0, "workers: expected at most 2"),
    ],
)
def test_what_would_wait_forever_is_an_error(workers: Any, cpus: Any, gpus: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_placement(nodes((32, 2)), workers, cpus, gpus)
