"""Rendered people in few bytes."""

import pytest
import torch

from vitruvian.training.synthetic.asset_pack import AssetPack
from vitruvian.training.synthetic.people_batch import sample_people
from vitruvian.training.synthetic.render import RenderOptions, render
from vitruvian.training.synthetic.samples import (
    Samples,
    _compress,
    decode_depth,
    depth_meters,
    encode_depth,
    render_samples,
)

OPTIONS = RenderOptions(size_hw=(48, 36), surroundings=2, surroundings_size=24, shadow_size=48, occluders=0.0)


@pytest.fixture(scope="module")
def samples(pack: AssetPack) -> Samples:
    return render_samples(pack, 6, seed=7, options=OPTIONS)


def test_compressed_ground_truth(pack: AssetPack) -> None:
    generator = torch.Generator().manual_seed(5)
    truth = render(sample_people(pack, 3, generator), pack, generator=generator, options=OPTIONS)
    small = _compress(truth)
    assert torch.allclose(small.image / 255, truth.image, atol=0.003)
    assert torch.allclose(small.normals / 127, truth.normals, atol=0.005)
    assert torch.allclose(depth_meters(small), truth.pointmap[:, 2:], atol=2e-4)
    assert torch.equal(small.parts[:, 0], truth.parts)


def test_a_seed_gives_the_same_people(pack: AssetPack, samples: Samples) -> None:
    assert torch.equal(samples.image, render_samples(pack, 6, seed=7, options=OPTIONS).image)
    assert not torch.equal(samples.image[:1], render_samples(pack, 1, seed=8, options=OPTIONS).image)


def test_write_overwrites_a_slice(samples: Samples) -> None:
    ring = samples.new_empty(8)
    ring.write(2, samples)
    assert torch.equal(ring.keypoints[2:], samples.keypoints)
    assert torch.equal(ring.select(torch.tensor([3])).image[0], samples.image[1])


def test_depth_encoding_error_is_below_one_step() -> None:
    generator = torch.Generator().manual_seed(0)
    depth = (2 + 2.5 * torch.rand(3, 20, 30, generator=generator)) * (torch.rand(3, 20, 30, generator=generator) > 0.4)
    depth[1], depth[2] = 0.0, 3.0  # nothing, and a plane
    codes, low, step = encode_depth(depth.double(), codes=65534)
    assert (codes.min(), codes.max()) == (0, 65534)
    assert step[0] < 4e-5
    again = decode_depth(codes, low, step).float()
    assert (again - depth).abs().amax() <= step[0] / 2 + 1e-6
    assert torch.equal(again == 0, depth == 0)
    assert torch.equal(again[1:], depth[1:])
