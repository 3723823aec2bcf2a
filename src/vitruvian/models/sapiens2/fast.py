"""The Sapiens2 encoder for inference: joint matrices, and kernels for what lies between them.

The joint matrices own the memory and a layer's parameters become views into them, so that nothing is held twice and
checkpoints keep their names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.kernels.attention import LARGEST_SCORE, attend_bounded, score_bound
from vitruvian.kernels.fused import add_norm_, gated_linear, norm_rotate
from vitruvian.kernels.joint import join
from vitruvian.layers.attention import attend
from vitruvian.layers.mlp import GatedMLP
from vitruvian.layers.norm import RMSNorm
from vitruvian.models.sapiens2.encoder import Attention, Encoder, Layer, Rope


@dataclass(frozen=True)
class FusedLayer:
    """The matrices of a layer, joined: queries, keys and values in a row; gate and up with their rows in turns."""

    qkv: Tensor
    qkv_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    bounded: bool  # scores are small enough for softmax without a maximum


def fuse_encoder(encoder: Encoder) -> list[FusedLayer]:
    """Join the matrices of all layers."""
    return [fuse_layer(layer) for layer in encoder.layer if isinstance(layer, Layer)]


def fuse_layer(layer: Layer) -> FusedLayer:
    """Join a layer's matrices; its parameters become views into the joint ones."""
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(mlp, GatedMLP):
        raise TypeError("fuse_layer: expected a gated feed-forward")
    linears = [attention.q_proj, attention.k_proj, attention.v_proj]
    bounded = False
    q_norm, k_norm = attention.q_norm, attention.k_norm
    if isinstance(q_norm, RMSNorm) and isinstance(k_norm, RMSNorm):
        bounded = score_bound(attention.head_dim, q_norm.weight.detach(), k_norm.weight.detach()) < LARGEST_SCORE
    return FusedLayer(*join(linears), *interleave(mlp.gate_proj, mlp.up_proj), bounded)


@torch.no_grad()
def interleave(first: nn.Linear, second: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Let the rows of two linear layers alternate in one matrix, into which both keep views."""
    weight = torch.stack((first.weight, second.weight), dim=1)  # [F, 2, C]
    first.weight.data, second.weight.data = weight[:, 0], weight[:, 1]
    biases: list[Tensor | None] = [first.bias, second.bias]
    if biases[0] is None or biases[1] is None:
        return weight.flatten(0, 1), None
    bias = torch.stack((biases[0], biases[1]), dim=1)  # [F, 2]
    first.bias.data, second.bias.data = bias[:, 0], bias[:, 1]
    return weight.flatten(0, 1), bias.flatten()


def run_layers(encoder: Encoder, fused: list[FusedLayer], tokens: Tensor, rope: Rope, final: RMSNorm) -> Tensor:
    """Pass [B, N, C] through all layers and the final norm."""
    cos, sin = with_prefix(rope, tokens.shape[1])  # [N, D/2] each
    x = tokens.contiguous()
    branch: Tensor | None = None
    layer: Any
    for layer, weights in zip(encoder.layer, fused, strict=True):
        eps = layer.norm1.eps
        normed = add_norm_(x, branch, None, layer.norm1.weight, eps=eps)
        attended = run_attention(layer.attention, weights, normed, cos, sin)
        normed = add_norm_(x, attended, layer.layer_scale1.lambda1, layer.norm2.weight, eps=eps)
        hidden = gated_linear(normed, weights.gate_up, weights.gate_up_bias)  # [B, N, F]
        branch = layer.mlp.down_proj(hidden)  # [B, N, C]
    return add_norm_(x, branch, None, final.weight, eps=final.eps)


def run_attention(attention: Attention, weights: FusedLayer, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Attend within [B, N, C]."""
    B, N, C = tokens.shape
    q_norm, k_norm = attention.q_norm, attention.k_norm
    D = attention.head_dim
    heads, groups = C // D, attention.k_proj.out_features // D
    qkv = F.linear(tokens, weights.qkv, weights.qkv_bias).view(B, N, heads + 2 * groups, D)  # [B, N, A + 2G, D]
    qk = norm_rotate(
        qkv,
        q_norm.weight if isinstance(q_norm, RMSNorm) else None,
        k_norm.weight if isinstance(k_norm, RMSNorm) else None,
        cos,
        sin,
        q_heads=heads,
        k_heads=groups,
        eps=q_norm.eps if isinstance(q_norm, RMSNorm) else 0.0,
        q_scale=math.log2(math.e) / math.sqrt(D) if weights.bounded else 1.0,
    )  # [B, A + G, N, D]
    q, k, v = qk[:, :heads], qk[:, heads:], qkv[:, :, heads + groups :].transpose(1, 2)
    out = attend_bounded(q, k, v) if weights.bounded else attend(q, k, v)[0].transpose(1, 2)  # [B, N, A, D]
    attended: Tensor = attention.o_proj(out.reshape(B, N, C))
    return attended


def with_prefix(rope: Rope, tokens: int) -> Rope:
    """Extend rotation tables [h·w, D/2] to all tokens: those in front are not turned."""
    cos, sin = rope
    front = tokens - len(cos)
    return F.pad(cos, (0, 0, front, 0), value=1.0), F.pad(sin, (0, 0, front, 0))  # [N, D/2] each
