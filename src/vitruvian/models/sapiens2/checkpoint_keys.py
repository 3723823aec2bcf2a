"""Names of weights in the original Sapiens2 release, which checkpoints on the Hub use too, and our names for them.

backbone.blocks.3.ffn.w12.weight  ->  model.model.layer.3.mlp.gate_proj.weight, …up_proj.weight
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

# Patterns of names without the leading "backbone.", and our names. Two names are for the halves of a tensor.
_ENCODER: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"cls_token", ("embeddings.cls_token",)),
    (r"storage_tokens", ("embeddings.register_tokens",)),
    (r"mask_token", ("embeddings.mask_token",)),
    (r"embeddings\.mask_token", ("embeddings.mask_token",)),
    (r"patch_embed\.projection\.(weight|bias)", (r"embeddings.patch_embeddings.\1",)),
    (r"ln1\.weight", ("norm.weight",)),
    (r"tokenizer\.w_cls", ("embeddings.tokenizer.cls_token",)),
    (r"tokenizer\.local_pos_embed", ("embeddings.tokenizer.position_embeddings",)),
)
_LAYER: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"ln([12])\.weight", (r"norm\1.weight",)),
    (r"attn\.w([qkv])\.(weight|bias)", (r"attention.\1_proj.\2",)),
    (r"attn\.proj\.(weight|bias)", (r"attention.o_proj.\1",)),
    (r"attn\.([qk])_norm\.weight", (r"attention.\1_norm.weight",)),
    (r"attn\.gamma\.weight", ("layer_scale1.lambda1",)),
    (r"ffn\.w12\.(weight|bias)", (r"mlp.gate_proj.\1", r"mlp.up_proj.\1")),
    (r"ffn\.w3\.(weight|bias)", (r"mlp.down_proj.\1",)),
)
_STACKS = ((r"blocks\.(\d+)\.", "model.layer."), (r"tokenizer\.blocks\.(\d+)\.", "embeddings.tokenizer.layer."))
# Heads are sequences of convolution, (shuffle,) norm and activation: the index in the sequence gives the block.
_HEAD: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"input_conv\.(\d)\.(?:norm\.)?(weight|bias)", lambda m: f"decode_head.input_conv.{_part(m, 3)}"),
    (
        r"upsample_blocks\.(\d+)\.(\d)\.(?:norm\.)?(weight|bias)",
        lambda m: f"decode_head.upsample_layers.{m[1]}.{'convolution' if m[2] == '0' else 'norm'}.{m[3]}",
    ),
    (r"deconv_layers\.(\d+)\.weight", lambda m: f"decode_head.upsample_layers.{int(m[1]) // 3}.convolution.weight"),
    (
        r"conv_layers\.(\d+)\.(?:norm\.)?(weight|bias)",
        lambda m: f"decode_head.conv_layers.{int(m[1]) // 3}.{_part(m, 3)}",
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
_UNUSED = re.compile(r"(^|\.)(periods|mask_embed)$")


def _part(match: re.Match[str], period: int) -> str:
    """Tell the convolution of a block from its norm by the index in the sequence."""
    return f"{'convolution' if int(match[1]) % period == 0 else 'norm'}.{match[2]}"


def is_original(names: Iterable[str]) -> bool:
    """Return whether names are those of the original release."""
    return any(re.match(r"(backbone\.)?(blocks\.\d+\.(attn|ffn)\.|patch_embed\.projection)", name) for name in names)


def is_gated(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether `w12` of the feed-forward layers holds gate and up: twice as many rows as `w3` has columns."""
    for name, shape in shapes.items():
        if name.endswith("ffn.w12.weight"):
            return shape[0] == 2 * shapes.get(name.replace("w12", "w3"), (0, 0))[1]
    return True


def target_names(name: str, *, gated: bool = True) -> tuple[str, ...] | None:
    """Return our names for a name of the original release: two for a joined pair, none if unused, None if unknown.

    Models without a gate, which only transformers writes under these names, have only the up projection in `w12`.
    """
    if _UNUSED.search(name):
        return ()
    if name.startswith(("decode_head.", "scale_head.")):
        return _head_names(name)
    prefix = "model." if name.startswith("backbone.") else ""
    bare = name.removeprefix("backbone.")
    for pattern, targets in _ENCODER:
        if re.fullmatch(pattern, bare):
            return tuple(prefix + re.sub(pattern, target, bare) for target in targets)
    for stack, ours in _STACKS:
        match = re.match(stack, bare)
        if match:
            rest = bare[match.end() :]
            for pattern, targets in _LAYER:
                if re.fullmatch(pattern, rest):
                    used = targets if gated else targets[-1:]
                    return tuple(f"{prefix}{ours}{match[1]}.{re.sub(pattern, t, rest)}" for t in used)
    return None


def _head_names(name: str) -> tuple[str, ...] | None:
    """Return our name for a weight of a head, which may have the new name already."""
    for pattern, rename in _HEAD:
        match = re.fullmatch(rf"decode_head\.{pattern}", name)
        if match:
            return (rename(match),)
    return (name,) if re.search(r"\.(convolution|predictor)\.|layers\.0\.(weight|bias)$|\.proj\.", name) else None
