"""The stream of synthetic people: a batch depends on seed and step only."""

from __future__ import annotations

import pytest
import torch

from vitruvian.errors import ConfigError
from vitruvian.training.config import TrainConfig
from vitruvian.training.datasets.stream import SyntheticStream
from vitruvian.training.synthetic.procedural_pack import procedural_pack

SIZE = (64, 48)
STREAM = {"pack": "procedural", "scenes": 2, "ring": 8, "chunk": 4, "reuse": 2.0}
CONFIG = {"seed": 3, "model": {"image_size": list(SIZE)}, "data": {"batch_size": 4, "stream": STREAM}}


def stream() -> SyntheticStream:
    return SyntheticStream(procedural_pack(0), TrainConfig.from_dict(CONFIG))


class TestStream:
    def test_a_batch_depends_on_seed_and_step_only(self) -> None:
        in_order = stream()
        steps = [in_order.batch(step) for step in range(3)]  # the third replaces a chunk of people
        alone = stream().batch(2)
        assert torch.equal(steps[2].crops.image, alone.crops.image)
        assert steps[2].scenes is not None
        assert alone.scenes is not None
        assert torch.equal(steps[2].scenes.image, alone.scenes.image)
        assert torch.equal(in_order.batch(1).crops.image, steps[1].crops.image)  # an earlier step

    def test_people_are_replaced_at_a_fixed_rate(self) -> None:
        people = stream()
        first, second = people.batch(0), people.batch(1)
        assert not torch.equal(first.crops.image, second.crops.image)
        assert people.chunks_before(0) == 2
        assert people.chunks_before(4) == 4  # 4 steps of 4 crops, used twice each: 8 people, 2 chunks

    def test_landscape_and_portrait_scenes_alternate(self) -> None:
        people = stream()
        shapes = []
        for step in range(2):
            scenes = people.batch(step).scenes
            assert scenes is not None
            shapes.append(tuple(scenes.image.shape[-2:]))
        assert sorted(shapes) == [(48, 64), (64, 48)]

    def test_ring_must_be_a_multiple_of_chunk(self) -> None:
        with pytest.raises(ConfigError, match="multiple of chunk=4"):
            TrainConfig.from_dict({"data": {"batch_size": 4, "stream": STREAM | {"ring": 10}}})
