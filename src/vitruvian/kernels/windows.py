"""Attention inside windows of a grid: the kernel that copies no window, or one gather and torch's attention."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, unflatten
from torch.nn import functional as F

from vitruvian.kernels.available import takes_kernel
from vitruvian.layers.windows import BLOCKED, from_windows, shift_masks, to_windows, window_plan


def attend_windows(
    qkv: Tensor,
    *,
    grid_hw: tuple[int, int],
    heads: int,
    window: int,
    shift: int = 0,
    pool: int = 1,
    fill: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend inside the windows of a grid of tokens.

    Args:
        qkv: Queries, keys and values of all tokens [B, h·w, 3C].
        grid_hw: The grid; it need not be whole windows.
        heads: Number of heads A.
        window: Side of a window; N is its square.
        shift: How far windows are shifted down and right, with a wrap-around whose two sides do not see each other.
        pool: Queries are the largest values of `pool` × `pool` cells, which must divide the window and the grid.
        fill: What stands for qkv where a window has no token [3C]; zeros by default.
        bias: Added to the scores [A, N, N].

    Returns:
        [B, h·w / pool², C].
    """
    if takes_kernel(qkv, name="windows"):
        from vitruvian.kernels import windows_triton

        if window**2 <= windows_triton.LARGEST:
            return windows_triton.attend_windows(
                qkv.contiguous(), fill, None if bias is None else bias.contiguous(),
                grid_hw=grid_hw, heads=heads, window=window, shift=shift, pool=pool, blocked=BLOCKED,
            )  # fmt: skip
    B = qkv.shape[0]
    plan = window_plan(B, grid_hw, window=window, shift=shift, device=qkv.device)
    q, k, v = to_windows(qkv, plan, fill=fill).chunk(3, dim=-1)  # [windows, N, C] each
    if pool > 1:
        side = window // pool
        q = unflatten(q, 1, (side, pool, side, pool))
        # Comparing slices is several times as fast on a CPU as a reduction over two dimensions.
        cells = [q[:, :, i, :, j] for i in range(pool) for j in range(pool)]
        q = functools.reduce(torch.maximum, cells).flatten(1, 2)  # [windows, N / pool², C]
    q, k, v = (unflatten(part, -1, (heads, -1)).transpose(1, 2) for part in (q, k, v))  # [windows, A, N, D]
    masks: Tensor | None = None if bias is None else bias[None].to(q.dtype)  # [1, A, N, N]
    if shift:
        blocked = shift_masks(window=window, shift=shift, dtype=q.dtype, device=q.device)[:, None]  # [4, 1, N, N]
        masks = blocked if masks is None else masks + blocked  # [4, A | 1, N, N]
    sizes = [count for _, count in plan.groups]
    parts = zip(plan.groups, torch.split(q, sizes), torch.split(k, sizes), torch.split(v, sizes), strict=True)
    found = [
        F.scaled_dot_product_attention(asked, keys, values, None if masks is None else masks[kind : kind + 1])
        for (kind, _), asked, keys, values in parts
    ]
    out = (torch.cat(found) if len(found) > 1 else found[0]).transpose(1, 2).flatten(2)  # [windows, N / pool², C]
    if pool > 1:
        small_hw = (grid_hw[0] // pool, grid_hw[1] // pool)
        plan = window_plan(B, small_hw, window=window // pool, shift=0, device=qkv.device)
    return from_windows(out, plan, batch=B)
