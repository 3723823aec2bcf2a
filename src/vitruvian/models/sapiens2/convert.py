"""Conversion of checkpoints of the original Sapiens2 release; `checkpoint_keys` has the names.

`from_pretrained` reads checkpoints of the Hub directly. `convert_state_dict` converts the tensors of an original
checkpoint; `save_converted` writes a folder in the layout of the Hub, with the architecture read from the shapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from vitruvian.errors import InputError, WeightsError
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images.types import SizeHW
from vitruvian.layers.init import no_init_weights
from vitruvian.limits import get_limits
from vitruvian.models.sapiens2.checkpoint_keys import is_original, target_names
from vitruvian.models.sapiens2.configuration import Sapiens2Config, head_fields
from vitruvian.models.sapiens2.modeling import Sapiens2Model
from vitruvian.models.sapiens2.multitask import HEAD_CLASSES
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.weights import check_state_dict, join_names, read_original_weights, split_evenly

Shapes = Mapping[str, tuple[int, ...]]

_REQUIRED = ("cls_token", "storage_tokens", "patch_embed.projection.weight", "ln1.weight")


def convert_state_dict(original: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the tensors of an original Sapiens2 checkpoint to our names, without copying.

    The result loads with ``strict=True`` into `Sapiens2Model` for a pretraining checkpoint, into the class of the task
    for others.

    Raises:
        WeightsError: Keys are unknown or missing; the message names them.
    """
    unknown = [name for name in original if target_names(name) is None]
    if unknown or not is_original(original):
        raise WeightsError(
            f"state dict: expected the names of the original Sapiens2 release, "
            f"got {join_names(unknown or list(original))}. "
            "Checkpoints in other layouts open with from_pretrained."
        )
    lacking = _missing_names(original)
    if lacking:
        raise WeightsError(f"state dict: is incomplete; it lacks {join_names(lacking)}. Download the checkpoint again.")
    converted: dict[str, Tensor] = {}
    for name, tensor in original.items():
        targets = target_names(name) or ()
        converted |= dict(zip(targets, split_evenly(name, tensor, len(targets)), strict=True)) if targets else {}
    return converted


def _missing_names(original: Iterable[str]) -> list[str]:
    """Return the names that a complete checkpoint has and this one lacks, judging by the names that it has."""
    names = set(original)
    prefix = "backbone." if any(name.startswith("backbone.") for name in names) else ""
    lacking = [prefix + name for name in _REQUIRED if prefix + name not in names]
    for stack in (f"{prefix}blocks.", f"{prefix}tokenizer.blocks."):
        layers: dict[int, set[str]] = {}
        for name in names:
            if name.startswith(stack):
                number, _, rest = name.removeprefix(stack).partition(".")
                layers.setdefault(int(number), set()).add(rest)
        count = max(layers, default=-1) + 1
        get_limits().check("config_layers", count, subject=f"state dict: {stack}", error=WeightsError)
        whole = set().union(*layers.values())
        lacking += [
            f"{stack}{number}.{rest}" for number in range(count) for rest in sorted(whole - layers.get(number, set()))
        ]
    if prefix and not any(re.match(r"decode_head\.(conv_(?!layers)|predictor)", name) for name in names):
        lacking.append("decode_head.conv_<task>.weight")
    return lacking


def save_converted(source: str | Path, out: str | Path, *, image_hw: SizeHW = (1024, 768)) -> list[Path]:
    """Convert a checkpoint file and write configuration, weights and processor; return what was written.

    Args:
        source: The file.
        out: Folder to write.
        image_hw: Size of the images of the model; four times that for the 4K variant.
    """
    original = read_original_weights(source, "sapiens2_0.4b_pose.safetensors")
    state = convert_state_dict(original)
    config, task = infer_config({name: tuple(tensor.shape) for name, tensor in original.items()}, image_hw)
    _check_scale_branch(config)
    with no_init_weights():
        model = (Sapiens2Model if task == "pretrain" else HEAD_CLASSES[task])(config)
    check_state_dict(model.state_dict(), state, str(source))
    model.load_state_dict(state, strict=True, assign=True)
    height, width = config.image_hw
    processor = Sapiens2ImageProcessor(size={"height": height, "width": width}, do_pad=model.padded)
    written: list[Path] = model.save_pretrained(out) + processor.save_pretrained(out)
    return written


def infer_config(shapes: Shapes, image_hw: SizeHW = (1024, 768)) -> tuple[Sapiens2Config, str]:
    """Return the architecture and the task that the shapes of the tensors of an original checkpoint imply."""
    try:
        fields, task = _infer_fields(shapes, image_hw)
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        raise WeightsError(
            f"state dict: expected the shapes of a Sapiens2 model, but {error!r}. Is it a whole checkpoint?"
        ) from error
    return Sapiens2Config(**fields), task


def _infer_fields(shapes: Shapes, image_hw: SizeHW) -> tuple[JsonObject, str]:
    """Return the fields of the configuration that shapes imply, and the task."""
    trunk = {name.removeprefix("backbone."): shape for name, shape in shapes.items()}
    layers = _indices(trunk, r"blocks\.(\d+)\.ln1\.weight")
    hidden, head_dim = trunk["cls_token"][-1], trunk["blocks.0.attn.q_norm.weight"][0]
    fields: JsonObject = {
        "hidden_size": hidden,
        "num_hidden_layers": len(layers),
        "num_attention_heads": hidden // head_dim,
        "num_key_value_heads_per_layer": [trunk[f"blocks.{n}.attn.wk.weight"][0] // head_dim for n in layers],
        "intermediate_size": trunk["blocks.0.ffn.w3.weight"][1],
        "patch_size": list(trunk["patch_embed.projection.weight"][2:]),
        "num_register_tokens": trunk["storage_tokens"][1],
        "image_size": list(image_hw),
        "use_mask_token": "mask_token" in trunk,
    }
    if "tokenizer.w_cls" in trunk:
        window = math.isqrt(trunk["tokenizer.local_pos_embed"][1] - 1)
        fields |= {
            "use_tokenizer": True,
            "tokenizer_window_size": window,
            "num_tokenizer_layers": len(_indices(trunk, r"tokenizer\.blocks\.(\d+)\.ln1\.weight")),
            "image_size": [side * window for side in image_hw],
        }
    task = next((found[1] for name in shapes if (found := re.match(r"decode_head\.conv_(?!layers)(\w+)\.", name))), "")
    return (fields | _head_fields(shapes, task), task) if task else (fields, "pretrain")


def _check_scale_branch(config: Sapiens2Config) -> None:
    """Raise `InputError` if the scale branch is for images of another size."""
    head = config.head_config
    if head is None or not head.scale_conv_out_channels:
        return
    height, width = head.scale_grid(config.grid_hw(config.image_hw))
    features = height * width * head.scale_conv_out_channels[-1]
    if features != head.scale_final_input_size:
        raise InputError(
            f"image size: the scale branch takes {head.scale_final_input_size} features, and images of "
            f"{config.image_hw[0]}×{config.image_hw[1]} give {features}. Pass the image size of the model."
        )


def _head_fields(shapes: Shapes, task: str) -> JsonObject:
    """Return the fields of the configuration that the shapes of a head imply."""
    head = {name.removeprefix("decode_head."): shape for name, shape in shapes.items() if "decode_head." in name}
    deconvolutions = [head[f"deconv_layers.{n}.weight"] for n in _indices(head, r"deconv_layers\.(\d+)\.weight")]
    shuffles = [head[f"upsample_blocks.{n}.0.weight"] for n in _indices(head, r"upsample_blocks\.(\d+)\.0\.weight")]
    convolutions = _convolution_shapes(head, "conv_layers")
    config: JsonObject = {
        "upsample_out_channels": [shape[1] for shape in deconvolutions] or [shape[0] // 4 for shape in shuffles],
        "upsample_kernel_sizes": [shape[2] for shape in deconvolutions or shuffles],
        "use_pixel_shuffle": True if shuffles else None,
        "conv_out_channels": [shape[0] for shape in convolutions],
        "conv_kernel_sizes": [shape[2] for shape in convolutions],
        "norm": "rms" if any(name.endswith("norm.weight") for name in head) else "instance",
    }
    scales = _convolution_shapes(head, "scale_conv_layers")
    if scales:
        config |= {
            "scale_conv_out_channels": [shape[0] for shape in scales],
            "scale_conv_kernel_sizes": [shape[2] for shape in scales],
            "scale_final_hidden_sizes": [head["scale_final_layer.1.weight"][0], head["scale_final_layer.3.weight"][0]],
            "scale_final_input_size": head["scale_final_layer.1.weight"][1],
        }
    count = head[f"conv_{task}.weight"][0]
    known = {key: value for key, value in head_fields(task, "0.4b").items() if key in ("id2label", "flip_pairs")}
    named = known if len(known.get("id2label", ())) == count else {"num_labels": count}
    return named | {"head_config": config}


def _convolution_shapes(head: Shapes, stem: str) -> list[tuple[int, ...]]:
    """Return the shapes of the convolutions of a sequence, in order."""
    indices = _indices(head, rf"{stem}\.(\d+)\.weight")
    return [head[f"{stem}.{n}.weight"] for n in indices if len(head[f"{stem}.{n}.weight"]) == 4]


def _indices(names: Shapes, pattern: str) -> list[int]:
    """Return the numbers that a pattern matches in names, in order."""
    return sorted({int(found[1]) for name in names if (found := re.fullmatch(pattern, name))})
