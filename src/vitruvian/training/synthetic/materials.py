"""Materials of people: textures, tints and patterns of skin, hair and clothes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from vitruvian.images.srgb import srgb_to_linear
from vitruvian.training.synthetic.asset_pack import MATERIALS_PER_SLOT, SLOT, SLOTS, AssetPack
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.synthetic.textures import GRAY_MEAN
from vitruvian.training.tensor_batch import TensorBatch

# Common colors of clothes: black, white, grays, navy, denim, khaki, beige, brown, olive, burgundy. sRGB.
_CLOTH_COLORS = (
    (0.10, 0.10, 0.11), (0.93, 0.93, 0.92), (0.35, 0.36, 0.38), (0.62, 0.63, 0.65), (0.13, 0.17, 0.30),
    (0.28, 0.38, 0.54), (0.62, 0.56, 0.42), (0.82, 0.77, 0.68), (0.36, 0.25, 0.18), (0.33, 0.35, 0.22),
    (0.42, 0.11, 0.16), (0.20, 0.22, 0.24), (0.85, 0.86, 0.90),
)  # fmt: skip
_HAIR_COLORS = (
    (0.09, 0.08, 0.08), (0.20, 0.14, 0.11), (0.33, 0.22, 0.15), (0.45, 0.32, 0.20), (0.70, 0.56, 0.36),
    (0.84, 0.73, 0.52), (0.48, 0.22, 0.12), (0.55, 0.54, 0.53), (0.85, 0.84, 0.82),
)  # fmt: skip
_GLOSS = {
    "body": (0.12, 0.45), "hair": (0.25, 0.5), "brows": (0.1, 0.2), "lashes": (0.1, 0.2), "teeth": (0.6, 0.8),
    "tongue": (0.4, 0.7), "shoes": (0.1, 0.6), "glasses": (0.4, 0.8), "accessory": (0.05, 0.5), "hat": (0.0, 0.15),
}  # fmt: skip
# Range of brightness, and color where there is no texture.
_MOUTH_AND_LASHES = {
    "lashes": ((0.15, 0.6), (0.1, 0.1, 0.1)), "teeth": ((0.7, 1.0), (0.8, 0.76, 0.68)),
    "tongue": ((0.7, 1.1), (0.5, 0.15, 0.14)),
}  # fmt: skip


class Pattern(IntEnum):
    """Procedural patterns, which depend on rest positions (meters): they move with the cloth and have no seams."""

    NONE, STRIPES, CHECKS, DOTS, NOISE, GRADIENT = range(6)


@dataclass(frozen=True)
class Materials(TensorBatch):
    """M materials for each of P people; `PeopleBatch.face_material` selects one for a face.

    Color of a surface point = texture (white where `texture` is -1) x tint, in linear light. With a pattern, the tint
    is a mix of `tint` and `tint2` that depends on the rest position q = (x, y, z) of the point, in meters.
    With frequency, angle, width, phase = `pattern_param`, c = cos(angle), s = sin(angle), u = x c + z s, v = z c - x s:

    - STRIPES: tint2 where frac(frequency * u + phase) < width
    - CHECKS: tint2 weight is half of [frac(frequency * u + phase) < width] plus half of the same for v
    - DOTS: tint2 inside circles of radius width / 2 on the unit grid of (frequency * u + phase, frequency * v)
    - NOISE: smooth value noise of frequency * q + phase; tint2 weight rises around 1 - width
    - GRADIENT: tint2 weight is the sigmoid of frequency * (z - phase)
    """

    texture: Tensor  # [P, M] int64 into AssetPack.textures; -1: no texture
    tint: Tensor  # [P, M, 3] float32 >= 0, linear light
    tint2: Tensor  # [P, M, 3] float32 >= 0, second color of the pattern
    pattern: Tensor  # [P, M] int64, see `Pattern`
    pattern_param: Tensor  # [P, M, 4] float32: frequency (1/m), angle (rad), width (0..1), phase
    gloss: Tensor  # [P, M] float32 0 (cloth) .. 1 (wet eye): strength and sharpness of highlights
    cutout: Tensor  # [P, M] bool: the texture's alpha has holes (hair, brows, lashes); elsewhere alpha is ignored
    clear: Tensor  # [P, M] bool: transparent lenses, which set the part class alone


_Paint = dict[str, Tensor]  # the first five fields of `Materials` for one material of P people, without the axis M


def _plain(texture: Tensor, tint: Tensor) -> _Paint:
    """Return a paint without a pattern: texture [P], tint [P, 3]."""
    param = torch.tensor([1.0, 0.0, 0.5, 0.0], device=tint.device).expand(len(texture), 4)
    return _patterned(texture, tint, tint, torch.full_like(texture, Pattern.NONE), param)


def _patterned(texture: Tensor, tint: Tensor, tint2: Tensor, pattern: Tensor, param: Tensor) -> _Paint:
    return {"texture": texture, "tint": tint, "tint2": tint2, "pattern": pattern, "pattern_param": param}


def sample_materials(pack: AssetPack, pieces: Tensor, traits: Tensor, rng: Rng) -> Materials:
    """Draw the materials of everything people wear: pieces [P, S] (-1: none), traits [P, 4] -> [P, M]."""
    P = len(pieces)
    body, face, eyes, dark = _skin(pack, traits, rng)
    hair = _hair_colors(traits[:, 1], dark, rng)
    paints = {("body", 0): body, ("body", 1): face, ("body", 2): eyes}
    for slot in SLOTS[1:]:
        textures = torch.where(pieces[:, SLOT[slot], None] >= 0, pack.wardrobe.textures[pieces[:, SLOT[slot]]], -1)
        if slot in ("hair", "brows"):
            shade = hair * (rng.uniform(0.45, 1.0, P, 1) if slot == "brows" else 1.0)
            paints[slot, 0] = _hair(pack, textures[:, 0], shade, rng)
        elif slot in _MOUTH_AND_LASHES:
            brightness, plain = _MOUTH_AND_LASHES[slot]
            color = rng.uniform(*brightness, P, 1).expand(P, 3)
            untextured = color * torch.tensor(plain, device=color.device)
            paints[slot, 0] = _plain(textures[:, 0], torch.where(textures[:, :1] >= 0, color, untextured))
        else:
            for part in range(2):
                patterned = 0.35 if slot in ("upper", "lower", "outer") else 0.06
                paints[slot, part] = _cloth(pack, textures, rng, patterned=patterned)
    lens = rng.uniform(0.0, 0.06, P, 1).expand(P, 3) * rng.uniform(0.3, 1.0, P, 3)
    none = torch.full((P,), -1, dtype=torch.int64, device=pieces.device)
    frame = torch.where(rng.bernoulli(0.6, P, 1), rng.uniform(0.0, 0.05, P, 1).expand(P, 3), _cloth_colors(P, rng))
    paints["glasses", 0], paints["glasses", 1] = _plain(none, frame), _plain(none, lens)

    gloss = torch.cat(
        [rng.uniform(*_GLOSS.get(slot, (0.0, 0.2)), P, 1).expand(P, MATERIALS_PER_SLOT) for slot in SLOTS], 1
    ).clone()
    lens_index = SLOT["glasses"] * MATERIALS_PER_SLOT + 1
    gloss[:, [SLOT["body"] * MATERIALS_PER_SLOT + 2, lens_index]] = 0.95  # wet eyes and glass
    gloss[:, SLOT["shoes"] * MATERIALS_PER_SLOT + 1] = 0.05
    gloss[rng.bernoulli(0.15, P), SLOT["outer"] * MATERIALS_PER_SLOT] = 0.45  # leather
    order = [paints.get((slot, part), paints[slot, 0]) for slot in SLOTS for part in range(MATERIALS_PER_SLOT)]
    stacked = {name: torch.stack([paint[name] for paint in order], 1) for name in order[0]}
    texture = stacked["texture"]  # [P, M]
    glasses = pieces[:, SLOT["glasses"]]
    transparent = torch.tensor([style == "glasses" for style in pack.wardrobe.styles], device=pieces.device)
    clear = transparent[glasses.clamp_min(0)] & (glasses >= 0)  # [P]
    return Materials(
        **stacked,
        gloss=gloss,
        cutout=pack.cutout[texture.clamp_min(0)] & (texture >= 0),
        clear=clear[:, None] & (torch.arange(len(order), device=texture.device) == lens_index),
    )


def _cloth_colors(count: int, rng: Rng) -> Tensor:
    """Draw colors of clothes in linear light [P, 3]: mostly common ones, else any hue."""
    table = torch.tensor(_CLOTH_COLORS, device=rng.device)
    common = (table[rng.integers(len(table), count)] + rng.normal(0.0, 0.04, count, 3)).clamp(0.03, 0.97)
    hue, saturation, value = (rng.uniform(low, high, count, 1) for low, high in ((0, 1), (0.25, 0.95), (0.25, 0.95)))
    wheel = (hue + torch.tensor([0.0, 2 / 3, 1 / 3], device=rng.device)) % 1.0  # [P, 3]
    vivid = value * (1 - saturation * (1 - ((wheel * 6 - 3).abs() - 1).clamp(0, 1)))
    return srgb_to_linear(torch.where(rng.bernoulli(0.6, count, 1), common, vivid))


def _hair_colors(age: Tensor, dark: Tensor, rng: Rng) -> Tensor:
    """Draw colors of hair in linear light [P, 3]: gray with age [P], black with `dark` skin [P] bool."""
    count = len(age)
    table = torch.tensor(_HAIR_COLORS, device=rng.device)
    natural = rng.categorical((0.22, 0.24, 0.19, 0.12, 0.1, 0.07, 0.06, 0.0, 0.0), count)
    natural = torch.where(dark & ~rng.bernoulli(0.05, count), rng.categorical((0.75, 0.25), count), natural)
    old = 7 + rng.integers(2, count)
    graying = rng.uniform(0.0, 1.0, count) < ((age - 0.75) * 3.2).clamp(0, 0.85)
    color = table[torch.where(graying, old, natural)] * rng.uniform(0.85, 1.15, count, 1)
    dyed = rng.bernoulli(0.03, count, 1)
    return torch.where(dyed, _cloth_colors(count, rng), srgb_to_linear(color.clamp(0.02, 0.95)))


def _patterns(count: int, rng: Rng, *, probability: float) -> tuple[Tensor, Tensor]:
    """Draw patterns [P] and their parameters [P, 4] (see `Materials`)."""
    kind = 1 + rng.categorical((0.4, 0.25, 0.12, 0.15, 0.08), count)  # in the order of `Pattern`
    kind = torch.where(rng.bernoulli(probability, count), kind, Pattern.NONE)
    frequency = rng.log_uniform(7.0, 36.0, count)
    slanted = rng.uniform(0.0, torch.pi, count)
    angle = torch.where(rng.bernoulli(0.15, count), slanted, torch.pi / 2 * rng.integers(2, count))
    width, phase = rng.uniform(0.2, 0.65, count), rng.uniform(0.0, 1.0, count)
    gradient = kind == Pattern.GRADIENT
    frequency = torch.where(gradient, rng.uniform(8.0, 25.0, count), frequency)
    phase = torch.where(gradient, rng.uniform(-0.4, 0.5, count), phase)
    return kind, torch.stack([frequency, angle, width, phase], -1)  # [P], [P, 4]


def _cloth(pack: AssetPack, textures: Tensor, rng: Rng, *, patterned: float) -> _Paint:
    """Paint a garment with the alternative `textures` [P, K] (-1: none).

    It has its texture as it is, or the gray copy of it, or plain cloth, in a random color or pattern.
    """
    P, K = textures.shape
    available = (textures >= 0).sum(1)  # [P]
    index = (rng.uniform(0.0, 1.0, P) * available).long().clamp(max=K - 1)
    original = textures.gather(1, index[:, None])[:, 0]  # [P]
    gray = pack.gray_of[original.clamp_min(0)]
    keep = (original >= 0) & rng.bernoulli(0.5, P)
    plain = torch.where(rng.bernoulli(0.75, P), pack.fabrics[rng.integers(len(pack.fabrics), P)], -1)
    texture = torch.where(keep, original, torch.where((original >= 0) & (gray >= 0), gray, plain))
    kind, param = _patterns(P, rng, probability=patterned)
    # A gray texture has folds and seams already; patterns on top are less frequent.
    kind = torch.where(keep | ((original >= 0) & rng.bernoulli(0.4, P)), Pattern.NONE, kind)
    level = torch.where(texture >= 0, 1 / GRAY_MEAN, 1.0)[:, None]
    tint, tint2 = _cloth_colors(P, rng) * level, _cloth_colors(P, rng) * level
    tint = torch.where(keep[:, None], rng.uniform(0.75, 1.1, P, 1) * rng.uniform(0.92, 1.08, P, 3), tint)
    return _patterned(texture, tint, tint2, kind, param)


def _skin(pack: AssetPack, traits: Tensor, rng: Rng) -> tuple[_Paint, _Paint, _Paint, Tensor]:
    """Paint the skin of body and face, and eyes: textures of about the gender and age in traits [P, 4], of any tone.

    The last result [P] bool marks dark skin.
    """
    P = len(traits)
    gender, age = traits[:, :1], ((traits[:, 1:2] - 0.6) / 0.4).clamp(0, 1)
    wrong_gender = (pack.skin_traits[:, 0] - gender).abs() > 0.5  # [P, S]
    age_distance = (pack.skin_traits[:, 1] - age).abs()
    wrong_tone = (pack.skin_traits[:, 2] > 0.6) != rng.bernoulli(0.35, P, 1)
    index = rng.categorical_rows(torch.exp(-4.0 * wrong_gender - 3.0 * age_distance - 3.5 * wrong_tone))
    light = pack.skin_traits[index, 2:] < 0.6
    tan = rng.uniform(0.0, 1.0, P, 1) ** 1.6 * light  # most light skins stay light, some become brown
    darkening = torch.tensor([0.45, 0.72, 0.95], device=traits.device)
    tint = torch.exp(-tan * darkening) * rng.uniform(0.85, 1.12, P, 1) * rng.uniform(0.95, 1.05, P, 3)
    paler = rng.uniform(0.8, 1.6, P, 1) ** torch.tensor([0.9, 1.1, 1.25], device=traits.device)
    tint = torch.where(light, tint, tint * paler)
    body, face = (_plain(pack.skins[index, k], tint) for k in range(2))
    dark = ~light[:, 0] | (tan[:, 0] > 0.6)
    eye = pack.eyes[rng.categorical_rows(torch.where(dark[:, None] & ~pack.eyes_brown, 0.02, 1.0))]
    return body, face, _plain(eye, rng.uniform(0.8, 1.0, P, 1).expand(P, 3)), dark


def _hair(pack: AssetPack, original: Tensor, colors: Tensor, rng: Rng) -> _Paint:
    """Paint hair or brows: the gray copy of textures [P] (or the noise of plain cloth) in `colors` [P, 3]."""
    gray = pack.gray_of[original.clamp_min(0)]
    texture = torch.where((original >= 0) & (gray >= 0), gray, torch.where(original >= 0, original, pack.fabrics[0]))
    return _plain(texture, colors / GRAY_MEAN * rng.uniform(0.9, 1.1, len(original), 1))
