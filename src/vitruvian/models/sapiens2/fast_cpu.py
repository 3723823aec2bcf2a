"""The Sapiens2 encoder for inference on the CPU: packed weights, and tokens in chunks that stay in the cache.

    tokens ─▶ q, k, v of all chunks ─▶ attention ─▶ for each chunk: out, feed-forward, q, k, v of the next layer ─▶ …

Weights of norms and layer scales are multiplied into the matrices beside them. The packed copies follow the model's
parameters, which stay as they are: changed ones are packed again.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels.linear_cpu import PackedLinear, chunk_rows, even_chunks, stamp
from vitruvian.layers.attention import attend
from vitruvian.layers.norm import RMSNorm
from vitruvian.models.sapiens2.encoder import Encoder, Layer, Rope


class FastEncoder:
    """All layers of an encoder and its final norm."""

    def __init__(self, encoder: Encoder, final: RMSNorm) -> None:
        self.encoder, self.final = encoder, final
        self.seen: list[tuple[int, int]] = []
        self.layers: list[PackedLayer] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.encoder, self.final)  # copies and pickles pack anew: packed tensors have no storage

    def __call__(self, tokens: Tensor, rope: Rope) -> Tensor:
        """Pass [B, N, C] through all layers and the final norm."""
        seen = stamp(list(self.encoder.parameters()))
        if seen != self.seen:
            self.layers = [PackedLayer(layer) for layer in self.encoder.layer if isinstance(layer, Layer)]
            self.seen = seen
        B, N, _ = tokens.shape
        places = [(b, rows) for b in range(B) for rows in even_chunks(N, chunk_rows())]
        chunks = [tokens[b, rows] for b, rows in places]  # [M, C] each
        for layer in self.layers:
            q, k, v = layer.blank(B, N)
            turns = layer.turns(rope, N)
            for chunk, (b, rows) in zip(chunks, places, strict=True):
                layer.project(chunk, q[b, :, rows], k[b, :, rows], v[b, :, rows], [turn[rows] for turn in turns])
            attended = attend(q, k, v)[0].transpose(1, 2).flatten(2)  # [B, N, C]
            for index, (b, rows) in enumerate(places):
                chunks[index] = layer.update(chunks[index], attended[b, rows])
        out = torch.empty_like(tokens)
        for chunk, (b, rows) in zip(chunks, places, strict=True):
            torch.mul(unit(chunk, self.final.eps), self.final.weight, out=out[b, rows])
        return out


class PackedLayer:
    """A layer's matrices, packed, with the norms before them and the scale after them inside."""

    @torch.no_grad()
    def __init__(self, layer: Layer) -> None:
        attention: Any = layer.attention
        mlp: Any = layer.mlp
        scale: Tensor = layer.layer_scale1.lambda1  # type: ignore[assignment]
        self.eps, self.head_dim = layer.norm1.eps, attention.head_dim
        self.q, self.k, self.v = (
            PackedLinear(linear.weight * layer.norm1.weight, linear.bias)
            for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        self.q_norm, self.k_norm = attention.q_norm, attention.k_norm
        out = attention.o_proj
        self.out = PackedLinear(out.weight * scale[:, None], None if out.bias is None else out.bias * scale)
        self.gate, self.up = (
            PackedLinear(linear.weight * layer.norm2.weight, linear.bias) for linear in (mlp.gate_proj, mlp.up_proj)
        )
        self.down = PackedLinear(mlp.down_proj.weight, mlp.down_proj.bias)
        self.heads = [linear.out_features // self.head_dim for linear in (out, attention.k_proj, attention.v_proj)]

    def blank(self, batch: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Room for queries [B, A, N, D], keys and values [B, G, N, D]."""
        q, k, v = (torch.empty(batch, heads, tokens, self.head_dim) for heads in self.heads)
        return q, k, v

    def turns(self, rope: Rope, tokens: int) -> list[Tensor]:
        """Tables for `normalise_and_turn`: two of queries, then two of keys, [N, 2, D/2] each."""
        cos, sin = rope
        front = tokens - len(cos)
        cos = F.pad(cos, (0, 0, front, 0), value=1.0)  # [N, D/2]: tokens in front are not turned
        sin = F.pad(sin, (0, 0, front, 0))
        tables = []
        for norm in (self.q_norm, self.k_norm):
            weight = norm.weight if isinstance(norm, RMSNorm) else torch.ones(self.head_dim)
            left, right = weight.detach().chunk(2)
            tables.append(torch.stack((cos * left, cos * right), dim=1))
            tables.append(torch.stack((-sin * right, sin * left), dim=1))
        return tables

    def project(self, chunk: Tensor, q: Tensor, k: Tensor, v: Tensor, turns: list[Tensor]) -> None:
        """Write queries, keys and values [A, M, D] of tokens [M, C]."""
        normed = unit(chunk, self.eps)
        for linear, norm, target, (own, other) in (
            (self.q, self.q_norm, q, turns[:2]),
            (self.k, self.k_norm, k, turns[2:]),
        ):
            heads = linear(normed).view(len(chunk), -1, self.head_dim)  # [M, A, D]
            normalise_and_turn(
                heads, own, other, target.transpose(0, 1), norm.eps if isinstance(norm, RMSNorm) else None
            )
        v.copy_(self.v(normed).view(len(chunk), -1, self.head_dim).transpose(0, 1))

    def update(self, chunk: Tensor, attended: Tensor) -> Tensor:
        """Add both branches to tokens [M, C]."""
        chunk = self.out.add(attended, chunk)
        normed = unit(chunk, self.eps)
        hidden = self.gate.silu(normed).mul_(self.up(normed))  # [M, F]
        return self.down.add(hidden, chunk)


def unit(x: Tensor, eps: float) -> Tensor:
    """Divide [..., C] by its root mean square."""
    return x * reciprocal_rms(x, eps)


def reciprocal_rms(x: Tensor, eps: float) -> Tensor:
    """One over the root mean square of the last dimension, [..., 1]."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length.mul_(1 / math.sqrt(x.shape[-1])).square_().add_(eps).rsqrt_()


def normalise_and_turn(x: Tensor, own: Tensor, other: Tensor, out: Tensor, eps: float | None) -> None:
    """Normalise and rotate heads [M, A, D] into `out`: each half times `own`, plus the other half times `other`."""
    if eps is not None:
        x = x.mul_(reciprocal_rms(x, eps))
    halves = x.view(*x.shape[:2], 2, -1)  # [M, A, 2, D/2]
    target = out.view(*x.shape[:2], 2, -1)
    torch.mul(halves, own[:, None], out=target)
    target.addcmul_(halves.flip(2), other[:, None])
