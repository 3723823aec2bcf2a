"""Conversion of original SAM 2 and 2.1 checkpoints: a table of names, and a pure function over state dicts.

    {"image_encoder.trunk.…", "sam_mask_decoder.…", …} ── convert_state_dict ──▶ {"vision_encoder.backbone.…", …}

Names of the memory are converted for `Sam2VideoModel` and dropped for `Sam2Model`; unknown names raise `WeightsError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from vitruvian.errors import WeightsError
from vitruvian.layers.backbone_stages import Size
from vitruvian.layers.init import no_init_weights
from vitruvian.models.sam2.configuration import VARIANTS, Sam2Config, Sam2HieraDetConfig, Sam2VideoConfig
from vitruvian.models.sam2.modeling import Sam2BaseModel, Sam2Model
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.weights import apply_renames, check_state_dict, join_names, read_original_weights

ModelT = TypeVar("ModelT", bound=Sam2BaseModel)

_VIDEO_ONLY = re.compile(
    r"(memory_attention|memory_encoder|mask_downsample|obj_ptr_proj|obj_ptr_tpos_proj)\."
    r"|(maskmem_tpos_enc|no_mem_pos_enc|no_obj_ptr|no_obj_embed_spatial)$"
)
_KNOWN = re.compile(r"(image_encoder\.(trunk|neck)|sam_prompt_encoder|sam_mask_decoder)\.|no_mem_embed$")
_POSITIONS = "sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"
_POINTS = re.compile(r"sam_prompt_encoder\.point_embeddings\.(\d+)\.weight")
_MLP_LAYER = re.compile(r"(.*)\.layers\.(\d+)\.(weight|bias)$")

_RENAMES = (
    (r"^image_encoder\.trunk\.", "vision_encoder.backbone."),
    (r"^image_encoder\.neck\.convs\.(\d+)\.conv\.", r"vision_encoder.neck.convs.\1."),
    (r"^sam_(prompt_encoder|mask_decoder)\.", r"\1."),
    (r"patch_embed\.proj\.", "patch_embed.projection."),
    (r"mask_downscaling\.0\.", "mask_embed.conv1."),
    (r"mask_downscaling\.1\.", "mask_embed.layer_norm1."),
    (r"mask_downscaling\.3\.", "mask_embed.conv2."),
    (r"mask_downscaling\.4\.", "mask_embed.layer_norm2."),
    (r"mask_downscaling\.6\.", "mask_embed.conv3."),
    (r"output_upscaling\.0\.", "upscale_conv1."),
    (r"output_upscaling\.1\.", "upscale_layer_norm."),
    (r"output_upscaling\.3\.", "upscale_conv2."),
    (r"\.norm(\d|_final_attn)\.", r".layer_norm\1."),
    (r"\.out_proj\.", ".o_proj."),
    (r"^no_mem_embed$", "no_memory_embedding"),
    # the memory
    (r"^maskmem_tpos_enc$", "memory_temporal_positional_encoding"),
    (r"^no_mem_pos_enc$", "no_memory_positional_encoding"),
    (r"^no_obj_ptr$", "no_object_pointer"),
    (r"^no_obj_embed_spatial$", "occlusion_spatial_embedding_parameter"),
    (r"^obj_ptr_proj\.", "object_pointer_proj."),
    (r"^obj_ptr_tpos_proj\.", "temporal_positional_encoding_projection_layer."),
    (r"^memory_encoder\.pix_feat_proj\.", "memory_encoder.feature_projection."),
    (r"^memory_encoder\.o_proj\.", "memory_encoder.projection."),
    (r"^memory_encoder\.fuser\.", "memory_encoder.memory_fuser."),
    *((rf"mask_downsampler\.encoder\.{3 * i}\.", f"mask_downsampler.layers.{i}.conv.") for i in range(4)),
    *((rf"mask_downsampler\.encoder\.{3 * i + 1}\.", f"mask_downsampler.layers.{i}.layer_norm.") for i in range(4)),
    (r"mask_downsampler\.encoder\.12\.", "mask_downsampler.final_conv."),
    (r"\.dwconv\.", ".depthwise_conv."),
    (r"\.pwconv(\d)\.", r".pointwise_conv\1."),
    (r"\.norm\.", ".layer_norm."),
    (r"\.gamma$", ".scale"),
)


def convert_checkpoint(
    path: str | Path,
    *,
    image_size: Size = 1024,
    model_class: type[ModelT] = Sam2Model,  # type: ignore[assignment]
) -> ModelT:
    """Load an original `.pt` file of SAM 2 or 2.1 as a model, in evaluation mode.

    Args:
        path: The file.
        image_size: Size of images, a number or (height, width).
        model_class: `Sam2Model` for images, or `Sam2VideoModel`.
    """
    original = read_original_weights(path, "sam2.1_hiera_tiny.pt")
    with no_init_weights():
        model = model_class(infer_config(original, model_class.config_class).with_image_size(image_size))
    state = convert_state_dict(original, video=issubclass(model_class, Sam2VideoModel))
    check_state_dict(model.state_dict(), state, str(path))
    model.load_state_dict(state, assign=True)
    return model.eval()


def convert_state_dict(original: Mapping[str, Tensor], *, video: bool = False) -> dict[str, Tensor]:
    """Rename an original state dict, with the memory if `video`; raise `WeightsError` for names not of SAM 2."""
    unknown = [name for name in original if not _KNOWN.match(name) and not _VIDEO_ONLY.match(name)]
    if unknown:
        raise WeightsError(
            f"checkpoint: {len(unknown)} names are not of SAM 2: {join_names(unknown)}. "
            "Is it an original SAM 2 checkpoint?"
        )
    tensors = {name: tensor for name, tensor in original.items() if video or _KNOWN.match(name)}
    depths = _mlp_depths(tensors)
    converted: dict[str, Tensor] = {}
    points: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        point = _POINTS.match(name)
        if point:
            points[int(point[1])] = tensor
        elif name == _POSITIONS:
            for module in ("shared_image_embedding", "prompt_encoder.shared_embedding"):
                converted[f"{module}.positional_embedding"] = tensor.clone()
        else:
            converted[apply_renames(_rename_mlp_layer(name, depths), _RENAMES)] = tensor
    if points:
        rows = [points[index] for index in sorted(points)]
        if any(row.ndim != 2 or row.shape != rows[0].shape or row.dtype != rows[0].dtype for row in rows):
            shapes = [list(row.shape) for row in rows]
            raise WeightsError(f"checkpoint: expected point embeddings [1, C] of one type, got {shapes}.")
        converted["prompt_encoder.point_embed.weight"] = torch.cat(rows)
    return converted


def infer_config(original: Mapping[str, Tensor], config_class: type[Sam2Config] = Sam2Config) -> Sam2Config:
    """Return the configuration of the published size that an original state dict has."""
    width = original.get("image_encoder.trunk.patch_embed.proj.weight")
    channels = None if width is None or not width.ndim else width.shape[0]
    blocks = {name.split(".")[3] for name in original if name.startswith("image_encoder.trunk.blocks.")}
    for name, values in VARIANTS.items():
        backbone = Sam2HieraDetConfig(**values)
        if (channels, len(blocks)) == (backbone.hidden_size, sum(backbone.blocks_per_stage)):
            config = config_class.variant(name)
            if isinstance(config, Sam2VideoConfig):  # SAM 2.0 has neither
                config.enable_occlusion_spatial_embedding = "no_obj_embed_spatial" in original
                config.enable_temporal_pos_encoding_for_object_pointers = "obj_ptr_tpos_proj.weight" in original
            return config
    got = "no backbone" if channels is None else f"{channels} channels and {len(blocks)} blocks"
    raise WeightsError(f"checkpoint: expected a SAM 2 of size {', '.join(VARIANTS)}, got {got}.")


def _mlp_depths(names: Iterable[str]) -> dict[str, int]:
    """Count the layers of each MLP, which the original numbers from 0."""
    layers = [match for match in map(_MLP_LAYER.match, names) if match]
    return {mlp: max(int(match[2]) + 1 for match in layers if match[1] == mlp) for mlp in {m[1] for m in layers}}


def _rename_mlp_layer(name: str, depths: Mapping[str, int]) -> str:
    """Name the first and last layer of an MLP `proj_in` and `proj_out`, and number those between from 0."""
    match = _MLP_LAYER.match(name)
    if not match:
        return name
    mlp, index, leaf = match[1], int(match[2]), match[3]
    if index == 0:
        return f"{mlp}.proj_in.{leaf}"
    return f"{mlp}.proj_out.{leaf}" if index == depths[mlp] - 1 else f"{mlp}.layers.{index - 1}.{leaf}"
