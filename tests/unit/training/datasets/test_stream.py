"""The stream of synthetic people: a batch depends on seed and step only."""

from __future__ import annotations

import pytest
import torch

from vitruvian.errors import ConfigError
from vitruvian.training.config import TrainConfig
from vitruvian.training.datasets.labels import LabeledImages
from vitruvian.training.datasets.stream import SyntheticStream
from vitruvian.training.synthetic.asset_pack import AssetPack

SIZE = (64, 48)
STREAM = {"pack": "procedural", "scenes": 2, "ring": 8, "chunk": 4, "reuse": 2.0}
CONFIG = {
    "seed": 3,
    "model": {"image_size": list(SIZE), "tasks": ["parts"]},
    "data": {"batch_size": 4, "stream": STREAM},
}


def make_stream(pack: AssetPack) -> SyntheticStream:
    return SyntheticStream(pack, TrainConfig.from_dict(CONFIG))


@pytest.fixture(scope="module")
def people(pack: AssetPack) -> SyntheticStream:
    return make_stream(pack)


@pytest.fixture(scope="module")
def steps(people: SyntheticStream) -> list[dict[str, LabeledImages]]:
    return [people.batch(step) for step in range(3)]  # the third replaces a chunk of people


def equal(a: dict[str, LabeledImages], b: dict[str, LabeledImages]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[view].image, b[view].image) for view in a)


def test_a_batch_depends_on_seed_and_step_only(
    pack: AssetPack, people: SyntheticStream, steps: list[dict[str, LabeledImages]]
) -> None:
    assert equal(make_stream(pack).batch(2), steps[2])
    assert equal(people.batch(1), steps[1])  # an earlier step
    assert not torch.equal(steps[0]["crop"].image, steps[1]["crop"].image)


def test_people_are_replaced_at_a_fixed_rate(people: SyntheticStream) -> None:
    assert people.chunks_before(0) == 2
    assert people.chunks_before(4) == 4  # 4 steps of 4 crops, used twice each: 8 people, 2 chunks


def test_landscape_and_portrait_scenes_alternate(steps: list[dict[str, LabeledImages]]) -> None:
    assert [step["scene"].size_hw for step in steps] == [(64, 48), (48, 64), (64, 48)]
    assert [step["crowd"].size_hw for step in steps] == [SIZE] * 3


def test_ring_must_be_a_multiple_of_chunk() -> None:
    with pytest.raises(ConfigError, match="multiple of chunk=4"):
        TrainConfig.from_dict({"data": {"batch_size": 4, "stream": STREAM | {"ring": 10}}})
