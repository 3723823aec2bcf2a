"""Prompts and image to masks, with a predicted IoU for each mask and a score for whether there is an object at all.

    tokens: object score · IoU · 4 masks · prompts [B, P, N, C] ─┐
                           image embedding [B, C, h, w] ─────────┴─ two-way transformer ─▶ tokens, image [B, P, h·w, C]
    image ─ upscaled 4×, with the finer levels added ─▶ [B, P, C/8, 4h, 4w] · mask tokens ─▶ masks [B, P, 3 | 1, 4h, 4w]

Each prompt needs its own copy of the image, so prompts are decoded in groups and memory does not depend on their
number. What all prompts share is computed once (`ImageContext`). Upscaling is half of the work and the predicted IoU is
known before it, so `confident_masks` upscales only masks with a high one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitruvian.images.types import SizeHW
from vitruvian.layers.mlp import activation
from vitruvian.models.sam2.configuration import Sam2MaskDecoderConfig
from vitruvian.models.sam2.layers import Sam2MLP
from vitruvian.models.sam2.two_way_transformer import TwoWayTransformer
from vitruvian.ops.mask_upscaling import UpscalingLayers, peak_memory_factor, pixels_by_cell, upscale_masks
from vitruvian.ops.two_way_attention import ImageCells

# Working memory of a group of prompts in bytes. Small groups stay in the cache of a CPU; a GPU needs large ones.
_GROUP_BYTES = {"cpu": 32 << 20, "cuda": 2 << 30}


class MaskDecoderOutput(NamedTuple):
    """Masks of P prompts for each of B images.

    Attributes:
        masks: Mask logits [B, P, K, 4h, 4w].
        iou_scores: Predicted IoU of each mask [B, P, K].
        object_scores: Logits for whether there is an object [B, P, 1].
        mask_tokens: The tokens of the masks after the transformer [B, P, K, C]; where one mask is chosen by its
            stability, the token of the first. Video models make object pointers of them.
        attentions: On demand, weights of tokens to image for each layer [B·P, A, N, M].
    """

    masks: Tensor
    iou_scores: Tensor
    object_scores: Tensor
    mask_tokens: Tensor
    attentions: tuple[Tensor, ...] | None


class ConfidentMasks(NamedTuple):
    """The N masks of one image whose predicted IoU is high enough.

    Attributes:
        masks: Mask logits [N, 4h, 4w].
        iou_scores: Predicted IoU [N], float32.
        prompts: Index of the prompt of each mask [N], ascending.
    """

    masks: Tensor
    iou_scores: Tensor
    prompts: Tensor


class ImageContext(NamedTuple):
    """What all prompts of an image share.

    Attributes:
        image: Image embedding plus the embedding of mask prompts, cells [B, P | 1, M, C].
        finer: Features of twice the resolution, from `pixels_by_cell` [B, M·4, C/4].
        finest: Features of four times the resolution, from `pixels_by_cell` [B, M·16, C/8].
        grid_hw: Height and width of the grid of cells.
    """

    image: ImageCells
    finer: Tensor
    finest: Tensor
    grid_hw: SizeHW


class MaskDecoder(nn.Module):
    """Prompt embeddings and image embedding to masks."""

    def __init__(self, config: Sam2MaskDecoderConfig) -> None:
        super().__init__()
        self.config = config
        channels, count = config.hidden_size, config.num_multimask_outputs + 1
        self.dynamic_multimask = config.dynamic_multimask_via_stability
        self.stability_delta = config.dynamic_multimask_stability_delta
        self.stability_threshold = config.dynamic_multimask_stability_thresh
        self.iou_token = nn.Embedding(1, channels)
        self.mask_tokens = nn.Embedding(count, channels)
        self.transformer = TwoWayTransformer(config)
        self.upscale_conv1 = nn.ConvTranspose2d(channels, channels // 4, kernel_size=2, stride=2)
        self.upscale_conv2 = nn.ConvTranspose2d(channels // 4, channels // 8, kernel_size=2, stride=2)
        self.upscale_layer_norm = nn.LayerNorm(channels // 4, eps=1e-6)
        self.act = activation(config.hidden_act)
        self.output_hypernetworks_mlps = nn.ModuleList(
            Sam2MLP(channels, channels, channels // 8, depth=3) for _ in range(count)
        )
        self.iou_prediction_head = Sam2MLP(channels, config.iou_head_hidden_dim, count, depth=config.iou_head_depth)
        self.conv_s0 = nn.Conv2d(channels, channels // 8, kernel_size=1)
        self.conv_s1 = nn.Conv2d(channels, channels // 4, kernel_size=1)
        self.obj_score_token = nn.Embedding(1, channels)
        self.pred_obj_score_head = Sam2MLP(channels, channels, 1, depth=3)

    def project_levels(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """Project the finer levels for `forward`: [B, C/8, 4h, 4w], [B, C/4, 2h, 2w], [B, C, h, w] from [B, C, …]."""
        finest, finer, coarse = levels
        return [self.conv_s0(finest), self.conv_s1(finer), coarse]

    def forward(
        self,
        levels: Sequence[Tensor],
        image_positions: Tensor,
        sparse: Tensor,
        dense: Tensor,
        *,
        multimask_output: bool,
        similarity: Tensor | None = None,
        target: Tensor | None = None,
        need_weights: bool = False,
    ) -> MaskDecoderOutput:
        """Decode P prompts for each of B images.

        Args:
            levels: What `project_levels` returns; the last is the image embedding, [B, C, h, w], or one for each
                prompt, [B, P, C, h, w].
            image_positions: Positions of its cells [M, C].
            sparse: Embedded points and boxes [B, P, N, C].
            dense: Embedded masks [B | 1, P | 1, C, h, w].
            multimask_output: Return several masks for an ambiguous prompt rather than one.
            similarity: Attention bias of tokens to the image [B, P, A | 1, N | 1, M].
            target: Embedding added to the tokens; broadcasts to [B, P, N, C].
            need_weights: Return the attention weights of tokens to the image.
        """
        tokens = self._add_output_tokens(sparse)  # [B, P, N, C]
        context = self._image_context(levels, image_positions, dense, tokens)
        if target is not None and target.ndim > 1:
            target = target.expand(*tokens.shape[:2], *target.shape[-2:])
        # Dynamic selection needs all masks. Distributed training expects a gradient for every parameter.
        select = not multimask_output and self.dynamic_multimask and not self.training
        wanted = slice(1, None) if multimask_output else slice(0, None if select else 1)
        computed = slice(None) if torch.is_grad_enabled() else wanted
        parts, layer_weights = [], []
        for group in self._groups(context.image.cells, tokens.shape[1]):
            out, cells, weights = self.transformer(
                tokens[:, group],
                _image_of(context, group),
                similarity=None if similarity is None else similarity[:, group],
                target=target[:, group] if target is not None and target.ndim > 1 else target,
                need_weights=need_weights,
            )
            object_token, iou_token = out.flatten(0, 1).unbind(1)[:2]  # [B·P, C] each: views without a copy
            scores = self.pred_obj_score_head(object_token).view(*out.shape[:2], 1)  # [B, P, 1]
            ious = self.iou_prediction_head(iou_token).sigmoid().view(*out.shape[:2], -1)[:, :, wanted]  # [B, P, K]
            masks = self._masks(out, cells, context, computed)  # [B, P, K, 4h, 4w]
            del cells  # the next group needs its memory
            masks = masks if computed == wanted else masks[:, :, wanted]
            mask_tokens = out[:, :, 2 : 2 + len(self.output_hypernetworks_mlps)][:, :, slice(1) if select else wanted]
            if select:
                masks, ious = _select_stable(
                    masks, ious, delta=self.stability_delta, threshold=self.stability_threshold
                )
            parts.append((masks, ious, scores, mask_tokens))
            layer_weights.append(weights)
        masks, ious, scores, mask_tokens = (_join_groups(pieces) for pieces in zip(*parts, strict=True))
        attentions = tuple(_join_groups(layer).flatten(0, 1) for layer in zip(*layer_weights, strict=True))
        return MaskDecoderOutput(masks, ious, scores, mask_tokens, attentions if need_weights else None)

    def confident_masks(
        self, levels: Sequence[Tensor], image_positions: Tensor, sparse: Tensor, dense: Tensor, *, min_iou: float
    ) -> ConfidentMasks:
        """Decode P prompts of one image and upscale the masks whose predicted IoU exceeds `min_iou`.

        Returns the masks that `forward` returns for several masks a prompt. Arguments are those of `forward`, B = 1.
        """
        tokens = self._add_output_tokens(sparse)  # [1, P, N, C]
        context = self._image_context(levels, image_positions, dense, tokens)
        h, w = context.grid_hw
        no_index = tokens.new_zeros(0, dtype=torch.long)
        parts = [(tokens.new_zeros(0, 4 * h, 4 * w), tokens.new_zeros(0, dtype=torch.float32), no_index)]
        for group in self._groups(context.image.cells, tokens.shape[1]):
            out, cells, _ = self.transformer(tokens[:, group], _image_of(context, group))  # [1, P, N, C], [1, P, M, C]
            ious = self.iou_prediction_head(out[0, :, 1]).sigmoid()[:, 1:].float()  # [P, K]
            prompt, mask = (ious > min_iou).nonzero(as_tuple=True)  # [N] each
            confident, row = prompt.unique(return_inverse=True)  # [W], [N]
            if len(confident):
                masks = self._masks(
                    out[:, confident], cells[:, confident], context, slice(1, None)
                )  # [1, W, K, 4h, 4w]
                parts.append((masks[0, row, mask], ious[prompt, mask], prompt + group.start))
            del cells  # the next group needs its memory
        return ConfidentMasks(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))

    def _add_output_tokens(self, sparse: Tensor) -> Tensor:
        """Put the output tokens before the prompts: [B, P, N, C] to [B, P, 2 + K + N, C]."""
        output = torch.cat((self.obj_score_token.weight, self.iou_token.weight, self.mask_tokens.weight))  # [2 + K, C]
        return torch.cat((output.expand(*sparse.shape[:2], -1, -1), sparse.to(output.dtype)), dim=2)

    def _image_context(
        self, levels: Sequence[Tensor], image_positions: Tensor, dense: Tensor, tokens: Tensor
    ) -> ImageContext:
        """Compute what all groups of prompts share; `tokens` of all prompts are [B, P, N, C]."""
        finest, finer, image = levels
        grid_hw = (image.shape[-2], image.shape[-1])
        cells = ((image if image.ndim == 5 else image[:, None]) + dense).flatten(3).transpose(2, 3)  # [B, P | 1, M, C]
        cells = cells.contiguous() if cells.shape[1] == 1 else cells
        return ImageContext(
            self.transformer.project_image(
                ImageCells(cells, image_positions), tokens=tokens.shape[1] * tokens.shape[2]
            ),
            pixels_by_cell(finer, grid_hw, self.upscale_conv1),
            pixels_by_cell(finest, grid_hw, self.upscale_conv2),
            grid_hw,
        )

    def _masks(self, tokens: Tensor, cells: Tensor, context: ImageContext, which: slice) -> Tensor:
        """Compute some of the masks of tokens [B, P, 2 + K + N, C] and cells [B, P, M, C]: [B, P, K', 4h, 4w]."""
        rows = tokens.flatten(0, 1).unbind(1)  # [B·P, C] each
        vectors = [
            self.output_hypernetworks_mlps[index](rows[2 + index])
            for index in range(len(self.output_hypernetworks_mlps))[which]
        ]
        stacked = torch.stack(vectors, dim=1).view(*tokens.shape[:2], len(vectors), -1)  # [B, P, K', C/8]
        layers = UpscalingLayers(self.upscale_conv1, self.upscale_layer_norm, self.upscale_conv2, self.act)
        return upscale_masks(cells, context.finer, context.finest, stacked, layers, context.grid_hw)

    def _groups(self, cells: Tensor, prompts: int) -> list[slice]:
        """Cut the prompts of an image into even groups that fit the working memory."""
        budget = _GROUP_BYTES.get(cells.device.type, _GROUP_BYTES["cuda"])
        size = max(1, budget // (peak_memory_factor(cells) * cells[:, 0].nbytes))
        groups = -(-prompts // size)
        return [slice(prompts * i // groups, prompts * (i + 1) // groups) for i in range(groups)]


def stability_score(logits: Tensor, delta: float, threshold: float = 0.0) -> Tensor:
    """IoU of masks at thresholds `delta` above and below: [..., H, W] to [...]; 1 where both masks are empty."""
    inner = (logits > threshold + delta).flatten(-2).sum(dim=-1)
    outer = (logits > threshold - delta).flatten(-2).sum(dim=-1)
    return torch.where(outer > 0, inner / outer.clamp(min=1), 1.0)


def _join_groups(pieces: tuple[Tensor, ...]) -> Tensor:
    """Concatenate results of groups of prompts [B, p, …] to [B, P, …]."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def _image_of(context: ImageContext, group: slice) -> ImageCells:
    """Return the image of a group of prompts."""
    image = context.image
    return image if image.cells.shape[1] == 1 else image._replace(cells=image.cells[:, group].contiguous())


def _select_stable(masks: Tensor, ious: Tensor, *, delta: float, threshold: float) -> tuple[Tensor, Tensor]:
    """Select the first mask where it is stable, else the best of the others: [B, P, K, H, W] to [B, P, 1, H, W]."""
    best = ious[:, :, 1:].argmax(dim=-1, keepdim=True) + 1  # [B, P, 1]
    is_stable = stability_score(masks[:, :, :1], delta) >= threshold  # [B, P, 1]
    index = torch.where(is_stable, torch.zeros_like(best), best)  # [B, P, 1]
    selected = masks.gather(2, index[..., None, None].expand(-1, -1, -1, *masks.shape[-2:]))  # [B, P, 1, H, W]
    return selected, ious.gather(2, index)
