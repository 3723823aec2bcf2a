"""The Sapiens2 encoder for inference: joint matrices, and kernels for what lies between them.

The joint matrices own the memory and a layer's parameters become views into them, so that nothing is held twice and
checkpoints keep their names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.kernels import fp8
from vitruvian.kernels.attention import attend_bounded, largest_score, score_bound
from vitruvian.kernels.fused import add_norm_, gated_linear, norm_rotate
from vitruvian.kernels.joint import join
from vitruvian.layers.mlp import GatedMLP
from vitruvian.layers.norm import RMSNorm
from vitruvian.models.sapiens2.encoder import Attention, Encoder, Layer, Rope
from vitruvian.ops.attention import attention as dot_product_attention


@dataclass(frozen=True)
class EightBits:
    """The large matrices of a layer in 8-bit floating point, a scale for each output channel."""

    qkv: fp8.Rows  # values come out as large as 8 bits allow, `out` takes that back
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [D] weights of the norms, with the factor on the queries shared out between both
    k_norm: Tensor | None
    out: fp8.Rows
    gate_up: fp8.Rows
    fit: Tensor  # [F] brings what the feed-forward holds into the range of 8 bits; `down` takes it back
    down: fp8.Rows


@dataclass(frozen=True)
class FusedLayer:
    """The matrices of a layer, joined: queries, keys and values in a row; gate and up with their rows in turns."""

    qkv: Tensor
    qkv_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    bounded: bool  # scores are small enough for softmax without a maximum
    eight: EightBits | None = None


def fuse_encoder(encoder: Encoder, *, eight_bits: bool = False) -> list[FusedLayer]:
    """Join the matrices of all layers, and round the large ones to 8 bits where asked."""
    return [fuse_layer(layer, eight_bits=eight_bits) for layer in encoder.layer if isinstance(layer, Layer)]


def fuse_layer(layer: Layer, *, eight_bits: bool = False) -> FusedLayer:
    """Join a layer's matrices; its parameters become views into the joint ones."""
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(mlp, GatedMLP):
        raise TypeError("fuse_layer: expected a gated feed-forward")
    linears = [attention.q_proj, attention.k_proj, attention.v_proj]
    bounded = False
    q_norm, k_norm = attention.q_norm, attention.k_norm
    if isinstance(q_norm, RMSNorm) and isinstance(k_norm, RMSNorm):
        reach = score_bound(attention.head_dim, q_norm.weight.detach(), k_norm.weight.detach())
        bounded = reach < largest_score(q_norm.weight.dtype)
    fused = FusedLayer(*join(linears), *interleave(mlp.gate_proj, mlp.up_proj), bounded)
    if not eight_bits:
        return fused
    return replace(fused, eight=round_layer(layer, fused))


@torch.no_grad()
def round_layer(layer: Any, fused: FusedLayer) -> EightBits:
    """Round the large matrices of a layer to 8 bits."""
    fit = fp8.LARGEST / fp8.gated_reach(layer.norm2.weight, fused.gate_up, fused.gate_up_bias)  # [F]
    down = fp8.round_rows(layer.mlp.down_proj.weight.float() / fit)
    attention = layer.attention
    D, V = attention.head_dim, attention.v_proj.out_features
    bias = fused.qkv_bias
    reach = fp8.linear_reach(layer.norm1.weight, fused.qkv[-V:], None if bias is None else bias[-V:])
    rise = F.pad(fp8.LARGEST / reach, (len(fused.qkv) - V, 0), value=1.0)  # [(A + 2G)·D]
    qkv = fp8.round_rows(fused.qkv)
    qkv = fp8.Rows(qkv.values, qkv.scales * rise[:, None])
    heads = rise[-V:].view(-1, 1, D).expand(-1, attention.q_proj.out_features // V, -1).flatten()  # [A·D]
    out = fp8.round_rows(attention.o_proj.weight.float() / heads)
    raised = None if bias is None else (bias * rise).to(bias.dtype)
    q_norm, k_norm = balanced_norms(attention) if fused.bounded else (None, None)
    return EightBits(qkv, raised, q_norm, k_norm, out, fp8.round_rows(fused.gate_up), fit, down)


def balanced_norms(attention: Attention) -> tuple[Tensor, Tensor]:
    """Return the weights [D] of queries' and keys' norms, with 1 / √D and log2(e), each as large as the other."""
    q_norm, k_norm = attention.q_norm, attention.k_norm
    assert isinstance(q_norm, RMSNorm)
    assert isinstance(k_norm, RMSNorm)
    q, k = q_norm.weight.detach().float() * query_scale(attention.head_dim), k_norm.weight.detach().float()
    q_size, k_size = (float(x.square().mean().sqrt().clamp_min(fp8.LEAST)) for x in (q, k))
    share = math.sqrt(k_size / q_size)
    return q * share, k / share


def query_scale(head_dim: int) -> float:
    """The factor that `attend_bounded` wants on queries."""
    return math.log2(math.e) / math.sqrt(head_dim)


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
    """Pass [B, N, C] through all layers and the final norm; the tokens given may be gone."""
    cos, sin = with_prefix(rope, tokens.shape[1])  # [N, D/2] each
    x = tokens.contiguous()
    branch: Tensor | None = None  # what the tokens lack [B, N, C]
    layer: Any
    for layer, weights in zip(encoder.layer, fused, strict=True):
        qkv = project(layer, weights, x, branch)  # [B, N, (A + 2G)·D]
        attended = run_attention(layer.attention, weights, qkv, cos, sin)  # [B, N, C]
        branch = feed_forward(layer, weights, x, attended)  # [B, N, C]
    return add_norm_(x, branch, None, final.weight, eps=final.eps)


def project(layer: Any, weights: FusedLayer, x: Tensor, branch: Tensor | None) -> Tensor:
    """Add a branch to [B, N, C] in place, and return queries, keys and values [B, N, (A + 2G)·D]."""
    norm, eight = layer.norm1, weights.eight
    if eight is None:
        return F.linear(add_norm_(x, branch, None, norm.weight, eps=norm.eps), weights.qkv, weights.qkv_bias)
    rows = fp8.add_norm_rows_(x, branch, None, norm.weight, eps=norm.eps)
    return fp8.linear_rows(rows, eight.qkv, eight.qkv_bias, dtype=x.dtype)


def feed_forward(layer: Any, weights: FusedLayer, x: Tensor, attended: Tensor) -> Tensor:
    """Add what was attended, scaled by channel, to [B, N, C] in place; return the feed-forward's branch [B, N, C]."""
    norm, scale, down, eight = layer.norm2, layer.layer_scale1.lambda1, layer.mlp.down_proj, weights.eight
    if eight is None:
        normed = add_norm_(x, attended, scale, norm.weight, eps=norm.eps)
        branch: Tensor = down(gated_linear(normed, weights.gate_up, weights.gate_up_bias))
        return branch
    rows = fp8.add_norm_rows_(x, attended, scale, norm.weight, eps=norm.eps)
    inner = fp8.gated_linear_rows(rows, eight.gate_up, weights.gate_up_bias, eight.fit, dtype=x.dtype)  # [B, N, F]
    return fp8.linear_rows(inner, eight.down, down.bias, dtype=x.dtype)


def run_attention(attention: Attention, weights: FusedLayer, joint: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Attend within tokens, given their queries, keys and values [B, N, (A + 2G)·D]: [B, N, C]."""
    B, N, _ = joint.shape
    q_norm, k_norm = attention.q_norm, attention.k_norm
    D = attention.head_dim
    heads, groups = attention.q_proj.out_features // D, attention.k_proj.out_features // D
    qkv = joint.view(B, N, heads + 2 * groups, D)  # [B, N, A + 2G, D]
    eight, projection = weights.eight, attention.o_proj
    narrow = eight if eight is not None and eight.q_norm is not None else None  # 8 bits for queries and keys too
    q_weight: Tensor | None = q_norm.weight if isinstance(q_norm, RMSNorm) else None
    k_weight: Tensor | None = k_norm.weight if isinstance(k_norm, RMSNorm) else None
    if narrow is not None:
        q_weight, k_weight = narrow.q_norm, narrow.k_norm
    qk = norm_rotate(
        qkv,
        q_weight,
        k_weight,
        cos,
        sin,
        q_heads=heads,
        k_heads=groups,
        eps=q_norm.eps if isinstance(q_norm, RMSNorm) else 0.0,
        q_scale=query_scale(D) if weights.bounded and narrow is None else 1.0,
        dtype=None if narrow is None else fp8.KIND,
    )  # [B, A + G, N, D]
    q, k, v = qk[:, :heads], qk[:, heads:], qkv[:, :, heads + groups :].transpose(1, 2)
    if narrow is not None:
        return fp8.linear_rows(fp8.attend_rows(q, k, v), narrow.out, projection.bias, dtype=v.dtype)
    out = (
        attend_bounded(q, k, v) if weights.bounded else dot_product_attention(q, k, v)[0].transpose(1, 2)
    )  # [B, N, A, D]
    joined = out.reshape(B, N, heads * D)
    if eight is not None:
        return fp8.linear_rows(fp8.round_rows(joined), eight.out, projection.bias, dtype=joined.dtype)
    attended: Tensor = projection(joined)
    return attended


def with_prefix(rope: Rope, tokens: int) -> Rope:
    """Extend rotation tables [h·w, D/2] to all tokens: those in front are not turned."""
    cos, sin = rope
    front = tokens - len(cos)
    return F.pad(cos, (0, 0, front, 0), value=1.0), F.pad(sin, (0, 0, front, 0))  # [N, D/2] each
