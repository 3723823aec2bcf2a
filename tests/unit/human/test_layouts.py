import json

import numpy as np
import pytest
import torch

from tests.helpers.shared_folder import SHARED, needs_shared
from vitruvian.errors import InputError
from vitruvian.human import (
    BODY_25,
    COCO_17,
    COCO_WHOLEBODY_133,
    FLIP_PERMUTATION,
    KEYPOINT_INDEX,
    LAYOUTS,
    SAPIENS_308,
)

ALL = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
JAW = [*range(23, 31), *range(32, 40)]


def people(*, columns=2, seed=0):
    draw = np.random.default_rng(seed)
    return draw.uniform(0, 100, (2, 308, columns)).astype(np.float32), draw.uniform(0, 1, (2, 308)).astype(np.float32)


def at(points, name):
    return points[..., KEYPOINT_INDEX[name], :]


@ALL
@pytest.mark.parametrize("columns", [2, 3])
def test_numpy_and_torch_agree(layout, columns):
    points, scores = people(columns=columns)
    xy, low = layout.convert(points, scores)
    xy_torch, low_torch = layout.convert(torch.from_numpy(points), torch.from_numpy(scores))
    assert xy.shape == (2, len(layout.names), columns)
    assert xy.dtype == np.float32
    assert xy_torch.dtype == torch.float32
    np.testing.assert_array_equal(xy, xy_torch.numpy())
    np.testing.assert_array_equal(low, low_torch.numpy())


@ALL
def test_flipping_before_or_after_conversion_is_the_same(layout):
    points, scores = people()
    swap, mine = list(FLIP_PERMUTATION), list(layout.flip_permutation)
    mirrored = points[:, swap] * [-1, 1] + [99, 0]
    before, before_scores = layout.convert(mirrored.astype(np.float32), scores[:, swap])
    after, after_scores = layout.convert(points, scores)
    np.testing.assert_allclose(before, after[:, mine] * [-1, 1] + [99, 0], atol=1e-4)
    np.testing.assert_array_equal(before_scores, after_scores[:, mine])


@ALL
def test_mirroring_twice_is_the_identity_and_keeps_the_skeleton(layout):
    mirror = layout.flip_permutation
    assert [mirror[i] for i in mirror] == list(range(len(layout.names)))
    joints = {frozenset((bone.start, bone.end)) for bone in layout.skeleton}
    assert {frozenset(mirror[i] for i in joint) for joint in joints} == joints


@ALL
def test_undefined_points_are_nan_with_score_zero_and_all_others_are_numbers(layout):
    xy, low = layout.convert(*people())
    missing = np.isnan(xy).any(-1)
    assert np.flatnonzero(missing[0]).tolist() == list(layout.undefined)
    assert (low[missing] == 0).all()
    assert (low[~missing] > 0).all()


def test_the_input_is_left_alone():
    points, scores = people()
    copies = points.copy(), scores.copy()
    for layout in LAYOUTS.values():
        xy, low = layout.convert(points, scores)
        xy[:], low[:] = 0, 0
    np.testing.assert_array_equal(points, copies[0])
    np.testing.assert_array_equal(scores, copies[1])


def test_308_to_308_changes_nothing():
    points, scores = people()
    xy, low = SAPIENS_308.convert(points, scores)
    np.testing.assert_array_equal(xy, points)
    np.testing.assert_array_equal(low, scores)


def test_coco_17_takes_each_point_by_name_and_has_cocos_nineteen_bones():
    points, scores = people()
    xy, low = COCO_17.convert(points, scores)
    for i, name in enumerate(COCO_17.names):
        np.testing.assert_array_equal(xy[:, i], at(points, name))
        np.testing.assert_array_equal(low[:, i], scores[:, KEYPOINT_INDEX[name]])
    assert COCO_17.names[9:13] == ("left_wrist", "right_wrist", "left_hip", "right_hip")
    one_based = {(b.start + 1, b.end + 1) for b in COCO_17.skeleton}
    assert one_based == {
        (16, 14), (14, 12), (17, 15), (15, 13), (12, 13), (6, 12), (7, 13), (6, 7), (6, 8), (7, 9), (8, 10), (9, 11),
        (2, 3), (1, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7),
    }  # fmt: skip


def test_body_25_has_openposes_order_and_midpoints_with_the_lower_score():
    points, scores = people()
    xy, low = BODY_25.convert(points, scores)
    left, right = KEYPOINT_INDEX["left_shoulder"], KEYPOINT_INDEX["right_shoulder"]
    np.testing.assert_allclose(xy[:, 1], (points[:, left] + points[:, right]) / 2)
    np.testing.assert_array_equal(low[:, 1], np.minimum(scores[:, left], scores[:, right]))
    np.testing.assert_allclose(xy[:, 8], (at(points, "left_hip") + at(points, "right_hip")) / 2)
    expected = {0: "nose", 4: "right_wrist", 7: "left_wrist", 9: "right_hip", 14: "left_ankle", 15: "right_eye",
                18: "left_ear", 19: "left_big_toe", 21: "left_heel", 22: "right_big_toe", 24: "right_heel"}  # fmt: skip
    for i, name in expected.items():
        np.testing.assert_array_equal(xy[:, i], at(points, name))
    assert BODY_25.names[20] == "LSmallToe"
    assert len(BODY_25.skeleton) == 24


def test_wholebody_lacks_only_the_jaw():
    assert list(COCO_WHOLEBODY_133.undefined) == JAW
    assert len(COCO_WHOLEBODY_133.names) == 133


@pytest.mark.parametrize(
    "index, name, source",
    [
        (9, "left_wrist", "left_wrist"),
        (17, "left_big_toe", "left_big_toe"),
        (22, "right_heel", "right_heel"),
        (31, "face-8", "tip_of_chin"),
        (40, "face-17", "end_of_r_eyebrow"),
        (41, "face-18", "upper_midpoint_2_of_r_eyebrow"),
        (45, "face-22", "upper_startpoint_of_l_eyebrow"),
        (48, "face-25", "upper_midpoint_3_of_l_eyebrow"),
        (49, "face-26", "end_of_l_eyebrow"),
        (53, "face-30", "tip_of_nose"),
        (58, "face-35", "l_outer_corner_of_nose"),
        (71, "face-48", "r_outer_corner_of_mouth"),
        (77, "face-54", "l_outer_corner_of_mouth"),
        (79, "face-56", "midpoint_5_of_lower_outer_lip"),
        (86, "face-63", "midpoint_2_of_upper_inner_lip"),
        (91, "left_hand_root", "left_wrist"),
        (92, "left_thumb1", "left_thumb_third_joint"),
        (95, "left_thumb4", "left_thumb4"),
        (96, "left_forefinger1", "left_forefinger_third_joint"),
        (111, "left_pinky_finger4", "left_pinky_finger4"),
        (112, "right_hand_root", "right_wrist"),
        (129, "right_pinky_finger1", "right_pinky_finger_third_joint"),
    ],
)
def test_wholebody_takes_known_points_from_known_sources(index, name, source):
    points, scores = people()
    xy, _ = COCO_WHOLEBODY_133.convert(points, scores)
    assert COCO_WHOLEBODY_133.names[index] == name
    np.testing.assert_array_equal(xy[:, index], at(points, source))


def symmetric_face():
    """Lay the face points of the 308 out on straight lines, as the names describe a person facing the camera."""
    points = np.full((308, 2), np.nan)

    def put(name, x, y):
        points[KEYPOINT_INDEX[name]] = x, y

    for side, sign in (("r", -1), ("l", 1)):  # the person's right is on the left of the image
        for row, y in (("upper", 10.0), ("lower", 12.0)):
            put(f"{side}_inner_end_of_{row}_lash_line", sign * 4, 11)
            put(f"{side}_outer_end_of_{row}_lash_line", sign * 12, 11)
            start = -12 if side == "r" else 4
            for number, eighths in {1: 2, 2: 6, 3: 1, 4: 3, 5: 5, 6: 7}.items():
                put(f"{side}_midpoint_{number}_of_{row}_lash_line", start + eighths, y)
    for row, y in (("upper", 20.0), ("lower", 24.0)):
        for number, eighths in {1: 2, 2: 6, 3: 1, 4: 3, 5: 5, 6: 7}.items():
            put(f"midpoint_{number}_of_{row}_outer_lip", -8 + 2 * eighths, y)
    put("r_outer_corner_of_mouth", -8, 22)
    put("l_outer_corner_of_mouth", 8, 22)
    put("center_of_cupid_bow", 0, 20)
    put("center_of_lower_outer_lip", 0, 24)
    return points


def test_eyes_and_lips_run_in_the_order_of_ibug():
    xy, _ = COCO_WHOLEBODY_133.convert(symmetric_face(), np.ones(308))
    face = xy[23:91]
    assert np.diff(face[36:40, 0]).min() > 0  # right eye, upper line: outer corner to inner
    assert face[41, 0] < face[40, 0] < face[39, 0]  # and back below
    assert np.diff(face[42:46, 0]).min() > 0  # left eye: inner corner to outer
    assert face[46, 0] > face[47, 0] > face[42, 0]
    assert (face[[37, 38, 43, 44], 1] < face[[41, 40, 47, 46], 1]).all()
    assert np.diff(face[48:55, 0]).min() > 0  # upper lip from image left to right
    assert np.diff(face[54:60, 0]).max() < 0  # lower lip back
    third = (face[37, 0] - face[36, 0]) / (face[39, 0] - face[36, 0])
    assert third == pytest.approx(1 / 3, abs=0.03)


@needs_shared
def test_wholebody_names_are_those_of_the_data_set():
    category = json.loads((SHARED / "photos" / "wholebody" / "wholebody.json").read_text())["categories"][0]
    keys = ("keypoints", "foot_keypoints", "face_keypoints", "lefthand_keypoints", "righthand_keypoints")
    assert [name for key in keys for name in category[key]] == list(COCO_WHOLEBODY_133.names)
    assert {(b.start + 1, b.end + 1) for b in COCO_17.skeleton} == set(map(tuple, category["skeleton"]))


@needs_shared
def test_wholebody_agrees_with_the_published_table_where_there_is_one():
    published = json.loads((SHARED / "facts" / "keypoints308.json").read_text())["coco_wholebody_to_308"]
    assert published
    for theirs, ours in published.items():
        assert COCO_WHOLEBODY_133.sources[int(theirs)] == (ours,)


@needs_shared
def test_annotated_faces_are_ordered_as_the_table_says():
    """The person's right eye lies on the left of the image for those who face the camera, brows above eyes."""
    file = json.loads((SHARED / "photos" / "wholebody" / "wholebody.json").read_text())
    faces = [np.reshape(a["face_kpts"], (68, 3))[:, :2] for a in file["annotations"] if a["face_valid"]]
    frontal = [f for f in faces if f[36, 0] < f[30, 0] < f[45, 0]]
    assert frontal
    for face in frontal:
        mirror = np.array(COCO_WHOLEBODY_133.flip_permutation[23:91]) - 23
        pairs = [(i, j) for i, j in enumerate(mirror) if i < j]
        right_of = [face[j, 0] > face[i, 0] for i, j in pairs if i < 55]
        assert np.mean(right_of) > 0.9


def test_wrong_shapes_kinds_and_types_are_named():
    points, scores = people()
    with pytest.raises(InputError, match=r"keypoints: expected shape \[..., 308, 2 or 3\], got \[2, 133, 2\]"):
        COCO_17.convert(points[:, :133], scores[:, :133])
    with pytest.raises(InputError, match=r"scores: expected shape \[2, 308\], got \[308\]"):
        COCO_17.convert(points, scores[0])
    with pytest.raises(InputError, match="got ndarray and Tensor"):
        COCO_17.convert(points, torch.from_numpy(scores))
    with pytest.raises(InputError, match="got list and list"):
        COCO_17.convert(points.tolist(), scores.tolist())
    with pytest.raises(InputError, match="expected floating point, got int64"):
        COCO_17.convert(points.astype(np.int64), scores)
    with pytest.raises(InputError, match=r"expected floating point, got torch.int32"):
        COCO_17.convert(torch.from_numpy(points).int(), torch.from_numpy(scores))


def test_gradients_flow_through_a_conversion():
    points = torch.rand(308, 2, requires_grad=True)
    xy, _ = BODY_25.convert(points, torch.rand(308))
    xy.sum().backward()
    assert points.grad is not None
    assert points.grad[KEYPOINT_INDEX["left_hip"]].tolist() == [1.5, 1.5]
