"""The options of each task over HTTP: query parameters, form fields or JSON.

They come from the table in `vitruvian.pipelines.options` and have the names of the command line. Classes here declare
only what has another form over HTTP: JSON in place of text, or fewer values than on the command line. Jobs turn options
into arguments of the command.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from PIL import ImageColor
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator

from vitruvian.pipelines.options import (
    MIN_TILE_SIDE,
    DenseOptions,
    OptionRow,
    PeopleOptions,
    intrinsics_matrix,
    option_rows,
)
from vitruvian.pipelines.output_options import ALL_MASKS_HELP, CommonVideoOptions, MatteOutputOptions, OutputOptions
from vitruvian.serving.errors import RequestError, too_large, wrong_value
from vitruvian.tasks import ALPHA_VIDEO_FORMATS, TASKS, Task

Point = Annotated[list[float], Field(min_length=2, max_length=2)]
Box = Annotated[list[float], Field(min_length=4, max_length=4)]
Label = Literal[0, 1]
_SERVER_MAX = {"points_per_side": 64, "crop_layers": 2}  # below the maximum of the library: a request is one of many


class TaskRequest(BaseModel):
    """Options of every task.

    Attributes:
        task: Name of the task.
        result_names: Options that the class declares and that are not arguments of the pipeline's call.
        renamed: Names of the pipeline's arguments, where they differ from options that the class declares.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    task: ClassVar[str]
    result_names: ClassVar[frozenset[str]] = frozenset()
    renamed: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _read_json(cls, values: Any) -> Any:
        """Parse lists in query parameters and form fields."""
        if not isinstance(values, dict):
            return values
        return {name: _parsed(value) for name, value in values.items()}

    @classmethod
    def read(cls, values: Mapping[str, object]) -> Self:
        """Read options, or raise a `RequestError` about the first that is wrong."""
        try:
            return cls(**dict(values))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if first["type"] == "extra_forbidden":
                raise RequestError(
                    422, subject=".".join(map(str, first["loc"])), expected="an option of the task",
                    got="none with this name", hint=f"Options are {', '.join(cls.model_fields) or 'none'}.",
                ) from None  # fmt: skip
            raise wrong_value(first) from None

    def prompt_count(self) -> int:
        """Return the number of points and boxes."""
        return 0

    def check(self, max_prompts: int) -> None:
        """Raise an error for too many prompts (413), and for options that contradict each other (422)."""
        if (count := self.prompt_count()) > max_prompts:
            raise too_large("prompts", max_prompts, "points and boxes", f"{count:,}")
        TASKS[self.task].pipeline_class().check_options(self.call_options())

    def call_options(self) -> dict[str, object]:
        """Return the arguments of the pipeline's call."""
        names, values = self.call_names(), self.model_dump(exclude_none=True)
        return {names[name]: value for name, value in values.items() if name in names}

    @classmethod
    @functools.cache
    def call_names(cls) -> dict[str, str]:
        """Return the pipeline's argument for each option that is one."""
        arguments = {row.name: row.argument for row in option_rows(TASKS[cls.task].options_class())} | cls.renamed
        output_rows = option_rows(TASKS[cls.task].output_class(), CommonVideoOptions)
        others = {row.name for row in output_rows} | cls.result_names
        return {name: arguments.get(name, name) for name in cls.model_fields if name in arguments or name not in others}

    def output(self) -> OutputOptions:
        """Return how the result is converted, drawn and written."""
        output = TASKS[self.task].output_class()
        return output(**{row.argument: getattr(self, row.name) for row in _http_rows(output)})  # type: ignore[no-any-return]

    def arguments(self) -> list[str]:
        """Return the arguments of the command for a job."""
        missing = {row.name for row in option_rows(TASKS[self.task].output_class()) if not row.info.cli}
        arguments: list[str] = []
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if value == info.default:
                continue
            if name in missing:
                hint = "This option is not available for jobs."
                raise RequestError(422, subject=name, expected="its default", got=repr(value)[:80], hint=hint)
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                arguments.append(option if value else f"--no-{option[2:]}")
            else:
                arguments += self._argument(name, option, value)
        return arguments

    def _argument(self, name: str, option: str, value: Any) -> list[str]:
        """Return the arguments for one option that is not at its default."""
        values = value if isinstance(value, list) else [value]
        return [f"{option}={_text(item)}" for item in values]


class PeopleRequest(TaskRequest):
    """Which people are processed."""

    detect: Literal["whole"] | None = Field(
        None, description="whole: process the whole image instead of detected people."
    )
    boxes: list[Box] | None = Field(None, description="Boxes of people, as JSON: [[x1, y1, x2, y2], …].")

    def prompt_count(self) -> int:
        """Return the number of boxes."""
        return len(self.boxes or ())


class TileRequest(PeopleRequest):
    """Which people or tiles are processed."""

    tile: int | bool | None = Field(
        None, description="Process large images in tiles of up to N pixels; true for the size of the model's input."
    )

    @field_validator("tile")
    @classmethod
    def _check_tile(cls, value: int | bool | None) -> int | bool | None:
        if isinstance(value, int) and not isinstance(value, bool) and value < MIN_TILE_SIDE:
            raise ValueError(f"at least {MIN_TILE_SIDE} pixels, or true")
        return value

    def arguments(self) -> list[str]:
        """Write the tile's size as the command line does."""
        if isinstance(self.tile, bool):
            rest = self.model_copy(update={"tile": None}).arguments()
            return [*rest, "--tile=auto"] if self.tile else rest
        return super().arguments()


class PointmapRequest(TileRequest):
    """What is known about the camera."""

    renamed: ClassVar[dict[str, str]] = {"intrinsics": "K"}
    intrinsics: Box | None = Field(None, description="The camera, as JSON: [fx, fy, cx, cy] in pixels.")

    @field_validator("intrinsics")
    @classmethod
    def _check_intrinsics(cls, value: list[float] | None) -> list[float] | None:
        if value is not None and not (all(map(math.isfinite, value)) and min(value[:2]) > 0):
            raise ValueError("finite numbers and positive focal lengths: [fx, fy, cx, cy]")
        return value

    def call_options(self) -> dict[str, object]:
        """Make the camera matrix."""
        options = super().call_options()
        if self.intrinsics is not None:
            options["K"] = intrinsics_matrix(*self.intrinsics)
        return options

    def _argument(self, name: str, option: str, value: Any) -> list[str]:
        if name == "intrinsics":
            return [f"{option}={_text(value)}"]
        return super()._argument(name, option, value)


class MatteRequest(TileRequest):
    """What is behind people in drawings."""

    result_names = frozenset({"over"})
    over: str | None = Field(None, max_length=64, description="Color behind people in the drawing: white, #00ff00.")

    @field_validator("over")
    @classmethod
    def _check_color(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                ImageColor.getrgb(value)  # a text that is no color would be the name of a file
            except ValueError:
                raise ValueError("a color such as white or #00ff00") from None
        return value

    def output(self) -> OutputOptions:
        """Draw people over the color, or over a checkerboard."""
        return MatteOutputOptions(over=self.over)


class SegmentRequest(TaskRequest):
    """Prompts in pixels of the upright image."""

    result_names = frozenset({"all_masks"})
    points: list[Annotated[list[Point], Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        description="Points of each object, as JSON: [[[x, y], …], …]. [x, y] and [[x, y], …] are one object.",
    )
    labels: list[list[Label]] | None = Field(None, description="1 on the object, 0 off it; nested like points.")
    boxes: list[Box] | None = Field(
        None, min_length=1, description="The box of each object, as JSON: [[x1, y1, x2, y2], …]."
    )
    all_masks: bool = Field(False, description=ALL_MASKS_HELP)

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, values: Any) -> Any:
        """Add the missing outer levels of prompts."""
        if not isinstance(values, dict):
            return values
        depths = {"points": 3, "labels": 2, "boxes": 2}
        return {
            name: _nested(_parsed(value), depths[name]) if name in depths else value for name, value in values.items()
        }

    def prompt_count(self) -> int:
        """Return the number of points and boxes."""
        return sum(len(points) for points in self.points or ()) + len(self.boxes or ())

    def check(self, max_prompts: int) -> None:
        """Raise an error also without prompts, and for labels that are not those of the points."""
        super().check(max_prompts)
        if self.points is None and self.boxes is None:
            raise RequestError(
                422, subject="prompts", expected="points or boxes", got="none", hint="For example points=[[x, y]]."
            )
        if self.labels is not None:
            counts, given = ([len(rows) for rows in value or ()] for value in (self.points, self.labels))
            if counts != given:
                raise RequestError(
                    422,
                    subject="labels",
                    expected="one for each point, nested alike",
                    got=f"{str(given)[:80]} for objects with {str(counts)[:80]} points",
                )

    def call_options(self) -> dict[str, object]:
        """Add how many masks are proposed."""
        return super().call_options() | ({"best": False, "multimask": True} if self.all_masks else {})

    def _argument(self, name: str, option: str, value: Any) -> list[str]:
        if name == "labels":
            return []
        if name == "points":
            labels = self.labels or [[1] * len(rows) for rows in value]
            return [f"{option}={_points_text(*rows)}" for rows in zip(value, labels, strict=True)]
        return super()._argument(name, option, value)


class JobRequest(TaskRequest):
    """What a job writes."""

    save: str | None = Field(None, max_length=100, description="File formats: json,mp4.")

    def check(self, max_prompts: int) -> None:
        """Raise an error also for file formats that the task does not have."""
        super().check(max_prompts)
        if self.save is not None:
            TASKS[self.task].read_formats(self.save)

    @classmethod
    @functools.cache
    def call_names(cls) -> dict[str, str]:
        """Leave out what is about files."""
        return {name: argument for name, argument in super().call_names().items() if name != "save"}


class TrackPromptFields(BaseModel):
    """What marks an object in a frame, in pixels of the upright frame."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    object_id: int = Field(ge=1, le=65535, description="Number of the object.")
    frame: int = Field(0, ge=0, description="Number of the frame, from 0.")
    points: list[Point] | None = Field(None, description="[[x, y], …]")
    labels: list[Label] | None = Field(None, description="For each point 1 on the object or 0 off it.")
    box: Box | None = Field(None, description="[x1, y1, x2, y2]")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.points is None and self.box is None:
            raise ValueError("points or a box")
        if self.labels is not None and len(self.labels) != len(self.points or ()):
            raise ValueError("a label for each point")
        return self


class TrackRequest(JobRequest):
    """Options of tracking jobs."""

    task: ClassVar[str] = "track"
    result_names = frozenset({"prompts", "everyone", "cutout"})
    prompts: list[TrackPromptFields] = Field([], description="What to track.")
    everyone: bool = Field(False, description="Detect people and track all of them.")
    cutout: bool = Field(False, description="Write only the objects, as a video with alpha.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.prompts and not self.everyone:
            raise ValueError("prompts, or everyone")
        return self

    def check(self, max_prompts: int) -> None:
        """Raise an error also for cut-out objects in a video without alpha."""
        super().check(max_prompts)
        if self.cutout and self.save and set(TASKS["track"].read_formats(self.save)).isdisjoint(ALPHA_VIDEO_FORMATS):
            expected = f"a video with alpha ({', '.join(ALPHA_VIDEO_FORMATS)}) for cutout"
            raise RequestError(422, subject="save", expected=expected, got=repr(self.save))

    def prompt_count(self) -> int:
        """Return the number of points and boxes."""
        return sum(len(prompt.points or ()) + (prompt.box is not None) for prompt in self.prompts)

    def _argument(self, name: str, option: str, value: Any) -> list[str]:
        if name != "prompts":
            return super()._argument(name, option, value)
        arguments = []
        for prompt in self.prompts:
            where = f"{prompt.object_id}@{prompt.frame}:"
            if prompt.box is not None:
                arguments.append(f"--box={where}{_text(prompt.box)}")
            if prompt.points is not None:
                labels = prompt.labels or [1] * len(prompt.points)
                arguments.append(f"--points={where}{_points_text(prompt.points, labels)}")
        return arguments


def _http_rows(*tables: type) -> list[OptionRow]:
    """Return the options of tables that the server has."""
    return [row for row in option_rows(*tables) if row.info.http]


def _request(name: str, task: Task, bases: tuple[type[TaskRequest], ...], rows: list[OptionRow]) -> type[TaskRequest]:
    """Make the class of a task's options: what `bases` declare, and rows of the table."""
    fields: dict[str, Any] = {}
    for row in rows:
        bounds = {bound: value for bound, value in vars(row.info.range).items() if math.isfinite(value)}
        if row.name in _SERVER_MAX:
            bounds["le"] = _SERVER_MAX[row.name]
        fields[row.name] = (row.type, Field(row.default, description=row.info.help, **bounds))
    request: Any = create_model(name, __base__=bases, **fields)
    request.task = task.name
    return request  # type: ignore[no-any-return]


def _image_base(task: Task) -> type[TaskRequest]:
    """Return the class that declares what has another form over HTTP."""
    special: dict[str, type[TaskRequest]] = {
        "pointmap": PointmapRequest,
        "matte": MatteRequest,
        "segment": SegmentRequest,
    }
    tables: dict[type, type[TaskRequest]] = {
        DenseOptions: TileRequest,
        PeopleOptions: PeopleRequest,
        object: TaskRequest,
    }
    general = next(base for table, base in tables.items() if issubclass(task.options_class(), table))
    return special.get(task.name, general)


IMAGE_REQUESTS = {
    task.name: _request(
        f"{task.name.title()}Request",
        task,
        (_image_base(task),),
        _http_rows(task.options_class(), task.output_class()),
    )
    for task in TASKS.values()
    if task.takes_images
}
JOB_REQUESTS = {
    name: _request(f"{name.title()}JobRequest", TASKS[name], (JobRequest, request), _http_rows(CommonVideoOptions))
    for name, request in IMAGE_REQUESTS.items()
} | {
    "track": _request(
        "TrackJobRequest",
        TASKS["track"],
        (TrackRequest,),
        # the other options of videos are not for tracked objects
        [row for row in _http_rows(CommonVideoOptions) if row.name == "sound"]
        + _http_rows(TASKS["track"].options_class(), TASKS["track"].output_class()),
    )
}


def _points_text(points: list[list[float]], labels: list[Label]) -> str:
    """Return the points of an object as the command line takes them."""
    return " ".join(_text([*point, label]) for point, label in zip(points, labels, strict=True))


def _parsed(value: object) -> object:
    """Parse JSON lists in texts."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise RequestError(422, subject="options", expected="JSON", got=repr(value[:40])) from None
    return value


def _nested(value: object, levels: int) -> object:
    depth, inner = 0, value
    while isinstance(inner, list):
        if not inner:  # there is nothing to nest
            return value
        depth, inner = depth + 1, inner[0]
    for _ in range(levels - depth if depth else 0):
        value = [value]
    return value


def _text(value: object) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, list):
        return ",".join(_text(item) for item in value)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
