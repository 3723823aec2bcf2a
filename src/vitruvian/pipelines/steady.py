"""Batches of one size through a recorded graph: the caller asks for each with one call, not with hundreds.

    units ─ as many as a batch has ─▶ recorded once, then replayed
          ─ more than half of that ─▶ filled up with the last unit, replayed; what comes of those is dropped
          ─ fewer                  ─▶ as they are, without a recording

While the caller makes the launches of a batch one by one, the threads that read and prepare pictures take Python's lock
from it each time; the device then waits. One recording is enough for a run, and its memory is that of one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from vitruvian.ops.cuda_graphs import GraphCache, capture_only
from vitruvian.pipelines.job import Unit
from vitruvian.pipelines.memory import BatchSize, is_out_of_memory


class Steady:
    """How the batches of a run go through the model.

    Args:
        graphs: The model's recordings; None where calls are not recorded.
        batch: Size of the batches, which may become less on the way.
        one_size: Whether all inputs have one size, and many batches come, so that a recording is used again.
    """

    def __init__(self, graphs: GraphCache | None, batch: BatchSize, *, one_size: bool) -> None:
        self.graphs, self.batch, self.one_size = graphs, batch, one_size

    @property
    def size(self) -> int:
        """The batch that is recorded on its own; 0 where none is: batches are small, and every size is recorded."""
        if self.graphs is None or self.batch.size <= self.graphs.max_batch:
            return 0
        return self.batch.size if self.one_size else 0

    def run(self, units: list[Unit], forward: Callable[[list[Unit]], list[Any]]) -> list[Any]:
        """Have units of one shape go through `forward`; one output each."""
        size = self.size
        spare = size - len(units)
        filled = units + units[-1:] * spare if 0 < spare < len(units) else units
        small = self.graphs is None or self.batch.size <= self.graphs.max_batch
        try:
            with nullcontext() if small else capture_only(size):
                return forward(filled)[: len(units)]
        except (RuntimeError, MemoryError) as error:
            if self.graphs is not None and is_out_of_memory(error):
                self.graphs.clear()  # their memory is of no use to a smaller batch
            raise
