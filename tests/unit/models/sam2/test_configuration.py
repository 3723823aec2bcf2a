"""Settings of SAM 2: the published sizes, other image sizes, spellings of files, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.families.sam2 import hiera_fields, model_fields, tiny, vision_fields
from vitruvian.errors import ConfigError, InputError
from vitruvian.models.sam2.configuration import (
    Sam2Config,
    Sam2HieraDetConfig,
    Sam2MaskDecoderConfig,
    Sam2PromptEncoderConfig,
    Sam2VisionConfig,
)
from vitruvian.models.sam2.hiera import Sam2HieraDetModel
from vitruvian.models.sam2.modeling import Sam2Model

MILLIONS = {
    "tiny": 31.440721,
    "small": 38.538577,
    "base-plus": 73.328401,
    "large": 216.924865,
}  # counted with the reference


@pytest.mark.parametrize("name", MILLIONS)
def test_published_sizes_run_at_1024(name: str) -> None:
    with torch.device("meta"):
        model = Sam2Model(Sam2Config.variant(name)).eval()
        out = model(torch.zeros(1, 3, 1024, 1024), input_boxes=torch.zeros(1, 2, 4))
    assert model.num_parameters() / 1e6 == pytest.approx(MILLIONS[name], abs=1e-7)
    assert out.pred_masks.shape == (1, 2, 3, 256, 256)
    assert [tuple(level.shape[1:]) for level in out.image_embeddings] == [(32, 256, 256), (64, 128, 128), (256, 64, 64)]


def test_names_of_sizes_as_people_write_them() -> None:
    want = Sam2Config.variant("base-plus")
    for name in ("base_plus", "facebook/sam2.1-hiera-base-plus", "sam2.1_hiera_base_plus", "SAM2-Hiera-Base-Plus"):
        assert Sam2Config.variant(name) == want
    with pytest.raises(ConfigError, match=r"tiny, small.*large"):
        Sam2Config.variant("huge")


@pytest.mark.parametrize("size", [512, (768, 1024), [64, 96]])
def test_other_sizes_and_aspect_ratios(size: Any) -> None:
    config = tiny().with_image_size(size)
    height, width = (size, size) if isinstance(size, int) else size
    assert config.vision_config.backbone_feature_sizes == [[height // s, width // s] for s in (4, 8, 16)]
    with torch.device("meta"):
        out = Sam2Model(config).eval()(torch.zeros(1, 3, height, width))
    assert out.pred_masks.shape == (1, 1, 3, height // 4, width // 4)
    assert Sam2Config.from_dict(config.to_dict()) == config


def test_the_same_weights_serve_another_size() -> None:
    model = Sam2Model(tiny())
    other = Sam2Model(tiny().with_image_size((96, 64)))
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert other.eval()(torch.randn(1, 3, 96, 64)).pred_masks.isfinite().all()


@pytest.mark.parametrize("size", [1000, 16, (64, 70)])
def test_sizes_that_cannot_be_cut_into_windows_are_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="multiples of 32"):
        tiny().with_image_size(size)


def test_wrong_sizes_are_refused_by_the_backbone_and_the_model() -> None:
    with pytest.raises(InputError, match=r"multiples of 32 and 32, got 70 × 64"):
        Sam2HieraDetModel(Sam2HieraDetConfig(**hiera_fields()))(torch.zeros(1, 3, 70, 64))
    with pytest.raises(InputError, match=r"expected images of 64 × 64, got 96 × 64.*with_image_size"):
        Sam2Model(tiny())(torch.zeros(1, 3, 96, 64))
    with pytest.raises(InputError, match=r"\[B, 3, H, W\]"):
        Sam2Model(tiny())(torch.zeros(3, 64, 64))


def test_parts_may_be_given_by_position() -> None:
    parts = Sam2VisionConfig(), Sam2PromptEncoderConfig(), Sam2MaskDecoderConfig(num_multimask_outputs=4)
    config = Sam2Config(*parts)
    assert config == Sam2Config(vision_config=parts[0], prompt_encoder_config=parts[1], mask_decoder_config=parts[2])
    assert config.mask_decoder_config.num_multimask_outputs == 4
    with pytest.raises(ConfigError, match="by position"):
        Sam2Config(*parts, 0.1)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="vision_config by position and by name"):
        Sam2Config(parts[0], vision_config=parts[0])  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"the name of a field, got 'vison_config'.*vision_config"):
        Sam2Config(vison_config=parts[0])  # type: ignore[call-arg]


def test_a_video_checkpoint_s_settings_are_read_and_its_memory_kept() -> None:
    fields = model_fields() | {"model_type": "sam2_video", "num_maskmem": 7, "image_size": 64}
    fields["prompt_encoder_config"]["model_type"] = "sam2_video_prompt_encoder"
    fields["mask_decoder_config"]["model_type"] = "sam2_video_mask_decoder"
    config = Sam2Config.from_dict(fields)
    assert config.to_dict()["model_type"] == "sam2"
    assert config.to_dict()["num_maskmem"] == config.num_maskmem == 7
    assert Sam2VisionConfig.from_dict(fields).fpn_hidden_size == 32
    assert Sam2HieraDetConfig.from_dict(fields).hidden_size == 8
    with pytest.raises(ConfigError, match="model_type 'sam2', got 'sam3'"):
        Sam2Config.from_dict(fields | {"model_type": "sam3"})


def hiera(**fields: Any) -> Sam2HieraDetConfig:
    return Sam2HieraDetConfig(**(hiera_fields() | fields))


def whole(**parts: dict[str, Any]) -> Sam2Config:
    fields = model_fields()
    return Sam2Config.from_dict({name: value | parts.get(name, {}) for name, value in fields.items()})


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: hiera(embed_dim_per_stage=[8, 16, 32]), "embed_dim_per_stage"),
        (lambda: hiera(num_attention_heads_per_stage=[1, 3, 2, 4]), "num_attention_heads_per_stage"),
        (lambda: hiera(hidden_size=16), "hidden_size"),
        (lambda: hiera(num_query_pool_stages=4), "num_query_pool_stages"),
        (lambda: hiera(global_attention_blocks=[6]), "global_attention_blocks"),
        (lambda: hiera(window_size_per_stage=[8, 3, 6, 2]), "window_size_per_stage"),
        (lambda: hiera(hidden_size="8"), "hidden_size: expected int"),
        (lambda: Sam2VisionConfig(**(vision_fields() | {"backbone_channel_list": [8, 16, 32, 64]})), "last first"),
        (lambda: Sam2VisionConfig(**(vision_fields() | {"num_feature_levels": 5})), "num_feature_levels"),
        (lambda: Sam2VisionConfig(**(vision_fields() | {"fpn_top_down_levels": [4]})), "fpn_top_down_levels"),
        (lambda: Sam2PromptEncoderConfig(image_size=1000), "multiples of patch_size"),
        (lambda: Sam2PromptEncoderConfig(num_point_embeddings=2), "num_point_embeddings"),
        (lambda: Sam2PromptEncoderConfig(hidden_size=31), "hidden_size"),
        (lambda: Sam2MaskDecoderConfig(hidden_size=100), "hidden_size"),
        (lambda: Sam2MaskDecoderConfig(iou_head_depth=1), "iou_head_depth"),
        (lambda: whole(vision_config={"fpn_hidden_size": 64}), "hidden sizes"),
        (lambda: whole(vision_config={"num_feature_levels": 2}), "num_feature_levels"),
        (lambda: whole(vision_config={"backbone_feature_sizes": [[9, 9], [8, 8], [4, 4]]}), "with_image_size"),
        (lambda: whole(prompt_encoder_config={"patch_size": 8}), "patch_size"),
    ],
)
def test_impossible_settings_are_refused(build: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build().validate()  # as a model that is built from it does
