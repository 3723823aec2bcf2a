"""`TaskCommand`: what a command for a task declares. `run_task` does the rest."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_type_hints

from typer import Context, Exit, Option, echo

from vitruvian.cli.option_groups import (
    STDIO,
    BatchGroup,
    ClusterGroup,
    CocoGroup,
    ModelGroup,
    OutputGroup,
    SourceGroup,
    VerbosityGroup,
    VideoGroup,
    options_by_argument,
    with_options,
)
from vitruvian.limits import parse_limits, use_limits
from vitruvian.pipelines.digests import file_digest, settings_digest
from vitruvian.pipelines.options import option_rows
from vitruvian.pipelines.output_options import OutputOptions
from vitruvian.tasks import TASKS, Task

T = TypeVar("T")
# Options that results do not depend on, or that have an argument of `settings_digest`.
_NOT_IN_DIGEST = {
    *("revision", "device", "workers", "points_per_batch", "preview", "frames"),
    *("then", "keep_state", "refine"),
} | {
    field.name
    for group in (SourceGroup, OutputGroup, CocoGroup, BatchGroup, ClusterGroup, VerbosityGroup)
    for field in dataclasses.fields(group)
}
_VIDEO_OPTIONS = {field.name for field in dataclasses.fields(VideoGroup)}


@dataclass(frozen=True, kw_only=True)
class TaskCommand(VerbosityGroup, ClusterGroup, VideoGroup, ModelGroup, OutputGroup, SourceGroup):
    """A command that runs a task on images and videos, with the values of its options.

    A subclass has further options as fields or inherited groups, and the help as docstring.

    Attributes:
        name: Name of the task.
        example: A command line that works, for the help.
        save_help: The formats that `--save` takes for images, for the help.
        video_save_help: The same for videos.
    """

    name: ClassVar[str]
    example: ClassVar[str]
    save_help: ClassVar[str]
    video_save_help: ClassVar[str] = "also mp4, webm, mov"

    @property
    def task(self) -> Task:
        """The row of the table of tasks."""
        return TASKS[self.name]

    @property
    def to_stdout(self) -> bool:
        """Whether results go to standard output: --out - says so, and it is the default for standard input."""
        return self.out == STDIO or (self.out is None and self.sources == [STDIO] and not self.json)

    @property
    def transparent(self) -> bool:
        """Whether frames of videos are drawn with alpha (`rgba` of the result), where the video format has it."""
        return False

    def names_in_messages(self) -> dict[str, str]:
        """Return the option that stands for each argument of the library, for messages."""
        fields = (field.name for field in dataclasses.fields(self))
        return options_by_argument(fields, self.task.options_class(), without=self.sources)

    def call_options(self) -> dict[str, object]:
        """Return the arguments of the pipeline's call: the options of the table, and those that groups add."""
        rows = (row for row in option_rows(self.task.options_class()) if row.info.cli)
        return {row.argument: getattr(self, row.name) for row in rows} | super().call_options()

    @property
    def output(self) -> OutputOptions:
        """How results are converted and drawn."""
        rows = (row for row in option_rows(self.task.output_class()) if row.info.cli)
        output: OutputOptions = self.task.output_class()(**{row.argument: getattr(self, row.name) for row in rows})
        return output

    def digest(self, *, video: bool) -> str:
        """Return a digest of everything that the results of images, or those of videos, depend on."""
        ignored = _NOT_IN_DIGEST if video else _NOT_IN_DIGEST | _VIDEO_OPTIONS
        options = {k: v for k, v in (vars(self) | self.call_options()).items() if k not in ignored}
        return settings_digest(
            self.name,
            self.model,
            revision=self.revision,
            detector=self.detector_name(),
            options=options,
            details=[file_digest(path) for path in self.input_files()],
        )

    def with_defaults(self) -> Self:
        """Return the command with defaults that depend on other options."""
        return self

    # ------------------------------------------------------------------------------- for tasks with further options

    def detector_name(self) -> str | None:
        """Return the people detector that results depend on; None if no one is detected."""
        return None

    def input_files(self) -> list[Path]:
        """Return the files beside the sources that results depend on, and that are not values of options."""
        return []

    def state_options(self, files: Mapping[str, Path]) -> dict[str, Any]:
        """Return the fields of `VideoOptions` about a state that is kept after a video."""
        return {}

    def check_video(self, source: str | Path) -> None:
        """Raise `InputError` for options that do not fit a video, before anything is written."""

    def check_following(self) -> None:
        """Raise `InputError` for `following_commands` that cannot run, before any work."""

    def resume_settings(self) -> dict[str, object]:
        """Return settings that are stored with a video that is being written, beside the digest of all."""
        return {}

    def lacks_state(self, files: Mapping[str, Path], digest: str) -> bool:
        """Return whether a finished video must be processed again, since its state was not kept."""
        return False

    def following_commands(self, source: str, records: Path) -> list[TaskCommand]:
        """Return the commands that run on a video after this one, given its file of records."""
        return []


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def task_command(cls: type[T]) -> type[T]:
    """Make a class the command of a task: a dataclass with the task's options, beside those that it declares."""
    task: Task = TASKS[cls.name]  # type: ignore[attr-defined]
    return with_options(task.options_class(), task.output_class())(cls)


def _show_all_help(context: Context, wanted: bool) -> None:
    """Print the help with the options that `--help` leaves out, and end."""
    if wanted:
        hidden: list[Any] = [option for option in context.command.params if getattr(option, "hidden", False)]
        for option in hidden:
            option.hidden = False
        echo(context.get_help())
        for option in hidden:  # the command may be used again
            option.hidden = True
        raise Exit


def _joined_lines(text: str) -> str:
    """Return a docstring with one line for each paragraph, so that the terminal wraps it."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def task_function(command: type[TaskCommand]) -> Callable[..., None]:
    """Return the function of a task's command for typer, with a parameter for each field."""

    def run(**values: object) -> None:
        from vitruvian.cli.run_task import run_task

        values.pop("help_all")
        given = command(**values)  # type: ignore[arg-type]
        limits = dict(text.partition("=")[::2] for text in given.limit or ())
        with use_limits(**parse_limits(limits, subject="--limit")):
            run_task(given)

    groups = {name: group for group in command.__mro__[::-1] for name in inspect.get_annotations(group)}
    hints = get_type_hints(command, include_extras=True)
    last = (*dataclasses.fields(VideoGroup), *dataclasses.fields(VerbosityGroup))
    fields = sorted(dataclasses.fields(command), key=lambda field: field.name in [option.name for option in last])
    parameters = []
    for field in fields:
        kind, info = get_args(hints[field.name])
        info = copy.copy(info)
        row, group = field.metadata.get("row"), vars(groups[field.name])
        info.rich_help_panel = row.panel if row else group.get("panel")
        info.hidden = not row.info.basic if row else field.name not in group.get("basic", ())
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        parameters.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
            )
        )
    show_all = Option("--help-all", callback=_show_all_help, is_eager=True, help="Show all options and exit.")
    parameters.append(
        inspect.Parameter(
            "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, show_all]
        )
    )
    drawings = f", plot, plot.jpg; for videos {command.video_save_help}" if TASKS[command.name].takes_images else ""
    run.__doc__ = f"{_joined_lines(command.__doc__ or '')}\n\n--save takes {command.save_help}{drawings}."
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
