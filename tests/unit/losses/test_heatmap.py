import inspect

import pytest
import torch
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.losses import heatmap_loss, heatmap_mse, heatmap_peaks
from vitruvian.losses.heatmap import draw_heatmaps

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


def test_the_recipe_is_ten_times_the_error():
    pred, target = maps()
    weights = torch.rand(2, 3)
    plain = heatmap_mse(pred, target, weights)
    out = heatmap_loss(pred, target, weights)
    assert torch.equal(out.terms["mse"], plain)
    torch.testing.assert_close(out.total, plain * 10)


def test_wrong_shapes_are_named():
    pred, target = maps()
    with pytest.raises(InputError, match=r"heatmaps: .*\[2, 3, 4, 5\] and \[2, 3, 5, 4\]"):
        heatmap_mse(pred, target.mT)
    with pytest.raises(InputError, match=r"heatmap weights: expected shape \[2, 3\].*got \[2, 3, 1\]"):
        heatmap_mse(pred, target, torch.ones(2, 3, 1))


def test_peaks_are_zero_for_a_perfect_map_and_grow_with_distance():
    def drawn(x: float) -> torch.Tensor:
        maps, _ = draw_heatmaps(torch.tensor([[[x, 6.0]]]), torch.ones(1, 1), size_hw=(12, 16), sigma=1.5)
        return maps

    goal, weights = drawn(5.0), torch.ones(1, 1)
    assert heatmap_peaks(goal, goal, weights).abs() < 1e-5
    near, far = heatmap_peaks(drawn(6.0), goal, weights), heatmap_peaks(drawn(10.0), goal, weights)
    assert 0 < near < far
    by_hand = torch.nn.functional.kl_div(
        (12 * drawn(6.0)).flatten(2).log_softmax(2), (12 * goal).flatten(2).softmax(2), reduction="sum"
    )
    torch.testing.assert_close(near, by_hand)
    assert heatmap_peaks(drawn(6.0), goal, torch.zeros(1, 1)) == 0


def test_an_empty_map_is_drawn_to_the_peak():
    goal = torch.zeros(1, 1, 4, 4)
    goal[0, 0, 1, 2] = 1
    flat = torch.zeros(1, 1, 4, 4, requires_grad=True)
    heatmap_peaks(flat, goal, torch.ones(1, 1)).backward()
    slope = flat.grad[0, 0]
    assert slope[1, 2] < 0
    assert slope[0, 0] > 0
    assert slope.argmin() == 6
