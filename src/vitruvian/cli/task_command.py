"""`TaskCommand`: what a command for a task declares. `run_task` does the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vitruvian.cli.options import (
    Batch,
    Coco,
    Messages,
    Model,
    OptionGroup,
    People,
    Results,
    Sources,
    Thresholds,
    Tiles,
    Video,
    flatten_options,
)
from vitruvian.tasks import TASKS, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from vitruvian.results import Result


@dataclass(frozen=True, kw_only=True)
class TaskCommand(OptionGroup):
    """A command that runs a task on images and videos.

    A subclass has the name of the task as `task`, an `example` that works, the shared option groups that it takes as
    `groups`, the options of its own as fields with the `panel` that they are under, and the help as docstring.
    """

    task: ClassVar[str]
    example: ClassVar[str]
    groups: ClassVar[tuple[type[OptionGroup], ...]] = (Batch,)
    plot_names: ClassVar[tuple[str, ...]] = ()  # fields that are arguments of the result's `plot`

    def plot_options(self) -> dict[str, object]:
        """Return the options of the result's `plot`."""
        return {name: getattr(self, name) for name in self.plot_names}

    def side_files(self) -> list[str]:
        """Return files that results depend on, beside the model and the boxes."""
        return []

    def with_defaults(self, results: Results) -> Results:
        """Return the options of results, with defaults that depend on the task's options."""
        return results

    def change(self, result: Result) -> Result:
        """Change a result before it is written and drawn."""
        return result

    def draw(self, result: Result, **options: object) -> NDArray[np.uint8] | Image.Image:
        """Draw a result."""
        plot: Callable[..., Image.Image] = result.plot
        return plot(**self.plot_options(), **options)


@dataclass(frozen=True, kw_only=True)
class TaskJob:
    """Everything that a task's command was given: the option groups."""

    own: TaskCommand
    sources: Sources
    results: Results
    model: Model
    video: Video
    messages: Messages
    coco: Coco | None = None
    batch: Batch | None = None
    tiles: Tiles | None = None
    thresholds: Thresholds | None = None
    people: People | None = None

    @property
    def task(self) -> Task:
        """The row of the table of tasks."""
        return TASKS[self.own.task]

    def call_options(self) -> dict[str, object]:
        """Return the options of the pipeline's call, without those about people."""
        groups = [group for group in (self.batch, self.tiles, self.thresholds, self.own) if group is not None]
        return {name: value for group in groups for name, value in group.call_options().items()}


def task_function(command: type[TaskCommand]) -> Callable[..., None]:
    """Return the function of a task's command for typer."""

    def run(**groups: object) -> None:
        from vitruvian.cli.run_task import run_task

        run_task(TaskJob(**groups))  # type: ignore[arg-type]

    every: dict[str, type[OptionGroup]]
    every = {"sources": Sources, "results": Results, "coco": Coco, "model": Model, "batch": Batch, "tiles": Tiles}
    every |= {"people": People, "thresholds": Thresholds, "own": command, "video": Video, "messages": Messages}
    optional: set[type[OptionGroup]] = {Coco, Batch, Tiles, People, Thresholds} - set(command.groups)
    run.__doc__ = command.__doc__
    return flatten_options(run, [(name, group) for name, group in every.items() if group not in optional])
