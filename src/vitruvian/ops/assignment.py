"""Linear sum assignment: pair rows with columns at least total cost (the Hungarian problem)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]
Indices = npt.NDArray[np.int64]


def assign(cost: FloatArray) -> tuple[Indices, Indices]:
    """Pair min(n, m) rows of a cost matrix [n, m] with different columns, at least total cost.

    NaN and infinite costs are worse than any sum of others: such pairs are chosen only where nothing else is left.
    Exact, by shortest augmenting paths (Jonker and Volgenant, 1987), in O(n² m).

    Returns:
        The paired rows, ascending, and the column of each.
    """
    cost = np.asarray(cost, np.float64)
    if cost.shape[0] > cost.shape[1]:
        columns, rows = assign(cost.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    finite = np.isfinite(cost)
    if not finite.all():
        low, high = (float(cost[finite].min()), float(cost[finite].max())) if finite.any() else (0.0, 0.0)
        cost = np.where(finite, cost, high + (high - low + 1) * (len(cost) + 1))
    row_of = np.full(cost.shape[1], -1)  # row of each column
    price = np.zeros(cost.shape[1])  # dual variable of each column, 0 while it is free
    waiting = list(range(len(cost) - 1, -1, -1))
    for _ in range(2 * len(cost) if cost.shape[1] > 1 else 0):  # cheap moves first: bid for the best column
        if not waiting:
            break
        row = waiting.pop()
        reduced = cost[row] - price
        best, second = np.argpartition(reduced, 1)[:2]
        price[best] -= reduced[second] - reduced[best]
        if row_of[best] >= 0:
            waiting.append(int(row_of[best]))
        row_of[best] = row
    for row in waiting:
        _augment(cost, row, row_of, price)
    columns = np.flatnonzero(row_of >= 0)
    order = np.argsort(row_of[columns])
    return row_of[columns][order], columns[order]


def _augment(cost: FloatArray, row: int, row_of: Indices, price: FloatArray) -> None:
    """Add a row to the pairs along the cheapest alternating path; modifies `row_of` and `price` in place."""
    distance = cost[row] - price  # of the cheapest path to each column
    previous = np.full(len(price), -1)  # column before it on that path
    open_distance = distance.copy()  # inf for columns that are done
    done = []
    while True:
        nearest = np.flatnonzero(open_distance == open_distance.min())
        column = int(nearest[row_of[nearest].argmin()])  # a free one, if there is one among them
        shortest = distance[column]
        if row_of[column] < 0:
            break
        done.append(column)
        open_distance[column] = np.inf
        other = int(row_of[column])
        through = cost[other] - price
        through += shortest - through[column]
        shorter = (through < distance) & (open_distance < np.inf)
        distance[shorter] = open_distance[shorter] = through[shorter]
        previous[shorter] = column
    price[done] += distance[done] - shortest
    while column >= 0:
        before = int(previous[column])
        row_of[column] = row_of[before] if before >= 0 else row
        column = before
