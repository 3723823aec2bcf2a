"""Packed checkpoints: one encoder with the heads of several tasks, such as the model inside the package."""

from __future__ import annotations

from pathlib import Path


def packed_heads(source: str | Path) -> tuple[str, ...]:
    """Return the heads of a packed checkpoint on this machine, as `Task.head` names them; empty for any other source.

    Never downloads anything. This is the only place where pipelines ask Sapiens2 about packed checkpoints.
    """
    from vitruvian.models.sapiens2.packed import packed_tasks

    return packed_tasks(source)
