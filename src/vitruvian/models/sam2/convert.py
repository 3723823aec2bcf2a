"""Conversion of original SAM 2 and 2.1 checkpoints: a pure function over state dicts; `checkpoint_keys` has the names.

    {"image_encoder.trunk.…", "sam_mask_decoder.…", …} ── convert_state_dict ──▶ {"vision_encoder.backbone.…", …}

Names of the memory are converted for `Sam2VideoModel` and dropped for `Sam2Model`; unknown names raise `WeightsError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from vitruvian.config import Size
from vitruvian.errors import WeightsError
from vitruvian.layers.init import no_init_weights
from vitruvian.models.sam2.checkpoint_keys import (
    IMAGE_KEYS,
    POINT_KEYS,
    POSITIONS_KEY,
    VIDEO_ONLY_KEYS,
    rename_original_keys,
)
from vitruvian.models.sam2.configuration import VARIANTS, Sam2Config, Sam2HieraDetConfig, Sam2VideoConfig
from vitruvian.models.sam2.modeling import Sam2BaseModel, Sam2Model
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.weights import check_state_dict, join_names, read_original_weights

ModelT = TypeVar("ModelT", bound=Sam2BaseModel)


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
    unknown = [name for name in original if not IMAGE_KEYS.match(name) and not VIDEO_ONLY_KEYS.match(name)]
    if unknown:
        raise WeightsError(
            f"checkpoint: {len(unknown)} names are not of SAM 2: {join_names(unknown)}. "
            "Is it an original SAM 2 checkpoint?"
        )
    tensors = {name: tensor for name, tensor in original.items() if video or IMAGE_KEYS.match(name)}
    renamed = rename_original_keys(tensors)
    converted: dict[str, Tensor] = {}
    points: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        point = POINT_KEYS.match(name)
        if point:
            points[int(point[1])] = tensor
        elif name == POSITIONS_KEY:
            for module in ("shared_image_embedding", "prompt_encoder.shared_embedding"):
                converted[f"{module}.positional_embedding"] = tensor.clone()
        else:
            converted[renamed[name]] = tensor
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
