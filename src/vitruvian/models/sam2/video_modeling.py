"""SAM 2 for videos: objects that are prompted in some frames are tracked through all others.

    frame ─ vision encoder ─▶ features ─┬─ memory attention (memories and pointers of each object) ─▶ [O, C, h, w]
    prompts ─ prompt encoder ───────────┴─ mask decoder ─▶ masks, scores, object pointers of O objects
    features, masks ─ memory encoder ─▶ memories, for the frames to come

A frame is encoded once for all objects. Objects with the same kind of prompt are decoded in one batch, and objects with
as many memories attend to them in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import init

from vitruvian.cuda.graphs import GraphCache
from vitruvian.cuda.pinned_copy import pinned_copy
from vitruvian.errors import InputError
from vitruvian.layers.sine_positions import sine_periods, sine_positions
from vitruvian.losses.prompted_masks import MaskPrediction
from vitruvian.models.sam2.configuration import Sam2VideoConfig
from vitruvian.models.sam2.layers import Sam2MLP
from vitruvian.models.sam2.mask_cleanup import clean_logits, without_overlap
from vitruvian.models.sam2.memory_attention import MemoryAttention
from vitruvian.models.sam2.memory_bank import find_memories, join_frames, join_pointers
from vitruvian.models.sam2.memory_encoder import MemoryEncoder, MemoryFuserBlock
from vitruvian.models.sam2.modeling import Sam2BaseModel
from vitruvian.models.sam2.object_plans import ObjectPlan, plan_objects
from vitruvian.models.sam2.prompt_encoder import NOT_A_POINT
from vitruvian.models.sam2.video_session import CONDITIONING, MASK_PROMPT_LOGIT, TRACKED, Sam2VideoInferenceSession
from vitruvian.ops.interpolate import bilinear
from vitruvian.outputs import ModelOutput, OutputFlags, OutputKwargs
from vitruvian.tensor_cache import constant

_NO_OBJECT_LOGIT = -1024.0  # of the pixels of a frame without the object
_MAX_GRAPHS = 16  # encoder, attention, decoder and memory encoder for up to four groups of objects
_CLEANED_LOGIT = 0.1  # of filled holes and, negative, of removed islands, as in the original for videos

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass
class Sam2VideoSegmentationOutput(ModelOutput):
    """Masks of O objects in a frame.

    Attributes:
        object_ids: Their ids.
        pred_masks: Mask logits at a quarter of the input size [O, 1, h, w]; `post_process_masks` enlarges them.
        object_score_logits: Whether the object is visible [O, 1].
        frame_idx: Index of the frame.
        iou_scores: Predicted IoU of each mask [O, 1].
    """

    object_ids: list[int] | None = None
    pred_masks: Tensor | None = None
    object_score_logits: Tensor | None = None
    frame_idx: int | None = None
    iou_scores: Tensor | None = None


class Sam2VideoPreTrainedModel(Sam2BaseModel):
    """Base of models for videos: opens and saves checkpoints and initializes weights."""

    config_class = Sam2VideoConfig
    config: Sam2VideoConfig
    base_model_prefix = "sam2_video"

    def init_module(self, module: nn.Module) -> None:
        """Initialize the parameters of `module` itself."""
        super().init_module(module)
        if isinstance(module, MemoryFuserBlock):
            init.constant_(module.scale, module.scale_init)
        elif isinstance(module, Sam2VideoModel):
            for name, parameter in module.named_parameters(recurse=False):
                if name != "no_memory_embedding":
                    init.trunc_normal_(parameter, std=self.config.initializer_range)


class _ObjectMasks(NamedTuple):
    """Masks of O objects.

    Attributes:
        low: Logits [O, 1, h, w].
        high: Logits at the size of frames [O, 1, H, W].
        pointers: Object pointers [O, C].
        object_scores: Logits for whether the object is visible [O, 1].
        ious: Predicted IoU [O, 1].
        candidates: In training, for each object all K masks [K, h, w] with their predicted IoU [K]; K is 0 for a mask
            prompt.
    """

    low: Tensor
    high: Tensor
    pointers: Tensor
    object_scores: Tensor
    ious: Tensor
    candidates: tuple[tuple[Tensor, Tensor], ...] = ()


class Sam2VideoModel(Sam2VideoPreTrainedModel):
    """Segment Anything Model 2 for videos: tracks objects from points, boxes or masks in some frames."""

    def __init__(self, config: Sam2VideoConfig) -> None:
        super().__init__(config)
        channels, memory_channels = config.vision_config.fpn_hidden_size, config.memory_encoder_output_channels
        self.memory_attention = MemoryAttention(config)
        self.memory_encoder = MemoryEncoder(config)
        self.memory_temporal_positional_encoding = nn.Parameter(torch.zeros(config.num_maskmem, 1, 1, memory_channels))
        self.no_memory_positional_encoding = nn.Parameter(torch.zeros(1, 1, channels))  # in checkpoints, and not used
        self.no_object_pointer = nn.Parameter(torch.zeros(1, channels))
        self.mask_downsample = nn.Conv2d(1, 1, kernel_size=4, stride=4)
        self.object_pointer_proj = Sam2MLP(channels, channels, channels, depth=3)
        self.temporal_positional_encoding_projection_layer: nn.Module = nn.Identity()
        if config.enable_temporal_pos_encoding_for_object_pointers:
            self.temporal_positional_encoding_projection_layer = nn.Linear(channels, memory_channels)
        self.occlusion_spatial_embedding_parameter: nn.Parameter | None = None
        if config.enable_occlusion_spatial_embedding:
            self.occlusion_spatial_embedding_parameter = nn.Parameter(torch.zeros(1, memory_channels))
        self.post_init()

    def new_graph_cache(self) -> GraphCache:
        """Return a cache that captures shapes when they come again: memory grows with each of the first frames."""
        return GraphCache(max_graphs=_MAX_GRAPHS, calls_before=1)

    def forward(
        self,
        inference_session: Sam2VideoInferenceSession,
        frame_idx: int | None = None,
        frame: Tensor | None = None,
        reverse: bool = False,
        run_mem_encoder: bool = True,
        **options: Unpack[OutputKwargs],
    ) -> Sam2VideoSegmentationOutput:
        """Segment the objects of a session in one frame, and store what later frames need.

        Gradients flow in training mode only, then also through the memories of earlier frames.

        Args:
            inference_session: The session.
            frame_idx: Index of the frame; by default that of the next streamed frame.
            frame: A streamed frame [3, H, W], prepared by the processor.
            reverse: Whether frames come in descending order.
            run_mem_encoder: Whether to encode memories of this frame. Without them, later frames do not attend to it.
            options: See `OutputKwargs`; only `return_dict` has an effect.
        """
        session, streaming = inference_session, frame is not None
        if session.get_obj_num() == 0:
            raise InputError("session: expected at least one object. Add points, boxes or masks with the processor.")
        if frame is not None:
            frame_idx = session.add_new_frame(frame, frame_idx)
        if frame_idx is None:
            raise InputError("frame_idx: expected the index of a frame, or a streamed frame as `frame`, got neither.")
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            levels = session.features(frame_idx, lambda pixels: self.run_captured(self._encode_frame, pixels))
            plans = plan_objects(session, frame_idx, reverse=reverse)
            if plans:
                conditioned = self._condition(session, frame_idx, plans, levels[-1], streaming=streaming)
                masks = self._segment(plans, levels, conditioned)
                self._store(session, frame_idx, plans, masks, levels[-1], run_mem_encoder=run_mem_encoder)
            output = self._collect(session, frame_idx)
        if not session.options.keep_history:
            session.drop_history(
                frame_idx,
                reverse=reverse,
                memories=self.config.num_maskmem,
                pointers=self.config.max_object_pointers_in_encoder,
            )
        return self.format_output(output, options.get("return_dict"))

    def propagate_in_video_iterator(
        self,
        inference_session: Sam2VideoInferenceSession,
        start_frame_idx: int | None = None,
        max_frame_num_to_track: int | None = None,
        reverse: bool = False,
        show_progress_bar: bool = False,
    ) -> Iterator[Sam2VideoSegmentationOutput]:
        """Segment the objects of a session in one frame after another.

        Args:
            inference_session: A session with a whole video.
            start_frame_idx: First frame; by default the first conditioning frame. It is needed unless `forward` ran on
                a prompted frame.
            max_frame_num_to_track: Number of frames after the first; all by default.
            reverse: Go from `start_frame_idx` to the first frame of the video.
            show_progress_bar: Show progress in the terminal.
        """
        count = inference_session.num_frames or 0
        if start_frame_idx is None:
            outputs = inference_session.output_dict_per_obj.values()
            prompted = [frame for output in outputs for frame in output[CONDITIONING]]
            if not prompted:
                raise InputError(
                    "start_frame_idx: expected the first frame, since no prompted frame was segmented yet. Pass it, or "
                    "call the model on a frame with prompts first."
                )
            start_frame_idx = min(prompted)
        steps = count if max_frame_num_to_track is None else max_frame_num_to_track
        if reverse:
            last = max(start_frame_idx - steps, 0)
            order = range(start_frame_idx, last - 1, -1) if start_frame_idx > 0 else range(0)
        else:
            order = range(start_frame_idx, min(start_frame_idx + steps, count - 1) + 1)
        frames: Iterable[int] = order
        if show_progress_bar:
            from rich.progress import track

            frames = track(order, description="propagate in video")
        for frame_idx in frames:
            yield self(inference_session, frame_idx=frame_idx, reverse=reverse, return_dict=True)

    def segment_with_corrections(
        self,
        inference_session: Sam2VideoInferenceSession,
        frame_idx: int,
        correct: Callable[[Tensor], tuple[Tensor, Tensor] | None],
    ) -> list[MaskPrediction]:
        """Segment the next frame of a video for training, with further points for its errors, and store the outcome.

        Features are conditioned on memories once, and each prediction is a prompt of the one after it. The memory is
        that of the last prediction. Frames with corrections become conditioning frames.

        Args:
            inference_session: A session in which all objects are prompted in the first frame.
            frame_idx: Index of the frame.
            correct: Takes the predicted logits [O, h, w] and returns a point for each object [O, 2] with labels [O],
                or None for no more corrections.

        Returns:
            Predictions of all objects, one after another: the first, and one for each call of `correct`.
        """
        session = inference_session
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            levels = session.features(frame_idx, self._encode_frame)
            plans = plan_objects(session, frame_idx, reverse=False)
            conditioned = self._condition(session, frame_idx, plans, levels[-1], streaming=False)
            masks = self._segment(plans, levels, conditioned)
            predictions = [_prediction(masks)]
            while (points := correct(masks.low[:, 0].detach())) is not None:
                plans = [
                    plan.corrected(coordinates, label, masks.low[number : number + 1])
                    for number, (plan, coordinates, label) in enumerate(zip(plans, *points, strict=True))
                ]
                masks = self._segment(plans, levels, conditioned)
                predictions.append(_prediction(masks))
            self._store(session, frame_idx, plans, masks, levels[-1], run_mem_encoder=True)
        return predictions

    # ------------------------------------------------------------------------------------------------------ segment

    def _encode_frame(self, pixel_values: Tensor) -> list[Tensor]:
        """Encode a frame [1, 3, H, W] to the three levels of the mask decoder, without memory."""
        plain = OutputFlags(hidden_states=False, attentions=False, return_dict=True)
        return self.mask_decoder.project_levels(self._encode(pixel_values, plain).fpn_hidden_states or ())

    def _segment(self, plans: list[ObjectPlan], levels: list[Tensor], conditioned: dict[int, Tensor]) -> _ObjectMasks:
        """Segment one object for each plan. Objects of the same kind are segmented together.

        Args:
            plans: The objects.
            levels: The three levels of the frame, or of the frames of B clips; each clip has as many objects.
            conditioned: Features that are conditioned on memories, of the objects that have some: index -> [C, h, w].
        """
        kinds = (
            (
                plan.mask is not None,
                plan.obj_idx in conditioned,
                0 if plan.points is None else plan.points[1].shape[2],
                plan.prior is not None,
                self._is_multimask(plan),
            )
            for plan in plans
        )
        groups = [numbers for _, numbers in _by_key(zip(kinds, range(len(plans)), strict=True))]
        parts = [self._segment_group([plans[number] for number in group], levels, conditioned) for group in groups]
        if len(parts) == 1:
            return parts[0]
        order = torch.tensor([number for group in groups for number in group]).argsort()
        candidates = [masks for part in parts for masks in part.candidates]
        order_on_device = pinned_copy(order, levels[-1].device)
        return _ObjectMasks(
            low=torch.cat([part.low for part in parts])[order_on_device],
            high=torch.cat([part.high for part in parts])[order_on_device],
            pointers=torch.cat([part.pointers for part in parts])[order_on_device],
            object_scores=torch.cat([part.object_scores for part in parts])[order_on_device],
            ious=torch.cat([part.ious for part in parts])[order_on_device],
            candidates=tuple(candidates[number] for number in order.tolist() if candidates),
        )

    def _segment_group(
        self, plans: list[ObjectPlan], levels: list[Tensor], conditioned: dict[int, Tensor]
    ) -> _ObjectMasks:
        """Segment objects of the same kind."""
        masks = [plan.mask for plan in plans if plan.mask is not None]
        if masks:
            return self._segment_by_masks(levels, torch.cat(masks))
        finest, finer, image = levels
        if plans[0].obj_idx in conditioned:
            # Stacked in the memory order of memory attention, channels last, in which the mask decoder reads them.
            maps = torch.stack([conditioned[plan.obj_idx].movedim(0, -1) for plan in plans])  # [O, h, w, C]
            image = _by_image(maps.movedim(-1, 1), len(image))  # [B, P, C, h, w]
        elif self.config.num_maskmem > 0:
            image = image + self.no_memory_embedding.reshape(1, -1, 1, 1)
        priors = [plan.prior for plan in plans if plan.prior is not None]
        return self.run_captured(
            self._decode_objects,
            [finest, finer, image],
            len(plans),
            _join_points([plan.points for plan in plans if plan.points is not None]),
            torch.cat(priors, dim=1) if priors else None,
            multimask_output=self._is_multimask(plans[0]),
        )

    def _is_multimask(self, plan: ObjectPlan) -> bool:
        """Return whether several masks are predicted, of which the best is selected."""
        config, count = self.config, 0 if plan.points is None else plan.points[1].shape[2]
        allowed = not plan.uses_memory or config.multimask_output_for_tracking
        in_range = config.multimask_min_pt_num <= count <= config.multimask_max_pt_num
        return config.multimask_output_in_sam and allowed and in_range

    def _decode_objects(
        self,
        levels: list[Tensor],
        objects: int,
        points: tuple[Tensor, Tensor] | None,
        masks: Tensor | None,
        *,
        multimask_output: bool,
    ) -> _ObjectMasks:
        """Decode O objects, P = O / B of each of B images.

        Args:
            levels: Finer levels [B, …], and features [B, C, h, w] for all objects or [B, P, C, h, w] for each.
            objects: O.
            points: Points [1, O, N, 2] and labels [1, O, N]; none by default.
            masks: Mask logits [1, O, h, w] as prompts.
            multimask_output: Whether to predict several masks and select the best.
        """
        if points is None:
            empty = levels[-1].new_zeros(1, objects, 1, 2)
            points = empty, torch.full(empty.shape[:3], NOT_A_POINT, device=empty.device)
        images = len(levels[-1])
        coordinates, labels = (_by_image(part[0], images) for part in points)
        sparse, dense = self.prompt_encoder(
            coordinates, labels, None, None if masks is None else _by_image(masks[0], images)
        )
        decoded = self.mask_decoder(levels, self._cell_positions(), sparse, dense, multimask_output=multimask_output)
        candidates, ious, object_scores, all_tokens = (
            part.flatten(0, 1) for part in decoded[:4]
        )  # [O, K, h, w], [O, K], [O, 1], [O, K, C]
        best = ious.argmax(dim=-1)  # [O]
        index = torch.arange(objects, device=best.device)
        low = candidates[index, best][:, None]  # [O, 1, h, w]
        low = torch.where(object_scores[..., None, None] > 0, low, _NO_OBJECT_LOGIT)
        # Where one mask is selected by its stability there is one token.
        tokens = all_tokens[index, best.clamp(max=all_tokens.shape[1] - 1)]  # [O, C]
        pointers = torch.where(object_scores > 0, self.object_pointer_proj(tokens), self.no_object_pointer)  # [O, C]
        return _ObjectMasks(
            low=low,
            high=bilinear(low, self.prompt_encoder.image_hw),  # [O, 1, H, W]
            pointers=pointers,
            object_scores=object_scores,
            ious=ious[index, best][:, None],
            candidates=tuple(zip(candidates, ious, strict=True)) if self.training else (),
        )

    def _segment_by_masks(self, levels: list[Tensor], masks: Tensor) -> _ObjectMasks:
        """Use mask prompts [O, 1, H, W] as the masks of O objects; the decoder only makes their pointers."""
        masks = masks.to(levels[-1].dtype)
        if masks.shape[-2:] != self.prompt_encoder.image_hw:
            masks = _resample(masks, self.prompt_encoder.image_hw)
        high = (2 * masks - 1) * MASK_PROMPT_LOGIT
        prompts = self.mask_downsample(masks).transpose(0, 1)  # [1, O, h, w]
        pointers = self._decode_objects(levels, len(masks), None, prompts, multimask_output=True).pointers
        is_visible = (masks.flatten(1) > 0).any(dim=1, keepdim=True)  # [O, 1]
        return _ObjectMasks(
            low=_resample(high, self.prompt_encoder.mask_hw),
            high=high,
            pointers=torch.where(is_visible, pointers, self.no_object_pointer),
            object_scores=(2 * is_visible.to(masks.dtype) - 1) * MASK_PROMPT_LOGIT,
            ious=torch.ones_like(is_visible, dtype=masks.dtype),
            candidates=((masks.new_zeros(0, *self.prompt_encoder.mask_hw), masks.new_zeros(0)),) * len(masks)
            if self.training
            else (),
        )

    # ------------------------------------------------------------------------------------------------------- memory

    def _condition(
        self,
        session: Sam2VideoInferenceSession,
        frame_idx: int,
        plans: list[ObjectPlan],
        features: Tensor,
        *,
        streaming: bool,
    ) -> dict[int, Tensor]:
        """Condition features [1, C, h, w] on the memories of each object that has some: object index -> [C, h, w]."""
        if self.config.num_maskmem == 0:
            return {}
        limit = self.config.max_object_pointers_in_encoder
        limit = limit if streaming else min(limit, session.num_frames or limit)
        memories = {
            plan.obj_idx: find_memories(session, plan, frame_idx, self.config, pointers=limit)
            for plan in plans
            if plan.uses_memory and plan.mask is None
        }
        shapes = ((tuple(d for d, _ in memory.frames), len(memory.pointers)) for memory in memories.values())
        conditioned: dict[int, Tensor] = {}
        for (distances, _), group in _by_key(zip(shapes, memories.items(), strict=True)):
            group_memories = [memory for _, memory in group]
            maps = self.run_captured(
                self._attend_to_memories,
                features,
                join_frames(group_memories, features),
                *join_pointers(group_memories, features, limit),
                distances,
            )  # [O, C, h, w]
            conditioned |= dict(zip((obj_idx for obj_idx, _ in group), maps.unbind(), strict=True))
        return conditioned

    def _attend_to_memories(
        self,
        features: Tensor,
        memory: Tensor | None,
        pointers: Tensor | None,
        times: Tensor | None,
        distances: tuple[int, ...],
    ) -> Tensor:
        """Condition features [1, C, h, w] on the memories of O objects with as many memories: [O, C, h, w].

        Args:
            features: Features of the frame.
            memory: Memories of T frames [O, T·M, C'], None for none.
            pointers: Object pointers of N frames [O, N, C], None for none.
            times: Distance of each pointer in frames, relative to the largest [O, N].
            distances: Distance in frames of each of the T memories, 0 for conditioning frames.
        """
        parts: list[Tensor] = []
        positions: list[Tensor] = []
        if memory is not None:
            parts.append(memory.to(features.dtype))
            positions.append(self._frame_positions(distances, features).expand(len(memory), -1, -1))
        tokens = None
        if pointers is not None and times is not None:
            channels = self.config.memory_encoder_output_channels
            splits = max(1, pointers.shape[2] // channels)
            tokens = torch.unflatten(pointers.to(features.dtype), 2, (splits, -1)).flatten(1, 2)  # [O, N·S, C']
            parts.append(tokens)
            positions.append(self._pointer_positions(times, tokens, pointers.shape[2]))
        if not parts:
            raise InputError(
                "memory: expected at least one memory of an earlier frame, got none. Run the memory encoder on "
                "prompted frames."
            )
        conditioned: Tensor = self.memory_attention(
            features,
            torch.cat(parts, dim=1),
            torch.cat(positions, dim=1),
            pointer_tokens=0 if tokens is None else tokens.shape[1],
        )
        return conditioned

    def _frame_positions(self, distances: tuple[int, ...], features: Tensor) -> Tensor:
        """Positions of the memories of T frames in time and in the grid [T·M, C']."""
        channels = self.config.memory_encoder_output_channels
        in_grid = sine_positions((features.shape[2], features.shape[3]), channels, features.dtype, features.device)
        # The row of a distance d is d - 1; conditioning frames have the last row.
        rows = constant(tuple((distance - 1) % self.config.num_maskmem for distance in distances), features.device)
        in_time = self.memory_temporal_positional_encoding[rows, 0]  # [T, 1, C']
        return (in_time + in_grid).flatten(0, 1)

    def _pointer_positions(self, times: Tensor, tokens: Tensor, channels: int) -> Tensor:
        """Positions in time of pointers of C channels at times [O, N], which are cut into tokens [O, N·S, C']."""
        if not self.config.enable_temporal_pos_encoding_for_object_pointers:
            return torch.zeros_like(tokens)
        sines = _sine_of_time(times, channels).to(tokens.dtype)  # [O, N, C]
        in_time: Tensor = self.temporal_positional_encoding_projection_layer(sines)  # [O, N, C']
        return in_time.repeat_interleave(tokens.shape[1] // times.shape[1], dim=1)

    def _encode_memory(self, features: Tensor, masks: Tensor, object_scores: Tensor, binarize: Tensor | bool) -> Tensor:
        """Encode masks [O, 1, H, W] of a frame with features [1, C, h, w]: memories [O, h·w, C'] in bfloat16.

        Args:
            features: Features of the frame, without memory.
            masks: Mask logits.
            object_scores: Logits for whether each object is visible [O, 1].
            binarize: Which masks become binary [O], or whether all do. In training none does.
        """
        if self.training or binarize is False:
            masks = masks.sigmoid()
        elif binarize is True:
            masks = (masks > 0).to(masks.dtype)
        else:
            masks = torch.where(binarize[:, None, None, None], (masks > 0).to(masks.dtype), masks.sigmoid())
        masks = masks * self.config.sigmoid_scale_for_mem_enc + self.config.sigmoid_bias_for_mem_enc
        memory: Tensor = self.memory_encoder(features, masks)  # [O, C', h, w]
        if self.occlusion_spatial_embedding_parameter is not None:
            occluded = (object_scores <= 0).to(memory.dtype)[..., None, None]  # [O, 1, 1, 1]
            memory = memory + occluded * self.occlusion_spatial_embedding_parameter[..., None, None]
        return memory.to(torch.bfloat16).flatten(2).transpose(1, 2).contiguous()  # [O, h·w, C']

    # ------------------------------------------------------------------------------------------------------- output

    def _store(
        self,
        session: Sam2VideoInferenceSession,
        frame_idx: int,
        plans: list[ObjectPlan],
        masks: _ObjectMasks,
        features: Tensor,
        *,
        run_mem_encoder: bool,
    ) -> None:
        """Store the outputs of the objects that were segmented, with their memories."""
        options = session.options
        memories: Tensor | None = None
        if run_mem_encoder and self.config.num_maskmem > 0:
            high = without_overlap(masks.high) if options.non_overlapping_memory else masks.high
            prompted = [plan.is_prompted for plan in plans]
            if not options.independent_objects:
                prompted = [any(prompted)] * len(plans)
            binarize = any(prompted) if len(set(prompted)) == 1 else pinned_copy(torch.tensor(prompted), high.device)
            memories = self.run_captured(self._encode_memory, features, high, masks.object_scores, binarize)
        low = clean_logits(masks.low, options.max_hole_area, options.max_sprinkle_area, distance=_CLEANED_LOGIT)
        by_name = {
            "pred_masks": low[:, None],
            "object_pointer": masks.pointers[:, None, None],
            "object_score_logits": masks.object_scores[:, None, None],
            "iou_scores": masks.ious[:, None],
        }
        if memories is not None:
            by_name["maskmem_features"] = memories[:, :, None]  # [O, h·w, 1, C']
        rows = zip(*(value.unbind() for value in by_name.values()), strict=True)
        for plan, row in zip(plans, rows, strict=True):
            output = dict(zip(by_name, row, strict=True))
            if plan.is_conditioning and len(plans) > 1:  # it stays; views would hold the memory of all objects
                output = {name: value.clone() for name, value in output.items()}
            if plan.is_prompted:
                session.mark_inputs_read(plan.obj_idx, frame_idx)
                if options.clear_memory_around_prompts:
                    session.clear_tracked(plan.obj_idx, frame_idx, distance=self.config.num_maskmem)
            session.store_output(
                plan.obj_idx, frame_idx, output_value=output, is_conditioning_frame=plan.is_conditioning
            )
            if plan.is_conditioning:
                session.output_dict_per_obj[plan.obj_idx][TRACKED].pop(frame_idx, None)
            else:
                session.frames_tracked_per_obj[plan.obj_idx][frame_idx] = {"reverse": plan.reverse}

    def _collect(self, session: Sam2VideoInferenceSession, frame_idx: int) -> Sam2VideoSegmentationOutput:
        """Collect the stored outputs of all objects in a frame."""
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        for obj_idx in range(session.get_obj_num()):
            outputs = session.output_dict_per_obj[obj_idx]
            output = outputs[CONDITIONING].get(frame_idx) or outputs[TRACKED].get(frame_idx)
            if output is None:  # not prompted yet
                empty = self.no_memory_embedding.new_full((1, 1), _NO_OBJECT_LOGIT)
                masks = empty[..., None, None].expand(-1, -1, *self.prompt_encoder.mask_hw)
                rows.append((masks, empty, torch.zeros_like(empty)))
            else:
                device = session.inference_device
                rows.append((output["pred_masks"].to(device), output["object_score_logits"][0], output["iou_scores"]))
        masks, object_scores, ious = (torch.cat(parts) for parts in zip(*rows, strict=True))
        return Sam2VideoSegmentationOutput(
            object_ids=list(session.obj_ids),
            pred_masks=without_overlap(masks, at_any_size=True) if session.options.non_overlapping_masks else masks,
            object_score_logits=object_scores,
            frame_idx=frame_idx,
            iou_scores=ious,
        )


def _prediction(masks: _ObjectMasks) -> MaskPrediction:
    """Return what a loss compares with true masks."""
    candidates, ious = zip(*masks.candidates, strict=True) if masks.candidates else ((), ())
    return MaskPrediction(list(candidates), list(ious), masks.object_scores)


def _by_image(x: Tensor, images: int) -> Tensor:
    """Cut objects [O, …] into those of B images [B, O / B, …]."""
    return torch.unflatten(x, 0, (images, -1))


def _join_points(points: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """Join the points and labels of objects to [1, O, N, 2] and [1, O, N]."""
    if not points:
        return None
    coordinates, labels = zip(*points, strict=True)
    return torch.cat(coordinates, dim=1), torch.cat(labels, dim=1)


def _sine_of_time(time: Tensor, channels: int) -> Tensor:
    """Sines, then cosines of times [...]: [..., C], float32."""
    angle = time[..., None] / sine_periods(channels // 2, time.device)  # [..., C/2]
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def _resample(masks: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Resize masks [O, 1, H, W] with antialiasing."""
    resized = bilinear(masks.float(), size_hw, antialias=True)
    return resized.to(masks.dtype)


def _by_key(pairs: Iterable[tuple[K, T]]) -> list[tuple[K, list[T]]]:
    """Group values by key, in the order of their first appearance."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return list(groups.items())
