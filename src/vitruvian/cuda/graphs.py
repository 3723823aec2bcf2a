"""CUDA graphs: capture the kernels of a call once for each shape of its inputs, then launch them together.

Small batches are limited by kernel launches, which a graph replaces by one. Eight images of 1024×768 are not, and still
gain 2 %. Larger batches gain nothing by themselves, but in programs with several threads each launch may wait for the
GIL: pipelines that run many batches of one size capture that size (see `capture_only`).

Who decides what:

- `Model.optimize` gives a model its cache (`new_graph_cache`: how many graphs, after how many calls of one shape) and
  captures its `forward`, or with `captures_forward = False` the parts that the model passes to `run_captured`.
- `GraphCache.accepts` decides for each call: inference without autocast on CUDA, and a small batch.
- `BatchQueue.graph_size` replaces the limit on batches by the one size that a run captures (`capture_only`).
- Tasks that capture the model together with what follows switch off captures inside (`no_capture`).
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from vitruvian.errors import VitruvianWarning
from vitruvian.tensor_cache import keep_alive

P = ParamSpec("P")
R = TypeVar("R")
Key = tuple[object, ...]

# Batches with at most this many pixel values are captured, however many images they hold.
_MAX_PIXEL_VALUES = 8 * 3 * 1024 * 768
_MAX_COUNTED = 256  # shapes whose calls without a graph are counted, and that are known to fail
_only_batch: ContextVar[int | None] = ContextVar("_only_batch", default=None)  # None: all small batches


@contextmanager
def capture_only(batch: int) -> Iterator[None]:
    """Capture calls with batches of this size within this context, however large, and no others."""
    token = _only_batch.set(batch)
    try:
        yield
    finally:
        _only_batch.reset(token)


def no_capture() -> AbstractContextManager[None]:
    """Capture no calls within this context: the caller is captured as a whole, or shapes rarely come again."""
    return capture_only(0)


@dataclass
class _CapturedCall:
    """A captured call: static inputs, graph and static outputs, and cached constants that the graph reads."""

    inputs: list[Tensor]
    graph: torch.cuda.CUDAGraph
    outputs: list[Any]
    structure: pytree.TreeSpec
    constants: list[object]


class GraphCache:
    """Captures calls by the shapes of their tensors, and keeps the last used graphs. Thread-safe.

    Args:
        max_graphs: Number of graphs to keep.
        max_batch: Batch size up to which calls are captured, whatever the size of images.
        calls_before: Number of calls of the same shapes that run before one is captured: for models that are called
            with many shapes, of which few come again.

    Attributes:
        replays: Number of replays by batch size.
        failed: The last calls that cannot be captured, and why. They run without a graph.
    """

    def __init__(self, *, max_graphs: int = 4, max_batch: int = 4, calls_before: int = 0) -> None:
        self.max_graphs, self.max_batch, self.calls_before = max_graphs, max_batch, calls_before
        self.captured: OrderedDict[Key, _CapturedCall] = OrderedDict()
        self.replays: Counter[int] = Counter()
        self.failed: dict[Key, str] = {}
        self._calls: Counter[Key] = Counter()  # that ran without a graph
        self._pool: _CapturePool | None = None  # of all graphs, which never run at the same time
        self._lock = threading.RLock()  # a graph has one set of static inputs; calls may be nested

    def __reduce__(self) -> tuple[object, ...]:  # copies of a model capture for themselves
        return _empty_cache, (self.max_graphs, self.max_batch, self.calls_before)

    def accepts(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Return whether to capture a call: inference, CUDA tensors only, and a batch that gains or is requested.

        Under autocast nothing is captured: no key tells its data type, and it frees its casts of weights at its end.
        """
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        return (
            bool(tensors)
            and not torch.is_grad_enabled()
            and all(t.is_cuda for t in tensors)
            and self.accepts_batch(tensors[0])
            and not torch.cuda.is_current_stream_capturing()
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled("cuda")
        )

    def accepts_batch(self, first: Tensor) -> bool:
        """Return whether calls with this first tensor are captured: few images, or small ones [B, C, H, W]."""
        only = _only_batch.get()
        if only is not None:
            return len(first) == only
        return len(first) <= self.max_batch or (first.ndim == 4 and first.numel() <= _MAX_PIXEL_VALUES)

    def clear(self) -> None:
        """Release all graphs and their memory."""
        with self._lock:
            self.captured.clear()
            self._pool = None

    def __call__(self, function: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
        """Replay the graph of a call, capturing it first if needed (see `calls_before`).

        Results are copies that later calls do not overwrite.
        """
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (function.__qualname__, str(structure), tuple(_describe(leaf) for leaf in leaves))
        with self._lock:
            call = self.captured.get(key)
            if call is None and not self._defer_capture(key):
                call = self._capture(key, function, leaves, structure)
            if call is None:
                return function(*args, **kwargs)
            self.captured.move_to_end(key)
            self.replays[len(tensors[0])] += 1
            with torch.inference_mode():  # in which the graph may have been captured
                for static, tensor in zip(call.inputs, tensors, strict=True):
                    static.copy_(tensor)
            call.graph.replay()
            outputs = [value.clone() if isinstance(value, Tensor) else value for value in call.outputs]
        result: R = pytree.tree_unflatten(outputs, call.structure)
        return result

    def _defer_capture(self, key: Key) -> bool:
        """Count a call; return whether to run it without a graph: its first `calls_before` calls."""
        if len(self._calls) >= _MAX_COUNTED:
            self._calls.clear()
        self._calls[key] += 1
        return self._calls[key] <= self.calls_before

    def _capture(
        self, key: Key, function: Callable[..., object], leaves: list[object], structure: pytree.TreeSpec
    ) -> _CapturedCall | None:
        """Capture a call and keep its graph; None for calls that cannot be captured, which is tried once."""
        if key in self.failed:
            return None
        self._pool = self._pool or _CapturePool()
        try:
            call = self._pool.capture(function, leaves, structure)
        except RuntimeError as error:
            chain = list(_causes(error))
            out_of_memory = next((cause for cause in chain if isinstance(cause, torch.OutOfMemoryError)), None)
            if out_of_memory is not None:  # the caller may try again with less
                raise out_of_memory from None
            self._pool = None  # a pool is unusable after a failed capture
            self.failed[key] = " ".join(str(chain[-1]).split())[:200]
            if len(self.failed) > _MAX_COUNTED:
                del self.failed[next(iter(self.failed))]
            warnings.warn(
                f"{function.__qualname__}: cannot be captured as a CUDA graph and runs without one, more slowly "
                f"({self.failed[key]}).",
                VitruvianWarning,
                stacklevel=2,
            )
            return None
        self.captured[key] = call
        while len(self.captured) > self.max_graphs:
            self.captured.popitem(last=False)
        return call


class _CapturePool:
    """The stream and the memory pool of captures.

    cuBLAS needs a workspace of 32 MB for each stream. Allocated while capturing, it is part of the pool and lives as
    long as the graphs; an older one may be freed by torch.compile while graphs still use it.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def capture(
        self, function: Callable[..., object], leaves: list[object], structure: pytree.TreeSpec
    ) -> _CapturedCall:
        """Run a call twice as a warmup, then capture it."""
        static = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(static, structure)
        for _ in range(2):  # on the stream of the caller: another one would need a workspace too
            function(*args, **kwargs)
        torch._C._cuda_clearCublasWorkspaces()  # there is no public function for it
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, as pipelines do to copy images. A failed capture may leave its
        # own stream in place of the caller's, which the outer context restores.
        capture = torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local")
        try:
            with keep_alive() as constants, torch.cuda.stream(torch.cuda.current_stream()), capture:
                result = function(*args, **kwargs)
        except RuntimeError:
            self._release()
            raise
        outputs, output_structure = pytree.tree_flatten(result)
        inputs = [leaf for leaf in static if isinstance(leaf, Tensor)]
        return _CapturedCall(inputs, graph, outputs, output_structure, constants)

    def _release(self) -> None:
        """Tell the allocator that a failed capture has ended; torch has no public function for it."""
        device = self.stream.device_index
        with suppress(AttributeError, RuntimeError):  # torch before 2.8, or it has ended already
            torch._C._cuda_endAllocateToPool(device, self.pool)
            torch._C._cuda_releasePool(device, self.pool)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Iterate from an error to its first cause: ending a failed capture raises another one."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _empty_cache(max_graphs: int, max_batch: int, calls_before: int) -> GraphCache:
    return GraphCache(max_graphs=max_graphs, max_batch=max_batch, calls_before=calls_before)


def _describe(leaf: object) -> object:
    """Return what a graph depends on: the layout of a tensor, any other value itself."""
    return (tuple(leaf.shape), leaf.dtype, leaf.device, leaf.stride()) if isinstance(leaf, Tensor) else repr(leaf)
