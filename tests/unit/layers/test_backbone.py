from __future__ import annotations

import pytest

from vitruvian.errors import ConfigError
from vitruvian.layers.backbone import _align_stages, channels_by_stage

NAMES = list(channels_by_stage(1, [2, 4, 8]))


def test_stages_by_name_by_index_or_the_last() -> None:
    assert _align_stages("X", NAMES, None, None) == (["stage3"], [3])
    assert _align_stages("X", NAMES, ["stem", "stage2"], None) == (["stem", "stage2"], [0, 2])
    assert _align_stages("X", NAMES, None, [1, -1]) == (["stage1", "stage3"], [1, 3])
    assert _align_stages("X", NAMES, ["stage1"], [1]) == (["stage1"], [1])


@pytest.mark.parametrize(
    ("features", "indices", "message"),
    [
        (["stage9"], None, "stage9"),
        (None, [4], "4 stages"),
        (["stage2"], [1], "the same stages"),
        (["stage2", "stage1"], None, "in order"),
        (None, [1, 1], "different"),
    ],
)
def test_impossible_stages(features: list[str] | None, indices: list[int] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _align_stages("X", NAMES, features, indices)
