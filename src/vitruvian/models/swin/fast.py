"""Swin for inference: joint projections, windows that are never copied, residuals and norms in one pass.

The joint matrices own the memory and a layer's parameters become views into them, so that nothing is held twice and
checkpoints keep their names.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.kernels.available import takes_fused
from vitruvian.kernels.fused import add_layer_norm_
from vitruvian.kernels.joint import join
from vitruvian.models.swin.encoder import Encoded, Encoder, Grid, WindowAttention
from vitruvian.ops.window_attention import window_attention


def fuse_swin(model: nn.Module) -> None:
    """Join the projections of all window attentions in a model, and keep their biases of positions."""
    for module in model.modules():
        if isinstance(module, WindowAttention):
            module.fuse()
            module.joint = join([module.query, module.key, module.value])


def run_encoder(
    encoder: Encoder, tokens: Tensor, grid_hw: Grid, *, always_shift: bool, need_weights: bool, need_states: bool
) -> Encoded:
    """Run tokens [B, h·w, C] through all stages, the fused way where the model is optimised and the call allows it.

    The fused way leaves the tokens before merging and, after it, those of the last stage alone.
    """
    if need_weights or need_states or encoder.training or not (is_fused(encoder) and takes_fused(tokens)):
        found: Encoded = encoder(tokens, grid_hw, always_shift=always_shift, need_weights=need_weights)
        return found
    return run_stages(encoder, tokens, grid_hw, always_shift=always_shift)


def is_fused(encoder: Encoder) -> bool:
    """Tell whether all attentions have their joint projections and may take any kernel."""
    parts = [module for module in encoder.modules() if isinstance(module, WindowAttention)]
    return all(part.joint is not None and part.attn_implementation != "eager" for part in parts)


def run_stages(encoder: Encoder, tokens: Tensor, grid_hw: Grid, *, always_shift: bool) -> Encoded:
    """Run tokens [B, h·w, C] through all stages."""
    found = Encoded([], [], [], [], [])
    x = tokens.clone()  # layers add to it in place
    stage: Any
    for stage in encoder.layers:
        shift = stage.window // 2 if always_shift or min(grid_hw) > stage.window else 0
        branch: Tensor | None = None
        for number, layer in enumerate(stage.blocks):
            normed = add_layer_norm_(x, branch, layer.layernorm_before)
            attended = run_attention(layer.attention.self, normed, grid_hw, shift=shift if number % 2 else 0)
            normed = add_layer_norm_(x, layer.attention.output(attended), layer.layernorm_after)
            branch = layer.output(layer.act(layer.intermediate(normed)))
        if branch is not None:
            x += branch
        found.before.append(x)
        found.before_hw.append(grid_hw)
        if stage.downsample is not None:
            x = stage.downsample(x, grid_hw)
            grid_hw = ((grid_hw[0] + 1) // 2, (grid_hw[1] + 1) // 2)
    found.after.append(x)
    found.after_hw.append(grid_hw)
    return found


def run_attention(attention: WindowAttention, tokens: Tensor, grid_hw: Grid, *, shift: int) -> Tensor:
    """Attend inside the windows of tokens [B, h·w, C]."""
    assert attention.joint is not None
    weight, bias = attention.joint
    return window_attention(
        F.linear(tokens, weight, bias),  # [B, h·w, 3C]
        grid_hw=grid_hw,
        heads=attention.heads,
        window=attention.window,
        shift=shift,
        fill=bias,
        bias=attention.current_bias(),
    )
