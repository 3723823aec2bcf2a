"""The stream of synthetic people: the same data for a step, however one came there."""

from __future__ import annotations

import pytest
import torch

from vitruvian.errors import ConfigError
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.training.config import TrainConfig
from vitruvian.training.datasets.augmentation import (
    _darken,
    _lower_resolution,
    _random_defocus,
    _random_filters,
    degrade_crops,
    photometric,
)
from vitruvian.training.datasets.labels import keypoint_targets
from vitruvian.training.datasets.stream import SyntheticStream
from vitruvian.training.objectives import StreamObjective, _scale_heads
from vitruvian.training.synthetic.procedural_pack import procedural_pack
from vitruvian.training.synthetic.rng import Rng

SIZE = (64, 48)
STREAM = {"pack": "procedural", "scenes": 2, "ring": 8, "chunk": 4, "reuse": 2.0}
CONFIG = {"seed": 3, "model": {"image_size": list(SIZE)}, "data": {"batch_size": 4, "stream": STREAM}}


def stream() -> SyntheticStream:
    return SyntheticStream(procedural_pack(0), TrainConfig.from_dict(CONFIG))


class TestStream:
    def test_a_step_sees_the_same_however_one_came_there(self) -> None:
        walked = stream()
        steps = [walked.batch(step) for step in range(6)]
        jumped = stream().batch(5)
        assert torch.equal(steps[5].crops.image, jumped.crops.image)
        assert steps[5].scenes is not None
        assert jumped.scenes is not None
        assert torch.equal(steps[5].scenes.image, jumped.scenes.image)
        back = walked.batch(1)  # the ring turns back as well
        assert torch.equal(back.crops.image, steps[1].crops.image)

    def test_steps_differ_and_people_are_replaced(self) -> None:
        people = stream()
        first, second = people.batch(0), people.batch(1)
        assert not torch.equal(first.crops.image, second.crops.image)
        assert people.chunks_before(0) == 2
        assert people.chunks_before(4) == 4  # 4 steps of 4 crops, used twice each: 8 people, 2 chunks

    def test_scenes_lie_and_stand_in_turn(self) -> None:
        people = stream()
        shapes = []
        for step in range(2):
            scenes = people.batch(step).scenes
            assert scenes is not None
            shapes.append(tuple(scenes.image.shape[-2:]))
        assert sorted(shapes) == [(48, 64), (64, 48)]

    def test_a_ring_that_is_no_multiple_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="multiple of chunk=4"):
            TrainConfig.from_dict({"data": {"batch_size": 4, "stream": STREAM | {"ring": 10}}})


def test_photometric_stays_a_image_and_follows_its_seed() -> None:
    images = torch.rand(4, 3, 16, 12)
    before = images.clone()
    one = photometric(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    same = photometric(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    other = photometric(images, Rng(torch.Generator().manual_seed(2), "cpu"))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.min() >= 0
    assert one.max() <= 1
    assert torch.equal(images, before)


def test_heatmaps_peak_where_keypoints_are() -> None:
    keypoints = torch.tensor([[[0.0, 0.0, 2.0], [47.0, 63.0, 1.0], [20.0, 30.0, 0.0]]])
    maps, weights = keypoint_targets(keypoints, size_hw=SIZE, stride=4, sigma=1.0)
    assert maps.shape == (1, 3, 16, 12)
    assert maps[0, 0].argmax() == 0
    assert maps[0, 1].argmax() == 16 * 12 - 1
    assert maps[0, 0].max() == pytest.approx(1.0)
    assert maps[0, 0, 0, 1] == pytest.approx(torch.tensor(-0.5).exp().item(), abs=1e-6)
    assert weights.tolist() == [[1.0, 1.0, 0.0]]


def test_calm_start_shrinks_predictors_alone() -> None:
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


class TestTurns:
    def objective(self, at_once: int | None) -> StreamObjective:
        config = Sapiens2Config(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_attention_heads=2,
            intermediate_size=16, image_size=list(SIZE), num_first_full_attention_layers=1,
            num_last_full_attention_layers=0,
        )  # fmt: skip
        dense = {"upsample_out_channels": [8, 8, 8]}
        heads = {"normal": dense, "matting": dense, "albedo": dense, "seg": dense, "people": {"conv_out_channels": [8]}}
        return StreamObjective(Sapiens2MultiTask(config, heads), at_once=at_once)

    def test_tasks_take_turns_and_count_as_much_on_average(self) -> None:
        objective, generator = self.objective(1), torch.Generator().manual_seed(0)
        drawn = [objective._step_weights(generator) for _ in range(600)]
        for weights in drawn:
            assert sum(weights[task] > 0 for task in ("normal", "matting", "albedo")) == 1
            assert (weights["matting"] > 0) == (weights["scene_matting"] > 0) == (weights["crowd_matting"] > 0)
            assert weights["seg"] == objective.weights["seg"]
        mean = sum(weights["normal"] for weights in drawn) / len(drawn)
        assert mean == pytest.approx(objective.weights["normal"], rel=0.15)

    def test_terms_are_those_that_were_drawn(self) -> None:
        batch = stream().batch(0)
        loss, terms = self.objective(1)(batch, torch.Generator().manual_seed(0))
        assert {"seg", "people", "scene_seg", "crowd_seg"} <= terms.keys()
        assert len(terms.keys() & {"normal", "matting", "albedo"}) == 1
        assert loss.isfinite()
        _, everything = self.objective(None)(batch, torch.Generator().manual_seed(0))
        assert {"normal", "matting", "albedo", "scene_matting", "crowd_matting"} <= everything.keys()


def test_images_from_afar_lose_detail_and_keep_their_colours():
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(64, 3, 48, 48, generator=draw)
    images[:, 0] += 1
    images = images / 2
    found = _lower_resolution(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    same = (found == images).flatten(1).all(1)
    assert 24 < same.sum() < 54  # about six in ten
    detail = (found[..., 1:] - found[..., :-1]).abs().mean(dim=(1, 2, 3))
    assert detail[~same].max() < 0.6 * detail[same].min()
    torch.testing.assert_close(found.mean(dim=(2, 3)), images.mean(dim=(2, 3)), rtol=0, atol=0.02)
    again = _lower_resolution(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    assert torch.equal(found, again)


def test_what_lies_beyond_a_image_stays_black():
    images = torch.rand(24, 3, 64, 48, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    images[:, :, 40:] = 0.0
    found = degrade_crops(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    assert (found[:, :, 40:] == 0).all()
    assert (found[:, :, :40] != images[:, :, :40]).any(dim=(1, 2, 3)).all()


def test_a_tenth_of_the_images_is_dim_and_some_of_those_have_a_colour():
    images = torch.full((2000, 3, 1, 1), 0.5)
    found = _darken(images, Rng(torch.Generator().manual_seed(1), "cpu"))[:, :, 0, 0]  # [n, 3]
    dark = found.amax(1) < 0.5
    assert (found[~dark] == 0.5).all()
    assert 0.07 < dark.float().mean() < 0.13
    assert found.amin() < 0.08
    assert found[dark].amax() > 0.25
    spread = found[dark].amax(1) / found[dark].amin(1)
    assert 0.2 < (spread > 1.001).float().mean() < 0.5


def test_some_images_are_out_of_focus_and_keep_their_light():
    images = torch.zeros(300, 3, 48, 36)
    images[:, :, 24, 18] = 1.0  # a point of light becomes a disc
    found = _random_defocus(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    changed = (found != images).flatten(1).any(1)
    assert 0.03 < changed.float().mean() < 0.12
    assert found[changed].amax() < 0.9
    torch.testing.assert_close(found.sum((2, 3)), images.sum((2, 3)), rtol=1e-3, atol=1e-3)


def test_some_images_have_other_textures_and_the_same_light():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(400, 3, 24, 18, generator=generator) * 0.5 + 0.25
    found = _random_filters(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    changed = (found != images).flatten(1).any(1)
    assert 0.06 < changed.float().mean() < 0.15
    torch.testing.assert_close(found.mean((2, 3)), images.mean((2, 3)), rtol=0, atol=0.02)
    apart = (found - images)[changed].flatten(1).norm(dim=1) / images[changed].flatten(1).std(1)
    assert apart.min() > 0
    assert apart.max() > 10
    again = _random_filters(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    assert torch.equal(found, again)
