"""Objects tracked through a video with SAM 2, from points, boxes or masks in any frame.

    frames ─ decoded and resized ahead ─▶ model, one frame after another ─▶ masks ─▶ `Track`, one a frame
    prompts of a frame, new people ────────▲        memory of recent and of prompted frames

Memory does not grow with the length of the video: frames are dropped after use, and the session keeps what the model
attends to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitruvian.errors import InputError, PromptError
from vitruvian.images.nms import mask_boxes
from vitruvian.images.rle import Rle
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.models.sam2.video_processing import Sam2VideoProcessor
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession, TrackingOptions
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.batches import BatchSize
from vitruvian.pipelines.engine.cuda_streams import HostCopy, stack_on_device
from vitruvian.pipelines.engine.runner import ResultGenerator, Results
from vitruvian.pipelines.engine.task import DecodeThread, Prepared, Unit
from vitruvian.pipelines.options import Options
from vitruvian.pipelines.people.detectors import DetectorSpec, PeopleDetector, detect_people
from vitruvian.pipelines.sources import Failure, Frame, Source, open_source
from vitruvian.pipelines.tasks.segment import encode_masks
from vitruvian.pipelines.video.person_tracking import box_iou
from vitruvian.processor import height_width
from vitruvian.results import People, Track

_SAME_PERSON_IOU = 0.5  # of the box of a detected person and that of a tracked object


@dataclass(frozen=True, kw_only=True, eq=False)
class TrackPrompt:
    """What marks an object in one frame, in pixels of the upright frame.

    Args:
        object_id: Identity of the object, a number from 1 to 65535.
        frame: Number of the frame, from 0; the `frame` of results.
        points: [[x, y], …]. They are added to earlier points of the object in this frame.
        labels: For each point 1 on the object (the default) or 0 off it.
        box: x1, y1, x2, y2. It replaces earlier points and boxes of the object in this frame.
        mask: bool [H, W], alone.
    """

    object_id: int
    frame: int = 0
    points: ArrayLike | None = None
    labels: ArrayLike | None = None
    box: ArrayLike | None = None
    mask: ArrayLike | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.object_id <= 65535:
            raise PromptError(f"object_id: expected a number from 1 to 65535, got {self.object_id}.")
        if self.frame < 0:
            raise PromptError(f"frame: expected a number from 0, got {self.frame} for object {self.object_id}.")
        given = [name for name in ("points", "box", "mask") if getattr(self, name) is not None]
        if not given or (self.mask is not None and len(given) > 1):
            got = " and ".join(given) or "none"
            raise PromptError(f"prompts: expected points, a box or both, or a mask, got {got} for {self._name}.")
        if self.labels is not None and self.points is None:
            raise PromptError(f"labels: expected points with them, got none for {self._name}.")
        if self.mask is not None and not np.any(self.mask):
            raise PromptError(f"mask: expected pixels of {self._name}, got an empty mask. Leave the prompt out.")

    @property
    def _name(self) -> str:
        return f"object {self.object_id} in frame {self.frame}"

    def add_to(
        self,
        session: Sam2VideoInferenceSession,
        processor: Sam2VideoProcessor,
        frame_idx: int,
        size_hw: tuple[int, int],
    ) -> None:
        """Add this prompt to a frame of a session; `size_hw` is the size of the frame."""
        inputs: dict[str, Any] = {"clear_old_inputs": self.box is not None}
        if self.points is not None:
            points: Any = np.asarray(self.points, dtype=float).reshape(-1, 2)  # [N, 2]
            outside = points[((points < 0) | (points > size_hw[::-1])).any(axis=1)].tolist()
            if outside:
                expected = f"x in 0…{size_hw[1]} and y in 0…{size_hw[0]}"
                raise PromptError(f"points: expected {expected} for {self._name}, got {outside}.")
            labels = np.ones(len(points), int) if self.labels is None else np.asarray(self.labels).reshape(-1)
            inputs |= {"input_points": [[points.tolist()]], "input_labels": [[labels.tolist()]]}
        if self.box is not None:
            inputs["input_boxes"] = [[np.asarray(self.box, dtype=float).tolist()]]
        if self.mask is not None:
            mask = np.asarray(self.mask, dtype=bool)
            if mask.shape != size_hw:
                expected = f"{size_hw[0]}×{size_hw[1]} pixels"
                raise PromptError(f"mask: expected {expected} for {self._name}, got {list(mask.shape)}.")
            inputs = {"input_masks": [mask]}
        try:
            processor.add_inputs_to_inference_session(
                session, frame_idx, self.object_id, original_size=size_hw, **inputs
            )
        except (InputError, ValueError) as error:
            raise PromptError(f"prompts: expected what fits {self._name}, got an error: {error}") from error


@dataclass(frozen=True, kw_only=True)
class TrackOptions(Options, TrackingOptions):
    """What to track and how. Options of the session have other defaults here than in transformers' behaviour.

    Args:
        prompts: Prompts of objects; more can be added while the video runs, see `TrackResults`. An empty list starts
            without objects.
        finder: A people detector, whatever `vitruvian.pipelines.people.open_detector` takes. Each person that it
            detects is tracked, with the next free id.
        detect_every: Detect people in every so many frames, and track those whose box no tracked object has. 0 detects
            until a frame has people, and then no more.
        max_people: Maximum number of people that are detected in a frame, by score.
        interactive: Whether the model waits until a result is taken before it processes the next frame, so that
            prompts can be added for the frame of that result. Without it the model runs ahead, which is faster.
        mask_threshold: Logit above which a pixel is on the object.
    """

    prompts: TrackPrompt | Sequence[TrackPrompt] | None = None
    finder: DetectorSpec | None = None
    detect_every: int = 0
    max_people: int | None = None
    interactive: bool = True
    mask_threshold: float = 0.0
    # fields of TrackingOptions, whose docstring has them
    prior_logits: bool = True
    corrections_as_conditioning: bool = True
    independent_objects: bool = True
    objects_start_at_prompt: bool = True
    ignore_padding: bool = True
    keep_history: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.detect_every < 0:
            raise InputError(f"detect_every: expected a number of frames from 0, got {self.detect_every}.")
        for prompt in self.prompt_list:
            if not isinstance(prompt, TrackPrompt):
                raise InputError(f"prompts: expected TrackPrompt objects, got {type(prompt).__name__}.")

    @property
    def prompt_list(self) -> list[TrackPrompt]:
        """The prompts as a list."""
        return [self.prompts] if isinstance(self.prompts, TrackPrompt) else list(self.prompts or ())


class _FrameMasks(NamedTuple):
    """Masks of O objects in a frame: their ids, logits [O, h, w], predicted IoU [O] and presence logits [O]."""

    ids: list[int]
    logits: Tensor
    ious: Tensor
    presence: Tensor


class _Tracker:
    """The state of one video: the session, and the prompts of frames to come.

    Attributes:
        session: The session of the model.
        frame: The last frame.
        number: Its number; -1 before the first.
        pending: Prompts of later frames, by frame.
    """

    def __init__(self, model: Sam2VideoModel, processor: Sam2VideoProcessor, options: TrackOptions) -> None:
        self._model, self._processor = model, processor
        storage = torch.device("cpu") if options.keep_history else model.device
        self.session = Sam2VideoInferenceSession(
            inference_device=model.device,
            inference_state_device=storage,
            video_storage_device=storage,
            dtype=model.dtype,
            options=options,
        )
        self.frame: Frame | None = None
        self.number = -1
        self.pending: dict[int, list[TrackPrompt]] = {}
        self.add(options.prompt_list)
        self._size_hw: tuple[int, int] | None = None
        self._pixels: Tensor | None = None  # of the last frame [3, H, W]
        self._index = 0  # of the last frame in the session, which has no frames before the first prompt

    def add(self, prompts: Sequence[TrackPrompt]) -> None:
        """Store prompts of later frames."""
        for prompt in prompts:
            self.pending.setdefault(prompt.frame, []).append(prompt)

    def remove(self, object_id: int) -> None:
        """Forget an object and its prompts of later frames."""
        waiting = any(prompt.object_id == object_id for prompts in self.pending.values() for prompt in prompts)
        if object_id in self.session.obj_ids or not waiting:
            self.session.remove_object(object_id)
        kept = {n: [one for one in prompts if one.object_id != object_id] for n, prompts in self.pending.items()}
        self.pending = {number: prompts for number, prompts in kept.items() if prompts}

    def advance(self, frame: Frame, pixels: Tensor, people: People | None) -> _FrameMasks | None:
        """Track all objects to the next frame, with its prompts and detected people; None without objects."""
        self._size_hw = self._size_hw or frame.size_hw
        number = frame_number(frame)
        if frame.size_hw != self._size_hw:
            expected, got = (f"{height}×{width}" for height, width in (self._size_hw, frame.size_hw))
            raise InputError(
                f"frame {number}: expected {expected} pixels as in the frames before, got {got}. Resize the frames."
            )
        self.frame, self.number = frame, number
        prompts = self.pending.pop(number, [])
        self._index = self.session.num_frames or 0
        self._pixels = pixels
        masks = self.segment(prompts)
        new_people = [] if people is None else self._new_people(people, masks)
        return self.segment(new_people) if new_people else masks

    def segment(self, prompts: Sequence[TrackPrompt]) -> _FrameMasks | None:
        """Add prompts to the last frame and segment it; None without objects."""
        assert self.frame is not None
        for prompt in prompts:
            prompt.add_to(self.session, self._processor, self._index, self.frame.size_hw)
        if not self.session.obj_ids:
            return None
        out = self._model(self.session, frame_idx=self._index, frame=self._pixels, return_dict=True)
        return _FrameMasks(
            out.object_ids, out.pred_masks[:, 0], out.iou_scores[:, 0].float(), out.object_score_logits[:, 0].float()
        )

    def _new_people(self, people: People, masks: _FrameMasks | None) -> list[TrackPrompt]:
        """Return prompts for the detected people that no tracked object is."""
        assert self.frame is not None
        boxes: NDArray[np.float64] = people.boxes_xyxy.astype(np.float64)  # [P, 4]
        if masks is not None and len(boxes):
            height, width = self.frame.size_hw
            rows, columns = masks.logits.shape[1:]
            scale = np.array((width / columns, height / rows) * 2)
            tracked = mask_boxes(masks.logits > 0).cpu().numpy() * scale  # [O, 4]
            boxes = boxes[box_iou(boxes, tracked).max(axis=1) < _SAME_PERSON_IOU]
        taken = {one.object_id for prompts in self.pending.values() for one in prompts} | {*self.session.obj_ids}
        first = max(taken, default=0) + 1
        return [
            TrackPrompt(object_id=object_id, frame=self.number, box=box) for object_id, box in enumerate(boxes, first)
        ]


class TrackResults(Results[Track]):
    """Iterator over the results of a video. Objects can be added, corrected and removed on the way.

    Prompts that do not fit end the iteration with a `PromptError`, as do prompts of frames that the video does not
    have, after its last frame. Other errors of frames are returned as `Failure`, as by all pipelines.

    Attributes:
        session: The session of the model; with `keep_history` it has all frames and masks.
    """

    def __init__(self, results: ResultGenerator[Track], source: Source, pipe: TrackPipeline) -> None:
        super().__init__(results, count=source.count, video=source.video)
        self._pipe, self._tracker = pipe, pipe.tracker
        self.session = self._tracker.session

    @property
    def object_ids(self) -> list[int]:
        """Ids of the objects that are tracked now."""
        return list(self.session.obj_ids)

    def add(self, *prompts: TrackPrompt) -> Track | None:
        """Add prompts for the frame of the last result or for later frames.

        Returns:
            The new result of the last frame if some prompts are for it.
        """
        tracker, now = self._tracker, self._tracker.number
        first = now if self._pipe.options.interactive and tracker.frame is not None else now + 1
        for prompt in prompts:
            if prompt.frame < first:
                hint = "" if self._pipe.options.interactive else " With interactive=True the model does not run ahead."
                raise PromptError(
                    f"prompts: expected frames from {first} on, since the model has processed those before, got "
                    f"{prompt.frame} for object {prompt.object_id}.{hint}"
                )
        tracker.add([prompt for prompt in prompts if prompt.frame > now])
        current = [prompt for prompt in prompts if prompt.frame == now]
        if not current or tracker.frame is None:
            return None
        with torch.inference_mode():
            prepared = Prepared(tracker.frame, [])
            decoded = self._pipe.decode(prepared, [tracker.segment(current)])
            return self._pipe.finish(prepared, HostCopy(decoded).wait())

    def remove(self, object_id: int) -> None:
        """Stop tracking an object, from the next frame on."""
        self._tracker.remove(object_id)

    def __next__(self) -> Track | Failure:
        try:
            outcome = super().__next__()
        except StopIteration:
            pending, self._tracker.pending = self._tracker.pending, {}
            if pending:
                unused = [prompt for prompts in pending.values() for prompt in prompts]
                got = ", ".join(f"{prompt.frame} for object {prompt.object_id}" for prompt in unused)
                raise PromptError(
                    f"prompts: expected frames of the video, which ends with frame {self._tracker.number}, got {got}."
                ) from None
            raise
        if isinstance(outcome, Failure) and isinstance(outcome.error, PromptError):
            self.close()
            raise outcome.error
        return outcome


class TrackPipeline(TaskPipeline[Track, TrackOptions]):
    """Objects tracked through a video: a call returns `TrackResults`, an iterator over one `Track` for each frame."""

    processor: Sam2VideoProcessor
    tracker: _Tracker
    task = "track"
    options_class = TrackOptions
    fixed_input_size = True
    _people_found: bool

    @property
    def input_hw(self) -> tuple[int, int]:
        """Height and width of an input."""
        return height_width(self.processor.video_processor.size, "size")

    def run(self, source: object, **options: object) -> Results[Track]:
        """Same as calling the pipeline. An image is a video of one frame."""
        results = super().run(replace(open_source(source), single=False), **options)
        assert isinstance(results, Results)
        return results

    def _for_call(self, changes: Mapping[str, object]) -> Self:
        call = super()._for_call(changes)
        if call.options.prompts is None and call.detector is None:
            raise InputError("prompts: expected prompts or a finder, got neither. Pass prompts=TrackPrompt(…), say.")
        call.max_ahead = 0 if call.options.interactive else None
        call.tracker = _Tracker(self.model, self.processor, call.options)
        call._people_found = False
        return call

    def wrap_results(self, results: ResultGenerator[Track], source: Source) -> TrackResults:
        """Return results to which prompts can be added."""
        return TrackResults(results, source, self)

    def batch_size(self, options: TrackOptions, *, live: bool) -> BatchSize:
        """Return 1: a frame needs the memory of the one before."""
        return BatchSize(1, fixed=True)

    def choose_detector(self, options: TrackOptions) -> PeopleDetector | None:
        """Return the people detector of these options."""
        return None if options.finder is None else self.open_detector(options.finder)

    def detect(self, frame: Frame) -> People | None:
        """Detect people in the frames in which new ones are looked for."""
        number, every = frame_number(frame), self.options.detect_every
        if self.detector is None or (number % every if every else self._people_found):
            return None
        people = detect_people(
            self.detector,
            frame.image,
            source=str(frame.path or frame.name),
            frame=frame.frame,
            on_empty="none",
            max_people=self.options.max_people,
        )
        self._people_found = self._people_found or len(people) > 0
        return people

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Resize and normalize the frame."""
        resize = self.processor.video_processor.prepare_image
        (unit,) = self.make_units(frame, 1, lambda pixels, _: [resize(pixels)])
        assert isinstance(unit, Unit)  # only many units are made later
        return Prepared(frame, [unit._replace(extra=(frame, people))])

    def forward(self, units: list[Unit]) -> list[_FrameMasks | None]:
        """Track all objects to the next frame."""
        (unit,) = units
        frame, people = unit.extra
        pixels = stack_on_device([unit.pixels], self.device)[0].to(self.model.dtype)
        return [self.tracker.advance(frame, pixels, people)]

    def decode_thread(self) -> DecodeThread:
        """Return "worker": `decode` waits for the device."""
        return "worker"

    def decode(
        self, prepared: Prepared, outputs: list[_FrameMasks | None]
    ) -> tuple[list[int], list[Rle], Tensor, Tensor, Tensor]:
        """Upsample the masks; return ids, run lengths, boxes [O, 4], predicted IoU [O] and presence [O]."""
        (masks,) = outputs
        if masks is None:
            return [], [], torch.zeros(0, 4), torch.zeros(0), torch.zeros(0)
        rles, boxes = encode_masks(
            self.processor, masks.logits, prepared.frame.size_hw, mask_threshold=self.options.mask_threshold
        )
        return masks.ids, rles, boxes, masks.ious, masks.presence.sigmoid()

    def finish(self, prepared: Prepared, decoded: tuple[list[int], list[Rle], Tensor, Tensor, Tensor]) -> Track:
        """Build the result."""
        ids, rles, boxes, ious, presence = decoded
        return Track(
            **(self.result_fields(prepared.frame) | {"frame": frame_number(prepared.frame)}),
            rles=rles,
            scores=ious.numpy(),
            boxes_xyxy=boxes.numpy(),
            object_ids=np.array(ids, np.int64),
            presence=presence.numpy(),
        )


def frame_number(frame: Frame) -> int:
    """Return the number of a frame in its video, or in the list that it is from."""
    return frame.index if frame.frame is None else frame.frame
