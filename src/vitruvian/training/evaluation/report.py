"""Scores as a table and as JSON, with goals that are met or missed.

    report = ScoreReport("held-out people", goals=[Goal("normals", "mean", at_most=15)])
    report.add("normals", quality.compute())
    rich.print(report)
    report.save("scores.json")

Numbers are named by the fields that hold them: ``mean``, ``within@11.25`` (by threshold), ``per_group.body@0.1`` (by
name and threshold), ``iou[3]`` (in an array). Goals are compared with the exact numbers.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitruvian.errors import InputError, check_choice

if TYPE_CHECKING:
    from rich.table import Table


_LONGEST_LIST = 12


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a number has to be: at least or at most this, or both. NaN never meets a goal."""

    task: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if self.at_least is None and self.at_most is None:
            raise InputError(f"goal {self.task} {self.metric}: expected at_least or at_most, got neither.")

    def met(self, value: float) -> bool:
        """Return whether a number is good enough."""
        high_enough = self.at_least is None or value >= self.at_least
        low_enough = self.at_most is None or value <= self.at_most
        return high_enough and low_enough

    def __str__(self) -> str:
        low = [] if self.at_least is None else [f"≥ {self.at_least:g}"]
        high = [] if self.at_most is None else [f"≤ {self.at_most:g}"]
        return " and ".join(low + high)


class ScoreReport:
    """Scores of several tasks under one title.

    Args:
        title: What was scored, shown over the table.
        goals: What some of the numbers have to be.
    """

    def __init__(self, title: str = "Evaluation", *, goals: Sequence[Goal] = ()) -> None:
        self.title = title
        self.goals = tuple(goals)
        self.scores: dict[str, object] = {}

    def add(self, task: str, scores: object) -> None:
        """Add the scores of a task: what `compute` of a metric returns, or a mapping of names to numbers.

        A mapping may hold scores of several metrics by name, for instance ``{"pck": …, "oks": …}``.
        """
        if task in self.scores:
            raise InputError(f"task: expected a new name, got {task!r} again.")
        numbers = dict(_walk(scores))
        if not numbers:
            raise InputError(f"scores of {task}: expected a dataclass or mapping with numbers, got {scores!r}.")
        for goal in self.goals:
            if goal.task == task:
                check_choice(f"goal of {task}", goal.metric, numbers)
        self.scores[task] = scores

    def numbers(self, task: str) -> dict[str, float]:
        """Return the numbers of a task by their full names."""
        check_choice("task", task, self.scores)
        return dict(_walk(self.scores[task]))

    def missed(self) -> list[Goal]:
        """Return the goals that are not met, those of tasks without scores among them."""
        return [
            goal
            for goal in self.goals
            if goal.task not in self.scores or not goal.met(self.numbers(goal.task)[goal.metric])
        ]

    def table(self, *, details: bool = False) -> Table:
        """Return a table with a row a number; lists longer than a dozen, such as classes, only with `details`."""
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=escape(self.title), title_justify="left")
        table.add_column("task")
        table.add_column("metric")
        table.add_column("value", justify="right")
        if self.goals:
            table.add_column("goal")
        goals = {(goal.task, goal.metric): goal for goal in self.goals}
        for task, scores in self.scores.items():
            shown = dict(_walk(scores, longest=None if details else _LONGEST_LIST))
            rows = [(metric, value) for metric, value in _walk(scores) if metric in shown or (task, metric) in goals]
            for number, (metric, value) in enumerate(rows):
                cells = [escape(task) if number == 0 else "", escape(metric), _format_number(value)]
                if self.goals:
                    goal = goals.get((task, metric))
                    met = goal is not None and goal.met(value)
                    cells.append("" if goal is None else f"[green]{goal} ✓[/]" if met else f"[red]{goal} missed[/]")
                table.add_row(*cells, end_section=number == len(rows) - 1)
        return table

    def __rich__(self) -> Table:
        return self.table()

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain lists, dictionaries and numbers; NaN and infinity are None."""
        return {
            "title": self.title,
            "scores": {task: _plain(scores) for task, scores in self.scores.items()},
            "goals": [
                {
                    **dataclasses.asdict(goal),
                    "value": _plain(self.numbers(goal.task)[goal.metric]) if goal.task in self.scores else None,
                    "met": goal not in self.missed(),
                }
                for goal in self.goals
            ],
        }

    def save(self, path: str | Path) -> None:
        """Write everything as JSON into a file."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")


def _walk(scores: object, name: str = "", *, longest: int | None = None) -> Iterator[tuple[str, float]]:
    """Yield the numbers in scores with their full names, without arrays and inner mappings longer than `longest`."""
    if isinstance(scores, (bool, int, float, np.number)):
        yield name, float(scores)
        return
    if isinstance(scores, np.ndarray):
        entries = [(f"{name}[{i}]", value) for i, value in enumerate(scores.tolist())]
    elif isinstance(scores, Mapping):
        entries = [(_join(name, key), value) for key, value in scores.items()]
    elif dataclasses.is_dataclass(scores) and not isinstance(scores, type):
        entries = [(_join(name, field.name), getattr(scores, field.name)) for field in dataclasses.fields(scores)]
    else:
        raise InputError(f"{name or 'scores'}: expected numbers, mappings or dataclasses, got {scores!r}.")
    is_list = bool(name) and not dataclasses.is_dataclass(scores)
    if longest is None or not is_list or len(entries) <= longest:
        for full_name, value in entries:
            yield from _walk(value, full_name, longest=longest)


def _join(name: str, key: object) -> str:
    """Return the name of an entry: name.key, or name@key for thresholds."""
    if isinstance(key, float):
        return f"{name}@{key:g}"
    return f"{name}.{key}" if name else str(key)


def _plain(value: object) -> object:
    """Return scores as what JSON can hold."""
    if isinstance(value, Mapping):
        return {f"{key:g}" if isinstance(key, float) else str(key): _plain(entry) for key, entry in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value.tolist()]
    if isinstance(value, (bool, int, np.integer)):
        return int(value)
    number = float(value)  # type: ignore[arg-type]
    return number if math.isfinite(number) else None


def _format_number(value: float) -> str:
    """Return a number as people read it: counts in full, the rest with four digits after the point."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.0f}" if value == int(value) and abs(value) > 1 else f"{value:.4f}"
