"""CUDA graphs: a call's kernels recorded once for each shape of its inputs, then launched in one go.

Small batches are bound by launches, not by arithmetic; a graph takes the launches away. Eight pictures of 1024×768 are
not, and still gain a fiftieth. Larger batches gain nothing by themselves, but where other threads want Python's lock
too, the hundreds of launches of a batch wait for it again and again: whoever runs many batches of one size has that
size recorded.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from vitruvian.errors import VitruvianWarning
from vitruvian.ops.cache import hold_cached

FEW_VALUES = 8 * 3 * 1024 * 768  # of a batch of pictures that is recorded, however many they are
ONLY: ContextVar[int | None] = ContextVar("ONLY", default=None)  # the batch that is recorded; None: all small ones


@contextmanager
def recording(batch: int) -> Iterator[None]:
    """Have calls with batches of this size recorded meanwhile, however large it is, and no others."""
    token = ONLY.set(batch)
    try:
        yield
    finally:
        ONLY.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Have calls run as they are meanwhile: for shapes that hardly come again, recording costs more than it brings."""
    with recording(0):
        yield


@dataclass
class Recording:
    """A recorded call: what it reads, the graph, what it writes, and constants that must live as long."""

    inputs: list[Tensor]
    graph: torch.cuda.CUDAGraph
    outputs: list[Any]
    structure: Any
    constants: list[Any]


class GraphCache:
    """Records a function's calls by the shapes of their tensors, and keeps the few that were used last.

    Attributes:
        replays: How often batches of a size ran from a recording.
        refused: Calls that could not be recorded, and why. They run as they are.
    """

    def __init__(self, *, most: int = 4, largest_batch: int = 4) -> None:
        self.most, self.largest_batch = most, largest_batch
        self.recordings: OrderedDict[Any, Recording] = OrderedDict()
        self.replays: Counter[int] = Counter()
        self.refused: dict[Any, str] = {}
        self.room: Room | None = None  # where recordings are made; they share memory, as none runs beside another
        self.lock = threading.RLock()  # a recording has one place for its inputs; calls may hold others

    def __reduce__(self) -> tuple[Any, ...]:
        return empty_like, (self.most, self.largest_batch)  # copies of a model record for themselves

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Tell whether to record a call: inference, CUDA tensors only, and a batch that profits or is asked for."""
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        return (
            bool(tensors)
            and not torch.is_grad_enabled()
            and all(t.is_cuda for t in tensors)
            and self.suits(tensors[0])
            and not torch.cuda.is_current_stream_capturing()
            and not torch.compiler.is_compiling()
        )

    def suits(self, first: Tensor) -> bool:
        """Tell whether calls with such a first tensor are recorded now: few pictures, or small ones [B, C, H, W]."""
        only = ONLY.get()
        if only is not None:
            return len(first) == only
        return len(first) <= self.largest_batch or (first.ndim == 4 and first.numel() <= FEW_VALUES)

    def forget(self) -> None:
        """Let go of all recordings and their memory."""
        with self.lock:
            self.recordings.clear()
            self.room = None

    def __call__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call, recorded on its first use; results are copies that later calls do not overwrite."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (function.__qualname__, str(structure), tuple(describe(leaf) for leaf in leaves))
        with self.lock:
            found = self.recordings.get(key) or self.new_recording(key, function, leaves, structure)
            if found is None:
                return function(*args, **kwargs)
            self.recordings.move_to_end(key)
            self.replays[len(tensors[0])] += 1
            for static, given in zip(found.inputs, tensors, strict=True):
                static.copy_(given)
            found.graph.replay()
            outputs = [value.clone() if isinstance(value, Tensor) else value for value in found.outputs]
        return pytree.tree_unflatten(outputs, found.structure)

    def new_recording(
        self, key: Any, function: Callable[..., Any], leaves: list[Any], structure: Any
    ) -> Recording | None:
        """Record a call and keep that; None where it cannot be recorded, which is tried once."""
        if key in self.refused:
            return None
        self.room = self.room or Room()
        try:
            found = self.room.record(function, leaves, structure)
        except RuntimeError as error:
            reasons = list(causes(error))
            full = next((one for one in reasons if isinstance(one, torch.OutOfMemoryError)), None)
            if full is not None:  # whoever asked may try with less
                raise full from None
            self.room = None  # what broke off stays broken
            self.refused[key] = " ".join(str(reasons[-1]).split())[:200]
            warnings.warn(
                f"{function.__qualname__}: cannot be recorded as a CUDA graph and runs without one, more slowly "
                f"({self.refused[key]}).",
                VitruvianWarning,
                stacklevel=2,
            )
            return None
        self.recordings[key] = found
        while len(self.recordings) > self.most:
            self.recordings.popitem(last=False)
        return found


def causes(error: BaseException) -> Iterator[BaseException]:
    """Go from an error back to the one that it all began with: breaking off a recording raises another on its way."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def empty_like(most: int, largest_batch: int) -> GraphCache:
    """Return a cache without recordings."""
    return GraphCache(most=most, largest_batch=largest_batch)


def describe(leaf: Any) -> Any:
    """Return what a recording depends on: a tensor's form, any other value itself."""
    return (tuple(leaf.shape), leaf.dtype, leaf.device, leaf.stride()) if isinstance(leaf, Tensor) else repr(leaf)


class Room:
    """A stream and memory that recordings alone use.

    cuBLAS wants work space for each stream that it runs on, 32 MB of it, and torch lets go of that when its compiler
    records something. Taken anew on the stream that records, it lies in the memory of recordings, where it stays.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def record(self, function: Callable[..., Any], leaves: list[Any], structure: Any) -> Recording:
        """Run a call twice to warm it up, then record it."""
        static = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(static, structure)
        for _ in range(2):  # where the caller is: another stream would want work space of its own
            function(*args, **kwargs)
        torch._C._cuda_clearCublasWorkspaces()  # of warming up, and of whoever recorded on this stream before
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the device meanwhile, as pipelines do to send pictures. Where recording breaks
        # off, torch may leave its own stream in place of the caller's, which is put back here.
        recorder = torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local")
        try:
            with hold_cached() as constants, torch.cuda.stream(torch.cuda.current_stream()), recorder:
                result = function(*args, **kwargs)
        except RuntimeError:
            self.leave()
            raise
        outputs, shape = pytree.tree_flatten(result)
        return Recording([leaf for leaf in static if isinstance(leaf, Tensor)], graph, outputs, shape, constants)

    def leave(self) -> None:
        """Tell torch that nothing is recorded here any more: where a recording broke off, it goes on to think so."""
        device = self.stream.device_index
        with suppress(AttributeError, RuntimeError):  # torch before 2.8, or it knows
            torch._C._cuda_endAllocateToPool(device, self.pool)
            torch._C._cuda_releasePool(device, self.pool)
