"""Connected components against scipy, an independent implementation, and the cleaning built on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitruvian.images.connected_components import fill_holes, find_components, remove_islands, run_positions

ndimage = pytest.importorskip("scipy.ndimage")

STRUCTURES = {4: None, 8: np.ones((3, 3))}


def shapes() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    comb = np.zeros((40, 60), bool)
    comb[:, ::2] = True
    comb[-1] = True
    spiral = np.zeros((21, 21), bool)
    for ring in range(0, 10, 2):
        spiral[ring : 21 - ring, ring : 21 - ring] = True
        spiral[ring + 1 : 20 - ring, ring + 1 : 20 - ring] = False
        spiral[ring + 1, ring] = False
    return {
        "noise": random.random((64, 48)) > 0.5,
        "dense noise": random.random((33, 70)) > 0.3,
        "smooth": ndimage.gaussian_filter(random.standard_normal((90, 80)), 4) > 0,
        "comb": comb,
        "comb upside down": comb[::-1].copy(),
        "spiral": spiral,
        "diagonal": np.eye(17, dtype=bool),
        "rows that touch over the edge": np.array([[0, 1, 1], [1, 1, 0], [0, 0, 1]], bool),
        "full": np.ones((5, 7), bool),
        "empty": np.zeros((5, 7), bool),
        "one row": np.array([[1, 1, 0, 1]], bool),
        "one column": np.array([[1], [1], [0], [1]], bool),
    }


@pytest.mark.parametrize("connectivity", [4, 8])
@pytest.mark.parametrize("name", shapes())
def test_components_and_areas_are_scipy_s(name: str, connectivity: int) -> None:
    mask = shapes()[name]
    want, count = ndimage.label(mask, STRUCTURES[connectivity])
    components = find_components(mask, connectivity)
    lengths = components.ends - components.starts
    labels = np.zeros(mask.size, int)
    labels[run_positions(components.starts, lengths)] = np.repeat(components.component + 1, lengths)
    assert np.array_equal(labels.reshape(mask.shape), want)
    assert components.areas.tolist() == np.bincount(want.ravel(), minlength=count + 1)[1:].tolist()


def test_batches_keep_their_shape_and_do_not_mix() -> None:
    masks = torch.zeros(2, 3, 6, 6, dtype=torch.bool)
    masks[0, 0, 5, 5] = masks[0, 1, 0, 0] = True  # neighbors in memory, not in any image
    masks[1, 2, :2, 0] = True
    assert torch.equal(remove_islands(masks, 1).nonzero(), torch.tensor([[1, 2, 0, 0], [1, 2, 1, 0]]))


def test_holes_are_filled_up_to_their_area() -> None:
    mask = torch.ones(12, 12, dtype=torch.bool)
    mask[2:4, 2:4] = False  # 4 pixels
    mask[6:9, 6:9] = False  # 9 pixels
    small = fill_holes(mask, 4)
    assert small[2:4, 2:4].all()
    assert not small[6:9, 6:9].any()
    assert fill_holes(mask, 9).all()
    assert torch.equal(fill_holes(mask, 3), mask)
    assert torch.equal(fill_holes(mask, 0), mask)


def test_islands_are_removed_up_to_their_area_and_the_input_stays() -> None:
    mask = torch.zeros(2, 12, 12, dtype=torch.bool)
    mask[0, 1:3, 1:3] = True
    mask[0, 6:9, 6:9] = True
    mask[1, 0, 0] = True
    before = mask.clone()
    cleaned = remove_islands(mask, 4)
    assert cleaned.sum(dim=(1, 2)).tolist() == [9, 0]
    assert remove_islands(mask, 20, keep_largest=True).sum(dim=(1, 2)).tolist() == [9, 1]
    assert torch.equal(mask, before)


def test_diagonal_neighbors_count() -> None:
    mask = torch.eye(3, dtype=torch.bool)
    assert remove_islands(mask, 2).sum() == 3


def test_numbers_and_other_memory_orders_are_read_as_masks() -> None:
    mask = (torch.arange(30).reshape(5, 6) % 7 < 3).int().T
    assert torch.equal(remove_islands(mask, 3), remove_islands(mask.bool().contiguous(), 3))


def test_a_batch_of_none_stays_empty() -> None:
    assert fill_holes(torch.zeros(0, 4, 4, dtype=torch.bool), 3).shape == (0, 4, 4)
