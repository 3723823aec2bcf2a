"""Checkpoints from which a run resumes exactly: the same weights, bit for bit, as without the interruption.

    RUN/checkpoints/step-00001000/
        weights.safetensors      the trained weights, float32
        average.safetensors      their exponential moving average, if any
        optimizer.safetensors    both moments and the step of every weight, by its name
        state.json               step, counts, seed and the configuration

Random numbers need no state: every step has its own seed (`seed_step`), and batches are functions of their number.
Folders are written under a temporary name and renamed when complete; nothing is pickled.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitruvian.errors import CheckpointError, InputError
from vitruvian.filesystem.atomic import write_text
from vitruvian.filesystem.json_files import JsonObject, read_json_object
from vitruvian.training.ema import ExponentialMovingAverage, unique_weights
from vitruvian.training.optimizer import named_weights
from vitruvian.weights import unshared

_FORMAT = "vitruvian-run-1"
_NAME = re.compile(r"step-(\d{8,})")
_STATE_KEYS = ("exp_avg", "exp_avg_sq", "step")  # Muon has no second one


@dataclass
class TrainingState:
    """Progress of a run."""

    step: int = 0  # completed
    skipped: int = 0  # of them with gradients that were not finite
    consecutive_nonfinite: int = 0
    seconds: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)  # of the last evaluation


def save_checkpoint(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: ExponentialMovingAverage | None,
    state: TrainingState,
    config: Mapping[str, object],
    keep: int,
) -> Path:
    """Write a checkpoint into the run's folder and remove the oldest ones; return its path."""
    path = folder / "checkpoints" / f"step-{state.step:08d}"
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _save(unique_weights(model), partial / "weights.safetensors")
        if ema is not None:
            _save(ema.values, partial / "average.safetensors")
        _save(_optimizer_tensors(optimizer), partial / "optimizer.safetensors")
        about = {
            "format": _FORMAT,
            **asdict(replace(state, scores=_finite(state.scores))),
            "average_updates": None if ema is None else ema.updates,
            "config": dict(config),
        }
        (partial / "state.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for old in _list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return path


def save_scores(path: Path, scores: Mapping[str, float]) -> None:
    """Write the scores of an evaluation into the checkpoint of its step, which was saved before."""
    about = read_json_object(path / "state.json") | {"scores": _finite(scores)}
    write_text(path / "state.json", json.dumps(about, indent=2) + "\n")


def load_checkpoint(
    path: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, ema: ExponentialMovingAverage | None
) -> tuple[TrainingState, JsonObject]:
    """Load a checkpoint into a model, its optimizer and its EMA; return progress and configuration of the run."""
    about = read_json_object(_require_file(path, "state.json"))
    if about.get("format") != _FORMAT:
        raise CheckpointError(f"{path}: expected a checkpoint of a run, got the format {about.get('format')!r}.")
    weights = _load(path, "weights.safetensors")
    wanted = unique_weights(model)
    different = sorted(weights.keys() ^ wanted.keys()) or [n for n in wanted if wanted[n].shape != weights[n].shape]
    if different:
        raise CheckpointError(
            f"{path}: its weights are of another model ({', '.join(different[:5])} differ). Use the configuration that "
            "the run was started with, or another folder."
        )
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(weights[name])
    _restore_optimizer(optimizer, _load(path, "optimizer.safetensors"), path)
    if ema is not None:
        if about["average_updates"] is None:
            raise CheckpointError(f"{path}: has no average of weights. Set ema.decay=0 to resume without one.")
        ema.restore(_load(path, "average.safetensors"), about["average_updates"])
    known = {name: about[name] for name in TrainingState.__dataclass_fields__}
    return TrainingState(**known), about["config"]


def find_checkpoint(folder: Path, resume: str) -> Path | None:
    """Return the checkpoint to resume from: with "auto" the last one of a run, if any; otherwise the one named."""
    known = _list_checkpoints(folder)
    if resume == "auto":
        return known[-1] if known else None
    if resume == "never":
        if known:
            raise InputError(
                f"{folder}: holds a run already ({known[-1].name}), and checkpoint.resume is 'never'. Choose another "
                "folder for out, or resume='auto' to resume it."
            )
        return None
    path = Path(resume).expanduser()
    if not (path / "state.json").is_file():
        raise InputError(f"checkpoint.resume: expected auto, never or the folder of a checkpoint, got {resume!r}.")
    return path


def _list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a run, the oldest first."""
    paths = (folder / "checkpoints").glob("step-*")
    numbered = {int(match[1]): path for path in paths if (match := _NAME.fullmatch(path.name)) and path.is_dir()}
    return [numbered[step] for step in sorted(numbered)]


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as ``name/weight``; weights without a gradient so far have none."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in named_weights(optimizer):
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = torch.as_tensor(value)
    return tensors


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Restore the state that `_optimizer_tensors` returned."""
    unknown = set(tensors)
    states: dict[int, dict[str, Tensor]] = {}
    for number, (name, parameter) in enumerate(named_weights(optimizer)):
        state = {key: tensors[f"{key}/{name}"] for key in _STATE_KEYS if f"{key}/{name}" in tensors}
        if state:
            if not {"exp_avg", "step"} <= state.keys() or state["exp_avg"].shape != parameter.shape:
                raise CheckpointError(
                    f"{path}: the optimizer's state of {name} does not match the weight. Start a new run."
                )
            states[number] = state
        unknown -= {f"{key}/{name}" for key in state}
    if unknown:
        raise CheckpointError(f"{path}: the optimizer trained other weights ({', '.join(sorted(unknown)[:5])}).")
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _finite(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores that JSON has a value for."""
    return {name: value for name, value in scores.items() if math.isfinite(value)}


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file(
        {name: unshared(value.detach().cpu()) for name, value in tensors.items()}, path, metadata={"format": "pt"}
    )


def _load(folder: Path, name: str) -> dict[str, Tensor]:
    path = _require_file(folder, name)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: expected a whole file, but {error}. Use another checkpoint.") from error


def _require_file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise CheckpointError(f"{folder}: expected {name}, found none. Use another checkpoint.")
    return folder / name
