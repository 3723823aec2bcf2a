"""RMS norm of a residual sum: every version against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.rms_norm import add_rms_norm, rms_norm

EPS = 1e-6


@every_version
@pytest.mark.parametrize("channels", [16, 96, 257])
def test_sum_and_norm(version: str, channels: int) -> None:
    x, branch = (randn(2, 5, channels, version=version, seed=seed) for seed in (1, 2))
    weight, scale = (randn(channels, version=version, seed=seed) for seed in (3, 4))
    assert_close(rms_norm(x, weight, eps=EPS), F.rms_norm(x, (channels,), weight, EPS))
    for factor in (None, scale):
        want = x + (branch if factor is None else branch * factor)
        total, normed = add_rms_norm(x, branch, weight, eps=EPS, scale=factor)
        assert_close(total, want)
        assert_close(normed, F.rms_norm(want, (channels,), weight, EPS))


@every_version
def test_inputs_are_not_modified_and_may_be_strided(version: str) -> None:
    x, branch = (randn(4, 6, 32, version=version, seed=seed)[:, ::2] for seed in (1, 2))
    before, weight = x.clone(), randn(32, version=version)
    total, normed = add_rms_norm(x, branch, weight, eps=EPS)
    assert torch.equal(x, before)
    assert_close(normed, F.rms_norm(total, (32,), weight, EPS))


def test_without_a_branch_x_is_returned_as_it_is() -> None:
    x = torch.randn(2, 8)
    assert add_rms_norm(x, None, torch.ones(8), eps=EPS)[0] is x


def test_gradients_flow_to_everything() -> None:
    x, branch, weight, scale = (torch.randn(8, requires_grad=True) for _ in range(4))
    total, normed = add_rms_norm(x, branch, weight, eps=EPS, scale=scale)
    (total.sum() + normed.square().sum()).backward()
    assert all(value.grad is not None for value in (x, branch, weight, scale))
