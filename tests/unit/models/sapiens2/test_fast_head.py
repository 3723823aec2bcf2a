"""Heads on channels-last maps, with convolutions by minimal filters where those pay, equal the plain ones."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.families.sapiens2 import tiny
from vitruvian.kernels import winograd_half
from vitruvian.models.sapiens2 import heads
from vitruvian.models.sapiens2.heads import ConvBlock, DecodeHead, FastHead, pictures_at_a_time
from vitruvian.weights import save_weights

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]
SHUFFLE = {
    "upsample_out_channels": [128, 24],
    "upsample_kernel_sizes": [3, 3],
    "use_pixel_shuffle": True,
    "conv_out_channels": [16],
    "conv_kernel_sizes": [3],
}
DECONVOLUTION = {"upsample_out_channels": [160, 24], "conv_out_channels": [16]}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":  # the choice of a GPU, with the twins of its kernels
        monkeypatch.setattr(heads, "takes_kernel", lambda *tensors, **options: True)
    return str(request.param)


def build(head: dict[str, Any], device: str) -> DecodeHead:
    torch.manual_seed(0)
    made = DecodeHead(tiny(hidden_size=512, num_labels=5, head_config=head)).eval()
    with torch.no_grad():
        for value in made.parameters():
            value.add_(torch.randn_like(value) * 0.05)
    return made.to(device, torch.bfloat16 if device == "cuda" else torch.float32)


def fast(head: DecodeHead) -> FastHead:
    blocks = (head.input_conv, *head.upsample_layers, *head.conv_layers)
    return FastHead([block for block in blocks if isinstance(block, ConvBlock)], head.predictor)


def features(device: str, batch: int = 5) -> Tensor:
    made = torch.randn(batch, 512, 22, 25, generator=torch.Generator().manual_seed(1))
    return made.to(device, torch.bfloat16 if device == "cuda" else torch.float32)


def watch(head: FastHead) -> list[int]:
    """Return a list that the numbers of the blocks go into as they run."""
    numbers: list[int] = []
    run = head.run_block

    def run_block(number: int, *args: Any, **options: Any) -> Any:
        numbers.append(number)
        return run(number, *args, **options)

    head.run_block = run_block  # type: ignore[method-assign]
    return numbers


def same(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape
    assert got.is_contiguous()
    error = (got.float() - want.float()).norm() / want.float().norm()
    assert error < (2e-2 if got.is_cuda else 1e-5), f"{error:.2g}"


@torch.inference_mode()
@pytest.mark.parametrize("config", [SHUFFLE, DECONVOLUTION])
def test_heads_say_the_same(config: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd_half, "WORTH_TILES", 5 * 42)
    head, given = build(config, device), features(device)
    quick, want = fast(head), head(given)
    ran = watch(quick)
    same(quick(given), want)
    # Four pictures have tiles enough, the fifth alone has not; small convolutions never take tiles.
    assert sorted(quick.tiled) == ([0, 1] if config is SHUFFLE else [0])
    assert ran == [0, 1, 2, 3][: 4 if config is SHUFFLE else 3] * 2
    # Fewer pictures in all do without the memory of factors.
    few = fast(head)
    same(few(given[:3]), want[:3])
    assert not few.tiled


@torch.no_grad()
def test_changed_weights_and_biases_count(device: str) -> None:
    head, given = build(SHUFFLE, device), features(device, 4)
    quick = fast(head)
    before = quick(given)
    for value in head.parameters():
        value.add_(torch.randn_like(value) * 0.1)
    after = quick(given)
    same(after, head(given))
    assert not torch.allclose(before, after, rtol=0.1)
    bias: Any = head.upsample_layers[0].convolution.bias
    bias.add_(torch.arange(len(bias), device=device) % 4)  # another one for each phase: the norm does not hide it
    same(quick(given), head(given))


@torch.no_grad()
def test_copies_lay_out_their_own_weights(device: str) -> None:
    head, given = build(DECONVOLUTION, device), features(device, 4)
    head.fast = fast(head)
    want = head(given)
    for again in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert isinstance(again.fast, FastHead)
        assert not again.fast.tiled
        same(again(given), want)
        again.upsample_layers[0].convolution.weight.neg_()
        assert not torch.allclose(again(given), want, rtol=0.1)
    same(head(given), want)


@pytest.mark.parametrize("loaded", ["plainly", "in inference mode"])
def test_weights_are_held_once(loaded: str, device: str, tmp_path: Path) -> None:
    with torch.inference_mode(loaded == "in inference mode"):
        head = build(SHUFFLE, device)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    given, names = features(device, 2), [name for name, _ in head.named_parameters()]
    quick = fast(head)
    with torch.inference_mode():
        first = quick(given)
    places = [value.data_ptr() for value in head.parameters()]
    assert not quick.tiled
    for block in quick.blocks:
        weight = block.convolution.get_parameter("weight")
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert weight.untyped_storage().nbytes() == weight.nbytes
    with torch.no_grad():  # laid out once, and for good
        torch.testing.assert_close(quick(given), first, rtol=0, atol=0)
    assert [value.data_ptr() for value in head.parameters()] == places
    assert [name for name, _ in head.named_parameters()] == names
    for name, value in head.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad(), torch.inference_mode(loaded == "in inference mode"):
        (file,) = save_weights(head.state_dict(), tmp_path)
        written = load_file(file)
        assert all(torch.equal(written[name], value.cpu()) for name, value in before.items())
        head.load_state_dict(written)
        same(quick(given), first)


@torch.no_grad()
def test_gradients_flow_after_laying_out(device: str) -> None:
    head, given = build(DECONVOLUTION, device), features(device, 2)
    fast(head)(given)
    with torch.enable_grad():
        head(given).float().square().sum().backward()
    for value in head.parameters():
        assert value.grad is not None
        assert value.grad.isfinite().all()


def test_fewer_pictures_at_a_time_where_maps_are_large(device: str) -> None:
    blocks = fast(build(DECONVOLUTION, "cpu")).blocks  # 160 channels at 2 × the size, 24 at 4 ×
    for height, expected in ((64, 4), (256, 2), (512, 2)):
        assert pictures_at_a_time(blocks, torch.empty(0, 512, height, 256, device="meta")) == expected
