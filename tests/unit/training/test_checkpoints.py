"""Checkpoints of runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.tiny_runs import model_table
from vitruvian.errors import CheckpointError, InputError
from vitruvian.training import checkpoints as checkpoint
from vitruvian.training.checkpoints import (
    TrainingState,
    _list_checkpoints,
    _optimizer_tensors,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from vitruvian.training.config import ModelConfig, OptimizerConfig
from vitruvian.training.ema import ExponentialMovingAverage
from vitruvian.training.optimizer import build_optimizer
from vitruvian.training.seeds import derive_seed, seed_step
from vitruvian.training.task_models import build_model


class Setup:
    """A small model that has taken a few steps."""

    def __init__(self, seed: int = 0, steps: int = 2, tasks: tuple[str, ...] = ("pose", "parts")) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = build_model(ModelConfig(**model_table(*tasks)))
        self.optimizer = build_optimizer(self.model, OptimizerConfig())
        self.average = ExponentialMovingAverage(self.model, decay=0.9)
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        for number, parameter in enumerate(self.model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.1 * (number % 7 - 3))
        self.optimizer.step()
        self.average.update(self.model)

    def save(self, folder: Path, step: int, keep: int = 9, **state: Any) -> Path:
        return save_checkpoint(
            folder, model=self.model, optimizer=self.optimizer, ema=self.average,
            state=TrainingState(step=step, **state), config={"steps": 5}, keep=keep,
        )  # fmt: skip

    def load(self, saved: Path) -> tuple[TrainingState, dict[str, Any]]:
        return load_checkpoint(saved, model=self.model, optimizer=self.optimizer, ema=self.average)

    def everything(self) -> dict[str, torch.Tensor]:
        found = {f"w/{name}": value.detach().clone() for name, value in self.model.named_parameters()}
        found |= {f"o/{name}": value.clone() for name, value in _optimizer_tensors(self.optimizer).items()}
        return found | {f"a/{name}": value.clone() for name, value in self.average.values.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_checkpoint_restores_everything_exactly(tmp_path: Path):
    first = Setup()
    saved = first.save(tmp_path, 2, skipped=3, scores={"a": 0.5, "b": float("nan")})
    other = Setup(seed=1, steps=0)
    assert not same(first.everything(), other.everything())
    state, config = other.load(saved)
    assert same(first.everything(), other.everything())
    assert (state.step, state.skipped, state.scores, config) == (2, 3, {"a": 0.5}, {"steps": 5})
    assert other.average.updates == 2
    first.step()
    other.step()
    assert same(first.everything(), other.everything())


def test_checkpoints_contain_no_pickles(tmp_path: Path):
    saved = Setup().save(tmp_path, 2)
    assert sorted(path.name for path in saved.iterdir()) == [
        "average.safetensors", "optimizer.safetensors", "state.json", "weights.safetensors",
    ]  # fmt: skip
    json.loads((saved / "state.json").read_text())


def test_only_the_newest_checkpoints_remain(tmp_path: Path):
    setup = Setup()
    for step in (1, 2, 3, 10):
        setup.save(tmp_path, step, keep=2)
    assert [path.name for path in _list_checkpoints(tmp_path)] == ["step-00000003", "step-00000010"]
    assert find_checkpoint(tmp_path, "auto") == tmp_path / "checkpoints" / "step-00000010"


def test_a_failed_write_leaves_older_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    setup = Setup()
    setup.save(tmp_path, 1)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        setup.save(tmp_path, 2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_incomplete_checkpoints_are_ignored(tmp_path: Path):
    Setup().save(tmp_path, 1)
    (tmp_path / "checkpoints" / ".step-00000002.77.part").mkdir()
    (tmp_path / "checkpoints" / "step-x").mkdir()
    assert [path.name for path in _list_checkpoints(tmp_path)] == ["step-00000001"]


def test_find_checkpoint(tmp_path: Path):
    assert find_checkpoint(tmp_path, "auto") is None
    assert find_checkpoint(tmp_path, "never") is None
    saved = Setup().save(tmp_path, 1)
    assert find_checkpoint(tmp_path / "elsewhere", str(saved)) == saved
    with pytest.raises(InputError, match="holds a run already"):
        find_checkpoint(tmp_path, "never")
    with pytest.raises(InputError, match="expected auto, never or the folder"):
        find_checkpoint(tmp_path, "yesterday")


def test_mismatched_checkpoints_raise(tmp_path: Path):
    saved = Setup().save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="of another model"):
        Setup(tasks=("pose",)).load(saved)
    frozen = Setup(steps=0)
    for parameter in frozen.model.encoder.parameters():  # type: ignore[union-attr]
        parameter.requires_grad_(False)
    frozen.optimizer = build_optimizer(frozen.model, OptimizerConfig())
    with pytest.raises(CheckpointError, match="trained other weights"):
        frozen.load(saved)
    (saved / "average.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(CheckpointError, match="expected a whole file"):
        Setup().load(saved)
    (saved / "average.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"expected average\.safetensors, found none"):
        Setup().load(saved)
    (saved / "state.json").write_text('{"format": "other"}')
    with pytest.raises(CheckpointError, match="expected a checkpoint of a run"):
        Setup().load(saved)


def test_a_checkpoint_without_an_average(tmp_path: Path):
    setup = Setup()
    saved = save_checkpoint(
        tmp_path, model=setup.model, optimizer=setup.optimizer, ema=None, state=TrainingState(step=1), config={}, keep=1
    )
    with pytest.raises(CheckpointError, match="has no average of weights"):
        setup.load(saved)
    load_checkpoint(saved, model=setup.model, optimizer=setup.optimizer, ema=None)


def test_weights_without_gradients_have_no_optimizer_state(tmp_path: Path):
    setup = Setup(steps=0)
    for parameter in setup.model.tasks["pose"].decode_head.parameters():  # type: ignore[index,union-attr]
        parameter.grad = torch.ones_like(parameter)
    setup.optimizer.step()
    saved = setup.save(tmp_path, 1)
    other = Setup(seed=3, steps=0)
    other.load(saved)
    assert same(setup.everything(), other.everything())
    assert not [name for name in _optimizer_tensors(other.optimizer) if "encoder" in name]


def test_every_step_has_its_own_seed():
    seed_step(3, 7)
    first = torch.rand(4)
    torch.rand(100)
    seed_step(3, 7)
    assert torch.equal(torch.rand(4), first)
    seeds = {derive_seed(seed, step, process) for seed in range(4) for step in range(-1, 50) for process in range(3)}
    assert len(seeds) == 4 * 51 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 23) != derive_seed(12, 3)
