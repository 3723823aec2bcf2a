"""Every kernel of the mask families next to its twin in plain torch, on the shapes of the published models.

    python benchmarks/gpu_kernels.py [--json kernels.json]

Prints the largest relative difference (of bfloat16 to the twin in float32) and the microseconds of both. Kernels that
VITRUVIAN_NO_TRITON switches off are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vitruvian.benchmarking.timing import difference, time_interleaved
from vitruvian.kernels import available
from vitruvian.models.sam2.configuration import Sam2MaskDecoderConfig
from vitruvian.models.sam2.two_way_transformer import CrossAttention
from vitruvian.ops.deformable_attention import deformable_attention
from vitruvian.ops.dispatch import disable_triton
from vitruvian.ops.layer_norm import add_layer_norm, layer_norm_of_sum_and_positions
from vitruvian.ops.mask_upscaling import upscale_masks
from vitruvian.ops.masked_attention import masked_attention
from vitruvian.ops.two_way_attention import image_to_tokens, tokens_to_image
from vitruvian.ops.window_attention import window_attention

CUDA = torch.device("cuda")
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def rand(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=CUDA) * scale).bfloat16()


def cases() -> dict[str, Callable[[], Case]]:
    """What is checked: a function and its arguments, tensors in bfloat16."""
    levels = ((25, 34), (50, 68), (100, 136))
    count = sum(h * w for h, w in levels)

    def windows(
        grid: tuple[int, int], heads: int, dim: int, window: int, *, shift: int = 0, pool: int = 1, bias: bool = False
    ) -> Case:
        def run(qkv: Tensor, fill: Tensor, table: Tensor | None) -> Tensor:
            return window_attention(
                qkv, grid_hw=grid, heads=heads, window=window, shift=shift, pool=pool, fill=fill, bias=table
            )

        channels = heads * dim
        table = rand(heads, window**2, window**2) if bias else None
        return run, (rand(1, grid[0] * grid[1], 3 * channels), rand(3 * channels), table)

    def norm(rows: int, channels: int) -> Case:
        made = nn.LayerNorm(channels, device=CUDA)

        def run(x: Tensor, branch: Tensor, weight: Tensor) -> Any:
            return add_layer_norm(x, branch, made.to(weight.dtype))

        return run, (rand(1, rows, channels), rand(1, rows, channels), rand(1))

    def placed() -> Case:
        made = nn.LayerNorm(256, device=CUDA)

        def run(x: Tensor, branch: Tensor, places: Tensor) -> Any:
            return layer_norm_of_sum_and_positions(x, branch, made.to(x.dtype), places)

        return run, (rand(1, count, 256), rand(1, count, 256), rand(count, 256))

    def deformable() -> Case:
        return (
            lambda value, offsets, scores: deformable_attention(value, offsets, scores, levels),
            (rand(1, count, 256), rand(1, count, 8, 3, 4, 2, scale=2.0), rand(1, count, 8, 3, 4, scale=2.0)),
        )

    def masked(keys: int) -> Case:
        logits = rand(1, 100, keys) - 1
        logits[:, 7] = -1
        return (
            lambda q, k, v, seen: masked_attention(q, k, v, seen, heads=8),
            (rand(1, 100, 256), rand(1, keys, 256), rand(1, keys, 256), logits),
        )

    def to_image(prompts: int, images: int, tokens: int) -> Case:
        weights = CrossAttention(Sam2MaskDecoderConfig()).to(CUDA)

        def run(x: Tensor, image: Tensor, positions: Tensor) -> Tensor:
            return tokens_to_image(x, image, positions, weights.to(x.dtype))[0]

        return run, (rand(1, prompts, tokens, 256), rand(1, images, 4096, 256), rand(4096, 256))

    def to_tokens(prompts: int, images: int, tokens: int) -> Case:
        weights, norm = CrossAttention(Sam2MaskDecoderConfig()).to(CUDA), nn.LayerNorm(256, device=CUDA)

        def run(image: Tensor, positions: Tensor, x: Tensor, token_positions: Tensor) -> Tensor:
            kind = x.dtype
            return image_to_tokens(image, positions, x, token_positions, weights.to(kind), norm.to(kind))

        x, token_positions = rand(1, prompts, tokens, 256), rand(1, prompts, tokens, 256)
        return run, (rand(1, images, 4096, 256), rand(4096, 256), x, token_positions)

    def mask_upscaling(prompts: int) -> Case:
        conv1, conv2 = nn.ConvTranspose2d(256, 64, 2, 2, device=CUDA), nn.ConvTranspose2d(64, 32, 2, 2, device=CUDA)
        norm = nn.LayerNorm(64, eps=1e-6, device=CUDA)

        def run(cells: Tensor, finer: Tensor, finest: Tensor, vectors: Tensor) -> Tensor:
            parts = {"conv1": conv1.to(cells.dtype), "norm": norm.to(cells.dtype), "conv2": conv2.to(cells.dtype)}
            return upscale_masks(cells, finer, finest, vectors, **parts, act=F.gelu, grid_hw=(64, 64))

        finer, finest = rand(1, 4096 * 4, 64), rand(1, 4096 * 16, 32)
        return run, (rand(1, prompts, 4096, 256), finer, finest, rand(1, prompts, 3, 32))

    return {
        "layer norm 54400 × 96": lambda: norm(54400, 96),
        "layer norm 4096 × 576": lambda: norm(4096, 576),
        "layer norm + places": placed,
        "windows swin 7, stage 1": lambda: windows((200, 272), 3, 32, 7, bias=True),
        "windows swin 7, stage 1, shifted": lambda: windows((200, 272), 3, 32, 7, shift=3, bias=True),
        "windows swin 7, stage 3, shifted": lambda: windows((50, 68), 12, 32, 7, shift=3, bias=True),
        "windows swin 12, stage 1, shifted": lambda: windows((200, 272), 4, 32, 12, shift=6, bias=True),
        "windows hiera tiny 8": lambda: windows((256, 256), 1, 96, 8),
        "windows hiera tiny 8, pooled": lambda: windows((256, 256), 2, 96, 8, pool=2),
        "windows hiera tiny 14": lambda: windows((64, 64), 4, 96, 14),
        "windows hiera tiny 14, pooled": lambda: windows((64, 64), 8, 96, 14, pool=2),
        "windows hiera large 8": lambda: windows((256, 256), 2, 72, 8),
        "windows hiera large 4": lambda: windows((128, 128), 4, 72, 4),
        "windows hiera large 16": lambda: windows((64, 64), 8, 72, 16),
        "deformable": deformable,
        "masked 13600": lambda: masked(13600),
        "masked 850": lambda: masked(850),
        "two_way_attention, to image, 128 prompts": lambda: to_image(128, 128, 8),
        "two_way_attention, to image, 1 prompt": lambda: to_image(1, 1, 8),
        "two_way_attention, to tokens, 128 prompts, one image": lambda: to_tokens(128, 1, 8),
        "two_way_attention, to tokens, 128 prompts": lambda: to_tokens(128, 128, 8),
        "two_way_attention, to tokens, 128 boxes": lambda: to_tokens(128, 128, 9),
        "mask_upscaling, 128 prompts": lambda: mask_upscaling(128),
    }


def as_float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) else value


@torch.no_grad()
def check(name: str, make: Callable[[], Case], seconds: float) -> dict[str, Any]:
    """Compare and time one kernel and its twin."""
    torch.manual_seed(0)
    function, given = make()
    got = function(*given)
    available.OFF.add("1")
    try:
        with disable_triton():
            want = function(*(as_float(value) for value in given))
            plain = difference(function(*given), want)
    finally:
        available.OFF.discard("1")
    far = difference(got, want)
    del got, want

    def twin() -> None:
        available.OFF.add("1")
        try:
            with disable_triton():
                function(*given)
        finally:
            available.OFF.discard("1")

    taken = time_interleaved({"kernel": lambda: function(*given), "twin": twin}, device=CUDA, seconds=seconds)
    return {
        "name": name,
        "difference": far[0],
        "twin difference": plain[0],
        "kernel us": taken["kernel"].median * 1e3,
        "twin us": taken["twin"].median * 1e3,
    }


@torch.no_grad()
def attention_backends() -> list[dict[str, Any]]:
    """Torch's kernels for the global attention of Hiera."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found = []
    for heads, dim in ((4, 96), (8, 72)):
        qkv = rand(1, 4096, 3, heads, dim)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            try:
                with sdpa_kernel(backend):
                    taken = time_interleaved(
                        {"": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v)}, device=CUDA, seconds=0.1
                    )[""]
                found.append({"name": f"{heads} heads of {dim}, {backend.name}", "us": taken.median * 1e3})
            except RuntimeError as error:
                found.append({"name": f"{heads} heads of {dim}, {backend.name}", "error": str(error)[:80]})
    return found


def group_of(name: str) -> str:
    """The name by which VITRUVIAN_NO_TRITON knows the kernel of a case."""
    first = name.split()[0].rstrip(",")
    names = {"layer": "layer_norm", "windows": "window_attention"}
    names |= {"deformable": "deformable_attention", "masked": "masked_attention"}
    return names.get(first, first)


def run(seconds: float = 0.15) -> list[dict[str, Any]]:
    """Check all kernels, print a line each, and return the numbers."""
    found = []
    print("| kernel | difference | twin's in bfloat16 | kernel µs | twin µs |\n|---|---|---|---|---|", flush=True)
    for name, make in cases().items():
        if group_of(name) in available.OFF:
            continue
        try:
            row = check(name, make, seconds)
            print(
                f"| {name} | {row['difference']:.1e} | {row['twin difference']:.1e} | {row['kernel us']:.0f} "
                f"| {row['twin us']:.0f} |",
                flush=True,
            )
        except Exception as error:
            row = {"name": name, "error": traceback.format_exc(), "broken": "CUDA error" in str(error)}
            print(f"| {name} | FAILED {type(error).__name__}: {str(error)[:160]} | | | |", flush=True)
        found.append(row | {"group": group_of(name)})
        if row.get("broken"):  # nothing more can run in this process
            return found
    for row in attention_backends():
        print(
            f"global attention, {row['name']}: {row.get('us', float('nan')):.0f} µs {row.get('error', '')}", flush=True
        )
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers into this file")
    options = parser.parse_args()
    found = run()
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
