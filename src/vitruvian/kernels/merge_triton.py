"""Attention whose keys were split among programs: join what each part found."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FULL = 264  # programs that fill a large device


@triton.jit
def _merge(part_ptr, reach_ptr, out_ptr, count, splits, width: tl.constexpr, padded: tl.constexpr, rows: tl.constexpr):
    r = tl.program_id(0) * rows + tl.arange(0, rows)
    c = tl.arange(0, padded)
    inside = r < count
    both = inside[:, None] & (c[None, :] < width)
    most = tl.full([rows], float("-inf"), tl.float32)
    for split in range(splits):
        most = tl.maximum(most, tl.load(reach_ptr + split * count + r, mask=inside, other=0.0))
    total = tl.zeros([rows], tl.float32)
    out = tl.zeros([rows, padded], tl.float32)
    for split in range(splits):
        share = tl.math.exp2(tl.load(reach_ptr + split * count + r, mask=inside, other=0.0) - most)
        total += share
        at = (split * count + r.to(tl.int64))[:, None] * width + c[None, :]
        out += tl.load(part_ptr + at, mask=both, other=0.0) * share[:, None]
    at = r.to(tl.int64)[:, None] * width + c[None, :]
    tl.store(out_ptr + at, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=both)


def merge(parts: Tensor, reach: Tensor, dtype: torch.dtype) -> Tensor:
    """Join results [S, R, C] of S splits, means over their keys, by log2 of their sums of weights [S, R]: [R, C]."""
    splits, count, width = parts.shape
    out = torch.empty(count, width, device=parts.device, dtype=dtype)
    padded = triton.next_power_of_2(width)
    rows = max(1, 1024 // padded)
    launch: Any = _merge[(triton.cdiv(count, rows),)]
    launch(parts, reach, out, count, splits, width=width, padded=padded, rows=rows, num_warps=4)
    return out


def split_of(keys: int, programs: int, *, step: int, least: int) -> tuple[int, int]:
    """How many splits of how many keys each, a multiple of `step`, fill a device that `programs` alone do not."""
    wanted = max(1, min(FULL // max(1, programs), keys // least))
    size = triton.cdiv(triton.cdiv(keys, wanted), step) * step
    return triton.cdiv(keys, size), size
