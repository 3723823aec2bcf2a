"""Windows of crops in numpy: the numbers of torch to the last bit, and none of its calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vitruvian.errors import InputError
from vitruvian.images import crop_params
from vitruvian.images.windows import lay_windows, sample_places

SIZES = [(1024, 768), (64, 48), (300, 200), (7, 5), (1, 1), (256, 192)]


def boxes(count: int = 400) -> np.ndarray:
    generator = np.random.default_rng(0)
    corners = generator.uniform(-300, 2000, (count, 2))
    return np.concatenate((corners, 10 ** generator.uniform(-1, 3.5, (count, 2))), axis=1).astype(np.float32)


@pytest.mark.parametrize("size_hw", SIZES, ids=str)
def test_windows_and_samples_are_those_of_torch(size_hw: tuple[int, int]) -> None:
    given, (height, width) = boxes(), size_hw
    center, size = crop_params(torch.from_numpy(given), size_hw)
    center_xy, size_wh = lay_windows(given, size_hw)
    np.testing.assert_array_equal(center_xy, center.numpy())
    np.testing.assert_array_equal(size_wh, size.numpy())
    places = sample_places(given, size_hw)
    assert places.dtype == center_xy.dtype == size_wh.dtype == np.float32
    enlarged = ((width - 1) / size[:, 0]).minimum((height - 1) / size[:, 1]) >= 1
    np.testing.assert_array_equal(places[:, 0], enlarged.numpy())
    assert width == 1 or 0 < places[:, 0].mean() < 1
    for axis, count, found in ((0, width, places[:, 1 : 1 + width]), (1, height, places[:, 1 + width :])):
        steps = torch.arange(count, dtype=torch.float32) / max(1, count - 1) - (0.5 if count > 1 else 0.0)
        np.testing.assert_array_equal(found, (center[:, axis, None] + steps * size[:, axis, None]).numpy())


def test_without_calls_of_torch() -> None:
    class Forbidden(TorchDispatchMode):
        def __torch_dispatch__(self, function: object, *_: object) -> None:
            raise AssertionError(f"{function}: a call that every picture would pay for")

    given = boxes(3)
    with Forbidden():
        assert sample_places(given, (64, 48)).shape == (3, 1 + 48 + 64)


def test_boxes_that_make_no_sense() -> None:
    for wrong, words in (
        ([[0, 0, 0, 5]], "positive width"),
        ([[0, 0, np.nan, 5]], "finite"),
        ([[1, 2, 3]], r"shape \[N, 4\]"),
    ):
        with pytest.raises(InputError, match=words):
            sample_places(np.array(wrong, np.float32), (64, 48))
    assert sample_places(np.zeros((0, 4), np.float32), (64, 48)).shape == (0, 113)
