"""SAM 2 for inference: windows that are never copied, and prompts whose images are read and written once a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F

from vitruvian.kernels.available import takes_fused
from vitruvian.kernels.draw import draw
from vitruvian.kernels.fused import add_layer_norm_, norm_of_sum
from vitruvian.kernels.two_way import answer, look
from vitruvian.ops.window_attention import window_attention

if TYPE_CHECKING:
    from vitruvian.models.sam2.hiera import HieraBlock, Sam2HieraDetModel
    from vitruvian.models.sam2.mask_decoder import MaskDecoder, Scene
    from vitruvian.models.sam2.two_way import CrossAttention, SharedImage, TwoWayTransformer
    from vitruvian.models.sam2.vision import FeaturePyramid


@torch.no_grad()
def fuse_sam2(model: nn.Module) -> None:
    """Let all parts of a model that have a fused way take it; the first convolution writes channels last."""
    for module in model.modules():
        if hasattr(module, "quick"):
            module.quick = True  # type: ignore[assignment]
        if hasattr(module, "patch_embed"):
            first: Any = module.patch_embed
            weight = first.projection.weight
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


# ---------------------------------------------------------------------- vision encoder


def takes_blocks(backbone: Sam2HieraDetModel, x: Tensor) -> bool:
    """Tell whether the backbone can take its fused way for a map [B, h, w, C]."""
    return (
        not backbone.training and backbone.quick and takes_fused(x) and all(whole_cells(b) for b in blocks_of(backbone))
    )


def blocks_of(backbone: Sam2HieraDetModel) -> list[HieraBlock]:
    """The blocks."""
    return list(backbone.blocks)  # type: ignore[arg-type]


def whole_cells(block: HieraBlock) -> bool:
    """Tell whether a block pools square cells that fill its windows, and may take any kernel."""
    stride = block.stride or (1, 1)
    return stride[0] == stride[1] and block.window % stride[0] == 0 and block.attn.attn_implementation != "eager"


def run_blocks(backbone: Sam2HieraDetModel, x: Tensor) -> list[Tensor]:
    """Pass a map [B, h, w, C] through all blocks and return that of every stage, finest first."""
    x = x.contiguous()
    maps: list[Tensor] = []
    branch: Tensor | None = None
    for index, block in enumerate(blocks_of(backbone)):
        normed = add_layer_norm_(x, branch, block.layer_norm1)
        if block.proj is not None:
            x = block.proj(normed)
        elif maps and x is maps[-1]:
            x = x.clone()  # blocks add to it in place
        if block.stride is not None:
            x = largest(x, block.stride[0])  # [B, h', w', C']
        normed = add_layer_norm_(x, attend_in(block, normed, x), block.layer_norm2)
        branch = block.mlp(normed)
        if index in backbone.stage_ends:
            x, branch = x + branch, None
            maps.append(x)
    return maps


def attend_in(block: HieraBlock, normed: Tensor, x: Tensor) -> Tensor:
    """Attend in the windows of a map [B, h, w, C], or everywhere: a map of the shape of `x`."""
    attention, pool = block.attn, block.stride[0] if block.stride is not None else 1
    qkv = attention.qkv(normed)  # [B, h, w, 3C']
    if block.window:
        grid_hw = (normed.shape[1], normed.shape[2])
        found = window_attention(
            qkv.flatten(1, 2),
            grid_hw=grid_hw,
            heads=attention.heads,
            window=block.window,
            pool=pool,
            fill=attention.qkv.bias,
        )  # [B, h'·w', C']
    else:
        q, k, v = qkv.chunk(3, dim=-1)  # [B, h, w, C'] each
        q = largest(q, pool) if pool > 1 else q
        q, k, v = (
            unflatten(part.flatten(1, 2), -1, (attention.heads, -1)).transpose(1, 2) for part in (q, k, v)
        )  # [B, A, N, D] each
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # [B, h'·w', C']
    out: Tensor = attention.proj(found)
    return out.view(x.shape)


def largest(x: Tensor, side: int) -> Tensor:
    """Largest value of each cell of `side` × `side`: [B, h, w, C] to [B, h/s, w/s, C]."""
    cells = unflatten(unflatten(x, 2, (-1, side)), 1, (-1, side))  # [B, h/s, s, w/s, s, C]
    return cells.amax(dim=(2, 4))


def takes_neck(neck: FeaturePyramid, x: Tensor) -> bool:
    """Tell whether the feature pyramid is matrix products alone, and can take them."""
    plain = all(conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.padding == (0, 0) for conv in neck.convs)
    return neck.quick and plain and takes_fused(x)


def project(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Apply a 1×1 convolution to a map [B, h, w, C]: [B, C', h, w], channels last in memory."""
    return F.linear(x, conv.weight.flatten(1), conv.bias).permute(0, 3, 1, 2)


# ---------------------------------------------------------------------- mask decoder


def takes_transformer(transformer: TwoWayTransformer, image: Tensor) -> bool:
    """Tell whether the two-way transformer can take its fused way."""
    return transformer.quick and not transformer.training and takes_fused(image)


def run_transformer(
    transformer: TwoWayTransformer, tokens: Tensor, image: Tensor, image_positions: Tensor, shared: SharedImage | None
) -> tuple[Tensor, Tensor]:
    """Return the tokens [B, P, N, C] and the image [B, P, M, C]; arguments are those of `TwoWayTransformer`."""
    positions, places = tokens, image_positions[0, 0]  # [M, C]
    layer: Any
    for layer in transformer.layers:
        to_image, to_tokens = layer.cross_attn_token_to_image, layer.cross_attn_image_to_token
        if layer.first:  # the tokens are their own positions here
            tokens = layer.layer_norm1(layer.self_attn(tokens, tokens))
        else:
            tokens = norm_of_sum(tokens, layer.self_attn(tokens + positions, tokens), layer.layer_norm1)
        if shared is None:
            looked = look_at_each(to_image, tokens + positions, image, places)
        else:
            looked, _ = to_image.look_at_one(tokens + positions, shared, None, False)
        tokens = norm_of_sum(tokens, looked, layer.layer_norm2)
        tokens = norm_of_sum(tokens, layer.mlp(tokens), layer.layer_norm3)
        image = look_back(to_tokens, image, places, tokens, positions, layer.layer_norm4)  # [B, P, M, C]
        shared = None
    looked = look_at_each(transformer.final_attn_token_to_image, tokens + positions, image, places)
    return norm_of_sum(tokens, looked, transformer.layer_norm_final_attn), image


def look_at_each(cross: CrossAttention, tokens: Tensor, image: Tensor, places: Tensor) -> Tensor:
    """Let tokens [B, P, N, C] look at an image [B, P | 1, M, C] with positions [M, C]: [B, P, N, C]."""
    q = cross.split(cross.q_proj(tokens)) * cross.scale  # [B, P, A, N, D]
    folded = torch.einsum("bpand,adc->bpanc", q, cross.by_head(cross.k_proj.weight))
    seen = look(folded.flatten(2, 3), image, places, heads=cross.heads)  # [B, P, A·N, C]
    seen = unflatten(seen, 2, (cross.heads, -1))  # [B, P, A, N, C]
    values = torch.einsum("bpanc,adc->bpnad", seen, cross.by_head(cross.v_proj.weight)).flatten(3)  # [B, P, N, A·D]
    out: Tensor = cross.o_proj(values + cross.v_proj.bias)  # [B, P, N, C]
    return out


def look_back(
    cross: CrossAttention, image: Tensor, places: Tensor, tokens: Tensor, positions: Tensor, norm: nn.LayerNorm
) -> Tensor:
    """Let an image [B, P | 1, M, C] look at tokens [B, P, N, C], and norm: [B, P, M, C]."""
    keys = cross.keys_of(tokens + positions)  # [B, P, A, N, D]
    folded = torch.einsum("bpand,adc->bpanc", keys, cross.by_head(cross.q_proj.weight)).flatten(2, 3)
    bias = (keys @ unflatten(cross.q_proj.bias, 0, (cross.heads, -1, 1))).flatten(2)  # [B, P, A·N]
    out_weight = unflatten(cross.o_proj.weight, 1, (cross.heads, -1))  # [C, A, D]
    spoken = torch.einsum("bpand,cad->bpanc", cross.split(cross.v_proj(tokens)), out_weight).flatten(2, 3)
    # A head's weights add up to 1, so its share of the output's bias can be said by each token.
    spoken = spoken + cross.o_proj.bias / cross.heads  # [B, P, A·N, C]
    return answer(
        image, places, folded, bias, spoken, norm.weight, norm.bias, heads=cross.heads, eps=norm.eps
    )  # [B, P, M, C]


def takes_drawing(decoder: MaskDecoder, cells: Tensor) -> bool:
    """Tell whether masks can be drawn the fused way."""
    return decoder.quick and decoder.act is F.gelu and not decoder.training and takes_fused(cells)


def draw_masks(decoder: MaskDecoder, cells: Tensor, scene: Scene, vectors: Tensor) -> Tensor:
    """Draw masks of vectors [B, P, K, C/8] on cells [B, P, M, C]: [B, P, K, 4h, 4w]."""
    finest, finer = scene.levels
    norm = decoder.upscale_layer_norm
    return draw(
        cells,
        by_quarter(decoder.upscale_conv1),
        finer[:, 0],
        norm.weight,
        norm.bias,
        by_quarter(decoder.upscale_conv2),
        finest[:, 0],
        vectors,
        grid_hw=scene.grid_hw,
        eps=norm.eps,
    )


def by_quarter(conv: nn.ConvTranspose2d) -> Tensor:
    """The matrices of a 2×2 transposed convolution of stride 2, for each quarter of a cell: [4, C, C']."""
    return conv.weight.permute(2, 3, 0, 1).flatten(0, 1)
