"""`vitruvian train`: train one or more Sapiens2 tasks as a configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "vitruvian train --config run.toml"


def train(
    config: Annotated[Path, typer.Option(help="Configuration of the run, .toml or .json.")],
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: --set optimizer.lr=1e-3. Repeat for more.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run, instead of the configuration's.")] = None,
) -> None:
    """Train a model, or resume an interrupted run. Ctrl-C saves a checkpoint and exits."""
    from vitruvian.training.config import read_training_config, with_changes
    from vitruvian.training.loop import train as run

    settings = read_training_config(config, change or ())
    if out is not None:
        settings = with_changes(settings.to_dict() | {"out": str(out)}, ())
    result = run(settings)
    typer.echo(str(result.folder))
    if result.interrupted:
        raise typer.Exit(130)
