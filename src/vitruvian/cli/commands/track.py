"""`vitruvian track`: objects through videos, from prompts on the command line."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from typer import Option

from vitruvian.cli.option_groups import (
    STDIO,
    ModelGroup,
    OutputGroup,
    VerbosityGroup,
    VideoGroup,
    read_numbers,
    read_points,
)
from vitruvian.cli.task_command import TaskCommand, task_command
from vitruvian.errors import InputError, VitruvianError
from vitruvian.filesystem.media_files import CAMERA, source_kind
from vitruvian.hub import BUILTIN
from vitruvian.pipelines.options import PeopleOptions
from vitruvian.tasks import ALPHA_VIDEO_FORMATS, PIPELINE_TASKS, TASKS

if TYPE_CHECKING:
    from vitruvian.pipelines.video.track_prompt import TrackPrompt

_PROMPTS = ("box", "points", "mask")  # boxes first: they replace points
_OWN_OPTIONS = ("save", "model", "revision", "detect_every")  # not those of the commands of --then
_PEOPLE_OPTIONS = ("detect", "detect_every", "max_people", "forget_after")  # with --everyone
_PEOPLE_TASKS = tuple(name for name in PIPELINE_TASKS if issubclass(TASKS[name].options_class(), PeopleOptions))


@task_command
class TrackCommand(TaskCommand):
    """Track objects through videos, from points, boxes and masks in any frame (SAM 2).

    A prompt is ID@FRAME:values. Objects are numbered from 1 and frames from 0: 1@0:220,120 is a point on object 1
    in frame 0. Prompts on later frames correct an object, or add a new one. After a run with --keep-state, --refine
    adds prompts to a finished video without computing it again from the start.
    """

    name = "track"
    example = "vitruvian track clip.mp4 --model facebook/sam2.1-hiera-tiny --points 1@0:22,12 --box 2@3:4,6,40,30"
    save_help = (
        "mp4, webm, mov (masks over the video), json (a line for each frame, masks as COCO RLE), png (a folder of "
        "images whose pixels are object numbers, as in DAVIS), crops (a folder of cut-out images, one for each object "
        "and frame), npz (a folder of arrays), vis.json (a YouTube-VIS file)"
    )
    panel = "Prompts and masks"
    basic: ClassVar[tuple[str, ...]] = ("points", "box", "everyone", "cutout")

    points: Annotated[
        list[str] | None,
        Option(help='Points of an object: "ID@FRAME:x,y x,y"; "x,y,0" is a background point. Repeat for more.'),
    ] = None
    box: Annotated[list[str] | None, Option(help="Box around an object: ID@FRAME:x1,y1,x2,y2. Repeat for more.")] = None
    mask: Annotated[
        list[str] | None,
        Option(
            help="Mask image: ID@FRAME:mask.png. The object is its alpha, the pixels with the value ID in an image "
            "of several objects, or else what is not black. Repeat for more."
        ),
    ] = None
    everyone: Annotated[bool, Option("--everyone", help="Detect people and track all of them.")] = False
    detect: Annotated[str | None, Option(help="Detector for --everyone; see vitruvian pose --help.")] = None
    then: Annotated[
        str | None,
        Option(
            help="Tasks to run afterwards on the tracked people, as TASK[=MODEL], e.g. pose=facebook/sapiens2-pose-1b,"
            "matte."
        ),
    ] = None
    keep_state: Annotated[
        bool,
        Option("--keep-state", help="Keep the state of the tracker in NAME.state, beside the results, for --refine."),
    ] = False
    refine: Annotated[
        Path | None, Option(help="Folder NAME.state of an earlier run with --keep-state, to which prompts are added.")
    ] = None
    cutout: Annotated[
        bool,
        Option(
            "--cutout",
            help="Write only the objects, as a video with alpha (webm, mov), instead of masks over the video.",
        ),
    ] = False

    @property
    def transparent(self) -> bool:
        """Whether objects are cut out."""
        return self.cutout

    def with_defaults(self) -> Self:
        """With --cutout, save a video that has alpha; with --refine, add the prompts of the first run."""
        changes: dict[str, Any] = {"save": self._saved_formats()}
        if self.refine is not None:
            if not any(getattr(self, name) for name in _PROMPTS):
                raise InputError("--refine: expected further prompts, got none. Add --points, --box or --mask.")
            if len(self.sources) != 1 or self.watch:
                raise InputError(f"--refine: expected one video, got {len(self.sources)} sources.")
            saved = self._saved_prompts()
            changes |= {
                name: list(dict.fromkeys([*saved[name], *(getattr(self, name) or ())])) or None for name in _PROMPTS
            }
            changes["everyone"] = self.everyone or bool(saved["everyone"])
        command = dataclasses.replace(self, **changes)
        for field in dataclasses.fields(self):
            given = getattr(self, field.name) != field.default
            if field.name in _PEOPLE_OPTIONS and given and not command.everyone:
                raise InputError(f"--{field.name.replace('_', '-')}: requires --everyone. Add it, or drop the option.")
        return command

    def _saved_formats(self) -> str | None:
        """Return what --save stands for: with --cutout a video with alpha, with --then also records.

        Raises:
            InputError: --save or --out are other files.
        """
        from vitruvian.cli.output_plan import named_format

        named = (
            None if self.out in (None, STDIO) else named_format(self.task, Path(str(self.out)).expanduser(), self.save)
        )
        save = "webm,json" if self.cutout and self.save is None and named is None else self.save
        words = () if save is None else self.task.read_formats(save)
        if self.cutout and {*words, named}.isdisjoint(ALPHA_VIDEO_FORMATS):
            option, got = ("--save", save) if named is None else ("--out", self.out)
            raise InputError(
                f"--cutout: expected a video with alpha ({', '.join(ALPHA_VIDEO_FORMATS)}), got {option} {got}. Choose "
                "one of them."
            )
        if self.then is None:
            return save
        if named not in (None, "json"):
            raise InputError(f"--then: expected a folder as --out, for the records too, got the file {self.out}.")
        return save if save is None or "json" in words else f"{save},json"

    def call_options(self) -> dict[str, object]:
        """Add the prompts and the people detector."""
        if not any(getattr(self, name) for name in _PROMPTS) and not self.everyone:
            raise InputError(
                'prompts: expected --points, --box, --mask or --everyone, got none. For example: --points "1@0:x,y".'
            )
        return super().call_options() | {
            "prompts": self._prompts(),
            "detect": self.detector_name(),
            "interactive": False,
        }

    def detector_name(self) -> str | None:
        """Return the people detector with --everyone."""
        return (self.detect or BUILTIN) if self.everyone else None

    def _prompts(self) -> list[TrackPrompt]:
        """Read the prompts."""
        from vitruvian.images.mask_file import read_mask
        from vitruvian.pipelines.video.track_prompt import TrackPrompt

        prompts = []
        for option, object_id, frame, rest in self._addresses():
            values: dict[str, Any] = {}
            if option == "box":
                values["box"] = read_numbers("--box", rest, 4)
            elif option == "points":
                values["points"], values["labels"] = read_points(rest)
            else:
                values["mask"] = read_mask(Path(rest).expanduser(), object_id)
            prompts.append(TrackPrompt(object_id=object_id, frame=frame, **values))
        return prompts

    def _addresses(self) -> Iterator[tuple[str, int, int, str]]:
        """Yield the option, the object, the frame and the rest of each prompt, in the order of objects."""
        prompts = [(option, text) for option in _PROMPTS for text in getattr(self, option) or ()]
        addresses = [(option, *_read_address(f"--{option}", text)) for option, text in prompts]
        yield from sorted(addresses, key=operator.itemgetter(1))

    def input_files(self) -> list[Path]:
        """Return the files of mask prompts."""
        return [Path(rest).expanduser() for option, _, _, rest in self._addresses() if option == "mask"]

    def check_video(self, source: str | Path) -> None:
        """Check that all prompts fit the video."""
        from vitruvian.files.video import open_video
        from vitruvian.pipelines.video.track_prompt import check_prompts

        if self.then is not None and Path(source).is_dir():
            raise InputError(
                f"--then: expected numbered images (frame_%05d.png), got the folder {source}. Name them so."
            )
        check_prompts(self._prompts(), open_video(source))

    def check_following(self) -> None:
        """Check the tasks, sources and models of --then."""
        from vitruvian.cli.checkpoints import check_model

        tasks = self._people_tasks()
        if tasks and any(CAMERA.fullmatch(source) for source in self.sources):
            raise InputError(
                f"--then: expected videos, got a camera. Run {' and '.join(tasks)} on its video afterwards."
            )
        for name, model in tasks.items():
            if name not in _PEOPLE_TASKS:
                raise InputError(f"--then: expected tasks among {', '.join(_PEOPLE_TASKS)}, got {name!r}.")
            try:
                if model is not None:
                    check_model(model, TASKS[name])
            except (VitruvianError, OSError) as error:
                raise InputError(f"--then: {name}: {error}") from error

    # ------------------------------------------------------------------------------------- state, following commands

    def resume_settings(self) -> dict[str, object]:
        """Return the prompts, which --refine reads, and a digest of the options without them."""
        without_prompts = dataclasses.replace(self, points=None, box=None, mask=None, everyone=True)
        prompts = {name: getattr(self, name) or [] for name in _PROMPTS} | {"everyone": self.everyone}
        return {"prompts": prompts, "digest_without_prompts": without_prompts.digest(video=True)}

    def state_options(self, files: Mapping[str, Path]) -> dict[str, Any]:
        """Return where the state is kept, and for --refine the kept state and the first frame with a new prompt."""
        return {"keep_state": self._state_folder(files), "refine": self._refined_state()}

    def _state_folder(self, files: Mapping[str, Path]) -> Path | None:
        """Return NAME.state beside the results with --keep-state, and the same folder with --refine."""
        if self.refine is not None:
            return self.refine.expanduser()
        beside = files.get("json") or next(iter(files.values()))  # without records, there is a video alone
        return beside.with_suffix(".state") if self.keep_state else None

    def lacks_state(self, files: Mapping[str, Path], digest: str) -> bool:
        """Return whether --keep-state asks for a state that an earlier run with the same settings did not keep."""
        from vitruvian.pipelines.video.resume_folder import read_caller_settings

        folder = self._state_folder(files)
        if folder is None or self.refine is not None:
            return False
        try:
            return bool(read_caller_settings(folder)["digest"] != digest)
        except (OSError, KeyError, TypeError, VitruvianError):
            return True

    def _refined_state(self) -> tuple[Path, int] | None:
        """Return the kept state and the first frame with a new prompt."""
        if self.refine is None:
            return None
        saved = self._saved_prompts()
        new = [text for name in _PROMPTS for text in getattr(self, name) or () if text not in saved[name]]
        return self.refine.expanduser(), min((_read_address("--refine", text)[1] for text in new), default=0)

    def _saved_prompts(self) -> dict[str, Any]:
        """Read the prompts of a kept state."""
        from vitruvian.pipelines.video.resume_folder import read_caller_settings

        assert self.refine is not None
        try:
            settings = read_caller_settings(self.refine.expanduser())
            saved = settings["prompts"]
            if settings["digest_without_prompts"] != self.resume_settings()["digest_without_prompts"]:
                raise InputError(
                    f"--refine: use the same model and options as the first run, which wrote {self.refine}; only "
                    "prompts may change."
                )
            if all(isinstance(text, str) for name in _PROMPTS for text in saved[name]) and "everyone" in saved:
                return dict(saved)
            raise TypeError("prompts")
        except (OSError, KeyError, TypeError) as error:
            raise InputError(
                f"--refine: expected a folder that vitruvian track --keep-state wrote, got {self.refine}. Track the "
                "video with --keep-state first."
            ) from error

    def following_commands(self, source: str, records: Path) -> list[TaskCommand]:
        """Return the commands of --then, for the tracked people of a video."""
        from vitruvian.cli.commands.image_tasks import TASK_COMMANDS

        shared = {
            field.name: getattr(self, field.name)
            for group in (OutputGroup, ModelGroup, VideoGroup, VerbosityGroup)
            for field in dataclasses.fields(group)
            if field.name not in _OWN_OPTIONS
        }
        if self.out is not None and not Path(self.out).is_dir():
            shared["out"] = str(records.parent)
        shared |= {"sources": [source], "boxes": [str(records)], "on_empty": "none"}
        numbered = source_kind(source) == "sequence"  # which is a video only if a format says so
        return [
            TASK_COMMANDS[name](
                model=model, save=",".join(TASKS[name].default_video_formats) if numbered else None, **shared
            )
            for name, model in self._people_tasks().items()
        ]

    def _people_tasks(self) -> dict[str, str | None]:
        """Return the model of each task of --then, None for the default."""
        words = [word.strip().partition("=") for word in (self.then or "").split(",") if word.strip()]
        return {name: model or None for name, _, model in words}


def _read_address(option: str, text: str) -> tuple[int, int, str]:
    """Read the object and the frame of a prompt, and return the rest."""
    match = re.fullmatch(r"(\d+)@(\d+):(.+)", text)
    if not match:
        raise InputError(f"{option}: expected ID@FRAME:numbers such as 1@0:220,120, got {text!r}.")
    return int(match[1]), int(match[2]), match[3]
