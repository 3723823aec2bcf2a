"""The table of known checkpoints has those that the tasks suggest."""

from __future__ import annotations

import pytest

from vitruvian.cli.known_checkpoints import known_checkpoints
from vitruvian.tasks import TASKS, Task

COMMANDS = {checkpoint.name: checkpoint.commands for checkpoint in known_checkpoints()}


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_suggested_checkpoints_are_known_for_the_task(task: Task) -> None:
    assert [name for name in task.checkpoints if task.name not in COMMANDS.get(name, ())] == []
