"""Batches that a CUDA graph replays: padded to one size, in order, with results that do not depend on it.

Nothing is recorded on a CPU; batches are padded all the same if there is a graph cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.pipelines import SAPIENS, leeway, opened, parts_of, sample_image
from vitruvian import InputError, pipeline
from vitruvian.cuda.graphs import GraphCache, _only_batch
from vitruvian.cuda.streams import stack_on_device
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.batches import BatchQueue, BatchSize
from vitruvian.pipelines.engine.runner import Failure, run_many
from vitruvian.pipelines.engine.steps import ModelInput
from vitruvian.pipelines.sources import open_source

BOXES = [[4.0, 3.0, 30.0, 38.0], [22.0, 5.0, 50.0, 36.0]]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")


class Recorder:
    """A task that records its inputs and the batch size for CUDA graphs."""

    device = torch.device("cpu")

    def __init__(self, *, fixed_input_size: bool = True, error: Exception | None = None) -> None:
        self.fixed_input_size, self.error = fixed_input_size, error
        self.calls: list[tuple[list[int], int | None]] = []

    def forward(self, inputs: list[ModelInput]) -> list[Any]:
        if self.error is not None:
            raise self.error
        self.calls.append(([model_input.extra for model_input in inputs], _only_batch.get()))
        return [10 * model_input.extra for model_input in inputs]


def inputs(count: int) -> list[ModelInput]:
    return [ModelInput(torch.zeros(3, 2, 2), number) for number in range(count)]


def forward(task: Any, count: int, batch: BatchSize, graphs: GraphCache | None) -> list[Any]:
    return BatchQueue[None](task, batch, graphs).run(None, inputs(count))


class TestPadding:
    @pytest.mark.parametrize(
        ("count", "ran"),
        [(8, [*range(8)]), (7, [*range(7), 6]), (5, [*range(5), 4, 4, 4]), (4, [*range(4)]), (1, [0])],
    )
    def test_batches_more_than_half_full_are_padded(self, count: int, ran: list[int]) -> None:
        task = Recorder()
        outputs = forward(task, count, BatchSize(8, fixed=True), GraphCache(max_batch=4))
        assert outputs == [10 * number for number in range(count)]
        assert task.calls == [(ran, 8)]
        assert _only_batch.get() is None

    @pytest.mark.parametrize(
        ("graphs", "size", "fixed_input_size", "only"),
        [
            (GraphCache(max_batch=4), 4, True, None),  # every size is recorded
            (GraphCache(max_batch=4), 8, False, 0),  # none is
            (None, 8, True, None),
        ],
    )
    def test_other_batches_are_not_padded(
        self, graphs: GraphCache | None, size: int, fixed_input_size: bool, only: int | None
    ) -> None:
        task, batch = Recorder(fixed_input_size=fixed_input_size), BatchSize(size, fixed=True)
        assert BatchQueue(task, batch, graphs).graph_size == only  # type: ignore[arg-type,var-annotated]
        assert forward(task, 3, batch, graphs) == [0, 10, 20]
        assert task.calls == [([0, 1, 2], only)]

    @pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (3, [2, 1]), (7, [4, 2, 1]), (8, [8]), (25, [12, 12, 1])])
    def test_where_partial_batches_are_usual_they_are_powers_of_two(self, count: int, sizes: list[int]) -> None:
        task, batch = Recorder(), BatchSize(12, fixed=True)
        queue: BatchQueue[None] = BatchQueue(task, batch, GraphCache(max_batch=4), partial=True)  # type: ignore[arg-type]
        queue.add(None, inputs(count))
        while queue:
            with queue.take() as taken:
                task.forward(taken.inputs())
        assert [(len(ran), only) for ran, only in task.calls] == [(size, size) for size in sizes]
        assert [number for ran, _ in task.calls for number in ran] == list(range(count))

    def test_padding_follows_a_reduced_batch_size(self) -> None:
        graphs, batch, task = GraphCache(max_batch=2), BatchSize(12, fixed=False), Recorder()
        batch.size = 6
        forward(task, 5, batch, graphs)
        assert task.calls == [([0, 1, 2, 3, 4, 4], 6)]
        batch.size = 1
        forward(task, 1, batch, graphs)
        assert task.calls[1] == ([0], None)

    def test_graphs_are_dropped_when_memory_runs_out(self) -> None:
        graphs = GraphCache()
        graphs.captured["key"] = None  # type: ignore[assignment]
        with pytest.raises(ValueError, match="other"):
            forward(Recorder(error=ValueError("something other")), 2, BatchSize(8, fixed=False), graphs)
        assert len(graphs.captured) == 1
        with pytest.raises(InputError, match="memory"):
            forward(Recorder(error=torch.OutOfMemoryError("out of memory")), 2, BatchSize(8, fixed=False), graphs)
        assert len(graphs.captured) == 0


@pytest.mark.parametrize("task", SAPIENS)
def test_results_do_not_depend_on_padding(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven people in batches of six, the last filled up: results are those of one at a time, in order."""
    pipe = opened(task)
    shown = [sample_image(seed, (40 + 3 * seed, 56)) for seed in range(6)]
    boxes = [BOXES, BOXES[:1], BOXES, BOXES, BOXES, BOXES]
    wanted = list(pipe(shown, boxes=boxes))
    sizes = noted_sizes(pipe)
    monkeypatch.setattr(TaskPipeline, "graphs", GraphCache())
    call = pipe.for_call({"boxes": boxes})
    found = list(run_many(call, open_source(shown), batch=BatchSize(6, fixed=True), batch_timeout=60.0))
    assert sizes == [6, 6]
    for got, want in zip(found, wanted, strict=True):
        assert not isinstance(got, Failure), got
        for name, value in want.arrays().items():
            np.testing.assert_allclose(got.arrays()[name], value, **leeway(name, rtol=1e-4, atol=1e-4))


def noted_sizes(pipe: Any) -> list[int]:
    """Note the sizes of a pipeline's batches."""
    forward, sizes = type(pipe).forward, []

    class Noted(type(pipe)):  # type: ignore[misc]
        def forward(self, inputs: list[ModelInput]) -> list[Any]:
            sizes.append(len(inputs))
            return forward(self, inputs)  # type: ignore[no-any-return]

    pipe.__class__ = Noted
    return sizes


def test_on_a_cpu_nothing_is_padded() -> None:
    pipe = opened("pose", optimize=True, batch_size=6)
    sizes = noted_sizes(pipe)
    assert len(list(pipe([sample_image()] * 4, boxes=BOXES, batch_timeout=60.0))) == 4
    assert sizes == [1, 2, 4, 1]


def test_units_become_a_batch() -> None:
    made = stack_on_device([torch.ones(3, 2, 2), torch.zeros(3, 2, 2)], torch.device("cpu"), torch.bfloat16)
    assert (made.shape, made.dtype) == ((2, 3, 2, 2), torch.float32)  # on a CPU the model sees what it always saw


@needs_cuda
class TestOnAGpu:
    def test_units_of_host_and_device_become_one_batch(self) -> None:
        device = torch.device("cuda")
        ones = [torch.ones(3, 2, 2), torch.ones(3, 2, 2, device=device, dtype=torch.bfloat16)]
        for given in (ones, ones[:1], ones[1:]):
            made = stack_on_device(given, device, torch.bfloat16)
            assert (made.device.type, made.dtype, made.float().mean()) == ("cuda", torch.bfloat16, 1.0)

    @pytest.mark.parametrize("task", SAPIENS)
    def test_a_run_is_replayed(self, task: str) -> None:
        """Eleven people by six, the last batch filled up: one recording, which the second run uses again."""
        shown = [sample_image(seed, (40 + 3 * seed, 56)) for seed in range(6)]
        boxes = [BOXES, BOXES[:1], BOXES, BOXES, BOXES, BOXES]
        wanted = list(opened(task)(shown, boxes=boxes))
        model, processor = parts_of(task)
        pipe = pipeline(task, model.cuda(), processor=processor, batch_size=6, batch_timeout=60.0)
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
        pipe(sample_image())
        frame = next(open_source(sample_image()).loaders()).read(0)
        with torch.inference_mode(), Calls() as calls:
            prepared = pipe.prepare(frame, None)
        assert len(prepared.inputs) == 2
        assert calls.count < 20  # the way without a kernel takes two hundred
