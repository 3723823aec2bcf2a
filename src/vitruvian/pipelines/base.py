"""`TaskPipeline`: what all pipelines share: loading a model, choosing a device, running one image or many.

A task implements `prepare` (image → inputs), `forward` (inputs → outputs), `decode` (outputs → small tensors) and
`finish` (→ result), see `InferenceSteps`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitruvian.auto import AutoProcessor
from vitruvian.config import checked_dtype
from vitruvian.cuda.graphs import GraphCache
from vitruvian.cuda.streams import HostCopy, PendingTensors, upload_stream
from vitruvian.devices import Device, DType, checked_device, default_placement, devices_of
from vitruvian.errors import InputError
from vitruvian.hub import BUILTIN, HUB_KEYWORDS
from vitruvian.images.data_format import pixels_of
from vitruvian.images.types import RgbImage, SizeHW
from vitruvian.model import Model
from vitruvian.models.sapiens2.multitask_checkpoint import local_heads
from vitruvian.pipelines.engine.batches import BatchQueue, BatchSize, initial_batch_size, is_out_of_memory
from vitruvian.pipelines.engine.runner import ResultGenerator, Results, run_many, run_one
from vitruvian.pipelines.engine.steps import DecodeThread, DeferredModelInput, InferenceSteps, ModelInput
from vitruvian.pipelines.options import OnEmpty, Options, PeopleOptions, replace_options
from vitruvian.pipelines.people.detectors import DetectorSpec, PeopleDetector, detect_people, open_detector
from vitruvian.pipelines.people.selection import DEFAULT_DETECTOR_NOTE, detector_spec
from vitruvian.pipelines.save_option import open_writer
from vitruvian.pipelines.sources import Frame, Source, open_source
from vitruvian.results.base import People, Result
from vitruvian.tasks import TASKS

ResultT = TypeVar("ResultT", bound=Result)
_MAX_EAGER_INPUTS = 16  # inputs of an image that a worker makes together; more are made batch by batch
OptionsT = TypeVar("OptionsT", bound=Options)


class ResultFields(TypedDict):
    """The fields that every result has."""

    size_hw: SizeHW
    image: RgbImage | None
    source: str
    model: str
    people: People | None
    frame: int | None
    time: float | None


class TaskPipeline(InferenceSteps[ResultT], Generic[ResultT, OptionsT]):
    """A model, its processor, and the steps from images to results.

    Args:
        model: The model; it stays on its device and in its data type.
        processor: Its processor.
        options: Fields of the task's options, as defaults for calls.
    """

    task: ClassVar[str]
    on_empty: ClassVar[OnEmpty] = "whole"  # default if a detector finds no people
    # Options that `forward` reads: calls with equal values of them can share batches. None: calls share no batches.
    forward_options: ClassVar[tuple[str, ...] | None] = None
    warmup_options: ClassVar[Mapping[str, object]] = {}  # what `warm_up` must pass

    def __init__(self, model: Any, processor: Any, **options: object) -> None:
        self.model, self.processor = model.eval(), processor
        self.options: OptionsT = self.default_options(options)
        self.detector: PeopleDetector | None = None
        self._open_detectors: dict[tuple[str, float | None], PeopleDetector] = {}  # by name and threshold
        self._auto_batch: BatchSize | None = None
        self.open_options: Mapping[str, object] | None = None  # what `open` loaded, and how

    @classmethod
    def default_options(cls, changes: Mapping[str, object]) -> OptionsT:
        """Return the default options of the task with changes."""
        options: OptionsT = replace_options(TASKS[cls.task].options_class()(), changes)
        return options

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
            names = " or ".join(TASKS[cls.task].checkpoints) or "path/to/a/folder"
            raise InputError(f"model: expected a checkpoint for {cls.task}. Pass, for example, {names}.")
        hub = {name: options.pop(name) for name in HUB_KEYWORDS if name in options}
        cls.check_options(options)  # before a large download
        if isinstance(model, str | Path):
            loaded = cls.load(model, device=device, dtype=dtype, **hub)
            path = Path(model).expanduser()
            folder = path.parent if path.is_file() else model
            opened = cls(loaded, processor or cls.load_processor(folder, **hub), **options)
            opened.open_options = {"model": model, "device": device, "dtype": dtype, **hub}
            return opened
        if not isinstance(model, cls.accepts()):
            names = ", ".join(accepted.__name__ for accepted in cls.accepts())
            raise InputError(f"model: expected a checkpoint or {names} for {cls.task}, got {type(model).__name__}.")
        if processor is None:
            raise InputError("processor: required with a model that is already loaded. Pass processor=…")
        if device is not None:
            model = model.to(checked_device(device))
        return cls(model if dtype is None else model.to(checked_dtype(dtype)), processor, **options)

    @classmethod
    def accepts(cls) -> tuple[type[Model], ...]:
        """Return the classes of models that the pipeline runs."""
        classes: tuple[type[Model], ...] = TASKS[cls.task].auto_class().model_classes()
        return classes

    @classmethod
    def check_options(cls, options: Mapping[str, object]) -> None:
        """Raise InputError for options that do not exist or have no such value."""
        cls.default_options(options)

    @classmethod
    def load(cls, source: str | Path, *, device: Device, dtype: DType, **hub: object) -> Model:
        """Load the model of a checkpoint."""
        auto = TASKS[cls.task].auto_class()
        loaded: Model = auto.from_pretrained(source, strict=True, **default_placement(device, dtype), **hub)
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
    def graphs(self) -> GraphCache | None:
        """Where the model stores its CUDA graphs, if it has any."""
        return self.model.graphs if self.device.type == "cuda" else None

    @functools.cached_property
    def checkpoint_heads(self) -> tuple[str, ...]:
        """The heads of the model's checkpoint, if it has several. Read once."""
        source = self.model.config.name_or_path
        return local_heads(source) if source else ()

    @property
    def name(self) -> str:
        """Name of the model in results."""
        return self.model.config.name_or_path or type(self.model).__name__

    def __repr__(self) -> str:
        defaults = type(self.options)()
        changed = [
            f"{field.name}={value!r}"
            for field in fields(self.options)
            if (value := getattr(self.options, field.name)) is not getattr(defaults, field.name)
            and value != getattr(defaults, field.name)
        ]
        dtype = str(self.model.dtype).removeprefix("torch.")
        fields_text = ", ".join([f"model={self.name!r}", f"device={str(self.device)!r}", f"dtype={dtype!r}", *changed])
        return f"{type(self).__name__}({fields_text})"

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
        """Same as calling the pipeline."""
        call = self.for_call(options)
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
        )
        return call.wrap_results(results, opened, write)

    def warm_up(self, batch: BatchSize | None = None) -> None:
        """Run the model on a gray image in the batches that requests form: of 1, 2, 4, … inputs, up to the batch size.

        On a GPU the first call of each size compiles kernels and captures a CUDA graph, for which the first requests
        would wait. The people detector does not run.
        """
        call = self.for_call(self.warmup_options)
        batch = batch or self.batch_size(call.options, live=False)
        frame = Frame(image=np.full((*self.input_hw, 3), 128, np.uint8), name="warmup")
        with torch.inference_mode():
            for size in sorted({*(1 << power for power in range(batch.size.bit_length())), batch.size}):
                images = [call.prepare(frame, None) for _ in range(size)]
                queue = BatchQueue[None](call, batch, call.graphs, partial=True)
                outputs = queue.run(None, [model_input for prepared in images for model_input in prepared.inputs])
                call.finish(images[0], HostCopy(call.decode(images[0], outputs[: len(images[0].inputs)])).wait())

    def on_ray(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        cpus_per_worker: float | None = None,
        gpus_per_worker: float | None = None,
    ) -> Any:
        """Return a pipeline whose calls run on a Ray cluster: ``pipe.on_ray()(folder, save="out/{stem}.json")``.

        Args:
            address: Address of a cluster, such as ``ray://host:10001``; by default a new one on this machine.
            workers: Worker processes, each with a model; by default one for each GPU, or for each core without GPUs.
            cpus_per_worker: Cores of each; by default 1 with a GPU, and otherwise what there is, divided.
            gpus_per_worker: GPUs of each, possibly a fraction; by default 1 if the cluster has any.

        Returns:
            A `vitruvian.scale.RayPipeline`. Its calls write files or shards, and return a `JobSummary`.
        """
        from vitruvian.scale.ray_pipeline import RayPipeline

        return RayPipeline.of(
            self,
            address=address,
            workers=workers,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
        )

    def wrap_results(
        self, results: ResultGenerator[ResultT], source: Source, write: Callable[[Any, int], object] | None
    ) -> Results[ResultT]:
        """Return what a call for many images returns; `write` saves the result with an index."""
        return Results(results, count=source.count, video=source.video)

    def for_call(self, changes: Mapping[str, object]) -> Self:
        """Return a copy with the options of one call. It shares the model, the processor and open detectors."""
        options = replace_options(self.options, changes)
        self._prepare_model(options)
        call = copy.copy(self)
        call.options = options
        call.detector = self.choose_detector(options)
        call.detects_people = call.detector is not None
        return call

    def _prepare_model(self, options: OptionsT) -> None:
        """Optimize the model once, if the options ask for it, and open the upload stream of its device."""
        if not self.model.optimized and (
            options.optimize is True or (options.optimize == "auto" and _can_auto_optimize(self.model))
        ):
            self.model.optimize(cuda_graphs=self.fixed_input_size)
        self.upload_stream = upload_stream(self.device, self.upload_stream)

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
        """Return the people detector for these options; None if the options need no detector."""
        if not isinstance(options, PeopleOptions):
            return None
        own = self.model.config.name_or_path if "people" in self.checkpoint_heads else None
        spec = detector_spec(options, own)
        return None if spec is None else self.detector_for(spec, threshold=options.detect_threshold)

    def detector_for(self, spec: DetectorSpec, *, threshold: float | None = None) -> PeopleDetector:
        """Open a people detector on the device of the model; one that has a name is opened once."""
        if not isinstance(spec, str | Path):
            return open_detector(spec)
        key = str(spec), threshold
        if key not in self._open_detectors:  # it may hold a model
            self._open_detectors[key] = open_detector(spec, device=self.device, threshold=threshold)
        return self._open_detectors[key]

    def detect(self, frame: Frame) -> People | None:
        """Detect the people of an image; None without a detector."""
        if self.detector is None or not isinstance(self.options, PeopleOptions):
            return None
        people = self.detect_with(
            self.detector, frame, self.options.on_empty or self.on_empty, max_people=self.options.max_people
        )
        by_default = self.options.detect is None and self.detector.name == BUILTIN != self.model.config.name_or_path
        return replace(people, note=DEFAULT_DETECTOR_NOTE) if by_default and people.note is None else people

    def detect_with(
        self, detector: PeopleDetector, frame: Frame, on_empty: OnEmpty, *, max_people: int | None
    ) -> People:
        """Detect the people of an image."""
        source = str(frame.path or frame.name)
        return detect_people(
            detector, frame.image, source=source, frame=frame.frame, on_empty=on_empty, max_people=max_people
        )

    @property
    def input_hw(self) -> SizeHW:
        """Height and width of the model's inputs, at least roughly."""
        height, width = self.processor.size_hw
        return height, width

    def batch_key(self) -> object:
        """Return the values of `forward_options`: calls that agree on them can share a batch."""
        if self.forward_options is None:
            return super().batch_key()
        return type(self), *(getattr(self.options, name) for name in self.forward_options)

    def decode_thread(self) -> DecodeThread:
        """Return which thread calls `decode`. Tasks whose `decode` waits for the device return "worker"."""
        if self.upload_stream is not None:
            return "stream"
        return "worker" if self.device.type == "cpu" else "consumer"

    def label_names(self, known: tuple[str, ...]) -> tuple[str, ...]:
        """Return the known names of the model's classes if it has as many, else those of its configuration."""
        labels: dict[int, str] = self.model.config.id2label
        return known if len(labels) == len(known) else tuple(labels.values())

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

    def make_inputs(
        self, frame: Frame, count: int, make: Callable[[Tensor, slice], Sequence[Tensor] | Tensor]
    ) -> Sequence[ModelInput | DeferredModelInput]:
        """Make inputs from the pixels [3, H, W] of an image: on the upload stream if there is one, else on the host.

        If the device has too little memory the host makes them. Many inputs are made when their batch runs.

        Args:
            frame: The image.
            count: Number of inputs.
            make: Takes the pixels and the range of the inputs to make, and returns them.
        """
        if self.upload_stream is not None:
            try:
                with self.upload_stream.activate():
                    pixels = self.upload_stream.upload(frame.image)
                    if count > _MAX_EAGER_INPUTS:
                        return _deferred_inputs(pixels, count, make, pending=PendingTensors([pixels], self.device))
                    inputs = make(pixels, slice(count))
                    pending = PendingTensors([inputs] if isinstance(inputs, Tensor) else inputs, self.device)
                    return [ModelInput(tensor, pending=pending) for tensor in inputs]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
        pixels = pixels_of(frame.image)  # [3, H, W]
        if count > _MAX_EAGER_INPUTS:
            return _deferred_inputs(pixels, count, make)
        return [ModelInput(tensor) for tensor in make(pixels, slice(count))]


def _deferred_inputs(
    pixels: Tensor,
    count: int,
    make: Callable[[Tensor, slice], Sequence[Tensor] | Tensor],
    *,
    pending: PendingTensors | None = None,
) -> list[DeferredModelInput]:
    """Return functions that make inputs from pixels, which another thread may still upload."""

    def make_one(index: int) -> ModelInput:
        if pending is not None:
            pending.wait()
        return ModelInput(make(pixels, slice(index, index + 1))[0])

    return [functools.partial(make_one, index) for index in range(count)]


def _can_auto_optimize(model: Model) -> bool:
    """Return whether a model is on a single CUDA device and has no adapters."""
    if model.device.type != "cuda":  # the usual case of a call that must start fast
        return False
    adapted = any(type(module).__module__.partition(".")[0] == "peft" for module in model.modules())
    return len(devices_of(model)) == 1 and not adapted
