"""Original SAM 2 checkpoints: names back and forth, strictly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.families.sam2 import SIDE, hiera_fields, tiny, video_fields
from vitruvian.errors import CheckpointError, WeightsError
from vitruvian.models.sam2.configuration import VARIANTS, Sam2Config, Sam2VideoConfig
from vitruvian.models.sam2.convert import convert_checkpoint, convert_state_dict, infer_config
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.video_modeling import Sam2VideoModel

# Our name → the original's, written down from the original's modules; the reverse of what is tested.
BACK = (
    (r"^vision_encoder\.neck\.convs\.(\d)\.", r"image_encoder.neck.convs.\1.conv."),
    (r"^vision_encoder\.backbone\.", "image_encoder.trunk."),
    (r"patch_embed\.projection", "patch_embed.proj"),
    (r"shared_embedding\.positional_embedding", "pe_layer.positional_encoding_gaussian_matrix"),
    (r"^prompt_encoder\.", "sam_prompt_encoder."),
    (r"^mask_decoder\.", "sam_mask_decoder."),
    (r"mask_embed\.conv1", "mask_downscaling.0"),
    (r"mask_embed\.layer_norm1", "mask_downscaling.1"),
    (r"mask_embed\.conv2", "mask_downscaling.3"),
    (r"mask_embed\.layer_norm2", "mask_downscaling.4"),
    (r"mask_embed\.conv3", "mask_downscaling.6"),
    (r"upscale_conv1", "output_upscaling.0"),
    (r"upscale_layer_norm", "output_upscaling.1"),
    (r"upscale_conv2", "output_upscaling.3"),
    (r"(trunk\.blocks\.\d+\.mlp|transformer\.layers\.\d+\.mlp)\.proj_in", r"\1.layers.0"),
    (r"(trunk\.blocks\.\d+\.mlp|transformer\.layers\.\d+\.mlp)\.proj_out", r"\1.layers.1"),
    (r"(hypernetworks_mlps\.\d|iou_prediction_head|pred_obj_score_head)\.layers\.0", r"\1.layers.1"),
    (r"(hypernetworks_mlps\.\d|iou_prediction_head|pred_obj_score_head)\.proj_in", r"\1.layers.0"),
    (r"(hypernetworks_mlps\.\d|iou_prediction_head|pred_obj_score_head)\.proj_out", r"\1.layers.2"),
    (r"layer_norm_final_attn", "norm_final_attn"),
    (r"layer_norm(\d)", r"norm\1"),
    (r"o_proj", "out_proj"),
    (r"^no_memory_embedding$", "no_mem_embed"),
)
VIDEO = (
    "maskmem_tpos_enc",
    "no_mem_pos_enc",
    "no_obj_ptr",
    "no_obj_embed_spatial",
    "mask_downsample.weight",
    "memory_attention.layers.0.self_attn.q_proj.weight",
    "memory_encoder.fuser.layers.0.gamma",
    "obj_ptr_proj.layers.0.weight",
    "obj_ptr_tpos_proj.weight",
)


# The same for the memory; applied before the table above.
BACK_MEMORY = (
    (r"^memory_temporal_positional_encoding$", "maskmem_tpos_enc"),
    (r"^no_memory_positional_encoding$", "no_mem_pos_enc"),
    (r"^no_object_pointer$", "no_obj_ptr"),
    (r"^occlusion_spatial_embedding_parameter$", "no_obj_embed_spatial"),
    (r"^object_pointer_proj\.layers\.0", "obj_ptr_proj.layers.1"),
    (r"^object_pointer_proj\.proj_in", "obj_ptr_proj.layers.0"),
    (r"^object_pointer_proj\.proj_out", "obj_ptr_proj.layers.2"),
    (r"^temporal_positional_encoding_projection_layer", "obj_ptr_tpos_proj"),
    (r"mask_downsampler\.layers\.(\d)\.conv", lambda match: f"mask_downsampler.encoder.{3 * int(match[1])}"),
    (r"mask_downsampler\.layers\.(\d)\.layer_norm", lambda match: f"mask_downsampler.encoder.{3 * int(match[1]) + 1}"),
    (r"mask_downsampler\.final_conv", "mask_downsampler.encoder.12"),
    (r"memory_encoder\.feature_projection", "memory_encoder.pix_feat_proj"),
    (r"memory_encoder\.projection", "memory_encoder.out_proj"),
    (r"memory_fuser", "fuser"),
    (r"depthwise_conv", "dwconv"),
    (r"pointwise_conv(\d)", r"pwconv\1"),
    (r"\.scale$", ".gamma"),
    (r"^(memory_.*)layer_norm\.", r"\1norm."),
)


def original(state: dict[str, Tensor], *, video: bool = True) -> dict[str, Tensor]:
    """A state dict under the names of the original release."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name == "shared_image_embedding.positional_embedding":
            continue
        if name == "prompt_encoder.point_embed.weight":
            found |= {f"sam_prompt_encoder.point_embeddings.{i}.weight": tensor[i : i + 1] for i in range(4)}
            continue
        for pattern, replacement in (*BACK_MEMORY, *BACK):
            name = re.sub(pattern, replacement, name)
        found[name] = tensor
    return found | ({name: torch.ones(1) for name in VIDEO} if video else {})


@pytest.mark.parametrize("video", [True, False])
def test_every_weight_finds_its_place(video: bool) -> None:
    torch.manual_seed(0)
    model = Sam2Model(tiny())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    state = model.state_dict()
    given = original(state, video=video)
    assert "image_encoder.trunk.blocks.0.norm1.weight" in given
    assert "sam_mask_decoder.transformer.layers.1.cross_attn_image_to_token.out_proj.bias" in given
    assert "sam_mask_decoder.output_hypernetworks_mlps.3.layers.2.weight" in given
    converted = convert_state_dict(given)
    assert converted.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(converted[name], value), name


@pytest.mark.parametrize("is_first_release", [False, True])
def test_video_models_keep_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first_release: bool) -> None:
    fields = video_fields()
    if is_first_release:
        fields |= {
            "enable_occlusion_spatial_embedding": False,
            "enable_temporal_pos_encoding_for_object_pointers": False,
        }
    model = Sam2VideoModel(Sam2VideoConfig.from_dict(fields))
    given = original(model.state_dict(), video=False)
    assert "memory_encoder.mask_downsampler.encoder.12.weight" in given
    assert "memory_attention.norm.weight" in given
    monkeypatch.setattr("vitruvian.models.sam2.configuration.VARIANTS", {"tiny": hiera_fields()})
    monkeypatch.setattr("vitruvian.models.sam2.convert.VARIANTS", {"tiny": hiera_fields()})
    found = infer_config(given, Sam2VideoConfig)
    assert isinstance(found, Sam2VideoConfig)
    assert found.enable_occlusion_spatial_embedding is not is_first_release
    assert found.enable_temporal_pos_encoding_for_object_pointers is not is_first_release
    monkeypatch.setattr("vitruvian.models.sam2.convert.infer_config", lambda state, cls: model.config)
    torch.save({"model": given}, tmp_path / "sam2.1_hiera_toy.pt")
    again = convert_checkpoint(tmp_path / "sam2.1_hiera_toy.pt", image_size=SIDE, model_class=Sam2VideoModel)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_unknown_names_are_refused() -> None:
    given = original(Sam2Model(tiny()).state_dict()) | {"head.weight": torch.ones(1)}
    with pytest.raises(WeightsError, match=r"1 names are not of SAM 2: head\.weight"):
        convert_state_dict(given)


@pytest.mark.parametrize("name", VARIANTS)
def test_sizes_are_told_apart(name: str) -> None:
    with torch.device("meta"):
        state = Sam2Model(Sam2Config.variant(name)).state_dict()
    assert infer_config(original(state)) == Sam2Config.variant(name)


def test_another_size_is_refused() -> None:
    with pytest.raises(WeightsError, match=r"tiny, small.*8 channels and 6 blocks"):
        infer_config(original(Sam2Model(tiny()).state_dict()))
    with pytest.raises(WeightsError, match="no backbone"):
        infer_config({})


def test_a_file_opens_as_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Sam2Model(tiny()).eval()
    monkeypatch.setattr("vitruvian.models.sam2.convert.infer_config", lambda state, cls: tiny())
    path = tmp_path / "sam2.1_hiera_toy.pt"
    torch.save({"model": original(model.state_dict())}, path)
    again = convert_checkpoint(path, image_size=(64, 96))
    assert not again.training
    assert again.prompt_encoder.image_hw == (64, 96)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    incomplete = original(model.state_dict())
    del incomplete["no_mem_embed"]
    torch.save({"model": incomplete}, path)
    with pytest.raises(WeightsError, match="1 missing: no_memory_embedding"):
        convert_checkpoint(path)
    with pytest.raises(CheckpointError, match="Check the path"):
        convert_checkpoint(tmp_path / "nothing.pt")
