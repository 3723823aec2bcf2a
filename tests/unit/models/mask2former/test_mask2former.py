from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.families.mask2former import tiny
from tests.families.maskformer import labels
from vitruvian.models.mask2former.modeling import Mask2FormerForUniversalSegmentation
from vitruvian.models.mask2former.pixel_decoder import SamplingOffsets
from vitruvian.models.mask2former.transformer_decoder import MaskedAttention


def test_masked_attention_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = MaskedAttention(8, 2, init_gain=0.5).eval(), nn.MultiheadAttention(8, 2, batch_first=True).eval()
    ours.init_parameters()
    assert ours.in_proj_weight.abs().max() <= 0.5 * (6 / 32) ** 0.5
    ours.load_state_dict(theirs.state_dict())
    queries, tokens = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    logits = torch.rand(2, 3, 5) - 0.4
    logits[..., 0] = 1.0
    blocked = (logits < 0)[:, None].expand(2, 2, 3, 5).flatten(0, 1)
    want, _ = theirs(queries, tokens, tokens, attn_mask=blocked)
    torch.testing.assert_close(ours(queries, tokens, tokens, logits), want)


def test_heads_sample_in_different_directions_at_first() -> None:
    layer = SamplingOffsets(8, heads=4, levels=2, points=3)
    layer.init_parameters()
    offsets = layer.bias.view(4, 2, 3, 2)
    assert not layer.weight.any()
    torch.testing.assert_close(offsets[0, 0], torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(offsets[1, 1, 2], torch.tensor([0.0, 3.0]), atol=1e-6, rtol=0)


def test_leaving_out_masks_changes_nothing_but_memory() -> None:
    torch.manual_seed(0)
    model = Mask2FormerForUniversalSegmentation(tiny()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        pixels = torch.randn(2, 3, 52, 75)
        few, all_ = model(pixels), model(pixels, output_auxiliary_logits=True)
    torch.testing.assert_close(few.masks_queries_logits, all_.masks_queries_logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(few.class_queries_logits, all_.class_queries_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("auxiliary", [False, True])
def test_auxiliary_losses_follow_the_configuration(auxiliary: bool) -> None:
    model = Mask2FormerForUniversalSegmentation(tiny(use_auxiliary_loss=auxiliary))
    given = labels(2, torch.Generator().manual_seed(0))
    for requested in (False, True):
        output = model(torch.randn(2, 3, 64, 96), **given, output_auxiliary_logits=requested)
        assert len(output.loss_terms) == (3 * 5 if auxiliary else 3)
        assert (output.auxiliary_logits is not None) == requested


def test_training_with_dropout_drops() -> None:
    model = Mask2FormerForUniversalSegmentation(tiny(dropout=0.5)).train()
    pixels = torch.randn(1, 3, 64, 96)
    torch.manual_seed(0)
    one, other = model(pixels)[0], model(pixels)[0]
    assert one.shape == other.shape
    assert not torch.equal(one, other)
    assert torch.equal(model.eval()(pixels)[0], model(pixels)[0])
