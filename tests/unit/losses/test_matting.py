import math

import pytest
import torch

from vitruvian import losses
from vitruvian.errors import InputError
from vitruvian.losses import matting
from vitruvian.losses.matting import _laplacian_error, _pyramid_down

TERMS = ["alpha", "color", "laplacian", "composite", "gradient"]


def matte(B=1, H=8, W=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    alpha = torch.rand(B, 1, H, W, generator=draw)
    return torch.cat((torch.rand(B, 3, H, W, generator=draw) * alpha, alpha), dim=1)


def test_a_perfect_matte_costs_nothing():
    out = losses.matting_loss(matte(), matte())
    assert list(out.terms) == TERMS
    assert all(float(value) == 0 for value in out.terms.values())


def test_by_hand():
    target = torch.zeros(1, 4, 1, 2)
    pred = torch.tensor([[0.2, 0.0, 0.0, 0.4], [0.0, 0.0, 0.0, 0.0]]).T.reshape(1, 4, 1, 2)
    out = losses.matting_loss(pred, target)
    assert float(out.terms["alpha"]) == pytest.approx(0.2)
    assert float(out.terms["color"]) == pytest.approx(0.1)
    # over mid-gray: |0.2 − 0.4·½| + 2·|−0.4·½| = 0.4, on one of two pixels
    assert float(out.terms["composite"]) == pytest.approx(0.2)
    assert float(out.terms["gradient"]) == pytest.approx(0.16)
    assert float(out.terms["laplacian"]) == pytest.approx(0.2)  # too small for a pyramid: the plain mean


def test_the_background_decides_what_compositing_sees():
    target = matte()
    pred = target.clone()
    pred[:, 3] += 0.1  # alpha too high, color right: a dark halo over white, invisible over black
    black = losses.matting_loss(pred, target, background=torch.zeros(1, 3, 1, 1)).terms["composite"]
    white = losses.matting_loss(pred, target, background=torch.ones(1, 3, 8, 8)).terms["composite"]
    gray = losses.matting_loss(pred, target).terms["composite"]
    assert float(black) == pytest.approx(0, abs=1e-6)
    assert float(white) == pytest.approx(0.3, rel=1e-4)
    assert float(gray) == pytest.approx(0.15, rel=1e-4)


def test_composite_compares_what_premultiplied_compositing_shows():
    pred, target = matte(seed=1), matte(seed=2)
    behind = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    composites = [m[:, :3] + (1 - m[:, 3:]) * behind for m in (pred, target)]
    expected = (composites[0] - composites[1]).abs().sum(1).mean()
    torch.testing.assert_close(losses.matting_loss(pred, target, background=behind).terms["composite"], expected)


def test_each_term_reacts_to_what_it_names():
    target = matte(H=16, W=16)
    raised = target.clone()
    raised[:, 3] += 0.1
    terms = losses.matting_loss(raised, target).terms
    assert float(terms["gradient"]) == pytest.approx(0, abs=1e-6)  # a constant offset has no edges
    assert float(terms["color"]) == 0
    assert float(terms["alpha"]) == pytest.approx(0.1, rel=1e-4)
    # all bands but the coarsest vanish: 2⁴ · 0.1 / 5
    assert float(terms["laplacian"]) == pytest.approx(16 * 0.1 / 5, rel=1e-3)
    tinted = target.clone()
    tinted[:, 0] += 0.1
    terms = losses.matting_loss(tinted, target).terms
    assert float(terms["alpha"]) == float(terms["laplacian"]) == float(terms["gradient"]) == 0
    assert float(terms["color"]) == pytest.approx(0.1, rel=1e-4)


def test_the_pyramid_separates_fine_from_coarse(monkeypatch):
    fine = (torch.arange(16) % 2 * 2.0 - 1).expand(1, 1, 16, 16)  # stripes one pixel wide
    coarse = torch.cat((torch.ones(8), -torch.ones(8))).expand(1, 1, 16, 16)
    every = torch.ones(1, 1, 16, 16)
    assert float(_laplacian_error(fine, every)) < float(_laplacian_error(coarse, every))
    assert float(_pyramid_down(fine)[..., 2:-2].abs().max()) < 0.01
    monkeypatch.setattr(matting, "_PYRAMID_LEVELS", 1)
    assert float(_laplacian_error(fine, every)) == float(_laplacian_error(coarse, every)) == 1


def test_halving_keeps_constants_and_rounds_sizes_up():
    out = _pyramid_down(torch.full((2, 3, 5, 8), 0.7))
    assert out.shape == (2, 3, 3, 4)
    torch.testing.assert_close(out, torch.full_like(out, 0.7))


def test_a_pyramid_is_linear():
    pred, target, every = matte(seed=1)[:, 3:], matte(seed=2)[:, 3:], torch.ones(1, 1, 8, 8)
    shifted = _laplacian_error((pred + 5) - (target + 5), every)
    torch.testing.assert_close(_laplacian_error(pred - target, every), shifted, rtol=1e-4, atol=1e-6)


def test_masked_and_unknown_pixels_do_not_count():
    pred, target = matte(seed=1), matte(seed=2)
    mask = torch.ones(1, 8, 8)
    mask[..., 5:] = 0
    spoiled = target.clone()
    spoiled[..., 5:] = math.nan
    first = losses.matting_loss(pred, target, mask)
    for other in (losses.matting_loss(pred, spoiled, mask), losses.matting_loss(pred, spoiled)):
        for name in TERMS:
            torch.testing.assert_close(other.terms[name], first.terms[name])
    cropped = losses.matting_loss(pred[..., :5], target[..., :5])
    for name in ("alpha", "color", "composite", "gradient"):
        torch.testing.assert_close(first.terms[name], cropped.terms[name])


def test_the_share_that_counts_normalizes_the_pyramid():
    error = torch.zeros(1, 1, 32, 32)
    error[..., :16] = 0.5
    mask = torch.zeros(1, 1, 32, 32)
    mask[..., :16] = 1
    torch.testing.assert_close(_laplacian_error(error, mask), 2 * _laplacian_error(error, torch.ones_like(mask)))


def test_empty_masks_give_zero_with_a_graph():
    pred = matte().requires_grad_()
    out = losses.matting_loss(pred, matte(seed=1), torch.zeros(1, 8, 8))
    out.total.backward()
    assert out.total.item() == 0
    assert not pred.grad.any()


def test_gradients_are_finite_for_every_size_and_precision():
    for shape in ((1, 4, 1, 1), (2, 4, 3, 17), (1, 4, 33, 8)):
        pred = torch.rand(shape).bfloat16().requires_grad_()
        out = losses.matting_loss(pred, torch.rand(shape))
        out.total.backward()
        assert out.total.dtype == torch.float32
        assert pred.grad.isfinite().all()


def test_weights_tune_the_total():
    pred, target = matte(seed=1), matte(seed=2)
    out = losses.matting_loss(pred, target, weights=dict.fromkeys(TERMS, 0) | {"alpha": 3, "composite": 2})
    assert list(out.terms) == ["alpha", "composite"]
    torch.testing.assert_close(out.total, 3 * out.terms["alpha"] + 2 * out.terms["composite"])


def test_wrong_inputs_are_named():
    with pytest.raises(InputError, match=r"predicted mattes: expected shape \[B, 4, H, W\]"):
        losses.matting_loss(matte()[:, :3], matte()[:, :3])
    for shape in ((3,), (1, 4, 1, 1), (2, 3, 8, 8), (1, 3, 4, 4)):
        with pytest.raises(InputError, match="background: expected a shape that broadcasts"):
            losses.matting_loss(matte(), matte(), background=torch.zeros(shape))
