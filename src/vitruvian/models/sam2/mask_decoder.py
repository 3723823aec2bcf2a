"""Prompts and image to masks, with a guess of how good each mask is and whether there is an object at all.

    tokens: object score · IoU · 4 masks · prompts [B, P, N, C] ─┐
                           image embedding [B, C, h, w] ─────────┴─ two-way transformer ─▶ tokens, image [B, P, h·w, C]
    image ─ upscaled 4×, with the finer levels added ─▶ [B, P, C/8, 4h, 4w] · mask tokens ─▶ masks [B, P, 3 | 1, 4h, 4w]

Prompts are decoded a few at a time: each needs its own copy of the image, so memory is bounded by the group and not by
their number. What they share is made once (`Scene`). The upscaled image never takes the layout of a picture: a 2×2
transposed convolution with stride 2 is a linear layer a cell, so the cells stay where they are and only the finished
masks are put in order. Upscaling is half of the work, and the predicted IoU is known before it, so `good_masks` draws
only what is good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitruvian.kernels.available import takes_kernel
from vitruvian.layers.mlp import activation
from vitruvian.models.sam2 import fast
from vitruvian.models.sam2.configuration import Sam2MaskDecoderConfig
from vitruvian.models.sam2.hiera import FeedForward
from vitruvian.models.sam2.two_way import SharedImage, TwoWayTransformer

# Working memory for a group of prompts, in bytes: on a CPU small groups stay in the cache, a GPU wants to be filled.
GROUP_BYTES = {"cpu": 32 << 20, "cuda": 2 << 30}
# What one prompt needs while it is decoded, in image embeddings.
EMBEDDINGS_A_PROMPT = 6
# The same where kernels keep what lies between to themselves.
EMBEDDINGS_A_PROMPT_FUSED = 3
# On a CPU the image is upscaled in strips of this many bytes, which stay in the cache and need no fresh memory.
STRIP_BYTES = 1 << 20


class Decoded(NamedTuple):
    """Masks [B, P, K, 4h, 4w], their predicted IoU [B, P, K], object logits [B, P, 1], weights [B·P, A, N, M]."""

    masks: Tensor
    iou_scores: Tensor
    object_scores: Tensor
    attentions: tuple[Tensor, ...] | None


class GoodMasks(NamedTuple):
    """The N masks of one picture that are good enough [N, 4h, 4w], their predicted IoU [N] and the prompt of each [N].

    Prompts come in their order; predicted IoU is float32.
    """

    masks: Tensor
    iou_scores: Tensor
    prompts: Tensor


class Scene(NamedTuple):
    """A picture as all prompts see it.

    Attributes:
        cells: Image embedding with that of mask prompts [B, P | 1, M, C].
        places: Positions of its cells [1, 1, M, C].
        levels: The finer levels, cell by cell, with the upscaling's biases: [B, 1, M·16, C/8] and [B, 1, M·4, C/4].
        shared: Projections of the cells, where all prompts have the same and are many.
        grid_hw: Height and width of the grid of cells.
    """

    cells: Tensor
    places: Tensor
    levels: tuple[Tensor, Tensor]
    shared: SharedImage | None
    grid_hw: tuple[int, int]

    def cells_of(self, group: slice) -> Tensor:
        """Cells of a group of prompts [B, 1 | P, M, C]."""
        return self.cells if self.cells.shape[1] == 1 else self.cells[:, group].contiguous()


class MaskDecoder(nn.Module):
    """Prompt embeddings and image embedding to masks."""

    def __init__(self, config: Sam2MaskDecoderConfig) -> None:
        super().__init__()
        channels, count = config.hidden_size, config.num_multimask_outputs + 1
        self.dynamic = config.dynamic_multimask_via_stability
        self.delta = config.dynamic_multimask_stability_delta
        self.stable_from = config.dynamic_multimask_stability_thresh
        self.iou_token = nn.Embedding(1, channels)
        self.mask_tokens = nn.Embedding(count, channels)
        self.transformer = TwoWayTransformer(config)
        self.upscale_conv1 = nn.ConvTranspose2d(channels, channels // 4, kernel_size=2, stride=2)
        self.upscale_conv2 = nn.ConvTranspose2d(channels // 4, channels // 8, kernel_size=2, stride=2)
        self.upscale_layer_norm = nn.LayerNorm(channels // 4, eps=1e-6)
        self.act = activation(config.hidden_act)
        self.output_hypernetworks_mlps = nn.ModuleList(
            FeedForward(channels, channels, channels // 8, depth=3) for _ in range(count)
        )
        self.iou_prediction_head = FeedForward(channels, config.iou_head_hidden_dim, count, depth=config.iou_head_depth)
        self.conv_s0 = nn.Conv2d(channels, channels // 8, kernel_size=1)
        self.conv_s1 = nn.Conv2d(channels, channels // 4, kernel_size=1)
        self.obj_score_token = nn.Embedding(1, channels)
        self.pred_obj_score_head = FeedForward(channels, channels, 1, depth=3)
        self.quick = False

    def forward(
        self,
        image: Tensor,
        image_positions: Tensor,
        sparse: Tensor,
        dense: Tensor,
        finer: Sequence[Tensor],
        *,
        multimask_output: bool,
        similarity: Tensor | None = None,
        target: Tensor | None = None,
        need_weights: bool = False,
    ) -> Decoded:
        """Decode P prompts for each of B pictures.

        Args:
            image: Image embedding [B, C, h, w].
            image_positions: Positions of its cells [1, C, h, w].
            sparse: Embedded points and boxes [B, P, N, C].
            dense: Embedded masks [B | 1, P | 1, C, h, w].
            finer: The finer levels, already projected: [B, C/8, 4h, 4w] and [B, C/4, 2h, 2w].
            multimask_output: Give all masks for ambiguous prompts, rather than one.
            similarity: Attention bias of tokens looking at the image [B, P, A | 1, N | 1, M].
            target: Embedding added to the tokens, broadcasts to [B, P, N, C].
            need_weights: Give the attention weights of tokens looking at the image.
        """
        tokens = self.with_output_tokens(sparse)  # [B, P, N, C]
        scene = self.scene(image, image_positions, dense, finer, tokens)
        if target is not None:
            target = target.expand(*tokens.shape[:2], *target.shape[-2:]) if target.ndim > 1 else target
        parts = [
            self.decode(
                tokens[:, group],
                scene.cells_of(group),
                scene,
                multimask_output=multimask_output,
                similarity=None if similarity is None else similarity[:, group],
                target=None if target is None else (target[:, group] if target.ndim > 1 else target),
                need_weights=need_weights,
            )
            for group in groups_of(tokens.shape[1], self.group_size(scene.cells))
        ]
        masks, ious, scores = (torch.cat(pieces, dim=1) for pieces in zip(*(p[:3] for p in parts), strict=True))
        weights = [torch.cat(layer, dim=1).flatten(0, 1) for layer in zip(*(p[3] for p in parts), strict=True)]
        return Decoded(masks, ious, scores, tuple(weights) if need_weights else None)

    def good_masks(
        self,
        image: Tensor,
        image_positions: Tensor,
        sparse: Tensor,
        dense: Tensor,
        finer: Sequence[Tensor],
        *,
        least_score: float,
    ) -> GoodMasks:
        """Decode P prompts of one picture, and draw of their masks those whose predicted IoU exceeds `least_score`.

        The other arguments are those of `forward`, with B = 1.
        """
        tokens = self.with_output_tokens(sparse)  # [1, P, N, C]
        scene = self.scene(image, image_positions, dense, finer, tokens)
        kinds = range(1, self.mask_tokens.num_embeddings)
        h, w = scene.grid_hw
        none = tokens.new_zeros(0, dtype=torch.long)
        parts = [(tokens.new_zeros(0, 4 * h, 4 * w), tokens.new_zeros(0, dtype=torch.float32), none)]
        for group in groups_of(tokens.shape[1], self.group_size(scene.cells)):
            seen, cells, _ = self.transformer(
                tokens[:, group], scene.cells_of(group), scene.places, shared=scene.shared
            )  # [1, P, N, C], [1, P, M, C]
            ious = self.iou_prediction_head(seen[0, :, 1]).sigmoid()[:, 1:].float()  # [P, K]
            prompt, kind = (ious > least_score).nonzero(as_tuple=True)  # [N] each
            wanted, place = prompt.unique(return_inverse=True)  # [W], [N]
            if len(wanted):
                drawn = self.draw(seen[:, wanted], cells[:, wanted], scene, kinds)  # [1, W, K, 4h, 4w]
                parts.append((drawn[0, place, kind], ious[prompt, kind], prompt + group.start))
        return GoodMasks(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))

    def group_size(self, cells: Tensor) -> int:
        """How many prompts a picture to decode at a time."""
        lean = fast.takes_drawing(self, cells) and takes_kernel(cells)
        return group_size(cells, EMBEDDINGS_A_PROMPT_FUSED if lean else EMBEDDINGS_A_PROMPT)

    def scene(
        self, image: Tensor, image_positions: Tensor, dense: Tensor, finer: Sequence[Tensor], tokens: Tensor
    ) -> Scene:
        """Make what is the same for all groups of prompts, whose tokens are [B, P, N, C]."""
        grid_hw = (image.shape[2], image.shape[3])
        cells = (image[:, None] + dense).flatten(3).transpose(2, 3)  # [B, P | 1, M, C]
        cells = cells.contiguous() if cells.shape[1] == 1 else cells
        places = image_positions.flatten(2).transpose(1, 2)[None]  # [1, 1, M, C]
        levels = (
            with_bias(by_cell(finer[0], grid_hw, 2), self.upscale_conv2),  # [B, 1, M·16, C/8]
            with_bias(by_cell(finer[1], grid_hw, 1), self.upscale_conv1),  # [B, 1, M·4, C/4]
        )
        shared = self.transformer.share(cells, places, tokens=tokens.shape[1] * tokens.shape[2])
        return Scene(cells, places, levels, shared, grid_hw)

    def decode(
        self,
        tokens: Tensor,
        cells: Tensor,
        scene: Scene,
        *,
        multimask_output: bool,
        similarity: Tensor | None,
        target: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Decode one group of prompts: tokens [B, P, N, C] over cells [B, P | 1, M, C]."""
        tokens, cells, weights = self.transformer(
            tokens,
            cells,
            scene.places,
            shared=scene.shared,
            similarity=similarity,
            target=target,
            need_weights=need_weights,
        )
        ious = self.iou_prediction_head(tokens[:, :, 1]).sigmoid()  # [B, P, K]
        object_scores = self.pred_obj_score_head(tokens[:, :, 0])  # [B, P, 1]
        choose = not multimask_output and self.dynamic and not self.training
        wanted = slice(1, None) if multimask_output else slice(0, None if choose else 1)
        # Training in parallel wants a gradient for every parameter, so there no mask is left out.
        made = slice(None) if torch.is_grad_enabled() else wanted
        masks = self.draw(tokens, cells, scene, range(ious.shape[-1])[made])  # [B, P, K, 4h, 4w]
        masks, ious = masks if made == wanted else masks[:, :, wanted], ious[:, :, wanted]
        if choose:
            masks, ious = choose_stable(masks, ious, delta=self.delta, stable_from=self.stable_from)
        return masks, ious, object_scores, weights

    def draw(self, tokens: Tensor, cells: Tensor, scene: Scene, kinds: range) -> Tensor:
        """Draw masks of some kinds from what the transformer gives: [B, P, kinds, 4h, 4w]."""
        made = [self.output_hypernetworks_mlps[kind](tokens[:, :, 2 + kind]) for kind in kinds]  # [B, P, C/8] each
        heads = torch.stack(made, dim=2)  # [B, P, K, C/8]
        if fast.takes_drawing(self, cells):
            return fast.draw_masks(self, cells, scene, heads)
        strips = [
            heads @ self.upscale(cells[:, :, part], levels).transpose(2, 3)
            for part, levels in self.strips(cells, scene)
        ]  # [B, P, K, m·16] each
        return in_order(torch.cat(strips, dim=-1), scene.grid_hw)

    def strips(self, cells: Tensor, scene: Scene) -> Iterator[tuple[slice, tuple[Tensor, Tensor]]]:
        """Cut the cells [B, P, M, C] where memory matters, and give each part with its finer levels."""
        count = cells.shape[2]
        one = 2 * cells[:, :, 0].nbytes  # 16 pixels with an eighth of the channels
        size = max(1, STRIP_BYTES // one) if cells.device.type == "cpu" else count
        finest, finer = scene.levels
        for part in groups_of(count, size):
            first, last = part.start, part.stop
            yield part, (finest[:, :, 16 * first : 16 * last], finer[:, :, 4 * first : 4 * last])

    def with_output_tokens(self, sparse: Tensor) -> Tensor:
        """Put the tokens that become outputs before the prompts: [B, P, N, C] to [B, P, 2 + K + N, C]."""
        own = torch.cat((self.obj_score_token.weight, self.iou_token.weight, self.mask_tokens.weight))  # [2 + K, C]
        return torch.cat((own.expand(*sparse.shape[:2], -1, -1), sparse.to(own.dtype)), dim=2)

    def upscale(self, cells: Tensor, levels: tuple[Tensor, Tensor]) -> Tensor:
        """Upscale cells [B, P, M, C] fourfold with the finer levels added, cell by cell: [B, P, M·16, C/8]."""
        finest, finer = levels  # [B, 1, M·16, C/8], [B, 1, M·4, C/4]
        # Added in place: these are the largest tensors here, and nothing else needs the sums' parts.
        x = spread(cells, self.upscale_conv1).add_(finer)  # [B, P, M·4, C/4]
        x = self.act(self.upscale_layer_norm(x))
        return self.act(spread(x, self.upscale_conv2).add_(finest))  # [B, P, M·16, C/8]


def group_size(cells: Tensor, embeddings: int = EMBEDDINGS_A_PROMPT) -> int:
    """How many prompts a picture to decode at a time, so that their copies of cells [B, P | 1, M, C] fit the memory."""
    one = cells[:, 0].nbytes * embeddings
    return max(1, GROUP_BYTES.get(cells.device.type, GROUP_BYTES["cuda"]) // one)


def groups_of(count: int, size: int) -> list[slice]:
    """Cut `count` things into slices of up to `size`, as even as possible."""
    groups = -(-count // size)
    return [slice(count * i // groups, count * (i + 1) // groups) for i in range(groups)]


def spread(x: Tensor, conv: nn.ConvTranspose2d) -> Tensor:
    """Apply a 2×2 transposed convolution of stride 2, without bias, cell by cell: [..., M, C] to [..., M·4, C']."""
    weight = conv.weight.permute(2, 3, 1, 0).flatten(0, 2)  # [4·C', C]
    out = nn.functional.linear(x, weight)  # [..., M, 4·C']
    return torch.unflatten(out, -1, (4, -1)).flatten(-3, -2)  # [..., M·4, C']


def with_bias(level: Tensor, conv: nn.ConvTranspose2d) -> Tensor:
    """Add a convolution's bias to what is added to its result anyway, once for all prompts: [..., C]."""
    return level if conv.bias is None else level + conv.bias


def by_cell(level: Tensor, grid_hw: tuple[int, int], halvings: int) -> Tensor:
    """Sort the pixels of a finer level by the cell they lie in: [B, C, H, W] to [B, 1, M·4ⁿ, C].

    Inside a cell they come quarter by quarter, as `spread` writes them.
    """
    twos = (2,) * halvings
    split = torch.unflatten(level, 3, (grid_hw[1], *twos))  # [B, C, H, w, 2…]
    split = torch.unflatten(split, 2, (grid_hw[0], *twos))  # [B, C, h, 2…, w, 2…]
    width = 3 + halvings  # where w stands
    pairs = [axis for n in range(1, halvings + 1) for axis in (2 + n, width + n)]
    ordered = split.permute(0, 2, width, *pairs, 1)  # [B, h, w, 2, 2…, C]
    return ordered.flatten(1, -2)[:, None]  # [B, 1, M·4ⁿ, C]


def in_order(masks: Tensor, grid_hw: tuple[int, int]) -> Tensor:
    """Put masks that lie cell by cell in the order of a picture: [B, P, K, M·16] to [B, P, K, 4h, 4w]."""
    split = torch.unflatten(masks, 3, (*grid_hw, 2, 2, 2, 2))  # [B, P, K, h, w, y, x, y', x']
    return split.permute(0, 1, 2, 3, 5, 7, 4, 6, 8).flatten(6).flatten(3, 5)  # [B, P, K, 4h, 4w]


def choose_stable(masks: Tensor, ious: Tensor, *, delta: float, stable_from: float) -> tuple[Tensor, Tensor]:
    """Keep the first mask where it is stable, else take the best of the others: [B, P, K, H, W] to [B, P, 1, H, W]."""
    best = ious[:, :, 1:].argmax(dim=-1, keepdim=True) + 1  # [B, P, 1]
    stable = stability(masks[:, :, :1], delta) >= stable_from  # [B, P, 1]
    index = torch.where(stable, torch.zeros_like(best), best)  # [B, P, 1]
    chosen = masks.gather(2, index[..., None, None].expand(-1, -1, -1, *masks.shape[-2:]))  # [B, P, 1, H, W]
    return chosen, ious.gather(2, index)


def stability(logits: Tensor, delta: float, threshold: float = 0.0) -> Tensor:
    """IoU of a mask cut a little higher with one cut a little lower: [..., H, W] to [...]; 1 where both are empty."""
    inner = (logits > threshold + delta).flatten(-2).sum(dim=-1)
    outer = (logits > threshold - delta).flatten(-2).sum(dim=-1)
    return torch.where(outer > 0, inner / outer.clamp(min=1), 1.0)
