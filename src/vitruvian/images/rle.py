"""COCO run-length encoding: a binary mask as the lengths of its runs, column by column, background first.

    mask [H, W] ── encode_rle ──▶ {"size": [H, W], "counts": [n0, n1, …]} ── decode_rle ──▶ mask [H, W]
                                                    ⇅  compress_counts / decompress_counts
                                              "counts": "PPYo0…"

Counts are a list of numbers or the string of COCO files; every function takes both. Areas, boxes, overlaps and unions
are computed on the runs, without pixels. Masks are packed into bits on their device (`pack_masks`), so that few bytes
are copied from a GPU, and their runs are found on the CPU (`encode_packed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.types import IntArray
from vitruvian.limits import get_limits
from vitruvian.tensor_cache import cached_tensors

# Pixels of masks that are encoded in one step, which limits memory.
_CHUNK_PIXELS = 1 << 26


class Rle(TypedDict):
    """A mask of `size` [H, W] as run lengths: a list, or COCO's compressed string."""

    size: list[int]
    counts: list[int] | str


AnyRle = Rle | Mapping[str, object]


def encode_rle(mask: Tensor | npt.NDArray[np.generic], *, compress: bool = False) -> Rle:
    """Encode one mask [H, W] of 0 and 1 (bool, integer or float); `compress` writes the counts as a string."""
    if mask.ndim != 2:
        raise InputError(f"mask: expected the shape [H, W], got {list(mask.shape)}. Use encode_rles for a batch.")
    return encode_rles(mask[None], compress=compress)[0]


def encode_rles(masks: Tensor | npt.NDArray[np.generic], *, compress: bool = False) -> list[Rle]:
    """Encode masks [N, H, W] of 0 and 1 (bool, integer or float), one RLE each."""
    tensor = _as_bool(masks)
    height, width = tensor.shape[1:]
    return [_rle_of_runs(counts, (height, width), compress=compress) for counts in run_lengths(tensor)]


def pack_masks(masks: Tensor) -> Tensor:
    """Pack bool masks [N, H, W] into bits, uint8 [N, H, ceil(W / 8)], on their device and without synchronizing it.

    The first of eight pixels is the highest bit; bits beyond the width are 0.
    """
    return torch.from_numpy(np.packbits(masks.numpy(), axis=-1)) if masks.is_cpu else _pack_on_device(masks)


def _pack_on_device(masks: Tensor) -> Tensor:
    width = masks.shape[-1]
    values = F.pad(masks.view(torch.uint8), (0, -width % 8)) if width % 8 else masks.view(torch.uint8)
    return (torch.unflatten(values, -1, (-1, 8)) * _bit_values(masks.device)).sum(dim=-1, dtype=torch.uint8)


def encode_packed(
    bits: npt.NDArray[np.uint8], width: int, *, compress: bool = False
) -> tuple[list[Rle], npt.NDArray[np.float32]]:
    """Encode masks of this width that `pack_masks` packed: an RLE each, and boxes x1, y1, x2, y2, float32 [N, 4].

    The ends of boxes are exclusive; empty masks have zeros.
    """
    height = bits.shape[1]
    rles: list[Rle] = []
    boxes = np.zeros((len(bits), 4), np.float32)
    for packed, box in zip(bits, boxes, strict=True):
        counts = _packed_run_lengths(packed, width)
        rles.append(_rle_of_runs(counts, (height, width), compress=compress))
        x, y, box_width, box_height = _box_of_runs(counts, height)
        box[:] = x, y, x + box_width, y + box_height
    return rles, boxes


def decode_rle(rle: AnyRle) -> Tensor:
    """Decode an RLE with counts as a list, string or bytes to a bool mask [H, W]."""
    height, width, counts = read_rle(rle)
    inside = np.arange(len(counts)) % 2 == 1
    columns = np.repeat(inside, counts).reshape(width, height)  # [W, H]
    return torch.from_numpy(np.ascontiguousarray(columns.T))  # [H, W]


def decode_rles(rles: Sequence[AnyRle]) -> Tensor:
    """Decode RLEs of one size to bool masks [N, H, W]; at least one is needed to know the size."""
    _check_common_size(rles)
    return torch.stack([decode_rle(rle) for rle in rles])  # [N, H, W]


def rle_area(rle: AnyRle) -> int:
    """Return how many pixels the mask covers."""
    return int(read_rle(rle)[2][1::2].sum())


def rle_box_xywh(rle: AnyRle) -> list[int]:
    """Return the bounding box [x, y, width, height] of the mask; zeros for an empty mask."""
    height, _, counts = read_rle(rle)
    return _box_of_runs(counts, height)


def rle_iou(
    rles: Sequence[AnyRle], others: Sequence[AnyRle], *, crowd: Sequence[bool] | npt.NDArray[np.bool_] | None = None
) -> Tensor:
    """Return the overlap of each of N masks with each of M others: intersection over union, float64 [N, M].

    Where `crowd` [M] is true the overlap is the intersection over the area of the first mask, as in COCO.
    """
    result = np.zeros((len(rles), len(others)))
    if crowd is not None and len(crowd) != len(others):
        raise InputError(f"crowd: expected one flag for each of the {len(others)} masks, got {len(crowd)}.")
    if not rles or not others:
        return torch.from_numpy(result)
    _check_common_size([*rles, *others])
    spans = [_foreground(read_rle(rle)[2]) for rle in rles]
    owner = np.repeat(np.arange(len(spans)), [len(starts) for starts, _ in spans])
    starts, ends = (np.concatenate([span[side] for span in spans]) for side in (0, 1))
    areas = np.bincount(owner, weights=ends - starts, minlength=len(rles))
    for column, other in enumerate(others):
        counts = read_rle(other)[2]
        shared = _covered_before(counts, ends) - _covered_before(counts, starts)
        intersection = np.bincount(owner, weights=shared, minlength=len(rles))
        whole = areas if crowd is not None and crowd[column] else areas + counts[1::2].sum() - intersection
        result[:, column] = intersection / np.maximum(whole, 1)
    return torch.from_numpy(result)  # [N, M]


def compress_counts(counts: npt.ArrayLike) -> str:
    """Encode run lengths as COCO's string.

    From the fourth on, a count is stored as its difference to the one two before it. Each number is split into groups
    of five bits, lowest first; a group becomes the character 48 + bits, plus 32 where more groups follow, and bit 16
    of the last group is the sign.
    """
    values = np.array(counts, dtype=np.int64)
    values[3:] -= np.asarray(counts, dtype=np.int64)[1:-2]
    magnitude = np.where(values < 0, ~values, values)
    groups = np.ones(len(values), dtype=np.int64)
    for length in range(1, 12):
        longer = magnitude >= 1 << (5 * length - 1)
        if not longer.any():
            break
        groups += longer
    index = np.arange(groups.max(initial=1))
    letters = 48 + ((values[:, None] >> (5 * index)) & 31) + 32 * (index < groups[:, None] - 1)  # [N, groups]
    return bytes(letters[index < groups[:, None]].astype(np.uint8)).decode("ascii")


def _decompress_counts(text: str | bytes) -> IntArray:
    """Read COCO's string of run lengths: [N]."""
    raw = text.encode("ascii", errors="replace") if isinstance(text, str) else text
    letters = np.frombuffer(raw, dtype=np.uint8).astype(np.int64) - 48
    if len(letters) == 0 or letters.min() < 0 or letters.max() > 63 or letters[-1] & 32:
        raise InputError("counts: invalid or truncated RLE string.")
    last = (letters & 32) == 0  # [characters]: the last one of a number
    first = np.flatnonzero(np.concatenate([[True], last[:-1]]))
    index = np.arange(len(letters)) - np.repeat(first, np.diff(first, append=len(letters)))
    if index.max() > 11:
        raise InputError("counts: expected run lengths of up to 12 characters, got a longer one.")
    values = np.add.reduceat((letters & 31) << (5 * index), first)
    values -= np.where(letters[last] & 16, np.int64(1) << (5 * (index[last] + 1)), 0)
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values


def read_rle(rle: AnyRle) -> tuple[int, int, IntArray]:
    """Return height, width and run lengths of an RLE, or raise `InputError` where they are inconsistent."""
    try:
        (height, width), counts = map(int, rle["size"]), rle["counts"]  # type: ignore[call-overload]
        lengths = _decompress_counts(counts) if isinstance(counts, (str, bytes)) else np.asarray(counts, dtype=np.int64)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"rle: expected {{'size': [H, W], 'counts': […] or '…'}}, got {str(rle)[:80]}.") from error
    if min(height, width) < 1 or lengths.ndim != 1:
        raise InputError(f"rle: expected a size of at least 1×1 and a flat list of counts, got {str(rle)[:80]}.")
    get_limits().check("image_pixels", height * width, subject="rle")
    if (lengths < 0).any() or (lengths > height * width).any() or lengths.sum() != height * width:
        raise InputError(
            f"rle: expected run lengths that add up to {height}×{width} = {height * width} pixels, "
            f"got {int(lengths.sum())}{' with negative ones' if (lengths < 0).any() else ''}. Is the size right?"
        )
    return height, width, lengths


def _as_bool(masks: Tensor | npt.NDArray[np.generic]) -> Tensor:
    """Return masks [N, H, W] of 0 and 1 as a bool tensor, or raise `InputError` for anything else."""
    tensor = torch.as_tensor(masks)
    if tensor.ndim != 3 or min(tensor.shape[1:]) < 1:
        raise InputError(f"masks: expected the shape [N, H, W] with H and W of at least 1, got {list(tensor.shape)}.")
    if tensor.dtype == torch.bool:
        return tensor
    result = tensor != 0
    if not torch.equal(tensor, result.to(tensor.dtype)):
        raise InputError("masks: expected only 0 and 1, got other values. Compare logits with a threshold first.")
    return result


def run_lengths(masks: Tensor) -> list[IntArray]:
    """Return the run lengths of bool masks [N, H, W], one array each."""
    count, height, width = masks.shape
    chunk = max(1, _CHUNK_PIXELS // (height * width))
    parts = (pack_masks(masks[start : start + chunk]).cpu().numpy() for start in range(0, count, chunk))
    return [_packed_run_lengths(packed, width) for bits in parts for packed in bits]


def _packed_run_lengths(bits: npt.NDArray[np.uint8], width: int) -> IntArray:
    """Return the run lengths of a mask of this width that is packed into bits, uint8 [H, ceil(W / 8)].

    Memory is in row order and runs are in column order, so rows are compared and the few positions of changes are
    sorted, which is faster than transposing all pixels.
    """
    height, row_bytes = bits.shape
    changed = (bits[1:] ^ bits[:-1]).ravel()
    index = np.flatnonzero(changed != 0)  # NumPy is many times as fast with flat bool arrays
    number, bit = np.divmod(np.flatnonzero(np.unpackbits(changed[index])), 8)
    row, byte = np.divmod(index[number], row_bytes)
    down = (8 * byte + bit) * height + row + 1
    top, bottom = np.unpackbits(bits[[0, -1]], axis=1, count=width)  # [W] each
    over = (np.flatnonzero(top[1:] ^ bottom[:-1]) + 1) * height
    first = np.flatnonzero(top[:1])  # a mask that starts with foreground has an empty run of background
    return np.diff(np.sort(np.concatenate([first, down, over])), prepend=0, append=height * width)


@cached_tensors
def _bit_values(device: torch.device) -> Tensor:
    """Return the values of the bits of a byte, the highest first: uint8 [8]."""
    return torch.tensor([1 << bit for bit in reversed(range(8))], dtype=torch.uint8, device=device)


def _rle_of_runs(counts: IntArray, size_hw: tuple[int, int], *, compress: bool) -> Rle:
    return {"size": list(size_hw), "counts": compress_counts(counts) if compress else counts.tolist()}


def _box_of_runs(counts: IntArray, height: int) -> list[int]:
    """Return the bounding box [x, y, width, height] of a mask of this height; zeros for an empty mask."""
    starts, ends = _foreground(counts)
    if len(starts) == 0:
        return [0, 0, 0, 0]
    left, right = starts // height, (ends - 1) // height  # columns of the first and last pixel of each run
    if (right > left).any():  # a run over several columns touches the bottom and the top
        top, bottom = 0, height - 1
    else:
        top, bottom = int((starts % height).min()), int(((ends - 1) % height).max())
    return [int(left.min()), top, int(right.max() - left.min()) + 1, bottom - top + 1]


def _foreground(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Return starts and ends (exclusive) of the foreground runs that are not empty."""
    ends = np.cumsum(counts)
    starts, ends = (ends - counts)[1::2], ends[1::2]
    filled = ends > starts
    return starts[filled], ends[filled]


def _covered_before(counts: IntArray, positions: IntArray) -> IntArray:
    """Return the number of foreground pixels before each position, in column order."""
    ends = np.cumsum(counts)
    inside = np.arange(len(counts)) % 2 == 1
    covered = np.concatenate([[0], np.cumsum(counts * inside)])
    run = np.minimum(np.searchsorted(ends, positions, side="right"), len(counts) - 1)
    return covered[run] + np.where(inside[run], positions - (ends - counts)[run], 0)


def _check_common_size(rles: Sequence[AnyRle]) -> None:
    sizes = {read_rle(rle)[:2] for rle in rles}
    if len(sizes) != 1:
        raise InputError(f"rles: expected masks of one size, got {sorted(sizes) or 'no masks'}.")
