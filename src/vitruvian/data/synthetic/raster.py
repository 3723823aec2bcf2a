"""Triangles to pixels: which face each sample of a picture sees, and where on that face.

    screen [P, V, 3] + faces [P, F, 3] ──set_up──▶ work items (triangle, tile) ──fill──▶ keys ──▶ face ids [B, H, W]
    face ids ──find_hits──▶ Hits: covered samples with perspective-correct weights and depth

Screen axes are x right, y down; the centre of pixel (x, y) is the point (x, y). Corners are snapped to 1/256 pixel and
coverage is decided in integers with the top-left rule, so that two triangles with a common edge neither overlap nor
leave a gap, on any device. A key is nearness over face id: the smallest key is the nearest face, the lower id where two
tie. On a GPU with Triton `raster_triton` fills the tiles, everywhere else the torch twin below; both read the same work
items.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.errors import InputError

SUBPIXELS = 256
TILE = 4  # samples a side: most triangles of a person in a picture are smaller than this
EMPTY = 2**63 - 1
NEAREST_BITS = 0x7FFFFFFF
LANES_CPU, LANES_GPU = 1 << 18, 1 << 23  # samples the twin looks at together: what fits the cache, the memory
FARTHEST = 1 << 20  # pixels: corners beyond are clamped, so that products stay in 64 bits


@dataclass(frozen=True)
class Cutouts:
    """Alpha textures for the stochastic alpha test. N = P·F faces, X texels.

    A sample of a face with holes is kept with a probability equal to the texture's alpha there. The s·s samples of one
    pixel get evenly spread thresholds, so that one layer of alpha ½ covers exactly half of them.
    """

    uv: Tensor  # [N, 3, 2] float32, v upwards, wraps
    base: Tensor  # [N] int64: first texel of the face's texture level in `texels`; -1: no holes
    side: Tensor  # [N] int64: texels a side of that level
    texels: Tensor  # [X] uint8 alpha
    samples: int  # s, samples a pixel side
    seed: int


@dataclass(frozen=True)
class WorkItems:
    """What there is to fill: K triangles that may cover a sample, and I tiles of them."""

    corners: Tensor  # [K, 3, 2] int32, 1/256 pixel, ordered so that the area is positive
    nearness: Tensor  # [K, 3] float32, 1 / depth of each corner
    area: Tensor  # [K] float64, twice the area in 1/256 pixel squared
    face: Tensor  # [K] int64 flat face id p·F + f
    picture: Tensor  # [K] int64
    box: Tensor  # [K, 4] int32: x0, y0, x1, y1 inclusive samples
    uv: Tensor | None  # [K, 3, 2] float32 of the corners in order
    cutout: Tensor  # [K, 2] int64: base (-1: none) and side of the alpha texture
    item_triangle: Tensor  # [I] int64 into K
    item_tile: Tensor  # [I] int64: which tile of that triangle's box, row by row


@dataclass(frozen=True)
class Hits:
    """The N covered samples of a raster. Corner c of a face has weight `weights[:, c]`; the weights sum to 1."""

    sample: Tensor  # [N] int64 flat into B·H·W
    face: Tensor  # [N] int64 flat into P·F
    corners: Tensor  # [N, 3] int64 flat into P·V
    weights: Tensor  # [N, 3] float32, perspective-correct
    depth: Tensor  # [N] float32

    def mix(self, vertex_values: Tensor) -> Tensor:
        """Interpolate values of vertices, [P, V, C] -> [N, C]."""
        flat = vertex_values.flatten(0, 1)  # [P·V, C]
        total = flat[self.corners[:, 0]] * self.weights[:, :1]
        for corner in (1, 2):
            total = total + flat[self.corners[:, corner]] * self.weights[:, corner : corner + 1]
        return total  # [N, C]


def rasterize(
    screen: Tensor,
    faces: Tensor,
    *,
    present: Tensor,
    picture: Tensor,
    pictures: int,
    size_hw: tuple[int, int],
    near: float = 0.05,
    cutouts: Cutouts | None = None,
) -> Tensor:
    """Find the face that each sample sees.

    `screen` [P, V, 3] holds x, y in samples and depth; `faces` [P, F, 3] int64; `present` [P, F] bool; `picture` [P]
    int64 says in which of the `pictures` a mesh is drawn. Faces with a corner nearer than `near` are not drawn.
    Returns [B, H, W] int64: flat face id p·F + f, or -1 where nothing is seen.
    """
    _check(screen, faces, present=present, picture=picture, pictures=pictures)
    items = set_up(screen, faces, present=present, picture=picture, size_hw=size_hw, near=near, cutouts=cutouts)
    keys = torch.full((pictures, *size_hw), EMPTY, dtype=torch.int64, device=screen.device)  # [B, H, W]
    if items.item_triangle.numel():
        if screen.is_cuda and importlib.util.find_spec("triton") is not None:
            from vitruvian.data.synthetic.raster_triton import fill_tiles_triton

            fill_tiles_triton(keys, items, cutouts=cutouts)
        else:
            fill_tiles(keys, items, cutouts=cutouts)
    return torch.where(keys == EMPTY, -1, keys & 0xFFFFFFFF)  # [B, H, W]


def _check(screen: Tensor, faces: Tensor, *, present: Tensor, picture: Tensor, pictures: int) -> None:
    if screen.ndim != 3 or screen.shape[-1] != 3 or faces.ndim != 3 or faces.shape[-1] != 3:
        raise InputError(
            f"rasterize: expected screen [P, V, 3] and faces [P, F, 3], got {list(screen.shape)} and "
            f"{list(faces.shape)}. Give one mesh a row."
        )
    if present.shape != faces.shape[:2] or picture.shape != screen.shape[:1] or faces.shape[0] != screen.shape[0]:
        raise InputError(
            f"rasterize: expected present [P, F] and picture [P] for {screen.shape[0]} meshes of {faces.shape[1]} "
            f"faces, got {list(present.shape)} and {list(picture.shape)}. Give one flag a face and one picture a mesh."
        )
    if faces.shape[0] * faces.shape[1] >= 2**31:
        raise InputError(
            f"rasterize: expected fewer than 2^31 faces, got {faces.shape[0] * faces.shape[1]}. Draw fewer at a time."
        )
    if picture.numel() and not 0 <= int(picture.min()) <= int(picture.max()) < pictures:
        raise InputError(
            f"rasterize: expected picture numbers in 0..{pictures - 1}, got {int(picture.min())} to "
            f"{int(picture.max())}. Number the pictures from 0."
        )


def set_up(
    screen: Tensor,
    faces: Tensor,
    *,
    present: Tensor,
    picture: Tensor,
    size_hw: tuple[int, int],
    near: float,
    cutouts: Cutouts | None,
) -> WorkItems:
    """Snap, cull and cut into tiles: [P, V, 3], [P, F, 3] -> the work items of both twins."""
    P, V, _ = screen.shape
    F = faces.shape[1]
    H, W = size_hw
    flat = screen.flatten(0, 1)  # [P·V, 3]
    depth_ok = flat[:, 2] >= near
    snapped = (flat[:, :2] * SUBPIXELS).nan_to_num(0.0).clamp(-FARTHEST * SUBPIXELS, FARTHEST * SUBPIXELS).round().int()
    corner = (faces + torch.arange(P, device=faces.device)[:, None, None] * V).flatten(0, 1)  # [P·F, 3]

    xy = snapped[corner]  # [P·F, 3, 2]
    low = (xy.amin(dim=1) + SUBPIXELS - 1).div(SUBPIXELS, rounding_mode="floor")  # [P·F, 2]
    high = xy.amax(dim=1).div(SUBPIXELS, rounding_mode="floor")  # [P·F, 2]
    low = low.clamp_min(0)
    high = torch.minimum(high, torch.tensor([W - 1, H - 1], dtype=torch.int32, device=high.device))
    tiles = (high - low).div(TILE, rounding_mode="floor").add(1)  # [P·F, 2]
    drawn = present.flatten() & (high >= low).all(dim=1) & depth_ok[corner].all(dim=1)
    kept = drawn.nonzero()[:, 0]  # [K]

    xy, low, high, tiles = xy[kept], low[kept], high[kept], tiles[kept]
    wide = xy.long()
    area = _cross(wide[:, 1] - wide[:, 0], wide[:, 2] - wide[:, 0])  # [K]
    # A mirrored triangle is turned round by exchanging its last two corners, so that inside is always positive.
    turned = torch.tensor([0, 2, 1], device=xy.device)
    order = torch.where((area < 0)[:, None], turned, torch.arange(3, device=xy.device))  # [K, 3]
    ordered_corner = corner[kept].gather(1, order)  # [K, 3]
    counts = (tiles[:, 0] * tiles[:, 1]).long() * (area != 0)  # [K]
    item_triangle = torch.repeat_interleave(torch.arange(len(kept), device=xy.device), counts)  # [I]
    first = counts.cumsum(0) - counts  # [K]
    item_tile = torch.arange(len(item_triangle), device=xy.device) - first[item_triangle]  # [I]

    no_cutout = torch.full((len(kept), 2), -1, dtype=torch.int64, device=xy.device)
    return WorkItems(
        corners=snapped[ordered_corner],
        nearness=1.0 / flat[:, 2][ordered_corner],
        area=area.abs().double(),
        face=kept,
        picture=picture[kept.div(F, rounding_mode="floor")],
        box=torch.cat([low, high], dim=1),  # [K, 4]
        uv=None if cutouts is None else cutouts.uv[kept].gather(1, order[..., None].expand(-1, -1, 2)),
        cutout=no_cutout if cutouts is None else torch.stack([cutouts.base[kept], cutouts.side[kept]], dim=1),
        item_triangle=item_triangle,
        item_tile=item_tile,
    )


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def fill_tiles(keys: Tensor, items: WorkItems, *, cutouts: Cutouts | None) -> None:
    """Lower `keys` [B, H, W] in place to the nearest face of each sample; the torch twin of the Triton kernel."""
    step = (LANES_CPU if keys.device.type == "cpu" else LANES_GPU) // TILE**2
    for start in range(0, len(items.item_triangle), step):
        _fill_chunk(keys, items, slice(start, start + step), cutouts)


def _fill_chunk(keys: Tensor, items: WorkItems, chunk: slice, cutouts: Cutouts | None) -> None:
    _, H, W = keys.shape
    triangle, tile = items.item_triangle[chunk], items.item_tile[chunk]  # [I]
    box = items.box[triangle].long()  # [I, 4]
    tiles_x = (box[:, 2] - box[:, 0]).div(TILE, rounding_mode="floor") + 1
    lane = torch.arange(TILE * TILE, device=keys.device)  # [L]
    x = (box[:, 0] + (tile % tiles_x) * TILE)[:, None] + lane % TILE  # [I, L]
    y = (box[:, 1] + tile.div(tiles_x, rounding_mode="floor") * TILE)[:, None] + lane.div(TILE, rounding_mode="floor")
    corners = items.corners[triangle].long()  # [I, 3, 2]

    inside = (x <= box[:, 2:3]) & (y <= box[:, 3:4])
    edges = []
    for c in range(3):
        a, b = corners[:, (c + 1) % 3, None], corners[:, (c + 2) % 3, None]  # [I, 1, 2]
        dx, dy = b[..., 0] - a[..., 0], b[..., 1] - a[..., 1]  # [I, 1]
        edge = dx * (y * SUBPIXELS - a[..., 1]) - dy * (x * SUBPIXELS - a[..., 0])  # [I, L]
        owns = (dy < 0) | ((dy == 0) & (dx > 0))
        inside &= (edge + owns) > 0
        edges.append(edge)

    item, lane_index = inside.nonzero(as_tuple=True)  # [C]
    triangle = triangle[item]  # [C]
    x, y = x[item, lane_index], y[item, lane_index]
    near = items.nearness[triangle].double()  # [C, 3]
    shares = [edges[c][item, lane_index].double() * near[:, c] for c in range(3)]
    total = shares[0] + shares[1] + shares[2]
    nearness = (total / items.area[triangle]).float()
    key = ((NEAREST_BITS - nearness.view(torch.int32).long()) << 32) | items.face[triangle]
    if cutouts is not None and items.uv is not None:
        solid = _is_solid(items, triangle, shares, total, x, y, cutouts)
        triangle, x, y, key = triangle[solid], x[solid], y[solid], key[solid]
    keys.view(-1).scatter_reduce_(0, (items.picture[triangle] * H + y) * W + x, key, "amin")


def _is_solid(
    items: WorkItems, triangle: Tensor, shares: list[Tensor], total: Tensor, x: Tensor, y: Tensor, cutouts: Cutouts
) -> Tensor:
    """Stochastic alpha test of C samples: True where the face covers the sample, [C] bool."""
    solid = torch.ones_like(triangle, dtype=torch.bool)
    holey = (items.cutout[triangle, 0] >= 0).nonzero()[:, 0]  # [c]
    if items.uv is None or holey.numel() == 0:
        return solid
    triangle, x, y, total = triangle[holey], x[holey], y[holey], total[holey]
    uv = items.uv[triangle].double()  # [c, 3, 2]
    parts = [share[holey] for share in shares]
    u, v = (
        (parts[0] * uv[:, 0, axis] + parts[1] * uv[:, 1, axis] + parts[2] * uv[:, 2, axis]) / total for axis in (0, 1)
    )
    base, side = items.cutout[triangle].unbind(1)
    s = cutouts.samples
    pixel_x, pixel_y = x.div(s, rounding_mode="floor"), y.div(s, rounding_mode="floor")
    sub = (y % s) * s + x % s
    noise = _scramble((pixel_x * 73856093) ^ (pixel_y * 19349663) ^ (items.face[triangle] * 83492791) ^ cutouts.seed)
    shift = _scramble(noise + sub * 40503)
    threshold = ((sub + (noise & 0xFF)) % (s * s) + ((noise >> 8) & 0xFFFF).double() / 65536.0) / (s * s)
    # Shifting the texel by up to half a texel at random is bilinear filtering, on average over the samples.
    column = (u * side + ((shift & 0xFFFF).double() / 65536.0 - 0.5) + 64 * side).long() % side
    row = ((1.0 - v) * side + ((shift >> 16).double() / 65536.0 - 0.5) + 64 * side).long() % side
    alpha = cutouts.texels[base + row * side + column].double() / 255.0
    solid[holey] = alpha > threshold
    return solid


def _scramble(value: Tensor) -> Tensor:
    """Mix the bits of non-negative integers into 32 bits."""
    value = value & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 73244475) & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 73244475) & 0xFFFFFFFF
    return value ^ (value >> 16)


def find_hits(face_ids: Tensor, screen: Tensor, faces: Tensor) -> Hits:
    """List the covered samples of `face_ids` [B, H, W]; `screen` and `faces` as for `rasterize`."""
    V, F = screen.shape[1], faces.shape[1]
    W = face_ids.shape[2]
    flat_ids = face_ids.flatten()  # [B·H·W]
    sample = (flat_ids >= 0).nonzero()[:, 0]  # [N]
    face = flat_ids[sample]
    corners = faces.flatten(0, 1)[face] + (face.div(F, rounding_mode="floor") * V)[:, None]  # [N, 3]
    points = screen.flatten(0, 1)[corners].double()  # [N, 3, 3]
    pixel = sample % (face_ids.shape[1] * W)
    here = torch.stack([pixel % W, pixel.div(W, rounding_mode="floor")], dim=1).double()  # [N, 2]
    to = points[..., :2] - here[:, None]  # [N, 3, 2]
    shares = torch.stack([_cross(to[:, 1], to[:, 2]), _cross(to[:, 2], to[:, 0]), _cross(to[:, 0], to[:, 1])], dim=1)
    # Snapping lets a sample lie up to 1/512 pixel outside its face; weights stay on the face.
    shares = (shares * shares.sum(dim=1, keepdim=True).sign()).clamp_min(0.0)
    shares = shares / shares.sum(dim=1, keepdim=True).clamp_min(1e-12) / points[..., 2]  # [N, 3]
    nearness = shares.sum(dim=1, keepdim=True).clamp_min(1e-12)
    return Hits(
        sample=sample,
        face=face,
        corners=corners,
        weights=(shares / nearness).float(),
        depth=(1.0 / nearness[:, 0]).float(),
    )


def depth_map(face_ids: Tensor, screen: Tensor, faces: Tensor, *, empty: float) -> Tensor:
    """Depth of what `rasterize` found, [B, H, W] float32; `empty` where there is nothing."""
    hits = find_hits(face_ids, screen, faces)
    depth = torch.full((face_ids.numel(),), empty, device=screen.device)
    depth[hits.sample] = hits.depth
    return depth.view(face_ids.shape)  # [B, H, W]
