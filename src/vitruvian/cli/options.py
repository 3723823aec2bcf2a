"""The options that commands share, in groups as `--help` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from vitruvian.pipelines.limits import MAX_TILE_OVERLAP

RESULTS, MODEL, PEOPLE, VIDEO, MESSAGES = "Results", "Model", "People", "Video and cameras", "Messages"
STDIO = "-"


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
class Gather:
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
    """How much goes through the model at once."""

    batch_size: Annotated[
        str,
        Option(help="Inputs at once: a number, or auto, which shrinks when memory runs out.", rich_help_panel=MODEL),
    ] = "auto"


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
            max=MAX_TILE_OVERLAP,
            rich_help_panel=MODEL,
        ),
    ] = 0.25


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
