"""The options of each task over HTTP: query parameters, form fields or JSON.

They have the names of the command line's options. A class knows what becomes of them: arguments of the pipeline's call,
of the drawing and of `save`; and, for jobs, arguments of the command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from PIL import ImageColor
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator

from vitruvian.limits import MAX_TILE_OVERLAP, MIN_TILE_SIDE
from vitruvian.serving.errors import RequestError, too_large

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from vitruvian.results import Result

Point = Annotated[list[float], Field(min_length=2, max_length=2)]
Box = Annotated[list[float], Field(min_length=4, max_length=4)]
Share = Annotated[float, Field(ge=0, le=1)]
Area = Annotated[float, Field(ge=0)]
Label = Literal[0, 1]


class TaskOptions(BaseModel):
    """Options of every task.

    Attributes:
        plot_names: Options that are arguments of the result's `plot`.
        save_names: Options that are arguments of the result's `save`.
        result_names: Options that change the result after the model.
        image_names: Options that jobs do not have.
        renamed: Names of the pipeline's arguments, where they differ.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    plot_names: ClassVar[frozenset[str]] = frozenset()
    save_names: ClassVar[frozenset[str]] = frozenset()
    result_names: ClassVar[frozenset[str]] = frozenset()
    image_names: ClassVar[frozenset[str]] = frozenset()
    renamed: ClassVar[Mapping[str, str]] = {}

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
            first = error.errors(include_url=False, include_context=False)[0]
            subject = ".".join(str(part) for part in first["loc"]) or "options"
            known = ", ".join(cls.model_fields) or "none"
            if first["type"] == "extra_forbidden":
                raise RequestError(
                    422, subject=subject, expected="an option of the task", got="none with this name",
                    hint=f"Options are {known}.",
                ) from None  # fmt: skip
            raise RequestError(
                422, subject=subject, expected=_sentence(first["msg"]), got=repr(first["input"])[:80]
            ) from None

    def prompt_count(self) -> int:
        """Return the number of points and boxes."""
        return 0

    def check_prompts(self, limit: int) -> None:
        """Raise an error 413 for too many prompts."""
        if (count := self.prompt_count()) > limit:
            raise too_large("prompts", limit, "points and boxes", f"{count:,}")

    def call_options(self) -> dict[str, object]:
        """Return the arguments of the pipeline's call."""
        others = self.plot_names | self.save_names | self.result_names
        values = self.model_dump(exclude_none=True)
        return {self.renamed.get(name, name): value for name, value in values.items() if name not in others}

    def convert(self, result: Result) -> Result:
        """Convert a result before it is written and drawn."""
        return result

    def draw(self, result: Result) -> NDArray[np.uint8] | Image.Image:
        """Draw a result."""
        plot: Any = result.plot
        return plot(**{name: getattr(self, name) for name in self.plot_names})  # type: ignore[no-any-return]

    def save_options(self, kind: str) -> dict[str, object]:
        """Return the arguments of the result's `save` for a kind of file."""
        return {name: getattr(self, name) for name in self.save_names}

    def arguments(self) -> list[str]:
        """Return the arguments of the command for a job."""
        arguments: list[str] = []
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if value == info.default:
                continue
            if name in self.image_names:
                raise RequestError(422, subject=name, expected="no such option for jobs", got=repr(value)[:80])
            option = name.replace("_", "-")
            if isinstance(value, bool):
                arguments.append(f"--{option}" if value else f"--no-{option}")
            else:
                arguments += self._argument(name, f"--{option}", value)
        return arguments

    def _argument(self, name: str, option: str, value: Any) -> list[str]:
        """Return the arguments for one option that is not at its default."""
        values = value if isinstance(value, list) else [value]
        return [f"{option}={_text(one)}" for one in values]


class PeopleOptions(TaskOptions):
    """Options of tasks about people."""

    detect: Literal["whole"] | None = Field(
        None, description="whole: process the whole image instead of each person who is detected."
    )
    boxes: list[Box] | None = Field(None, description="Boxes of people, as JSON: [[x1, y1, x2, y2], …].")
    box_format: Literal["xyxy", "xywh"] = Field("xyxy", description="What the four numbers of a box are.")
    on_empty: Literal["whole", "none", "error"] | None = Field(
        None, description="If no person is detected: the whole image, an empty result, or an error."
    )
    max_people: int | None = Field(None, ge=1, description="Process no more people than this, by score.")

    def prompt_count(self) -> int:
        """Return the number of boxes."""
        return len(self.boxes or ())


class TileOptions(PeopleOptions):
    """Options of maps."""

    tile: int | bool | None = Field(
        None, description="Process large images in tiles of so many pixels; true for the size of the model's input."
    )
    overlap: float = Field(0.25, ge=0, le=MAX_TILE_OVERLAP, description="Share of a tile in common with the next.")

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


class PoseOptions(PeopleOptions):
    """Options of poses."""

    plot_names = frozenset({"threshold", "draw_boxes"})
    result_names = frozenset({"layout"})
    flip: bool = Field(False, description="Average with mirrored crops: more stable, at twice the work.")
    layout: Literal["sapiens308", "coco17", "coco133", "openpose"] = Field(
        "sapiens308", description="Which keypoints are returned and drawn."
    )
    threshold: Share = Field(0.3, description="Draw keypoints that reach this score.")
    draw_boxes: bool = Field(False, description="Draw the boxes of people too.")

    def convert(self, result: Result) -> Result:
        """Convert to the layout."""
        from vitruvian.results import Pose

        return result.to_layout(self.layout) if isinstance(result, Pose) and self.layout != "sapiens308" else result

    def draw(self, result: Result) -> NDArray[np.uint8] | Image.Image:
        """Draw skeletons."""
        plot: Any = result.plot
        return plot(threshold=self.threshold, boxes=self.draw_boxes)  # type: ignore[no-any-return]


class PartsOptions(TileOptions):
    """Options of body parts."""

    plot_names = frozenset({"opacity", "legend", "outline"})
    image_names = frozenset({"legend", "outline"})
    with_score: bool = Field(False, description="The score of each pixel too, in NPZ.")
    opacity: Share = Field(0.55, description="Of the colors in the drawing.")
    legend: bool = Field(True, description="Draw a legend beside the image.")
    outline: bool = Field(True, description="Draw outlines.")


class NormalsOptions(TileOptions):
    """Options of normals."""

    convention: Literal["opencv", "opengl"] = Field("opencv", description="The axes.")
    background: Literal["mask", "keep"] = Field("mask", description="mask: only people; keep: all pixels.")


class PointmapOptions(NormalsOptions):
    """Options of pointmaps."""

    save_names = frozenset({"mesh", "max_points"})
    image_names = frozenset({"mesh", "max_points"})
    renamed: ClassVar[Mapping[str, str]] = {"intrinsics": "K"}
    intrinsics: Box | None = Field(None, description="The camera, as JSON: [fx, fy, cx, cy] in pixels.")
    fov: float | None = Field(None, gt=0, lt=180, description="Horizontal field of view in degrees.")
    exif: bool = Field(True, description="Use the focal length in the file's EXIF.")
    mesh: bool = Field(False, description="Triangles in PLY and GLB, rather than points.")
    max_points: int | None = Field(None, ge=1, description="Points in PLY and GLB.")

    def call_options(self) -> dict[str, object]:
        """Make the camera matrix."""
        options = super().call_options()
        if self.intrinsics is not None:
            fx, fy, cx, cy = self.intrinsics
            options["K"] = [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]
        return options

    def save_options(self, kind: str) -> dict[str, object]:
        """Only point clouds have such options."""
        return {"mesh": self.mesh, "max_points": self.max_points} if kind in ("ply", "glb") else {}

    def _argument(self, name: str, option: str, value: Any) -> list[str]:
        if name == "intrinsics":
            return [f"{option}={_text(value)}"]
        return super()._argument(name, option, value)


class MatteOptions(TileOptions):
    """Options of mattes."""

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

    def draw(self, result: Result) -> NDArray[np.uint8] | Image.Image:
        """Draw people over the color, or over a checkerboard."""
        from vitruvian.results import Matte

        return result.over(self.over) if isinstance(result, Matte) and self.over is not None else result.plot()


class AlbedoOptions(TileOptions):
    """Options of albedo."""

    background: Literal["mask", "keep"] = Field("mask", description="mask: only people; keep: all pixels.")


class EmbedOptions(TaskOptions):
    """Features have no options."""


class MasksPostOptions(TaskOptions):
    """Options of masks of SAM 2, and of their drawing."""

    plot_names = frozenset({"opacity", "outline"})
    image_names = frozenset({"opacity", "outline"})
    max_hole_area: Area = Field(0.0, description="Fill holes of up to so many pixels.")
    max_sprinkle_area: Area = Field(0.0, description="Remove islands of up to so many pixels.")
    opacity: Share = Field(0.5, description="Of the colors in the drawing.")
    outline: bool = Field(True, description="Draw outlines.")


class SegmentOptions(MasksPostOptions):
    """Prompts in pixels of the upright image."""

    points: list[list[Point]] | None = Field(
        None, description="Points of each object, as JSON: [[[x, y], …], …]. [x, y] and [[x, y], …] are one object."
    )
    labels: list[list[Label]] | None = Field(None, description="1 on the object, 0 off it; nested like points.")
    boxes: list[Box] | None = Field(None, description="The box of each object, as JSON: [[x1, y1, x2, y2], …].")
    all_masks: bool = Field(False, description="All three proposals for each object, not the best.")
    mask_threshold: float = Field(0.0, description="Logit of the outline: higher is tighter.")
    result_names = frozenset({"all_masks"})

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, values: Any) -> Any:
        """Add the missing outer levels of prompts."""
        if not isinstance(values, dict):
            return values
        depths = {"points": 3, "labels": 2, "boxes": 2}
        return {name: _nested(_parsed(one), depths[name]) if name in depths else one for name, one in values.items()}

    def prompt_count(self) -> int:
        """Return the number of points and boxes."""
        return sum(len(one) for one in self.points or ()) + len(self.boxes or ())

    def call_options(self) -> dict[str, object]:
        """Add how many masks are proposed."""
        return super().call_options() | ({"best": False, "multimask": True} if self.all_masks else {})

    def _argument(self, name: str, option: str, value: Any) -> list[str]:
        if name == "labels":
            return []
        if name == "points":
            labels = self.labels or [[1] * len(rows) for rows in value]
            if [len(rows) for rows in labels] != [len(rows) for rows in value]:
                raise RequestError(422, subject="labels", expected="one for each point", got="others")
            pairs = [zip(rows, marks, strict=True) for rows, marks in zip(value, labels, strict=True)]
            return [f"{option}={' '.join(_text([*row, mark]) for row, mark in one)}" for one in pairs]
        return super()._argument(name, option, value)


class MaskGenerationOptions(MasksPostOptions):
    """How masks of everything are proposed."""

    renamed: ClassVar[Mapping[str, str]] = {
        "points_per_side": "points_per_crop",
        "quality": "pred_iou_thresh",
        "stability": "stability_score_thresh",
        "crop_layers": "crops_n_layers",
    }
    points_per_side: int = Field(32, ge=1, le=64, description="Points along each side of the grid.")
    quality: float = Field(0.88, description="Predicted IoU that a mask must exceed.")
    stability: float = Field(0.95, description="How little a mask may change with its threshold.")
    crop_layers: int = Field(0, ge=0, le=2, description="Process 4 or 16 crops too, for small things.")


class SemanticOptions(TaskOptions):
    """Options of classes."""

    plot_names = frozenset({"opacity", "legend", "outline"})
    image_names = frozenset({"legend", "outline"})
    opacity: Share = Field(0.55, description="Of the colors in the drawing.")
    legend: bool = Field(True, description="Draw a legend beside the image.")
    outline: bool = Field(True, description="Draw outlines.")


class InstancesOptions(TaskOptions):
    """What counts as an object."""

    plot_names = frozenset({"opacity", "outline"})
    image_names = frozenset({"opacity", "outline"})
    renamed: ClassVar[Mapping[str, str]] = {"keep_share": "overlap_mask_area_threshold"}
    threshold: Share = Field(0.5, description="Lowest score of an object.")
    mask_threshold: Share = Field(0.5, description="Lowest probability of a pixel in a mask.")
    keep_share: Share = Field(0.8, description="Share of its mask that an object must keep against others.")
    opacity: Share = Field(0.5, description="Of the colors in the drawing.")
    outline: bool = Field(True, description="Draw outlines.")


class PanopticOptions(InstancesOptions):
    """What counts as an object, and classes with one segment."""

    renamed: ClassVar[Mapping[str, str]] = {"fuse": "label_ids_to_fuse", **InstancesOptions.renamed}
    fuse: list[int] | None = Field(None, description="Classes of which there is one segment at most, as JSON: [0, 1].")
    opacity: Share = Field(0.6, description="Of the colors in the drawing.")


class VideoOptions(TaskOptions):
    """Options of jobs: what is written, and videos."""

    save: str | None = Field(
        None, max_length=100, pattern=r"^[a-z0-9.]+(,[a-z0-9.]+)*$", description="Kinds of files: json,mp4."
    )
    smooth: bool = Field(True, description="Smooth results over time.")
    sound: bool = Field(True, description="Keep the sound.")
    detect_every: int = Field(1, ge=1, description="Detect people in every so many frames, and track them in between.")


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


class TrackJobOptions(TaskOptions):
    """Options of tracking jobs."""

    prompts: list[TrackPromptFields] = Field([], description="What to track.")
    everyone: bool = Field(False, description="Detect people, and track each.")
    detect_every: int = Field(0, ge=0, description="With everyone, look for new people in every so many frames.")
    max_people: int | None = Field(None, ge=1, description="Detect no more people than this, by score.")
    cutout: bool = Field(False, description="Write the objects cut out, a video with alpha.")
    opacity: Share = Field(0.5, description="Of the colors in the drawing.")
    max_hole_area: Area = Field(0.0, description="Fill holes of up to so many pixels.")
    max_sprinkle_area: Area = Field(0.0, description="Remove islands of up to so many pixels.")
    no_overlap: bool = Field(False, description="Give each pixel to one object at most.")
    save: str | None = Field(
        None, max_length=100, pattern=r"^[a-z0-9.]+(,[a-z0-9.]+)*$", description="Kinds of files: mp4,json."
    )
    sound: bool = Field(True, description="Keep the sound.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.prompts and not self.everyone:
            raise ValueError("prompts, or everyone")
        return self

    def prompt_count(self) -> int:
        """Return the number of points and boxes."""
        return sum(len(one.points or ()) + (one.box is not None) for one in self.prompts)

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
                rows = [_text([*row, mark]) for row, mark in zip(prompt.points, labels, strict=True)]
                arguments.append(f"--points={where}{' '.join(rows)}")
        return arguments


IMAGE_OPTIONS: dict[str, type[TaskOptions]] = {
    "pose": PoseOptions,
    "parts": PartsOptions,
    "normals": NormalsOptions,
    "pointmap": PointmapOptions,
    "matte": MatteOptions,
    "albedo": AlbedoOptions,
    "embed": EmbedOptions,
    "segment": SegmentOptions,
    "masks": MaskGenerationOptions,
    "semantic": SemanticOptions,
    "instances": InstancesOptions,
    "panoptic": PanopticOptions,
}
JOB_OPTIONS: dict[str, type[TaskOptions]] = {
    task: create_model(f"{task.title()}JobOptions", __base__=(VideoOptions, options))
    for task, options in IMAGE_OPTIONS.items()
} | {"track": TrackJobOptions}


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
        depth, inner = depth + 1, inner[0] if inner else None
    for _ in range(levels - depth if depth else 0):
        value = [value]
    return value


def _text(value: object) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, list):
        return ",".join(_text(one) for one in value)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _sentence(message: str) -> str:
    """Return the message of a validation error as what was expected."""
    text = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return text[:1].lower() + text[1:]
