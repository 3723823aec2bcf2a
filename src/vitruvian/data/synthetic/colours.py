"""What things are painted with: colours of cloth, skin and hair, patterns, and the texture each material gets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.people import (
    PATTERN_CHECKS,
    PATTERN_DOTS,
    PATTERN_GRADIENT,
    PATTERN_NOISE,
    PATTERN_NONE,
    PATTERN_STRIPES,
    Materials,
    Pack,
)
from vitruvian.data.synthetic.pictures import GREY_MEAN
from vitruvian.data.synthetic.pieces import PARTS, SLOT, SLOTS
from vitruvian.data.synthetic.texture import srgb_to_linear

# What most clothes are: black, white, greys, navy, denim, khaki, beige, brown, olive, burgundy. sRGB.
WARDROBE_COLOURS = (
    (0.10, 0.10, 0.11), (0.93, 0.93, 0.92), (0.35, 0.36, 0.38), (0.62, 0.63, 0.65), (0.13, 0.17, 0.30),
    (0.28, 0.38, 0.54), (0.62, 0.56, 0.42), (0.82, 0.77, 0.68), (0.36, 0.25, 0.18), (0.33, 0.35, 0.22),
    (0.42, 0.11, 0.16), (0.20, 0.22, 0.24), (0.85, 0.86, 0.90),
)  # fmt: skip
HAIR_COLOURS = (
    (0.09, 0.08, 0.08), (0.20, 0.14, 0.11), (0.33, 0.22, 0.15), (0.45, 0.32, 0.20), (0.70, 0.56, 0.36),
    (0.84, 0.73, 0.52), (0.48, 0.22, 0.12), (0.55, 0.54, 0.53), (0.85, 0.84, 0.82),
)  # fmt: skip
GLOSS = {
    "body": (0.12, 0.45), "hair": (0.25, 0.5), "brows": (0.1, 0.2), "lashes": (0.1, 0.2), "teeth": (0.6, 0.8),
    "tongue": (0.4, 0.7), "shoes": (0.1, 0.6), "glasses": (0.4, 0.8), "accessory": (0.05, 0.5), "hat": (0.0, 0.15),
}  # fmt: skip


@dataclass(frozen=True)
class Paint:
    """The choices for one material of P people."""

    texture: Tensor  # [P] int64
    tint: Tensor  # [P, 3]
    tint2: Tensor  # [P, 3]
    pattern: Tensor  # [P] int64
    pattern_param: Tensor  # [P, 4]


def cloth_colours(count: int, chance: Chance) -> Tensor:
    """Colours of clothes in linear light [P, 3]: mostly common ones, else any hue."""
    table = torch.tensor(WARDROBE_COLOURS, device=chance.device)
    common = (table[chance.integers(len(table), count)] + chance.normal(0.0, 0.04, count, 3)).clamp(0.03, 0.97)
    hue, strength, value = (chance.uniform(low, high, count, 1) for low, high in ((0, 1), (0.25, 0.95), (0.25, 0.95)))
    wheel = (hue + torch.tensor([0.0, 2 / 3, 1 / 3], device=chance.device)) % 1.0  # [P, 3]
    vivid = value * (1 - strength * (1 - ((wheel * 6 - 3).abs() - 1).clamp(0, 1)))
    return srgb_to_linear(torch.where(chance.flip(0.6, count, 1), common, vivid))


def hair_colours(age: Tensor, dark: Tensor, chance: Chance) -> Tensor:
    """Colours of hair in linear light [P, 3]; grey and white come with age [P], black with `dark` skin [P] bool."""
    count = len(age)
    table = torch.tensor(HAIR_COLOURS, device=chance.device)
    natural = chance.choice((0.22, 0.24, 0.19, 0.12, 0.1, 0.07, 0.06, 0.0, 0.0), count)
    natural = torch.where(dark & ~chance.flip(0.05, count), chance.choice((0.75, 0.25), count), natural)
    old = 7 + chance.integers(2, count)
    greying = chance.uniform(0.0, 1.0, count) < ((age - 0.75) * 3.2).clamp(0, 0.85)
    colour = table[torch.where(greying, old, natural)] * chance.uniform(0.85, 1.15, count, 1)
    dyed = chance.flip(0.03, count, 1)
    return torch.where(dyed, cloth_colours(count, chance), srgb_to_linear(colour.clamp(0.02, 0.95)))


def patterns(count: int, chance: Chance, *, share: float) -> tuple[Tensor, Tensor]:
    """Which pattern [P] and its parameters [P, 4] (see `Materials`); `share` of people get one."""
    kinds = torch.tensor(
        [PATTERN_STRIPES, PATTERN_CHECKS, PATTERN_DOTS, PATTERN_NOISE, PATTERN_GRADIENT], device=chance.device
    )
    kind = kinds[chance.choice((0.4, 0.25, 0.12, 0.15, 0.08), count)]
    kind = torch.where(chance.flip(share, count), kind, PATTERN_NONE)
    frequency = chance.log_uniform(7.0, 36.0, count)
    slanted = chance.uniform(0.0, torch.pi, count)
    angle = torch.where(chance.flip(0.15, count), slanted, torch.pi / 2 * chance.integers(2, count))
    width, phase = chance.uniform(0.2, 0.65, count), chance.uniform(0.0, 1.0, count)
    gradient = kind == PATTERN_GRADIENT
    frequency = torch.where(gradient, chance.uniform(8.0, 25.0, count), frequency)
    phase = torch.where(gradient, chance.uniform(-0.4, 0.5, count), phase)
    return kind, torch.stack([frequency, angle, width, phase], -1)  # [P], [P, 4]


def paint_cloth(pack: Pack, textures: Tensor, chance: Chance, *, patterned: float) -> Paint:
    """Paint a garment whose pictures are `textures` [P, K] (-1: none).

    It keeps its picture as it is, or takes the picture's grey twin, or plain cloth, in a colour of its own, which with
    the probability `patterned` is a pattern of two.
    """
    P, K = textures.shape
    available = (textures >= 0).sum(1)  # [P]
    pick = (chance.uniform(0.0, 1.0, P) * available).long().clamp(max=K - 1)
    own = textures.gather(1, pick[:, None])[:, 0]  # [P]
    grey = pack.grey_of[own.clamp_min(0)]
    keep = (own >= 0) & chance.flip(0.5, P)
    plain = torch.where(chance.flip(0.75, P), pack.fabrics[chance.integers(len(pack.fabrics), P)], -1)
    texture = torch.where(keep, own, torch.where((own >= 0) & (grey >= 0), grey, plain))
    kind, param = patterns(P, chance, share=patterned)
    # A grey picture already has folds and seams; a pattern on top is less often seen.
    kind = torch.where(keep | ((own >= 0) & chance.flip(0.4, P)), PATTERN_NONE, kind)
    level = torch.where(texture >= 0, 1 / GREY_MEAN, 1.0)[:, None]
    tint, tint2 = cloth_colours(P, chance) * level, cloth_colours(P, chance) * level
    tint = torch.where(keep[:, None], chance.uniform(0.75, 1.1, P, 1) * chance.uniform(0.92, 1.08, P, 3), tint)
    return Paint(texture, tint, tint2, kind, param)


def paint_skin(pack: Pack, traits: Tensor, chance: Chance) -> tuple[Paint, Paint, Paint, Tensor]:
    """Skin of the body, of the face, and eyes for traits [P, 4]: a picture of about that sex and age, any tone.

    The last result [P] bool says whose skin is dark.
    """
    P = len(traits)
    gender, age = traits[:, :1], ((traits[:, 1:2] - 0.6) / 0.4).clamp(0, 1)
    wrong_sex = (pack.skin_traits[:, 0] - gender).abs() > 0.5  # [P, S]
    far_age = (pack.skin_traits[:, 1] - age).abs()
    dark = chance.flip(0.35, P, 1)
    wrong_tone = (pack.skin_traits[:, 2] > 0.6) != dark
    weights = torch.exp(-4.0 * wrong_sex - 3.0 * far_age - 3.5 * wrong_tone)
    index = pick(weights, chance)
    light = pack.skin_traits[index, 2:] < 0.6
    tan = chance.uniform(0.0, 1.0, P, 1) ** 1.6 * light  # most light skins stay light, some become brown
    darkening = torch.tensor([0.45, 0.72, 0.95], device=traits.device)
    tint = torch.exp(-tan * darkening) * chance.uniform(0.85, 1.12, P, 1) * chance.uniform(0.95, 1.05, P, 3)
    paler = chance.uniform(0.8, 1.6, P, 1)
    tint = torch.where(light, tint, tint * paler ** torch.tensor([0.9, 1.1, 1.25], device=traits.device))
    body, face = (_plain(pack.skins[index, k], tint) for k in range(2))
    swarthy = ~light[:, 0] | (tan[:, 0] > 0.6)
    eye = pack.eyes[pick(torch.where(swarthy[:, None] & ~pack.eyes_brown, 0.02, 1.0), chance)]
    return body, face, _plain(eye, chance.uniform(0.8, 1.0, P, 1).expand(P, 3)), swarthy


def paint_hair(pack: Pack, textures: Tensor, colours: Tensor, chance: Chance) -> Paint:
    """Hair, brows: the picture's grey twin (or plain cloth's fine noise) in the colour of the hair."""
    own = textures[:, 0]
    twin = pack.grey_of[own.clamp_min(0)]
    texture = torch.where((own >= 0) & (twin >= 0), twin, torch.where(own >= 0, own, pack.fabrics[0]))
    return _plain(texture, colours / GREY_MEAN * chance.uniform(0.9, 1.1, len(own), 1))


def _plain(texture: Tensor, tint: Tensor) -> Paint:
    P = len(texture)
    param = torch.tensor([1.0, 0.0, 0.5, 0.0], device=tint.device).expand(P, 4)
    return Paint(texture, tint, tint, torch.zeros(P, dtype=torch.int64, device=tint.device), param)


def pick(weights: Tensor, chance: Chance) -> Tensor:
    """Draw one column for each row of weights [P, K], in proportion: [P] int64."""
    steps = weights.cumsum(1)
    mark = chance.uniform(0.0, 1.0, len(weights), 1) * steps[:, -1:]
    return (steps <= mark).sum(1).clamp(max=weights.shape[1] - 1)


def paint_people(pack: Pack, pieces: Tensor, traits: Tensor, chance: Chance) -> Materials:
    """Paint everything people wear: pieces [P, S] (-1: none), traits [P, 4] -> materials [P, S * PARTS]."""
    P = len(pieces)
    body, face, eyes, dark = paint_skin(pack, traits, chance)
    hair = hair_colours(traits[:, 1], dark, chance)
    paints: dict[tuple[str, int], Paint] = {("body", 0): body, ("body", 1): face, ("body", 2): eyes}
    for slot in SLOTS[1:]:
        textures = torch.where(pieces[:, SLOT[slot], None] >= 0, pack.wardrobe.textures[pieces[:, SLOT[slot]]], -1)
        if slot in ("hair", "brows"):
            shade = hair * (chance.uniform(0.45, 1.0, P, 1) if slot == "brows" else 1.0)
            paints[slot, 0] = paint_hair(pack, textures, shade, chance)
        elif slot in ("lashes", "teeth", "tongue"):
            bright = {"lashes": (0.15, 0.6), "teeth": (0.7, 1.0), "tongue": (0.7, 1.1)}[slot]
            colour = chance.uniform(*bright, P, 1).expand(P, 3)
            plain = torch.tensor(
                {"lashes": (0.1, 0.1, 0.1), "teeth": (0.8, 0.76, 0.68), "tongue": (0.5, 0.15, 0.14)}[slot]
            )
            colour = torch.where(textures[:, :1] >= 0, colour, colour * plain.to(colour.device))
            paints[slot, 0] = _plain(textures[:, 0], colour)
        else:
            for part in range(2):
                patterned = 0.35 if slot in ("upper", "lower", "outer") else 0.06
                paints[slot, part] = paint_cloth(pack, textures, chance, patterned=patterned)
    lens = chance.uniform(0.0, 0.06, P, 1).expand(P, 3) * chance.uniform(0.3, 1.0, P, 3)
    nothing = torch.full((P,), -1, dtype=torch.int64, device=pieces.device)
    frame = torch.where(chance.flip(0.6, P, 1), chance.uniform(0.0, 0.05, P, 1).expand(P, 3), cloth_colours(P, chance))
    paints["glasses", 0], paints["glasses", 1] = _plain(nothing, frame), _plain(nothing, lens)
    glasses = pieces[:, SLOT["glasses"]]
    window = torch.tensor([style == "glasses" for style in pack.wardrobe.styles], device=pieces.device)
    return _stacked(pack, paints, chance, clear=window[glasses.clamp_min(0)] & (glasses >= 0))


def _stacked(pack: Pack, paints: dict[tuple[str, int], Paint], chance: Chance, *, clear: Tensor) -> Materials:
    """Put the paints of all slots in order; `clear` [P] bool says whose glasses have lenses to look through."""
    order = [paints.get((slot, part), paints[slot, 0]) for slot in SLOTS for part in range(PARTS)]
    P = len(order[0].texture)
    gloss = torch.cat(
        [chance.uniform(*GLOSS.get(slot, (0.0, 0.2)), P, 1).expand(P, PARTS) for slot in SLOTS], 1
    ).clone()
    gloss[:, SLOT["body"] * PARTS + 2] = 0.95  # wet eyes
    gloss[:, SLOT["glasses"] * PARTS + 1] = 0.95
    gloss[:, SLOT["shoes"] * PARTS + 1] = 0.05
    leather = chance.flip(0.15, P)
    gloss[leather, SLOT["outer"] * PARTS] = 0.45
    texture = torch.stack([paint.texture for paint in order], 1)  # [P, M]
    return Materials(
        texture=texture,
        tint=torch.stack([paint.tint for paint in order], 1).float(),
        tint2=torch.stack([paint.tint2 for paint in order], 1).float(),
        pattern=torch.stack([paint.pattern for paint in order], 1),
        pattern_param=torch.stack([paint.pattern_param for paint in order], 1).float(),
        gloss=gloss,
        cutout=pack.cutout[texture.clamp_min(0)] & (texture >= 0),
        clear=clear[:, None] & (torch.arange(len(order), device=texture.device) == SLOT["glasses"] * PARTS + 1),
    )
