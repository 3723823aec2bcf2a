"""The objective of streams: which tasks a step trains, and the losses."""

from __future__ import annotations

import pytest
import torch

from tests.unit.training.datasets.test_stream import SIZE, make_stream
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.training.objectives import StreamObjective, _scale_heads
from vitruvian.training.synthetic.pack import Pack


def test_scale_heads_changes_predictors_only() -> None:
    config = Sapiens2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_attention_heads=2,
        intermediate_size=16, image_size=[32, 32], num_first_full_attention_layers=1, num_last_full_attention_layers=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Sapiens2MultiTask(config, {"people": {"upsample_out_channels": [8]}, "normal": {"conv_out_channels": [8]}})
    before = {name: value.clone() for name, value in model.weights().items()}
    _scale_heads(model, scale=0.5, people=-3.0)
    for name, value in model.weights().items():
        if name.endswith("predictor.weight"):
            assert torch.allclose(value, before[name] * 0.5)
        elif name == "tasks.people.decode_head.predictor.bias":
            assert value.tolist() == [-3.0, 0.0, 0.0, 0.0, 0.0]
        else:
            assert torch.equal(value, before[name])


class TestStreamObjective:
    def objective(self, at_once: int | None) -> StreamObjective:
        config = Sapiens2Config(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_attention_heads=2,
            intermediate_size=16, image_size=list(SIZE), num_first_full_attention_layers=1,
            num_last_full_attention_layers=0,
        )  # fmt: skip
        dense = {"upsample_out_channels": [8, 8, 8]}
        heads = {"normal": dense, "matting": dense, "albedo": dense, "seg": dense, "people": {"conv_out_channels": [8]}}
        return StreamObjective(Sapiens2MultiTask(config, heads), at_once=at_once)

    def test_alternating_tasks_keep_their_expected_weight(self) -> None:
        objective, generator = self.objective(1), torch.Generator().manual_seed(0)
        drawn = [objective._step_weights(generator) for _ in range(600)]
        for weights in drawn:
            assert sum(weights[task] > 0 for task in ("normal", "matting", "albedo")) == 1
            assert (weights["matting"] > 0) == (weights["scene_matting"] > 0) == (weights["crowd_matting"] > 0)
            assert weights["seg"] == objective.weights["seg"]
        mean = sum(weights["normal"] for weights in drawn) / len(drawn)
        assert mean == pytest.approx(objective.weights["normal"], rel=0.15)

    def test_terms_of_the_chosen_tasks(self, pack: Pack) -> None:
        batch = make_stream(pack).batch(0)
        loss, terms = self.objective(1)(batch, torch.Generator().manual_seed(0))
        assert {"seg", "people", "scene_seg", "crowd_seg"} <= terms.keys()
        assert len(terms.keys() & {"normal", "matting", "albedo"}) == 1
        assert loss.isfinite()
        _, everything = self.objective(None)(batch, torch.Generator().manual_seed(0))
        assert {"normal", "matting", "albedo", "scene_matting", "crowd_matting"} <= everything.keys()
