"""The moving average of weights."""

import pytest
import torch
from torch import nn

from tests.unit.training.tiny_runs import model_table
from vitruvian.errors import CheckpointError
from vitruvian.training.config import ModelConfig
from vitruvian.training.ema import ExponentialMovingAverage, unique_weights
from vitruvian.training.task_models import build_model


class Dot(nn.Module):
    def __init__(self, value: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), value, dtype=dtype))
        self.register_buffer("running_mean", torch.zeros(1))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)


def fill(model: Dot, value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def test_the_decay_of_each_update():
    model = Dot(0.0)
    average = ExponentialMovingAverage(model, decay=0.9)
    fill(model, 1.0)
    expected = 0.0
    for updates in range(200):
        decay = min(0.9, (1 + updates) / (10 + updates))
        assert average.current_decay == decay
        average.update(model)
        expected = decay * expected + (1 - decay)
        assert average.values["weight"].tolist() == pytest.approx([expected] * 2, abs=1e-6)
    assert average.current_decay == 0.9
    assert ExponentialMovingAverage(model, decay=0.9, warmup=0).current_decay == 0.9


def test_saved_buffers_are_averaged():
    model = Dot(0.0)
    average = ExponentialMovingAverage(model, decay=0.5, warmup=0)
    model.running_mean.fill_(4.0)
    average.update(model)
    assert set(average.values) == {"weight", "running_mean"}
    assert average.values["running_mean"].item() == 2.0


def test_small_changes_of_bfloat16_are_not_lost():
    model = Dot(1.0, torch.bfloat16)
    average = ExponentialMovingAverage(model, decay=0.999, warmup=0)
    fill(model, 1.0078125)  # the next number that bfloat16 has
    for _ in range(100):
        average.update(model)
    assert average.values["weight"].dtype == torch.float32
    assert average.values["weight"][0].item() == pytest.approx(1 + 0.0078125 * (1 - 0.999**100), rel=1e-5)


def test_applied_replaces_weights_within_the_context():
    model = Dot(0.0)
    average = ExponentialMovingAverage(model, decay=0.5, warmup=0)
    fill(model, 1.0)
    average.update(model)
    with average.applied(model):
        assert model.weight.tolist() == [0.5, 0.5]
    assert model.weight.tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="broken"), average.applied(model):
        raise RuntimeError("broken")
    assert model.weight.tolist() == [1.0, 1.0]


def test_the_average_does_not_share_memory_with_the_weights():
    model = Dot(3.0)
    average = ExponentialMovingAverage(model, decay=0.5)
    fill(model, 9.0)
    assert average.values["weight"].tolist() == [3.0, 3.0]


def test_restore():
    model = Dot(1.0)
    average, other = ExponentialMovingAverage(model, decay=0.5), ExponentialMovingAverage(Dot(7.0), decay=0.5)
    average.restore(other.values, 12)
    assert average.values["weight"].tolist() == [7.0, 7.0]
    assert average.updates == 12
    with pytest.raises(CheckpointError, match="another model"):
        average.restore({"weight": torch.zeros(2)}, 3)


def test_shared_weights_are_there_once():
    model = build_model(ModelConfig(**model_table("pose", "parts")))
    names = unique_weights(model)
    assert len({value.data_ptr() for value in names.values()}) == len(names)
    assert not [name for name in names if name.startswith("tasks.pose.model.")]
    assert set(names) == set(model.weights())
