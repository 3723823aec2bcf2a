"""Assignment at least total cost, against scipy and in its corner cases."""

from __future__ import annotations

import numpy as np
import pytest

from vitruvian.ops.assignment import assign


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3), (12, 12), (40, 30)])
@pytest.mark.parametrize("kind", ["uniform", "negative", "ties", "sparse"])
def test_least_total_cost(shape: tuple[int, int], kind: str) -> None:
    scipy = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(0)
    for _ in range(10):
        cost = random.random(shape)
        if kind == "negative":
            cost = random.normal(size=shape) * 100
        elif kind == "ties":
            cost = random.integers(0, 4, shape).astype(np.float64)
        elif kind == "sparse":
            cost[cost < 0.8] = 1.0
        rows, columns = assign(cost)
        assert len(rows) == len(set(columns.tolist())) == min(shape)
        assert (np.diff(rows) > 0).all()
        assert cost[rows, columns].sum() == pytest.approx(cost[scipy.linear_sum_assignment(cost)].sum())


def test_pairs() -> None:
    rows, columns = assign(np.array([[4.0, 1.0], [2.0, 0.5], [9.0, 9.0]], np.float32))
    assert (rows.tolist(), columns.tolist()) == ([0, 1], [1, 0])


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0)])
def test_no_pairs(shape: tuple[int, int]) -> None:
    rows, columns = assign(np.zeros(shape))
    assert len(rows) == len(columns) == 0


def test_costs_that_are_not_finite_are_the_last_choice() -> None:
    rows, _ = assign(np.array([[np.nan, np.nan], [1.0, 2.0], [-np.inf, np.inf], [5.0, 1.0]]))
    assert rows.tolist() == [1, 3]
    rows, columns = assign(np.full((2, 2), np.nan))
    assert (rows.tolist(), sorted(columns.tolist())) == ([0, 1], [0, 1])
