"""Masks, panoptic maps and boxes."""

from __future__ import annotations

import numpy as np
import pytest

from vitruvian.draw import class_colors, draw_boxes, draw_masks, draw_panoptic, enclosing_boxes
from vitruvian.draw.boxes import captions
from vitruvian.draw.text import Tag, _overlap, _place, tag_hw
from vitruvian.errors import InputError


def gray(height: int = 120, width: int = 160) -> np.ndarray:
    return np.full((height, width, 3), 100, dtype=np.uint8)


def block(top: int, left: int, bottom: int, right: int, size_hw: tuple[int, int] = (120, 160)) -> np.ndarray:
    mask = np.zeros(size_hw, dtype=bool)
    mask[top:bottom, left:right] = True
    return mask


def changed(image: np.ndarray) -> np.ndarray:
    return (image != 100).any(-1)


def test_masks_are_filled_with_their_colors() -> None:
    drawn = draw_masks(gray(), [block(10, 10, 50, 60)], opacity=0.5, outline=False)
    assert np.abs(drawn[30, 30].astype(int) - (class_colors(1)[0] + 100.0) / 2).max() <= 1
    assert changed(drawn).sum() == 40 * 50
    solid = draw_masks(gray(), block(10, 10, 50, 60)[None], opacity=1, outline=False)
    assert solid[30, 30].tolist() == class_colors(1)[0].tolist()


def test_small_masks_lie_on_top_of_large_ones_whatever_their_order() -> None:
    masks, (first, second) = [block(40, 40, 60, 60), block(0, 0, 120, 160)], class_colors(2).tolist()
    drawn = draw_masks(gray(), masks, opacity=1, outline=False)
    swapped = draw_masks(gray(), masks[::-1], opacity=1, outline=False)
    assert drawn[50, 50].tolist() == swapped[5, 5].tolist() == first
    assert drawn[5, 5].tolist() == swapped[50, 50].tolist() == second


def test_the_outline_stays_near_the_border() -> None:
    mask = block(30, 40, 80, 100)
    drawn = draw_masks(gray(), [mask], opacity=0.0)
    assert changed(drawn)[30, 60:80].all() or changed(drawn)[29, 60:80].all()
    assert not changed(drawn)[36:74, 46:94].any()
    assert not changed(drawn)[:24].any()
    assert not changed(draw_masks(gray(), [mask], opacity=0.0, outline=False)).any()


def test_a_generator_of_masks_and_empty_ones() -> None:
    masks = [block(0, 0, 0, 0), block(10, 10, 50, 60)]
    drawn = draw_masks(gray(), (mask for mask in masks), labels=["a", "b"], opacity=1, outline=False)
    assert drawn[48, 12].tolist() == class_colors(2)[1].tolist()
    for nothing in ([], np.zeros((0, 120, 160), bool), [block(0, 0, 0, 0)]):
        assert not changed(draw_masks(gray(), nothing)).any()


def test_labels_lie_on_their_masks() -> None:
    mask = block(20, 20, 100, 140)
    plain, named = draw_masks(gray(), [mask]), draw_masks(gray(), [mask], labels=["person"], scores=[0.9])
    rows, columns = np.nonzero((plain != named).any(-1))
    assert 20 < rows.min() < rows.max() < 100
    assert abs(columns.mean() - 80) < 6


def test_one_pixel() -> None:
    drawn = draw_masks(gray(1, 1), [np.ones((1, 1), bool)], opacity=1, outline=False)
    assert drawn[0, 0].tolist() == class_colors(1)[0].tolist()
    draw_boxes(gray(1, 1), np.array([[0, 0, 1, 1]]), scores=[0.9])
    assert draw_panoptic(gray(1, 1), np.array([[3]]), labels={3: "x"}, classes={3: 0}).shape == (1, 1, 3)


def test_tags_keep_clear_of_one_another() -> None:
    taken: list[tuple[int, int, int, int]] = []
    for _ in range(6):
        tag = Tag(text="person 0.98", color=(1, 2, 3), positions=((50, 50), (60, 50)))
        taken.append(_place(tag, (200, 300), taken, size=12))
    assert sum(_overlap(a, b) for i, a in enumerate(taken) for b in taken[:i]) == 0
    assert taken[0][:2] == (50, 50)


@pytest.mark.parametrize("position", [(-500.0, -500.0), (1e4, 1e4), (295.0, 3.0)])
def test_tags_stay_inside_the_image(position: tuple[float, float]) -> None:
    left, top, right, bottom = _place(Tag("person", (0, 0, 0), (position,)), (200, 300), [], size=12)
    assert left >= 0
    assert top >= 0
    assert right <= 300
    assert bottom <= 200
    assert (bottom - top, right - left) == tag_hw("person", 12)


def panoptic() -> np.ndarray:
    segments = np.zeros((120, 160), dtype=np.int32)
    segments[:60, :80], segments[:60, 80:], segments[60:, :80] = 7, 65536 * 9, 300
    return segments


CLASSES = {7: 0, 65536 * 9: 1, 300: 2}


def test_segments_have_colors_and_the_rest_stays() -> None:
    drawn = draw_panoptic(gray(), panoptic(), labels={}, classes=CLASSES, opacity=1, outline=False)
    colors = [drawn[30, 40].tolist(), drawn[30, 120].tolist(), drawn[90, 40].tolist()]
    assert sorted(colors) == sorted(class_colors(3).tolist())
    assert drawn[90, 120].tolist() == [100, 100, 100]
    alone = draw_panoptic(None, panoptic(), labels={}, classes=CLASSES, outline=False)
    assert alone[90, 120].tolist() == [0, 0, 0]
    assert alone[30, 40].tolist() == drawn[30, 40].tolist()


def test_segments_of_a_class_have_shades_of_one_color() -> None:
    classes = {7: 1, 65536 * 9: 1, 300: 0}
    drawn = draw_panoptic(gray(), panoptic(), labels={}, classes=classes, opacity=1, outline=False)
    first, second, other = (drawn[position].astype(int) for position in ((30, 40), (30, 120), (90, 40)))
    assert first.tolist() == class_colors(2)[1].tolist()
    assert other.tolist() == class_colors(1)[0].tolist()
    assert first.tolist() != second.tolist()
    assert (second >= first).all()  # lighter


def test_many_segments() -> None:
    segments = np.arange(20 * 20).reshape(20, 20).repeat(4, 0).repeat(4, 1) + 1
    drawn = draw_panoptic(None, segments, labels={}, classes={n: n for n in range(1, 401)}, outline=False)
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) == 400


def test_names_are_written_on_segments_and_borders_drawn() -> None:
    plain = draw_panoptic(gray(), panoptic(), labels={}, classes=CLASSES, outline=False)
    named = draw_panoptic(gray(), panoptic(), labels={300: "sea", 99: "absent"}, classes=CLASSES, outline=False)
    rows, columns = np.nonzero((plain != named).any(-1))
    assert abs(rows.mean() - 90) < 4
    assert abs(columns.mean() - 40) < 4
    lined = draw_panoptic(gray(), panoptic(), labels={}, classes=CLASSES)
    assert (lined != plain).any(-1)[59:61].mean() > 0.4


def test_specks_get_no_name() -> None:
    segments = np.ones((120, 160), dtype=np.int32)
    segments[40:44, 40:44] = 2
    plain, named = (draw_panoptic(gray(), segments, labels=names, classes={1: 0, 2: 1}) for names in ({}, {2: "speck"}))
    np.testing.assert_array_equal(named, plain)


def test_boxes_lie_on_whole_pixels() -> None:
    drawn = draw_boxes(gray(1000, 1400), np.array([[20, 30, 100, 90]]))
    line = (drawn == class_colors(1)[0]).all(-1)
    assert line.sum() == 2 * 3 * 80 + 2 * 3 * 54
    assert line[30:33, 20:100].all()
    assert line[87:90, 20:100].all()
    assert line[30:90, 20:23].all()
    assert line[30:90, 97:100].all()
    assert not changed(drawn)[35:85, 25:95].any()


def test_boxes_outside_thin_and_broken() -> None:
    color = class_colors(1)[0].tolist()
    drawn = draw_boxes(gray(), np.array([[-50, -50, 500, 500]]))
    assert (drawn[0] == color).all()
    assert (drawn[:, -1] == color).all()
    assert (drawn[1, 4:-4] == 70).all()  # the thin dark line inside
    assert draw_boxes(gray(), np.array([[50, 20, 50, 90]]))[40, 50].tolist() == color
    assert draw_boxes(gray(), np.array([[300, 20, 400, 90]])).shape == (120, 160, 3)
    assert not changed(draw_boxes(gray(), np.array([[np.nan, 20, 50, 90]]), scores=[1])).any()
    assert not changed(draw_boxes(gray(), np.zeros((0, 4)), ids=[])).any()


def test_tags_above_boxes_by_identity() -> None:
    one = draw_boxes(gray(), np.array([[20, 60, 100, 110]]), ids=[5], outline=False)
    assert changed(one)[:60, 20:60].any()
    assert not changed(one)[61:].any()
    both = draw_boxes(gray(), np.array([[1, 1, 2, 2], [20, 60, 100, 110]]), ids=[2, 5])
    assert both[109, 50].tolist() == class_colors(6)[5].tolist()


def test_enclosing_boxes() -> None:
    points = np.array([[[3, 4], [1, 9], [np.nan, 0]], [[np.nan, 1], [2, np.inf], [np.nan, np.nan]]])
    np.testing.assert_array_equal(enclosing_boxes(points), [[1, 4, 3, 9], [np.nan] * 4])


def test_captions() -> None:
    assert captions(2, labels=["cup", "pen"], scores=[0.987, 1], ids=[3, 4]) == ["#3 cup 0.99", "#4 pen 1.00"]
    assert captions(2) == ["", ""]


def test_nothing_that_comes_in_changes() -> None:
    image, mask, segments, boxes = gray(), block(10, 10, 50, 60), panoptic(), np.array([[1.0, 2, 30, 40]])
    for array in (image, mask, segments, boxes):
        array.flags.writeable = False
    assert changed(draw_masks(image, [mask], labels=["a"])).any()
    assert changed(draw_panoptic(image, segments, labels={7: "a"}, classes=CLASSES)).any()
    assert changed(draw_boxes(image, boxes, ids=[3])).any()
    assert (image == 100).all()
    np.testing.assert_array_equal(segments, panoptic())


@pytest.mark.parametrize("opacity", [-0.1, 1.5, float("nan")])
def test_an_opacity_outside_of_0_to_1_is_an_error(opacity: float) -> None:
    with pytest.raises(InputError, match="opacity"):
        draw_masks(gray(), [], opacity=opacity)
    with pytest.raises(InputError, match="opacity"):
        draw_panoptic(gray(), panoptic(), labels={}, classes=CLASSES, opacity=opacity)
