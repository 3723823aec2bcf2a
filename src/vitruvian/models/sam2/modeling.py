"""SAM 2 for images: an image and prompts in, masks out.

    pixel_values ─ vision encoder ─▶ image_embeddings (3 levels) ─┐
    points, boxes, masks ─ prompt encoder ─▶ sparse, dense ───────┴─ mask decoder ─▶ pred_masks, iou_scores

The image embedding is the expensive part and serves any number of prompts: pass `image_embeddings` of an earlier output
instead of `pixel_values`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import init

from vitruvian.errors import InputError
from vitruvian.losses.prompted_masks import prompted_mask_loss
from vitruvian.models.sam2.checkpoint_keys import MEMORY_KEYS
from vitruvian.models.sam2.configuration import Sam2Config
from vitruvian.models.sam2.hiera import Sam2PreTrainedModel
from vitruvian.models.sam2.mask_decoder import ConfidentMasks, MaskDecoder, MaskDecoderOutput
from vitruvian.models.sam2.prompt_encoder import (
    NOT_A_POINT,
    PADDING,
    PromptEncoder,
    RandomFourierPositions,
    as_mask_logits,
    check_labels,
)
from vitruvian.models.sam2.vision_encoder import Sam2VisionEncoderOutput, Sam2VisionModel, build_uninitialized
from vitruvian.ops.dispatch import is_tracing
from vitruvian.ops.interpolate import bilinear
from vitruvian.outputs import ModelOutput, OutputFlags, OutputKwargs
from vitruvian.tensor_cache import WeightCache

_MAX_CAPTURED_PROMPTS = 1024  # more are bound by arithmetic, so that a CUDA graph would not help


@dataclass
class Sam2ImageSegmentationOutput(ModelOutput):
    """Masks of P prompted objects in each of B images.

    Attributes:
        loss: Loss of the masks against `labels`, a scalar.
        iou_scores: Predicted IoU of each mask [B, P, K].
        pred_masks: Mask logits at a quarter of the input size [B, P, K, h, w]; `post_process_masks` enlarges them.
        object_score_logits: Whether there is an object [B, P, 1].
        image_embeddings: The three levels, finest first, to pass back in for further prompts.
        vision_hidden_states, vision_attentions: Those of `Sam2HieraDetModelOutput`.
        mask_decoder_attentions: Attention weights of tokens to the image for each decoder layer [B·P, A, N, h·w].
    """

    loss: Tensor | None = None
    iou_scores: Tensor | None = None
    pred_masks: Tensor | None = None
    object_score_logits: Tensor | None = None
    image_embeddings: tuple[Tensor, ...] | None = None
    vision_hidden_states: tuple[Tensor, ...] | None = None
    vision_attentions: tuple[Tensor, ...] | None = None
    mask_decoder_attentions: tuple[Tensor, ...] | None = None


class Sam2BaseModel(Sam2PreTrainedModel):
    """What the models for images and videos share: vision encoder, prompt encoder and mask decoder."""

    config_class = Sam2Config
    config: Sam2Config
    no_split_modules = ("HieraBlock", "TwoWayTransformer")
    resident_modules = ("shared_image_embedding", "prompt_encoder", "mask_decoder", "no_memory_embedding")
    captures_forward = False  # encoder and decoder are captured separately, as their batch sizes differ
    # Some writers store the frequencies once, since both tables are the same.
    optional_keys = (r"prompt_encoder\.shared_embedding\.positional_embedding$",)

    def __init__(self, config: Sam2Config) -> None:
        super().__init__(config)
        self.shared_image_embedding = RandomFourierPositions(
            config.prompt_encoder_config.hidden_size, config.prompt_encoder_config.scale
        )
        self.vision_encoder = build_uninitialized(Sam2VisionModel, config.vision_config)
        self.prompt_encoder = PromptEncoder(config.prompt_encoder_config)
        self.mask_decoder = MaskDecoder(config.mask_decoder_config)
        self.no_memory_embedding = nn.Parameter(torch.zeros(1, 1, config.vision_config.fpn_hidden_size))
        self._positions: WeightCache[Tensor] = WeightCache()

    def init_module(self, module: nn.Module) -> None:
        """Initialize the parameters of `module` itself."""
        super().init_module(module)
        if module is self:
            init.zeros_(self.no_memory_embedding)
        elif module is self.shared_image_embedding:
            init.normal_(self.shared_image_embedding.positional_embedding, std=self.shared_image_embedding.scale)
        elif module is self.prompt_encoder.shared_embedding:
            # Cells of the image and points are comparable only with the same frequencies.
            frequencies = self.shared_image_embedding.positional_embedding
            self.prompt_encoder.shared_embedding.positional_embedding.copy_(frequencies)

    @torch.no_grad()
    def get_image_embeddings(self, pixel_values: Tensor) -> list[Tensor]:
        """Encode images [B, 3, H, W] once for many prompts: three levels, finest first; without gradient."""
        levels: list[Tensor] = self.run_captured(self._encode_levels, pixel_values)
        return levels

    def get_image_features(self, pixel_values: Tensor, **kwargs: Unpack[OutputKwargs]) -> Sam2VisionEncoderOutput:
        """Encode images [B, 3, H, W]; the levels are projected for the mask decoder, each [h·w, B, C]."""
        flags = self.output_flags(**kwargs)
        vision: Sam2VisionEncoderOutput = self.vision_encoder(pixel_values, **flags.for_inner())
        levels = self.mask_decoder.project_levels(vision.fpn_hidden_states or ())
        vision.fpn_hidden_states = tuple(level.flatten(2).permute(2, 0, 1) for level in levels)  # [h·w, B, C]
        vision.fpn_position_encoding = tuple(
            level.flatten(2).permute(2, 0, 1) for level in vision.fpn_position_encoding or ()
        )  # [h·w, B, C]
        return self.format_output(vision, flags.return_dict)

    @torch.no_grad()
    def get_prompt_embeddings(
        self,
        input_points: Tensor | None = None,
        input_labels: Tensor | None = None,
        input_boxes: Tensor | None = None,
        input_masks: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """Embed prompts: sparse [B, P, N, C] for points and boxes, dense [B, C, h, w] for one mask an image."""
        if input_points is not None and input_labels is None:
            input_labels = _all_positive(input_points)
        masks = None if input_masks is None else as_mask_logits(input_masks, self.prompt_encoder.mask_hw)
        sparse, dense = self.prompt_encoder(input_points, input_labels, input_boxes, masks)
        if masks is None and sparse is not None:
            dense = dense.expand(len(sparse), -1, -1, -1, -1)
        return sparse, dense.flatten(0, 1)

    def get_image_wide_positional_embeddings(self) -> Tensor:
        """Positions of the cells of the image embedding [1, C, h, w]."""
        return torch.unflatten(self._cell_positions().T, 1, self.prompt_encoder.grid_hw)[None]

    def _cell_positions(self) -> Tensor:
        """Positions of the cells of the image embedding [M, C], computed once."""
        embedding, grid_hw = self.shared_image_embedding, self.prompt_encoder.grid_hw
        if is_tracing():
            return embedding.grid(grid_hw)
        with torch.inference_mode(False):  # training may use the same tensor later
            return self._positions.get([embedding.positional_embedding], lambda: embedding.grid(grid_hw))

    def _encode(self, pixel_values: Tensor, flags: OutputFlags) -> Sam2VisionEncoderOutput:
        """Run the vision encoder on images of the configured size."""
        expected = self.prompt_encoder.image_hw
        if pixel_values.ndim == 4 and tuple(pixel_values.shape[2:]) != expected:
            raise InputError(
                f"pixel_values: expected images of {expected[0]} × {expected[1]}, got "
                f"{pixel_values.shape[2]} × {pixel_values.shape[3]}. Prepare them with Sam2Processor, or build the "
                "model for another size with Sam2Config.with_image_size."
            )
        return self.vision_encoder.encode(pixel_values, flags)

    def _encode_levels(self, pixel_values: Tensor) -> list[Tensor]:
        """Encode images [B, 3, H, W] to the three levels of the mask decoder."""
        plain = OutputFlags(hidden_states=False, attentions=False, return_dict=True)
        return self._image_embeddings(self._encode(pixel_values, plain))

    def _image_embeddings(self, vision: Sam2VisionEncoderOutput) -> list[Tensor]:
        """Project the levels for the mask decoder and add `no_memory_embedding` to the coarsest: no frames before."""
        finest, finer, coarse = self.mask_decoder.project_levels(vision.fpn_hidden_states or ())
        return [finest, finer, coarse + self.no_memory_embedding.reshape(1, -1, 1, 1)]


class Sam2Model(Sam2BaseModel):
    """Segment Anything Model 2 for images: masks from points, boxes, earlier masks, or no prompt at all."""

    ignored_keys = MEMORY_KEYS

    def __init__(self, config: Sam2Config) -> None:
        super().__init__(config)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_points: Tensor | None = None,
        input_labels: Tensor | None = None,
        input_boxes: Tensor | None = None,
        input_masks: Tensor | None = None,
        image_embeddings: Sequence[Tensor] | None = None,
        multimask_output: bool = True,
        attention_similarity: Tensor | None = None,
        target_embedding: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        original_sizes: object = None,
        **kwargs: Unpack[OutputKwargs],
    ) -> Sam2ImageSegmentationOutput:
        """Predict masks of P objects in each of B images. Coordinates are in pixels of the model input.

        Args:
            pixel_values: Images [B, 3, H, W] of the configured size; or pass `image_embeddings`.
            input_points: [B, P, N, 2], x and y of N points on each object.
            input_labels: [B, P, N]: 1 on the object, 0 off it, -1 not a point, -10 padding; 1 by default.
            input_boxes: [B, P, 4], x1, y1, x2, y2; with points, as many boxes as objects.
            input_masks: Mask prompts [B, P, h, w], or [B, h, w] for all objects: logits of an earlier call at any
                size, or binary masks.
            image_embeddings: `image_embeddings` of an earlier output, or the result of `get_image_embeddings`.
            multimask_output: Return three masks for an ambiguous prompt rather than one.
            attention_similarity: Attention bias of tokens to the image, broadcasts to [B·P, A, N, h·w] (PerSAM).
            target_embedding: Embedding of the target concept, added to the tokens [..., C] (PerSAM).
            labels: True masks [B, P, h, w], or [B, h, w] with one object an image; adds `loss`.
            original_sizes: Ignored, so that all outputs of the processor can be passed.
            kwargs: See `OutputKwargs`; hidden states are those of the vision encoder.
        """
        del original_sizes
        if (pixel_values is None) == (image_embeddings is None):
            raise InputError("pixel_values and image_embeddings: expected exactly one of them. Drop or add one.")
        flags = self.output_flags(**kwargs)
        vision: Sam2VisionEncoderOutput | None = None
        if pixel_values is None:
            levels = self._checked_embeddings(image_embeddings)
        elif flags.hidden_states or flags.attentions:
            vision = self._encode(pixel_values, flags)
            levels = self._image_embeddings(vision)
        else:
            levels = self.run_captured(self._encode_levels, pixel_values)
        prompts = self._checked_prompts(levels[-1], input_points, input_labels, input_boxes, input_masks)
        points, point_labels, boxes, _ = prompts
        objects = next(prompt.shape[1] for prompt in (points, boxes) if prompt is not None)
        special = attention_similarity is not None or target_embedding is not None or flags.attentions
        if special or objects > _MAX_CAPTURED_PROMPTS:
            decoded = self._decode(
                levels, *prompts, multimask_output, attention_similarity, target_embedding, flags.attentions
            )
        else:
            decoded = self.run_captured(self._decode, levels, *prompts, multimask_output)
        output = Sam2ImageSegmentationOutput(
            iou_scores=decoded.iou_scores,
            pred_masks=decoded.masks,
            object_score_logits=decoded.object_scores,
            image_embeddings=tuple(levels),
            vision_hidden_states=None if vision is None else vision.hidden_states,
            vision_attentions=None if vision is None else vision.attentions,
            mask_decoder_attentions=decoded.attentions,
        )
        if labels is not None:
            output.loss = mask_loss(output, labels, counts=_not_padding(point_labels, boxes))
        return self.format_output(output, flags.return_dict)

    @torch.no_grad()
    def confident_masks(
        self, input_points: Tensor, image_embeddings: Sequence[Tensor], *, min_iou: float
    ) -> ConfidentMasks:
        """Predict three masks for each prompt of one encoded image, and return those with a high predicted IoU.

        The masks are those of a call whose `iou_scores` exceed `min_iou`, for half the work or more.

        Args:
            input_points: [1, P, N, 2], x and y of N points on each of P objects.
            image_embeddings: The result of `get_image_embeddings` for one image.
            min_iou: Predicted IoU that a mask must exceed.
        """
        levels = self._checked_embeddings(image_embeddings)
        points, labels, _, _ = self._checked_prompts(levels[-1], input_points, None, None, None)
        if len(levels[-1]) != 1:
            raise InputError(f"image_embeddings: expected those of one image, got {len(levels[-1])}.")
        sparse, dense = self.prompt_encoder(points, labels, None, None)
        positions = self._cell_positions()
        return self.mask_decoder.confident_masks(levels, positions, sparse, dense, min_iou=min_iou)

    def _decode(
        self,
        levels: list[Tensor],
        points: Tensor | None,
        labels: Tensor | None,
        boxes: Tensor | None,
        masks: Tensor | None,
        multimask_output: bool,
        similarity: Tensor | None = None,
        target: Tensor | None = None,
        need_weights: bool = False,
    ) -> MaskDecoderOutput:
        """Decode prompts from `_checked_prompts`; see `forward` for the arguments."""
        sparse, dense = self.prompt_encoder(points, labels, boxes, masks)
        decoded: MaskDecoderOutput = self.mask_decoder(
            levels,
            self._cell_positions(),
            sparse,
            dense,
            multimask_output=multimask_output,
            similarity=_expand_similarity(similarity, *sparse.shape[:2]),
            target=target,
            need_weights=need_weights,
        )
        return decoded

    def _checked_embeddings(self, image_embeddings: Sequence[Tensor] | None) -> list[Tensor]:
        """Return the levels of an earlier call, or raise `InputError`."""
        h, w = self.prompt_encoder.grid_hw
        channels = self.no_memory_embedding.shape[-1]
        expected = [[channels // 8, 4 * h, 4 * w], [channels // 4, 2 * h, 2 * w], [channels, h, w]]
        levels = [] if isinstance(image_embeddings, Tensor) else list(image_embeddings or ())
        if [list(level.shape[1:]) for level in levels] != expected or len({len(level) for level in levels}) != 1:
            shapes = [list(level.shape) for level in levels] or type(image_embeddings).__name__
            raise InputError(
                f"image_embeddings: expected three levels [B, C, h, w] of {expected}, got {shapes}. "
                "Pass the result of get_image_embeddings or outputs.image_embeddings."
            )
        return [level.to(self.no_memory_embedding.dtype) for level in levels]

    def _checked_prompts(
        self,
        embedding: Tensor,
        points: Tensor | None,
        labels: Tensor | None,
        boxes: Tensor | None,
        masks: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Check that prompts match each other and the batch; fill in labels and the empty prompt."""
        batch = len(embedding)
        _check_shape("input_points", points, batch, "[B, P, N, 2]")
        _check_shape("input_boxes", boxes, batch, "[B, P, 4]")
        if points is None and labels is not None:
            raise InputError("input_labels: expected input_points with them, got none. Add the points.")
        if points is not None and boxes is not None and points.shape[1] != boxes.shape[1]:
            raise InputError(
                f"input_points and input_boxes: expected as many objects in both, got {points.shape[1]} and "
                f"{boxes.shape[1]}. Give one box and one list of points for each object."
            )
        if points is not None:
            labels = _all_positive(points) if labels is None else labels
            if labels.shape != points.shape[:-1]:
                raise InputError(
                    f"input_labels: expected {list(points.shape[:-1])}, one for each point, got {list(labels.shape)}."
                )
            check_labels(labels)
        if masks is not None:
            masks = as_mask_logits(masks, self.prompt_encoder.mask_hw)  # [B, P | 1, 4h, 4w]
            _check_shape("input_masks", masks, batch, "[B, P, h, w]")
        if points is None and boxes is None:
            points = embedding.new_zeros(batch, 1 if masks is None else masks.shape[1], 1, 2)
            labels = _all_positive(points) * NOT_A_POINT
        objects = next(prompt.shape[1] for prompt in (points, boxes) if prompt is not None)
        if masks is not None and masks.shape[1] not in (1, objects):
            raise InputError(
                f"input_masks: expected one mask, or one for each of {objects} objects, got {masks.shape[1]}."
            )
        return points, labels, boxes, masks


def mask_loss(output: Sam2ImageSegmentationOutput, labels: Tensor, *, counts: Tensor | None = None) -> Tensor:
    """Loss of the masks of an output against true ones [B, P, h, w], or [B, h, w] with one object an image.

    Masks are enlarged to the size of the labels. `counts` [B, P] marks the objects that count; all by default.
    """
    masks, scores = output.pred_masks, output.iou_scores
    if masks is None or scores is None:
        raise InputError("output: expected pred_masks and iou_scores, got none. Pass the output of Sam2Model.")
    targets = labels[:, None] if labels.ndim == 3 else labels  # [B, P, h, w]
    if targets.ndim != 4 or targets.shape[:2] != masks.shape[:2]:
        raise InputError(
            f"labels: expected {[*masks.shape[:2], 'h', 'w']}, one mask for each prompted object, got "
            f"{list(labels.shape)}. Split a label map into one mask an object first."
        )
    if targets.shape[-2:] != masks.shape[-2:]:
        flat = bilinear(masks.flatten(0, 1).float(), targets.shape[-2:])
        masks = torch.unflatten(flat, 0, masks.shape[:2])  # [B, P, K, h, w]
    return prompted_mask_loss(masks, scores, output.object_score_logits, targets, counts=counts).total


def _all_positive(points: Tensor) -> Tensor:
    """Labels 1 for points [B, P, N, 2]: [B, P, N]."""
    return torch.ones(points.shape[:-1], dtype=torch.long, device=points.device)


def _not_padding(labels: Tensor | None, boxes: Tensor | None) -> Tensor | None:
    """Return which objects [B, P] have a point or box that is not padding."""
    prompts = [(prompt != PADDING).any(dim=-1) for prompt in (labels, boxes) if prompt is not None]
    return torch.stack(prompts).any(dim=0) if prompts else None  # [B, P]


def _check_shape(name: str, value: Tensor | None, batch: int, dims: str) -> None:
    """Raise `InputError` unless a prompt has the dimensions of `dims` and the size of the batch."""
    if value is None:
        return
    sizes = dims.strip("[]").split(", ")
    last = int(sizes[-1]) if sizes[-1].isdigit() else None
    if value.ndim != len(sizes) or 0 in value.shape or (last is not None and value.shape[-1] != last):
        raise InputError(f"{name}: expected {dims}, got {list(value.shape)}. Prepare prompts with Sam2Processor.")
    if value.shape[0] != batch:
        raise InputError(f"{name}: expected prompts for each of {batch} images, got {value.shape[0]}.")


def _expand_similarity(similarity: Tensor | None, batch: int, count: int) -> Tensor | None:
    """Expand a bias or boolean mask that broadcasts to [B·P, A, N, M] to a bias [B, P, A | 1, N | 1, M]."""
    if similarity is None:
        return None
    if similarity.dtype == torch.bool:
        similarity = torch.zeros_like(similarity, dtype=torch.float32).masked_fill(~similarity, float("-inf"))
    while similarity.ndim < 4:
        similarity = similarity[None]
    if similarity.ndim > 4 or similarity.shape[0] not in (1, batch * count):
        raise InputError(
            f"attention_similarity: expected a shape that broadcasts to [{batch * count}, A, N, h·w], "
            f"got {list(similarity.shape)}."
        )
    similarity = similarity.expand(batch * count, -1, -1, -1)  # [B·P, A | 1, N | 1, M]
    return torch.unflatten(similarity, 0, (batch, count))  # [B, P, A | 1, N | 1, M]
