"""Checkpoints in the naming of the original Sapiens2 release → ours.

    backbone.blocks.3.ffn.w12.weight  ─▶  model.model.layer.3.mlp.gate_proj.weight, …up_proj.weight

The files on the Hub use that naming too, so `from_pretrained` reads it directly; `convert_state_dict` is for everyone
else who holds an original checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from vitruvian.errors import WeightsError
from vitruvian.weights import some

Rename = str | Callable[[re.Match[str]], str]

# Names of the encoder without the leading "backbone.", and of the heads: pattern, our name(s). Two names: halves.
ENCODER: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"cls_token", ("embeddings.cls_token",)),
    (r"storage_tokens", ("embeddings.register_tokens",)),
    (r"mask_token", ("embeddings.mask_token",)),
    (r"embeddings\.mask_token", ("embeddings.mask_token",)),
    (r"patch_embed\.projection\.(weight|bias)", (r"embeddings.patch_embeddings.\1",)),
    (r"ln1\.weight", ("norm.weight",)),
    (r"tokenizer\.w_cls", ("embeddings.tokenizer.cls_token",)),
    (r"tokenizer\.local_pos_embed", ("embeddings.tokenizer.position_embeddings",)),
)
LAYER: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"ln([12])\.weight", (r"norm\1.weight",)),
    (r"attn\.w([qkv])\.(weight|bias)", (r"attention.\1_proj.\2",)),
    (r"attn\.proj\.(weight|bias)", (r"attention.o_proj.\1",)),
    (r"attn\.([qk])_norm\.weight", (r"attention.\1_norm.weight",)),
    (r"attn\.gamma\.weight", ("layer_scale1.lambda1",)),
    (r"ffn\.w12\.(weight|bias)", (r"mlp.gate_proj.\1", r"mlp.up_proj.\1")),
    (r"ffn\.w3\.(weight|bias)", (r"mlp.down_proj.\1",)),
)
STACKS = ((r"blocks\.(\d+)\.", "model.layer."), (r"tokenizer\.blocks\.(\d+)\.", "embeddings.tokenizer.layer."))
# Heads are sequences of convolution, (shuffle,) norm, activation: the place in the sequence tells the block.
HEAD: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"input_conv\.(\d)\.(?:norm\.)?(weight|bias)", lambda m: f"decode_head.input_conv.{part(m, 3)}"),
    (
        r"upsample_blocks\.(\d+)\.(\d)\.(?:norm\.)?(weight|bias)",
        lambda m: f"decode_head.upsample_layers.{m[1]}.{'convolution' if m[2] == '0' else 'norm'}.{m[3]}",
    ),
    (r"deconv_layers\.(\d+)\.weight", lambda m: f"decode_head.upsample_layers.{int(m[1]) // 3}.convolution.weight"),
    (
        r"conv_layers\.(\d+)\.(?:norm\.)?(weight|bias)",
        lambda m: f"decode_head.conv_layers.{int(m[1]) // 3}.{part(m, 3)}",
    ),
    (
        r"scale_conv_layers\.(\d+)\.(weight|bias)",
        lambda m: f"scale_head.conv_layers.{int(m[1]) // 3}.convolution.{m[2]}",
    ),
    (r"scale_final_layer\.5\.(weight|bias)", lambda m: f"scale_head.predictor.proj.{m[1]}"),
    (
        r"scale_final_layer\.([13])\.(weight|bias)",
        lambda m: f"scale_head.predictor.block{(int(m[1]) + 1) // 2}.layers.0.{m[2]}",
    ),
    (r"conv_(?:pose|seg|normal|albedo|pointmap|matting)\.(weight|bias)", lambda m: f"decode_head.predictor.{m[1]}"),
)
USELESS = re.compile(r"(^|\.)(periods|mask_embed)$")
REQUIRED = ("cls_token", "storage_tokens", "patch_embed.projection.weight", "ln1.weight")


def part(match: re.Match[str], period: int) -> str:
    """Tell a block's convolution from its norm by the place in the sequence, with the kind of weight."""
    return f"{'convolution' if int(match[1]) % period == 0 else 'norm'}.{match[2]}"


def is_original(names: Iterable[str]) -> bool:
    """Tell whether names are those of the original release."""
    return any(re.match(r"(backbone\.)?(blocks\.\d+\.(attn|ffn)\.|patch_embed\.projection)", name) for name in names)


def is_gated(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Tell whether feed-forward layers hold gate and up in one: twice as many rows as the way back has columns."""
    for name, shape in shapes.items():
        if name.endswith("ffn.w12.weight"):
            return shape[0] == 2 * shapes.get(name.replace("w12", "w3"), (0, 0))[1]
    return True


def target_names(name: str, *, gated: bool = True) -> tuple[str, ...] | None:
    """Return our name for one of the original release, two for a fused pair, none if useless, None if unknown.

    Models without a gate, which only transformers writes in this naming, have `w12` for the way up alone.
    """
    if USELESS.search(name):
        return ()
    if name.startswith(("decode_head.", "scale_head.")):
        return head_names(name)
    prefix = "model." if name.startswith("backbone.") else ""
    bare = name.removeprefix("backbone.")
    for pattern, targets in ENCODER:
        if re.fullmatch(pattern, bare):
            return tuple(prefix + re.sub(pattern, target, bare) for target in targets)
    for stack, ours in STACKS:
        found = re.match(stack, bare)
        if found:
            rest = bare[found.end() :]
            for pattern, targets in LAYER:
                if re.fullmatch(pattern, rest):
                    used = targets if gated else targets[-1:]
                    return tuple(f"{prefix}{ours}{found[1]}.{re.sub(pattern, t, rest)}" for t in used)
    return None


def head_names(name: str) -> tuple[str, ...] | None:
    """Return our name for one in a head, as it is where it is ours already."""
    for pattern, rename in HEAD:
        found = re.fullmatch(rf"decode_head\.{pattern}", name)
        if found:
            return (rename(found),)
    return (name,) if re.search(r"\.(convolution|predictor)\.|layers\.0\.(weight|bias)$|\.proj\.", name) else None


def convert_state_dict(original: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert an original Sapiens2 checkpoint's tensors to our names; pure, and without copying.

    A pretraining checkpoint becomes that of `Sapiens2Model`, a task's checkpoint that of its task class; both load with
    ``strict=True``. A file that is not of the release, or not all of one, is refused with the keys named.
    """
    unknown = [name for name in original if target_names(name) is None]
    if unknown or not is_original(original):
        raise WeightsError(
            f"state dict: expected the names of the original Sapiens2 release, got {some(unknown or list(original))}. "
            "Checkpoints in other layouts open with from_pretrained."
        )
    lacking = missing_names(original)
    if lacking:
        raise WeightsError(f"state dict: is not whole; it lacks {some(lacking)}. Download the checkpoint again.")
    converted: dict[str, Tensor] = {}
    for name, tensor in original.items():
        targets = target_names(name) or ()
        if targets and tensor.shape[:1] and tensor.shape[0] % len(targets):
            raise WeightsError(
                f"{name}: expected a first side that splits into {len(targets)}, got {list(tensor.shape)}."
            )
        converted |= dict(zip(targets, torch.chunk(tensor, len(targets)) if targets else (), strict=True))
    return converted


def missing_names(original: Iterable[str]) -> list[str]:
    """List names that a whole checkpoint must have, judging by those that are there."""
    names = set(original)
    prefix = "backbone." if any(name.startswith("backbone.") for name in names) else ""
    lacking = [prefix + name for name in REQUIRED if prefix + name not in names]
    for stack in (f"{prefix}blocks.", f"{prefix}tokenizer.blocks."):
        layers: dict[int, set[str]] = {}
        for name in names:
            if name.startswith(stack):
                number, _, rest = name.removeprefix(stack).partition(".")
                layers.setdefault(int(number), set()).add(rest)
        whole = set().union(*layers.values())
        lacking += [
            f"{stack}{number}.{rest}"
            for number in range(max(layers, default=-1) + 1)
            for rest in sorted(whole - layers.get(number, set()))
        ]
    if prefix and not any(re.match(r"decode_head\.(conv_(?!layers)|predictor)", name) for name in names):
        lacking.append("decode_head.conv_<task>.weight")
    return lacking
