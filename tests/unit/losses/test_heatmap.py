import inspect

import pytest
import torch
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.losses import HeatmapLossWeights, heatmap_loss, heatmap_mse

torch_has_weights = pytest.mark.skipif(
    "weight" not in inspect.signature(F.mse_loss).parameters, reason="this torch has no mse_loss(weight=)"
)


def maps(seed=0, shape=(2, 3, 4, 5)):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, requires_grad=True), torch.rand(shape, generator=draw)


def test_without_weights_it_is_torchs():
    pred, target = maps()
    assert torch.equal(heatmap_mse(pred, target), F.mse_loss(pred, target))


@torch_has_weights
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1, 1), (2, 3, 4, 5)])
def test_with_weights_it_is_torchs(shape):
    pred, target = maps()
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    full = weights.reshape(*shape, *(1,) * (4 - len(shape))).expand_as(pred)
    expected = F.mse_loss(pred, target, weight=full)
    ours = heatmap_mse(pred, target, weights)
    assert torch.equal(ours, expected)
    torch.testing.assert_close(torch.autograd.grad(ours, pred), torch.autograd.grad(expected, pred))


def test_by_hand():
    pred, target = torch.tensor([[[[1.0, 2.0]], [[0.0, 4.0]]]]), torch.zeros(1, 2, 1, 2)
    assert float(heatmap_mse(pred, target)) == pytest.approx(21 / 4)
    assert float(heatmap_mse(pred, target, torch.tensor([[3.0, 1.0]]))) == pytest.approx((3 * 5 + 16) / 8)


def test_a_joint_with_weight_zero_does_not_count():
    pred, target = maps()
    spoiled = target.clone()
    spoiled[:, 1] += 100
    weights = torch.tensor([[1.0, 0.0, 1.0]]).expand(2, 3)
    assert torch.equal(heatmap_mse(pred, target, weights), heatmap_mse(pred, spoiled, weights))


def test_all_weights_zero_give_zero_with_a_graph():
    pred, target = maps()
    loss = heatmap_mse(pred, target, torch.zeros(2, 3))
    loss.backward()
    assert loss.item() == 0
    assert not pred.grad.any()


def test_low_precision_is_summed_in_float32():
    pred = torch.full((1, 1, 64, 64), 0.1, dtype=torch.bfloat16)
    loss = heatmap_mse(pred, torch.zeros_like(pred))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(pred[0, 0, 0, 0].float()) ** 2, rel=1e-5)


def test_the_recipe_is_ten_times_the_error_and_can_be_tuned():
    pred, target = maps()
    weights = torch.rand(2, 3)
    plain = heatmap_mse(pred, target, weights)
    out = heatmap_loss(pred, target, weights)
    assert torch.equal(out.terms["mse"], plain)
    torch.testing.assert_close(out.total, plain * 10)
    tuned = heatmap_loss(pred, target, weights, recipe=HeatmapLossWeights(mse=2.5))
    torch.testing.assert_close(tuned.total, plain * 2.5)


def test_wrong_shapes_are_named():
    pred, target = maps()
    with pytest.raises(InputError, match=r"heatmaps: .*\[2, 3, 4, 5\] and \[2, 3, 5, 4\]"):
        heatmap_mse(pred, target.mT)
    with pytest.raises(InputError, match=r"heatmap weights: expected shape \[2, 3\].*got \[2, 3, 1\]"):
        heatmap_mse(pred, target, torch.ones(2, 3, 1))
