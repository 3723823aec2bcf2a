"""Batches of one size: filled up where that pays, in order, and with results that do not depend on it.

Nothing is recorded on a CPU; batches are filled up all the same where they are told to be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.pipelines.case import SAPIENS, leeway, opened, parts_of, picture
from vitruvian import pipeline
from vitruvian.ops.cuda_graphs import GraphCache, _only_batch
from vitruvian.pipelines.base import Call
from vitruvian.pipelines.job import Failure, Unit
from vitruvian.pipelines.memory import BatchSize, to_device
from vitruvian.pipelines.runner import run_many
from vitruvian.pipelines.sources import open_source
from vitruvian.pipelines.steady import Steady

BOXES = [[4.0, 3.0, 30.0, 38.0], [22.0, 5.0, 50.0, 36.0]]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")


class Noting:
    """Runs units, and notes which came and which batches would be recorded."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], int | None]] = []

    def __call__(self, units: list[Unit]) -> list[Any]:
        self.seen.append(([unit.note for unit in units], _only_batch.get()))
        return [10 * unit.note for unit in units]


def units(count: int) -> list[Unit]:
    return [Unit(torch.zeros(3, 2, 2), number) for number in range(count)]


class TestFilling:
    @pytest.mark.parametrize(
        ("count", "ran"),
        [(8, [*range(8)]), (7, [*range(7), 6]), (5, [*range(5), 4, 4, 4]), (4, [*range(4)]), (1, [0])],
    )
    def test_more_than_half_is_filled_up(self, count: int, ran: list[int]) -> None:
        run = Noting()
        steady = Steady(GraphCache(max_batch=4), BatchSize(8, fixed=True), one_size=True)
        assert steady.run(units(count), run) == [10 * number for number in range(count)]
        assert run.seen == [(ran, 8)]
        assert _only_batch.get() is None

    @pytest.mark.parametrize(
        ("graphs", "size", "one_size", "only"),
        [
            (GraphCache(max_batch=4), 4, True, None),  # every size is recorded
            (GraphCache(max_batch=4), 8, False, 0),  # none is
            (None, 8, True, None),
        ],
    )
    def test_others_stay_as_they_are(
        self, graphs: GraphCache | None, size: int, one_size: bool, only: int | None
    ) -> None:
        run, steady = Noting(), Steady(graphs, BatchSize(size, fixed=True), one_size=one_size)
        assert steady.size == 0
        assert steady.run(units(3), run) == [0, 10, 20]
        assert run.seen == [([0, 1, 2], only)]

    def test_it_follows_a_batch_that_became_smaller(self) -> None:
        graphs, batch, run = GraphCache(max_batch=2), BatchSize(12, fixed=False), Noting()
        steady = Steady(graphs, batch, one_size=True)
        batch.halve()
        steady.run(units(5), run)
        assert run.seen == [([0, 1, 2, 3, 4, 4], 6)]
        batch.halve()
        batch.halve()
        steady.run(units(1), run)
        assert run.seen[1] == ([0], None)

    def test_without_room_recordings_are_let_go_of(self) -> None:
        graphs = GraphCache()
        steady = Steady(graphs, BatchSize(8, fixed=False), one_size=True)

        def fail(error: Exception) -> Any:
            def forward(_: list[Unit]) -> list[Any]:
                raise error

            return forward

        graphs.captured["key"] = None  # type: ignore[assignment]
        with pytest.raises(ValueError, match="other"):
            steady.run(units(2), fail(ValueError("something other")))
        assert len(graphs.captured) == 1
        with pytest.raises(torch.OutOfMemoryError):
            steady.run(units(2), fail(torch.OutOfMemoryError("CUDA out of memory.")))
        assert len(graphs.captured) == 0


@pytest.mark.parametrize("task", SAPIENS)
def test_results_do_not_depend_on_filling(task: str) -> None:
    """Eleven people in batches of six, the last filled up: results are those of one at a time, in order."""
    pipe = opened(task)
    shown = [picture(seed, (40 + 3 * seed, 56)) for seed in range(6)]
    boxes = [BOXES, BOXES[:1], BOXES, BOXES, BOXES, BOXES]
    wanted = list(pipe(shown, boxes=boxes))
    forward, sizes = pipe.forward, []

    def noted(given: list[Unit], options: Any) -> list[Any]:
        sizes.append(len(given))
        return forward(given, options)  # type: ignore[no-any-return]

    pipe.forward = noted
    batch = BatchSize(6, fixed=True)
    options = pipe.options_class(boxes=boxes)
    job = Call(pipe, options, finder=None, batches=Steady(GraphCache(), batch, one_size=True))
    assert job.steady
    found = list(run_many(job, open_source(shown), batch=batch, patience=60.0))
    assert sizes == [6, 6]
    for got, want in zip(found, wanted, strict=True):
        assert not isinstance(got, Failure), got
        for name, value in want.arrays().items():
            np.testing.assert_allclose(got.arrays()[name], value, **leeway(name, rtol=1e-4, atol=1e-4))


def test_on_a_cpu_nothing_is_filled_up() -> None:
    pipe = opened("pose", optimize=True, batch_size=6)
    forward, sizes = pipe.forward, []

    def noted(given: list[Unit], options: Any) -> list[Any]:
        sizes.append(len(given))
        return forward(given, options)  # type: ignore[no-any-return]

    pipe.forward = noted
    assert len(list(pipe([picture()] * 4, boxes=BOXES, patience=60.0))) == 4
    assert sizes == [1, 2, 4, 1]


def test_units_become_a_batch() -> None:
    made = to_device([torch.ones(3, 2, 2), torch.zeros(3, 2, 2)], torch.device("cpu"), torch.bfloat16)
    assert (made.shape, made.dtype) == ((2, 3, 2, 2), torch.float32)  # on a CPU the model sees what it always saw


@needs_cuda
class TestOnAGpu:
    def test_units_of_both_places_become_one_batch(self) -> None:
        device = torch.device("cuda")
        ones = [torch.ones(3, 2, 2), torch.ones(3, 2, 2, device=device, dtype=torch.bfloat16)]
        for given in (ones, ones[:1], ones[1:]):
            made = to_device(given, device, torch.bfloat16)
            assert (made.device.type, made.dtype, made.float().mean()) == ("cuda", torch.bfloat16, 1.0)

    @pytest.mark.parametrize("task", SAPIENS)
    def test_a_run_is_replayed(self, task: str) -> None:
        """Eleven people by six, the last batch filled up: one recording, which the second run uses again."""
        shown = [picture(seed, (40 + 3 * seed, 56)) for seed in range(6)]
        boxes = [BOXES, BOXES[:1], BOXES, BOXES, BOXES, BOXES]
        wanted = list(opened(task)(shown, boxes=boxes))
        model, processor = parts_of(task)
        pipe = pipeline(task, model.cuda(), processor=processor, batch_size=6, patience=60.0)
        for runs in (1, 2):
            for got, want in zip(pipe(shown, boxes=boxes), wanted, strict=True):
                assert not isinstance(got, Failure), got
                for name, value in want.arrays().items():
                    share = np.isclose(got.arrays()[name], value, atol=2e-2, rtol=2e-2).mean() if value.size else 1.0
                    assert share > 0.97, name
            assert pipe.model.graphs.replays == {6: 2 * runs}
            assert len(pipe.model.graphs.captured) == 1

    def test_few_calls_of_torch(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        from vitruvian.ops.dispatch import HAS_TRITON

        if not HAS_TRITON:
            pytest.skip("no Triton")

        class Calls(TorchDispatchMode):
            count = 0

            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                self.count += 1
                return function(*args, **(kwargs or {}))

        model, processor = parts_of("pose")
        pipe = pipeline("pose", model.cuda(), processor=processor, boxes=BOXES)
        pipe(picture())
        frame = next(open_source(picture()).tickets()).frame(0)
        with torch.inference_mode(), Calls() as calls:
            prepared = pipe.prepare(frame, None, pipe.options)
        assert len(prepared.units) == 2
        assert calls.count < 20  # the way without a kernel takes two hundred
