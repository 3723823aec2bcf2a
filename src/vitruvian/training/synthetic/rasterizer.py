"""The rasterizer: which face each sample of an image sees, and where on that face.

    screen [P, V, 3] + faces [P, F, 3] ──▶ work items (triangle, tile) ──▶ keys ──▶ face ids [B, H, W]
    face ids ──find_fragments──▶ Fragments: covered samples with perspective-correct weights and depth

Screen axes are x right, y down; the center of pixel (x, y) is the point (x, y). Corners are snapped to 1/256 pixel and
coverage is decided in integers with the top-left rule, so that triangles with a common edge neither overlap nor leave
a gap, on any device. A key has the depth in its upper and the face in its lower bits: the smallest is the nearest face.
The torch and the Triton version read the same work items and give the same keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.images.types import SizeHW
from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.triton_import import tl, triton

_SUBPIXELS = 256
_TILE = 4  # samples per side: most triangles of a person are smaller than this
_EMPTY = 2**63 - 1
_NEAREST = 0.05  # meters
_NEAREST_BITS = 0x7FFFFFFF
_CHUNK_CPU, _CHUNK_GPU = 1 << 18, 1 << 23  # samples that the torch version tests together
_FARTHEST = 1 << 20  # pixels: corners beyond are clamped, so that products stay in 64 bits
_TILES_PER_PROGRAM = 16  # of the Triton version: 16 tiles of 16 samples


@dataclass(frozen=True)
class Cutouts:
    """Alpha textures for the stochastic alpha test. N = P·F faces, X texels.

    A sample of a face with holes is covered with a probability equal to the texture's alpha there. The s·s samples of
    one pixel get evenly spaced thresholds, so that one layer of alpha ½ covers exactly half of them.
    """

    uv: Tensor  # [N, 3, 2] float32, v upwards, repeats
    base: Tensor  # [N] int64: first texel of the face's texture level in `texels`; -1: no holes
    side: Tensor  # [N] int64: texels per side of that level
    texels: Tensor  # [X] uint8 alpha
    samples: int  # s, samples per pixel side
    seed: int


@dataclass(frozen=True)
class _WorkItems:
    """K triangles that may cover a sample, and I tiles of them."""

    corners: Tensor  # [K, 3, 2] int32, 1/256 pixel, ordered so that the area is positive
    inverse_depth: Tensor  # [K, 3] float32, 1 / depth of each corner
    area: Tensor  # [K] float64, twice the area in 1/256 pixel squared
    face: Tensor  # [K] int64 flat face id p·F + f
    image: Tensor  # [K] int64
    box: Tensor  # [K, 4] int32: x0, y0, x1, y1 inclusive samples
    uv: Tensor  # [K, 3, 2] float32 of the corners in order
    cutout: Tensor  # [K, 2] int64: base (-1: none) and side of the alpha texture
    item_triangle: Tensor  # [I] int64 into K
    item_tile: Tensor  # [I] int64: which tile of that triangle's box, row by row


@dataclass(frozen=True)
class Fragments:
    """The N covered samples of an image batch. Corner c of a face has weight `weights[:, c]`; the weights sum to 1."""

    sample: Tensor  # [N] int64 flat into B·H·W
    face: Tensor  # [N] int64 flat into P·F
    corners: Tensor  # [N, 3] int64 flat into P·V
    weights: Tensor  # [N, 3] float32, perspective-correct
    depth: Tensor  # [N] float32

    def interpolate(self, vertex_values: Tensor) -> Tensor:
        """Interpolate values of vertices, [P, V, C] -> [N, C]."""
        flat = vertex_values.flatten(0, 1)  # [P·V, C]
        total = flat[self.corners[:, 0]] * self.weights[:, :1]
        for corner in (1, 2):
            total = total + flat[self.corners[:, corner]] * self.weights[:, corner : corner + 1]
        return total  # [N, C]


@dataclass(frozen=True)
class Meshes:
    """P meshes and the images that they appear in."""

    vertices: Tensor  # [P, V, 3] world
    faces: Tensor  # [P, F, 3] int64
    present: Tensor  # [P, F] bool: faces to rasterize
    image_index: Tensor  # [P] int64
    image_count: int  # B


def rasterize(meshes: Meshes, screen: Tensor, size_hw: SizeHW, cutouts: Cutouts | None = None) -> Tensor:
    """Return the face that each sample sees, [B, H, W] int64: flat face id p·F + f, or -1 where there is none.

    `screen` [P, V, 3] holds x, y in samples and depth. Faces with a corner nearer than `_NEAREST` are left out.
    """
    items = _work_items(meshes, screen, size_hw, cutouts)
    keys = torch.full((meshes.image_count, *size_hw), _EMPTY, dtype=torch.int64, device=screen.device)  # [B, H, W]
    if items.item_triangle.numel():
        fill = _fill_triton if use_triton("rasterize", screen, dtypes=(torch.float32,)) else _fill_torch
        fill(keys, items, cutouts)
    return torch.where(keys == _EMPTY, -1, keys & 0xFFFFFFFF)  # [B, H, W]


def _work_items(meshes: Meshes, screen: Tensor, size_hw: SizeHW, cutouts: Cutouts | None) -> _WorkItems:
    """Snap corners, cull triangles and cut their bounding boxes into tiles."""
    P, V, _ = screen.shape
    H, W = size_hw
    device = screen.device
    flat = screen.flatten(0, 1)  # [P·V, 3]
    limit = _FARTHEST * _SUBPIXELS
    snapped = (flat[:, :2] * _SUBPIXELS).nan_to_num(0.0).clamp(-limit, limit).round().int()
    corner = (meshes.faces + torch.arange(P, device=device)[:, None, None] * V).flatten(0, 1)  # [P·F, 3]
    xy = snapped[corner]  # [P·F, 3, 2]
    low = (xy.amin(dim=1) + _SUBPIXELS - 1).div(_SUBPIXELS, rounding_mode="floor").clamp_min(0)  # [P·F, 2]
    high = xy.amax(dim=1).div(_SUBPIXELS, rounding_mode="floor")  # [P·F, 2]
    high = torch.minimum(high, torch.tensor([W - 1, H - 1], dtype=torch.int32, device=device))
    visible = meshes.present.flatten() & (high >= low).all(dim=1) & (flat[:, 2] >= _NEAREST)[corner].all(dim=1)
    face = visible.nonzero()[:, 0]  # [K]

    xy, low, high = xy[face].long(), low[face], high[face]
    area = _cross(xy[:, 1] - xy[:, 0], xy[:, 2] - xy[:, 0])  # [K]
    # A mirrored triangle has its last two corners exchanged, so that inside is always positive.
    order = torch.where((area < 0)[:, None], torch.tensor([0, 2, 1], device=device), torch.arange(3, device=device))
    ordered = corner[face].gather(1, order)  # [K, 3]
    tiles = (high - low).div(_TILE, rounding_mode="floor").add(1)  # [K, 2]
    counts = (tiles[:, 0] * tiles[:, 1]).long() * (area != 0)  # [K]
    item_triangle = torch.repeat_interleave(torch.arange(len(face), device=device), counts)  # [I]
    item_tile = torch.arange(len(item_triangle), device=device) - (counts.cumsum(0) - counts)[item_triangle]  # [I]
    if cutouts is None:
        uv = torch.zeros(len(face), 3, 2, device=device)
        cutout = torch.full((len(face), 2), -1, dtype=torch.int64, device=device)
    else:
        uv = cutouts.uv[face].gather(1, order[..., None].expand(-1, -1, 2))
        cutout = torch.stack([cutouts.base[face], cutouts.side[face]], dim=1)
    return _WorkItems(
        corners=snapped[ordered],
        inverse_depth=1.0 / flat[:, 2][ordered],
        area=area.abs().double(),
        face=face,
        image=meshes.image_index[face.div(meshes.faces.shape[1], rounding_mode="floor")],
        box=torch.cat([low, high], dim=1),  # [K, 4]
        uv=uv,
        cutout=cutout,
        item_triangle=item_triangle,
        item_tile=item_tile,
    )


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _fill_torch(keys: Tensor, items: _WorkItems, cutouts: Cutouts | None) -> None:
    """Lower `keys` [B, H, W] in place to the nearest face of each sample."""
    step = (_CHUNK_CPU if keys.device.type == "cpu" else _CHUNK_GPU) // _TILE**2
    for start in range(0, len(items.item_triangle), step):
        _fill_chunk(keys, items, slice(start, start + step), cutouts)


def _fill_chunk(keys: Tensor, items: _WorkItems, chunk: slice, cutouts: Cutouts | None) -> None:
    _, H, W = keys.shape
    triangle, tile = items.item_triangle[chunk], items.item_tile[chunk]  # [I]
    box = items.box[triangle].long()  # [I, 4]
    tiles_x = (box[:, 2] - box[:, 0]).div(_TILE, rounding_mode="floor") + 1
    offset = torch.arange(_TILE * _TILE, device=keys.device)  # [L]
    x = (box[:, 0] + (tile % tiles_x) * _TILE)[:, None] + offset % _TILE  # [I, L]
    y = (box[:, 1] + tile.div(tiles_x, rounding_mode="floor") * _TILE)[:, None] + offset.div(
        _TILE, rounding_mode="floor"
    )
    corners = items.corners[triangle].long()  # [I, 3, 2]
    inside = (x <= box[:, 2:3]) & (y <= box[:, 3:4])
    edges = []
    for c in range(3):
        a, b = corners[:, (c + 1) % 3, None], corners[:, (c + 2) % 3, None]  # [I, 1, 2]
        dx, dy = b[..., 0] - a[..., 0], b[..., 1] - a[..., 1]  # [I, 1]
        edge = dx * (y * _SUBPIXELS - a[..., 1]) - dy * (x * _SUBPIXELS - a[..., 0])  # [I, L]
        top_left = (dy < 0) | ((dy == 0) & (dx > 0))
        inside &= (edge + top_left) > 0
        edges.append(edge)

    item, position = inside.nonzero(as_tuple=True)  # [C]
    triangle = triangle[item]  # [C]
    x, y = x[item, position], y[item, position]
    near = items.inverse_depth[triangle].double()  # [C, 3]
    shares = torch.stack([edges[c][item, position].double() * near[:, c] for c in range(3)])  # [3, C]
    total = shares[0] + shares[1] + shares[2]
    inverse_depth = (total / items.area[triangle]).float()
    key = ((_NEAREST_BITS - inverse_depth.view(torch.int32).long()) << 32) | items.face[triangle]
    if cutouts is not None:
        solid = _alpha_test(items, triangle, shares, total, x, y, cutouts)
        triangle, x, y, key = triangle[solid], x[solid], y[solid], key[solid]
    keys.view(-1).scatter_reduce_(0, (items.image[triangle] * H + y) * W + x, key, "amin")


def _alpha_test(
    items: _WorkItems, triangle: Tensor, shares: Tensor, total: Tensor, x: Tensor, y: Tensor, cutouts: Cutouts
) -> Tensor:
    """Test C samples stochastically: True where the face covers the sample, [C] bool."""
    solid = torch.ones_like(triangle, dtype=torch.bool)
    tested = (items.cutout[triangle, 0] >= 0).nonzero()[:, 0]  # [c]
    if tested.numel() == 0:
        return solid
    triangle, x, y, total, shares = triangle[tested], x[tested], y[tested], total[tested], shares[:, tested]
    uv = items.uv[triangle].double()  # [c, 3, 2]
    u, v = ((shares[0] * uv[:, 0, k] + shares[1] * uv[:, 1, k] + shares[2] * uv[:, 2, k]) / total for k in (0, 1))
    base, side = items.cutout[triangle].unbind(1)
    s = cutouts.samples
    pixel_x, pixel_y = x.div(s, rounding_mode="floor"), y.div(s, rounding_mode="floor")
    sub = (y % s) * s + x % s
    noise = _hash((pixel_x * 73856093) ^ (pixel_y * 19349663) ^ (items.face[triangle] * 83492791) ^ cutouts.seed)
    shift = _hash(noise + sub * 40503)
    threshold = ((sub + (noise & 0xFF)) % (s * s) + ((noise >> 8) & 0xFFFF).double() / 65536.0) / (s * s)
    # A random shift of up to half a texel is bilinear filtering, on average over the samples.
    column = (u * side + ((shift & 0xFFFF).double() / 65536.0 - 0.5) + 64 * side).long() % side
    row = ((1.0 - v) * side + ((shift >> 16).double() / 65536.0 - 0.5) + 64 * side).long() % side
    alpha = cutouts.texels[base + row * side + column].double() / 255.0
    solid[tested] = alpha > threshold
    return solid


def _hash(value: Tensor) -> Tensor:
    """Mix the bits of non-negative integers into 32 bits."""
    value = value & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 73244475) & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 73244475) & 0xFFFFFFFF
    return value ^ (value >> 16)


def find_fragments(face_ids: Tensor, screen: Tensor, faces: Tensor) -> Fragments:
    """List the covered samples of `face_ids` [B, H, W]; `screen` and `faces` as for `rasterize`."""
    V, F = screen.shape[1], faces.shape[1]
    W = face_ids.shape[2]
    flat_ids = face_ids.flatten()  # [B·H·W]
    sample = (flat_ids >= 0).nonzero()[:, 0]  # [N]
    face = flat_ids[sample]
    corners = faces.flatten(0, 1)[face] + (face.div(F, rounding_mode="floor") * V)[:, None]  # [N, 3]
    points = screen.flatten(0, 1)[corners].double()  # [N, 3, 3]
    pixel = sample % (face_ids.shape[1] * W)
    xy = torch.stack([pixel % W, pixel.div(W, rounding_mode="floor")], dim=1).double()  # [N, 2]
    to = points[..., :2] - xy[:, None]  # [N, 3, 2]
    shares = torch.stack([_cross(to[:, 1], to[:, 2]), _cross(to[:, 2], to[:, 0]), _cross(to[:, 0], to[:, 1])], dim=1)
    # Snapping lets a sample lie up to 1/512 pixel outside its face; weights stay on the face.
    shares = (shares * shares.sum(dim=1, keepdim=True).sign()).clamp_min(0.0)
    shares = shares / shares.sum(dim=1, keepdim=True).clamp_min(1e-12) / points[..., 2]  # [N, 3]
    inverse_depth = shares.sum(dim=1, keepdim=True).clamp_min(1e-12)
    depth = (1.0 / inverse_depth[:, 0]).float()
    return Fragments(sample, face, corners, weights=(shares / inverse_depth).float(), depth=depth)


def depth_map(face_ids: Tensor, screen: Tensor, faces: Tensor, *, empty: float) -> Tensor:
    """Return the depth of the faces that `rasterize` found, [B, H, W] float32; `empty` where there is none."""
    fragments = find_fragments(face_ids, screen, faces)
    depth = torch.full((face_ids.numel(),), empty, device=screen.device)
    depth[fragments.sample] = fragments.depth
    return depth.view(face_ids.shape)  # [B, H, W]


# ---------------------------------------------------------------------------------------------------------- Triton


def _fill_triton(keys: Tensor, items: _WorkItems, cutouts: Cutouts | None) -> None:
    """Lower `keys` [B, H, W] in place to the nearest face of each sample, by 64-bit atomic minimum."""
    count = len(items.item_triangle)
    texels = cutouts.texels if cutouts is not None else torch.zeros(1, dtype=torch.uint8, device=keys.device)
    _fill_kernel[(triton.cdiv(count, _TILES_PER_PROGRAM),)](
        keys, items.corners.contiguous(), items.inverse_depth.contiguous(), items.area.contiguous(),
        items.face.contiguous(), items.image.contiguous(), items.box.contiguous(), items.uv.contiguous(),
        items.cutout.contiguous(), texels.contiguous(), items.item_triangle.contiguous(),
        items.item_tile.contiguous(), count, keys.shape[1], keys.shape[2],
        cutouts.seed if cutouts is not None else 0, SAMPLES=cutouts.samples if cutouts is not None else 1,
        HOLES=cutouts is not None, SIDE=_TILE, AREA=_TILE * _TILE, SUB=_SUBPIXELS, GROUP=_TILES_PER_PROGRAM,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


@triton_jit
def _hash_kernel(value):  # type: ignore[no-untyped-def]
    value = value & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 73244475) & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 73244475) & 0xFFFFFFFF
    return value ^ (value >> 16)


@triton_jit
def _edge_kernel(ax, ay, bx, by, x, y, SUB: tl.constexpr):  # type: ignore[no-untyped-def]
    """Edge function at the samples, and 1 where the top-left rule gives the edge its samples."""
    dx = bx - ax
    dy = by - ay
    value = dx * (y * SUB - ay) - dy * (x * SUB - ax)
    top_left = ((dy < 0) | ((dy == 0) & (dx > 0))).to(tl.int64)
    return value, top_left


# Counts and seeds change with every call: specialized kernels would not be found in the cache again.
@triton_jit(do_not_specialize=["items", "seed"])  # type: ignore[untyped-decorator]
def _fill_kernel(  # type: ignore[no-untyped-def]
    keys_ptr,  # [B, H, W] int64
    corners_ptr,  # [K, 3, 2] int32
    nearness_ptr,  # [K, 3] float32
    area_ptr,  # [K] float64
    face_ptr,  # [K] int64
    image_ptr,  # [K] int64
    box_ptr,  # [K, 4] int32
    uv_ptr,  # [K, 3, 2] float32
    cutout_ptr,  # [K, 2] int64
    texels_ptr,  # [X] uint8
    item_triangle_ptr,  # [I] int64
    item_tile_ptr,  # [I] int64
    items, height, width, seed,
    SAMPLES: tl.constexpr, HOLES: tl.constexpr, SIDE: tl.constexpr, AREA: tl.constexpr, SUB: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64) * GROUP + tl.arange(0, GROUP)  # [G]
    live = item < items
    triangle = tl.load(item_triangle_ptr + item, mask=live, other=0)
    tile = tl.load(item_tile_ptr + item, mask=live, other=0)
    x0 = tl.load(box_ptr + triangle * 4 + 0, mask=live, other=0).to(tl.int64)
    y0 = tl.load(box_ptr + triangle * 4 + 1, mask=live, other=0).to(tl.int64)
    x1 = tl.load(box_ptr + triangle * 4 + 2, mask=live, other=-1).to(tl.int64)
    y1 = tl.load(box_ptr + triangle * 4 + 3, mask=live, other=-1).to(tl.int64)
    tiles_x = tl.maximum(x1 - x0, 0) // SIDE + 1
    offset = tl.arange(0, AREA).to(tl.int64)[None, :]  # [1, L]
    x = (x0 + (tile % tiles_x) * SIDE)[:, None] + offset % SIDE  # [G, L]
    y = (y0 + (tile // tiles_x) * SIDE)[:, None] + offset // SIDE  # [G, L]

    ax = tl.load(corners_ptr + triangle * 6 + 0, mask=live, other=0).to(tl.int64)[:, None]  # [G, 1]
    ay = tl.load(corners_ptr + triangle * 6 + 1, mask=live, other=0).to(tl.int64)[:, None]
    bx = tl.load(corners_ptr + triangle * 6 + 2, mask=live, other=0).to(tl.int64)[:, None]
    by = tl.load(corners_ptr + triangle * 6 + 3, mask=live, other=0).to(tl.int64)[:, None]
    cx = tl.load(corners_ptr + triangle * 6 + 4, mask=live, other=0).to(tl.int64)[:, None]
    cy = tl.load(corners_ptr + triangle * 6 + 5, mask=live, other=0).to(tl.int64)[:, None]
    edge_a, owns_a = _edge_kernel(bx, by, cx, cy, x, y, SUB)
    edge_b, owns_b = _edge_kernel(cx, cy, ax, ay, x, y, SUB)
    edge_c, owns_c = _edge_kernel(ax, ay, bx, by, x, y, SUB)
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
    inverse_depth = (total / area).to(tl.float32)
    face = tl.load(face_ptr + triangle, mask=live, other=0)[:, None]
    key = ((0x7FFFFFFF - inverse_depth.to(tl.int32, bitcast=True).to(tl.int64)) << 32) | face

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
        noise = _hash_kernel(((x // SAMPLES) * 73856093) ^ ((y // SAMPLES) * 19349663) ^ (face * 83492791) ^ seed)
        shift = _hash_kernel(noise + sub * 40503)
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

    image = tl.load(image_ptr + triangle, mask=live, other=0)[:, None]
    tl.atomic_min(keys_ptr + (image * height + y) * width + x, key, mask=inside)
