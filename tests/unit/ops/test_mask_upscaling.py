"""Upscaled masks: every version against two transposed convolutions on maps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops import mask_upscaling
from vitruvian.ops.mask_upscaling import UpscalingLayers, pixels_by_cell, upscale_masks


@every_version
@pytest.mark.parametrize("masks", [1, 3])
@pytest.mark.parametrize("strip_bytes", [1, 1 << 20])
def test_masks_are_those_of_two_transposed_convolutions(
    version: str, masks: int, strip_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_upscaling, "_CPU_STRIP_BYTES", strip_bytes)
    B, P, h, w = 2, 3, 3, 5
    cells, vectors = randn(B, P, h * w, 64, version=version), randn(B, P, masks, 16, version=version, seed=1)
    finer, finest = (randn(B, 16, n * h, n * w, version=version, seed=n) for n in (2, 4))
    conv1, conv2 = nn.ConvTranspose2d(64, 16, 2, stride=2).to(cells), nn.ConvTranspose2d(16, 16, 2, stride=2).to(cells)
    norm = nn.LayerNorm(16, eps=1e-6).to(cells)
    norm.weight.copy_(randn(16, seed=5))
    norm.bias.copy_(randn(16, seed=6))
    got = upscale_masks(
        cells,
        pixels_by_cell(finer, (h, w), conv1),
        pixels_by_cell(finest, (h, w), conv2),
        vectors,
        UpscalingLayers(conv1, norm, conv2, F.gelu),
        (h, w),
    )
    for module in (conv1, conv2, norm):
        module.float()
    maps = cells.float().transpose(2, 3).reshape(B * P, 64, h, w)
    x = conv1(maps) + finer.float().repeat_interleave(P, 0)
    x = F.gelu(norm(x.movedim(1, -1)).movedim(-1, 1))
    x = F.gelu(conv2(x) + finest.float().repeat_interleave(P, 0))
    want = torch.einsum("bpkc,bpchw->bpkhw", vectors.float(), x.unflatten(0, (B, P)))
    assert_close(got.float(), want, tolerance=3e-2 if version == "triton" else 1e-5)
