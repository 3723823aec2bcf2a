"""Swin and ResNet give the reference's numbers, and each library opens the other's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families.swin import ALL_STAGES, resnet_fields, swin_fields
from tests.parity.segmentation import (
    assert_same,
    assert_same_fields,
    assert_same_settings,
    hand_over,
    random_images,
    shake,
)
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.resnet.modeling import ResNetBackbone
from vitruvian.models.swin.configuration import MaskFormerSwinConfig, SwinConfig
from vitruvian.models.swin.modeling import (
    MaskFormerSwinBackbone,
    SwinBackbone,
    SwinForImageClassification,
    SwinForMaskedImageModeling,
    SwinModel,
)

reference = pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

SIZES = [(64, 96), (52, 75), (40, 33)]
BACKBONES = [
    (reference.SwinBackbone, reference.SwinConfig, SwinBackbone, swin_fields),
    (reference.MaskFormerSwinBackbone, reference.MaskFormerSwinConfig, MaskFormerSwinBackbone, swin_fields),
    (reference.ResNetBackbone, reference.ResNetConfig, ResNetBackbone, resnet_fields),
]


@pytest.mark.parametrize("size", SIZES)
def test_bare_model(tmp_path: Path, size: tuple[int, int]) -> None:
    # Windows of 1 more than the smallest grid would make the reference fail: it shrinks them but not their biases.
    fields = swin_fields(window_size=2, depths=[2, 3, 2, 2])
    theirs = shake(reference.SwinModel(reference.SwinConfig(**fields)))
    ours = hand_over(theirs, SwinModel, tmp_path)
    pixels = random_images(*size)
    with torch.no_grad():
        want = theirs(pixels, output_hidden_states=True)
        got = ours(pixels, output_hidden_states=True)
    assert_same_fields(got, want, ("last_hidden_state", "pooler_output", "hidden_states", "reshaped_hidden_states"))


def test_attention_weights_come_in_the_order_of_the_windows(tmp_path: Path) -> None:
    fields = swin_fields(window_size=2, depths=[2, 2, 2, 2])
    theirs = shake(reference.SwinModel(reference.SwinConfig(**fields, attn_implementation="eager")))
    ours = hand_over(theirs, SwinModel, tmp_path)
    pixels = random_images(52, 75)
    with torch.no_grad():
        want = theirs(pixels, output_attentions=True).attentions
        got = ours(pixels, output_attentions=True).attentions
    assert len(got) == len(want) == 4
    for one, other in zip(got, want, strict=True):
        assert_same(one, other)


def test_masked_patches_and_resized_positions(tmp_path: Path) -> None:
    config = reference.SwinConfig(**swin_fields(window_size=2, use_absolute_embeddings=True))
    theirs = shake(reference.SwinModel(config, use_mask_token=True))
    theirs.save_pretrained(tmp_path)
    ours = SwinModel(SwinConfig.from_pretrained(tmp_path), use_mask_token=True).eval()
    ours.load_state_dict(theirs.state_dict())
    masked = torch.rand(2, 16 * 24, generator=torch.Generator().manual_seed(3)) > 0.5
    with torch.no_grad():
        given: dict[str, Any] = {"bool_masked_pos": masked, "interpolate_pos_encoding": True}
        assert_same(ours(random_images(64, 96), **given)[0], theirs(random_images(64, 96), **given)[0])


@pytest.mark.parametrize(
    ("labels", "problem_type"),
    [(torch.tensor([1, 0]), None), (torch.rand(2, 3), None), (torch.rand(2, 3), "regression")],
    ids=["single", "multi", "regression"],
)
def test_classifier(labels: torch.Tensor, problem_type: str | None, tmp_path: Path) -> None:
    config = reference.SwinConfig(**swin_fields(window_size=2), num_labels=3, problem_type=problem_type)
    theirs = shake(reference.SwinForImageClassification(config))
    ours = hand_over(theirs, SwinForImageClassification, tmp_path)
    pixels = random_images(64, 96)
    with torch.no_grad():
        assert_same_fields(ours(pixels, labels), theirs(pixels, labels), ("loss", "logits"))


def test_masked_image_modeling(tmp_path: Path) -> None:
    config = reference.SwinConfig(**swin_fields(window_size=2, image_size=64), encoder_stride=32)
    theirs = shake(reference.SwinForMaskedImageModeling(config))
    ours = hand_over(theirs, SwinForMaskedImageModeling, tmp_path)
    masked = torch.rand(2, 16 * 16, generator=torch.Generator().manual_seed(3)) > 0.5
    pixels = random_images(64, 64)
    with torch.no_grad():
        got, want = ours(pixels, masked), theirs(pixels, masked)
    assert_same_fields(got, want, ("loss", "reconstruction"))


@pytest.mark.parametrize(("their_cls", "their_config", "our_cls", "fields"), BACKBONES)
@pytest.mark.parametrize("size", SIZES)
def test_backbones(
    tmp_path: Path, their_cls: Any, their_config: Any, our_cls: Any, fields: Any, size: tuple[int, int]
) -> None:
    theirs = shake(their_cls(their_config(**fields(out_features=["stage1", "stage3", "stage4"]))))
    ours = hand_over(theirs, our_cls, tmp_path)
    pixels = random_images(*size)
    with torch.no_grad():
        assert_same_fields(ours(pixels), theirs(pixels), ("feature_maps",))
    assert ours.channels == theirs.channels
    assert ours.out_features == theirs.out_features


@pytest.mark.parametrize(("their_cls", "their_config", "our_cls", "fields"), BACKBONES)
def test_the_reference_opens_our_files(
    tmp_path: Path, their_cls: Any, their_config: Any, our_cls: Any, fields: Any
) -> None:
    ours = shake(our_cls(our_cls.config_class(**fields(out_features=ALL_STAGES))))
    theirs = hand_over(ours, their_cls, tmp_path)
    pixels = random_images(52, 75)
    with torch.no_grad():
        assert_same_fields(ours(pixels), theirs(pixels), ("feature_maps",))


def test_basic_blocks_and_strides(tmp_path: Path) -> None:
    for extra in (
        {"layer_type": "basic", "downsample_in_first_stage": True},
        {"downsample_in_bottleneck": True, "hidden_act": "silu"},
    ):
        theirs = shake(
            reference.ResNetBackbone(reference.ResNetConfig(**resnet_fields(out_features=ALL_STAGES, **extra)))
        )
        ours = hand_over(theirs, ResNetBackbone, tmp_path / extra.get("layer_type", "bottleneck"))
        pixels = random_images(52, 75)
        with torch.no_grad():
            assert_same_fields(ours(pixels), theirs(pixels), ("feature_maps",))


def test_gradients(tmp_path: Path) -> None:
    theirs = shake(reference.SwinBackbone(reference.SwinConfig(**swin_fields(out_features=ALL_STAGES))))
    ours = hand_over(theirs, SwinBackbone, tmp_path)
    pixels = random_images(52, 75)
    for model in (theirs, ours):
        maps = model(pixels).feature_maps
        weights = [torch.randn(m.shape, generator=torch.Generator().manual_seed(i)) for i, m in enumerate(maps)]
        sum((m * w).sum() for m, w in zip(maps, weights, strict=True)).backward()
    want = {name: p.grad for name, p in theirs.named_parameters()}
    got = {name: p.grad for name, p in ours.named_parameters()}
    for name in (
        "swin.embeddings.patch_embeddings.projection.weight",
        "swin.encoder.layers.1.blocks.1.attention.relative_position_bias.relative_position_bias_table",
        "swin.encoder.layers.0.blocks.1.attention.k_proj.weight",
        "swin.encoder.layers.2.downsample.reduction.weight",
        "swin.encoder.layers.3.blocks.0.mlp.fc2.weight",
    ):
        assert_same(got[name], want[name], 1e-4, name)


def test_configurations_have_the_same_defaults() -> None:
    for ours, theirs in (
        (SwinConfig(), reference.SwinConfig()),
        (MaskFormerSwinConfig(), reference.MaskFormerSwinConfig()),
        (ResNetConfig(), reference.ResNetConfig()),
    ):
        assert_same_settings(ours, theirs)
