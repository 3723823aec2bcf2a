"""Random outfits: which pieces a person wears, how they are layered, and the mesh of body and clothes at rest.

P people, S slots, V vertices and F triangles of the common layout: the slots one after the other, each as long as the
largest piece of the slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.training.synthetic.asset_pack import MATERIALS_PER_SLOT, MEN, SLOT, SLOTS, WOMEN, AssetPack, Wardrobe
from vitruvian.training.synthetic.rng import Rng

_ADULT = 0.58  # age trait from which people may wear little
# Relative frequency of styles within their slot; pieces without a style have weight 1. Bare arms and legs are more
# frequent than in reality, since only they teach the parts of the body.
_STYLE_WEIGHT = {
    "top": 0.9, "crop": 0.45, "bra": 0.35, "dress": 0.8, "tight": 0.6, "long": 0.8, "shorts": 1.3, "swim": 0.35,
    "skirt": 0.8, "socks": 0.4, "shoes": 0.5, "veil": 0.5, "band": 0.3,
}  # fmt: skip
_CLOTH_SLOTS = ("lower", "upper", "outer", "accessory")
_BARE_STYLES = ("bra", "swim", "crop")
_THIN_TOPS = (
    "tshirt_tight", "tshirt_vee", "tee_scoop", "polo", "longsleeve", "henley", "tank", "singlet", "rollneck", "blouse",
    "dress_summer", "dress_short", "dress_tee",
)  # fmt: skip


@dataclass(frozen=True)
class Outfit:
    """The pieces that P people wear."""

    pieces: Tensor  # [P, S] int64 into the wardrobe; -1: none. The body is always worn
    tucked: Tensor  # [P] bool: the top goes into the trousers
    fullness: Tensor  # [P, S] float32: factor of the distance from the body
    creases: Tensor  # [P, S, 5, 4] float32: waves in the cloth: direction x frequency (3), height (m)


def choose_outfit(pack: AssetPack, traits: Tensor, mouth_open: Tensor, rng: Rng) -> Outfit:
    """Draw outfits for people with traits [P, 4] (gender, age, ...); `mouth_open` [P] bool adds teeth and tongue."""
    wardrobe = pack.wardrobe
    P = len(traits)
    female, adult = traits[:, 0] > 0.5, traits[:, 1] >= _ADULT
    pieces = torch.full((P, len(SLOTS)), -1, dtype=torch.int64, device=traits.device)
    pieces[:, 0] = 0

    def put(slot: str, worn: Tensor) -> None:
        rows = [a for a in range(len(wardrobe.names)) if int(wardrobe_slots[a]) == SLOT[slot]]
        if rows:
            options = torch.tensor(rows, device=traits.device)
            chosen = options[rng.categorical_rows(_piece_weights(wardrobe, rows, female, adult))]
            pieces[:, SLOT[slot]] = torch.where(worn, chosen, pieces[:, SLOT[slot]])

    def style(slot: str, *names: str) -> Tensor:
        return _has_style(wardrobe.styles, pieces[:, SLOT[slot]], names)

    wardrobe_slots = wardrobe.slot.tolist()
    everyone = torch.ones(P, dtype=torch.bool, device=traits.device)
    topless = adult & ~female & rng.bernoulli(0.18, P)
    put("upper", ~topless)
    put("lower", ~style("upper", "dress") | rng.bernoulli(0.12, P))
    lower_half = _lower_halves(wardrobe.names, traits.device)[pieces[:, SLOT["upper"]].clamp_min(0)]  # [P]
    bib = style("upper", "under_bib")
    pieces[:, SLOT["lower"]] = torch.where(
        (lower_half >= 0) & ~topless & (bib | rng.bernoulli(0.3, P)), lower_half, pieces[:, SLOT["lower"]]
    )
    skimpy_below = style("upper", "dress") & style("lower", "skirt", "long", "swim")
    pieces[:, SLOT["lower"]] = torch.where(skimpy_below, -1, pieces[:, SLOT["lower"]])
    thin = _has_style(wardrobe.names, pieces[:, SLOT["upper"]], _THIN_TOPS)
    put("outer", thin & rng.bernoulli(0.4, P))
    put("shoes", ~rng.bernoulli(0.3, P))
    put("hair", ~(rng.bernoulli(0.1, P) & ~female & adult))
    put("brows", everyone)
    put("lashes", everyone)
    put("teeth", mouth_open)
    put("tongue", mouth_open)
    put("hat", rng.bernoulli(0.16, P))
    odd = style("hat", "veil") & (style("lower", *_BARE_STYLES, "shorts") | style("upper", *_BARE_STYLES))
    pieces[:, SLOT["hat"]] = torch.where(odd, -1, pieces[:, SLOT["hat"]])
    put("glasses", rng.bernoulli(0.24, P))
    put("accessory", rng.bernoulli(0.2, P))
    put("trinket", rng.bernoulli(0.25, P))
    pieces[:, SLOT["hair"]] = torch.where(style("hat", "veil"), -1, pieces[:, SLOT["hair"]])
    tucked = (rng.bernoulli(0.35, P) & style("upper", "top") & ~style("lower", "swim")) | style("lower", "bib")
    styled = torch.tensor([bool(name) for name in wardrobe.styles], device=traits.device)[pieces.clamp_min(0)]
    cloth = torch.tensor([name in _CLOTH_SLOTS for name in SLOTS], device=traits.device)
    fullness = torch.where(styled & cloth, rng.uniform(0.85, 1.35, P, len(SLOTS)), 1.0)
    direction = torch.nn.functional.normalize(rng.normal(0.0, 1.0, P, len(SLOTS), 5, 3), dim=-1)
    waves = direction * rng.log_uniform(25.0, 110.0, P, len(SLOTS), 5, 1)  # radians per meter
    height = rng.uniform(0.0, 0.0022, P, len(SLOTS), 1, 1)
    creases = torch.cat([waves, height.expand(P, len(SLOTS), 5, 1)], -1)  # [P, S, 5, 4]
    return Outfit(pieces, tucked, fullness, creases)


def _piece_weights(wardrobe: Wardrobe, rows: list[int], female: Tensor, adult: Tensor) -> Tensor:
    """Return the probability of each piece for each person, not normalized: [P, K]."""
    device = female.device
    suits = wardrobe.suits[rows]  # [K]
    base = torch.tensor([_STYLE_WEIGHT.get(wardrobe.styles[a], 1.0) for a in rows], device=device)
    bare = torch.tensor([wardrobe.styles[a] in _BARE_STYLES for a in rows], device=device)
    for_women = torch.where(suits == MEN, 0.3, 1.0)
    for_men = torch.where(suits == WOMEN, 0.0, 1.0)
    weights = base * torch.where(female[:, None], for_women, for_men) * (adult[:, None] | ~bare)
    # Where nothing suits, take anything that is not skimpy.
    return torch.where(weights.sum(1, keepdim=True) > 0, weights, torch.where(bare, 0.0, 1.0) + 1e-6)


def _lower_halves(names: tuple[str, ...], device: torch.device) -> Tensor:
    """Return the lower half of each upper half of an outfit, -1 for other pieces: [A]."""
    index = {name: i for i, name in enumerate(names)}
    return torch.tensor(
        [index.get(name.replace("/upper", "/lower"), -1) if "/upper" in name else -1 for name in names], device=device
    )


def _has_style(table: tuple[str, ...], pieces: Tensor, names: tuple[str, ...]) -> Tensor:
    """Return whether the entry of `table` for each piece [P] is one of `names`; False where nothing is worn."""
    mask = torch.tensor([entry in names for entry in table], device=pieces.device)
    return mask[pieces.clamp_min(0)] & (pieces >= 0)


@dataclass(frozen=True)
class DressedBodies:
    """Body and clothes at rest, in the common layout."""

    vertices: Tensor  # [P, V, 3]
    ids: Tensor  # [P, V, 3] int64: body vertices that a vertex is bound to
    weights: Tensor  # [P, V, 3] for posing: not negative, rows sum to 1
    present: Tensor  # [P, V] bool
    faces: Tensor  # [P, F, 3] int64
    face_uv: Tensor  # [P, F, 3, 2]
    face_class: Tensor  # [P, F] uint8
    face_material: Tensor  # [P, F] int64


def dress(pack: AssetPack, outfit: Outfit, body_vertices: Tensor) -> DressedBodies:
    """Place the chosen pieces on bodies at rest [P, R, 3], layer them, and drop hidden faces."""
    wardrobe = pack.wardrobe
    scale = _offset_scale(outfit, wardrobe, body_vertices)  # [P, S, 3]
    limit, hidden = _layers(outfit, wardrobe)
    slots = [_place_slot(pack, outfit, slot, body_vertices, scale, limit, hidden) for slot in range(len(SLOTS))]
    vertices, ids, weights, present, buried = (
        torch.cat(column, 1) for column in zip(*slots, strict=True)
    )  # [P, V, ...]
    sizes = [len(slot[0][0]) for slot in slots]
    buried |= _cut_at_hem(vertices, present, sizes)

    rows, material, faces = [], [], []
    for slot, start in enumerate(torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)):
        row, worn = _rows_of_slot(
            outfit.pieces[:, slot], wardrobe.slot == slot, wardrobe.face_start, wardrobe.face_count
        )
        rows.append(row)  # [P, Fs]
        faces.append(torch.where(worn[..., None], wardrobe.faces[row] + int(start), -1))  # [P, Fs, 3]
        material.append(wardrobe.face_part[row] + slot * MATERIALS_PER_SLOT)
    face_rows, corners, face_material = torch.cat(rows, 1), torch.cat(faces, 1), torch.cat(material, 1)
    gone = torch.unflatten(_rows(buried, corners.clamp_min(0).flatten(1)), 1, (-1, 3))  # [P, F, 3]
    # Hair ends at the rim of a hat; other pieces continue under the next layer to the end of their triangles.
    hair = face_material // MATERIALS_PER_SLOT == SLOT["hair"]
    visible = (corners[..., 0] >= 0) & ~torch.where(hair, gone.any(-1), gone.all(-1))
    # Visible faces come first, so that the batch is only as long as its largest person needs.
    order = visible.byte().argsort(dim=1, descending=True, stable=True)[:, : int(visible.sum(1).max())]  # [P, F]
    visible, face_rows = visible.gather(1, order), face_rows.gather(1, order)
    return DressedBodies(
        vertices=vertices, ids=ids, weights=torch.nn.functional.normalize(weights.clamp_min(0), p=1.0, dim=-1),
        present=present, faces=_rows(corners, order).masked_fill(~visible[..., None], 0),
        face_uv=wardrobe.face_uv[face_rows], face_class=wardrobe.face_class[face_rows].masked_fill(~visible, 0),
        face_material=face_material.gather(1, order),
    )  # fmt: skip


def _place_slot(
    pack: AssetPack, outfit: Outfit, slot: int, body_vertices: Tensor, scale: Tensor, limit: dict[int, Tensor],
    hidden: dict[int, Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return vertices [P, n, 3] of one slot at rest, their binding, whether they exist and whether they are hidden."""
    wardrobe = pack.wardrobe
    rows, worn = _rows_of_slot(
        outfit.pieces[:, slot], wardrobe.slot == slot, wardrobe.vertex_start, wardrobe.vertex_count
    )
    ids, weights, anchor = wardrobe.vertex_ids[rows], wardrobe.vertex_weights[rows], wardrobe.vertex_anchor[rows]
    vertices = wardrobe.vertex_offsets[rows] * scale[:, slot, None]  # [P, n, 3]
    for k in range(3):
        vertices += _rows(body_vertices, ids[..., k]) * weights[..., k, None]
    if SLOTS[slot] in _CLOTH_SLOTS:
        wave = outfit.creases[:, slot]  # [P, 5, 4]
        height = ((vertices @ wave[..., :3].mT).sin() * wave[:, None, :, 3]).sum(-1)  # [P, n]
        vertices += pack.body.normals[anchor] * height[..., None]
    if slot in limit:
        normals = pack.body.normals[anchor]  # [P, n, 3]
        outside = ((vertices - _rows(body_vertices, anchor)) * normals).sum(-1) - limit[slot].gather(
            1, anchor
        )  # [P, n]
        vertices -= normals * outside.clamp_min(0)[..., None]
    buried = hidden[slot].gather(1, anchor) if slot in hidden else torch.zeros_like(worn)
    return vertices, ids, weights, worn, buried & worn


def _rows_of_slot(pieces: Tensor, in_slot: Tensor, start: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the wardrobe's vertices or faces for the pieces [P] of a slot, padded: rows [P, n], presence [P, n]."""
    longest = int(count[in_slot].max()) if bool(in_slot.any()) else 0
    position = torch.arange(longest, device=pieces.device)
    piece = pieces.clamp_min(0)
    worn = (position < count[piece][:, None]) & (pieces >= 0)[:, None]  # [P, n]
    return torch.where(worn, start[piece][:, None] + position, 0), worn


def _offset_scale(outfit: Outfit, wardrobe: Wardrobe, body_vertices: Tensor) -> Tensor:
    """Return how much the offsets of each piece grow on this body, along x, y, z: [P, S, 3]."""
    piece = outfit.pieces.clamp_min(0)
    ends, base = wardrobe.scale_ids[piece], wardrobe.scale_base[piece]  # [P, S, 3, 2], [P, S, 3]
    points = torch.unflatten(_rows(body_vertices, ends.flatten(1)), 1, ends.shape[1:])  # [P, S, 3, 2, 3]
    span = (points[..., 0, :] - points[..., 1, :]).abs().diagonal(dim1=-2, dim2=-1)  # [P, S, 3]
    return torch.where(base > 0, span / base.clamp_min(1e-6), 1.0) * outfit.fullness[..., None]


def _layers(outfit: Outfit, wardrobe: Wardrobe) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Return the largest distance (m) from the body beneath outer layers, and what is hidden: [P, R] by slot."""

    def beneath(table: Tensor, slot: str) -> Tensor:
        worn = outfit.pieces[:, SLOT[slot]]
        return table[worn.clamp_min(0)] & (worn >= 0)[:, None]  # [P, R]

    lower, upper, outer, shoes, hat, extra = (
        beneath(wardrobe.covers, slot) for slot in ("lower", "upper", "outer", "shoes", "hat", "accessory")
    )
    deep = {slot: beneath(wardrobe.hides, slot) for slot in ("lower", "upper", "outer", "shoes")}
    tucked = outfit.tucked[:, None]
    inf = torch.inf
    limit = {
        SLOT["body"]: torch.where(lower | upper | outer | shoes | hat, -0.004, inf),
        SLOT["lower"]: torch.where((upper & ~tucked) | outer, 0.0015, inf),
        SLOT["upper"]: torch.where(
            lower & tucked, 0.0015, torch.where(outer | hat, 0.007, torch.where(extra, 0.014, inf))
        ),
        SLOT["outer"]: torch.where(hat, 0.007, torch.where(extra, 0.02, inf)),
    }
    hidden = {
        SLOT["body"]: deep["lower"] | deep["upper"] | deep["outer"] | deep["shoes"],
        SLOT["lower"]: (deep["upper"] & ~tucked) | deep["outer"],
        SLOT["upper"]: (deep["lower"] & tucked) | deep["outer"],
        SLOT["hair"]: hat,
    }
    return limit, hidden


def _cut_at_hem(vertices: Tensor, present: Tensor, sizes: list[int]) -> Tensor:
    """Move shoes and socks that reach above the hem of the trousers down to it, in place; return which: [P, V] bool."""
    out = torch.zeros_like(present)
    parts = torch.split(vertices, sizes, 1)
    lower, shoes = parts[SLOT["lower"]], parts[SLOT["shoes"]]
    if lower.shape[1] and shoes.shape[1]:
        worn = torch.split(present, sizes, 1)[SLOT["lower"]]
        hem = torch.where(worn, lower[..., 2], torch.inf).amin(1, keepdim=True) + 0.006  # [P, 1]
        torch.split(out, sizes, 1)[SLOT["shoes"]].copy_(shoes[..., 2] > hem)
        shoes[..., 2] = torch.minimum(shoes[..., 2], hem)
    return out


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Select rows for each person: table [P, R, ...], index [P, n] -> [P, n, ...]."""
    person = torch.arange(len(table), device=table.device)[:, None]
    return table[person, index]
