"""Names of SAM 2's weights: parts of a whole model in files of the Hub, and names of the original release.

Checkpoints on the Hub have the names in memory; a part of SAM 2 opens them without the prefix of its part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vitruvian.weights import KeyRenames, apply_renames

# The memory of the video model, which checkpoints on the Hub include and models for images ignore.
MEMORY_KEYS = (
    r"^(memory_|mask_downsample|object_pointer_proj|temporal_positional_encoding_projection_layer)",
    r"^(no_memory_positional_encoding|no_object_pointer|occlusion_spatial_embedding_parameter)",
)
VISION_RENAMED_KEYS: KeyRenames = ((r"^vision_encoder\.", ""),)
VISION_IGNORED_KEYS = (r"^(shared_image_embedding|prompt_encoder|mask_decoder|no_memory_embedding)\b", *MEMORY_KEYS)
HIERA_RENAMED_KEYS: KeyRenames = ((r"^(vision_encoder\.)?backbone\.", ""),)
HIERA_IGNORED_KEYS = (r"^(vision_encoder\.)?neck\.", *VISION_IGNORED_KEYS)

# The original release.
VIDEO_ONLY_KEYS = re.compile(
    r"(memory_attention|memory_encoder|mask_downsample|obj_ptr_proj|obj_ptr_tpos_proj)\."
    r"|(maskmem_tpos_enc|no_mem_pos_enc|no_obj_ptr|no_obj_embed_spatial)$"
)
IMAGE_KEYS = re.compile(r"(image_encoder\.(trunk|neck)|sam_prompt_encoder|sam_mask_decoder)\.|no_mem_embed$")
POSITIONS_KEY = "sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"
POINT_KEYS = re.compile(r"sam_prompt_encoder\.point_embeddings\.(\d+)\.weight")
_MLP_LAYER = re.compile(r"(.*)\.layers\.(\d+)\.(weight|bias)$")

_ORIGINAL_RENAMES: KeyRenames = (
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


def rename_original_keys(names: Iterable[str]) -> dict[str, str]:
    """Return our names for names of the original release."""
    names = list(names)
    depths = _mlp_depths(names)
    return {name: apply_renames(_rename_mlp_layer(name, depths), _ORIGINAL_RENAMES) for name in names}


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
