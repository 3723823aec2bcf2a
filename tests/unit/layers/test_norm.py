import pytest
import torch
from torch.nn import functional as F

from vitruvian.layers.norm import LayerNorm2d, RMSNorm, RMSNorm2d


def norm(cls: type[RMSNorm] = RMSNorm) -> RMSNorm:
    made = cls(6, eps=1e-5)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(0.5, 2, 6))
    return made


def test_numbers() -> None:
    x = torch.randn(2, 3, 6) * 4
    torch.testing.assert_close(norm()(x), F.rms_norm(x, (6,), norm().weight, eps=1e-5))


def test_eps_counts() -> None:
    x = torch.full((1, 6), 1e-3)
    torch.testing.assert_close(RMSNorm(6, eps=1.0)(x), x / (1 + 1e-6) ** 0.5)


def test_channels_of_each_pixel() -> None:
    x = torch.randn(2, 6, 4, 5)
    want = norm()(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(norm(RMSNorm2d)(x), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_in_float32(dtype: torch.dtype) -> None:
    x = torch.full((1, 6), 300.0, dtype=dtype)  # the square overflows float16
    out = RMSNorm(6).to(dtype)(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out, torch.ones(1, 6, dtype=dtype))


def test_repr() -> None:
    assert repr(norm()) == "RMSNorm(6, eps=1e-05)"


def test_layer_norm_of_each_pixel() -> None:
    layer, x = LayerNorm2d(6, eps=1e-5), torch.randn(2, 6, 4, 5) * 3 + 1
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.5, 2, 6))
        layer.bias.copy_(torch.linspace(-1, 1, 6))
    want = F.layer_norm(x.permute(0, 2, 3, 1), (6,), layer.weight, layer.bias, 1e-5).permute(0, 3, 1, 2)
    torch.testing.assert_close(layer(x), want)
