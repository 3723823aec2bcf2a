import json
import subprocess
import sys

import pytest

from tests.helpers.shared_folder import SHARED, needs_shared
from vitruvian import human

OTHER_SIDE = {"left": "right", "right": "left", "middle": "middle"}


def test_there_are_308_points_numbered_in_order_with_unique_names():
    assert [point.id for point in human.KEYPOINTS] == list(range(308))
    assert len(set(human.KEYPOINT_NAMES)) == 308
    assert all(human.KEYPOINT_INDEX[point.name] == point.id for point in human.KEYPOINTS)


@pytest.mark.parametrize(
    "name, index",
    [
        ("nose", 0),
        ("left_eye", 1),
        ("right_ankle", 14),
        ("left_heel", 17),
        ("right_thumb4", 21),
        ("right_wrist", 41),
        ("left_thumb4", 42),
        ("left_wrist", 62),
        ("neck", 69),
        ("tip_of_chin", 77),
        ("tip_of_nose", 178),
        ("l_tip_of_ear_lobe", 241),
        ("r_border_of_pupil_midpoint_2", 307),
    ],
)
def test_known_points_have_their_channels(name, index):
    assert human.KEYPOINT_INDEX[name] == index


def test_mirroring_twice_is_the_identity():
    assert [human.FLIP_PERMUTATION[i] for i in human.FLIP_PERMUTATION] == list(range(308))


def test_mirror_partners_stand_on_opposite_sides():
    for point in human.KEYPOINTS:
        assert human.KEYPOINTS[point.swap].side == OTHER_SIDE[point.side], point.name
        assert (point.swap == point.id) == (point.side == "middle"), point.name


def test_mirror_partners_share_a_group_or_are_the_two_hands():
    for point in human.KEYPOINTS:
        partner = human.KEYPOINTS[point.swap]
        hands = {"left_hand", "right_hand"}
        assert {point.group, partner.group} == hands if point.group in hands else point.group == partner.group


def test_flip_pairs_are_left_then_right_and_agree_with_the_permutation():
    assert len(human.FLIP_PAIRS) == 146
    assert [1, 2] in human.FLIP_PAIRS  # eyes
    assert [42, 21] in human.FLIP_PAIRS  # tips of the thumbs: the right hand comes first among the channels
    assert [193, 192] in human.FLIP_PAIRS  # upper lip: midpoint 2 is the person's left
    permutation = list(range(308))
    for left, right in human.FLIP_PAIRS:
        assert (human.KEYPOINTS[left].side, human.KEYPOINTS[right].side) == ("left", "right")
        permutation[left], permutation[right] = right, left
    assert tuple(permutation) == human.FLIP_PERMUTATION


def test_every_point_is_in_exactly_one_group():
    assert sorted(i for ids in human.GROUPS.values() for i in ids) == list(range(308))
    assert {group: len(ids) for group, ids in human.GROUPS.items()} == {
        "body": 24,
        "feet": 6,
        "left_hand": 20,
        "right_hand": 20,
        "face": 150,
        "irises": 36,
        "ears": 52,
    }


@pytest.mark.parametrize(
    "name, group, side",
    [
        ("left_big_toe", "feet", "left"),
        ("left_ear", "body", "left"),
        ("right_cubital_fossa", "body", "right"),
        ("right_wrist", "body", "right"),
        ("left_pinky_finger_third_joint", "left_hand", "left"),
        ("end_of_r_eyebrow", "face", "right"),
        ("inner_corner_of_l_nostril", "face", "left"),
        ("r_outer_corner_of_mouth", "face", "right"),
        ("midpoint_1_of_upper_outer_lip", "face", "right"),
        ("midpoint_6_of_lower_inner_lip", "face", "left"),
        ("midpoint_1_of_nose_bridge", "face", "middle"),
        ("center_of_lower_inner_lip", "face", "middle"),
        ("r_midpoint_between_22_15", "ears", "right"),
        ("l_start_point_of_crus_of_helix", "ears", "left"),
        ("l_center_of_pupil", "irises", "left"),
    ],
)
def test_known_points_have_their_group_and_side(name, group, side):
    point = human.KEYPOINTS[human.KEYPOINT_INDEX[name]]
    assert (point.group, point.side) == (group, side)
    assert point.id in human.GROUPS[group]


def test_sigmas_are_positive_and_mirror_images_share_them_except_for_the_feet():
    assert len(human.SIGMAS) == 308
    assert min(human.SIGMAS) > 0
    for point in human.KEYPOINTS:
        if point.group != "feet":  # COCO-WholeBody measured the two feet apart
            assert point.sigma == human.KEYPOINTS[point.swap].sigma, point.name


def test_bones_are_65_with_unique_names_that_say_what_they_join():
    assert len(human.SKELETON) == 65
    assert len({bone.name for bone in human.SKELETON}) == 65
    by_name = {bone.name: (human.KEYPOINT_NAMES[bone.start], human.KEYPOINT_NAMES[bone.end]) for bone in human.SKELETON}
    assert by_name["left_shin"] == ("left_ankle", "left_knee")
    assert by_name["shoulders"] == ("left_shoulder", "right_shoulder")
    assert by_name["hips"] == ("left_hip", "right_hip")
    assert by_name["right_nose_to_eye"] == ("nose", "right_eye")
    assert by_name["right_forefinger_1"] == ("right_wrist", "right_forefinger_third_joint")
    assert by_name["right_forefinger_4"] == ("right_forefinger3", "right_forefinger4")


def test_the_skeleton_is_its_own_mirror_image():
    joints = {frozenset((bone.start, bone.end)) for bone in human.SKELETON}
    assert {frozenset(human.FLIP_PERMUTATION[i] for i in joint) for joint in joints} == joints


@needs_shared
def test_the_table_is_the_published_one():
    facts = json.loads((SHARED / "facts" / "keypoints308.json").read_text())
    assert [point["name"] for point in facts["keypoints"]] == list(human.KEYPOINT_NAMES)
    assert [tuple(point["color"]) for point in facts["keypoints"]] == [point.color for point in human.KEYPOINTS]
    assert facts["sigmas"] == list(human.SIGMAS)
    assert sorted(map(sorted, facts["flip_pairs"])) == sorted(map(sorted, human.FLIP_PAIRS))
    published = [(*link["link"], tuple(link["color"])) for link in facts["skeleton"]]
    assert published == [(human.KEYPOINT_NAMES[b.start], human.KEYPOINT_NAMES[b.end], b.color) for b in human.SKELETON]


def test_the_tables_do_not_import_torch():
    code = "import sys, vitruvian.human; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
