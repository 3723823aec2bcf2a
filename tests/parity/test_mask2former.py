"""Mask2Former gives the reference's numbers and losses, and each library opens the other's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families.mask2former import NUM_LABELS, tiny, tiny_fields
from tests.families.swin import ALL_STAGES, resnet_fields, swin_fields
from tests.parity.segmentation import (
    assert_same,
    assert_same_fields,
    assert_same_settings,
    hand_over,
    objects,
    pictures,
    shake,
)
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.modeling import Mask2FormerForUniversalSegmentation, Mask2FormerModel
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.ops.deformable_attention import _sum_of_grid_samples, _sum_of_rows

reference = pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

STATES = (
    "encoder_last_hidden_state",
    "pixel_decoder_last_hidden_state",
    "transformer_decoder_last_hidden_state",
    "encoder_hidden_states",
    "pixel_decoder_hidden_states",
    "transformer_decoder_hidden_states",
)
LOGITS = ("class_queries_logits", "masks_queries_logits")
TOLERANCE = 1e-4


def their_config(**fields: Any) -> Any:
    resnet = fields.pop("resnet", False)
    backbone = (
        reference.ResNetConfig(**resnet_fields(out_features=ALL_STAGES))
        if resnet
        else reference.SwinConfig(**swin_fields(out_features=ALL_STAGES))
    )
    return reference.Mask2FormerConfig(**tiny_fields(backbone_config=backbone, **fields))


def both(folder: Path, **fields: Any) -> tuple[Any, Any]:
    theirs = shake(reference.Mask2FormerForUniversalSegmentation(their_config(**fields)))
    return hand_over(theirs, Mask2FormerForUniversalSegmentation, folder), theirs


@pytest.mark.parametrize(
    "fields",
    [{}, {"pre_norm": True}, {"enforce_input_projection": True}, {"hidden_dim": 48}, {"resnet": True}],
    ids=lambda fields: "-".join(fields) or "plain",
)
@pytest.mark.parametrize("size", [(64, 96), (52, 75)])
def test_logits_and_hidden_states(tmp_path: Path, size: tuple[int, int], fields: dict[str, Any]) -> None:
    # In float64: masks cut at a threshold steer the attention, and rounding in float32 can turn a pixel over.
    ours, theirs = (model.double() for model in both(tmp_path, **fields))
    pixels, options = pictures(*size).double(), {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        got, want = ours(pixels, **options), theirs(pixels, **options, output_auxiliary_logits=True)
        all_masks = ours(pixels, **options, output_auxiliary_logits=True)
        bare, their_bare = (
            hand_over(theirs, Mask2FormerModel, tmp_path).double()(pixels, **options),
            theirs.model(pixels, **options),
        )
    assert got.auxiliary_logits is None
    assert_same_fields(got, want, (*LOGITS, *STATES, "attentions"), TOLERANCE)
    assert_same_fields(all_masks, want, LOGITS, TOLERANCE)
    assert len(all_masks.auxiliary_logits) == len(want.auxiliary_logits) == 4
    for one, other in zip(all_masks.auxiliary_logits, want.auxiliary_logits, strict=True):
        for name in LOGITS:
            assert_same(one[name], other[name], TOLERANCE, name)
    names = (*STATES, "transformer_decoder_intermediate_states", "masks_queries_logits", "attentions")
    assert_same_fields(bare, their_bare, names, TOLERANCE)


def test_pixel_masks(tmp_path: Path) -> None:
    """The reference computes padding as a part of pictures; without it, a batch gives its single pictures."""
    ours, theirs = both(tmp_path)
    mask, pixels = torch.ones(2, 64, 96, dtype=torch.int64), pictures(64, 96)
    mask[1, 40:] = 0
    mask[1, :, 60:] = 0
    with torch.no_grad():
        want = theirs(pixels, pixel_mask=mask)
        apart, single = ours(pixels, pixel_mask=mask), theirs(pixels[1:, :, :40, :60])
        ours.config.use_pixel_mask = False
        assert_same_fields(ours(pixels, pixel_mask=mask), want, LOGITS, TOLERANCE)
    assert_same(apart.class_queries_logits[0], want.class_queries_logits[0], TOLERANCE)
    assert_same(apart.class_queries_logits[1], single.class_queries_logits[0], TOLERANCE)
    assert_same(apart.masks_queries_logits[1, :, :10, :15], single.masks_queries_logits[0], TOLERANCE)


@pytest.mark.parametrize("size", [(64, 96), (50, 70)])
@pytest.mark.parametrize("ratio", [0.75, 1.0])
def test_losses_draw_the_same_points(tmp_path: Path, size: tuple[int, int], ratio: float) -> None:
    weights = {"no_object_weight": 0.3, "dice_weight": 1.7, "class_weight": 0.6, "mask_weight": 9.0}
    ours, theirs = both(tmp_path, **weights, importance_sample_ratio=ratio, oversample_ratio=2.5)
    given = objects(*size, (3, 1), NUM_LABELS)
    with torch.no_grad():
        found = theirs(pictures(64, 96), output_auxiliary_logits=True)
        arguments = {name: getattr(found, name) for name in LOGITS} | given
        torch.manual_seed(7)
        want = theirs.criterion(**arguments, auxiliary_predictions=found.auxiliary_logits)
        torch.manual_seed(7)
        got = ours.criterion(**arguments, auxiliary_predictions=found.auxiliary_logits)
    assert got.terms.keys() == want.keys()
    for name, value in want.items():
        assert_same(got.terms[name], value, TOLERANCE, name)
    total = sum(theirs.weight_dict[name.rstrip("_0123456789")] * value for name, value in want.items())
    assert_same(got.total, total, TOLERANCE)


def test_gradients_of_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = both(tmp_path)
    given = {"pixel_values": pictures(64, 96), **objects(64, 96, (3, 1), NUM_LABELS)}
    draw = torch.rand

    def fixed(*shape: Any, **options: Any) -> torch.Tensor:
        """The same points for each shape, whoever asks and in whatever order."""
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return draw(sizes, generator=torch.Generator().manual_seed(len(sizes) + sum(sizes)))

    monkeypatch.setattr(torch, "rand", fixed)
    got, want = ours(**given), theirs(**given)
    assert_same(got.loss, want.loss, TOLERANCE)
    got.loss.backward()
    want.loss.backward()
    found = dict(theirs.named_parameters())
    shared = [(name, p) for name, p in ours.named_parameters() if name in found and p.grad is not None]
    assert len(shared) > 60
    for name, parameter in shared:
        assert_same(parameter.grad, found[name].grad, 1e-3, name)


@pytest.mark.parametrize("resnet", [False, True])
def test_the_reference_opens_our_files(tmp_path: Path, resnet: bool) -> None:
    config = tiny(backbone_config=ResNetConfig(**resnet_fields(out_features=ALL_STAGES))) if resnet else tiny()
    ours = shake(Mask2FormerForUniversalSegmentation(config))
    theirs = hand_over(ours, reference.Mask2FormerForUniversalSegmentation, tmp_path)
    with torch.no_grad():
        assert_same_fields(ours(pictures(52, 75)), theirs(pictures(52, 75)), LOGITS, TOLERANCE)
    assert theirs.criterion.empty_weight[-1] == pytest.approx(0.1)


def test_configurations_have_the_same_defaults() -> None:
    assert_same_settings(Mask2FormerConfig(), reference.Mask2FormerConfig())


@pytest.mark.parametrize("sample", [_sum_of_rows, _sum_of_grid_samples])
def test_deformable_attention(sample: Any) -> None:
    from transformers.models.mask2former.modeling_mask2former import multi_scale_deformable_attention

    generator = torch.Generator().manual_seed(0)
    level_hw = ((3, 4), (6, 7), (11, 14))
    value = torch.randn(2, 12 + 42 + 154, 3, 5, generator=generator, requires_grad=True)
    # Far enough out that some points miss their level on every side.
    places = (torch.rand(2, 9, 3, 3, 4, 2, generator=generator) * 1.6 - 0.3).requires_grad_()
    weights = torch.rand(2, 9, 3, 3, 4, generator=generator, requires_grad=True)
    sizes = torch.tensor([(width, height) for height, width in level_hw]).float()[:, None]
    x, y = (places * sizes - 0.5).unbind(-1)
    want = multi_scale_deformable_attention(value, level_hw, places, weights)
    got = sample(value, level_hw, x, y, weights)
    assert_same(got, want, 1e-6)
    inputs = (value, places, weights)
    gradients = [torch.autograd.grad(out.square().sum(), inputs, retain_graph=True) for out in (want, got)]
    for one, other in zip(*gradients, strict=True):
        assert_same(one, other, 1e-4)
