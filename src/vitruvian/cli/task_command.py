"""`TaskCommand`: what a command for a task declares. `run_task` does the rest."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_args, get_type_hints

from typer import Context, Exit, Option, echo

from vitruvian.cli.options import STDIO, ClusterGroup, MessageGroup, ModelGroup, OutputGroup, SourceGroup, VideoGroup
from vitruvian.limits import parse_limits, use_limits
from vitruvian.tasks import TASKS, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from vitruvian.results import Result


@dataclass(frozen=True, kw_only=True)
class TaskCommand(MessageGroup, ClusterGroup, VideoGroup, ModelGroup, OutputGroup, SourceGroup):
    """A command that runs a task on images and videos, with the values of its options.

    A subclass has the name of the task, an `example` that works, further options as fields or inherited groups, and
    the help as docstring.
    """

    name: ClassVar[str]
    example: ClassVar[str]
    plot_names: ClassVar[tuple[str, ...]] = ()  # fields that are arguments of the result's `plot`

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
        """Whether videos have alpha, if their format can hold it: drawn with `rgba` of the result."""
        return False

    def plot_options(self) -> dict[str, object]:
        """Return the options of the result's `plot`."""
        return {name: getattr(self, name) for name in self.plot_names}

    def with_defaults(self) -> Self:
        """Return the command with defaults that depend on other options."""
        return self

    def input_files(self) -> list[Path]:
        """Return files that results depend on, beside the sources and the model."""
        return []

    def segment_settings(self) -> dict[str, object]:
        """Return what is recorded with the segments of a video beside the digest of all settings."""
        return {}

    def following(self, source: str, records: Path) -> list[TaskCommand]:
        """Return commands to run after this one on a video, whose records this one wrote."""
        return []

    def state_folder(self, files: Mapping[str, Path]) -> Path | None:
        """Return where the state of a video is kept, given the file of each kind; None to keep none."""
        return None

    def refined(self) -> tuple[Path, int] | None:
        """Return the kept state of a video that is changed, and the first frame that changes."""
        return None

    def convert(self, result: Result) -> Result:
        """Convert a result before it is written and drawn."""
        return result

    def draw(self, result: Result) -> NDArray[np.uint8] | Image.Image:
        """Draw a result."""
        plot: Callable[..., Image.Image] = result.plot
        return plot(**self.plot_options())

    def draw_frame(self, result: Result) -> NDArray[np.uint8] | Image.Image:
        """Draw the result of a frame of a video, at the size of the frame."""
        return result.plot_frame(**self.plot_options())


def _show_all_help(context: Context, wanted: bool) -> None:
    """Print the help with the options that `--help` leaves out, and end."""
    if wanted:
        hidden: list[Any] = [one for one in context.command.params if getattr(one, "hidden", False)]
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
    fields = sorted(dataclasses.fields(command), key=lambda field: groups[field.name] in (VideoGroup, MessageGroup))
    parameters = []
    for field in fields:
        kind, info = get_args(hints[field.name])
        info = copy.copy(info)
        group = vars(groups[field.name])
        info.rich_help_panel = group.get("panel")
        info.hidden = field.name not in group.get("basic", ())
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
    run.__doc__ = _joined_lines(command.__doc__ or "")
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
