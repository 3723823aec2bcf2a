from __future__ import annotations

import pytest
import torch

from vitruvian.errors import InputError, VitruvianWarning
from vitruvian.models.mask_classification.label_masks import masks_from_map


def split(labels: list[list[int]], **options) -> tuple[list, list]:
    masks, classes = masks_from_map(torch.tensor(labels), **options)
    assert masks.dtype == torch.bool
    assert classes.dtype == torch.int64
    assert masks.shape == (len(classes), len(labels), len(labels[0]))
    return masks.int().tolist(), classes.tolist()


def test_the_example_of_the_documentation() -> None:
    masks, classes = split([[2, 6, 7, 9]])
    assert masks == [[[1, 0, 0, 0]], [[0, 1, 0, 0]], [[0, 0, 1, 0]], [[0, 0, 0, 1]]]
    assert classes == [2, 6, 7, 9]


def test_ignored_pixels_are_in_no_mask() -> None:
    assert split([[0, 255, 2]], ignore_index=255) == ([[[1, 0, 0]], [[0, 0, 1]]], [0, 2])
    assert split([[0, 1, 2]], ignore_index=0) == ([[[0, 1, 0]], [[0, 0, 1]]], [1, 2])


@pytest.mark.parametrize("ignore_index", [255, 0])
def test_reduction_drops_the_background_and_keeps_what_is_ignored(ignore_index: int) -> None:
    found = split([[0, 1, 3, ignore_index]], ignore_index=ignore_index, do_reduce_labels=True)
    assert found == ([[[0, 1, 0, 0]], [[0, 0, 1, 0]]], [0, 2])


def test_objects_get_the_class_of_the_table() -> None:
    assert split([[1, 2, 2, 5]], instance_id_to_semantic_id={1: 4, 2: 4, 5: 0, 9: 9}) == (
        [[[1, 0, 0, 0]], [[0, 1, 1, 0]], [[0, 0, 0, 1]]],
        [4, 4, 0],
    )


def test_objects_with_reduction() -> None:
    options = {"instance_id_to_semantic_id": {1: 4, 2: 1, 3: 0}, "ignore_index": 255, "do_reduce_labels": True}
    # Object 0 is background, object 3 of the background class.
    assert split([[0, 1, 2, 3, 255]], **options) == ([[[0, 1, 0, 0, 0]], [[0, 0, 1, 0, 0]]], [3, 0])


def test_the_ignored_number_is_an_object_where_there_is_a_table() -> None:
    """With 0 for unlabeled pixels, the first class is 0 all the same: its objects must not get lost."""
    options = {"instance_id_to_semantic_id": {1: 0, 2: 5}, "ignore_index": 0}
    assert split([[0, 1, 2]], **options) == ([[[0, 1, 0]], [[0, 0, 1]]], [0, 5])


def test_many_objects_with_reduction() -> None:
    """The reference loses the object after the ignored number; here neither it nor its neighbors get lost."""
    options = {"ignore_index": 255, "do_reduce_labels": True}
    table = {254: 3, 255: 4, 256: 5}
    assert split([[0, 254, 255, 256]], instance_id_to_semantic_id=table, **options)[1] == [2, 3, 4]
    assert split([[0, 254, 255]], instance_id_to_semantic_id={254: 3}, **options)[1] == [2]


@pytest.mark.parametrize("options", [{"ignore_index": 255}, {"ignore_index": 255, "do_reduce_labels": True}])
def test_nothing_but_ignored_pixels(options: dict) -> None:
    assert split([[255, 255]], **options) == ([], [])


def test_labels_out_of_range() -> None:
    with pytest.warns(VitruvianWarning, match=r"from 0 to 2 .*got \[3, 255\].*ignore_index"):
        assert split([[0, 3, 255]], num_labels=3)[1] == [0, 3, 255]
    with pytest.raises(InputError, match=r"at least 0, got \[-1\]"):
        split([[0, -1]])
    assert split([[0, 2, 255]], num_labels=3, ignore_index=255)[1] == [0, 2]


def test_missing_pieces_are_named() -> None:
    with pytest.raises(InputError, match=r"none for \[2, 3\]"):
        split([[1, 2, 3]], instance_id_to_semantic_id={1: 0})
    with pytest.raises(InputError, match="ignore_index: expected a number"):
        split([[0, 1]], do_reduce_labels=True)
