"""The garments of our own: what each is called, where it ends, how thick and how relaxed it is."""

from __future__ import annotations

import numpy as np

from vitruvian.data.synthetic.pieces import ANYONE, CLASS, MEN, WOMEN, Floats, Piece, join_pieces
from vitruvian.data.synthetic.shells import (
    HEAD_SPAN,
    Form,
    band,
    legs_field,
    neckline,
    scalp_field,
    shell,
    skirt,
    top_field,
)


def make_tops(form: Form) -> list[Piece]:
    """Shirts, sweaters, tank tops."""
    hip, waist = form.at["upperleg01.L"][2], form.at["spine04"][2]
    bust = form.at["spine01"][2]
    crew = neckline(form, front=-0.035, back=0.03)
    vee = neckline(form, front=-0.13, back=0.025, vee=1.6)
    scoop = neckline(form, front=-0.10, back=-0.02, narrow=0.25)
    roll = neckline(form, front=0.035, back=0.075)
    short, three_quarter, long = 0.62 * form.upper_arm, form.upper_arm + 0.08, form.whole_arm + 0.005

    def top(name: str, sleeve: float, hem: float, neck: Floats, thickness: float, smooth: int, **more: object) -> Piece:
        field = top_field(form, sleeve=sleeve, hem=hem, neck=neck)
        options = {"part_class": "Upper_Clothing", "style": "top", **more}
        return shell(form, name, "upper", field, thickness=thickness, smooth=smooth, **options)  # type: ignore[arg-type]

    return [
        top("tshirt_tight", short, hip + 0.02, crew, 0.005, 2),
        top("tshirt_loose", 0.8 * form.upper_arm, hip - 0.05, crew, 0.018, 16),
        top("tshirt_vee", short, hip, vee, 0.008, 4),
        top("longsleeve", long, hip, crew, 0.007, 3),
        top("sweater", long, hip - 0.02, crew, 0.02, 14),
        top("rollneck", long, hip + 0.01, roll, 0.009, 4),
        top("blouse", three_quarter, hip + 0.03, vee, 0.012, 8),
        top("tank", -0.03, hip + 0.03, scoop, 0.005, 2),
        top("tee_scoop", 0.45 * form.upper_arm, hip + 0.01, scoop, 0.01, 6),
        top("tee_wide", form.upper_arm, hip - 0.09, crew, 0.028, 24),
        top("polo", 0.7 * form.upper_arm, hip - 0.02, vee, 0.011, 7),
        top("muscle_top", -0.01, hip - 0.03, crew, 0.013, 9),
        top("singlet", -0.03, hip - 0.02, scoop, 0.008, 4),
        top("henley", three_quarter, hip - 0.03, scoop, 0.01, 5),
        top("raglan", 0.5 * (form.upper_arm + form.whole_arm), hip, crew, 0.014, 10),
        top("tunic", three_quarter, hip - 0.17, vee, 0.018, 14),
        top("crop_sweater", long, waist, crew, 0.018, 12, suits=WOMEN, style="crop"),
        top("vest_top", -0.035, waist + 0.02, scoop, 0.005, 2, suits=WOMEN, style="crop"),
        top("sports_bra", -0.035, bust - 0.12, scoop, 0.005, 3, suits=WOMEN, style="bra"),
    ]


def make_bottoms(form: Form) -> list[Piece]:
    """Trousers, shorts, underwear, skirts."""
    waist = form.at["spine05"][2] + 0.05
    hip, knee, ankle = (form.at[f"{bone}.L"][2] for bone in ("upperleg01", "lowerleg01", "foot"))
    crotch = hip - 0.075

    def legs(
        name: str, top: float, cuff: float, thickness: float, smooth: int, style: str, suits: int = ANYONE
    ) -> Piece:
        field = legs_field(form, waist=top, cuff=cuff)
        return shell(form, name, "lower", field, thickness=thickness, smooth=smooth, part_class="Lower_Clothing",
                     style=style, suits=suits)  # fmt: skip

    side = np.abs(form.vertices[:, 0])
    briefs = np.vstack(
        [legs_field(form, waist=hip + 0.07, cuff=crotch - 0.05), form.vertices[:, 2] - crotch - 0.75 * (side - 0.05)]
    )
    pieces = [
        legs("leggings", waist, ankle + 0.03, 0.004, 1, "tight"),
        legs("capri", waist, (knee + ankle) / 2, 0.006, 2, "tight"),
        legs("slacks", waist, ankle - 0.005, 0.016, 10, "long"),
        legs("joggers", waist - 0.02, ankle + 0.02, 0.022, 14, "long"),
        legs("shorts_short", waist, crotch - 0.06, 0.01, 5, "shorts"),
        legs("shorts_knee", waist, knee + 0.04, 0.017, 10, "shorts"),
        legs("bike_shorts", waist, (hip + 2 * knee) / 3, 0.004, 1, "shorts"),
        legs("shorts_mid", waist, (crotch + knee) / 2, 0.013, 7, "shorts"),
        legs("running_shorts", waist - 0.02, crotch - 0.035, 0.017, 10, "shorts"),
        legs("gym_shorts", waist - 0.01, (2 * crotch + knee) / 3, 0.015, 9, "shorts"),
        legs("board_shorts", waist - 0.03, knee - 0.03, 0.024, 16, "shorts"),
        legs("trousers_slim", waist, ankle + 0.02, 0.009, 4, "long"),
        legs("chinos", waist - 0.01, ankle + 0.05, 0.012, 7, "long"),
        legs("straight_trousers", waist, ankle, 0.013, 8, "long"),
        legs("wide_legs", waist + 0.02, ankle - 0.01, 0.03, 24, "long"),
        legs("culottes", waist + 0.01, knee - 0.13, 0.028, 20, "tight"),
        legs("trunks", hip + 0.08, crotch - 0.08, 0.008, 3, "swim", MEN),
        shell(form, "briefs", "lower", briefs, thickness=0.005, smooth=2, part_class="Lower_Clothing", style="swim"),
    ]
    for name, hem, flare in (("skirt_mini", hip - 0.16, 0.0), ("skirt_knee", knee - 0.02, 0.0),
                             ("skirt_midi", (knee + ankle) / 2, 0.06), ("skirt_long", ankle + 0.05, 0.0),
                             ("skirt_tennis", hip - 0.19, 0.07), ("skirt_circle", knee + 0.05, 0.12),
                             ("skirt_pencil", knee + 0.02, -0.01)):  # fmt: skip
        pieces.append(skirt(form, name, "lower", top=waist + 0.02, hem=hem, flare=flare, part_class="Lower_Clothing"))
    return pieces


def make_dresses(form: Form) -> list[Piece]:
    """Dresses: a top joined to a skirt; above the waist Upper_Clothing, below Lower_Clothing."""
    waist = form.at["spine05"][2] + 0.05
    knee, ankle, hip = (form.at[f"{bone}.L"][2] for bone in ("lowerleg01", "foot", "upperleg01"))
    necks = {
        "scoop": neckline(form, front=-0.10, back=-0.02, narrow=0.25),
        "crew": neckline(form, front=-0.04, back=0.03),
    }
    dresses = []
    for name, neck, sleeve, hem, flare in (
        ("dress_summer", "scoop", -0.03, knee + 0.06, 0.08),
        ("dress_short", "crew", 0.5 * form.upper_arm, hip - 0.25, 0.02),
        ("dress_long", "scoop", -0.03, ankle + 0.04, 0.05),
        ("dress_sleeves", "crew", form.whole_arm, knee - 0.08, 0.04),
        ("dress_tee", "crew", 0.7 * form.upper_arm, hip - 0.2, 0.0),
        ("dress_strap", "scoop", -0.03, hip - 0.17, 0.05),
        ("dress_swing", "crew", 0.35 * form.upper_arm, knee + 0.1, 0.11),
        ("sundress", "scoop", -0.03, knee + 0.16, 0.1),
    ):  # fmt: skip
        field = top_field(form, sleeve=sleeve, hem=waist - 0.01, neck=necks[neck])
        top = shell(form, name, "upper", field, thickness=0.007, smooth=4, part_class="Upper_Clothing", suits=WOMEN)
        bottom = skirt(
            form, name, "upper", top=waist + 0.03, hem=hem, flare=flare, part_class="Lower_Clothing", out=0.006
        )
        dresses.append(join_pieces(top, bottom, style="dress"))
    return dresses


def make_outers(form: Form) -> list[Piece]:
    """Coats, jackets and waistcoats, worn over a top and open in front."""
    x, y, z = form.vertices.T
    hip, knee = form.at["upperleg01.L"][2], form.at["lowerleg01.L"][2]
    waist = form.at["spine05"][2] + 0.05
    front = (y < form.at["spine03"][1] - 0.02) & (form.arm < 0.5)
    collar = neckline(form, front=-0.02, back=0.05)
    long = form.whole_arm + 0.01

    def body(name: str, sleeve: float, hem: float, gap: float, thickness: float, style: str) -> Piece:
        opening = np.where(front, np.abs(x) - gap * np.clip((z - hem + 0.1) / 0.5, 0.4, 1.0), 1.0)
        field = np.vstack([top_field(form, sleeve=sleeve, hem=hem, neck=collar), opening])
        return shell(
            form, name, "outer", field, thickness=thickness, smooth=14, part_class="Upper_Clothing", style=style
        )

    pieces = [
        body("jacket_open", long, hip, 0.05, 0.03, "jacket"),
        body("jacket_closed", long, hip - 0.03, 0.004, 0.034, "jacket"),
        body("gilet", -0.02, hip, 0.03, 0.03, "jacket"),
    ]
    for name, hem, gap in (
        ("coat_knee", knee - 0.03, 0.02),
        ("coat_long", knee - 0.25, 0.006),
        ("coat_short", hip - 0.2, 0.03),
    ):
        top = body(name, long, waist - 0.01, gap, 0.032, "coat")
        tail = skirt(form, name, "outer", top=waist + 0.05, hem=hem, flare=0.05, part_class="Upper_Clothing", out=0.026,
                     gap=gap + 0.004)  # fmt: skip
        pieces.append(join_pieces(top, tail, style="coat", suits=ANYONE))
    return pieces


def make_small_things(form: Form) -> list[Piece]:
    """Socks without shoes, gloves, watches, belts, scarves, caps, headscarves and cropped hair."""
    x, y, z = form.vertices.T
    knee, ankle = form.at["lowerleg01.L"][2], form.at["foot.L"][2]
    side_class = {
        name: np.where(x > 0, CLASS[f"Left_{name}"], CLASS[f"Right_{name}"]).astype(np.float32)
        for name in ("Sock", "Shoe")
    }
    feet = (0.3 - form.arm) * 0.3
    socks = [
        shell(
            form,
            name,
            "shoes",
            np.stack([top - z, feet]),
            thickness=0.004,
            part_class=side_class["Sock"],
            style="socks",
        )
        for name, top in (("socks_ankle", ankle + 0.04), ("socks_calf", ankle + 0.18), ("socks_knee", knee - 0.06))
    ]
    slippers = shell(form, "slippers", "shoes", np.stack([ankle + 0.015 - z, feet]), thickness=0.011, smooth=6,
                     part_class=side_class["Shoe"], style="shoes")  # fmt: skip
    wrist = form.along_arm - form.whole_arm
    head_y, base = form.at["head"][1], form.at["neck01"]
    waist = form.at["spine05"][2] + 0.05
    scalp = scalp_field(form, front=0.062, back=-0.085)
    hat_line = scalp_field(form, front=0.045, back=-0.02)
    face = np.hypot(x / 0.060, (z - (form.eye_z - 0.035)) / 0.098) - 1.0
    face = np.where(y < head_y - 0.005, face * 0.08, 1.0)
    scarf_field = np.stack([z - (base[2] - 0.045 - 0.3 * np.minimum(y - base[1], 0)), base[2] + 0.035 - z, feet])
    veil = np.stack([face, z - (base[2] - 0.07), 0.05 - form.along_arm])

    def on_head(
        name: str, slot: str, field: Floats, *, thickness: float, smooth: int, style: str, suits: int = ANYONE
    ) -> Piece:
        part_class = "Hair" if slot == "hair" else "Apparel"
        return shell(form, name, slot, field, thickness=thickness, smooth=smooth, part_class=part_class, style=style,
                     suits=suits, span=HEAD_SPAN)  # fmt: skip

    return [
        *socks, slippers,
        shell(form, "gloves", "trinket", wrist + 0.03, thickness=0.004, smooth=1, part_class="Apparel", style="gloves"),
        shell(form, "watch", "trinket", np.vstack([band(wrist + 0.022, 0.011), x]), thickness=0.006,
              part_class="Apparel", style="watch"),
        shell(form, "wristband", "trinket", np.vstack([band(wrist + 0.045, 0.03), -x]), thickness=0.006,
              part_class="Apparel", style="watch"),
        shell(form, "belt", "trinket", np.vstack([band(z - waist + 0.015, 0.019), feet]),
              thickness=0.026, smooth=8, part_class="Apparel", style="belt"),
        shell(form, "scarf", "accessory", scarf_field, thickness=0.03, smooth=8, part_class="Apparel", style="scarf"),
        on_head("headscarf", "hat", veil, thickness=0.016, smooth=8, style="veil", suits=WOMEN),
        on_head("beanie", "hat", hat_line, thickness=0.016, smooth=6, style="hat"),
        on_head("headband", "hat", band(hat_line - 0.026, 0.028), thickness=0.009, smooth=2, style="band"),
        on_head("hair_crop", "hair", scalp, thickness=0.006, smooth=2, style="shorn"),
        on_head("hair_thick", "hair", scalp, thickness=0.016, smooth=5, style="shorn"),
    ]  # fmt: skip
