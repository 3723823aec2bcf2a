"""The log of a run: a progress bar, TensorBoard where it is installed, and always `metrics.jsonl`.

Each line of `metrics.jsonl` is one JSON object: ``{"kind": "train", "step": 20, "loss": …}``, or kind "evaluation".
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from vitruvian.filesystem.atomic import write_text
from vitruvian.filesystem.json_files import JsonObject

METRICS_FILE = "metrics.jsonl"


class RunLog:
    """The log of one run; a context manager. Processes other than the first print and write nothing.

    Args:
        folder: Folder of the run.
        steps: Number of steps of the whole run.
        start: Completed steps; lines of later ones, from before an interruption, are removed.
        console: Whether to show progress on the terminal.
        tensorboard: Whether to write events for TensorBoard where that is installed.
        active: Whether this process prints and writes.
        target: Where to print; by default standard error.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        start: int = 0,
        console: bool = True,
        tensorboard: bool = True,
        active: bool = True,
        target: Console | None = None,
    ) -> None:
        self.folder, self.steps, self.start, self.active = folder, steps, start, active
        self.console = (target or Console(stderr=True)) if console and active else None
        self.progress: Progress | None = None
        self.bar = TaskID(0)
        self.events: Any = _open_tensorboard(folder, start) if tensorboard and active else None

    def __enter__(self) -> Self:
        if self.active:
            path = self.folder / METRICS_FILE
            lines = [line for line in read_metrics(path) if line.get("step", 0) <= self.start]
            if path.is_file():
                write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
        if self.console is not None and self.console.is_terminal:
            self.progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.fields[values]}"),
                console=self.console,
            )
            self.bar = self.progress.add_task("training", total=self.steps, completed=self.start, values="")
            self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.progress is not None:
            self.progress.stop()
        if self.events is not None:
            self.events.close()

    def advance(self, step: int) -> None:
        """Set the progress bar to `step` steps."""
        if self.progress is not None:
            self.progress.update(self.bar, completed=step)

    def train(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of training after `step` steps."""
        self._write("train", step, values)
        short = "  ".join(f"{name} {values[name]:.4g}" for name in ("loss", "lr", "images/s") if name in values)
        if self.progress is not None:
            self.progress.update(self.bar, completed=step, values=short)
        else:
            self.note(f"step {step}/{self.steps}  {short}")

    def evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Log the scores of an evaluation after `step` steps, and print them as a table."""
        self._write("evaluation", step, scores)
        if self.console is not None:
            table = Table(title=f"evaluation after {step} steps", title_justify="left", show_header=False)
            for name, value in scores.items():
                table.add_row(name, f"{value:.4g}")
            self.console.print(table)

    def note(self, text: str) -> None:
        """Print a line on the terminal."""
        if self.console is not None:
            self.console.print(text, markup=False, highlight=False)

    def _write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        if not self.active:
            return
        # JSON has no NaN: it becomes null.
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with (self.folder / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **plain}) + "\n")
        if self.events is not None:
            for name, value in values.items():
                self.events.add_scalar(f"{kind}/{name}", value, step)


def read_metrics(path: Path) -> list[JsonObject]:
    """Read the lines of a `metrics.jsonl`; an incomplete last line is left out."""
    lines: list[JsonObject] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def _open_tensorboard(folder: Path, start: int) -> Any:
    """Open TensorBoard's writer, or return None where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter  # untyped in torch
    return writer(log_dir=str(folder / "tensorboard"), purge_step=start + 1 if start else None)
