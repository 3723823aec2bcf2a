"""CUDA graphs: a call's kernels recorded once for each shape of its inputs, then launched in one go.

Small batches are bound by launches, not by arithmetic; a graph takes the launches away.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from vitruvian.layers.keep import holding

RECORDING: ContextVar[bool] = ContextVar("RECORDING", default=True)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Have calls run as they are meanwhile: for shapes that hardly come again, recording costs more than it brings."""
    token = RECORDING.set(False)
    try:
        yield
    finally:
        RECORDING.reset(token)


@dataclass
class Recording:
    """A recorded call: what it reads, the graph, what it writes, and constants that must live as long."""

    inputs: list[Tensor]
    graph: torch.cuda.CUDAGraph
    outputs: list[Any]
    structure: Any
    constants: list[Any]


class GraphCache:
    """Records a function's calls by the shapes of their tensors, and keeps the few that were used last."""

    def __init__(self, *, most: int = 4, largest_batch: int = 4) -> None:
        self.most, self.largest_batch = most, largest_batch
        self.recordings: OrderedDict[Any, Recording] = OrderedDict()
        self.pool: Any = None  # memory that all recordings share: they never run at the same time
        self.lock = threading.RLock()  # a recording has one place for its inputs; calls may hold others

    def __reduce__(self) -> tuple[Any, ...]:
        return empty_like, (self.most, self.largest_batch)  # copies of a model record for themselves

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Tell whether a call can be recorded: inference, CUDA tensors only, and a batch small enough to profit."""
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        return (
            bool(tensors)
            and not torch.is_grad_enabled()
            and all(t.is_cuda for t in tensors)
            and len(tensors[0]) <= self.largest_batch
            and not torch.cuda.is_current_stream_capturing()
            and not torch.compiler.is_compiling()
            and RECORDING.get()
        )

    def __call__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call, recorded on its first use; results are copies that later calls do not overwrite."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (function.__qualname__, str(structure), tuple(describe(leaf) for leaf in leaves))
        with self.lock:
            found = self.recordings.get(key)
            if found is None:
                self.pool = self.pool or torch.cuda.graph_pool_handle()
                found = self.recordings[key] = record(function, leaves, structure, self.pool)
                while len(self.recordings) > self.most:
                    self.recordings.popitem(last=False)
            self.recordings.move_to_end(key)
            for static, given in zip(found.inputs, tensors, strict=True):
                static.copy_(given)
            found.graph.replay()
            outputs = [value.clone() if isinstance(value, Tensor) else value for value in found.outputs]
        return pytree.tree_unflatten(outputs, found.structure)


def empty_like(most: int, largest_batch: int) -> GraphCache:
    """Return a cache without recordings."""
    return GraphCache(most=most, largest_batch=largest_batch)


def describe(leaf: Any) -> Any:
    """Return what a recording depends on: a tensor's form, any other value itself."""
    return (tuple(leaf.shape), leaf.dtype, leaf.device, leaf.stride()) if isinstance(leaf, Tensor) else repr(leaf)


def record(function: Callable[..., Any], leaves: list[Any], structure: Any, pool: Any) -> Recording:
    """Run a call twice to warm it up on a stream of its own, then record it."""
    static = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(static, structure)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function(*args, **kwargs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads may go on using the device meanwhile, as pipelines do to send pictures.
    with holding() as constants, torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = function(*args, **kwargs)
    outputs, shape = pytree.tree_flatten(result)
    return Recording([leaf for leaf in static if isinstance(leaf, Tensor)], graph, outputs, shape, constants)
