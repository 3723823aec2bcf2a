"""The options that commands share, in groups as `--help` shows them, and the reading of their texts."""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from typer import Argument, Context, Option

from vitruvian.errors import InputError
from vitruvian.hub import BUILTIN
from vitruvian.pipelines.options import MIN_TILE_SIDE, OptionRow, option_rows
from vitruvian.pipelines.output_options import CommonVideoOptions

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
MODEL = "Model"  # panel of the help
STDIO = "-"
# argument of the library -> the option that stands for it, where that is not in the table of options
_OPTION_OF_ARGUMENT = {
    "K": "intrinsics",
    "background": "over",
    "label_ids_to_fuse": "fuse",
    "size_hw": "size",
    "tile_hw": "tile",
}


def _complete_model(context: Context, incomplete: str) -> list[str]:
    """Return what the name of a model may be completed to: checkpoints for the command, and folders."""
    from vitruvian.cli.known_checkpoints import known_checkpoints

    names = [BUILTIN, *(known.name for known in known_checkpoints() if context.info_name in known.commands)]
    folder, _, start = incomplete.rpartition("/")
    with suppress(OSError):
        prefix = f"{folder}/" if "/" in incomplete else ""
        folders = [path.name for path in Path(prefix or ".").expanduser().iterdir() if path.is_dir()]
        names += [f"{prefix}{name}" for name in sorted(folders) if not name.startswith(".") or start.startswith(".")]
    return [name for name in names if name.startswith(incomplete)]


DeviceOption = Annotated[
    str | None,
    Option(
        help="cuda, cuda:1, mps or cpu.",
        show_default="cuda, else mps, else cpu",
        rich_help_panel=MODEL,
        autocompletion=lambda: ["cpu", "cuda", "cuda:0", "mps"],
    ),
]
DtypeOption = Annotated[
    str | None,
    Option(
        help="float32, bfloat16 or float16. By default bfloat16 on GPUs that support it, else float32.",
        rich_help_panel=MODEL,
        autocompletion=lambda: ["float32", "bfloat16", "float16"],
    ),
]
CudaDevice = Annotated[str | None, Option(help="cuda or cpu. By default cuda if available.")]
Json = Annotated[bool, Option("--json", help="Print JSON on standard output.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print errors only.")]
Debug = Annotated[bool, Option("--debug", help="Print tracebacks of errors.")]


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def with_options(*tables: type) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass with a field for each option of tables, beside those that it declares."""

    def decorate(cls: type[T]) -> type[T]:
        annotations = vars(cls).get("__annotations__", {})
        for row in option_rows(*tables):
            if row.info.cli:
                annotations[row.name] = Annotated[row.type, _typer_option(row)]
                setattr(cls, row.name, dataclasses.field(default=row.default, metadata={"row": row}))
        cls.__annotations__ = annotations
        return dataclass(frozen=True, kw_only=True)(cls)

    return decorate


def _typer_option(row: OptionRow) -> Any:
    """Return the option of the command line for a row of the table."""
    allowed, flags = row.info.range, [f"--{row.name.replace('_', '-')}"] if row.default is False else []
    smallest, largest = (bound if math.isfinite(bound) else None for bound in (allowed.ge, allowed.le))
    if row.type in (int, int | None):
        smallest, largest = (None if bound is None else int(bound) for bound in (smallest, largest))
    return Option(*flags, help=row.info.help, min=smallest, max=largest)


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options of a command as the fields of a dataclass. A command inherits the groups that it has.

    Attributes:
        panel: The panel of the help that the fields of this class are under.
        basic: Fields of this class that `--help` shows; `--help-all` shows all.
    """

    panel: ClassVar[str | None] = None
    basic: ClassVar[tuple[str, ...]] = ()

    def call_options(self) -> dict[str, object]:
        """Return the arguments of the pipeline's call."""
        return {}


@dataclass(frozen=True, kw_only=True)
class SourceGroup(OptionGroup):
    """What to process."""

    basic: ClassVar[tuple[str, ...]] = ("sources", "recursive")
    sources: Annotated[
        list[str],
        Argument(
            metavar="SOURCE",
            show_default=False,
            help="Images, folders, globs, URLs, videos, image sequences (frame_%04d.png), cameras (camera:0), or - "
            "for an image on standard input.",
        ),
    ]
    recursive: Annotated[bool, Option("--recursive", "-r", help="Include subfolders.")] = False
    limit: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Set an input limit, e.g. image_pixels=4e8. Repeatable; `vitruvian doctor` lists them.",
        ),
    ] = None
    watch: Annotated[bool, Option("--watch", help="Wait for new files in the folders, until Ctrl-C.")] = False


@dataclass(frozen=True, kw_only=True)
class OutputGroup(OptionGroup):
    """Where results go, and in which form."""

    panel = "Results"
    basic: ClassVar[tuple[str, ...]] = ("out", "save", "overwrite")
    out: Annotated[
        str | None,
        Option(
            "--out",
            "-o",
            help="Output folder; a file name for a single source; - for standard output. By default out, or standard "
            "output if the source is -.",
        ),
    ] = None
    save: Annotated[
        str | None,
        Option(
            "--save",
            "-s",
            help="Comma-separated output formats (listed above). The default depends on the task.",
        ),
    ] = None
    overwrite: Annotated[
        bool, Option("--overwrite", help="Process finished sources again and replace their files.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class CocoGroup(OptionGroup):
    """Options for a COCO dataset."""

    panel = "Results"
    coco: Annotated[Path | None, Option(help="Collect all results in one COCO dataset, a .json file.")] = None


@dataclass(frozen=True, kw_only=True)
class ModelGroup(OptionGroup):
    """Which model, and how it runs."""

    panel = MODEL
    basic: ClassVar[tuple[str, ...]] = ("model", "device")
    model: Annotated[
        str | None,
        Option(
            "--model",
            "-m",
            help="Name on the Hub, folder, weight file, folder written by vitruvian export, or builtin. `vitruvian "
            "models list` prints known checkpoints.",
            autocompletion=_complete_model,
        ),
    ] = None
    revision: Annotated[str | None, Option(help="Branch, tag or commit on the Hub.")] = None
    device: DeviceOption = None
    dtype: DtypeOption = None
    workers: Annotated[
        int | None,
        Option(
            help="Threads that read, preprocess and write; with --ray, worker processes.",
            min=1,
            show_default="2 to 4; up to 8 on CUDA",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ClusterGroup(OptionGroup):
    """A Ray cluster in place of one process."""

    panel = "Cluster"
    ray: Annotated[
        bool,
        Option(
            "--ray",
            help="Run on a Ray cluster: that of this machine, which is started if none runs, or one at an address, "
            "as in --ray ray://host:10001.",
        ),
    ] = False
    gpus_per_worker: Annotated[
        float | None,
        Option(
            help="GPUs of each worker; 0.5 runs two workers on one GPU.",
            min=0,
            show_default="1 if the cluster has GPUs",
        ),
    ] = None
    shards: Annotated[
        Literal["parquet", "tar", "none"] | None,
        Option(
            help="parquet or tar: write results as shards; none: one set of files per input.",
            show_default="parquet above 10,000 sources",
        ),
    ] = None
    split_seconds: Annotated[
        float | None,
        Option(
            help="Divide videos into ranges of frames of this length, in steps of 10 seconds, for several workers. For "
            "tasks without tracking.",
            min=1,
        ),
    ] = None
    retry_failed: Annotated[bool, Option("--retry-failed", help="Retry inputs that failed before.")] = False


@dataclass(frozen=True, kw_only=True)
class BatchGroup(OptionGroup):
    """How many inputs the model gets at a time."""

    panel = MODEL
    batch_size: Annotated[str, Option(help="Inputs in a batch: a number, or auto (halved on out-of-memory).")] = "auto"

    def call_options(self) -> dict[str, object]:
        """Add the batch size."""
        auto = self.batch_size == "auto"
        if not auto and (not self.batch_size.isdigit() or int(self.batch_size) < 1):
            raise InputError(f"--batch-size: expected a number of at least 1, or auto, got {self.batch_size!r}.")
        return super().call_options() | {"batch_size": "auto" if auto else int(self.batch_size)}


@dataclass(frozen=True, kw_only=True)
class PeopleGroup(OptionGroup):
    """Which people are processed."""

    panel = "People"
    basic: ClassVar[tuple[str, ...]] = ("detect", "boxes")
    detect: Annotated[
        str | None,
        Option(
            metavar="DETECTOR",
            help="Person detector: builtin, a Mask2Former or MaskFormer trained on COCO (folder or Hub name), a "
            "YOLOX or RTMDet file (.onnx), or whole to process the whole image. By default the model itself if it "
            "detects people, else builtin.",
            autocompletion=lambda: ["builtin", "whole"],
        ),
    ] = None
    boxes: Annotated[
        list[str] | None,
        Option(
            help="Boxes of people: x1,y1,x2,y2 for all images (repeat for more people), or a file: COCO .json, a .json "
            "table of file names and boxes, .csv, or the .jsonl of vitruvian track."
        ),
    ] = None

    def call_options(self) -> dict[str, object]:
        """Add the boxes, or the detector that reads them from a file."""
        if self.detect and self.boxes:
            raise InputError("--detect and --boxes: cannot be combined. Drop one of them.")
        options: dict[str, object] = {"detect": self.detect}
        if (file := self.boxes_file()) is not None:
            options["detect"] = file
        elif self.boxes:
            options["boxes"] = [read_numbers("--boxes", text, 4) for text in self.boxes]
        return super().call_options() | options

    def detector_name(self) -> str | None:
        """Return the people detector; None with boxes."""
        return None if self.boxes else self.detect or BUILTIN

    def boxes_file(self) -> Path | None:
        """Return the file that --boxes names, if it does."""
        files = [
            Path(text).expanduser() for text in self.boxes or () if text.lower().endswith((".json", ".csv", ".jsonl"))
        ]
        if files and len(self.boxes or ()) > 1:
            raise InputError("--boxes: expected one file, or boxes x1,y1,x2,y2, got several. Put them into one file.")
        return files[0] if files else None


@dataclass(frozen=True, kw_only=True)
class TileGroup(OptionGroup):
    """Very large images."""

    panel = MODEL
    tile: Annotated[
        str | None,
        Option(
            help="Process large images in tiles of this size: 1024, 1024x768 (height x width), or auto for the input "
            "size of the model."
        ),
    ] = None

    def call_options(self) -> dict[str, object]:
        """Add the size of tiles."""
        return super().call_options() | {"tile": self._read_tile()}

    def _read_tile(self) -> bool | int | tuple[int, ...] | None:
        if self.tile is None or self.tile == "auto":
            return None if self.tile is None else True
        size = re.fullmatch(r"(\d+)(?:[x×](\d+))?", self.tile)
        sides = [int(side) for side in size.groups() if side] if size else [0]
        if min(sides) < MIN_TILE_SIDE:
            raise InputError(
                "--tile: expected pixels such as 1024 or 1024x768 (height x width), at least "
                f"{MIN_TILE_SIDE}, or auto, got {self.tile!r}."
            )
        return sides[0] if len(sides) == 1 else tuple(sides)


@with_options(CommonVideoOptions)
class VideoGroup(OptionGroup):
    """Videos and cameras."""

    panel = "Video and cameras"
    preview: Annotated[Path | None, Option(help="Image file (.jpg, .png) that is updated with the latest frame.")] = (
        None
    )
    frames: Annotated[int | None, Option(help="Stop a camera after this number of frames.", min=1)] = None

    def video_options(self) -> dict[str, Any]:
        """Return the options of the video loop."""
        return {row.argument: getattr(self, row.name) for row in option_rows(CommonVideoOptions)}


@dataclass(frozen=True, kw_only=True)
class VerbosityGroup(OptionGroup):
    """What is printed."""

    panel = "Messages"
    basic: ClassVar[tuple[str, ...]] = ("quiet",)
    json: Annotated[
        bool, Option("--json", help="Print a line of JSON for each source on standard output, then a summary.")
    ] = False
    progress: Annotated[bool, Option("--progress", help="With --json, also print progress once a second.")] = False
    quiet: Quiet = False
    debug: Debug = False

    def names_in_messages(self) -> dict[str, str]:
        """Return the option that stands for each argument of the library, for messages."""
        return {}


def options_by_argument(fields: Iterable[str], *tables: type, without: Iterable[str] = ()) -> dict[str, str]:
    """Return the option that stands for each argument of the library, such as --intrinsics for K, for messages.

    Args:
        fields: Names of the command's parameters.
        tables: Tables whose options have other names.
        without: Names to leave out: a source may be called boxes.
    """
    options = {name: f"--{name.replace('_', '-')}" for name in fields}
    renamed = _OPTION_OF_ARGUMENT | {row.argument: row.name for row in option_rows(*tables)}
    others = {argument: options[name] for argument, name in renamed.items() if name in options}
    return {name: option for name, option in (others | options).items() if name not in without}


# ------------------------------------------------------------------------------------------------ texts of options


def read_numbers(option: str, text: str, *counts: int) -> list[float]:
    """Read comma-separated numbers, as many as one of `counts`."""
    try:
        numbers = [float(word) for word in text.replace(" ", "").split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in counts:
        number = " or ".join(str(count) for count in counts)
        raise InputError(f"{option}: expected {number} comma-separated numbers, got {text!r}.")
    return numbers


def read_size(option: str, text: str, *, example: str) -> tuple[int, int]:
    """Read a height and a width, such as 1024x768."""
    match = re.fullmatch(r"(\d+)[x×](\d+)", text)
    if not match:
        raise InputError(f"{option}: expected height x width such as {example}, got {text!r}.")
    return int(match[1]), int(match[2])


def cuda_or_cpu(device: str | None) -> torch.device:
    """Read a device; by default CUDA where there is some."""
    import torch

    from vitruvian.devices import checked_device

    return checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def read_points(text: str) -> tuple[list[list[float]], list[int]]:
    """Read the points of one object, and the label of each: 1 on the object, 0 off it."""
    rows = [read_numbers("--points", word, 2, 3) for word in text.split()]
    if not rows or any(len(row) == 3 and row[2] not in (0, 1) for row in rows):
        raise InputError(f'--points: expected "x,y", "x,y,1" (foreground) or "x,y,0" (background), got {text!r}.')
    return [row[:2] for row in rows], [int(row[2]) if len(row) == 3 else 1 for row in rows]
