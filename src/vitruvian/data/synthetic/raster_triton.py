"""The Triton twin of `raster.fill_tiles`: a few tiles of triangles a program, 64-bit atomic minimum into the keys."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitruvian.data.synthetic.raster import SUBPIXELS, TILE, Cutouts, WorkItems

GROUP = 16  # tiles a program: 16 tiles of 16 samples keep 256 lanes busy


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _scramble(value):  # type: ignore[no-untyped-def]
    value = value & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 73244475) & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 73244475) & 0xFFFFFFFF
    return value ^ (value >> 16)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _edge(ax, ay, bx, by, x, y, SUB: tl.constexpr):  # type: ignore[no-untyped-def]
    """Edge value at the samples, and 1 where the edge owns the samples that lie on it."""
    dx = bx - ax
    dy = by - ay
    value = dx * (y * SUB - ay) - dy * (x * SUB - ax)
    owns = ((dy < 0) | ((dy == 0) & (dx > 0))).to(tl.int64)
    return value, owns


# Counts and seeds change with every call: kernels compiled for their values would not be found again.
@triton.jit(do_not_specialize=["items", "seed"])  # type: ignore[untyped-decorator, unused-ignore]
def _fill_kernel(  # type: ignore[no-untyped-def]
    keys_ptr,  # [B, H, W] int64
    corners_ptr,  # [K, 3, 2] int32
    nearness_ptr,  # [K, 3] float32
    area_ptr,  # [K] float64
    face_ptr,  # [K] int64
    picture_ptr,  # [K] int64
    box_ptr,  # [K, 4] int32
    uv_ptr,  # [K, 3, 2] float32
    cutout_ptr,  # [K, 2] int64
    texels_ptr,  # [X] uint8
    item_triangle_ptr,  # [I] int64
    item_tile_ptr,  # [I] int64
    items,
    height,
    width,
    seed,
    SAMPLES: tl.constexpr,
    HOLES: tl.constexpr,
    SIDE: tl.constexpr,
    LANES: tl.constexpr,
    SUB: tl.constexpr,
    GROUP: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64) * GROUP + tl.arange(0, GROUP)  # [G]
    live = item < items
    triangle = tl.load(item_triangle_ptr + item, mask=live, other=0)
    tile = tl.load(item_tile_ptr + item, mask=live, other=0)
    x0 = tl.load(box_ptr + triangle * 4 + 0, mask=live, other=0).to(tl.int64)
    y0 = tl.load(box_ptr + triangle * 4 + 1, mask=live, other=0).to(tl.int64)
    x1 = tl.load(box_ptr + triangle * 4 + 2, mask=live, other=-1).to(tl.int64)
    y1 = tl.load(box_ptr + triangle * 4 + 3, mask=live, other=-1).to(tl.int64)
    tiles_x = tl.maximum(x1 - x0, 0) // SIDE + 1
    lane = tl.arange(0, LANES).to(tl.int64)[None, :]  # [1, L]
    x = (x0 + (tile % tiles_x) * SIDE)[:, None] + lane % SIDE  # [G, L]
    y = (y0 + (tile // tiles_x) * SIDE)[:, None] + lane // SIDE  # [G, L]

    ax = tl.load(corners_ptr + triangle * 6 + 0, mask=live, other=0).to(tl.int64)[:, None]  # [G, 1]
    ay = tl.load(corners_ptr + triangle * 6 + 1, mask=live, other=0).to(tl.int64)[:, None]
    bx = tl.load(corners_ptr + triangle * 6 + 2, mask=live, other=0).to(tl.int64)[:, None]
    by = tl.load(corners_ptr + triangle * 6 + 3, mask=live, other=0).to(tl.int64)[:, None]
    cx = tl.load(corners_ptr + triangle * 6 + 4, mask=live, other=0).to(tl.int64)[:, None]
    cy = tl.load(corners_ptr + triangle * 6 + 5, mask=live, other=0).to(tl.int64)[:, None]
    edge_a, owns_a = _edge(bx, by, cx, cy, x, y, SUB)
    edge_b, owns_b = _edge(cx, cy, ax, ay, x, y, SUB)
    edge_c, owns_c = _edge(ax, ay, bx, by, x, y, SUB)
    inside = live[:, None] & (x <= x1[:, None]) & (y <= y1[:, None])
    inside = inside & (edge_a + owns_a > 0) & (edge_b + owns_b > 0) & (edge_c + owns_c > 0)

    near_a = tl.load(nearness_ptr + triangle * 3 + 0, mask=live, other=1.0).to(tl.float64)[:, None]
    near_b = tl.load(nearness_ptr + triangle * 3 + 1, mask=live, other=1.0).to(tl.float64)[:, None]
    near_c = tl.load(nearness_ptr + triangle * 3 + 2, mask=live, other=1.0).to(tl.float64)[:, None]
    area = tl.load(area_ptr + triangle, mask=live, other=1.0)[:, None]
    share_a = edge_a.to(tl.float64) * near_a
    share_b = edge_b.to(tl.float64) * near_b
    share_c = edge_c.to(tl.float64) * near_c
    total = share_a + share_b + share_c
    nearness = (total / area).to(tl.float32)
    face = tl.load(face_ptr + triangle, mask=live, other=0)[:, None]
    key = ((0x7FFFFFFF - nearness.to(tl.int32, bitcast=True).to(tl.int64)) << 32) | face

    if HOLES:
        base = tl.load(cutout_ptr + triangle * 2, mask=live, other=-1)[:, None]
        side = tl.load(cutout_ptr + triangle * 2 + 1, mask=live, other=1)[:, None]
        tested = inside & (base >= 0)
        holey = live & (tl.sum(tested.to(tl.int32), axis=1) > 0)
        au = tl.load(uv_ptr + triangle * 6 + 0, mask=holey, other=0.0).to(tl.float64)[:, None]
        av = tl.load(uv_ptr + triangle * 6 + 1, mask=holey, other=0.0).to(tl.float64)[:, None]
        bu = tl.load(uv_ptr + triangle * 6 + 2, mask=holey, other=0.0).to(tl.float64)[:, None]
        bv = tl.load(uv_ptr + triangle * 6 + 3, mask=holey, other=0.0).to(tl.float64)[:, None]
        cu = tl.load(uv_ptr + triangle * 6 + 4, mask=holey, other=0.0).to(tl.float64)[:, None]
        cv = tl.load(uv_ptr + triangle * 6 + 5, mask=holey, other=0.0).to(tl.float64)[:, None]
        whole = tl.where(tested, total, 1.0)
        u = (share_a * au + share_b * bu + share_c * cu) / whole
        v = (share_a * av + share_b * bv + share_c * cv) / whole
        sub = (y % SAMPLES) * SAMPLES + x % SAMPLES
        noise = _scramble(((x // SAMPLES) * 73856093) ^ ((y // SAMPLES) * 19349663) ^ (face * 83492791) ^ seed)
        shift = _scramble(noise + sub * 40503)
        rank = (sub + (noise & 0xFF)) % (SAMPLES * SAMPLES)
        threshold = (rank.to(tl.float64) + ((noise >> 8) & 0xFFFF).to(tl.float64) / 65536.0) / (SAMPLES * SAMPLES)
        wide = side.to(tl.float64)
        jitter_x = (shift & 0xFFFF).to(tl.float64) / 65536.0 - 0.5
        jitter_y = (shift >> 16).to(tl.float64) / 65536.0 - 0.5
        whole_side = tl.maximum(side, 1)
        column = (u * wide + jitter_x + 64.0 * wide).to(tl.int64) % whole_side
        row = ((1.0 - v) * wide + jitter_y + 64.0 * wide).to(tl.int64) % whole_side
        texel = tl.load(texels_ptr + base + row * side + column, mask=tested, other=255)
        inside = inside & ((texel.to(tl.float64) / 255.0 > threshold) | (base < 0))

    picture = tl.load(picture_ptr + triangle, mask=live, other=0)[:, None]
    tl.atomic_min(keys_ptr + (picture * height + y) * width + x, key, mask=inside)


def fill_tiles_triton(keys: Tensor, items: WorkItems, *, cutouts: Cutouts | None) -> None:
    """Lower `keys` [B, H, W] in place to the nearest face of each sample; the same numbers as `raster.fill_tiles`."""
    count = len(items.item_triangle)
    holes = cutouts is not None and items.uv is not None
    # A kernel argument cannot be left out: without holes these two are never read.
    uv = items.uv if items.uv is not None else items.nearness
    texels = cutouts.texels if cutouts is not None else torch.zeros(1, dtype=torch.uint8, device=keys.device)
    _fill_kernel[(triton.cdiv(count, GROUP),)](
        keys,
        items.corners.contiguous(),
        items.nearness.contiguous(),
        items.area.contiguous(),
        items.face.contiguous(),
        items.picture.contiguous(),
        items.box.contiguous(),
        uv.contiguous(),
        items.cutout.contiguous(),
        texels.contiguous(),
        items.item_triangle.contiguous(),
        items.item_tile.contiguous(),
        count,
        keys.shape[1],
        keys.shape[2],
        cutouts.seed if cutouts is not None else 0,
        SAMPLES=cutouts.samples if cutouts is not None else 1,
        HOLES=holes,
        SIDE=TILE,
        LANES=TILE * TILE,
        SUB=SUBPIXELS,
        GROUP=GROUP,
        num_warps=4,
        enable_fp_fusion=False,
    )
