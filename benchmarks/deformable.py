"""Multi-scale deformable attention on the CPU next to transformers, in one run: time, and how far the numbers differ.

    python benchmarks/deformable.py [--size 800x1088] [--batch 1] [--threads 1 2] [--train]

The core is the sampling alone; the layer adds its four projections; the pixel decoder encoder has six such layers with
their feed-forward parts, as in Mask2Former. Times are the best of several calls, ours and theirs taking turns.

Prints a table: threads, part, both times, how many times as quick ours is, and the largest difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from measure import alternate
from transformers import Mask2FormerConfig as TheirConfig
from transformers.models.mask2former import modeling_mask2former as theirs

from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.pixel_decoder import DeformableEncoder
from vitruvian.ops.deformable_attention import deformable_attention

HEADS, CHANNELS, POINTS = 8, 256, 4


def best(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of the fastest of several calls of each function, in turns."""
    ours, theirs = calls
    return [min(seconds) for seconds in alternate(ours, theirs, rounds=rounds)]


def training(call: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """A call with its backward pass."""

    def run() -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        return list(torch.autograd.grad(call(*leaves).square().sum(), leaves))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="800x1088", help="height x width of the image")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", action="store_true", help="also time the backward pass of the core")
    options = parser.parse_args()
    height, width = map(int, options.size.split("x"))
    levels = tuple((-(-height // stride), -(-width // stride)) for stride in (32, 16, 8))
    tokens_count = sum(h * w for h, w in levels)
    print(f"{options.batch} × {options.size}: levels {levels}, {tokens_count} tokens, {HEADS} heads, {POINTS} points")

    torch.manual_seed(0)
    batch = options.batch
    value = torch.randn(batch, tokens_count, CHANNELS)
    offsets = torch.randn(batch, tokens_count, HEADS, 3, POINTS, 2) * 3
    scores = torch.randn(batch, tokens_count, HEADS, 3, POINTS)
    sizes = torch.tensor([(w, h) for h, w in levels])[:, None]  # [L, 1, 2]

    def their_core(value: torch.Tensor, offsets: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        weights = scores.flatten(3).softmax(-1).view(scores.shape)
        centers = points[:, :, None, :, None]  # [B, N, 1, L, 1, 2] in [0, 1]
        heads = value.unflatten(-1, (HEADS, -1))
        return theirs.multi_scale_deformable_attention(heads, levels, centers + offsets / sizes, weights)

    def our_core(value: torch.Tensor, offsets: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return deformable_attention(value, offsets, scores, levels)

    ours = DeformableEncoder(Mask2FormerConfig()).eval()
    reference = theirs.Mask2FormerPixelDecoderEncoderOnly(TheirConfig()).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.05)
    reference.load_state_dict(ours.state_dict())
    tokens, positions = torch.randn(batch, tokens_count, CHANNELS), torch.randn(tokens_count, CHANNELS)
    nothing_masked = torch.zeros(batch, tokens_count, dtype=torch.bool)
    points = reference.get_reference_points(levels, torch.ones(batch, 3, 2), tokens.device)

    def their_layer() -> torch.Tensor:
        return reference.layers[0].self_attn(
            tokens, nothing_masked, tokens, None, positions[None], points, levels, None
        )[0]

    def their_encoder() -> torch.Tensor:
        return reference(
            tokens, nothing_masked, positions[None], levels, None, torch.ones(batch, 3, 2)
        ).last_hidden_state

    cells = {
        "core": (lambda: our_core(value, offsets, scores), lambda: their_core(value, offsets, scores)),
        "layer": (lambda: ours.layers[0].self_attn(tokens, tokens + positions, levels), their_layer),
        "pixel decoder encoder": (lambda: ours(tokens, positions, levels), their_encoder),
    }
    print(f"| threads | what | vitruvian | transformers | faster | largest difference |\n|{'---|' * 6}")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name, (our_call, their_call) in cells.items():
            with torch.no_grad():
                difference = (our_call() - their_call()).abs().max().item()
                mine, other = best([our_call, their_call], options.rounds)
            print(
                f"| {threads} | {name} | {mine * 1e3:.0f} ms | {other * 1e3:.0f} ms | {other / mine:.1f}× "
                f"| {difference:.1e} |",
                flush=True,
            )
        if options.train:
            calls = [training(core, [value, offsets, scores]) for core in (our_core, their_core)]
            mine, other = best(calls, 1)
            print(
                f"| {threads} | core, with backward | {mine:.2f} s | {other:.2f} s | {other / mine:.1f}× | |",
                flush=True,
            )


if __name__ == "__main__":
    main()
