"""Attention to keys in parts, by online softmax: the maximum and the sums are corrected with each part.

`OnlineSoftmax` does it in torch, `add_keys` in Triton kernels. Where one program for each block of queries would not
fill a device, `split_keys` divides the keys among programs. Each writes a mean of the values, weighted by softmax over
its keys, together with log2 of the sum of its exponentials, and `merge_splits` merges these.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitruvian.ops.dispatch import triton_jit
from vitruvian.ops.triton_import import tl, triton

LOG2_E = math.log2(math.e)
_PROGRAMS_OF_A_FULL_DEVICE = 264


class OnlineSoftmax:
    """The mean of values that n queries weight by the softmax of scores, over keys that come in parts.

    Args:
        queries: n.
        values: A tensor with the channels [..., E], data type and device of the values.
    """

    def __init__(self, queries: int, values: Tensor) -> None:
        self._sum = values.new_zeros(values.shape[-1], queries)  # [E, n]
        self._total = values.new_zeros(queries)
        self._highest = values.new_full((queries,), -math.inf)

    def add_(self, scores: Tensor, values: Tensor) -> None:
        """Add keys with base-2 scores [m, n], which are overwritten, and values [m, E]."""
        highest = torch.maximum(self._highest, scores.amax(dim=0))
        weights = scores.sub_(highest).exp2_()  # several times as fast as exp on the CPU
        factor = self._highest.sub_(highest).exp2_()
        self._total.mul_(factor).add_(weights.sum(dim=0))
        self._sum.mul_(factor).addmm_(values.T, weights)
        self._highest = highest

    def result(self) -> Tensor:
        """Return the mean [n, E]."""
        return (self._sum / self._total).T


def split_keys(keys: int, programs: int, *, multiple: int, min_keys: int) -> tuple[int, int]:
    """Return how many splits to cut the keys into, so that the launch fills a large device, and the keys of a split.

    Args:
        keys: Number of keys.
        programs: Number of programs of the launch without splits.
        multiple: The keys of a split are a multiple of this.
        min_keys: Smallest number of keys that a split is worth.
    """
    wanted = max(1, min(_PROGRAMS_OF_A_FULL_DEVICE // max(1, programs), keys // min_keys))
    size = triton.cdiv(triton.cdiv(keys, wanted), multiple) * multiple
    return triton.cdiv(keys, size), size


def merge_splits(parts: Tensor, log_sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Merge the means [S, R, C] of S splits by log2 of their sums of exponentials [S, R]: [R, C]."""
    splits, count, width = parts.shape
    out = torch.empty(count, width, device=parts.device, dtype=dtype)
    padded = triton.next_power_of_2(width)
    block_rows = max(1, 1024 // padded)
    _merge_kernel[(triton.cdiv(count, block_rows),)](
        parts, log_sums, out, count, splits, width=width, padded=padded, block_rows=block_rows, num_warps=4
    )
    return out


@triton_jit
def add_keys(  # type: ignore[no-untyped-def]
    scores, v, out, total, highest, scale: tl.constexpr = 1.0, may_be_empty: tl.constexpr = False
):
    """Add keys with scores [n, m], of base 2, and values [m, E] to the sums of values and weights and the maximum.

    With `may_be_empty`, all scores so far may be -∞.
    """
    new_highest = tl.maximum(highest, tl.max(scores, 1) * scale)
    base = new_highest
    if may_be_empty:
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    p = tl.math.exp2(scores * scale - base[:, None])
    factor = tl.math.exp2(highest - base)
    return tl.dot(p.to(v.dtype), v, out * factor[:, None]), total * factor + tl.sum(p, 1), new_highest


@triton_jit
def _merge_kernel(  # type: ignore[no-untyped-def]
    parts_ptr, log_sums_ptr, out_ptr, count, splits,
    width: tl.constexpr, padded: tl.constexpr, block_rows: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    channel = tl.arange(0, padded)
    in_rows = row < count
    inside = in_rows[:, None] & (channel[None, :] < width)
    highest = tl.full([block_rows], float("-inf"), tl.float32)
    for split in range(splits):
        highest = tl.maximum(highest, tl.load(log_sums_ptr + split * count + row, mask=in_rows, other=0.0))
    total = tl.zeros([block_rows], tl.float32)
    out = tl.zeros([block_rows, padded], tl.float32)
    for split in range(splits):
        share = tl.math.exp2(tl.load(log_sums_ptr + split * count + row, mask=in_rows, other=0.0) - highest)
        total += share
        offset = (split * count + row.to(tl.int64))[:, None] * width + channel[None, :]
        out += tl.load(parts_ptr + offset, mask=inside, other=0.0) * share[:, None]
    offset = row.to(tl.int64)[:, None] * width + channel[None, :]
    tl.store(out_ptr + offset, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)
