"""Prompts to embeddings: points and boxes to tokens, masks to a map that is added to the image embedding.

    points [B, P, N, 2] + labels [B, P, N] ─┐
                       boxes [B, P, 4] ─────┴─▶ sparse [B, P, N', C]     (coordinates in pixels of the model's input)
                  masks [B, P | 1, 4h, 4w] ───▶ dense [B, P | 1, C, h, w]

P objects are prompted in each of B images. Labels: 1 on the object, 0 off it, 2 and 3 corners of a box,
-1 not a point, -10 padding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitruvian.errors import InputError
from vitruvian.images.types import SizeHW
from vitruvian.layers.mlp import activation
from vitruvian.layers.norm import LayerNorm2d
from vitruvian.models.sam2.configuration import Sam2PromptEncoderConfig
from vitruvian.ops.interpolate import bilinear
from vitruvian.tensor_cache import constant

PADDING = -10
NOT_A_POINT = -1
_POINT_LABELS = (PADDING, NOT_A_POINT, 0, 1, 2, 3)
_BINARY_MASK_LOGIT = 10.0  # logits of a binary mask as a prompt, as in the training of SAM 2


class PromptEncoder(nn.Module):
    """Points, boxes and masks to embeddings."""

    def __init__(self, config: Sam2PromptEncoderConfig) -> None:
        super().__init__()
        channels = config.hidden_size
        self.image_hw = config.image_hw
        self.grid_hw = config.grid_hw
        self.mask_hw = (4 * config.grid_hw[0], 4 * config.grid_hw[1])
        self.shared_embedding = RandomFourierPositions(channels, config.scale)
        self.mask_embed = MaskEmbedding(config)
        self.no_mask_embed = nn.Embedding(1, channels)
        self.point_embed = nn.Embedding(config.num_point_embeddings, channels)
        self.not_a_point_embed = nn.Embedding(1, channels)

    def forward(
        self,
        input_points: Tensor | None,
        input_labels: Tensor | None,
        input_boxes: Tensor | None,
        input_masks: Tensor | None,
    ) -> tuple[Tensor | None, Tensor]:
        """Return sparse embeddings [B, P, N, C], None without points and boxes, and dense ones [B | 1, P | 1, C, h, w].

        Args:
            input_points: [B, P, N, 2], x and y in pixels of the model's input.
            input_labels: [B, P, N].
            input_boxes: [B, P, 4], corners.
            input_masks: Logits [B, P | 1, 4h, 4w].
        """
        tokens = []
        if input_points is not None and input_labels is not None:
            tokens.append(self._embed_points(input_points, input_labels))  # [B, P, N, C]
        if input_boxes is not None:
            corners = torch.unflatten(input_boxes, -1, (2, 2))
            tokens.append(
                self.shared_embedding.embed(corners, self.image_hw) + self.point_embed.weight[2:4]
            )  # [B, P, 2, C]
        if tokens:
            tokens.append(self.not_a_point_embed.weight.expand(*tokens[0].shape[:2], 1, -1))  # [B, P, 1, C]
        sparse = torch.cat(tokens, dim=2) if tokens else None  # [B, P, N', C]
        return sparse, self._embed_masks(input_masks)

    def _embed_points(self, points: Tensor, labels: Tensor) -> Tensor:
        """Embed points [B, P, N, 2] with labels [B, P, N]: position plus an embedding of the label [B, P, N, C]."""
        by_label = self.point_embed(labels.clamp(min=0).long())  # [B, P, N, C]
        label = labels.unsqueeze(-1)  # [B, P, N, 1]
        positions = self.shared_embedding.embed(points, self.image_hw)
        embedded = (positions + by_label).masked_fill(label < 0, 0.0)
        return torch.where(label == NOT_A_POINT, self.not_a_point_embed.weight, embedded)

    def _embed_masks(self, masks: Tensor | None) -> Tensor:
        """Embed mask logits [B, P, 4h, 4w] as [B, P, C, h, w]; without masks, one embedding for every cell."""
        if masks is None:
            return self.no_mask_embed.weight.view(1, 1, -1, 1, 1).expand(-1, -1, -1, *self.grid_hw)  # [1, 1, C, h, w]
        logits = masks.flatten(0, 1)[:, None].to(self.no_mask_embed.weight.dtype)  # [B·P, 1, 4h, 4w]
        embedded: Tensor = self.mask_embed(logits)  # [B·P, C, h, w]
        return torch.unflatten(embedded, 0, masks.shape[:2])  # [B, P, C, h, w]


class RandomFourierPositions(nn.Module):
    """Positions in [0, 1]² as random Fourier features: sines and cosines of fixed random frequencies."""

    positional_embedding: Tensor

    def __init__(self, channels: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("positional_embedding", torch.zeros(2, channels // 2))

    def embed(self, cells: Tensor, size_hw: SizeHW) -> Tensor:
        """Embed the centers of cells x, y [..., 2] of a grid as [..., C]; in float32 whatever the model's data type."""
        frequencies = self.positional_embedding
        height, width = size_hw
        # 2π · (2 · (cell + 0.5) / size - 1) for x and y
        per_cell = constant((4 * math.pi / width, 4 * math.pi / height), cells.device)
        first = constant((2 * math.pi / width - 2 * math.pi, 2 * math.pi / height - 2 * math.pi), cells.device)
        angles = torch.addcmul(first, cells.float(), per_cell) @ frequencies.float()  # [..., C/2]
        return torch.cat((angles.sin(), angles.cos()), dim=-1).to(frequencies.dtype)  # [..., C]

    def grid(self, grid_hw: SizeHW) -> Tensor:
        """Embed all cells of a grid, row by row: [h·w, C]."""
        y, x = (torch.arange(side, device=self.positional_embedding.device) for side in grid_hw)
        return self.embed(torch.cartesian_prod(y, x).flip(-1), grid_hw)


class MaskEmbedding(nn.Module):
    """Mask logits to a map of a quarter of their size."""

    def __init__(self, config: Sam2PromptEncoderConfig) -> None:
        super().__init__()
        inner, middle = config.mask_input_channels // 4, config.mask_input_channels
        self.act = activation(config.hidden_act)
        self.conv1 = nn.Conv2d(1, inner, kernel_size=2, stride=2)
        self.conv2 = nn.Conv2d(inner, middle, kernel_size=2, stride=2)
        self.conv3 = nn.Conv2d(middle, config.hidden_size, kernel_size=1)
        self.layer_norm1 = LayerNorm2d(inner, eps=config.layer_norm_eps)
        self.layer_norm2 = LayerNorm2d(middle, eps=config.layer_norm_eps)

    def forward(self, logits: Tensor) -> Tensor:
        """Map [B, 1, 4h, 4w] to [B, C, h, w]."""
        x = self.act(self.layer_norm1(self.conv1(logits)))  # [B, C', 2h, 2w]
        x = self.act(self.layer_norm2(self.conv2(x)))  # [B, C'', h, w]
        out: Tensor = self.conv3(x)  # [B, C, h, w]
        return out


def as_mask_logits(masks: Tensor, mask_hw: SizeHW) -> Tensor:
    """Convert mask prompts [B, P, H, W] or [B, H, W] to logits [B, P, 4h, 4w].

    Floating-point masks are logits, such as `pred_masks` of an earlier call. Binary masks (bool or integers) become
    ± 10. Other sizes are resampled with antialiasing.
    """
    if masks.ndim == 3:
        masks = masks[:, None]  # [B, 1, H, W]
    if masks.ndim != 4 or 0 in masks.shape:
        raise InputError(
            f"input_masks: expected the shape [B, P, H, W] or [B, H, W], got {list(masks.shape)}. "
            "Pass pred_masks[:, :, best] of an earlier call."
        )
    if not masks.is_floating_point():
        masks = (masks != 0).float() * (2 * _BINARY_MASK_LOGIT) - _BINARY_MASK_LOGIT
    return bilinear(masks.float(), mask_hw, antialias=True).to(masks.dtype)  # [B, P, 4h, 4w]


def check_labels(labels: Tensor) -> None:
    """Raise `InputError` for a label that no point can have. Skipped on a GPU, where it would synchronize."""
    if not torch.compiler.is_compiling() and labels.device.type == "cpu":
        check_label_values(labels.flatten().tolist())


def check_label_values(labels: Iterable[object], name: str = "input_labels") -> None:
    """Raise `InputError` for a label that no point can have."""
    for label in labels:
        if label not in _POINT_LABELS:
            raise InputError(
                f"{name}: expected 1 (on the object), 0 (off it), 2 and 3 (corners of a box), -1 (no point) or "
                f"{PADDING} (padding), got {label}. Correct the label."
            )
