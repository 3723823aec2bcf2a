"""Configurations of training runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from vitruvian.errors import ConfigError, InputError
from vitruvian.training.config import TrainConfig, differences, read_training_config, with_changes, write_config

TOML = """
steps = 30
out = "here"
[model]
tasks = ["pose", "parts"]
image_size = [64, 48]
[model.encoder]
hidden_size = 32
[model.loss_weights]
pose = 10
[optimizer]
lr = 1e-3
betas = [0.9, 0.95]
[data.augment]
flip = 0
"""


def test_toml_and_json_are_equivalent(tmp_path: Path):
    toml, plain = tmp_path / "run.toml", tmp_path / "run.json"
    toml.write_text(TOML)
    config = read_training_config(toml)
    assert (config.steps, config.out, config.model.tasks) == (30, "here", ["pose", "parts"])
    assert config.optimizer.lr == 1e-3
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.data.augment.flip == 0
    assert config.model.encoder == {"hidden_size": 32}
    assert config.schedule.warmup == 500  # what is left out has its default
    plain.write_text(json.dumps(config.to_dict()))
    assert read_training_config(plain).to_dict() == config.to_dict()


def test_written_configurations_read_back(tmp_path: Path):
    config = TrainConfig.from_dict({"steps": 7, "ema": {"decay": 0.5}})
    path = write_config(config, tmp_path)
    assert read_training_config(path).to_dict() == config.to_dict()
    assert json.loads(path.read_text())["ema"]["decay"] == 0.5


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"step": 3}, r"^settings: .*got 'step'\. Did you mean steps\?"),
        ({"optimizer": {"lrr": 1}}, r"^optimizer: .*got 'lrr'\. Did you mean lr\?"),
        ({"data": {"augment": {"flipp": 1}}}, r"^data\.augment: .*got 'flipp'\. Did you mean flip\?"),
        ({"extra": {"a": 1}}, r"^settings: .*got 'extra'"),
        ({"optimizer": {"lr": "fast"}}, r"^optimizer\.lr: expected float, got 'fast'"),
        ({"optimizer": 3}, r"optimizer: expected a table of settings, got 3"),
        ({"steps": 0}, r"^steps: expected at least 1, got 0"),
        ({"steps": 1.5}, r"^steps: expected int, got 1.5"),
        ({"precision": "float16"}, r"^precision: expected"),
        ({"model": {"tasks": []}}, r"model\.tasks: expected one or more"),
        ({"model": {"tasks": ["pose", "pose"]}}, r"model\.tasks: expected one or more different"),
        ({"model": {"tasks": ["poes"]}}, r"model\.tasks: .*'poes'\. Did you mean pose"),
        ({"model": {"loss_weights": {"parts": 1.0}}}, r"model\.loss_weights: expected one of pose, got 'parts'"),
        ({"model": {"loss_weights": {"pose": -1.0}}}, r"model\.loss_weights: expected numbers of at least 0"),
        ({"model": {"image_size": [64]}}, r"model\.image_size: expected \[height, width\]"),
        ({"optimizer": {"layer_decay": 0}}, r"optimizer\.layer_decay: expected above 0"),
        ({"optimizer": {"clip": 0}}, r"optimizer\.clip: expected above 0"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, r"optimizer\.betas"),
        ({"ema": {"decay": 1.0}}, r"ema\.decay: expected at least 0 and below 1"),
        ({"data": {"batch_size": 0}}, r"data\.batch_size: expected at least 1"),
        ({"data": {"augment": {"flip": 2}}}, r"data\.augment\.flip: expected at least 0 and at most 1"),
        ({"data": {"folder": "a", "stream": {"pack": "b"}}}, r"data: folder and stream\.pack cannot be combined"),
        ({"model": {"tasks": ["people"]}, "data": {"stream": {"pack": "b"}}}, r"data\.stream\.scenes"),
        ({"schedule": {"decay": "step"}}, r"schedule\.decay: expected"),
        ({"checkpoint": {"keep": 0}}, r"checkpoint\.keep: expected at least 1"),
        ({"out": ""}, r"out: expected a folder"),
    ],
)
def test_errors_name_the_setting(values: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        TrainConfig.from_dict(values)


def test_changes_from_the_command_line():
    changes = [
        "optimizer.lr=2e-3", "model.tasks=[\"parts\"]", "log.console=false", "data.folder=my set",
        "model.encoder.hidden_size=48", "optimizer.clip=null",
    ]  # fmt: skip
    config = with_changes(TrainConfig(), changes)
    assert config.optimizer.lr == 2e-3
    assert config.model.tasks == ["parts"]
    assert config.log.console is False
    assert config.data.folder == "my set"
    assert config.model.encoder == {"hidden_size": 48}
    assert config.optimizer.clip is None
    assert TrainConfig().optimizer.lr == 5e-4  # defaults are not shared


@pytest.mark.parametrize("change", ["optimizer.lr", "=3", "a..b=3"])
def test_malformed_changes_raise(change: str):
    with pytest.raises(InputError, match="expected name=value"):
        with_changes(TrainConfig(), [change])


def test_a_change_inside_a_value():
    with pytest.raises(ConfigError, match="is a value, not a table"):
        with_changes(TrainConfig(), ["steps.more=3"])


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(InputError, match="file not found"):
        read_training_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 3")
    with pytest.raises(ConfigError, match="expected TOML"):
        read_training_config(tmp_path / "bad.toml")
    (tmp_path / "run.yaml").write_text("steps: 3")
    with pytest.raises(InputError, match=r"ends in \.toml or \.json"):
        read_training_config(tmp_path / "run.yaml")


def test_differences_are_named():
    old, new = TrainConfig().to_dict(), with_changes(TrainConfig(), ["optimizer.lr=1", "steps=5"]).to_dict()
    assert differences(old, new) == ["steps: 10000 → 5", "optimizer.lr: 0.0005 → 1"]
