import torch

from vitruvian.layers.residual import DropPath, LayerScale


def test_layer_scale() -> None:
    scale = LayerScale(3, value=0.5)
    assert torch.equal(scale(torch.ones(2, 4, 3)), torch.full((2, 4, 3), 0.5))
    with torch.no_grad():
        scale.lambda1.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(scale(torch.ones(1, 3)), torch.tensor([[1.0, 2.0, 3.0]]))


class TestDropPath:
    def test_does_nothing_outside_training_or_without_a_rate(self) -> None:
        x = torch.randn(4, 2)
        assert DropPath(0.9).eval()(x) is x
        assert DropPath(0.0).train()(x) is x

    def test_drops_whole_samples_and_scales_the_rest(self) -> None:
        torch.manual_seed(0)
        out = DropPath(0.25).train()(torch.ones(4000, 2, 3))
        kept = out[:, 0, 0] > 0
        assert torch.equal(out, torch.where(kept[:, None, None], 1 / 0.75, 0.0).expand(4000, 2, 3))
        assert abs(kept.float().mean() - 0.75) < 0.03

    def test_keeps_the_type(self) -> None:
        assert DropPath(0.5).train()(torch.ones(4, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16

    def test_repr(self) -> None:
        assert repr(DropPath(0.5)) == "DropPath(rate=0.5)"
