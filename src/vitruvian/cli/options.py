"""The options that commands share, in groups as `--help` shows them, and the reading of their texts."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from typer import Argument, Context, Option

from vitruvian.errors import InputError
from vitruvian.hub import BUILTIN
from vitruvian.limits import MAX_TILE_OVERLAP, MIN_TILE_SIDE

if TYPE_CHECKING:
    import torch

MODEL = "Model"  # panel of the help
STDIO = "-"
# argument of the library -> the option that stands for it, where their names differ
OPTION_OF_ARGUMENT = {
    "K": "intrinsics",
    "background": "over",
    "crops_n_layers": "crop_layers",
    "detect_threshold": "threshold",
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

# earlier name of an option -> its name
_RENAMED_OPTIONS = {
    "people": "detect",
    "finder": "detect",
    "finder-threshold": "threshold",
    "nobody": "on-empty",
    "box-form": "box-format",
}


def complete_model(context: Context, incomplete: str) -> list[str]:
    """Return what the name of a model may be completed to: checkpoints for the command, and folders."""
    from vitruvian.cli.known_checkpoints import known_checkpoints

    names = [BUILTIN, *(one.name for one in known_checkpoints() if context.info_name in one.commands)]
    folder, _, start = incomplete.rpartition("/")
    with suppress(OSError):
        prefix = f"{folder}/" if "/" in incomplete else ""
        folders = [path.name for path in Path(prefix or ".").expanduser().iterdir() if path.is_dir()]
        names += [f"{prefix}{name}" for name in sorted(folders) if not name.startswith(".") or start.startswith(".")]
    return [name for name in names if name.startswith(incomplete)]


Device = Annotated[
    str | None,
    Option(
        help="cuda, cuda:1, mps or cpu. By default the first of cuda, mps and cpu that is available.",
        rich_help_panel=MODEL,
        autocompletion=lambda: ["cpu", "cuda", "cuda:0", "mps"],
    ),
]
Dtype = Annotated[
    str | None,
    Option(
        help="float32, bfloat16 or float16. By default bfloat16 on GPUs that support it, else float32.",
        rich_help_panel=MODEL,
        autocompletion=lambda: ["float32", "bfloat16", "float16"],
    ),
]
CudaDevice = Annotated[str | None, Option(help="cuda or cpu. By default cuda if available.")]
Convention = Annotated[
    Literal["opencv", "opengl"], Option(help="opencv: x right, y down, z away; opengl: x right, y up, z to the viewer.")
]
Background = Annotated[
    Literal["mask", "keep"],
    Option(
        help="mask: only people, if the checkpoint also predicts mattes, as builtin does; keep: the background too."
    ),
]
Opacity = Annotated[float, Option(help="Opacity of the colors in the drawing.", min=0, max=1)]
HoleArea = Annotated[float, Option(help="Fill holes up to this number of pixels.", min=0)]
IslandArea = Annotated[float, Option(help="Remove islands up to this number of pixels.", min=0)]
Json = Annotated[bool, Option("--json", help="Print JSON on standard output.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print errors only.")]
Debug = Annotated[bool, Option("--debug", help="Print tracebacks of errors.")]


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options of a command as the fields of a dataclass. A command inherits the groups that it has.

    Attributes:
        panel: The panel of the help that the fields of this class are under.
        basic: Fields of this class that `--help` shows; `--help-all` shows all.
        call_names: Arguments of the pipeline's call that the fields of this class are passed as.
    """

    panel: ClassVar[str | None] = None
    basic: ClassVar[tuple[str, ...]] = ()
    call_names: ClassVar[tuple[str, ...]] = ()

    def call_options(self) -> dict[str, object]:
        """Return the arguments of the pipeline's call, without the people detector."""
        names = (name for group in type(self).__mro__ for name in vars(group).get("call_names", ()))
        return {name: getattr(self, name if hasattr(self, name) else OPTION_OF_ARGUMENT[name]) for name in names}


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
            help="Change a limit of inputs, such as image_pixels=4e8. Repeat for more; `vitruvian doctor` lists them.",
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
            help="File formats to write, separated by commas; listed above. The default depends on the task.",
        ),
    ] = None
    overwrite: Annotated[
        bool, Option("--overwrite", help="Process finished sources again and replace their files.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class CocoGroup(OptionGroup):
    """One dataset of everything."""

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
            autocompletion=complete_model,
        ),
    ] = None
    revision: Annotated[str | None, Option(help="Branch, tag or commit on the Hub.")] = None
    device: Device = None
    dtype: Dtype = None
    workers: Annotated[
        int | None,
        Option(
            help="Threads that read, preprocess and write; with --ray, worker processes.",
            min=1,
            show_default="2 to 4",
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
            "as in --ray ray://host:10001. See docs/scale.md.",
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
            help="Format of files that hold the results of many sources; none for separate files.",
            show_default="parquet above 10,000 sources",
        ),
    ] = None
    split_seconds: Annotated[
        float | None,
        Option(
            help="Divide videos into parts of this length for several workers: whole segments of 10 seconds. For tasks "
            "without tracking.",
            min=1,
        ),
    ] = None
    retry_failed: Annotated[
        bool, Option("--retry-failed", help="Process sources again whose row in a shard has an error.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class BatchGroup(OptionGroup):
    """How many inputs the model gets at a time."""

    panel = MODEL
    batch_size: Annotated[
        str, Option(help="Inputs in a batch: a number, or auto, which is halved when memory runs out.")
    ] = "auto"

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
    basic: ClassVar[tuple[str, ...]] = ("detect", "boxes", "threshold")
    call_names: ClassVar[tuple[str, ...]] = ("detect", "box_format", "on_empty", "max_people")
    detect: Annotated[
        str | None,
        Option(
            metavar="DETECTOR",
            help="Detector of people: builtin, a Mask2Former or MaskFormer trained on COCO (folder or Hub name), a "
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
    threshold: Annotated[
        float | None,
        Option(
            help="Minimum score of a detected person. By default that of the detector; 0.1 in videos, where people are "
            "tracked.",
            min=0,
            max=1,
        ),
    ] = None
    box_format: Annotated[
        Literal["xyxy", "xywh"], Option(help="Format of --boxes: corners, or x, y, width, height.")
    ] = "xyxy"
    on_empty: Annotated[
        Literal["whole", "none", "error"] | None,
        Option(
            help="If no person is detected: process the whole image, write an empty result, or fail. By default none "
            "for poses and whole for all other tasks."
        ),
    ] = None
    max_people: Annotated[int | None, Option(help="Maximum number of people, by score.", min=1)] = None

    def call_options(self) -> dict[str, object]:
        """Add the boxes, or the detector that reads them from a file, and the threshold."""
        if self.detect and self.detect != "crop" and self.boxes:
            raise InputError("--detect and --boxes: expected one of them, got both. Drop one.")
        options = super().call_options() | {"detect_threshold": self.threshold}
        if (file := self.boxes_file()) is not None:
            options["detect"] = file
        elif self.boxes:
            options["boxes"] = [read_numbers("--boxes", text, 4) for text in self.boxes]
        return options

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
    call_names: ClassVar[tuple[str, ...]] = ("overlap",)
    tile: Annotated[
        str | None,
        Option(
            help="Process large images in tiles of this size: 1024, 1024x768 (height x width), or auto for the input "
            "size of the model."
        ),
    ] = None
    overlap: Annotated[
        float, Option(help="Overlap of adjacent tiles, as a fraction of their side.", min=0, max=MAX_TILE_OVERLAP)
    ] = 0.25

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


@dataclass(frozen=True, kw_only=True)
class ThresholdGroup(OptionGroup):
    """What counts as an object."""

    panel = "Objects"
    basic: ClassVar[tuple[str, ...]] = ("threshold",)
    call_names: ClassVar[tuple[str, ...]] = ("threshold", "mask_threshold", "overlap_mask_area_threshold")
    threshold: Annotated[float, Option(help="Minimum score of an object.", min=0, max=1)] = 0.5
    mask_threshold: Annotated[float, Option(help="Minimum probability of a pixel of a mask.", min=0, max=1)] = 0.5
    keep_share: Annotated[
        float,
        Option(help="Minimum fraction of its mask that an object keeps after overlaps are removed.", min=0, max=1),
    ] = 0.8


@dataclass(frozen=True, kw_only=True)
class VideoGroup(OptionGroup):
    """Videos and cameras."""

    panel = "Video and cameras"
    smooth: Annotated[bool, Option(help="Smooth results over time.")] = True
    sound: Annotated[bool, Option(help="Keep the sound.")] = True
    detect_every: Annotated[int, Option(help="Detect people in every Nth frame, and track them in between.", min=1)] = 1
    preview: Annotated[Path | None, Option(help="Image file (.jpg, .png) that is updated with the latest frame.")] = (
        None
    )
    frames: Annotated[int | None, Option(help="Stop a camera after this number of frames.", min=1)] = None


@dataclass(frozen=True, kw_only=True)
class MessageGroup(OptionGroup):
    """What is printed."""

    panel = "Messages"
    basic: ClassVar[tuple[str, ...]] = ("quiet",)
    json: Annotated[
        bool, Option("--json", help="Print a line of JSON for each source on standard output, then a summary.")
    ] = False
    progress: Annotated[bool, Option("--progress", help="With --json, also print progress once a second.")] = False
    quiet: Quiet = False
    debug: Debug = False


# ------------------------------------------------------------------------------------------------ texts of options


def current_option(name: str) -> str:
    """Return the name of an option, without dashes, from that or an earlier name."""
    return _RENAMED_OPTIONS.get(name, name)


def read_numbers(option: str, text: str, *counts: int) -> list[float]:
    """Read numbers with commas between, as many as one of `counts`."""
    try:
        numbers = [float(word) for word in text.replace(" ", "").split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in counts:
        number = " or ".join(str(count) for count in counts)
        raise InputError(f"{option}: expected {number} numbers with commas between, got {text!r}.")
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


def read_points(text: str) -> list[list[float]]:
    """Read the points on one object: x, y, and whether they lie on it."""
    rows = [read_numbers("--points", word, 2, 3) for word in text.split()]
    if not rows or any(len(row) == 3 and row[2] not in (0, 1) for row in rows):
        raise InputError(f'--points: expected "x,y" or "x,y,1" on the object and "x,y,0" off it, got {text!r}.')
    return rows
