import math

import pytest
import torch

from vitruvian import losses
from vitruvian.errors import InputError
from vitruvian.losses.pointmap import _multiscale_error, _normal_error, _normals, _silog_error, pixel_rays

TERMS = ["l1", "multiscale", "silog", "shift", "normals", "intrinsics", "scale"]


def camera(focal=1200.0, cx=3.5, cy=2.5, skew=0.0):
    return torch.tensor([[[focal, skew, cx], [0.0, focal * 1.1, cy], [0.0, 0.0, 1.0]]])


def scene(H=6, W=8, K=None, seed=0):
    """Return metric points on a bumpy surface about 2 m away, exactly on the rays of the camera."""
    K = camera() if K is None else K
    z = 2 + 0.3 * torch.rand(1, 1, H, W, generator=torch.Generator().manual_seed(seed))
    return torch.cat((pixel_rays(K, size_hw=(H, W)) * z, z), dim=1), K


def loss(pred, target, K, **kwargs):
    scales = losses.canonical_scales(K)
    kwargs.setdefault("pred_scales", scales)
    return losses.pointmap_loss(pred, target, target_scales=scales, intrinsics=K, **kwargs)


def test_a_perfect_prediction_costs_nothing():
    metric, K = scene()
    out = loss(metric * losses.canonical_scales(K)[..., None, None], metric, K)
    assert list(out.terms) == TERMS
    for name, value in out.terms.items():
        assert float(value) == pytest.approx(0, abs=2e-5), name


def test_scales_are_canonical_over_actual_focal_length():
    assert losses.canonical_scales(camera(focal=1536.0)).tolist() == [[0.5]]
    assert losses.canonical_scales(camera(focal=100.0), canonical_focal=50.0).tolist() == [[0.5]]


def test_points_are_compared_in_the_canonical_camera():
    metric, K = scene()
    scale = float(losses.canonical_scales(K))
    right = loss(metric * scale, metric, K)
    left_metric = loss(metric, metric, K)  # forgot to change cameras
    assert float(right.terms["l1"]) < 1e-6 < 0.1 < float(left_metric.terms["l1"])


def test_l1_by_hand_is_relative_to_the_mean_depth():
    target = torch.zeros(1, 3, 1, 2)
    target[:, 2] = torch.tensor([2.0, 6.0])
    pred = target + torch.tensor([1.0, -2.0, 0.5]).reshape(1, 3, 1, 1)
    out = losses.pointmap_loss(pred, target, target_scales=torch.ones(1, 1))
    assert float(out.terms["l1"]) == pytest.approx(3.5 / 4)
    assert float(out.terms["multiscale"]) == pytest.approx(3.5 / 4)
    assert float(out.terms["shift"]) == pytest.approx(0, abs=1e-6)


def test_relative_terms_do_not_depend_on_distance():
    metric, K = scene()
    scale = losses.canonical_scales(K)[..., None, None]
    noise = torch.randn(metric.shape, generator=torch.Generator().manual_seed(3)) * 0.01
    near = loss((metric + noise) * scale, metric, K)
    far = loss((metric + noise) * 5 * scale, metric * 5, K)
    for name in ("l1", "multiscale", "shift", "silog", "normals"):
        torch.testing.assert_close(near.terms[name], far.terms[name], rtol=1e-3, atol=1e-6)


def test_each_term_reacts_to_what_it_names_and_only_to_that():
    metric, K = scene()
    scale = losses.canonical_scales(K)[..., None, None]
    canonical = metric * scale

    moved = loss(canonical + torch.tensor([0.1, 0.0, 0.0]).reshape(1, 3, 1, 1), metric, K).terms
    assert float(moved["shift"]) == pytest.approx(0, abs=1e-5)
    assert float(moved["silog"]) == pytest.approx(0, abs=1e-5)
    assert float(moved["normals"]) == pytest.approx(0, abs=1e-3)
    assert float(moved["intrinsics"]) == pytest.approx(0.1, rel=1e-3)
    assert float(moved["l1"]) > 0.01

    grown = loss(canonical * 1.5, metric, K).terms
    assert float(grown["intrinsics"]) == pytest.approx(0, abs=1e-5)  # still on the rays
    assert float(grown["normals"]) == pytest.approx(0, abs=1e-3)
    assert float(grown["silog"]) == pytest.approx(math.sqrt(0.5) * math.log(1.5), rel=1e-4)
    assert float(grown["l1"]) > 0.4

    wrong_scale = loss(canonical, metric, K, pred_scales=losses.canonical_scales(K) + 0.25).terms
    assert float(wrong_scale["scale"]) == pytest.approx(0.25)
    assert float(wrong_scale["l1"]) < 1e-6

    bumpy = canonical.clone()
    bumpy[:, :, ::2, ::2] *= 1.01  # along the rays
    rough = loss(bumpy, metric, K).terms
    assert float(rough["intrinsics"]) == pytest.approx(0, abs=1e-5)
    assert float(rough["normals"]) > 0.1


def test_without_camera_or_predicted_scale_those_terms_are_absent():
    metric, K = scene()
    out = losses.pointmap_loss(metric, metric, target_scales=torch.ones(1))
    assert list(out.terms) == ["l1", "multiscale", "silog", "shift", "normals"]
    with_camera = losses.pointmap_loss(metric, metric, target_scales=torch.ones(1, 1), intrinsics=K)
    assert "intrinsics" in with_camera.terms
    assert "scale" not in with_camera.terms


def test_the_total_is_the_weighted_sum():
    metric, K = scene()
    pred = metric + 0.05 * torch.randn(metric.shape, generator=torch.Generator().manual_seed(1))
    out = loss(pred, metric, K, pred_scales=torch.tensor([[0.9]]))
    total = sum(losses.POINTMAP_WEIGHTS[name] * float(out.terms[name]) for name in TERMS)
    assert float(out.total) == pytest.approx(total, rel=1e-5)
    only = loss(pred, metric, K, weights=dict.fromkeys(TERMS, 0) | {"l1": 2})
    assert list(only.terms) == ["l1"]


@pytest.mark.parametrize("filler", [math.nan, math.inf, 0.0, -1.0])
def test_points_that_are_unknown_behind_the_camera_or_masked_do_not_count(filler):
    metric, K = scene()
    pred = metric + 0.05 * torch.randn(metric.shape, generator=torch.Generator().manual_seed(1))
    expected = loss(pred[..., :4], metric[..., :4], K)
    holed = metric.clone()
    holed[:, 2, :, 4:] = filler
    mask = torch.ones(1, 6, 8)
    mask[..., 4:] = 0
    for out in (loss(pred, holed, K), loss(pred, metric, K, mask=mask)):
        for name in TERMS:
            torch.testing.assert_close(out.terms[name], expected.terms[name], rtol=1e-4, atol=1e-6)


def test_each_image_is_shifted_and_scaled_on_its_own():
    metric, _ = scene()
    other, _ = scene(seed=1)
    both = torch.cat((metric, other))
    pred = both + torch.tensor([0.2, -0.3])[:, None, None, None]
    out = losses.pointmap_loss(pred, both, target_scales=torch.ones(2, 1))
    assert float(out.terms["shift"]) == pytest.approx(0, abs=1e-5)


def test_empty_masks_give_zero_with_a_graph():
    metric, K = scene()
    pred = metric.clone().requires_grad_()
    out = loss(pred, metric, K, mask=torch.zeros(1, 6, 8))
    out.total.backward()
    assert out.total.item() == 0
    assert not pred.grad.any()
    all_nan = losses.pointmap_loss(pred, metric * math.nan, target_scales=torch.ones(1, 1))
    assert all_nan.total.item() == 0


def test_an_empty_image_in_a_batch_does_not_dilute_silog():
    depth = torch.full((2, 1, 2, 2), 2.0)
    weights = torch.tensor([1.0, 0.0])[:, None, None, None].expand(2, 1, 2, 2)
    alone = _silog_error(depth[:1] * 3, depth[:1], weights[:1])
    torch.testing.assert_close(_silog_error(depth * 3, depth, weights), alone)


def test_gradients_are_finite_at_the_target_at_zero_and_behind_the_camera():
    metric, K = scene()
    scale = losses.canonical_scales(K)[..., None, None]
    stripes = metric[..., :1].expand_as(metric)  # neighbours along x coincide: no surface, no normal
    for start in (metric * scale, torch.zeros_like(metric), -metric, stripes, (metric * scale).bfloat16()):
        pred = start.clone().requires_grad_()
        out = loss(pred, metric, K)
        out.total.backward()
        assert out.total.dtype == torch.float32
        assert out.total.isfinite()
        assert pred.grad.isfinite().all()
        assert pred.grad.abs().max() < 1e4


def test_silog():
    depth = 1 + torch.rand(1, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    common_factor = _silog_error(depth * 4, depth, torch.ones_like(depth))
    assert float(common_factor) == pytest.approx(math.log(4) * math.sqrt(0.5), rel=1e-4)
    two = torch.tensor([1.0, 1.0]).reshape(1, 1, 1, 2)
    pred = torch.tensor([math.e, 1.0]).reshape(1, 1, 1, 2)
    expected = math.sqrt(0.5 - 0.5 * 0.25)
    assert float(_silog_error(pred, two, torch.ones_like(two))) == pytest.approx(expected, rel=1e-5)


def test_multiscale_averages_before_it_compares():
    error = torch.tensor([[1.0, -1.0], [1.0, -1.0]]).repeat(4, 4)[None, None]
    every = torch.ones_like(error)
    assert float(_multiscale_error(error, every)) == 0
    assert float(_multiscale_error(error.abs(), every)) == 1
    half = every.clone()
    half[..., 1::2] = 0  # only the +1 count: their blocks average to 1, not to ½
    assert float(_multiscale_error(error, half)) == pytest.approx(1)


def test_rays_point_through_pixel_centers_and_know_skew():
    K = camera(focal=100.0, cx=3.0, cy=1.0)
    rays = pixel_rays(K, size_hw=(4, 6))
    assert rays.shape == (1, 2, 4, 6)
    assert rays[0, :, 1, 3].tolist() == [0, 0]
    assert rays[0, 0, 0, 5].item() == pytest.approx(0.02)
    assert rays[0, 1, 3, 0].item() == pytest.approx(2 / 110)
    skewed = camera(focal=100.0, skew=7.0)
    x, y = pixel_rays(skewed, size_hw=(4, 6))[0, :, 3, 5]
    u, v, _ = skewed[0] @ torch.stack((x, y, torch.ones(())))
    assert (float(u), float(v)) == (pytest.approx(5, abs=1e-4), pytest.approx(3, abs=1e-4))


def test_normals_of_a_plane_facing_the_camera_point_away_from_it():
    u, v = torch.meshgrid(torch.arange(4.0), torch.arange(3.0), indexing="xy")
    plane = torch.stack((u, v, torch.full_like(u, 5.0)))[None]
    normals, valid = _normals(plane, torch.ones(1, 1, 3, 4))
    assert normals.shape == (1, 3, 2, 3)
    torch.testing.assert_close(normals[0, :, 0, 0], torch.tensor([0.0, 0.0, 1.0]))
    assert valid.all()
    tilted = plane + torch.stack((torch.zeros_like(u), torch.zeros_like(u), u))[None]
    turned, _ = _normals(tilted, torch.ones(1, 1, 3, 4))
    torch.testing.assert_close(turned[0, :, 1, 1], torch.tensor([-(0.5**0.5), 0.0, 0.5**0.5]))
    error = float(_normal_error(tilted, plane, torch.ones(1, 1, 3, 4)))
    assert error == pytest.approx(1 - 0.5**0.5 + (0.5**0.5 + 1 - 0.5**0.5) / 3, rel=1e-4)


def test_normals_need_three_valid_points_that_span_a_plane():
    u, v = torch.meshgrid(torch.arange(3.0), torch.arange(3.0), indexing="xy")
    plane = torch.stack((u, v, torch.ones_like(u)))[None]
    weights = torch.ones(1, 1, 3, 3)
    weights[..., 0, 1] = 0
    _, valid = _normals(plane, weights)
    assert valid[0, 0].tolist() == [[0, 0], [1, 1]]
    line = torch.stack((u + v, torch.zeros_like(u), torch.ones_like(u)))[None]
    assert not _normals(line, torch.ones(1, 1, 3, 3))[1].any()


def test_wrong_inputs_are_named():
    metric, K = scene()
    with pytest.raises(InputError, match=r"target_scales: expected shape \[1, 1\], got \[2, 1\]"):
        losses.pointmap_loss(metric, metric, target_scales=torch.ones(2, 1))
    with pytest.raises(InputError, match=r"target_scales: expected positive numbers, got \[-1.0\]"):
        losses.pointmap_loss(metric, metric, target_scales=-torch.ones(1, 1))
    with pytest.raises(InputError, match=r"pred_scales: expected shape"):
        losses.pointmap_loss(metric, metric, target_scales=torch.ones(1, 1), pred_scales=torch.ones(3))
    with pytest.raises(InputError, match=r"intrinsics: expected shape \[B, 3, 3\], got \[3, 3\]"):
        losses.pointmap_loss(metric, metric, target_scales=torch.ones(1, 1), intrinsics=torch.eye(3))
    with pytest.raises(InputError, match="expected one camera for each of 1 images, got 2"):
        losses.pointmap_loss(metric, metric, target_scales=torch.ones(1, 1), intrinsics=K.expand(2, 3, 3))
    with pytest.raises(InputError, match="expected positive focal lengths"):
        losses.canonical_scales(-K)
    with pytest.raises(InputError, match="target pointmaps"):
        losses.pointmap_loss(metric, metric[..., :3], target_scales=torch.ones(1, 1))


def test_steps_of_depth_are_those_of_the_logarithm_whatever_the_factor():
    target = torch.full((1, 1, 1, 4), 2.0)
    pred = 3 * torch.tensor([[[[1.0, math.e, 1.0, 1.0]]]])  # one pixel too far by the factor e
    everywhere = torch.ones(1, 1, 1, 4)
    assert float(losses.depth_steps(pred, target, everywhere)) == pytest.approx(2 / 3)  # of three steps, two are 1
    assert float(losses.depth_steps(5 * target, target, everywhere)) == pytest.approx(0, abs=1e-6)
    hidden = torch.tensor([[[[1.0, 0.0, 1.0, 1.0]]]])  # pairs with an unknown pixel do not count
    assert float(losses.depth_steps(pred, target * hidden, hidden)) == pytest.approx(0, abs=1e-6)
    assert float(losses.depth_steps(pred.mT, target.mT, everywhere.mT)) == pytest.approx(2 / 3)


def test_depth_steps_have_a_gradient_for_noise_of_any_amplitude():
    ripple = torch.tensor([1.0, -1.0]).repeat(4).view(1, 1, 1, 8)
    for height in (0.001, 0.1):
        pred = (2 * (1 + height * ripple)).requires_grad_()
        losses.depth_steps(pred, torch.full_like(pred, 2.0), torch.ones_like(pred)).backward()
        assert (pred.grad[..., 1:-1] * ripple[..., 1:-1]).min() > 0.1


def test_points_are_compared_after_the_best_factor():
    target = torch.zeros(2, 3, 1, 2)
    target[:, 2] = 2.0
    target[:, 0, 0, 1] = 1.0  # points (0, 0, 2) and (1, 0, 2)
    weights, length = torch.ones(2, 1, 1, 2), torch.tensor([1.0, 4.0])
    assert float(losses.aligned_distance(0.3 * target, target, weights, length)) == pytest.approx(0, abs=2e-4)
    pred = target.clone()
    pred[:, 0] = 0.0  # the factor is 1, and one of two points is off by 1
    assert float(losses.aligned_distance(7 * pred, target, weights, length)) == pytest.approx(
        (0.5 + 0.125) / 2, abs=2e-4
    )
    assert float(losses.aligned_distance(7 * pred, target, weights * torch.tensor([1.0, 0.0]), length)) < 2e-4
    weights[1, ..., 0] = 0  # the second image has one point, and counts as much as the first
    assert float(losses.aligned_distance(pred, target, weights, length)) == pytest.approx((0.5 + 0.25) / 2, abs=2e-4)
    nothing = torch.zeros_like(pred, requires_grad=True)
    losses.aligned_distance(nothing, target, weights, length).backward()
    assert nothing.grad is not None
    assert nothing.grad.isfinite().all()
