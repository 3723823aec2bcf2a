"""Merging attention over splits of the keys equals attention over all of them."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.ops.versions import NO_INTERPRETER, assert_close, randn
from vitruvian.ops.online_softmax import merge_splits, split_keys


@NO_INTERPRETER
@pytest.mark.parametrize("width", [8, 20])
def test_merged_splits_are_attention_over_all_keys(width: int) -> None:
    scores, values = randn(5, 12, seed=1) * 3, randn(12, width, seed=2)
    parts, log_sums = [], []
    for keys in (slice(0, 4), slice(4, 5), slice(5, 12)):
        parts.append(scores[:, keys].softmax(-1) @ values[keys])
        log_sums.append(scores[:, keys].logsumexp(-1) / math.log(2))
    merged = merge_splits(torch.stack(parts), torch.stack(log_sums), torch.float32)
    assert_close(merged, scores.softmax(-1) @ values)


@NO_INTERPRETER
@pytest.mark.parametrize(
    ("keys", "programs", "want"), [(4096, 1, (16, 256)), (4096, 200, (1, 4096)), (100, 1, (1, 128))]
)
def test_splits_fill_a_device(keys: int, programs: int, want: tuple[int, int]) -> None:
    assert split_keys(keys, programs, multiple=32, min_keys=256) == want
