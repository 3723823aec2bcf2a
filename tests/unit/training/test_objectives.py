"""The objective: which tasks a step trains, and the losses."""

from __future__ import annotations

import pytest
import torch

from tests.unit.training.datasets.test_stream import SIZE, make_stream
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.training.objectives import TASK_WEIGHTS, Objective, _scale_heads
from vitruvian.training.synthetic.asset_pack import AssetPack


def test_scale_heads_changes_predictors_only() -> None:
    config = Sapiens2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_attention_heads=2,
        intermediate_size=16, image_size=[32, 32], num_first_full_attention_layers=1, num_last_full_attention_layers=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Sapiens2MultiTask(config, {"people": {"upsample_out_channels": [8]}, "normal": {"conv_out_channels": [8]}})
    before = {name: value.clone() for name, value in model.weights().items()}
    _scale_heads(model)
    for name, value in model.weights().items():
        if name.endswith("predictor.weight"):
            assert torch.allclose(value, before[name] * 0.05)
        elif name == "tasks.people.decode_head.predictor.bias":
            assert value.tolist() == [-4.0, 0.0, 0.0, 0.0, 0.0]
        else:
            assert torch.equal(value, before[name])


def objective(tasks_per_step: int | None, *, loss_recipe: bool = False) -> Objective:
    config = Sapiens2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_attention_heads=2,
        intermediate_size=16, image_size=list(SIZE), num_first_full_attention_layers=1,
        num_last_full_attention_layers=0,
    )  # fmt: skip
    dense = {"upsample_out_channels": [8, 8, 8]}
    heads = {"normal": dense, "matting": dense, "albedo": dense, "seg": dense, "people": {"conv_out_channels": [8]}}
    heads |= {"pose": {"upsample_out_channels": [8, 8]}, "pointmap": {"upsample_out_channels": [8] * 4}}
    model = Sapiens2MultiTask(config, heads)
    return Objective(model, tasks_per_step=tasks_per_step, loss_recipe=loss_recipe)


def test_alternating_tasks_keep_their_expected_weight() -> None:
    each, generator = objective(1), torch.Generator().manual_seed(0)
    drawn = [each._step_weights(generator) for _ in range(600)]
    for weights in drawn:
        assert sum(weights[task] > 0 for task in ("normals", "matte", "albedo", "pointmap")) == 1
        assert (weights["matte"] > 0) == (weights["scene_matte"] > 0) == (weights["crowd_matte"] > 0)
        assert weights["parts"] == TASK_WEIGHTS["parts"]
    mean = sum(weights["normals"] for weights in drawn) / len(drawn)
    assert mean == pytest.approx(TASK_WEIGHTS["normals"], rel=0.15)


def test_a_view_trains_the_tasks_whose_labels_it_has(pack: AssetPack) -> None:
    batch = make_stream(pack).batch(0)
    loss, terms = objective(1)(batch, torch.Generator().manual_seed(0))
    assert loss.isfinite()
    assert {"parts", "people", "pose", "pose_peaks", "scene_parts", "crowd_parts"} <= terms.keys()
    assert len(terms.keys() & {"normals", "matte", "albedo", "pointmap"}) == 1
    _, everything = objective(None)(batch, torch.Generator().manual_seed(0))
    assert {name for name in everything if "/" not in name} == TASK_WEIGHTS.keys()
    _, published = objective(None, loss_recipe=True)(batch, torch.Generator().manual_seed(0))
    further = {"pose_peaks", "depth_steps", "points"}
    assert {name for name in published if "/" not in name} == TASK_WEIGHTS.keys() - further
    assert {"matte/alpha", "scene_matte/alpha"} <= published.keys()
