"""The options that commands share, in groups as `--help` shows them, and the reading of their texts."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args, get_type_hints

from typer import Argument, Option
from typer.models import OptionInfo

from vitruvian.errors import InputError
from vitruvian.pipelines.limits import LEAST_TILE, MOST_OVERLAP

RESULTS, MODEL, PEOPLE, OBJECTS = "Results", "Model", "People", "Objects"  # panels of the help
VIDEO, MESSAGES = "Video and cameras", "Messages"
STDIO = "-"
# argument of the library -> the field whose option stands for it, where their names differ
_OTHER_NAMES = {
    "K": "intrinsics",
    "background": "over",
    "crops_n_layers": "crop_layers",
    "input_boxes": "boxes",
    "input_points": "points",
    "label_ids_to_fuse": "fuse",
    "overlap_mask_area_threshold": "keep_share",
    "points_per_crop": "points_per_side",
    "pred_iou_thresh": "quality",
    "size_hw": "size",
    "stability_score_thresh": "stability",
    "tile_hw": "tile",
}


def devices() -> list[str]:
    """Names to complete --device with."""
    return ["cpu", "cuda", "cuda:0", "mps"]


def dtypes() -> list[str]:
    """Names to complete --dtype with."""
    return ["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What to look at."""

    sources: Annotated[
        list[str],
        Argument(
            metavar="SOURCE",
            show_default=False,
            help="Pictures, folders, globs, addresses (https://…), videos, frame_%04d.png, camera:0, or - for a "
            "picture on standard input.",
        ),
    ]
    recursive: Annotated[bool, Option("--recursive", "-r", help="Look into folders inside folders too.")] = False
    watch: Annotated[
        bool,
        Option("--watch", help="Keep looking at the folders: new files are taken once they are whole. Ctrl-C ends."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Results:
    """Where results go, and in which form."""

    out: Annotated[
        str | None,
        Option(
            "--out",
            "-o",
            help="Folder for results; a file's name for one source; - for standard output. By default the folder out, "
            "and standard output where the source is -.",
            show_default=False,
            rich_help_panel=RESULTS,
        ),
    ] = None
    save: Annotated[
        str | None,
        Option(
            "--save",
            "-s",
            help="What to write, with commas between: the text above names all. By default what suits the task.",
            show_default=False,
            rich_help_panel=RESULTS,
        ),
    ] = None
    overwrite: Annotated[
        bool, Option("--overwrite", help="Do again what is done already.", rich_help_panel=RESULTS)
    ] = False


@dataclass(frozen=True, kw_only=True)
class Coco:
    """One dataset of everything."""

    coco: Annotated[
        Path | None,
        Option(help="Gather all results into one COCO dataset, a .json file.", rich_help_panel=RESULTS),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which model, and how it runs."""

    model: Annotated[
        str | None,
        Option(
            "--model",
            "-m",
            help="Name on the Hub, folder, weight file, or builtin. `vitruvian models list` names some.",
            show_default=False,
            rich_help_panel=MODEL,
        ),
    ] = None
    revision: Annotated[
        str | None, Option(help="Branch, tag or commit on the Hub.", show_default=False, rich_help_panel=MODEL)
    ] = None
    device: Annotated[
        str | None,
        Option(
            help="cuda, cuda:1, mps or cpu. By default the best one here.",
            show_default=False,
            rich_help_panel=MODEL,
            autocompletion=devices,
        ),
    ] = None
    dtype: Annotated[
        str | None,
        Option(
            help="float32, bfloat16 or float16. By default what suits the device.",
            show_default=False,
            rich_help_panel=MODEL,
            autocompletion=dtypes,
        ),
    ] = None
    workers: Annotated[
        int | None,
        Option(help="Threads that read, prepare and write.", min=1, show_default="2 to 4", rich_help_panel=MODEL),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How many inputs the model gets at a time."""

    batch_size: Annotated[
        str,
        Option(help="Inputs at once: a number, or auto, which shrinks when memory runs out.", rich_help_panel=MODEL),
    ] = "auto"

    def call_options(self) -> dict[str, object]:
        """Return the options of the pipeline's call."""
        if self.batch_size == "auto":
            return {"batch_size": "auto"}
        if not self.batch_size.isdigit() or int(self.batch_size) < 1:
            raise InputError(f"--batch-size: expected a number of at least 1, or auto, got {self.batch_size!r}.")
        return {"batch_size": int(self.batch_size)}


@dataclass(frozen=True, kw_only=True)
class People:
    """Who is looked at."""

    people: Annotated[
        Literal["crop", "whole"] | None,
        Option(
            help="crop: each person on their own; whole: the whole picture. By default crop where there are --boxes "
            "or a --finder.",
            show_default=False,
            rich_help_panel=PEOPLE,
        ),
    ] = None
    finder: Annotated[
        str | None,
        Option(
            help="Who finds people: builtin, a Mask2Former or MaskFormer trained on COCO (folder or Hub name), or a "
            "YOLOX or RTMDet file (.onnx).",
            show_default=False,
            rich_help_panel=PEOPLE,
        ),
    ] = None
    finder_threshold: Annotated[
        float | None,
        Option(
            help="Lowest score of a person. By default the finder's own, and 0.1 in videos, where people are followed.",
            min=0,
            max=1,
            show_default=False,
            rich_help_panel=PEOPLE,
        ),
    ] = None
    boxes: Annotated[
        list[str] | None,
        Option(
            help="Boxes of people: x1,y1,x2,y2 for all pictures (repeat for more people), or a file: COCO .json, "
            "JSON of file names and lists of x, y, w, h, or .csv.",
            show_default=False,
            rich_help_panel=PEOPLE,
        ),
    ] = None
    box_form: Annotated[
        Literal["xyxy", "xywh"], Option(help="What the four numbers of --boxes are.", rich_help_panel=PEOPLE)
    ] = "xyxy"
    nobody: Annotated[
        Literal["whole", "none", "error"] | None,
        Option(
            help="When nobody is found: look at the whole picture, write an empty result, or fail. By default none for "
            "poses and whole for maps.",
            show_default=False,
            rich_help_panel=PEOPLE,
        ),
    ] = None
    max_people: Annotated[
        int | None,
        Option(help="Look at no more people, the surest first.", min=1, show_default=False, rich_help_panel=PEOPLE),
    ] = None

    def call_options(self) -> dict[str, object]:
        """Return the options of the pipeline's call, without the detector."""
        options: dict[str, object] = {"box_form": self.box_form, "nobody": self.nobody, "max_people": self.max_people}
        if self.boxes and self.boxes_file() is None:
            options["boxes"] = [read_numbers("--boxes", text, 4) for text in self.boxes]
        return options | {"people": self.people}

    def boxes_file(self) -> Path | None:
        """Return the file that --boxes names, if it does."""
        files = [Path(text).expanduser() for text in self.boxes or () if text.lower().endswith((".json", ".csv"))]
        if files and len(self.boxes or ()) > 1:
            raise InputError("--boxes: expected one file, or boxes x1,y1,x2,y2, got several. Put them into one file.")
        return files[0] if files else None


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Very large pictures."""

    tile: Annotated[
        str | None,
        Option(
            help="Look at large pictures in tiles of so many pixels: 1024, 1024x768 (height x width), or auto for the "
            "size of the model's input.",
            show_default=False,
            rich_help_panel=MODEL,
        ),
    ] = None
    overlap: Annotated[
        float,
        Option(
            help="Share of a tile that it has in common with the next.",
            min=0,
            max=MOST_OVERLAP,
            rich_help_panel=MODEL,
        ),
    ] = 0.25

    def call_options(self) -> dict[str, object]:
        """Return the options of the pipeline's call."""
        return {"tile": self._tile(), "overlap": self.overlap}

    def _tile(self) -> int | tuple[int, int] | bool | None:
        if self.tile is None or self.tile == "auto":
            return None if self.tile is None else True
        size = re.fullmatch(r"(\d+)(?:[x×](\d+))?", self.tile)
        if not size or min(int(side) for side in size.groups() if side) < LEAST_TILE:
            raise InputError(
                "--tile: expected pixels such as 1024 or 1024x768 (height x width), at least "
                f"{LEAST_TILE}, or auto, got {self.tile!r}."
            )
        return (int(size[1]), int(size[2])) if size[2] else int(size[1])


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What counts as an object."""

    threshold: Annotated[float, Option(help="Lowest score of an object.", min=0, max=1, rich_help_panel=OBJECTS)] = 0.5
    mask_threshold: Annotated[
        float, Option(help="Lowest probability of a pixel in a mask.", min=0, max=1, rich_help_panel=OBJECTS)
    ] = 0.5
    keep_share: Annotated[
        float,
        Option(
            help="Share of its mask that an object must keep against others.", min=0, max=1, rich_help_panel=OBJECTS
        ),
    ] = 0.8

    def call_options(self) -> dict[str, object]:
        """Return the options of the pipeline's call."""
        return {
            "threshold": self.threshold,
            "mask_threshold": self.mask_threshold,
            "overlap_mask_area_threshold": self.keep_share,
        }


@dataclass(frozen=True, kw_only=True)
class Video:
    """What is special about videos and cameras."""

    smooth: Annotated[bool, Option(help="Steady results over time.", rich_help_panel=VIDEO)] = True
    sound: Annotated[bool, Option(help="Keep the sound.", rich_help_panel=VIDEO)] = True
    detect_every: Annotated[
        int,
        Option(
            help="Look for people in every so many frames, and follow them in between.", min=1, rich_help_panel=VIDEO
        ),
    ] = 1
    preview: Annotated[
        Path | None,
        Option(
            help="Picture (.jpg, .png) that shows the latest frame while it runs.",
            show_default=False,
            rich_help_panel=VIDEO,
        ),
    ] = None
    frames: Annotated[
        int | None, Option(help="Stop a camera after so many frames.", min=1, show_default=False, rich_help_panel=VIDEO)
    ] = None


@dataclass(frozen=True, kw_only=True)
class Messages:
    """What is said while it runs."""

    json: Annotated[
        bool,
        Option(
            "--json", help="One line of JSON a source on standard output, then a summary.", rich_help_panel=MESSAGES
        ),
    ] = False
    quiet: Annotated[bool, Option("--quiet", "-q", help="Say nothing but errors.", rich_help_panel=MESSAGES)] = False
    debug: Annotated[bool, Option("--debug", help="Show where errors came from.", rich_help_panel=MESSAGES)] = False


# ------------------------------------------------------------------------------------------------ texts of options


def read_numbers(option: str, text: str, *counts: int) -> list[float]:
    """Read numbers with commas between, as many as one of `counts`."""
    try:
        found = [float(word) for word in text.replace(" ", "").split(",")]
    except ValueError:
        found = []
    if len(found) not in counts:
        number = " or ".join(str(count) for count in counts)
        raise InputError(f"{option}: expected {number} numbers with commas between, got {text!r}.")
    return found


def read_size(option: str, text: str, *, example: str) -> tuple[int, int]:
    """Read a height and a width, such as 1024x768."""
    found = re.fullmatch(r"(\d+)[x×](\d+)", text)
    if not found:
        raise InputError(f"{option}: expected height x width such as {example}, got {text!r}.")
    return int(found[1]), int(found[2])


# ------------------------------------------------------------------------------------------------ groups -> options


def flatten_options(
    command: Callable[..., None], groups: Sequence[tuple[str, type]] | None = None
) -> Callable[..., None]:
    """Return a command that typer can read, for one whose parameters are option groups (dataclasses).

    Each field of a group becomes an option with the field's annotation and default; other parameters stay. While the
    command runs, `report.option_names` has the options by the arguments that errors are about.

    Args:
        command: The command.
        groups: Names and classes of its parameters; by default those of its signature.
    """
    from vitruvian.cli.report import option_names

    parameters: list[inspect.Parameter] = []
    fields_of: dict[str, tuple[Callable[..., object], list[str]]] = {}
    if groups is None:
        hints = get_type_hints(command, include_extras=True)
        plain = inspect.signature(command).parameters.values()
        parameters += [one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY) for one in plain]
    for group_name, group in groups or ():
        hints = get_type_hints(group, include_extras=True)
        fields = [field for field in dataclasses.fields(group) if field.init]
        fields_of[group_name] = group, [field.name for field in fields]
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields
        ]
    names = _option_names(parameters)

    def flat(**values: object) -> None:
        typed = values.get("sources")
        option_names.set({key: name for key, name in names.items() if not isinstance(typed, list) or key not in typed})
        grouped = {
            name: group(**{field: values.pop(field) for field in fields}) for name, (group, fields) in fields_of.items()
        }
        command(**grouped, **values)

    flat.__doc__ = command.__doc__
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _option_names(parameters: Sequence[inspect.Parameter]) -> dict[str, str]:
    """Return the long option of each parameter, also by the library's name for it."""
    names: dict[str, str] = {}
    for parameter in parameters:
        for info in get_args(parameter.annotation)[1:]:
            if isinstance(info, OptionInfo):
                long = [word for word in info.param_decls or () if word.startswith("--")]
                names[parameter.name] = long[0] if long else f"--{parameter.name.replace('_', '-')}"
    return names | {key: names[field] for key, field in _OTHER_NAMES.items() if field in names and key not in names}
