import math

import pytest
import torch

from vitruvian.errors import ConfigError, InputError
from vitruvian.losses import (
    ALBEDO_WEIGHTS,
    NORMAL_WEIGHTS,
    POINTMAP_WEIGHTS,
    albedo_loss,
    heatmap_loss,
    matting_loss,
    normal_loss,
    pointmap_loss,
    segmentation_loss,
)
from vitruvian.losses.heatmap import MSE_WEIGHT
from vitruvian.losses.terms import _pixel_weights, sum_gradient_error, weighted_mean, weighted_sum, zero_like


def test_the_published_weights_are_the_defaults():
    assert MSE_WEIGHT == 10
    assert NORMAL_WEIGHTS == {"cosine": 10, "l1": 1, "gradient": 10}
    assert ALBEDO_WEIGHTS == {"l1": 2, "gradient": 2, "chromaticity": 1}
    assert POINTMAP_WEIGHTS == {
        "l1": 2, "multiscale": 1, "silog": 1, "intrinsics": 1, "shift": 1, "normals": 2, "scale": 4
    }  # fmt: skip


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "10", None, True])
def test_impossible_weights_are_refused_by_name(value):
    x = torch.rand(1, 3, 2, 2)
    with pytest.raises(ConfigError, match="weights, l1: expected a finite number"):
        normal_loss(x, x, weights={"l1": value})


def test_weights_of_unknown_terms_are_refused():
    x = torch.rand(1, 3, 2, 2)
    with pytest.raises(ConfigError, match=r"expected one of .*'cosin'.*cosine"):
        normal_loss(x, x, weights={"cosin": 1})


def test_terms_are_added_with_their_weights_and_left_out_at_zero():
    x = torch.tensor([2.0], requires_grad=True)
    called = []
    terms = {"cosine": lambda: x.sum(), "l1": lambda: x.sum() * 3, "gradient": lambda: called.append(1)}
    out = weighted_sum(terms, NORMAL_WEIGHTS, {"cosine": 0.5, "l1": 2.0, "gradient": 0}, anchor=x)
    assert not called
    assert {name: float(value) for name, value in out.terms.items()} == {"cosine": 2.0, "l1": 6.0}
    assert float(out.total) == 13.0


def test_no_terms_leave_a_zero_with_a_graph_even_for_nan():
    x = torch.full((3,), float("nan"), requires_grad=True)
    out = weighted_sum({"l1": lambda: x.sum()}, NORMAL_WEIGHTS, {"l1": 0}, anchor=x)
    out.total.backward()
    assert out.total.item() == 0
    assert x.grad.tolist() == [0, 0, 0]
    assert zero_like(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32


def test_masks_of_both_shapes_and_all_kinds_mean_the_same():
    like = torch.zeros(2, 3, 4, 5)
    mask = torch.rand(2, 4, 5) > 0.5
    forms = [mask, mask[:, None], mask.float(), mask.long()[:, None], mask[:, None].to(torch.float16)]
    for form in forms:
        torch.testing.assert_close(_pixel_weights(form, like), mask[:, None].float())
    assert _pixel_weights(None, like).sum() == 40
    with pytest.raises(InputError, match=r"mask: expected shape \[2, 1, 4, 5\] or \[2, 4, 5\], got \[2, 5, 4\]"):
        _pixel_weights(torch.ones(2, 5, 4), like)


def test_weighted_mean_of_fractional_and_zero_weights():
    values = torch.tensor([[[[1.0, 5.0]], [[2.0, 7.0]]]])  # two channels, two pixels
    assert float(weighted_mean(values, torch.tensor([[[[0.1, 0.3]]]]))) == pytest.approx((0.1 * 3 + 0.3 * 12) / 0.4)
    assert float(weighted_mean(values, torch.zeros(1, 1, 1, 2))) == 0


def test_gradient_error_sees_only_pairs_of_valid_neighbours():
    error = torch.tensor([[[[0.0, 1.0, 5.0], [0.0, 3.0, 5.0]]]])
    every = torch.ones(1, 1, 2, 3)
    assert float(sum_gradient_error(error, every)) == pytest.approx((1 + 16 + 9 + 4) / 4 + 4 / 3)
    left = every.clone()
    left[..., 2] = 0
    assert float(sum_gradient_error(error, left)) == pytest.approx((1 + 9) / 2 + 4 / 2)
    below = every.clone()
    below[..., 0, 1:] = 0
    assert float(sum_gradient_error(error, below)) == pytest.approx((9 + 4) / 2)


def test_gradient_error_of_one_pixel_is_zero():
    assert sum_gradient_error(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)) == 0


def recipe_inputs():
    draw = torch.Generator().manual_seed(0)
    pred, target = (torch.rand(2, 4, 8, 8, generator=draw) + 0.5 for _ in range(2))
    labels = torch.randint(0, 4, (2, 16, 16), generator=draw)
    camera = torch.tensor([[9.0, 0.0, 3.5], [0.0, 9.0, 3.5], [0.0, 0.0, 1.0]]).expand(2, 3, 3)
    return pred, target, labels, camera, torch.tensor([[0.7], [1.2]])


def every_recipe(pred, target, labels, camera, scales):
    return {
        "heatmap": heatmap_loss(pred, target, target[:, :, 0, 0]),
        "segmentation": segmentation_loss(pred, labels, dice_weight=1.0, class_weights=[1.0, 2.0, 0.5, 1.0]),
        "normal": normal_loss(pred[:, :3], target[:, :3]),
        "albedo": albedo_loss(pred[:, :3], target[:, :3]),
        "pointmap": pointmap_loss(
            pred[:, :3], target[:, :3], target_scales=scales, pred_scales=scales * 2, intrinsics=camera
        ),
        "matting": matting_loss(pred, target),
    }


def test_every_recipe_compiles_without_a_break():
    compiled = torch.compile(every_recipe, backend="eager", fullgraph=True)(*recipe_inputs())
    for name, out in every_recipe(*recipe_inputs()).items():
        torch.testing.assert_close(compiled[name].total, out.total)


def test_autocast_changes_no_loss():
    plain = every_recipe(*recipe_inputs())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = every_recipe(*recipe_inputs())
    for name, out in plain.items():
        assert torch.equal(out.total, cast[name].total), name
        for term, value in out.terms.items():
            assert torch.equal(value, cast[name].terms[term]), (name, term)
            assert float(value) > 0, (name, term)
