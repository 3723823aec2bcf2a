"""MaskFormer and Mask2Former give the reference's numbers and losses, and each library opens the other's files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families import mask2former, maskformer
from tests.families.maskformer import NUM_LABELS
from tests.families.swin import ALL_STAGES, resnet_fields, swin_fields
from tests.parity.segmentation import (
    assert_same,
    assert_same_fields,
    assert_same_settings,
    hand_over,
    objects,
    random_images,
    shake,
)
from vitruvian import (
    Mask2FormerForUniversalSegmentation,
    Mask2FormerModel,
    MaskFormerForInstanceSegmentation,
    MaskFormerModel,
    ResNetConfig,
)
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


@dataclass(frozen=True)
class Family:
    """A family in both libraries."""

    cls: Any
    tiny: Any
    tolerance: float

    def their_config(self, *, resnet: bool = False, **fields: Any) -> Any:
        """The reference's configuration of a tiny model."""
        backbone = (
            reference.ResNetConfig(**resnet_fields(out_features=ALL_STAGES))
            if resnet
            else reference.SwinConfig(**swin_fields(out_features=ALL_STAGES))
        )
        if self is MASK2FORMER:
            return reference.Mask2FormerConfig(**mask2former.tiny_fields(backbone_config=backbone, **fields))
        decoder = reference.DetrConfig(**maskformer.detr_fields())
        base = {"fpn_feature_size": 32, "mask_feature_size": 24, "num_labels": NUM_LABELS}
        return reference.MaskFormerConfig(**(base | {"backbone_config": backbone, "decoder_config": decoder} | fields))

    def both(self, folder: Path, **fields: Any) -> tuple[Any, Any]:
        """Our model and the reference's, with the same weights."""
        theirs = shake(getattr(reference, self.cls.__name__)(self.their_config(**fields)))
        return hand_over(theirs, self.cls, folder), theirs


MASKFORMER = Family(MaskFormerForInstanceSegmentation, maskformer.tiny, 2e-5)
# Masks cut at a threshold steer the attention.
MASK2FORMER = Family(Mask2FormerForUniversalSegmentation, mask2former.tiny, 1e-4)
both_families = pytest.mark.parametrize("family", [MASKFORMER, MASK2FORMER], ids=["maskformer", "mask2former"])


def assert_same_gradients(ours: Any, theirs: Any, tolerance: float) -> None:
    """Compare the gradients of parameters that have the same name in both libraries' modules."""
    found = dict(theirs.named_parameters())
    shared = [(name, p) for name, p in ours.named_parameters() if name in found and p.grad is not None]
    assert len(shared) > 40
    for name, parameter in shared:
        assert_same(parameter.grad, found[name].grad, tolerance, name)


def assert_same_terms(got: dict[str, Any], want: dict[str, Any], tolerance: float) -> None:
    """Compare the terms of losses."""
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert_same(got[name], value, tolerance, name)


# ------------------------------------------------------------------------------------------------------- both


@both_families
def test_pixel_masks(family: Family, tmp_path: Path) -> None:
    """The reference computes padding as a part of images; without it, a batch gives the results of single images."""
    ours, theirs = family.both(tmp_path)
    mask, pixels = torch.ones(2, 64, 96, dtype=torch.int64), random_images(64, 96)
    mask[1, 40:] = 0
    mask[1, :, 60:] = 0
    with torch.no_grad():
        want = theirs(pixels, pixel_mask=mask)
        apart, single = ours(pixels, pixel_mask=mask), theirs(pixels[1:, :, :40, :60])
        ours.config.use_pixel_mask = False
        assert_same_fields(ours(pixels, pixel_mask=mask), want, LOGITS, family.tolerance)
    assert_same(apart.class_queries_logits[0], want.class_queries_logits[0], family.tolerance)
    assert_same(apart.class_queries_logits[1], single.class_queries_logits[0], family.tolerance)
    assert_same(apart.masks_queries_logits[1, :, :10, :15], single.masks_queries_logits[0], family.tolerance)


@both_families
@pytest.mark.parametrize("resnet", [False, True])
def test_the_reference_opens_our_files(family: Family, tmp_path: Path, resnet: bool) -> None:
    backbone = {"backbone_config": ResNetConfig(**resnet_fields(out_features=ALL_STAGES))} if resnet else {}
    ours = shake(family.cls(family.tiny(**backbone)))
    theirs = hand_over(ours, getattr(reference, family.cls.__name__), tmp_path)
    with torch.no_grad():
        assert_same_fields(ours(random_images(52, 75)), theirs(random_images(52, 75)), LOGITS, family.tolerance)
    assert theirs.criterion.empty_weight[-1] == pytest.approx(0.1)


@both_families
def test_configurations_have_the_same_defaults(family: Family) -> None:
    config_class = family.cls.config_class
    assert_same_settings(config_class(), getattr(reference, config_class.__name__)())


# ------------------------------------------------------------------------------------------------------- MaskFormer


@pytest.mark.parametrize("resnet", [False, True])
@pytest.mark.parametrize("size", [(64, 96), (52, 75)])
def test_maskformer_logits_and_hidden_states(tmp_path: Path, size: tuple[int, int], resnet: bool) -> None:
    ours, theirs = MASKFORMER.both(tmp_path, resnet=resnet)
    pixels = random_images(*size)
    with torch.no_grad():
        got, want = ours(pixels, output_hidden_states=True), theirs(pixels, output_hidden_states=True)
    assert_same_fields(got, want, (*LOGITS, *STATES, "hidden_states"))
    with torch.no_grad():
        bare = hand_over(theirs, MaskFormerModel, tmp_path)(pixels, output_hidden_states=True)
    assert_same_fields(bare, want, (*STATES, "hidden_states"))


def test_attention_weights(tmp_path: Path) -> None:
    ours, theirs = MASKFORMER.both(tmp_path)
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        got = ours(random_images(64, 96), output_attentions=True)
        want = theirs(random_images(64, 96), output_attentions=True)
    assert_same_fields(got, want, ("attentions",))


@pytest.mark.parametrize("size", [(64, 96), (50, 70)])
def test_losses_and_gradients(tmp_path: Path, size: tuple[int, int]) -> None:
    weights = {"no_object_weight": 0.3, "dice_weight": 1.7, "cross_entropy_weight": 0.6, "mask_weight": 9.0}
    ours, theirs = MASKFORMER.both(tmp_path, **weights)
    given = {"pixel_values": random_images(64, 96), **objects(*size, (3, 1), NUM_LABELS)}
    got, want = ours(**given), theirs(**given)
    assert_same(got.loss, want.loss, 1e-5)
    terms = theirs.criterion(
        want.masks_queries_logits, want.class_queries_logits, given["mask_labels"], given["class_labels"]
    )
    assert_same_terms(got.loss_terms, terms, 1e-5)
    got.loss.backward()
    want.loss.backward()
    assert_same_gradients(ours, theirs, 2e-4)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.float32])
def test_labels_of_every_type_and_rle(tmp_path: Path, kind: torch.dtype) -> None:
    from vitruvian.images.rle import encode_rle

    ours, theirs = MASKFORMER.both(tmp_path)
    given = objects(64, 96, (3, 1), NUM_LABELS)
    with torch.no_grad():
        want = theirs(random_images(64, 96), **given).loss
        typed = [masks.to(kind) for masks in given["mask_labels"]]
        assert_same(ours(random_images(64, 96), typed, given["class_labels"]).loss, want, 1e-5)
        runs = [[encode_rle(mask.bool(), compress=kind is torch.bool) for mask in masks] for masks in typed]
        assert_same(ours(random_images(64, 96), runs, given["class_labels"]).loss, want, 1e-5)


def test_auxiliary_predictions_are_what_the_reference_heads_say_of_normed_layers(tmp_path: Path) -> None:
    # The reference itself predicts from the zeros before the first layer and from layers without their norm (and only
    # where hidden states were requested); the published weights were trained on normed layers.
    ours, theirs = MASKFORMER.both(tmp_path, use_auxiliary_loss=True)
    pixels, given = random_images(64, 96), objects(64, 96, (3, 1), NUM_LABELS)
    got = ours(pixels, **given, output_auxiliary_logits=True)
    want = theirs(pixels, **given, output_hidden_states=True)
    heads = [
        {
            "class_queries_logits": theirs.class_predictor(normed),
            "masks_queries_logits": torch.einsum(
                "bqc,bchw->bqhw", theirs.mask_embedder(normed), want.pixel_decoder_last_hidden_state
            ),
        }
        for normed in map(
            theirs.model.transformer_module.decoder.layernorm, want.transformer_decoder_hidden_states[1:-1]
        )
    ]
    assert len(got.auxiliary_logits) == len(heads) == 2
    for one, other in zip(got.auxiliary_logits, heads, strict=True):
        for name in LOGITS:
            assert_same(one[name], other[name], what=name)
    terms = theirs.criterion(*(getattr(want, name) for name in reversed(LOGITS)), **given, auxiliary_predictions=heads)
    assert_same_terms(got.loss_terms, terms, 1e-5)
    total = sum(theirs.weight_dict[name.rstrip("_0123456789")] * value for name, value in terms.items())
    assert_same(got.loss, total, 1e-5)


def test_auxiliary_predictions_of_the_reference(tmp_path: Path) -> None:
    ours, theirs = MASKFORMER.both(tmp_path, use_auxiliary_loss=True)
    ours.config.norm_auxiliary_states = False
    pixels, given = random_images(64, 96), objects(64, 96, (3, 1), NUM_LABELS)
    got = ours(pixels, **given, output_auxiliary_logits=True)
    want = theirs(pixels, **given, output_auxiliary_logits=True, output_hidden_states=True)  # it needs them
    assert len(got.auxiliary_logits) == len(want.auxiliary_logits) == 3
    assert_same(got.loss, want.loss, 1e-5)
    logits = {name: got[name] for name in LOGITS}
    terms = ours.get_loss_dict(**logits, **given, auxiliary_predictions=got.auxiliary_logits)
    assert_same(ours.get_loss(terms), want.loss, 1e-5)


def test_files_as_they_were_published(tmp_path: Path) -> None:
    """A plain Swin without out_features, a decoder with fields of its day, and a buffer that follows from the rest."""
    _, theirs = MASKFORMER.both(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    values["backbone_config"] |= {"model_type": "swin", "path_norm": True, "in_channels": 3, "pretrain_img_size": 64}
    for name in ("out_features", "out_indices", "stage_names"):
        del values["backbone_config"][name]
    values["decoder_config"] = {key: value for key, value in values["decoder_config"].items() if "backbone" not in key}
    values["decoder_config"] |= {"backbone": "resnet50", "max_position_embeddings": 1024, "scale_embedding": False}
    values |= {"torch_dtype": "float32", "num_queries": 7, "transformers_version": None}
    path.write_text(json.dumps(values))
    again = MaskFormerForInstanceSegmentation.from_pretrained(tmp_path)
    with torch.no_grad():
        assert_same_fields(again(random_images(52, 75)), theirs(random_images(52, 75)), LOGITS)
    again.save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert saved["decoder_config"]["max_position_embeddings"] == 1024
    assert saved["backbone_config"]["pretrain_img_size"] == 64


# ------------------------------------------------------------------------------------------------------- Mask2Former


@pytest.mark.parametrize(
    "fields",
    [{}, {"pre_norm": True}, {"enforce_input_projection": True}, {"hidden_dim": 48}, {"resnet": True}],
    ids=lambda fields: "-".join(fields) or "plain",
)
@pytest.mark.parametrize("size", [(64, 96), (52, 75)])
def test_mask2former_logits_and_hidden_states(tmp_path: Path, size: tuple[int, int], fields: dict[str, Any]) -> None:
    # In float64: masks cut at a threshold steer the attention, and rounding in float32 can turn a pixel over.
    ours, theirs = (model.double() for model in MASK2FORMER.both(tmp_path, **fields))
    pixels, options = random_images(*size).double(), {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        got, want = ours(pixels, **options), theirs(pixels, **options, output_auxiliary_logits=True)
        all_masks = ours(pixels, **options, output_auxiliary_logits=True)
        bare, their_bare = (
            hand_over(theirs, Mask2FormerModel, tmp_path).double()(pixels, **options),
            theirs.model(pixels, **options),
        )
    assert got.auxiliary_logits is None
    assert_same_fields(got, want, (*LOGITS, *STATES, "attentions"), MASK2FORMER.tolerance)
    assert_same_fields(all_masks, want, LOGITS, MASK2FORMER.tolerance)
    assert len(all_masks.auxiliary_logits) == len(want.auxiliary_logits) == 4
    for one, other in zip(all_masks.auxiliary_logits, want.auxiliary_logits, strict=True):
        for name in LOGITS:
            assert_same(one[name], other[name], MASK2FORMER.tolerance, name)
    names = (*STATES, "transformer_decoder_intermediate_states", "masks_queries_logits", "attentions")
    assert_same_fields(bare, their_bare, names, MASK2FORMER.tolerance)


@pytest.mark.parametrize("size", [(64, 96), (50, 70)])
@pytest.mark.parametrize("ratio", [0.75, 1.0])
def test_losses_draw_the_same_points(tmp_path: Path, size: tuple[int, int], ratio: float) -> None:
    weights = {"no_object_weight": 0.3, "dice_weight": 1.7, "class_weight": 0.6, "mask_weight": 9.0}
    ours, theirs = MASK2FORMER.both(tmp_path, **weights, importance_sample_ratio=ratio, oversample_ratio=2.5)
    given = objects(*size, (3, 1), NUM_LABELS)
    with torch.no_grad():
        found = theirs(random_images(64, 96), output_auxiliary_logits=True)
        arguments = {name: getattr(found, name) for name in LOGITS} | given
        torch.manual_seed(7)
        want = theirs.criterion(**arguments, auxiliary_predictions=found.auxiliary_logits)
        torch.manual_seed(7)
        got = ours.criterion(**arguments, auxiliary_predictions=found.auxiliary_logits)
    assert_same_terms(got.terms, want, MASK2FORMER.tolerance)
    total = sum(theirs.weight_dict[name.rstrip("_0123456789")] * value for name, value in want.items())
    assert_same(got.total, total, MASK2FORMER.tolerance)


def test_gradients_of_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = MASK2FORMER.both(tmp_path)
    given = {"pixel_values": random_images(64, 96), **objects(64, 96, (3, 1), NUM_LABELS)}
    draw = torch.rand

    def fixed(*shape: Any, **options: Any) -> torch.Tensor:
        """The same points for each shape, whoever asks and in whatever order."""
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return draw(sizes, generator=torch.Generator().manual_seed(len(sizes) + sum(sizes)))

    monkeypatch.setattr(torch, "rand", fixed)
    got, want = ours(**given), theirs(**given)
    assert_same(got.loss, want.loss, MASK2FORMER.tolerance)
    got.loss.backward()
    want.loss.backward()
    assert_same_gradients(ours, theirs, 1e-3)


@pytest.mark.parametrize("sample", [_sum_of_rows, _sum_of_grid_samples])
def test_deformable_attention(sample: Any) -> None:
    from transformers.models.mask2former.modeling_mask2former import multi_scale_deformable_attention

    generator = torch.Generator().manual_seed(0)
    level_hw = ((3, 4), (6, 7), (11, 14))
    value = torch.randn(2, 12 + 42 + 154, 3, 5, generator=generator, requires_grad=True)
    # Far enough out that some points miss their level on every side.
    locations = (torch.rand(2, 9, 3, 3, 4, 2, generator=generator) * 1.6 - 0.3).requires_grad_()
    weights = torch.rand(2, 9, 3, 3, 4, generator=generator, requires_grad=True)
    sizes = torch.tensor([(width, height) for height, width in level_hw]).float()[:, None]
    x, y = (locations * sizes - 0.5).unbind(-1)
    want = multi_scale_deformable_attention(value, level_hw, locations, weights)
    got = sample(value, level_hw, x, y, weights)
    assert_same(got, want, 1e-6)
    inputs = (value, locations, weights)
    gradients = [torch.autograd.grad(out.square().sum(), inputs, retain_graph=True) for out in (want, got)]
    for one, other in zip(*gradients, strict=True):
        assert_same(one, other, 1e-4)
