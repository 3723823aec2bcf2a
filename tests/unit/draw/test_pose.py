"""Poses: colors by side, sizes by person, points that are missing, and faces that stay faces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vitruvian.draw import class_colors, draw_pose
from vitruvian.draw.palettes import FINGERS, LEFT, RIGHT
from vitruvian.draw.pose import FACE_LINES, _layout_anatomy
from vitruvian.errors import InputError
from vitruvian.human import BODY_25, COCO_17, COCO_WHOLEBODY_133, KEYPOINT_INDEX, LAYOUTS, SAPIENS_308, Layout

GREY = 90


def image(height: int = 200, width: int = 160) -> np.ndarray:
    return np.full((height, width, 3), GREY, dtype=np.uint8)


def missing_points(layout: Layout, people: int = 1) -> tuple[np.ndarray, np.ndarray]:
    return np.full((people, len(layout.names), 2), np.nan), np.ones((people, len(layout.names)))


def pose(layout: Layout, **positions: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    points, scores = missing_points(layout)
    for name, position in positions.items():
        points[0, layout.names.index(name)] = position
    return points, scores


def changed(drawn: np.ndarray) -> np.ndarray:
    return (drawn != GREY).any(-1)


def test_bones_have_the_colors_of_their_sides() -> None:
    points, scores = pose(COCO_17, left_hip=(110, 40), left_knee=(110, 160), right_hip=(40, 40), right_knee=(40, 160))
    drawn = draw_pose(image(), points, scores, layout=COCO_17)
    assert drawn[100, 110].tolist() == list(LEFT)
    assert drawn[100, 40].tolist() == list(RIGHT)
    assert drawn[100, 75].tolist() == [GREY] * 3
    assert drawn[40, 75].tolist() not in ([GREY] * 3, list(LEFT), list(RIGHT))  # between the hips


def test_an_identity_is_written() -> None:
    points, scores = pose(COCO_17, left_hip=(80, 60), left_knee=(80, 160))
    named = draw_pose(image(), points, scores, ids=[7], layout=COCO_17)
    without = draw_pose(image(), points, scores, layout=COCO_17)
    assert changed(named)[:58].sum() > changed(without)[:58].sum()


def test_bones_need_both_ends_above_the_threshold() -> None:
    points, scores = pose(COCO_17, left_hip=(80, 40), left_knee=(80, 160))
    scores[0, COCO_17.names.index("left_knee")] = 0.29
    drawn = draw_pose(image(), points, scores, layout=COCO_17)
    assert changed(drawn)[40, 80]
    assert not changed(drawn)[60:].any()
    assert changed(draw_pose(image(), points, scores, layout=COCO_17, threshold=0.2))[100, 80]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_points_that_are_not_finite_are_left_out(bad: float) -> None:
    points, scores = pose(COCO_17, left_hip=(80, 40), left_knee=(80, 160))
    expected = draw_pose(image(), points, scores, layout=COCO_17)
    assert changed(expected)[100, 80]
    for position in ((bad, 190), (80, bad), (bad, bad)):
        points[0, COCO_17.names.index("left_ankle")] = position
        np.testing.assert_array_equal(draw_pose(image(), points, scores, layout=COCO_17), expected)
    scores[:] = np.nan
    assert not changed(draw_pose(image(), points, scores, layout=COCO_17)).any()


def test_points_outside_the_image() -> None:
    points, scores = pose(COCO_17, left_hip=(80, 100), left_knee=(80, 900), right_hip=(-5000, 1e12))
    drawn = draw_pose(image(), points, scores, layout=COCO_17)
    assert drawn[199, 80].tolist() == list(LEFT)


def test_lines_grow_with_the_person_and_stay_visible() -> None:
    def width(size: float, side: int = 1000) -> int:
        points, scores = pose(COCO_17, left_hip=(500, 500 - size / 2), left_knee=(500, 500 + size / 2))
        drawn = draw_pose(image(side, side), points, scores, layout=COCO_17)
        return int(changed(drawn)[500].sum())

    assert 3 <= width(20) < width(300) < width(900) <= 16


def test_a_stray_far_outside_does_not_thicken_lines() -> None:
    def width(knee: float) -> int:
        points, scores = pose(COCO_17, left_hip=(500, 880), left_knee=(500, knee))
        return int(changed(draw_pose(image(1000, 1000), points, scores, layout=COCO_17))[940].sum())

    assert width(9000) == width(1000) > 0


def test_a_box_gives_the_size_of_a_person() -> None:
    points, scores = pose(COCO_17, left_hip=(500, 480), left_knee=(500, 520))

    def width(**options: Any) -> int:
        drawn = draw_pose(image(1000, 1000), points, scores, layout=COCO_17, **options)
        return int((drawn[500] == LEFT).all(-1).sum())

    assert width(boxes_xyxy=np.array([[100, 100, 900, 900]])) > width() + 2
    assert width(boxes_xyxy=np.full((1, 4), np.nan)) == width()
    assert width(line_width=15.0) == 15


def test_edges_are_smooth() -> None:
    points, scores = pose(COCO_17, left_hip=(40, 40), left_knee=(110, 170))
    drawn = draw_pose(image(), points, scores, layout=COCO_17)
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 25


def face(size: float, corner: float) -> tuple[np.ndarray, np.ndarray]:
    """All points of the face of the 308: each feature fills a disc of its own, as densely as possible."""
    points, scores = missing_points(SAPIENS_308)
    anatomy = _layout_anatomy(SAPIENS_308)
    features = [cluster for cluster in anatomy.clusters if anatomy.points[cluster[0]].kind == "face"]
    cell = size / 4
    for i, cluster in enumerate(features):
        turn = np.arange(len(cluster)) * 2.399963  # the golden angle fills a disc evenly
        radius = cell / 2 * np.sqrt((np.arange(len(cluster)) + 0.5) / len(cluster))
        center = corner + cell * (np.array([i % 4, i // 4]) + 0.5)
        points[0, list(cluster)] = np.stack([np.cos(turn), np.sin(turn)], -1) * radius[:, None] + center
    assert len(features) <= 16
    return points, scores


@pytest.mark.parametrize("size", [30, 80, 200])
def test_a_face_never_becomes_a_blob(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitruvian.draw.pose.FACE_LINES", ())
    _layout_anatomy.cache_clear()
    points, scores = face(size, 50)
    drawn = draw_pose(np.zeros((300, 300, 3), np.uint8), points, scores, layout=SAPIENS_308, line_width=12)
    _layout_anatomy.cache_clear()
    inside = drawn[50 : 50 + size, 50 : 50 + size].max(-1) / 255
    assert 0.02 < inside.mean() < 0.45


def test_fingers_have_colors_of_their_own() -> None:
    positions = {f"left_forefinger{n}": (80.0, 20.0 + 40 * n) for n in (2, 3, 4)}
    points, scores = pose(SAPIENS_308, left_wrist=(80, 20), left_forefinger_third_joint=(80, 60), **positions)
    drawn = draw_pose(image(), points, scores, layout=SAPIENS_308, line_width=12)
    assert drawn[120, 80].tolist() == list(FINGERS["forefinger"])


def test_fingers_are_thinner_than_limbs() -> None:
    points, scores = pose(
        SAPIENS_308, left_hip=(40, 20), left_knee=(40, 180), left_wrist=(100, 20), left_thumb_third_joint=(100, 60),
        left_thumb2=(100, 100),
    )  # fmt: skip
    drawn = changed(draw_pose(image(), points, scores, layout=SAPIENS_308, line_width=8))
    assert 0 < drawn[80, 85:115].sum() < 0.7 * drawn[80, 25:55].sum()
    assert 0 < drawn[40, 85:115].sum() < 0.7 * drawn[40, 25:55].sum()  # also the first bone, from the wrist


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_every_layout_can_be_drawn(layout: Layout) -> None:
    points = np.random.default_rng(0).uniform(0, 150, (2, len(layout.names), 2))
    drawn = draw_pose(image(), points, np.ones(points.shape[:2]), layout=layout)
    assert changed(drawn).mean() > 0.05


@pytest.mark.parametrize(("layout", "lines"), [(SAPIENS_308, 24), (COCO_WHOLEBODY_133, 9), (COCO_17, 0), (BODY_25, 0)])
def test_every_line_of_the_face_is_found(layout: Layout, lines: int) -> None:
    assert len(_layout_anatomy(layout).lines) == lines


def test_lines_of_the_face_name_points_that_exist() -> None:
    known = set(KEYPOINT_INDEX) | set(COCO_WHOLEBODY_133.names)
    assert [name for _, names in FACE_LINES for name in names if name not in known] == []


def test_no_people() -> None:
    points, scores, boxes = np.zeros((0, 17, 2)), np.zeros((0, 17)), np.zeros((0, 4))
    drawn = draw_pose(image(), points, scores, layout=COCO_17, boxes_xyxy=boxes, ids=[])
    assert not changed(drawn).any()


def test_a_person_without_points_still_has_a_box() -> None:
    points, scores = missing_points(COCO_17)
    drawn = draw_pose(image(), points, scores, layout=COCO_17, boxes_xyxy=np.array([[20, 30, 120, 150]]))
    assert drawn[90, 20].tolist() == class_colors(1)[0].tolist()
    assert not changed(draw_pose(image(), points, scores, layout=COCO_17, ids=[4])).any()


def test_one_pixel() -> None:
    drawn = draw_pose(image(1, 1), np.zeros((1, 17, 2)), np.ones((1, 17)), layout=COCO_17)
    assert drawn.shape == (1, 1, 3)
    assert changed(drawn).all()


def test_what_comes_in_stays_as_it_is() -> None:
    points, scores = pose(COCO_17, left_hip=(80, 40), left_knee=(80, 160))
    source, boxes = image(), np.array([[10.0, 10, 90, 190]])
    copies = source.copy(), points.copy(), scores.copy(), boxes.copy()
    for array in (source, points, scores, boxes):
        array.flags.writeable = False
    drawn = draw_pose(source, points, scores, layout=COCO_17, boxes_xyxy=boxes, ids=[1])
    assert changed(drawn).any()
    for now, before in zip((source, points, scores, boxes), copies, strict=True):
        np.testing.assert_array_equal(now, before)
    crop = np.asfortranarray(image(300, 300))[50:250, 70:230]  # neither own memory nor rows in order
    np.testing.assert_array_equal(draw_pose(crop, points, scores, layout=COCO_17, boxes_xyxy=boxes, ids=[1]), drawn)


@pytest.mark.parametrize("line_width", [0, -1, float("inf"), float("nan")])
def test_a_line_width_that_is_not_positive_is_an_error(line_width: float) -> None:
    with pytest.raises(InputError, match="line_width"):
        draw_pose(image(), np.zeros((1, 17, 2)), np.ones((1, 17)), layout=COCO_17, line_width=line_width)
