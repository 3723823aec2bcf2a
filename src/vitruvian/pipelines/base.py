"""`TaskPipeline`: what all pipelines share: opening a model, choosing a device, one picture or many, looking at people.

A task's file says what is its own: `prepare` (picture → units), `forward` (units → outputs), `decode` (outputs → small
tensors) and `finish` (→ result); the runner does them for many pictures at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitruvian.auto import HUB_KEYWORDS, AutoProcessor, AutoTaskModel
from vitruvian.devices import checked_device, checked_dtype, devices_of
from vitruvian.errors import InputError, near_matches
from vitruvian.model import Model
from vitruvian.models.sapiens2.packed import packed_tasks
from vitruvian.pipelines.memory import Arrival, BatchSize, Lane, first_batch_size, is_out_of_memory, lane_for
from vitruvian.pipelines.people import (
    BoxForm,
    NobodyRule,
    PeopleFinder,
    find_people,
    given_people,
    open_finder,
)
from vitruvian.pipelines.runner import PATIENCE, Errors, Prepared, Results, Unit, run_many, run_one
from vitruvian.pipelines.saving import ResultWriter, announced, result_writer
from vitruvian.pipelines.sources import Frame, open_source
from vitruvian.pipelines.steady import Steady
from vitruvian.processor import as_tensor
from vitruvian.results.base import People, Result
from vitruvian.tasks import find_task

ResultT = TypeVar("ResultT", bound=Result)
OptionsT = TypeVar("OptionsT", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every pipeline can be told, when it is opened or for one call.

    Args:
        batch_size: How many inputs (pictures, people or tiles) go through the model at once. "auto" starts from what
            suits the device and halves when memory runs out.
        workers: Background threads that read, prepare, finish and save; by default 2 to 4, and up to 8, half as many
            as there are cores, where the model is on a CUDA device.
        errors: With many pictures, "keep" gives a `Failure` in the place of each that fails, "raise" stops there.
        save: What to do with each result in the background: a function that takes it, or a file name with ``{stem}``
            (and ``{frame}`` for video) in it, such as ``"out/{stem}.png"``. Results of one name get numbers:
            ``photo.png``, ``photo_2.png``.
        keep_image: Whether results hold their source picture, which `plot` draws on.
        patience: Seconds to wait for further pictures of a slow source before a batch runs as it is.
        optimize: Whether to make the model quick first, see `Model.optimize`, which needs a moment once. "auto" does on
            a CUDA device. What is optimised stays so.
    """

    batch_size: int | Literal["auto"] = "auto"
    workers: int | None = None
    errors: Errors = "keep"
    save: Callable[[Any], Any] | str | Path | ResultWriter | None = None
    keep_image: bool = True
    patience: float = PATIENCE
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
    """Who is looked at, for tasks about people.

    Args:
        boxes: Boxes of people: [P, 4] for one picture or for all alike, a list of those (one a picture), or a table
            of file name → boxes. Coordinates are pixels of the upright picture.
        box_form: What the four numbers are: "xyxy" (corners) or "xywh" (corner, width and height, as COCO has it).
        people: "whole" looks at the whole picture, "crop" at each person on their own; or a finder, which means "crop"
            with it. By default "crop" where there are boxes or a finder, and "whole" otherwise.
        finder: Who finds people: whatever `vitruvian.pipelines.people.open_finder` takes. Where a model can find people
            itself, as the built-in one, "crop" needs no finder, and poses look for people by default.
        nobody: When a finder finds nobody: "whole" looks at the whole picture, "none" gives an empty result, "error"
            fails. By default "none" for poses, "whole" for maps. The result's `people.note` says what happened.
        max_people: Look at no more people than this, the surest first.
    """

    boxes: Any = None
    box_form: BoxForm = "xyxy"
    people: Any = None
    finder: Any = None
    nobody: NobodyRule | None = None
    max_people: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.box_form not in ("xyxy", "xywh"):
            raise InputError(f'box_form: expected "xyxy" or "xywh", got {self.box_form!r}.')
        if self.nobody not in (None, "whole", "none", "error"):
            raise InputError(f'nobody: expected "whole", "none" or "error", got {self.nobody!r}.')
        if self.max_people is not None and self.max_people < 1:
            raise InputError(f"max_people: expected at least 1, got {self.max_people}. Leave it out to keep everyone.")
        if self.people == "whole" and self.boxes is not None:
            raise InputError('boxes and people: expected one of boxes and "whole", got both. Drop one.')


class TaskPipeline(Generic[ResultT, OptionsT]):
    """A model, its processor, and how pictures become results.

    Args:
        model: The model; it stays on its device and in its data type.
        processor: Its processor.
        options: Fields of the task's options, as defaults for calls.
    """

    task: ClassVar[str]
    checkpoints: ClassVar[tuple[str, ...]]  # to name to people who gave none
    auto: ClassVar[type[AutoTaskModel]]
    accepts: ClassVar[tuple[type[Model], ...]]
    options_class: ClassVar[type[Any]]
    nobody: ClassVar[NobodyRule] = "whole"  # what to do by default where a finder finds nobody
    finds_people: ClassVar[bool] = False  # whether to look for people where nothing says whom to look at
    decodes_behind: ClassVar[bool] = False  # whether `decode` waits for the device, which is better done behind
    one_size: ClassVar[bool] = False  # whether all inputs have one size, so that recording calls of the model pays

    def __init__(self, model: Any, processor: Any, **options: Any) -> None:
        self.model, self.processor = model.eval(), processor
        self.options: OptionsT = changed(self.options_class(), options)
        self.finders: dict[str, PeopleFinder] = {}
        self.batch: BatchSize | None = None
        self.lane: Lane | None = None  # where pictures are prepared, if that is on the model's device

    # ------------------------------------------------------------------------------------------------ opening

    @classmethod
    def open(
        cls,
        model: str | Path | Model | None,
        *,
        processor: Any = None,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> Self:
        """Open a checkpoint, or take a model that is open.

        Args:
            model: A checkpoint's name on the Hub, folder or file; or a model.
            processor: The model's processor, where it does not come with the checkpoint.
            device: ``"cuda"``, ``"mps"``, ``"cpu"``, a number of a CUDA device; by default the best one here.
            dtype: Data type of the weights; by default bfloat16 on GPUs that compute in it, and float32 elsewhere.
            options: Keywords for the Hub such as `revision`, and options of the task.
        """
        if model is None:
            task, names = find_task(cls.task).name, " or ".join(cls.checkpoints)
            raise InputError(f"model: expected a checkpoint for {task}, got none. Name one such as {names}.")
        hub = {name: options.pop(name) for name in HUB_KEYWORDS if name in options}
        cls.checked(options)  # a wrong option shows before a large download
        if isinstance(model, str | Path):
            opened = cls.load(model, device=device, dtype=dtype, **hub)
            own = Path(model).expanduser()
            where = own.parent if own.is_file() else model
            return cls(opened, processor or cls.load_processor(where, **hub), **options)
        if not isinstance(model, cls.accepts):
            able = ", ".join(found.__name__ for found in cls.accepts)
            raise InputError(f"model: expected a checkpoint or {able} for {cls.task}, got {type(model).__name__}.")
        if processor is None:
            raise InputError("processor: expected one for a model that is open already. Pass processor=…")
        if device is not None:
            model = model.to(checked_device(device))
        return cls(model if dtype is None else model.to(checked_dtype(dtype)), processor, **options)

    @classmethod
    def checked(cls, options: dict[str, Any]) -> None:
        """Refuse options that do not exist."""
        changed(cls.options_class(), options)

    @classmethod
    def load(cls, source: str | Path, *, device: Any, dtype: Any, **hub: Any) -> Model:
        """Open the model of a checkpoint where and as it runs best."""
        opened: Model = cls.auto.from_pretrained(source, **best_place(device, dtype), **hub)
        return opened

    @classmethod
    def load_processor(cls, source: str | Path, **hub: Any) -> Any:
        """Open the processor of a checkpoint."""
        return AutoProcessor.from_pretrained(source, **hub)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        found: torch.device = self.model.device
        return found

    @property
    def name(self) -> str:
        """What results call the model."""
        return self.model.config.name_or_path or type(self.model).__name__

    # ------------------------------------------------------------------------------------------------ running

    def __call__(self, source: Any, **options: Any) -> Any:
        """Look at one picture, or at many.

        Args:
            source: A path, folder, glob, URL, bytes, PIL image, array, tensor, list, generator, video file, camera or
                image sequence; see `vitruvian.pipelines.sources.open_source`.
            options: Options of the task for this call.

        Returns:
            For one picture its result; errors are raised. For many a `Results`: an iterator that gives a result or a
            `Failure` for each, in order, and works ahead in the background only as far as memory allows.
        """
        return self.run(source, **options)

    def run(self, source: Any, **options: Any) -> ResultT | Results[ResultT]:
        """Same as calling the pipeline; for every task, whatever else a call of it may return."""
        chosen = changed(self.options, options)
        writer = result_writer(chosen.save)
        opened = announced(open_source(source), writer)
        self.make_quick(chosen)
        self.lane = lane_for(self.device, self.lane)
        batch = self.batch_size(chosen, live=opened.live)
        # One picture alone is not worth a recording of a large batch; those of small ones serve it too.
        graphs = self.model.graphs if self.device.type == "cuda" else None
        batches = None if opened.single else Steady(graphs, batch, one_size=self.one_size)
        job = Call(self, chosen, finder=self.finder_for(chosen), batches=batches, writer=writer)
        if opened.single:
            return run_one(job, next(opened.tickets()), batch)
        found = run_many(
            job,
            opened,
            batch=batch,
            workers=chosen.workers,
            errors=chosen.errors,
            patience=chosen.patience,
        )
        return Results(found, count=opened.count, video=opened.video)

    def make_quick(self, options: OptionsT) -> None:
        """Optimise the model where the options say so and it is not yet."""
        if options.optimize is False or self.model.optimized:
            return
        if options.optimize is True or suits_optimizing(self.model):
            self.model.optimize(cuda_graphs=self.one_size)

    def batch_size(self, options: OptionsT, *, live: bool) -> BatchSize:
        """Return how many units to run at once; what "auto" came down to is remembered."""
        if options.batch_size != "auto":
            return BatchSize(options.batch_size, fixed=True)
        if live:
            return BatchSize(1, fixed=False)
        if self.batch is None:
            self.batch = BatchSize(first_batch_size(self.device, self.unit_hw), fixed=False)
        return self.batch

    def finder_for(self, options: OptionsT) -> PeopleFinder | None:
        """Return who finds people for a call with these options; None where nobody is looked for."""
        if not isinstance(options, PeopleOptions):
            return None
        spec = options.finder
        if options.people not in (None, "whole", "crop"):
            spec = options.people
        if spec is None and (options.people == "crop" or (options.people is None and self.finds_people)):
            spec = self.own_finder
        if options.people == "whole" or options.boxes is not None or spec is None:
            return None
        if not isinstance(spec, str | Path):
            return open_finder(spec)
        if str(spec) not in self.finders:  # opening one may load a model
            self.finders[str(spec)] = open_finder(spec, device=self.device)
        return self.finders[str(spec)]

    @property
    def own_finder(self) -> str | None:
        """The model's checkpoint, where that finds people too; the one inside the package does."""
        source: str | None = self.model.config.name_or_path
        return source if source and "people" in packed_tasks(source) else None

    def nobody_rule(self, options: OptionsT) -> NobodyRule:
        """Return what the finder is to do where it finds nobody."""
        asked = options.nobody if isinstance(options, PeopleOptions) else None
        return asked or self.nobody

    def about(self, frame: Frame, options: OptionsT, people: People | None = None) -> dict[str, Any]:
        """Return what every result says of its picture."""
        return {
            "size_hw": frame.size_hw,
            "image": frame.picture if options.keep_image else None,
            "source": frame.name,
            "model": self.name,
            "people": people,
            "frame": frame.frame,
            "time": frame.time,
        }

    def on_device(
        self, frame: Frame, make: Callable[[Tensor], Sequence[Tensor] | Tensor]
    ) -> tuple[list[Tensor], Arrival | None]:
        """Make units from a picture [3, H, W]: beside the model where it is on a GPU, on the CPU otherwise.

        Returns the units, and when they will be there. Where the GPU has no room the CPU makes them.
        """
        if self.lane is not None:
            try:
                with self.lane.entered():
                    made = make(self.lane.upload(frame.picture))
                    return list(made), Arrival([made] if isinstance(made, Tensor) else made, self.device)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
        return list(make(as_tensor(frame.picture).permute(2, 0, 1))), None

    # ------------------------------------------------------------------------------------------------ a task's own

    @property
    def unit_hw(self) -> tuple[int, int]:
        """About how large the model's inputs are."""
        raise NotImplementedError

    def prepare(self, frame: Frame, people: People | None, options: OptionsT) -> Prepared:
        """Make the model's inputs; `people` are those that a finder found."""
        raise NotImplementedError

    def forward(self, units: list[Unit], options: OptionsT) -> list[Any]:
        """Run the model on units of one shape; one output each."""
        raise NotImplementedError

    def decode(self, prepared: Prepared, outputs: list[Any], options: OptionsT) -> Any:
        """Turn a picture's outputs into what its result needs: nested lists, tuples and dicts of tensors."""
        raise NotImplementedError

    def decodes_ahead(self, options: OptionsT) -> bool:
        """Tell whether `forward` asks the device for all that is to be decoded, so that `decode` leaves it alone."""
        return False

    def finish(self, prepared: Prepared, decoded: Any, options: OptionsT) -> ResultT:
        """Build the result from what was decoded, now on the CPU."""
        raise NotImplementedError


class Call(Generic[ResultT, OptionsT]):
    """A pipeline with the options of one call: what the runner works with."""

    def __init__(
        self,
        pipe: TaskPipeline[ResultT, OptionsT],
        options: OptionsT,
        *,
        finder: PeopleFinder | None,
        batches: Steady | None,
        writer: ResultWriter | None = None,
    ) -> None:
        self.pipe, self.options, self.finder, self.batches, self.writer = pipe, options, finder, batches, writer
        self.device, self.looks, self.lane = pipe.device, finder is not None, pipe.lane
        alone = self.device.type == "cpu" and self.lane is None
        self.decodes_behind = pipe.decodes_behind or alone or pipe.decodes_ahead(options)
        self.steady = batches is not None and batches.size > 0

    def look(self, frame: Frame) -> People | None:
        """Let the finder look, if there is one."""
        if self.finder is None or not isinstance(self.options, PeopleOptions):
            return None
        return find_people(
            self.finder,
            frame.picture,
            source=str(frame.path or frame.name),
            frame=frame.frame,
            nobody=self.pipe.nobody_rule(self.options),
            max_people=self.options.max_people,
        )

    def prepare(self, frame: Frame, seen: People | None) -> Prepared:
        """Make the model's inputs."""
        return self.pipe.prepare(frame, seen, self.options)

    def forward(self, units: list[Unit]) -> list[Any]:
        """Run the model."""
        if self.batches is None:
            return self.pipe.forward(units, self.options)
        return self.batches.run(units, lambda filled: self.pipe.forward(filled, self.options))

    def decode(self, prepared: Prepared, outputs: list[Any]) -> Any:
        """Decode outputs."""
        return self.pipe.decode(prepared, outputs, self.options)

    def finish(self, prepared: Prepared, decoded: Any) -> ResultT:
        """Build the result, and write it where it is to be written."""
        result = self.pipe.finish(prepared, decoded, self.options)
        if self.writer is not None:
            self.writer.write(result, prepared.frame.index)
        return result


# ------------------------------------------------------------------------------------------------------ functions


def changed(options: OptionsT, changes: Mapping[str, Any]) -> OptionsT:
    """Return options with some of them changed, refusing names that do not exist."""
    known = [field.name for field in dataclasses.fields(options)]
    for name in changes:
        if name not in known:
            raise InputError(f"{name}: no such option.{near_matches(name, known)} Options are {', '.join(known)}.")
    return dataclasses.replace(options, **changes) if changes else options


def best_place(device: Any, dtype: Any) -> dict[str, Any]:
    """Return the keywords of `from_pretrained` for a device and a data type, chosen where they are None."""
    place = None if device is None else checked_device(device)
    on_cuda = torch.cuda.is_available() if place is None else place.type == "cuda"
    if dtype is None:
        # Emulated bfloat16 is slower than float32; CPUs and Metal are quickest, or surest, in float32.
        dtype = torch.bfloat16 if on_cuda and torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return {"dtype": checked_dtype(dtype)} | ({"device_map": "auto"} if place is None else {"device": place})


def suits_optimizing(model: Model) -> bool:
    """Tell whether a model is on a CUDA device, on one alone, and built of its own layers: no adapters inside."""
    places = devices_of(model)
    adapted = any(type(module).__module__.partition(".")[0] == "peft" for module in model.modules())
    return len(places) == 1 and places.pop().type == "cuda" and not adapted


def people_in(frame: Frame, seen: People | None, options: PeopleOptions) -> People | None:
    """Return who to look at one by one: those found, those given, or None to look at the whole picture."""
    if seen is not None:
        return seen
    if options.boxes is not None:
        given = given_people(boxes_of(options.boxes, frame), frame.size_hw, form=options.box_form)
        most = options.max_people
        return dataclasses.replace(given, boxes_xyxy=given.boxes_xyxy[:most], scores=given.scores[:most])
    if options.people == "crop":
        raise InputError("people: expected boxes or a finder for crops, got neither. Pass one of them.")
    return None


def boxes_of(boxes: Any, frame: Frame) -> Any:
    """Pick the boxes of one picture: from a table by name, from a list by place, or those that hold for all."""
    if isinstance(boxes, Mapping):
        names = [frame.name, *([] if frame.path is None else [str(frame.path), frame.path.name, frame.path.stem])]
        found = next((boxes[name] for name in names if name in boxes), None)
        if found is None:
            raise InputError(f"boxes: expected an entry for {frame.name}, got none.{near_matches(names[-1], boxes)}")
        return found
    if depth(boxes) < 3:
        return boxes
    if frame.index >= len(boxes):
        raise InputError(f"boxes: expected a list for each picture, got {len(boxes)}, none for {frame.name}.")
    return boxes[frame.index]


def depth(boxes: Any) -> int:
    """Count the levels of nested lists or dimensions."""
    if isinstance(boxes, np.ndarray | Tensor):
        return boxes.ndim
    if isinstance(boxes, list | tuple):
        return 1 + max((depth(one) for one in boxes), default=0)
    return 0
