"""The table of options: one class per task. The command line and the server build their options from it.

A field declared with `option` is one of `vitruvian TASK` and of `POST /v1/TASK` too; `cli/commands/` and
`serving/task_requests.py` declare only what has another form there, such as boxes in a text. Options of how results are
drawn and written are in `output_options.py`. This module does not import torch: `vitruvian --help` reads it.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from vitruvian.config import Range
from vitruvian.errors import InputError, check_names
from vitruvian.models.sam2.options import MAX_CROP_LAYERS, AutomaticMaskOptions, Sam2SessionOptions
from vitruvian.tasks import Convention

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from vitruvian.pipelines.people.detectors import DetectorSpec
    from vitruvian.pipelines.save_option import ResultWriter
    from vitruvian.pipelines.video.track_prompt import TrackPrompt

T = TypeVar("T")
OptionsT = TypeVar("OptionsT", bound="Options")
Errors = Literal["keep", "raise"]
BoxFormat = Literal["xyxy", "xywh"]
OnEmpty = Literal["whole", "none", "error"]
Background = Literal["mask", "keep"]
MAX_TILE_OVERLAP = 0.75  # share of a tile's side that it has in common with the next
MIN_TILE_SIDE = 2  # pixels
_CONVENTION_HELP = "opencv: x right, y down, z away; opengl: x right, y up, z toward the viewer."
_HOLE_HELP, _ISLAND_HELP = "Fill holes up to this number of pixels.", "Remove islands up to this number of pixels."


# ------------------------------------------------------------------------------------------------ fields


class OptionInfo(NamedTuple):
    """What the command line and the server show of an option.

    Attributes:
        help: One or two sentences.
        name: Its name there, if it is not that of the field.
        basic: Whether `--help` shows it; `--help-all` shows all.
        range: Numbers that it takes.
        cli: Whether the command line has it.
        http: Whether the server has it.
    """

    help: str
    name: str | None
    basic: bool
    range: Range
    cli: bool
    http: bool


def option(
    default: T,
    help: str,
    *,
    name: str | None = None,
    basic: bool = False,
    ge: float = -math.inf,
    gt: float = -math.inf,
    le: float = math.inf,
    lt: float = math.inf,
    cli: bool = True,
    http: bool = True,
) -> T:
    """Declare a field that the command line and the server have too; see `OptionInfo`."""
    info = OptionInfo(help, name, basic, Range(ge, gt, le, lt), cli, http)
    declared: Any = dataclasses.field(default=default, metadata={"option": info})
    return declared  # type: ignore[no-any-return]


class OptionRow(NamedTuple):
    """An option as the command line and the server have it.

    Attributes:
        name: Its name there.
        argument: The field.
        type: Type of its values.
        default: Its default.
        panel: Heading in the help.
        info: What is shown.
    """

    name: str
    argument: str
    type: Any
    default: Any
    panel: str | None
    info: OptionInfo


@functools.cache
def option_rows(*classes: type) -> tuple[OptionRow, ...]:
    """Return the options of classes, fields declared with `option`; those of base classes first."""
    rows = []
    for cls in classes:
        bases = cls.__mro__[::-1]
        panels = {name: vars(base).get("panel") for base in bases for name in vars(base).get("__annotations__", ())}
        for field in dataclasses.fields(cls):
            info: OptionInfo | None = field.metadata.get("option")
            if info is not None:
                panel = panels[field.name]
                rows.append(OptionRow(info.name or field.name, field.name, field.type, field.default, panel, info))
    return tuple(rows)


def _choices(kind: object) -> tuple[object, ...]:
    """Return the values of a type that consists of literals, and perhaps None; else nothing."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    parts = typing.get_args(kind) if is_union else (kind,)
    if not all(part is types.NoneType or typing.get_origin(part) is Literal for part in parts):
        return ()
    return tuple(value for part in parts for value in typing.get_args(part) or (None,))


@functools.cache
def _allowed_values(cls: type) -> tuple[tuple[str, tuple[object, ...], Range], ...]:
    """Return the literals and the range of each field of a dataclass."""
    options = ((field, field.metadata.get("option")) for field in dataclasses.fields(cls))
    return tuple((field.name, _choices(field.type), info.range if info else Range()) for field, info in options)


def _check_option_fields(options: Any) -> None:
    """Raise `InputError` for a field of a dataclass that is none of its literals, or out of its range."""
    for name, choices, allowed in _allowed_values(type(options)):  # type: ignore[arg-type]
        value = getattr(options, name)
        if choices and value not in choices:
            *names, last = [f'"{choice}"' for choice in choices if choice is not None]
            raise InputError(f"{name}: expected {', '.join(names)} or {last}, got {value!r}.")
        if isinstance(value, int | float) and value not in allowed:
            raise InputError(f"{name}: expected {allowed}, got {value!r}.")


# ------------------------------------------------------------------------------------------------ every pipeline


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

    panel: ClassVar[str | None] = None  # heading in the help of the fields that a class declares
    exclusive: ClassVar[tuple[str, ...]] = ()  # options of which one in a call replaces the others of the pipeline

    batch_size: int | Literal["auto"] = "auto"
    workers: int | None = None
    errors: Errors = "keep"
    save: "Callable[[Any], object] | str | Path | ResultWriter | None" = None
    keep_image: bool = True
    batch_timeout: float = 0.5
    optimize: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        _check_option_fields(self)
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers: expected at least 1, got {self.workers}.")
        if self.optimize not in (True, False, "auto"):
            raise InputError(f'optimize: expected True, False or "auto", got {self.optimize!r}.')
        check_batch_size(self.batch_size)


def check_batch_size(size: object) -> None:
    """Raise `InputError` for a batch size that is neither "auto" nor an integer of at least 1."""
    if size != "auto" and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise InputError(f'batch_size: expected an integer of at least 1, or "auto", got {size!r}.')


def replace_options(options: OptionsT, changes: Mapping[str, Any]) -> OptionsT:
    """Return options with changes.

    Raises:
        InputError: There is no such option, or it has no such value.
    """
    check_names("options", changes, [field.name for field in dataclasses.fields(options)])
    if any(_selects(changes.get(name)) for name in options.exclusive):
        changes = dict.fromkeys(options.exclusive) | dict(changes)
    return dataclasses.replace(options, **changes) if changes else options


def _selects(value: object) -> bool:
    """Return whether the value of an exclusive option is neither None nor, as for `tile`, False or 0."""
    return value is not None and not (isinstance(value, int) and value == 0)


def nesting_depth(values: object) -> int:
    """Return the number of dimensions of an array or tensor, or the levels of nested lists."""
    if isinstance(values, list | tuple):
        return 1 + max((nesting_depth(value) for value in values), default=0)
    return getattr(values, "ndim", 0)


# ------------------------------------------------------------------------------------------------ people


@dataclass(frozen=True, kw_only=True)
class PeopleOptions(Options):
    """Which people a task about people processes.

    Args:
        boxes: Bounding boxes of people: [P, 4] for one image or for all, a list of those (one per image), or a mapping
            of file name → boxes. Coordinates are pixels of the upright image.
        box_format: The four numbers of a box: "xyxy" (corners) or "xywh" (corner, width and height, as in COCO).
        detect: The people detector: whatever `vitruvian.pipelines.people.open_detector` takes, such as "builtin"; or
            "whole" to process the whole image without detection. By default the model itself if it detects people,
            else the built-in detector.
        detect_threshold: Lowest score of a person; by default the detector's. Ignored for detectors that are open.
        on_empty: What to do if the detector finds no people: "whole" processes the whole image, "none" returns an empty
            result, "error" raises. By default "none" for poses, "whole" for maps. See `people.note` of the result.
        max_people: Maximum number of people, by score.
    """

    panel = "People"
    exclusive: ClassVar[tuple[str, ...]] = ("boxes", "detect")

    boxes: "ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike] | None" = None
    detect: "DetectorSpec | None" = None
    # Not over HTTP: the server would open a detector for each threshold.
    detect_threshold: float | None = option(
        None, "Minimum score of a detected person (default: the detector's; 0.1 for video).",
        name="threshold", basic=True, ge=0, le=1, http=False,
    )  # fmt: skip
    box_format: BoxFormat = option("xyxy", "Box format: corners, or x, y, width, height.")
    on_empty: OnEmpty | None = option(
        None, "If no person is detected: process the whole image, write an empty result, or fail (default: none for "
        "pose, whole otherwise).",
    )  # fmt: skip
    max_people: int | None = option(None, "Maximum number of people, by score.", ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes_whole_image and self.boxes is not None:
            raise InputError('boxes: expected boxes or detect="whole", got both. Drop one of them.')

    @property
    def processes_whole_image(self) -> bool:
        """Whether `detect` asks for the whole image."""
        return isinstance(self.detect, str) and self.detect == "whole"


@dataclass(frozen=True, kw_only=True)
class PoseOptions(PeopleOptions):
    """Options of poses.

    Args:
        flip: Test-time augmentation: average with the mirrored image. Twice the work for slightly better keypoints.
        kernel_size: Size of the Gaussian that smooths heatmaps before keypoints are refined.
    """

    panel = "Poses"

    flip: bool = option(False, "Average with the mirrored crop; takes twice as long.")
    kernel_size: int = 11


@dataclass(frozen=True, kw_only=True)
class DenseOptions(PeopleOptions):
    """Options of dense predictions.

    Args:
        tile: Process large images in tiles of this many pixels: a number, (height, width), or True for the size of the
            model's input. An image that is not larger than a tile is processed whole.
        overlap: Minimum share of a tile's side that it has in common with the next.
        feather: Share of a person's crop, at each edge, over which its weight falls to zero.
        refine: Whether to sharpen outlines along the edges of the image (guided upsampling), where it is much larger
            than the map of the model, and to take the colors of mattes from it. False upsamples the map bilinearly, as
            the reference does.
    """

    panel = "Model"
    exclusive: ClassVar[tuple[str, ...]] = (*PeopleOptions.exclusive, "tile")

    tile: int | Sequence[int] | bool | None = None
    overlap: float = option(0.25, "Overlap of adjacent tiles, as a fraction of their side.", ge=0, le=MAX_TILE_OVERLAP)
    feather: float = 0.1
    refine: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile and (self.boxes is not None or (self.detect is not None and not self.processes_whole_image)):
            raise InputError(
                "tile: expected tiles, which cover the whole image, or boxes or detect, got both. Drop one of them."
            )


@dataclass(frozen=True, kw_only=True)
class MaskedOptions(DenseOptions):
    """Options of maps that mean little on the background.

    Args:
        background: "mask" leaves it out, if the checkpoint has a matting head, as the built-in model does; "keep"
            returns the map of everything that was processed.
    """

    panel = "Background"

    background: Background = option(
        "mask", "mask: remove the background if the checkpoint can (builtin can); keep: keep it."
    )


@dataclass(frozen=True, kw_only=True)
class PartsOptions(DenseOptions):
    """Options of body parts.

    Args:
        with_score: Whether the result has the model's confidence in each pixel.
    """

    panel = "Parts"

    with_score: bool = option(False, "Write the score of each pixel to NPZ.")


@dataclass(frozen=True, kw_only=True)
class NormalsOptions(MaskedOptions):
    """Options of normals.

    Args:
        convention: "opengl" (the default: x right, y up, z toward the viewer, as the model has it) or "opencv" (x
            right, y down, z away, as pointmaps have it).
    """

    panel = "Normals"

    convention: Convention = option("opengl", _CONVENTION_HELP, basic=True)


def intrinsics_matrix(fx: float, fy: float, cx: float, cy: float) -> list[list[float]]:
    """Return the camera matrix K [3, 3] of focal lengths and a principal point in pixels."""
    return [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]


@dataclass(frozen=True, kw_only=True)
class PointmapOptions(MaskedOptions):
    """Options of pointmaps: what is known about the camera.

    Args:
        K: Camera matrix [3, 3] in pixels of the upright image, the center of the first pixel being (0, 0); or one for
            each image [N, 3, 3].
        fov: Horizontal field of view in degrees.
        exif: Whether to use the focal length in a file's EXIF block, if there is neither `K` nor `fov`.
        convention: "opencv" (the default: x right, y down, z away) or "opengl" (x right, y up, z toward the viewer).
    """

    panel = "Camera"

    K: "ArrayLike | None" = None
    fov: float | None = option(None, "Horizontal field of view in degrees.", basic=True, gt=0, lt=180)
    exif: bool = option(True, "Use the focal length in the EXIF data of the file.")
    convention: Convention = option("opencv", _CONVENTION_HELP)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fov is not None and not isinstance(self.fov, int | float):
            raise InputError(f"fov: expected degrees, got {self.fov!r:.80}.")
        if self.K is not None and self.fov is not None:
            raise InputError("K and fov: expected one of them, got both. Drop one of them.")


# ------------------------------------------------------------------------------------------------ SAM 2


@dataclass(frozen=True, kw_only=True)
class PromptOptions(Options):
    """Prompts in pixels of the upright image, the same for every image, and post-processing of the masks.

    Args:
        points: A point [x, y], the points of one object [[x, y], …], or those of several [[[x, y], …], …].
        labels: For each point, nested alike: 1 on the object (the default), 0 off it.
        boxes: A box [x1, y1, x2, y2], or one for each object.
        masks: An initial mask [h, w], or one for each object [P, h, w]: logits of an earlier call or binary masks.
        multimask: Propose three masks for each object and take the best. By default if every object has one point and
            nothing else, which is ambiguous between a part and the whole.
        best: Whether to keep only the best of three.
        mask_threshold: Logit above which a pixel is on the object.
        max_hole_area: Holes of up to this many pixels are filled.
        max_sprinkle_area: Islands of up to this many pixels are removed.
    """

    panel = "Prompts and masks"

    points: "ArrayLike | None" = None
    labels: "ArrayLike | None" = None
    boxes: "ArrayLike | None" = None
    masks: "ArrayLike | None" = None
    multimask: bool | None = None
    best: bool = True
    mask_threshold: float = option(0.0, "Mask logit threshold; higher gives smaller masks.")
    max_hole_area: float = option(0.0, _HOLE_HELP, ge=0)
    max_sprinkle_area: float = option(0.0, _ISLAND_HELP, ge=0)


@dataclass(frozen=True, kw_only=True)
class MasksOptions(Options, AutomaticMaskOptions):
    """Options of every pipeline, and of `AutomaticMaskOptions`: how masks are proposed and selected.

    Args:
        output_bboxes_mask: As in Transformers; ``result["bounding_boxes"]`` is there whatever its value.
    """

    panel = "Masks"

    points_per_crop: int = option(32, "Points along each side of the grid.", name="points_per_side", basic=True, ge=1)
    points_per_batch: int | None = option(64, "Points in a batch.", ge=1, http=False)
    pred_iou_thresh: float = option(0.88, "Minimum predicted IoU of a mask.", name="quality", basic=True)
    stability_score_thresh: float = option(
        0.95, "Minimum stability score of a mask (IoU of the mask at a higher and a lower threshold).", name="stability"
    )
    crops_n_layers: int = option(
        0, "Crop layers for small objects (1: 4 crops, 2: 16 more, …).", name="crop_layers", ge=0, le=MAX_CROP_LAYERS
    )
    output_bboxes_mask: bool = False
    max_hole_area: float = option(0.0, _HOLE_HELP, ge=0)
    max_sprinkle_area: float = option(0.0, _ISLAND_HELP, ge=0)

    def __post_init__(self) -> None:
        AutomaticMaskOptions.__post_init__(self)
        Options.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class TrackOptions(Options, Sam2SessionOptions):
    """What to track and how. Includes the fields of `Sam2SessionOptions`, with other defaults than Transformers.

    Args:
        prompts: Prompts of objects; more can be added while the video runs, see `TrackResults`. An empty list starts
            without objects.
        detect: A people detector, whatever `vitruvian.pipelines.people.open_detector` takes. Each person that it
            detects is tracked, with an id that no object had before and no prompt has.
        detect_every: Run detection every N frames and add people whose box or mask is not that of a tracked object. 0
            detects until a frame has people, and then no more.
        forget_after: With `detect_every`, forget a detected person who is not visible for this many frames; 0 never
            does. People with prompts are not forgotten.
        max_people: Maximum number of people that are detected in a frame, by score.
        interactive: Whether the model waits until a result is taken before it processes the next frame, so that
            prompts can be added for the frame of that result. Without it the model runs ahead, which is faster.
        mask_threshold: Logit above which a pixel is on the object.
    """

    panel = "Prompts and masks"

    prompts: "TrackPrompt | Sequence[TrackPrompt] | None" = None
    detect: "DetectorSpec | None" = None
    detect_every: int = option(
        0, "With everyone: detect new people every N frames; 0 stops after the first frame with people.", ge=0
    )
    forget_after: int = option(
        300, "With detect-every: forget a person who is not visible for this many frames; 0 never does.", ge=0
    )
    max_people: int | None = option(None, "Maximum number of detected people, by score.", ge=1)
    interactive: bool = True
    mask_threshold: float = 0.0
    # fields of Sam2SessionOptions, whose docstring has them
    prior_logits: bool = True
    corrections_as_conditioning: bool = True
    independent_objects: bool = True
    objects_start_at_prompt: bool = True
    ignore_padding: bool = True
    keep_history: bool = False
    max_hole_area: float = option(0.0, _HOLE_HELP, ge=0)
    max_sprinkle_area: float = option(0.0, _ISLAND_HELP, ge=0)
    non_overlapping_masks: bool = option(False, "Assign each pixel to at most one object.", name="no_overlap")

    def __post_init__(self) -> None:
        from vitruvian.pipelines.video.track_prompt import TrackPrompt

        super().__post_init__()
        Sam2SessionOptions.__post_init__(self)
        for prompt in self.prompt_list:
            if not isinstance(prompt, TrackPrompt):
                raise InputError(f"prompts: expected TrackPrompt objects, got {type(prompt).__name__}.")

    @property
    def prompt_list(self) -> "list[TrackPrompt]":
        """The prompts as a list."""
        return list(self.prompts) if isinstance(self.prompts, Sequence) else [self.prompts] if self.prompts else []


# ------------------------------------------------------------------------------------------------ Mask2Former


@dataclass(frozen=True, kw_only=True)
class QueryThresholdOptions(Options):
    """Which queries become segments, in instance and panoptic segmentation.

    Args:
        threshold: Lowest score of an object.
        mask_threshold: Lowest probability of a pixel in a mask.
        overlap_mask_area_threshold: Minimum share of its mask that an object keeps against others.
    """

    panel = "Objects"

    threshold: float = option(0.5, "Minimum score of an object.", basic=True, ge=0, le=1)
    mask_threshold: float = option(0.5, "Minimum probability of a pixel of a mask.", ge=0, le=1)
    overlap_mask_area_threshold: float = option(
        0.8, "Minimum fraction of its mask that an object keeps after overlaps are removed.",
        name="keep_share", ge=0, le=1,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PanopticOptions(QueryThresholdOptions):
    """Options of panoptic segmentation.

    Args:
        label_ids_to_fuse: Classes with at most one segment, such as sky.
    """

    panel = "Objects"

    label_ids_to_fuse: list[int] | None = option(
        None, "Id of a class whose segments are merged into one, such as that of sky. Repeat for more.", name="fuse"
    )
