"""1×1 convolutions in the memory of their own maps, for where there is no room for what goes in and what comes out."""

from __future__ import annotations

import torch
from torch import Tensor

PARTS = 3  # of the pixels, one after another: fewer need more memory, more fill a large GPU badly


def mix_channels(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve channels-last maps [B, C, H, W] with a kernel [C', C, 1, 1]: [B, C', H, W]; the maps are then gone.

    The result lies in their memory, which must be all theirs, unless half of that would be idle or it takes more: then
    it has its own. It moves from one end to the other, some pixels at a time, so that what it overwrites has been read.
    """
    B, C, H, W = x.shape
    matrix = weight.flatten(1).t()  # [C, C']
    kept = matrix.shape[1]
    rows = x.permute(0, 2, 3, 1).view(-1, C)  # [B·H·W, C]
    room = x.untyped_storage().nbytes() // x.element_size()
    start, length = x.storage_offset(), len(rows) * kept
    if kept > C or length <= room / 2:
        return as_maps(rows @ matrix, (B, H, W))
    place = 0 if 2 * start + rows.numel() >= room else room - length  # the end where more is free
    out = x.as_strided((len(rows), kept), (kept, 1), place)
    step = -(-len(rows) // PARTS)
    firsts = range(0, len(rows), step)
    for first in firsts if place == 0 else reversed(firsts):
        last = min(first + step, len(rows))
        given, wanted = rows[first:last], out[first:last]
        if place + last * kept <= start + first * C or place + first * kept >= start + last * C:
            torch.mm(given, matrix, out=wanted)
        else:  # lands on what it is made of
            wanted.copy_(given @ matrix)
    return as_maps(out, (B, H, W))


def as_maps(rows: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    """View pixels [B·H·W, C] as channels-last maps [B, C, H, W]."""
    return rows.view(*sizes, -1).permute(0, 3, 1, 2)
