"""What MaskFormer does beyond the family suite; both mask families where they share it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families import mask2former, maskformer
from tests.families.swin import ALL_STAGES, resnet_fields, swin_fields
from vitruvian.errors import ConfigError, InputError, NewWeightsWarning
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.modeling import Mask2FormerForUniversalSegmentation, Mask2FormerModel
from vitruvian.models.mask2former.processing import Mask2FormerImageProcessor
from vitruvian.models.mask_classification.padding import PADDING_LOGIT
from vitruvian.models.maskformer.configuration import DetrConfig, MaskFormerConfig
from vitruvian.models.maskformer.modeling import MaskFormerForInstanceSegmentation, MaskFormerModel
from vitruvian.models.maskformer.processing import MaskFormerImageProcessor
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.resnet.modeling import ResNetBackbone
from vitruvian.models.swin.configuration import MaskFormerSwinConfig, SwinConfig
from vitruvian.models.swin.modeling import MaskFormerSwinBackbone, SwinBackbone

FAMILIES = [
    (MaskFormerForInstanceSegmentation, maskformer.tiny, MaskFormerImageProcessor),
    (Mask2FormerForUniversalSegmentation, mask2former.tiny, Mask2FormerImageProcessor),
]
both_families = pytest.mark.parametrize(("cls", "tiny", "processor"), FAMILIES, ids=["maskformer", "mask2former"])


def lively(model: Any) -> Any:
    """Weights large enough for queries to differ."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def assert_equal_but_rounding(one: torch.Tensor, other: torch.Tensor) -> None:
    """Sums of large numbers may be close to zero: rounding is relative to the largest value."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.abs().max())))


@both_families
@pytest.mark.parametrize("resnet", [False, True])
def test_a_mixed_batch_computes_what_single_images_do(cls: Any, tiny: Any, processor: Any, resnet: bool) -> None:
    backbone = {"backbone_config": ResNetConfig(**resnet_fields(out_features=ALL_STAGES))} if resnet else {}
    model = lively(cls(tiny(use_auxiliary_loss=True, **backbone)))
    torch.manual_seed(1)
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in ((64, 96), (50, 70), (64, 96), (81, 33))]
    prepare = processor(do_resize=False)
    batch = prepare(images, return_tensors="pt")
    assert batch.pixel_values.shape == (4, 3, 81, 96)
    options = {"output_hidden_states": True, "output_attentions": True, "output_auxiliary_logits": True}
    with torch.no_grad():
        together = model(**batch, **options)
        alone = [model(**prepare([image], return_tensors="pt"), **options) for image in images]
    for index, single in enumerate(alone):
        torch.testing.assert_close(together.class_queries_logits[index], single.class_queries_logits[0])
        height, width = single.masks_queries_logits.shape[-2:]
        masks = together.masks_queries_logits[index]
        assert_equal_but_rounding(masks[:, :height, :width], single.masks_queries_logits[0])
        assert (masks[:, height:] == PADDING_LOGIT).all()
        assert (masks[:, :, width:] == PADDING_LOGIT).all()
        for one, other in zip(together.encoder_hidden_states, single.encoder_hidden_states, strict=True):
            part = one[index, :, : other.shape[-2], : other.shape[-1]]
            assert_equal_but_rounding(part, other[0])
        for one, other in zip(together.auxiliary_logits, single.auxiliary_logits, strict=True):
            torch.testing.assert_close(one["class_queries_logits"][index], other["class_queries_logits"][0])
        torch.testing.assert_close(together.attentions[-1][index], single.attentions[-1][0])


@both_families
def test_results_of_a_mixed_batch_are_those_of_single_images(cls: Any, tiny: Any, processor: Any) -> None:
    """With nothing but defaults: what a person writes who does not think of padding."""
    torch.manual_seed(1)
    model = lively(cls(tiny()))
    prepare = processor(size={"shortest_edge": 64, "longest_edge": 110})
    sizes = [(64, 96), (50, 70), (90, 41)]
    torch.manual_seed(1)
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in sizes]
    with torch.no_grad():
        batch = prepare(images, return_tensors="pt")
        assert (batch.pixel_mask == 0).any()
        together = model(**batch)
        alone = [model(**prepare(image, return_tensors="pt")) for image in images]

    def results(outputs: Any, target_sizes: list[tuple[int, int]]) -> list[tuple[Any, ...]]:
        low = {"threshold": 0.1, "overlap_mask_area_threshold": 0.1, "target_sizes": target_sizes}
        return list(
            zip(
                prepare.post_process_semantic_segmentation(outputs, target_sizes),
                prepare.post_process_instance_segmentation(outputs, **low),
                prepare.post_process_panoptic_segmentation(outputs, **low),
                strict=True,
            )
        )

    for found, single, size in zip(results(together, sizes), alone, sizes, strict=True):
        want = results(single, [size])[0]
        assert found[0].shape == size
        assert (found[0] == want[0]).float().mean() > 0.999
        assert want[2]["segments_info"]
        for one, other in zip(found[1:], want[1:], strict=True):
            assert [s["label_id"] for s in one["segments_info"]] == [s["label_id"] for s in other["segments_info"]]
            scores = [[s["score"] for s in result["segments_info"]] for result in (one, other)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-4)
            assert (one["segmentation"] == other["segmentation"]).float().mean() > 0.999


@both_families
def test_who_sees_padding(cls: Any, tiny: Any, processor: Any) -> None:
    model = lively(cls(tiny()))
    pixels = torch.randn(2, 3, 64, 96)
    mask = torch.ones(2, 64, 96)
    mask[1, 40:] = 0
    labels = maskformer.labels(2, torch.Generator().manual_seed(0))

    def classes(**given: Any) -> torch.Tensor:
        torch.manual_seed(0)
        with torch.no_grad():
            return model(pixels, **given).class_queries_logits

    plain = classes()
    assert torch.equal(classes(pixel_mask=torch.ones(2, 64, 96)), plain)
    cut = classes(pixel_mask=mask)
    torch.testing.assert_close(cut[0], plain[0])
    assert not torch.allclose(cut[1], plain[1])
    assert torch.equal(classes(pixel_mask=mask, **labels), plain)  # labels: as the published weights were trained
    model.config.use_pixel_mask = True
    assert torch.equal(classes(pixel_mask=mask, **labels), cut)
    model.config.use_pixel_mask = False
    assert torch.equal(classes(pixel_mask=mask), plain)


@both_families
def test_calls_that_a_cuda_graph_can_capture(
    cls: Any, tiny: Any, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lively(cls(tiny()))
    pixels, mask, captured = torch.randn(2, 3, 64, 96), torch.ones(2, 64, 96), []
    padded = mask.clone()
    padded[1, 40:] = 0
    with torch.no_grad():
        full, want = model(pixels)[0], model(pixels, pixel_mask=padded)[0]
        model.optimize()
        monkeypatch.setattr(model.graphs, "accepts", lambda args, kwargs: captured.append(set(kwargs)) or False)
        model(pixels, output_attentions=True)
        assert torch.equal(model(pixels, pixel_mask=mask)[0], full)
        assert captured == [{"pixel_values", "output_attentions"}, {"pixel_values"}]
        assert torch.equal(model(pixels, pixel_mask=padded)[0], want)  # padding
        model(pixels, **maskformer.labels(2, torch.Generator().manual_seed(0)))
        assert len(captured) == 2
        model.config.use_pixel_mask = False
        model(pixels, pixel_mask=padded)
        assert captured[2:] == [{"pixel_values"}]
        with pytest.raises(InputError, match=r"pixel_mask: expected shape \[2, 64, 96\]"):
            model(pixels, pixel_mask=mask[:1])


@both_families
def test_masked_batches_train(cls: Any, tiny: Any, processor: Any) -> None:
    model = lively(cls(tiny(use_pixel_mask=True))).train()
    given = maskformer.labels(2, torch.Generator().manual_seed(0))
    mask = torch.ones(2, 64, 96)
    mask[1, 40:] = 0
    model(torch.randn(2, 3, 64, 96), pixel_mask=mask, **given).loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@both_families
def test_bad_inputs(cls: Any, tiny: Any, processor: Any) -> None:
    model = cls(tiny(use_pixel_mask=True))
    pixels = torch.zeros(2, 3, 64, 96)
    with pytest.raises(InputError, match=r"pixel_mask: expected shape \[2, 64, 96\]"):
        model(pixels, pixel_mask=torch.ones(2, 32, 96))
    with pytest.raises(InputError, match=r"pixel_mask\[1\]"):
        model(pixels, pixel_mask=torch.tensor([1, 0])[:, None, None].expand(2, 64, 96))
    with pytest.raises(InputError, match="both"):
        model(pixels, mask_labels=[torch.ones(1, 64, 96)] * 2)


@both_families
def test_class_weights_follow_the_configuration_not_the_file(
    cls: Any, tiny: Any, processor: Any, tmp_path: Path
) -> None:
    cls(tiny()).save_pretrained(tmp_path)
    assert cls.from_pretrained(tmp_path).criterion.empty_weight.tolist() == pytest.approx([1.0] * 5 + [0.1])
    changed = cls.from_pretrained(tmp_path, no_object_weight=0.7)
    assert changed.criterion.empty_weight[-1] == pytest.approx(0.7)
    assert changed.criterion.no_object_weight == 0.7


@both_families
def test_a_new_number_of_labels_starts_a_new_class_head_alone(
    cls: Any, tiny: Any, processor: Any, tmp_path: Path
) -> None:
    old = cls(tiny())
    old.save_pretrained(tmp_path)
    with pytest.warns(NewWeightsWarning, match="class_predictor"):
        new = cls.from_pretrained(tmp_path, num_labels=2)
    assert new.class_predictor.weight.shape[0] == 3
    same = [name for name in old.state_dict() if "class_predictor" not in name and "empty_weight" not in name]
    assert all(torch.equal(new.state_dict()[name], old.state_dict()[name]) for name in same)


@both_families
def test_every_loss_weight_changes_the_loss(cls: Any, tiny: Any, processor: Any) -> None:
    names = ["no_object_weight", "mask_weight", "dice_weight"]
    names.append("class_weight" if tiny is mask2former.tiny else "cross_entropy_weight")
    given = maskformer.labels(2, torch.Generator().manual_seed(0))
    pixels = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))

    def loss(**fields: Any) -> float:
        torch.manual_seed(0)
        model = cls(tiny(**fields)).eval()
        torch.manual_seed(0)
        with torch.no_grad():
            return float(model(pixels, **given).loss)

    base = loss()
    for name in names:
        assert abs(loss(**{name: getattr(tiny(), name) * 1.5}) - base) > 1e-3, name


def test_auxiliary_predictions_exist_only_where_they_are_trained() -> None:
    pixels = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        without = MaskFormerForInstanceSegmentation(maskformer.tiny()).eval()(pixels, output_auxiliary_logits=True)
        model = MaskFormerForInstanceSegmentation(maskformer.tiny(use_auxiliary_loss=True)).eval()
        found = model(pixels, output_auxiliary_logits=True)
    assert without.auxiliary_logits == []
    assert len(found.auxiliary_logits) == 2
    assert model(pixels).auxiliary_logits is None
    model.config.output_auxiliary_logits = True
    assert len(model(pixels).auxiliary_logits) == 2


def test_configurations_from_parts() -> None:
    swin, resnet = (
        SwinConfig(**swin_fields(out_features=ALL_STAGES)),
        ResNetConfig(**resnet_fields(out_features=ALL_STAGES)),
    )
    config = MaskFormerConfig.from_backbone_and_decoder_configs(swin, DetrConfig(num_queries=9), mask_weight=3.0)
    assert (config.decoder_config.num_queries, config.mask_weight, config.backbone_config) == (9, 3.0, swin)
    config = Mask2FormerConfig.from_backbone_config(resnet, num_queries=8)
    assert (config.num_queries, config.backbone_config) == (8, resnet)
    assert Mask2FormerConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("config", [MaskFormerConfig, Mask2FormerConfig])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone_config": {"model_type": "vit"}}, "vit"),
        ({"use_timm_backbone": True}, "timm"),
        ({"backbone_config": {"model_type": "swin"}, "backbone": "owner/name"}, "both"),
        ({"mask_weight": -1.0}, "mask_weight"),
        ({"mask_weigth": 1.0}, "mask_weight"),
        ({"backbone_config": 3}, "backbone_config"),
    ],
)
def test_impossible_configurations(config: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**fields)


def test_impossible_configurations_of_one_family() -> None:
    for config, fields, message in (
        (MaskFormerConfig, {"decoder_config": {"model_type": "bart"}}, "bart"),
        (MaskFormerConfig, {"fpn_feature_size": 30}, "32"),
        (DetrConfig, {"d_model": 30}, "d_model"),
        (Mask2FormerConfig, {"feature_size": 48}, "feature_size"),
        (Mask2FormerConfig, {"decoder_layers": 1}, "decoder_layers"),
        (Mask2FormerConfig, {"importance_sample_ratio": 2.0}, "importance_sample_ratio"),
    ):
        with pytest.raises(ConfigError, match=message):
            config(**fields).validate()  # as a model that is built from it does
    with pytest.raises(ConfigError, match="out_features"):
        MaskFormerModel(maskformer.tiny(backbone_config=MaskFormerSwinConfig(**swin_fields())))
    with pytest.raises(ConfigError, match="out_features"):
        Mask2FormerModel(mask2former.tiny(backbone_config=SwinConfig(**swin_fields())))


@pytest.mark.parametrize(
    ("cls", "backbone_cls", "fields"),
    [
        (Mask2FormerModel, SwinBackbone, swin_fields),
        (Mask2FormerModel, ResNetBackbone, resnet_fields),
        (MaskFormerModel, ResNetBackbone, resnet_fields),
        (MaskFormerModel, MaskFormerSwinBackbone, swin_fields),
    ],
)
def test_backbones_by_name(cls: Any, backbone_cls: Any, fields: Any, tmp_path: Path) -> None:
    backbone = lively(backbone_cls(backbone_cls.config_class(**fields(out_features=ALL_STAGES))))
    backbone.save_pretrained(tmp_path)
    tiny = mask2former.tiny if cls is Mask2FormerModel else maskformer.tiny
    fresh = cls(tiny(backbone_config=None, backbone=str(tmp_path)))
    trained = cls(tiny(backbone_config=None, backbone=str(tmp_path), use_pretrained_backbone=True))
    name, value = next(iter(backbone.state_dict().items()))
    assert not torch.equal(fresh.pixel_level_module.encoder.state_dict()[name], value)
    for name, value in backbone.state_dict().items():
        assert torch.equal(trained.pixel_level_module.encoder.state_dict()[name], value), name
    assert trained.config.backbone_config.out_features == ALL_STAGES
    trained.save_pretrained(tmp_path / "whole")
    (tmp_path / "config.json").unlink()  # the whole checkpoint stands on its own
    assert cls.from_pretrained(tmp_path / "whole").num_parameters() == trained.num_parameters()
    with pytest.raises(ConfigError, match=r"config\.json"):
        tiny(backbone_config=None, backbone=str(tmp_path))
