"""`TaskPipeline`: what all pipelines share: loading a model, choosing a device, running one image or many.

The file of a task implements `prepare` (image → units), `forward` (units → outputs), `decode` (outputs → small tensors)
and `finish` (→ result), see `InferenceTask`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vitruvian.auto import AutoProcessor, AutoTaskModel, auto_class, model_classes, packed_tasks
from vitruvian.devices import checked_device, checked_dtype, devices_of
from vitruvian.draw.canvas import RgbImage
from vitruvian.errors import InputError, near_matches
from vitruvian.hub import HUB_KEYWORDS
from vitruvian.model import Model
from vitruvian.pipelines.engine.batches import BatchSize, initial_batch_size, is_out_of_memory
from vitruvian.pipelines.engine.cuda_streams import PendingTensors, upload_stream
from vitruvian.pipelines.engine.runner import BATCH_TIMEOUT, Errors, Results, run_many, run_one
from vitruvian.pipelines.engine.task import InferenceTask, Unit
from vitruvian.pipelines.people.detectors import (
    BoxFormat,
    DetectorSpec,
    Device,
    DType,
    OnEmpty,
    PeopleDetector,
    detect_people,
    open_detector,
    people_from_boxes,
)
from vitruvian.pipelines.saving import ResultWriter, open_writer
from vitruvian.pipelines.sources import Frame, open_source
from vitruvian.processor import as_tensor
from vitruvian.results.base import People, Result
from vitruvian.tasks import TASKS

ResultT = TypeVar("ResultT", bound=Result)
OptionsT = TypeVar("OptionsT", bound="Options")
_OPTION_ALIASES = {"patience": "batch_timeout"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every pipeline, set when it is opened or for one call.

    Args:
        batch_size: Number of inputs (images, people or tiles) in a batch. "auto" chooses by device, and halves the
            batch when memory runs out.
        workers: Background threads that load, preprocess, postprocess and save; by default 2 to 4, and with a model on
            a CUDA device half the cores, up to 8.
        errors: With many images, "keep" returns a `Failure` in place of a result that fails, "raise" stops there.
        save: What to do with each result in the background: a function that takes it, or a file name with ``{stem}``
            (and ``{frame}`` for videos) in it, such as ``"out/{stem}.png"``.
        keep_image: Whether results hold their source image, which `plot` draws on.
        batch_timeout: Seconds to wait for more images of a slow source before a partial batch runs.
        optimize: Whether to call `Model.optimize` first. "auto" does on a CUDA device. The model stays optimized.
    """

    batch_size: int | Literal["auto"] = "auto"
    workers: int | None = None
    errors: Errors = "keep"
    save: Callable[[Any], object] | str | Path | ResultWriter | None = None
    keep_image: bool = True
    batch_timeout: float = BATCH_TIMEOUT
    optimize: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.errors not in ("keep", "raise"):
            raise InputError(f'errors: expected "keep" or "raise", got {self.errors!r}.')
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers: expected at least 1, got {self.workers}.")
        if self.optimize not in (True, False, "auto"):
            raise InputError(f'optimize: expected True, False or "auto", got {self.optimize!r}.')
        if self.batch_size != "auto":
            BatchSize(self.batch_size, fixed=True)


@dataclass(frozen=True, kw_only=True)
class PeopleOptions(Options):
    """Which people a task about people processes.

    Args:
        boxes: Bounding boxes of people: [P, 4] for one image or for all, a list of those (one per image), or a mapping
            of file name → boxes. Coordinates are pixels of the upright image.
        box_form: The four numbers of a box: "xyxy" (corners) or "xywh" (corner, width and height, as in COCO).
        people: "whole" processes the whole image, "crop" each person separately; or a detector, which means "crop"
            with it. By default "crop" if there are boxes or a detector, which a model may have itself, and "whole"
            otherwise.
        finder: The people detector: whatever `vitruvian.pipelines.people.open_detector` takes. A model
            that detects people itself, as the built-in one does, needs none.
        nobody: What to do if the detector returns no one: "whole" processes the whole image, "none" returns an empty
            result, "error" raises. By default "none" for poses, "whole" for maps. See `people.note` of the result.
        max_people: Maximum number of people, by score.
    """

    boxes: ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike] | None = None
    box_form: BoxFormat = "xyxy"
    people: Literal["whole", "crop"] | DetectorSpec | None = None
    finder: DetectorSpec | None = None
    nobody: OnEmpty | None = None
    max_people: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.box_form not in ("xyxy", "xywh"):
            raise InputError(f'box_form: expected "xyxy" or "xywh", got {self.box_form!r}.')
        if self.nobody not in (None, "whole", "none", "error"):
            raise InputError(f'nobody: expected "whole", "none" or "error", got {self.nobody!r}.')
        if self.max_people is not None and self.max_people < 1:
            raise InputError(f"max_people: expected at least 1, got {self.max_people}. Leave it out to keep everyone.")
        if self.crops_are_disabled and self.boxes is not None:
            raise InputError('boxes and people: expected one of boxes and "whole", got both. Drop one.')

    @property
    def crops_are_disabled(self) -> bool:
        """Whether `people` asks for the whole image."""
        return isinstance(self.people, str) and self.people == "whole"

    @property
    def crops_are_required(self) -> bool:
        """Whether `people` asks for crops, without naming a detector."""
        return isinstance(self.people, str) and self.people == "crop"


class ResultFields(TypedDict):
    """The fields that every result has."""

    size_hw: tuple[int, int]
    image: RgbImage | None
    source: str
    model: str
    people: People | None
    frame: int | None
    time: float | None


class TaskPipeline(InferenceTask[ResultT], Generic[ResultT, OptionsT]):
    """A model, its processor, and the steps from images to results.

    Args:
        model: The model; it stays on its device and in its data type.
        processor: Its processor.
        options: Fields of the task's options, as defaults for calls.
    """

    task: ClassVar[str]
    checkpoints: ClassVar[tuple[str, ...]]  # published ones, from the table of tasks
    auto: ClassVar[type[AutoTaskModel]]  # from the table of tasks too
    options_class: ClassVar[type[Options]] = Options
    on_empty: ClassVar[OnEmpty] = "whole"  # default if a detector returns no one
    blocking_decode: ClassVar[bool] = False  # whether `decode` synchronizes with the device

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "task" in vars(cls):
            row = TASKS[cls.task]
            cls.checkpoints, cls.auto = row.checkpoints, auto_class(row.auto_task)

    def __init__(self, model: Any, processor: Any, **options: object) -> None:
        self.model, self.processor = model.eval(), processor
        self.options: OptionsT = _replace_options(self.options_class(), options)  # type: ignore[assignment]
        self.detector: PeopleDetector | None = None
        self._open_detectors: dict[str, PeopleDetector] = {}
        self._auto_batch: BatchSize | None = None

    @classmethod
    def open(
        cls,
        model: str | Path | Model | None,
        *,
        processor: object = None,
        device: Device = None,
        dtype: DType = None,
        **options: object,
    ) -> Self:
        """Load a checkpoint, or use a model that is loaded already. See `vitruvian.pipeline` for the arguments."""
        if model is None:
            names = " or ".join(cls.checkpoints) or "path/to/a/folder"
            raise InputError(f"model: expected a checkpoint for {cls.task}, got none. Name one such as {names}.")
        hub = {name: options.pop(name) for name in HUB_KEYWORDS if name in options}
        cls.check_options(options)  # before a large download
        if isinstance(model, str | Path):
            loaded = cls.load(model, device=device, dtype=dtype, **hub)
            path = Path(model).expanduser()
            folder = path.parent if path.is_file() else model
            return cls(loaded, processor or cls.load_processor(folder, **hub), **options)
        if not isinstance(model, cls.accepts()):
            names = ", ".join(accepted.__name__ for accepted in cls.accepts())
            raise InputError(f"model: expected a checkpoint or {names} for {cls.task}, got {type(model).__name__}.")
        if processor is None:
            raise InputError("processor: expected one for a model that is loaded already. Pass processor=…")
        if device is not None:
            model = model.to(checked_device(device))
        return cls(model if dtype is None else model.to(checked_dtype(dtype)), processor, **options)

    @classmethod
    def accepts(cls) -> tuple[type[Model], ...]:
        """Return the classes of models that the pipeline runs."""
        return model_classes(cls.auto.task)

    @classmethod
    def check_options(cls, options: Mapping[str, object]) -> None:
        """Raise InputError for options that do not exist or have no such value."""
        _replace_options(cls.options_class(), options)

    @classmethod
    def load(cls, source: str | Path, *, device: Device, dtype: DType, **hub: object) -> Model:
        """Load the model of a checkpoint."""
        loaded: Model = cls.auto.from_pretrained(source, **default_placement(device, dtype), **hub)
        return loaded

    @classmethod
    def load_processor(cls, source: str | Path, **hub: object) -> Any:
        """Load the processor of a checkpoint."""
        return AutoProcessor.from_pretrained(source, **hub)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return torch.device(self.model.device)

    @property
    def name(self) -> str:
        """Name of the model in results."""
        return self.model.config.name_or_path or type(self.model).__name__

    def __call__(self, source: object, **options: object) -> Any:
        """Process one image, or many.

        Args:
            source: A path, folder, glob, URL, bytes, PIL image, array, tensor, list, generator, video file, camera or
                image sequence; see `vitruvian.pipelines.sources.open_source`.
            options: Options of the task for this call.

        Returns:
            The result of one image; errors are raised. For many images a `Results`: an iterator over results, in order
            and with a `Failure` in place of each that fails, which are computed ahead in the background.
        """
        return self.run(source, **options)

    def run(self, source: object, **options: object) -> ResultT | Results[ResultT]:
        """Same as calling the pipeline, and available for every task, whatever else its call returns."""
        call = self._for_call(options)
        write, opened = open_writer(call.options.save, open_source(source))
        batch = self.batch_size(call.options, live=opened.live)
        if opened.single:
            result = run_one(call, next(opened.loaders()), batch)
            if write is not None:
                write(result, 0)
            return result
        results = run_many(
            call,
            opened,
            batch=batch,
            workers=call.options.workers,
            errors=call.options.errors,
            save=write,
            batch_timeout=call.options.batch_timeout,
            graphs=self.model.graphs if self.device.type == "cuda" else None,
        )
        return Results(results, count=opened.count, video=opened.video)

    def _for_call(self, changes: Mapping[str, object]) -> Self:
        """Return a copy with the options of one call. It shares the model, the processor and open detectors."""
        options = _replace_options(self.options, changes)
        if not self.model.optimized and (
            options.optimize is True or (options.optimize == "auto" and _can_auto_optimize(self.model))
        ):
            self.model.optimize(cuda_graphs=self.fixed_input_size)
        self.upload_stream = upload_stream(self.device, self.upload_stream)
        call = copy.copy(self)
        call.options = options
        call.detector = self.choose_detector(options)
        call.detects_people = call.detector is not None
        on_host = self.device.type == "cpu" and self.upload_stream is None
        call.decodes_in_workers = self.blocking_decode or on_host or call.forward_decodes()
        return call

    def batch_size(self, options: OptionsT, *, live: bool) -> BatchSize:
        """Return the batch size of a call. Later calls use what "auto" shrank to."""
        if options.batch_size != "auto":
            return BatchSize(options.batch_size, fixed=True)
        if live:
            return BatchSize(1, fixed=False)
        if self._auto_batch is None:
            self._auto_batch = BatchSize(initial_batch_size(self.device, self.input_hw), fixed=False)
        return self._auto_batch

    def choose_detector(self, options: OptionsT) -> PeopleDetector | None:
        """Return the people detector for these options; None if no one is to be detected."""
        if not isinstance(options, PeopleOptions) or options.crops_are_disabled or options.boxes is not None:
            return None
        spec = options.finder
        if options.people is not None and not options.crops_are_required:
            spec = options.people
        if spec is None:
            source = self.model.config.name_or_path  # a packed checkpoint may detect people itself
            spec = source if source and "people" in packed_tasks(source) else None
        if spec is None:
            return None
        if not isinstance(spec, str | Path):
            return open_detector(spec)
        if str(spec) not in self._open_detectors:  # it may hold a model
            self._open_detectors[str(spec)] = open_detector(spec, device=self.device)
        return self._open_detectors[str(spec)]

    def detect(self, frame: Frame) -> People | None:
        """Detect the people of an image; None without a detector."""
        if self.detector is None or not isinstance(self.options, PeopleOptions):
            return None
        return detect_people(
            self.detector,
            frame.image,
            source=str(frame.path or frame.name),
            frame=frame.frame,
            on_empty=self.options.nobody or self.on_empty,
            max_people=self.options.max_people,
        )

    @property
    def input_hw(self) -> tuple[int, int]:
        """Height and width of the model's inputs, at least roughly."""
        height, width = self.processor.size_hw
        return height, width

    def forward_decodes(self) -> bool:
        """Return whether `forward` queues all device work of `decode` too."""
        return False

    def result_fields(self, frame: Frame, people: People | None = None) -> ResultFields:
        """Return the fields that every result has."""
        return ResultFields(
            size_hw=frame.size_hw,
            image=frame.image if self.options.keep_image else None,
            source=frame.name,
            model=self.name,
            people=people,
            frame=frame.frame,
            time=frame.time,
        )

    def make_units(self, frame: Frame, make: Callable[[Tensor], Sequence[Tensor] | Tensor]) -> list[Unit]:
        """Make units from the pixels [3, H, W] of an image: on the upload stream if there is one, else on the host.

        If the device has too little memory the host makes them.
        """
        if self.upload_stream is not None:
            try:
                with self.upload_stream.activate():
                    inputs = make(self.upload_stream.upload(frame.image))
                    pending = PendingTensors([inputs] if isinstance(inputs, Tensor) else inputs, self.device)
                    return [Unit(one, pending=pending) for one in inputs]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
        return [Unit(one) for one in make(as_tensor(frame.image).permute(2, 0, 1))]


def _replace_options(options: OptionsT, changes: Mapping[str, object]) -> OptionsT:
    """Return options with changes.

    Raises:
        InputError: There is no such option, or it has no such value.
    """
    known = [field.name for field in dataclasses.fields(options)]
    renamed: dict[str, Any] = {_OPTION_ALIASES.get(name, name): value for name, value in changes.items()}
    for name in renamed:
        if name not in known:
            raise InputError(f"{name}: no such option.{near_matches(name, known)} Options are {', '.join(known)}.")
    return dataclasses.replace(options, **renamed) if renamed else options


def default_placement(device: Device, dtype: DType) -> dict[str, Any]:
    """Return the keywords of `from_pretrained` for a device and a data type, with defaults in place of None."""
    chosen = None if device is None else checked_device(device)
    on_cuda = torch.cuda.is_available() if chosen is None else chosen.type == "cuda"
    if dtype is None:
        # Emulated bfloat16 is slower than float32. CPUs and Metal are fastest, or most exact, in float32.
        dtype = torch.bfloat16 if on_cuda and torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return {"dtype": checked_dtype(dtype)} | ({"device_map": "auto"} if chosen is None else {"device": chosen})


def _can_auto_optimize(model: Model) -> bool:
    """Return whether a model is on a single CUDA device and has no adapters."""
    devices = devices_of(model)
    adapted = any(type(module).__module__.partition(".")[0] == "peft" for module in model.modules())
    return len(devices) == 1 and devices.pop().type == "cuda" and not adapted


def people_to_crop(frame: Frame, detected: People | None, options: PeopleOptions) -> People | None:
    """Return the people to crop: detected ones, or those of the option `boxes`; None to process the whole image."""
    if detected is not None:
        return detected
    if options.boxes is not None:
        people = people_from_boxes(_boxes_of_image(options.boxes, frame), frame.size_hw, form=options.box_form)
        limit = options.max_people
        return dataclasses.replace(people, boxes_xyxy=people.boxes_xyxy[:limit], scores=people.scores[:limit])
    if options.crops_are_required:
        raise InputError("people: expected boxes or a finder for crops, got neither. Pass one of them.")
    return None


def _boxes_of_image(boxes: ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike], frame: Frame) -> ArrayLike:
    """Return the boxes of one image: from a mapping by name, from a list by index, or those for all images."""
    if isinstance(boxes, Mapping):
        names = [frame.name, *([] if frame.path is None else [str(frame.path), frame.path.name, frame.path.stem])]
        key = next((name for name in names if name in boxes), None)
        if key is None:
            raise InputError(f"boxes: expected an entry for {frame.name}, got none.{near_matches(names[-1], boxes)}")
        return boxes[key]
    if nesting_depth(boxes) < 3:
        return boxes  # type: ignore[return-value]  # one level less than a list of them
    assert isinstance(boxes, Sequence | np.ndarray | Tensor)
    if frame.index >= len(boxes):
        raise InputError(f"boxes: expected a list for each image, got {len(boxes)}, none for {frame.name}.")
    return boxes[frame.index]


def nesting_depth(values: object) -> int:
    """Return the number of dimensions of an array, or the levels of nested lists."""
    if isinstance(values, np.ndarray | Tensor):
        return values.ndim
    if isinstance(values, list | tuple):
        return 1 + max((nesting_depth(one) for one in values), default=0)
    return 0
