"""Runs a Gluon kernel's own Python on the CPU: a thread for each group of warps, tensors for registers.

Gluon has no interpreter. What this checks is the order of things: copies arrive late, the memory that they go into is
filled with NaN at once, and products are worked out and results written no sooner than someone waits for them.
"""

from __future__ import annotations

import inspect
import random
import re
import textwrap
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class Barrier:
    """A barrier in shared memory: a phase ends when all have arrived and all bytes are there."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.phase = self.total = self.pending = self.bytes = 0

    def change(self, *, arrived: int = 0, expected: int = 0) -> None:
        with self.changed:
            self.pending -= arrived
            self.bytes += expected
            assert self.pending >= 0, "more arrivals than the barrier was made for"
            if not self.pending and not self.bytes:
                self.phase += 1
                self.pending = self.total
                self.changed.notify_all()

    def start(self, count: int) -> None:
        self.total = self.pending = count

    def wait(self, parity: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase % 2 != parity, timeout=20), "waits for ever"


class Memory:
    """Shared memory, or a part of it."""

    def __init__(self, data: Tensor) -> None:
        self.data, self.dtype = data, data.dtype

    def index(self, place: int) -> Memory:
        return Memory(self.data[place])

    def permute(self, order: tuple[int, ...]) -> Memory:
        return Memory(self.data.permute(order))

    def slice(self, start: int, length: int) -> Memory:
        return Memory(self.data[start : start + length])

    def store(self, value: Tensor) -> None:
        self.data.copy_(value)


class Product:
    """A product under way."""

    def __init__(self, left: Any, right: Memory, start: Any) -> None:
        self.left, self.right, self.start = left, right, start
        self.value: Tensor | None = None

    def finish(self) -> None:
        left = self.left.data if isinstance(self.left, Memory) else self.left
        start = self.start.value if isinstance(self.start, Product) else self.start
        self.value = left.float() @ self.right.data.float() + start


class Descriptor:
    """A tensor [..., N, D] in device memory from which tiles [rows, columns] are copied, or into which."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.dtype = tensor, tensor.dtype

    def tile(self, coordinates: list[int], like: Memory) -> Tensor:
        """What is there of a tile of this size."""
        *outer, row, column = (int(c) for c in coordinates)
        height, width = like.data.shape
        return self.tensor[tuple(outer)][row : row + height, column : column + width]


class Pointer:
    """An address, or a tensor of them."""

    def __init__(self, memory: Tensor, offset: Any = 0) -> None:
        self.memory, self.offset, self.dtype = memory, offset, SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.offset + offset)


class Scalar(int):
    """A number that has a type."""

    def to(self, _: Any) -> int:
        return int(self)

    def __mod__(self, other: int) -> Scalar:
        return Scalar(int(self) % other)

    def __floordiv__(self, other: int) -> Scalar:
        return Scalar(int(self) // other)

    def __sub__(self, other: int) -> Scalar:
        return Scalar(int(self) - other)


class Chip:
    """Stands for the modules that a kernel of `attention_hopper` or `gated_hopper` uses."""

    def __init__(self, module: ModuleType, *functions: str) -> None:
        self.mine = threading.local()
        self.program = Scalar(0)
        self.names: dict[str, Any] = {
            "gl": self.language(),
            "mbarrier": SimpleNamespace(
                init=lambda barrier, count: barrier.start(count),
                wait=lambda barrier, parity: barrier.wait(int(parity)),
                arrive=lambda barrier, count, pred=True: barrier.change(arrived=count * pred),
                expect=lambda barrier, size: barrier.change(arrived=1, expected=size),
                MBarrierLayout=lambda: None,
            ),
            "tma": SimpleNamespace(
                async_copy_global_to_shared=self.copy, async_copy_shared_to_global=self.put, store_wait=self.write
            ),
            "warpgroup_mma": self.multiply,
            "warpgroup_mma_wait": self.wait,
            "fence_async_shared": lambda: None,
            "_exp2": lambda x, polynomials: torch.exp2(x),
            "_SILU": None,
        }
        for name in functions:
            source = textwrap.dedent(inspect.getsource(getattr(module, name).fn))
            exec(re.sub(r": gl\.constexpr", "", source[source.index("def ") :]), self.names)

    def language(self) -> SimpleNamespace:
        names = ("NVMMADistributedLayout", "DotOperandLayout", "BlockedLayout", "SliceLayout", "NVMMASharedLayout")
        return SimpleNamespace(
            **{name: lambda *args, **options: None for name in names},
            int64=Barrier,
            float32=torch.float32,
            program_id=lambda axis: self.program,
            zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
            arange=lambda first, last, layout: torch.arange(first, last),
            where=lambda mask, one, other: torch.where(mask, one, torch.tensor(other)),
            convert_layout=lambda x, layout: x,
            sum=lambda x, axis: x.sum(axis),
            reshape=torch.reshape,
            permute=torch.permute,
            split=lambda x: x.unbind(-1),
            inline_asm_elementwise=lambda code, kinds, given, **options: F.silu(given[0]) * given[1],
            load=lambda pointer: pointer.memory[pointer.offset],
            exp2=torch.exp2,
            static_range=range,
            cdiv=lambda a, b: -(-a // b),
            allocate_shared_memory=allocate,
            store=store,
            warp_specialize=self.split,
        )

    def split(self, functions: list[tuple[Any, tuple[Any, ...]]], warps: list[int], registers: list[int]) -> None:
        assert len(functions) == len(warps) + 1 == len(registers) + 1
        failed: list[BaseException] = []

        def run(function: Any, args: tuple[Any, ...]) -> None:
            self.mine.queue, self.mine.results = [], []
            try:
                function(*args)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=one) for one in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def put(self, descriptor: Descriptor, coordinates: list[int], source: Memory) -> None:
        self.mine.results.append((descriptor.tile(coordinates, source), source))

    def write(self, left: int) -> None:
        while len(self.mine.results) > left:
            there, source = self.mine.results.pop(0)
            assert there.isnan().all(), "written twice"
            there.copy_(source.data[: len(there)])

    def copy(self, descriptor: Descriptor, coordinates: list[int], barrier: Barrier, target: Memory) -> None:
        tile = torch.zeros_like(target.data)
        there = descriptor.tile(coordinates, target)
        tile[: len(there)] = there
        target.data.fill_(float("nan"))

        def arrive() -> None:
            time.sleep(random.random() * 1e-3)
            target.data.copy_(tile)
            barrier.change(expected=-2 * tile.numel())

        threading.Thread(target=arrive).start()

    def multiply(
        self, left: Any, right: Memory, start: Any, *, use_acc: bool = True, is_async: bool = False
    ) -> Product:
        assert is_async
        product = Product(left, right, start if use_acc else 0)
        self.mine.queue.append(product)
        return product

    def wait(self, left: int, deps: list[Any]) -> Any:
        while len(self.mine.queue) > left:
            self.mine.queue.pop(0).finish()
        found = tuple(one.value if isinstance(one, Product) and one.value is not None else one for one in deps)
        return found[0] if len(found) == 1 else found

    def __call__(self, kernel: str, programs: int, *args: Any) -> None:
        for program in range(programs):
            self.program = Scalar(program)
            self.names[kernel](*args)


def allocate(kind: Any, shape: list[int], layout: Any) -> Any:
    """Barriers, or memory with nothing sensible in it."""
    if kind is Barrier:
        several = [Barrier() for _ in range(shape[0])]
        return SimpleNamespace(index=lambda i: several[i]) if len(shape) == 2 else several[0]
    return Memory(torch.full(shape, float("nan"), dtype=kind))


def store(pointer: Pointer, value: Tensor, mask: Tensor) -> None:
    """Write the elements of a tensor where the mask says so."""
    chosen = mask.expand_as(value)
    pointer.memory.view(-1)[pointer.offset[chosen]] = value[chosen]
