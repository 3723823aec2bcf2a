"""Masks, panoptic maps and boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vitruvian.draw import class_colours, draw_boxes, draw_masks, draw_panoptic
from vitruvian.draw.boxes import captions
from vitruvian.draw.text import Tag, _overlap, _place, tag_hw
from vitruvian.errors import ImageError, InputError


def grey(height: int = 120, width: int = 160) -> np.ndarray:
    return np.full((height, width, 3), 100, dtype=np.uint8)


def block(top: int, left: int, bottom: int, right: int, size_hw: tuple[int, int] = (120, 160)) -> np.ndarray:
    mask = np.zeros(size_hw, dtype=bool)
    mask[top:bottom, left:right] = True
    return mask


def changed(image: np.ndarray) -> np.ndarray:
    return (image != 100).any(-1)


def test_masks_are_filled_with_their_colours() -> None:
    drawn = draw_masks(grey(), [block(10, 10, 50, 60)], colours=[[200, 0, 50]], opacity=0.5, outline=False)
    assert np.abs(drawn[30, 30].astype(int) - [150, 50, 75]).max() <= 1
    assert changed(drawn).sum() == 40 * 50
    solid = draw_masks(grey(), block(10, 10, 50, 60)[None], opacity=1, outline=False)
    assert solid[30, 30].tolist() == class_colours(1)[0].tolist()


def test_small_masks_lie_on_top_of_large_ones_whatever_their_order() -> None:
    masks, colours = [block(40, 40, 60, 60), block(0, 0, 120, 160)], [[255, 0, 0], [0, 0, 255]]
    drawn = draw_masks(grey(), masks, colours=colours, opacity=1, outline=False)
    swapped = draw_masks(grey(), masks[::-1], colours=colours[::-1], opacity=1, outline=False)
    assert drawn[50, 50].tolist() == [255, 0, 0]
    assert drawn[5, 5].tolist() == [0, 0, 255]
    np.testing.assert_array_equal(drawn, swapped)


def test_the_outline_stays_near_the_border() -> None:
    mask = block(30, 40, 80, 100)
    drawn = draw_masks(grey(), [mask], opacity=0.0)
    assert changed(drawn)[30, 60:80].all() or changed(drawn)[29, 60:80].all()
    assert not changed(drawn)[36:74, 46:94].any()
    assert not changed(drawn)[:24].any()
    assert not changed(draw_masks(grey(), [mask], opacity=0.0, outline=False)).any()


def test_identities_keep_their_colours() -> None:
    one = draw_masks(grey(), [block(10, 10, 100, 150)], ids=[5], opacity=1, outline=False)
    other = draw_masks(grey(), [block(0, 0, 5, 5), block(10, 10, 100, 150)], ids=[2, 5], opacity=1, outline=False)
    assert one[95, 20].tolist() == other[95, 20].tolist() == class_colours(6)[5].tolist()


def test_a_generator_of_masks_and_empty_ones() -> None:
    masks = [block(0, 0, 0, 0), block(10, 10, 50, 60)]
    colours = [[255, 0, 0], [0, 255, 0]]
    drawn = draw_masks(grey(), (mask for mask in masks), colours=colours, labels=["a", "b"], opacity=1, outline=False)
    assert drawn[48, 12].tolist() == [0, 255, 0]
    for nothing in ([], np.zeros((0, 120, 160), bool), [block(0, 0, 0, 0)]):
        assert not changed(draw_masks(grey(), nothing)).any()


def test_labels_lie_on_their_masks() -> None:
    mask = block(20, 20, 100, 140)
    plain, named = draw_masks(grey(), [mask]), draw_masks(grey(), [mask], labels=["person"], scores=[0.9])
    rows, columns = np.nonzero((plain != named).any(-1))
    assert 20 < rows.min() < rows.max() < 100
    assert abs(columns.mean() - 80) < 6


def test_one_pixel() -> None:
    drawn = draw_masks(grey(1, 1), [np.ones((1, 1))], opacity=1, outline=False)
    assert drawn[0, 0].tolist() == class_colours(1)[0].tolist()
    draw_boxes(grey(1, 1), [[0, 0, 1, 1]], labels=["a long name"])
    assert draw_panoptic(grey(1, 1), np.array([[3]]), labels={3: "x"}).shape == (1, 1, 3)


def test_tags_keep_clear_of_one_another() -> None:
    taken: list[tuple[int, int, int, int]] = []
    for _ in range(6):
        tag = Tag(text="person 0.98", colour=(1, 2, 3), positions=((50, 50), (60, 50)))
        taken.append(_place(tag, (200, 300), taken, size=12))
    assert sum(_overlap(a, b) for i, a in enumerate(taken) for b in taken[:i]) == 0
    assert taken[0][:2] == (50, 50)


@pytest.mark.parametrize("place", [(-500.0, -500.0), (1e4, 1e4), (295.0, 3.0)])
def test_tags_stay_inside_the_image(place: tuple[float, float]) -> None:
    left, top, right, bottom = _place(Tag("person", (0, 0, 0), (place,)), (200, 300), [], size=12)
    assert left >= 0
    assert top >= 0
    assert right <= 300
    assert bottom <= 200
    assert (bottom - top, right - left) == tag_hw("person", 12)


def panoptic() -> np.ndarray:
    segments = np.zeros((120, 160), dtype=np.int32)
    segments[:60, :80], segments[:60, 80:], segments[60:, :80] = 7, 65536 * 9, 300
    return segments


def test_segments_have_colours_and_the_rest_stays() -> None:
    drawn = draw_panoptic(grey(), panoptic(), opacity=1, outline=False)
    colours = [drawn[30, 40].tolist(), drawn[30, 120].tolist(), drawn[90, 40].tolist()]
    assert sorted(colours) == sorted(class_colours(3).tolist())
    assert drawn[90, 120].tolist() == [100, 100, 100]
    alone = draw_panoptic(None, panoptic(), outline=False)
    assert alone[90, 120].tolist() == [0, 0, 0]
    assert alone[30, 40].tolist() == drawn[30, 40].tolist()


def test_segments_of_a_class_have_shades_of_one_colour() -> None:
    drawn = draw_panoptic(grey(), panoptic(), classes={7: 1, 65536 * 9: 1, 300: 0}, opacity=1, outline=False)
    first, second, other = (drawn[place].astype(int) for place in ((30, 40), (30, 120), (90, 40)))
    assert first.tolist() == class_colours(2)[1].tolist()
    assert other.tolist() == class_colours(1)[0].tolist()
    assert first.tolist() != second.tolist()
    assert (second >= first).all()  # lighter


@pytest.mark.parametrize("numbers", [(7, 2**30), (-5, 3)])
def test_any_numbers_will_do(numbers: tuple[int, int]) -> None:
    segments = np.where(block(0, 0, 120, 80), *numbers)
    drawn = draw_panoptic(grey(), segments, opacity=1, outline=False, background=None)
    assert drawn[60, 40].tolist() != drawn[60, 120].tolist()


def test_many_segments() -> None:
    segments = np.arange(20 * 20).reshape(20, 20).repeat(4, 0).repeat(4, 1) + 1
    drawn = draw_panoptic(None, segments, outline=False)
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) == 400


def test_names_are_written_on_segments_and_borders_drawn() -> None:
    plain = draw_panoptic(grey(), panoptic(), outline=False)
    named = draw_panoptic(grey(), panoptic(), labels={300: "sea", 99: "absent"}, outline=False)
    rows, columns = np.nonzero((plain != named).any(-1))
    assert abs(rows.mean() - 90) < 4
    assert abs(columns.mean() - 40) < 4
    lined = draw_panoptic(grey(), panoptic())
    assert (lined != plain).any(-1)[59:61].mean() > 0.4


def test_specks_get_no_name() -> None:
    segments = np.ones((120, 160), dtype=np.int32)
    segments[40:44, 40:44] = 2
    plain = draw_panoptic(grey(), segments)
    np.testing.assert_array_equal(draw_panoptic(grey(), segments, labels={2: "speck"}), plain)


def test_boxes_lie_on_whole_pixels() -> None:
    drawn = draw_boxes(grey(), [[20, 30, 100, 90]], colours=[[255, 0, 0]], line_width=3)
    red = (drawn == [255, 0, 0]).all(-1)
    assert red.sum() == 2 * 3 * 80 + 2 * 3 * 54
    assert red[30:33, 20:100].all()
    assert red[87:90, 20:100].all()
    assert red[30:90, 20:23].all()
    assert red[30:90, 97:100].all()
    assert not changed(drawn)[35:85, 25:95].any()


def test_boxes_outside_thin_and_broken() -> None:
    drawn = draw_boxes(grey(), [[-50, -50, 500, 500]], colours=[[255, 0, 0]], line_width=2)
    assert (drawn[0] == [255, 0, 0]).all()
    assert (drawn[:, -1] == [255, 0, 0]).all()
    assert (drawn[2, 4:-4] == 70).all()  # the dark hair line inside
    assert draw_boxes(grey(), [[50, 20, 50, 90]], colours=[[255, 0, 0]])[40, 50].tolist() == [255, 0, 0]
    assert draw_boxes(grey(), [[300, 20, 400, 90]]).shape == (120, 160, 3)
    assert not changed(draw_boxes(grey(), [[np.nan, 20, 50, 90]], labels=["x"])).any()
    assert not changed(draw_boxes(grey(), np.zeros((0, 4)), labels=[])).any()


def test_tags_above_boxes() -> None:
    drawn = changed(draw_boxes(grey(), [[20, 60, 100, 110]], labels=["cup"], outline=False))
    assert drawn[:60, 20:60].any()
    assert not drawn[61:].any()


def test_captions() -> None:
    assert captions(2, labels=["cup", "pen"], scores=[0.987, 1], ids=[3, 4]) == ["#3 cup 0.99", "#4 pen 1.00"]
    assert captions(2) == ["", ""]


def test_nothing_that_comes_in_changes() -> None:
    image, mask, segments, boxes = grey(), block(10, 10, 50, 60), panoptic(), np.array([[1.0, 2, 30, 40]])
    for array in (image, mask, segments, boxes):
        array.flags.writeable = False
    assert changed(draw_masks(image, [mask], labels=["a"])).any()
    assert changed(draw_panoptic(image, segments, labels={7: "a"})).any()
    assert changed(draw_boxes(image, boxes, labels=["a"])).any()
    assert (image == 100).all()
    np.testing.assert_array_equal(segments, panoptic())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: draw_masks(grey(), [block(0, 0, 1, 1, (120, 161))]), "mask 0: expected the size of the image"),
        (lambda: draw_masks(grey(), block(0, 0, 1, 1)), "mask 0"),
        (
            lambda: draw_masks(grey(), [block(0, 0, 1, 1)], labels=["a", "b"]),
            "labels: expected one for each of 1 objects",
        ),
        (lambda: draw_masks(grey(), [block(0, 0, 1, 1)] * 2, colours=[[1, 2, 3]]), "colours"),
        (lambda: draw_masks(grey(), [], opacity=-1), "opacity"),
        (lambda: draw_boxes(grey(), [[1, 2, 3]]), "boxes_xyxy"),
        (lambda: draw_boxes(grey(), [[1, 2, 3, 4]], scores=[1, 2]), "scores"),
        (lambda: draw_boxes(grey(), [[1, 2, 3, 4]], line_width=-1), "line_width"),
        (lambda: draw_panoptic(grey(), panoptic() * 1.0), "segmentation: expected whole numbers"),
        (lambda: draw_panoptic(grey(), panoptic(), classes={7: 1}), r"classes: .*\[300, 589824\]"),
        (lambda: draw_panoptic(grey(), panoptic(), classes={7: -1, 300: 1, 589824: 2}), "negative"),
    ],
)
def test_bad_arguments_are_named(call: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()


@pytest.mark.parametrize(
    "call",
    [lambda p: draw_masks(p, []), lambda p: draw_boxes(p, []), lambda p: draw_panoptic(p, panoptic())],
    ids=["masks", "boxes", "panoptic"],
)
def test_gray_pictures_are_refused(call: Any) -> None:
    with pytest.raises(ImageError, match="gray"):
        call(grey()[..., 0])
