"""The command line, `vitruvian COMMAND …`."""

from __future__ import annotations

from vitruvian.cli.app import main, run

__all__ = ["main", "run"]
