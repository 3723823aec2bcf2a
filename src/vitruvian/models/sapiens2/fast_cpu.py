"""The Sapiens2 encoder for inference on the CPU: packed weights, and tokens in chunks that stay in the cache.

    tokens ─▶ q, k, v of all chunks ─▶ attention ─▶ for each chunk: out, feed-forward, q, k, v of the next layer ─▶ …

Threads take chunks, and in attention heads. Layer scales are multiplied into the matrices before them; weights of
norms are not, so that matrices which need no packing are not copied. What is made of the model's parameters, which stay
as they are, is made again after they change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels import linear_cpu
from vitruvian.kernels.lanes_cpu import ROUNDS, cut, lane_count, pieces, run_parts
from vitruvian.kernels.linear_cpu import PackedLinear, Quarters, SevenProducts, quarters, seven_factors, stamp
from vitruvian.layers.norm import RMSNorm
from vitruvian.models.sapiens2.encoder import Encoder, Layer, Rope
from vitruvian.ops.attention import attention

# Seven products of quarters are quicker than one of all from so many channels, and so many rows of a chunk.
WIDE, MANY_ROWS = 1024, 256


class FastEncoder:
    """All layers of an encoder and its final norm."""

    def __init__(self, encoder: Encoder, final: RMSNorm) -> None:
        self.encoder, self.final = encoder, final
        self.seen: list[tuple[int, int]] = []
        self.layers: dict[bool, list[PackedLayer]] = {}  # with seven products, and without

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.encoder, self.final)  # copies and pickles pack anew: packed tensors have no storage

    def __call__(self, tokens: Tensor, rope: Rope) -> Tensor:
        """Pass [B, N, C] through all layers and the final norm, in float32 whatever autocast says."""
        seen = stamp(list(self.encoder.parameters()))
        if seen != self.seen:
            self.layers, self.seen = {}, seen
        with torch.autocast("cpu", enabled=False):
            return self.run(tokens.float(), rope)

    def packed(self, sevens: bool) -> list[PackedLayer]:
        """Return the packed layers, made at the first call."""
        if sevens not in self.layers:
            layers = [layer for layer in self.encoder.layer if isinstance(layer, Layer)]
            self.layers[sevens] = run_parts(lambda layer: PackedLayer(layer, sevens=sevens), layers)
        return self.layers[sevens]

    def run(self, tokens: Tensor, rope: Rope) -> Tensor:
        """Pass [B, N, C] through the packed layers and the final norm."""
        chunks = Chunks(tokens)
        layers = self.packed(tokens.shape[-1] >= WIDE and chunks.rows >= MANY_ROWS)
        attended = tokens
        for before, after in itertools.pairwise((None, *layers, None)):
            chunks.step(before, attended, after, rope)
            if after is not None:
                attended = attend_in_lanes(*chunks.heads)  # [B, N, C]
        return chunks.normalised(self.final)


class Chunks:
    """Tokens [B, N, C] on their way through the layers, in chunks [M, C]."""

    def __init__(self, tokens: Tensor) -> None:
        self.shape = tokens.shape
        cuts = cut(tokens.shape[1], linear_cpu.ROWS, linear_cpu.STEP)
        self.places = [(b, rows) for b in range(len(tokens)) for rows in cuts]
        self.values = [tokens[place] for place in self.places]
        self.rows = max((len(value) for value in self.values), default=0)
        self.heads: tuple[Tensor, Tensor, Tensor] = (tokens, tokens, tokens)

    def step(self, before: PackedLayer | None, attended: Tensor, after: PackedLayer | None, rope: Rope) -> None:
        """Finish one layer with what its attention gave [B, N, C], and make queries, keys and values of the next."""
        batch, tokens, _ = self.shape
        turns: list[Tensor] = []
        if after is not None:
            self.heads, turns = after.blank(batch, tokens), after.turns(rope, tokens)

        def run(index: int) -> None:
            b, rows = self.places[index]
            if before is not None:
                self.values[index] = before.update(self.values[index], attended[b, rows])
            if after is not None:
                q, k, v = (room[b, :, rows] for room in self.heads)
                after.project(self.values[index], q, k, v, [turn[rows] for turn in turns])

        run_parts(run, range(len(self.places)))

    def normalised(self, norm: RMSNorm) -> Tensor:
        """Return all tokens [B, N, C] after a norm."""
        out = torch.empty(self.shape)

        def run(index: int) -> None:
            out[self.places[index]] = normalise(self.values[index], norm)

        run_parts(run, range(len(self.places)))
        return out


def attend_in_lanes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from [B, A, N, D] to [B, G, N, D]: [B, N, A·D]; threads take heads, and where these are few, queries."""
    (B, A, N, D), G = q.shape, k.shape[1]
    out = q.new_empty(B, N, A, D)
    wanted = ROUNDS * lane_count() if lane_count() > 1 else 1
    groups = pieces(G, min(G, wanted))
    rows = pieces(N, min(N, -(-wanted // (B * len(groups)))))

    def run(part: tuple[int, slice, slice]) -> None:
        b, some, queries = part
        heads = slice(some.start * (A // G), some.stop * (A // G))
        found, _ = attention(q[b, None, heads, queries], k[b, None, some], v[b, None, some])  # [1, a, n, D]
        out[b, queries, heads] = found[0].transpose(0, 1)

    run_parts(run, itertools.product(range(B), groups, rows))
    return out.flatten(2)


class PackedLayer:
    """A layer's matrices, packed where that pays, with the scale of its attention inside."""

    @torch.no_grad()
    def __init__(self, layer: Layer, *, sevens: bool = False) -> None:
        attention: Any = layer.attention
        mlp: Any = layer.mlp
        scale: Tensor = layer.layer_scale1.lambda1  # type: ignore[assignment]
        self.norm1, self.norm2, self.head_dim = layer.norm1, layer.norm2, attention.head_dim
        gate, up, down, out = mlp.gate_proj, mlp.up_proj, mlp.down_proj, attention.o_proj
        self.heads = [linear.out_features // self.head_dim for linear in (out, attention.k_proj, attention.v_proj)]
        sevens = sevens and all(size % 2 == 0 for size in down.weight.shape)
        # Queries, keys and values alike, in halves of whole heads; but packed, their sums would take too much memory.
        self.sevens = sevens and all(heads % 2 == 0 for heads in self.heads) and not linear_cpu.packing_pays()
        kind: Any = SevenProducts if self.sevens else PackedLinear
        self.q, self.k, self.v = (
            kind(linear.weight, linear.bias) for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        self.q_norm, self.k_norm = attention.q_norm, attention.k_norm
        self.out = PackedLinear(out.weight * scale[:, None], None if out.bias is None else out.bias * scale)
        self.feed_forward = (FeedForwardBySevens if sevens else FeedForward)(
            (gate.weight, gate.bias), (up.weight, up.bias), (down.weight, down.bias)
        )

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
        normed = normalise(chunk, self.norm1)
        x = seven_factors(quarters(normed)) if self.sevens else normed
        for linear, norm, target, tables in (
            (self.q, self.q_norm, q, turns[:2]),
            (self.k, self.k_norm, k, turns[2:]),
        ):
            eps = norm.eps if isinstance(norm, RMSNorm) else None
            for found, room, (own, other) in cells(linear(x), target.transpose(0, 1), tables):
                normalise_and_turn(found.view(room.shape), own, other, room, eps)
        for found, room, _ in cells(self.v(x), v.transpose(0, 1), []):
            room.copy_(found.view(room.shape))

    def update(self, chunk: Tensor, attended: Tensor) -> Tensor:
        """Add both branches to tokens [M, C]."""
        chunk = self.out.add(attended, chunk)
        return self.feed_forward(normalise(chunk, self.norm2), chunk)


def cells(
    found: Tensor | Quarters, room: Tensor, tables: list[Tensor]
) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
    """Go through a product, whole or in quarters, with its places in [M, A, D] and the same rows of tables [M, …]."""
    if isinstance(found, Tensor):
        yield found, room, tables
        return
    rows = len(found[0])
    above, below = [table[:rows] for table in tables], [table[len(table) - rows :] for table in tables]
    yield from zip(found, quarters(room), (above, above, below, below), strict=True)


Weights = tuple[Tensor, Tensor | None]  # [F, C] and [F]


class FeedForward:
    """Gated feed-forward by weights for the gate, up and down."""

    def __init__(self, gate: Weights, up: Weights, down: Weights) -> None:
        self.gate, self.up, self.down = PackedLinear(*gate), PackedLinear(*up), PackedLinear(*down)

    def __call__(self, normed: Tensor, chunk: Tensor) -> Tensor:
        """Add what [M, C] gives to another [M, C]."""
        hidden = self.gate.silu(normed).mul_(self.up(normed))  # [M, F]
        return self.down.add(hidden, chunk)


class FeedForwardBySevens:
    """The same for wide layers, in fewer products."""

    def __init__(self, gate: Weights, up: Weights, down: Weights) -> None:
        self.gate, self.up, self.down = SevenProducts(*gate), SevenProducts(*up), SevenProducts(*down)

    def __call__(self, normed: Tensor, chunk: Tensor) -> Tensor:
        """Add what [M, C] gives to another [M, C]."""
        factors = seven_factors(quarters(normed))
        hidden = [F.silu(g, inplace=True).mul_(u) for g, u in zip(self.gate(factors), self.up(factors), strict=True)]
        out = torch.empty_like(chunk)
        for room, found, before in zip(quarters(out), self.down(seven_factors(hidden)), quarters(chunk), strict=True):
            torch.add(found, before, out=room)
        return out


def normalise(x: Tensor, norm: RMSNorm) -> Tensor:
    """Divide [..., C] by its root mean square and multiply by the norm's weight."""
    return (x * reciprocal_rms(x, norm.eps)).mul_(norm.weight)


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
