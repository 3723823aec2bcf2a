import itertools
import json

import numpy as np

from tests.helpers.shared_folder import SHARED, needs_shared
from vitruvian.human import PART_COLORS, PART_FLIP_PERMUTATION, PART_INDEX, PART_NAMES, PARTS


def lab(rgb):
    linear = np.array(rgb) / 255
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in to_xyz @ linear / [0.95047, 1.0, 1.08883])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_there_are_29_parts_in_order():
    assert [part.id for part in PARTS] == list(range(29))
    assert PART_NAMES[0] == "Background"
    assert PART_NAMES[3] == "Face_Neck"
    assert PART_NAMES[28] == "Tongue"
    assert PART_INDEX["Torso"] == 22


def test_a_flip_swaps_exactly_the_eight_pairs():
    pairs = {(part.id, part.swap) for part in PARTS if part.id < part.swap}
    assert pairs == {(5, 14), (6, 15), (7, 16), (8, 17), (9, 18), (10, 19), (11, 20), (12, 21)}
    assert [PART_FLIP_PERMUTATION[i] for i in PART_FLIP_PERMUTATION] == list(range(29))


def test_mirror_images_are_of_one_kind():
    assert all(part.kind == PARTS[part.swap].kind for part in PARTS)


def test_sides_agree_with_names():
    for part in PARTS:
        expected = {"Left": "left", "Right": "right"}.get(part.name.split("_")[0], "middle")
        assert part.side == expected, part.name


def test_kinds():
    clothing = {part.name for part in PARTS if part.kind == "clothing"}
    assert clothing == {
        "Apparel", "Eyeglass", "Upper_Clothing", "Lower_Clothing", "Left_Shoe", "Right_Shoe", "Left_Sock", "Right_Sock",
    }  # fmt: skip
    assert PARTS[PART_INDEX["Torso"]].kind == "skin"
    assert [part.name for part in PARTS if part.kind == "background"] == ["Background"]


def test_colors_can_be_told_apart_and_the_left_is_lighter():
    colors = [lab(color) for color in PART_COLORS]
    closest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(colors, 2))
    assert closest > 15  # a difference of 2 is just visible side by side
    for part in PARTS:
        if part.side == "left":
            assert colors[part.id][0] > colors[part.swap][0] + 10, part.name


@needs_shared
def test_the_classes_are_the_published_ones():
    facts = json.loads((SHARED / "facts" / "parts29.json").read_text())
    assert facts["classes"] == list(PART_NAMES)
