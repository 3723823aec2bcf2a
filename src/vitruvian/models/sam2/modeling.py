"""SAM 2 for images: a picture and prompts in, masks out.

    pixel_values ─ vision encoder ─▶ image_embeddings (3 levels) ─┐
    points, boxes, masks ─ prompt encoder ─▶ sparse, dense ───────┴─ mask decoder ─▶ pred_masks, iou_scores

The image embedding is the expensive part and serves any number of prompts: pass `image_embeddings` of an earlier output
instead of `pixel_values`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import init

from vitruvian.errors import InputError
from vitruvian.losses.sam import prompted_mask_loss
from vitruvian.model import Model
from vitruvian.models.sam2 import fast
from vitruvian.models.sam2.configuration import Sam2Config
from vitruvian.models.sam2.hiera import init_weights
from vitruvian.models.sam2.mask_decoder import Decoded, GoodMasks, MaskDecoder
from vitruvian.models.sam2.prompt_encoder import PADDING, PromptEncoder, RandomPositions, check_labels, mask_logits
from vitruvian.models.sam2.vision import Sam2VisionEncoderOutput, Sam2VisionModel, without_values
from vitruvian.outputs import ModelOutput

RECORDED_PROMPTS = 1024  # more are bound by arithmetic, and a graph would not help


@dataclass
class Sam2ImageSegmentationOutput(ModelOutput):
    """Masks of P prompted objects for each of B pictures.

    Attributes:
        loss: What `labels` say about the masks, a scalar.
        iou_scores: Predicted IoU of each mask [B, P, K].
        pred_masks: Mask logits at a quarter of the input's size [B, P, K, h, w]; `post_process_masks` enlarges them.
        object_score_logits: Whether there is an object [B, P, 1].
        image_embeddings: The three levels, finest first, to pass back in for further prompts.
        vision_hidden_states: The embedded patches, then the output of every block of the backbone, each [B, h, w, C].
        vision_attentions: Attention weights of every block of the backbone [B·windows, A, N, M].
        mask_decoder_attentions: Weights of each layer's tokens looking at the image [B·P, A, N, h·w].
    """

    loss: Tensor | None = None
    iou_scores: Tensor | None = None
    pred_masks: Tensor | None = None
    object_score_logits: Tensor | None = None
    image_embeddings: tuple[Tensor, ...] | None = None
    vision_hidden_states: tuple[Tensor, ...] | None = None
    vision_attentions: tuple[Tensor, ...] | None = None
    mask_decoder_attentions: tuple[Tensor, ...] | None = None


class Sam2Model(Model):
    """Segment Anything Model 2 for pictures: masks from points, boxes, earlier masks, or no prompt at all."""

    config_class = Sam2Config
    config: Sam2Config
    no_split_modules = ("HieraBlock", "TwoWayTransformer")
    resident_modules = ("shared_image_embedding", "prompt_encoder", "mask_decoder", "no_memory_embedding")
    # Published checkpoints hold the video model, whose memory is of no use for single pictures.
    ignored_keys = (
        r"^(memory_|mask_downsample|object_pointer_proj|temporal_positional_encoding_projection_layer)",
        r"^(no_memory_positional_encoding|no_object_pointer|occlusion_spatial_embedding_parameter)",
    )
    # Some writers store the frequencies once, since both tables are the same.
    optional_keys = ("prompt_encoder.shared_embedding.positional_embedding",)

    def __init__(self, config: Sam2Config) -> None:
        super().__init__(config)
        self.shared_image_embedding = RandomPositions(config.prompts.hidden_size, config.prompts.scale)
        self.vision_encoder = without_values(Sam2VisionModel, config.vision)
        self.prompt_encoder = PromptEncoder(config.prompts)
        self.mask_decoder = MaskDecoder(config.decoder)
        self.no_memory_embedding = nn.Parameter(torch.zeros(1, 1, config.vision.fpn_hidden_size))
        self.post_init()

    def init_module(self, module: nn.Module) -> None:
        """Fill what `module` owns with starting values."""
        init_weights(module, self.config.initializer_range)
        if module is self:
            init.zeros_(self.no_memory_embedding)
        elif module is self.shared_image_embedding:
            init.normal_(self.shared_image_embedding.positional_embedding, std=self.shared_image_embedding.scale)
        elif module is self.prompt_encoder.shared_embedding:
            # A place in the image and a point there mean the same only with the same frequencies.
            init_from = self.shared_image_embedding.positional_embedding
            self.prompt_encoder.shared_embedding.positional_embedding.copy_(init_from)

    def prepare_for_inference(self) -> None:
        """Take the fused way in inference."""
        fast.fuse_sam2(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, whose two halves are recorded on their own: pictures and prompts come in other numbers."""
        return nn.Module.__call__(self, *args, **kwargs)

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
        original_sizes: Any = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sam2ImageSegmentationOutput:
        """Predict masks of P objects in each of B pictures. Coordinates are in pixels of the model's input.

        Args:
            pixel_values: Pictures [B, 3, H, W] of the configured size; or give `image_embeddings`.
            input_points: [B, P, N, 2], x and y of N points on each object.
            input_labels: [B, P, N]: 1 on the object, 0 off it, -1 not a point, -10 padding; by default all 1.
            input_boxes: [B, P, 4], x1, y1, x2, y2; with points, as many boxes as objects.
            input_masks: Mask prompts [B, P, h, w], or [B, h, w] for all objects: logits of an earlier call at any
                size, or hard masks.
            image_embeddings: `image_embeddings` of an earlier output, or what `get_image_embeddings` gives.
            multimask_output: Three masks for an ambiguous prompt, rather than one.
            attention_similarity: Bias of tokens looking at the image, broadcasts to [B·P, A, N, h·w] (PerSAM).
            target_embedding: Embedding of the wanted concept, added to the tokens [..., C] (PerSAM).
            labels: True masks [B, P, h, w], or [B, h, w] with one object a picture; gives `loss`.
            original_sizes: Sizes of the pictures before resizing, for `post_process_masks`; accepted so that all of
                a processor's output can be passed on, and not needed here.
            output_hidden_states: Give the hidden states of the vision encoder.
            output_attentions: Give attention weights.
            return_dict: Give an output object rather than a tuple.
        """
        del original_sizes
        if (pixel_values is None) == (image_embeddings is None):
            raise InputError("pixel_values and image_embeddings: expected exactly one of them. Drop or add one.")
        keep_weights = self.resolve_flag("output_attentions", output_attentions)
        vision = None
        keep_states = self.resolve_flag("output_hidden_states", output_hidden_states)
        if pixel_values is not None and not (keep_states or keep_weights):
            levels = self.run_captured(self.encode_levels, pixel_values)
        elif pixel_values is not None:
            vision = self.encode(pixel_values, keep_states, keep_weights)
            levels = self.image_levels(vision)
        else:
            levels = self.check_embeddings(image_embeddings)
        points, point_labels, boxes, masks = self.check_prompts(
            levels[-1], input_points, input_labels, input_boxes, input_masks
        )
        objects = next(given.shape[1] for given in (points, boxes) if given is not None)
        given = (levels, points, point_labels, boxes, masks)
        special = attention_similarity is not None or target_embedding is not None or keep_weights
        if special or objects > RECORDED_PROMPTS:
            decoded = self.decode_prompts(
                *given, multimask_output, attention_similarity, target_embedding, keep_weights
            )
        else:
            decoded = self.run_captured(self.decode_prompts, *given, multimask_output)
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
            output.loss = mask_loss(output, labels, counts=prompts_that_count(point_labels, boxes))
        return self.format_output(output, return_dict)

    @torch.no_grad()
    def get_image_embeddings(self, pixel_values: Tensor) -> list[Tensor]:
        """Encode pictures [B, 3, H, W] once for many prompts: three levels, finest first; without gradient."""
        levels: list[Tensor] = self.run_captured(self.encode_levels, pixel_values)
        return levels

    def get_image_features(
        self,
        pixel_values: Tensor,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sam2VisionEncoderOutput:
        """Encode pictures [B, 3, H, W]; the levels are projected for the mask decoder and come as [h·w, B, C]."""
        found: Sam2VisionEncoderOutput = self.vision_encoder(
            pixel_values,
            output_hidden_states=self.resolve_flag("output_hidden_states", output_hidden_states),
            output_attentions=self.resolve_flag("output_attentions", output_attentions),
            return_dict=True,
        )
        levels = self.project_levels(found.fpn_hidden_states)
        found.fpn_hidden_states = tuple(level.flatten(2).permute(2, 0, 1) for level in levels)  # [h·w, B, C]
        found.fpn_position_encoding = tuple(
            level.flatten(2).permute(2, 0, 1) for level in found.fpn_position_encoding or ()
        )  # [h·w, B, C]
        return self.format_output(found, return_dict)

    @torch.no_grad()
    def get_prompt_embeddings(
        self,
        input_points: Tensor | None = None,
        input_labels: Tensor | None = None,
        input_boxes: Tensor | None = None,
        input_masks: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """Embed prompts: sparse [B, P, N, C] for points and boxes, dense [B | 1, P | 1, C, h, w] for masks."""
        if input_points is not None and input_labels is None:
            input_labels = torch.ones(input_points.shape[:-1], dtype=torch.long, device=input_points.device)
        masks = None if input_masks is None else mask_logits(input_masks, self.prompt_encoder.mask_hw)
        embedded: tuple[Tensor | None, Tensor] = self.prompt_encoder(input_points, input_labels, input_boxes, masks)
        return embedded

    @torch.no_grad()
    def good_masks(self, input_points: Tensor, image_embeddings: Sequence[Tensor], *, least_score: float) -> GoodMasks:
        """Predict three masks for each prompt of one encoded picture, and draw those that promise to be good.

        Gives the masks that a call would give and `iou_scores` puts above `least_score`, for half the work at best.

        Args:
            input_points: [1, P, N, 2], x and y of N points on each of P objects.
            image_embeddings: What `get_image_embeddings` gives for one picture.
            least_score: Predicted IoU that a mask must exceed.
        """
        levels = self.check_embeddings(image_embeddings)
        points, labels, _, _ = self.check_prompts(levels[-1], input_points, None, None, None)
        if len(levels[-1]) != 1:
            raise InputError(f"image_embeddings: expected those of one picture, got {len(levels[-1])}.")
        sparse, dense = self.prompt_encoder(points, labels, None, None)
        positions = self.get_image_wide_positional_embeddings()
        return self.mask_decoder.good_masks(levels[-1], positions, sparse, dense, levels[:-1], least_score=least_score)

    def get_image_wide_positional_embeddings(self) -> Tensor:
        """Positions of the cells of the image embedding [1, C, h, w]."""
        return self.shared_image_embedding.grid(self.prompt_encoder.grid_hw)

    # ------------------------------------------------------------------ parts of the way

    def encode(
        self, pixel_values: Tensor, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> Sam2VisionEncoderOutput:
        """Run the vision encoder on pictures of the configured size."""
        expected = self.prompt_encoder.image_hw
        if pixel_values.ndim == 4 and tuple(pixel_values.shape[2:]) != expected:
            raise InputError(
                f"pixel_values: expected pictures of {expected[0]} × {expected[1]}, got "
                f"{pixel_values.shape[2]} × {pixel_values.shape[3]}. Prepare them with Sam2Processor, or build the "
                "model for another size with Sam2Config.with_image_size."
            )
        return self.vision_encoder.encode(
            pixel_values, output_hidden_states=output_hidden_states, output_attentions=output_attentions
        )

    def encode_levels(self, pixel_values: Tensor) -> list[Tensor]:
        """The three levels of pictures [B, 3, H, W] for the mask decoder."""
        return self.image_levels(self.encode(pixel_values))

    def decode_prompts(
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
    ) -> Decoded:
        """Decode prompts that fit together; see `forward` for the arguments."""
        sparse, dense = self.prompt_encoder(points, labels, boxes, masks)
        decoded: Decoded = self.mask_decoder(
            levels[-1],
            self.get_image_wide_positional_embeddings(),
            sparse,
            dense,
            levels[:-1],
            multimask_output=multimask_output,
            similarity=spread_similarity(similarity, *sparse.shape[:2]),
            target=target,
            need_weights=need_weights,
        )
        return decoded

    def project_levels(self, levels: Sequence[Tensor] | None) -> list[Tensor]:
        """Narrow the finer levels to what the mask decoder adds: [B, C/8, 4h, 4w], [B, C/4, 2h, 2w], [B, C, h, w]."""
        finest, finer, coarse = levels or ()
        return [self.mask_decoder.conv_s0(finest), self.mask_decoder.conv_s1(finer), coarse]

    def image_levels(self, vision: Sam2VisionEncoderOutput) -> list[Tensor]:
        """The three levels for the mask decoder; the coarsest says that there is no memory of earlier frames."""
        finest, finer, coarse = self.project_levels(vision.fpn_hidden_states)
        return [finest, finer, coarse + self.no_memory_embedding.reshape(1, -1, 1, 1)]

    def check_embeddings(self, image_embeddings: Sequence[Tensor] | None) -> list[Tensor]:
        """Return the levels of an earlier call, or raise `InputError`."""
        h, w = self.prompt_encoder.grid_hw
        channels = self.no_memory_embedding.shape[-1]
        wanted = [[channels // 8, 4 * h, 4 * w], [channels // 4, 2 * h, 2 * w], [channels, h, w]]
        found = [] if isinstance(image_embeddings, Tensor) else list(image_embeddings or ())
        if [list(level.shape[1:]) for level in found] != wanted or len({len(level) for level in found}) != 1:
            shapes = [list(level.shape) for level in found] or type(image_embeddings).__name__
            raise InputError(
                f"image_embeddings: expected three levels [B, C, h, w] of {wanted}, got {shapes}. "
                "Pass what get_image_embeddings or outputs.image_embeddings gives."
            )
        return [level.to(self.no_memory_embedding.dtype) for level in found]

    def check_prompts(
        self,
        embedding: Tensor,
        points: Tensor | None,
        labels: Tensor | None,
        boxes: Tensor | None,
        masks: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Return prompts that fit together and the batch, with labels and the empty prompt filled in."""
        batch = len(embedding)
        check_shape("input_points", points, batch, "[B, P, N, 2]")
        check_shape("input_boxes", boxes, batch, "[B, P, 4]")
        if points is None and labels is not None:
            raise InputError("input_labels: expected input_points with them, got none. Add the points.")
        if points is not None and boxes is not None and points.shape[1] != boxes.shape[1]:
            raise InputError(
                f"input_points and input_boxes: expected as many objects in both, got {points.shape[1]} and "
                f"{boxes.shape[1]}. Give one box and one list of points for each object."
            )
        if points is not None and labels is None:
            labels = torch.ones(points.shape[:-1], dtype=torch.long, device=points.device)
        if points is not None and labels is not None:
            if labels.shape != points.shape[:-1]:
                raise InputError(
                    f"input_labels: expected {list(points.shape[:-1])}, one for each point, got {list(labels.shape)}."
                )
            check_labels(labels)
        if masks is not None:
            masks = mask_logits(masks, self.prompt_encoder.mask_hw)  # [B, P | 1, 4h, 4w]
            check_shape("input_masks", masks, batch, "[B, P, h, w]")
        if points is None and boxes is None:
            count = 1 if masks is None else masks.shape[1]
            points = embedding.new_zeros(batch, count, 1, 2)
            labels = torch.full((batch, count, 1), -1, dtype=torch.long, device=embedding.device)
        objects = next(given.shape[1] for given in (points, boxes) if given is not None)
        if masks is not None and masks.shape[1] not in (1, objects):
            raise InputError(
                f"input_masks: expected one mask, or one for each of {objects} objects, got {masks.shape[1]}."
            )
        return points, labels, boxes, masks


def check_shape(name: str, value: Tensor | None, batch: int, form: str) -> None:
    """Raise `InputError` unless a prompt has the dimensions of its form and the batch's size."""
    if value is None:
        return
    sizes = form.strip("[]").split(", ")
    last = int(sizes[-1]) if sizes[-1].isdigit() else None
    if value.ndim != len(sizes) or 0 in value.shape or (last is not None and value.shape[-1] != last):
        raise InputError(f"{name}: expected {form}, got {list(value.shape)}. Prepare prompts with Sam2Processor.")
    if value.shape[0] != batch:
        raise InputError(f"{name}: expected prompts for each of {batch} pictures, got {value.shape[0]}.")


def spread_similarity(similarity: Tensor | None, batch: int, count: int) -> Tensor | None:
    """Bring a bias that broadcasts to [B·P, A, N, M] to [B, P, A | 1, N | 1, M]; boolean ones say where to look."""
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
    wide = similarity.expand(batch * count, -1, -1, -1)  # [B·P, A | 1, N | 1, M]
    return torch.unflatten(wide, 0, (batch, count))  # [B, P, A | 1, N | 1, M]


def prompts_that_count(labels: Tensor | None, boxes: Tensor | None) -> Tensor | None:
    """Tell which objects [B, P] are more than padding."""
    marks = []
    if labels is not None:
        marks.append((labels != PADDING).any(dim=-1))
    if boxes is not None:
        marks.append((boxes != PADDING).any(dim=-1))
    return torch.stack(marks).any(dim=0) if marks else None  # [B, P]


def mask_loss(output: Sam2ImageSegmentationOutput, labels: Tensor, *, counts: Tensor | None = None) -> Tensor:
    """Loss of an output's masks against true ones [B, P, h, w], or [B, h, w] with one object a picture.

    Masks are enlarged to the labels' size where that differs.
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
        flat = F.interpolate(masks.flatten(0, 1).float(), size=targets.shape[-2:], mode="bilinear", align_corners=False)
        masks = torch.unflatten(flat, 0, masks.shape[:2])  # [B, P, K, h, w]
    return prompted_mask_loss(masks, scores, output.object_score_logits, targets, counts=counts).total
