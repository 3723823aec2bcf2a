"""Objects tracked through a video with SAM 2, from points, boxes or masks in any frame.

    frames ─ decoded and resized ahead ─▶ model, one frame after another ─▶ masks ─▶ `Track`, one a frame
    prompts of a frame, new people ────────▲        memory of recent and of prompted frames

Memory does not grow with the length of the video: frames are dropped after use, and the session keeps what the model
attends to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitruvian.cuda.streams import HostCopy, stack_on_device
from vitruvian.errors import InputError, PromptError
from vitruvian.images.rle import encode_packed
from vitruvian.models.sam2.video_processing import Sam2VideoProcessor
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.batches import BatchSize
from vitruvian.pipelines.engine.runner import ResultGenerator, Results
from vitruvian.pipelines.engine.steps import ModelInput, Prepared
from vitruvian.pipelines.options import TrackOptions
from vitruvian.pipelines.people.detectors import PeopleDetector
from vitruvian.pipelines.sources import Failure, Frame, Source, open_source
from vitruvian.pipelines.tasks.segment import disjoint_masks, upsampled_masks
from vitruvian.pipelines.video.object_tracker import FrameMasks, ObjectTracker, frame_number
from vitruvian.pipelines.video.state import State
from vitruvian.pipelines.video.track_prompt import TrackPrompt, check_frames, check_prompts, check_together
from vitruvian.processor import height_width
from vitruvian.results import People, Track


class TrackResults(Results[Track]):
    """Iterator over the results of a video. Objects can be added, corrected and removed on the way.

    Prompts that do not fit end the iteration with a `PromptError`, as do those of frames that fail and, after the last
    frame, those of frames that the video does not have. Other errors are returned as `Failure`, as by all pipelines.

    Attributes:
        session: The session of the model; with `keep_history` it has all frames and masks.
    """

    def __init__(
        self,
        results: ResultGenerator[Track],
        source: Source,
        pipe: TrackPipeline,
        write: Callable[[Any, int], object] | None,
    ) -> None:
        super().__init__(results, count=source.count, video=source.video)
        self._write = write
        self._pipe, self._tracker = pipe, pipe.tracker
        self._last_frame = -1  # number of the frame of the last result or failure
        self.session = self._tracker.session

    @property
    def object_ids(self) -> list[int]:
        """Ids of the objects that are tracked now."""
        return list(self.session.obj_ids)

    def add(self, *prompts: TrackPrompt) -> Track | None:
        """Add prompts for the frame of the last result or for later frames: all, or none if one does not fit.

        Returns:
            The new result of the last frame if some prompts are for it. It is saved, as the first one was.
        """
        tracker = self._tracker
        now = max(tracker.number, self._last_frame)
        can_segment = self._pipe.options.interactive and tracker.frame is not None and tracker.number == now
        first = now if can_segment else now + 1
        for prompt in prompts:
            if prompt.frame < first:
                hint = "" if self._pipe.options.interactive else " With interactive=True the model does not run ahead."
                raise PromptError(
                    f"prompts: expected frames from {first} on, since the model has processed those before, got "
                    f"{prompt.frame} for object {prompt.object_id}.{hint}"
                )
        check_together(prompts)
        if self.video is not None:
            check_prompts(prompts, self.video)
        elif tracker.frame is not None:
            for prompt in prompts:
                prompt.check_fits(tracker.frame.size_hw)
        tracker.add([prompt for prompt in prompts if prompt.frame > now])
        current = [prompt for prompt in prompts if prompt.frame == now]
        if not current or tracker.frame is None:
            return None
        with torch.inference_mode():
            prepared = Prepared(tracker.frame, [])
            decoded = self._pipe.decode(prepared, [tracker.segment(current)])
            result = self._pipe.finish(prepared, HostCopy(decoded).wait())
        if self._write is not None:
            self._write(result, tracker.frame.index)
        return result

    def remove(self, object_id: int) -> None:
        """Stop tracking an object, from the next frame that the model processes; see `interactive`."""
        self._tracker.remove(object_id)

    def set_snapshot_interval(self, frames: int) -> None:
        """Store the state before each frame whose number is a multiple of `frames`, for `state_before`."""
        self._tracker.snapshots.every = frames

    def state_before(self, frame: int) -> State:
        """Return the state before a frame with a snapshot, or after the last one; drop older snapshots."""
        return self._tracker.state_before(frame)

    def reuse_ids(self, state: State) -> None:
        """Give people the ids that they have in an earlier run, which ended with `state`. Called before `restore`."""
        self._tracker.reuse_ids(state)

    def restore(self, state: State, frame: int) -> None:
        """Continue from a state that was taken before `frame`, which is the first that the source has."""
        self._tracker.restore(state, frame)
        self._pipe.continue_after(people_found=self._tracker.people_found)

    def __next__(self) -> Track | Failure:
        try:
            outcome = super().__next__()
        except StopIteration:
            pending, self._tracker.pending = self._tracker.pending, {}
            check_frames([prompt for prompts in pending.values() for prompt in prompts], self._tracker.number + 1)
            raise
        if not isinstance(outcome, Failure):
            self._last_frame = outcome.frame or 0
        else:
            self._last_frame = frame_number(outcome)
            error, prompts = outcome.error, self._tracker.pending.get(self._last_frame)
            if prompts and not isinstance(error, PromptError):
                names = " and ".join(prompt.name for prompt in prompts)
                error = PromptError(
                    f"prompts: expected a frame to segment for {names}, got an error: {outcome.message}"
                )
                error.__cause__ = outcome.error
            if isinstance(error, PromptError):
                self._tracker.pending = {}
                self.close()
                raise error
        return outcome


class TrackPipeline(TaskPipeline[Track, TrackOptions]):
    """Objects tracked through a video: a call returns `TrackResults`, an iterator over one `Track` for each frame."""

    processor: Sam2VideoProcessor
    tracker: ObjectTracker
    task = "track"
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

    def for_call(self, changes: Mapping[str, object]) -> Self:
        """Return a copy with the options of one call, and with the state of its video."""
        call = super().for_call(changes)
        if call.options.prompts is None and call.detector is None:
            raise InputError(
                "prompts: expected prompts or a people detector. Pass, for example, prompts=TrackPrompt(…)."
            )
        call.max_ahead = 0 if call.options.interactive else None
        options = call.options
        call.tracker = ObjectTracker(
            self.model,
            self.processor,
            replace(options, non_overlapping_masks=False),  # `decode` does it in the size of frames
            options.prompt_list,
            forget_after=options.forget_after if options.detect_every else 0,
        )
        call._people_found = False
        return call

    def continue_after(self, *, people_found: bool) -> None:
        """Continue a video in whose earlier frames people were detected or not."""
        self._people_found = people_found

    def wrap_results(
        self, results: ResultGenerator[Track], source: Source, write: Callable[[Any, int], object] | None
    ) -> TrackResults:
        """Return results to which prompts can be added."""
        if source.video is not None:
            check_prompts(self.options.prompt_list, source.video)
        return TrackResults(results, source, self, write)

    def batch_size(self, options: TrackOptions, *, live: bool) -> BatchSize:
        """Return 1: a frame needs the memory of the one before."""
        return BatchSize(1, fixed=True)

    def choose_detector(self, options: TrackOptions) -> PeopleDetector | None:
        """Return the people detector of these options."""
        return None if options.detect is None else self.detector_for(options.detect)

    def detect(self, frame: Frame) -> People | None:
        """Detect people in the frames in which new ones are looked for."""
        number, every = frame_number(frame), self.options.detect_every
        if self.detector is None or (number % every if every else self._people_found):
            return None
        people = self.detect_with(self.detector, frame, "none", max_people=self.options.max_people)
        self._people_found = self._people_found or len(people) > 0
        return people

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Resize and normalize the frame, in the data type of the model."""
        resize, dtype = self.processor.video_processor.prepare_image, self.model.dtype
        (model_input,) = self.make_inputs(frame, 1, lambda pixels, _: [resize(pixels).to(dtype)])
        assert isinstance(model_input, ModelInput)  # only many inputs are made later
        return Prepared(frame, [model_input._replace(extra=(frame, people))])

    def forward(self, inputs: list[ModelInput]) -> list[FrameMasks | None]:
        """Track all objects to the next frame."""
        (model_input,) = inputs
        frame, people = model_input.extra
        (pixels,) = stack_on_device([model_input.pixels], self.device)
        return [self.tracker.advance(frame, pixels, people)]

    def decode(self, prepared: Prepared, outputs: list[FrameMasks | None]) -> tuple[list[int], Tensor, Tensor, Tensor]:
        """Upsample the masks; return ids, bits of masks [O, H, ceil(W / 8)], predicted IoU [O] and presence [O]."""
        (masks,) = outputs
        if masks is None:
            return [], torch.zeros(0, 1, 1, dtype=torch.uint8), torch.zeros(0), torch.zeros(0)
        upsample = disjoint_masks if self.options.non_overlapping_masks else upsampled_masks
        threshold = self.options.mask_threshold
        bits = upsample(self.processor, masks.logits, prepared.frame.size_hw, mask_threshold=threshold)
        return masks.ids, bits, masks.ious, masks.presence.sigmoid()

    def finish(self, prepared: Prepared, decoded: tuple[list[int], Tensor, Tensor, Tensor]) -> Track:
        """Build the result."""
        ids, bits, ious, presence = decoded
        rles, boxes = encode_packed(bits.numpy(), prepared.frame.size_hw[1], compress=True)
        return Track(
            **(self.result_fields(prepared.frame) | {"frame": frame_number(prepared.frame)}),
            rles=rles,
            scores=ious.numpy(),
            boxes_xyxy=boxes,
            object_ids=np.array(ids, np.int64),
            presence=presence.numpy(),
        )
