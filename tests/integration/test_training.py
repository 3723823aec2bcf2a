"""Training end to end on one CPU: loss falls, runs go on exactly, mistakes are survived."""

import json
import math
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from tests.unit.training.tiny_runs import PLAIN, SIZE_HW, TASKS, make_set, run_table, small_run
from vitruvian import AutoModelForSemanticSegmentation
from vitruvian.cli.commands.evaluate import evaluate
from vitruvian.cli.commands.synthesize import synthesize
from vitruvian.cli.commands.train import train as train_command
from vitruvian.errors import InputError, MissingExtraError
from vitruvian.training import loop, seeds
from vitruvian.training.config import TrainConfig
from vitruvian.training.datasets import folder as folder_module
from vitruvian.training.datasets import stream as stream_module
from vitruvian.training.log import METRICS_FILE, read_metrics
from vitruvian.training.loop import train
from vitruvian.training.objectives import TASK_WEIGHTS
from vitruvian.training.seeds import derive_seed
from vitruvian.training.task_models import open_models

pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 8, seed=1)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def losses(out: Path, name: str = "loss") -> list[float]:
    return [line[name] for line in read_metrics(out / METRICS_FILE) if line["kind"] == "train"]


def last_weights(out: Path) -> dict[str, Tensor]:
    place = sorted((out / "checkpoints").iterdir())[-1]
    return {
        f"{name}/{key}": value
        for name in ("weights", "average", "optimizer")
        for key, value in load_file(place / f"{name}.safetensors").items()
    }


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_learns(task: str, folder: Path, tmp_path: Path):
    still = {"flip": 0.0, "scale": 0.0, "shift": 0.0, "color": 0.0, "gray": 0.0}
    config = small_run(
        tmp_path, folder, task, steps=18, data__augment=still, data__batch_size=6, optimizer__lr=1e-2,
        optimizer__layer_decay=1.0, data__view="image" if task == "people" else "person",
    )  # fmt: skip
    result = train(config)
    assert (result.steps, result.skipped, result.interrupted) == (18, 0, False)
    found = losses(tmp_path)
    assert len(found) == 18
    assert sum(found[-3:]) < 0.9 * sum(found[:3])


def test_several_tasks_together(folder: Path, tmp_path: Path):
    config = small_run(
        tmp_path, folder, "parts", "normals", "matte", steps=8, precision="bfloat16", accumulation=2,
        model__loss_weights={"normals": 0.7}, data__validation=str(folder), evaluation__images=3,
        model__gradient_checkpointing=True,
    )  # fmt: skip
    result = train(config)
    for name in ("loss", "parts/cross_entropy"):
        assert losses(tmp_path, name)[-1] < losses(tmp_path, name)[0]
    line = read_metrics(tmp_path / METRICS_FILE)[0]
    weights = TASK_WEIGHTS | {"normals": 0.7}
    parts = sum(weights[task] * line[task] for task in ("parts", "normals", "matte"))
    assert line["loss"] == pytest.approx(parts, rel=1e-3)
    assert set(result.scores) >= {"parts/classes.mean_iou", "normals/mean", "matte/alpha.mse"}
    assert list(open_models(tmp_path)) == ["parts", "normals", "matte"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_ends_with_the_same_weights(optimizer: str, folder: Path, tmp_path: Path):
    tasks = ("pose", "parts")
    options: dict[str, Any] = {"model__encoder__drop_path_rate": 0.2, "accumulation": 2, "checkpoint__every": 2}
    options["optimizer__kind"] = optimizer
    train(small_run(tmp_path / "whole", folder, *tasks, steps=6, **options))

    class PowerError(RuntimeError):
        pass

    def fails(model: nn.Module, step: int) -> dict[str, float]:
        raise PowerError(f"cut after {step}")

    parts = small_run(
        tmp_path / "parts",
        folder,
        *tasks,
        steps=6,
        evaluation__every=3,
        data__workers=2,
        **options,
    )
    with pytest.raises(PowerError, match="cut after 3"):  # one step after the checkpoint
        train(parts, evaluate=fails)
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()] == ["step-00000002"]
    result = train(parts, evaluate=lambda model, step: {"step": float(step)})
    assert result.steps == 6
    assert result.scores == {"step": 6.0}
    assert same(last_weights(tmp_path / "whole"), last_weights(tmp_path / "parts"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")  # no line is there twice
    for task in tasks:
        a, b = (load_file(tmp_path / name / "model" / task / "model.safetensors") for name in ("whole", "parts"))
        assert same(a, b)


def test_another_seed_is_another_run(folder: Path, tmp_path: Path):
    for seed in (0, 1):
        train(small_run(tmp_path / str(seed), folder, "parts", steps=1, seed=seed))
    assert not same(last_weights(tmp_path / "0"), last_weights(tmp_path / "1"))


def test_ctrl_c_saves_and_ends(folder: Path, tmp_path: Path):
    def press(model: nn.Module, step: int) -> dict[str, float]:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return {}

    before = signal.getsignal(signal.SIGINT)
    config = small_run(tmp_path / "run", folder, "parts", steps=5, evaluation__every=1)
    result = train(config, evaluate=press)
    assert (result.interrupted, result.steps) == (True, 3)
    assert result.checkpoint is not None
    assert result.checkpoint.name == "step-00000003"
    assert signal.getsignal(signal.SIGINT) is before
    assert train(config).steps == 5
    train(small_run(tmp_path / "whole", folder, "parts", steps=5))
    assert same(last_weights(tmp_path / "run"), last_weights(tmp_path / "whole"))


class Line(nn.Module):
    """y = w x, which can be told to break."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(1, 1, bias=False)

    def forward(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        loss = (self.model(batch) - 2 * batch).square().mean()
        return loss, {"error": loss.sqrt()}


class Numbers:
    def __init__(self, *broken: int) -> None:
        self.broken, self.asked = broken, []  # type: ignore[var-annotated]

    def batch(self, step: int) -> Tensor:
        self.asked.append(step)
        return torch.full((4, 1), math.nan if step in self.broken else 1.0)


def test_custom_objective(tmp_path: Path):
    numbers = Numbers()
    config = small_run(tmp_path, None, "pose", steps=40, optimizer__lr=0.2, accumulation=2)
    objective = Line()
    result = train(
        config, objective=objective, batches=numbers, evaluate=lambda model, step: {"w": model.weight.item()}
    )
    assert numbers.asked == list(range(80))
    assert losses(tmp_path, "error")[-1] < 0.2
    assert 1 < result.scores["w"] < 2.5  # the average
    assert objective.model.weight.item() != result.scores["w"]
    assert not (tmp_path / "model").exists()


def test_evaluation_between_two_lines_of_the_log(tmp_path: Path):
    class Slow(Numbers):
        def batch(self, step: int) -> Tensor:
            time.sleep(0.05)
            return super().batch(step)

    config = small_run(tmp_path, None, "pose", steps=3, log__every=3, evaluation__every=2)
    train(config, objective=Line(), batches=Slow(), evaluate=lambda model, step: {})
    assert losses(tmp_path, "steps/s")[0] <= 20
    state = json.loads((tmp_path / "checkpoints" / "step-00000003" / "state.json").read_text())
    assert state["seconds"] >= 0.15


def test_a_finished_run_returns_the_scores_of_its_last_evaluation(tmp_path: Path):
    config = small_run(tmp_path, None, "pose", steps=3, evaluation__every=2)

    def run() -> dict[str, float]:
        return train(
            config,
            objective=Line(),
            batches=Numbers(),
            evaluate=lambda model, step: {"step": float(step), "none": math.nan},
        ).scores

    assert run()["step"] == 3
    assert run() == {"step": 3}


def test_nonfinite_steps_are_skipped_and_counted(tmp_path: Path):
    config = small_run(tmp_path, None, "pose", steps=12, max_nonfinite_steps=4)
    result = train(config, objective=Line(), batches=Numbers(3, 4, 9))
    assert result.skipped == 3
    assert math.isfinite(result.loss)
    assert [line["skipped"] for line in read_metrics(tmp_path / METRICS_FILE)][-1] == 3
    assert all(torch.isfinite(value).all() for value in last_weights(tmp_path).values())


def test_many_nonfinite_steps_end_the_run(tmp_path: Path):
    config = small_run(tmp_path, None, "pose", steps=50, max_nonfinite_steps=4, checkpoint__every=5)
    with pytest.raises(InputError, match=r"none of the last 4 steps.*step-00000005"):
        train(config, objective=Line(), batches=Numbers(*range(6, 99)))


def test_the_learning_rate_and_clipping(tmp_path: Path):
    config = small_run(
        tmp_path, None, "pose", steps=4, optimizer__lr=1.0, schedule__warmup=2, schedule__warmup_start=0.5,
        optimizer__clip=1e-4,
    )  # fmt: skip
    objective = Line()
    start = objective.model.weight.item()
    train(config, objective=objective, batches=Numbers())
    assert losses(tmp_path, "lr") == pytest.approx([0.5, 0.75, 1.0, 0.5])
    assert all(norm > 0.1 for norm in losses(tmp_path, "gradient_norm"))  # as it was before clipping
    assert start != objective.model.weight.item()


def test_accumulated_batches_count_as_one(tmp_path: Path):
    norms = {}
    for accumulation in (1, 3):
        torch.manual_seed(0)
        objective, out = Line(), tmp_path / str(accumulation)
        train(
            small_run(out, None, "pose", steps=3, accumulation=accumulation, optimizer__lr=0.1),
            objective=objective,
            batches=Numbers(),
        )
        norms[accumulation] = [*losses(out, "gradient_norm"), *losses(out), objective.model.weight.item()]
    assert norms[1] == pytest.approx(norms[3], rel=1e-5)


def test_stream_of_synthetic_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_module, "RenderOptions", lambda size_hw, **_: replace(PLAIN, size_hw=size_hw))
    stream = {"pack": "procedural", "scenes": 1, "ring": 8, "chunk": 4, "reuse": 4.0}
    table = run_table(tmp_path / "whole", None, "pose", "parts", "people", steps=4, checkpoint__every=2)
    table["data"]["stream"] = stream
    train(TrainConfig.from_dict(table))
    table["out"] = str(tmp_path / "parts")
    with pytest.raises(KeyError, match="stop"):
        train(
            TrainConfig.from_dict(table | {"evaluation": {"every": 3}}),
            evaluate=lambda model, step: {}["stop"],
        )
    train(TrainConfig.from_dict(table))
    assert same(last_weights(tmp_path / "whole"), last_weights(tmp_path / "parts"))


def test_each_use_of_random_numbers_has_seeds_of_its_own(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_module, "RenderOptions", lambda size_hw, **_: replace(PLAIN, size_hw=size_hw))
    uses: dict[str, set[int]] = {}
    for module in (loop, seeds, stream_module, folder_module):

        def recorded(*numbers: int) -> int:
            caller = sys._getframe(1).f_code.co_qualname  # the function that draws
            uses.setdefault(caller, set()).add(derive_seed(*numbers))
            return derive_seed(*numbers)

        monkeypatch.setattr(module, "derive_seed", recorded)
    train(small_run(tmp_path / "folder", folder, "parts", steps=6))
    stream = {"pack": "procedural", "ring": 8, "chunk": 4, "reuse": 1.0}
    train(small_run(tmp_path / "stream", None, "parts", steps=6, data__stream=stream))
    assert len(uses) == 7
    assert len(set().union(*uses.values())) == sum(map(len, uses.values()))


def test_without_data(tmp_path: Path):
    with pytest.raises(InputError, match="expected a dataset to train on, got none"):
        train(small_run(tmp_path, None, "pose"))


def test_without_accelerate(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtraError, match=r"vitruvian\[train\]"):
        train(small_run(tmp_path, folder, "pose"))


def test_existing_runs_are_not_overwritten(folder: Path, tmp_path: Path):
    train(small_run(tmp_path, folder, "parts", steps=1))
    with pytest.raises(InputError, match="holds a run already"):
        train(small_run(tmp_path, folder, "parts", steps=2, checkpoint__resume="never"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder for the run, got a file"):
        train(small_run(tmp_path / "file", folder, "parts"))


def test_the_commands(tmp_path: Path):
    app = typer.Typer(pretty_exceptions_enable=False)
    for command in (synthesize, evaluate):
        app.command()(command)
    app.command(name="train")(train_command)
    runner = CliRunner()

    def call(*arguments: str) -> str:
        result = runner.invoke(app, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    size = f"{SIZE_HW[0]}x{SIZE_HW[1]}"
    out = call("synthesize", "--out", str(tmp_path / "set"), "--count", "4", "--size", size, "--supersample", "1")
    assert out.splitlines() == [str(tmp_path / "set" / "annotations.json"), str(tmp_path / "set" / "contact-sheet.jpg")]
    (tmp_path / "run.json").write_text(json.dumps(run_table(tmp_path / "a", tmp_path / "set", "parts", steps=9)))
    out = call("train", "--config", str(tmp_path / "run.json"), "--set", "steps=2", "--out", str(tmp_path / "run"))
    assert out.splitlines() == [str(tmp_path / "run")]
    assert json.loads((tmp_path / "run" / "train.json").read_text())["steps"] == 2
    assert isinstance(AutoModelForSemanticSegmentation.from_pretrained(tmp_path / "run" / "model"), nn.Module)
    out = call("evaluate", str(tmp_path / "run"), str(tmp_path / "set"), "--json", str(tmp_path / "scores.json"))
    assert "classes.mean_iou" in out
    fewer = ("--view", "image", "--max-crops", "2")
    assert call("evaluate", str(tmp_path / "run"), str(tmp_path / "set"), *fewer) != out
    assert "parts" in json.loads((tmp_path / "scores.json").read_text())["scores"]
    for arguments, said in [
        (("evaluate", str(tmp_path / "run"), str(tmp_path / "set"), "--task", "pose"), "--task"),
        (("synthesize", "--out", str(tmp_path / "x"), "--size", "big"), "--size"),
    ]:
        with pytest.raises(InputError, match=said):
            call(*arguments)
