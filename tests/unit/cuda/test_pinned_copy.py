"""Copies to a device through pinned memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitruvian.cuda import pinned_copy as module
from vitruvian.cuda.pinned_copy import pinned_copy

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("limit", [1 << 26, 8], ids=["pinned", "too large to pin"])
def test_values_arrive_as_a_copy(device: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PINNED_BYTES", limit)
    reversed_rows = np.arange(12, dtype=np.int32).reshape(3, 4)[::-1]
    frozen = np.ones((2, 2), np.uint8)
    frozen.flags.writeable = False
    for values in (reversed_rows, frozen, torch.arange(6.0).view(2, 3).T, torch.ones(0)):
        copied = pinned_copy(values, torch.device(device))
        assert copied.device.type == device
        np.testing.assert_array_equal(copied.cpu().numpy(), np.asarray(values))
    halves = torch.arange(6.0).view(2, 3).T.bfloat16()
    assert torch.equal(pinned_copy(halves, torch.device(device)).cpu(), halves)
    copied = pinned_copy(frozen, torch.device(device))
    copied.fill_(7)
    assert frozen.max() == 1
