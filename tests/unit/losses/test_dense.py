import math

import pytest
import torch
from torch.nn import functional as F

from vitruvian import losses
from vitruvian.errors import ConfigError, InputError


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def label_map(*shape, classes, seed=0):
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


# Segmentation


@pytest.mark.parametrize("size", [(4, 6), (8, 12), (9, 7)])
def test_the_default_is_cross_entropy_on_resized_logits(size):
    logits, labels = draw(2, 5, 4, 6), label_map(2, *size, classes=5)
    labels[0, :2] = 255
    resized = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
    out = losses.segmentation_loss(logits, labels)
    torch.testing.assert_close(out.total, F.cross_entropy(resized, labels, ignore_index=255))
    assert list(out.terms) == ["cross_entropy"]


@pytest.mark.reference
def test_the_default_is_transformers_loss():
    reference = pytest.importorskip("transformers.loss.loss_utils").ForSemanticSegmentationLoss
    logits, labels = draw(2, 29, 8, 6), label_map(2, 32, 24, classes=29)
    labels[1, 10:] = 255
    torch.testing.assert_close(
        losses.segmentation_loss(logits, labels).total, reference(logits, labels, ignore_index=255)
    )
    labels[labels == 255] = 7
    labels[:, 3] = 6
    torch.testing.assert_close(
        losses.segmentation_loss(logits, labels, ignore_index=6).total, reference(logits, labels, ignore_index=6)
    )


def test_class_weights_are_torchs():
    logits, labels = draw(2, 4, 5, 5), label_map(2, 5, 5, classes=4)
    labels[0, 0] = 255
    weights = [0.1, 2.0, 3.0, 0.0]
    expected = F.cross_entropy(logits, labels, weight=torch.tensor(weights), ignore_index=255)
    torch.testing.assert_close(losses.segmentation_loss(logits, labels, class_weights=weights).total, expected)
    torch.testing.assert_close(
        losses.segmentation_loss(logits, labels, class_weights=torch.tensor(weights)).total, expected
    )
    with pytest.raises(InputError, match="class_weights: expected 4 numbers"):
        losses.segmentation_loss(logits, labels, class_weights=[1.0, 2.0])


@pytest.mark.parametrize("class_weights", [None, [1.0, 2.0, 3.0]])
def test_everything_ignored_is_zero_with_a_graph(class_weights):
    logits = draw(1, 3, 4, 4).requires_grad_()
    labels = torch.full((1, 4, 4), 255)
    out = losses.segmentation_loss(logits, labels, class_weights=class_weights, dice_weight=1.0)
    out.total.backward()
    assert out.total.item() == 0
    assert not logits.grad.any()


def one_hot_logits(labels, classes, height=50.0):
    return F.one_hot(labels, classes).permute(0, 3, 1, 2).float() * height


def test_dice_is_zero_for_the_right_answer_and_one_for_the_opposite():
    labels = torch.tensor([[[0, 1], [2, 2]]])
    assert float(losses.dice_loss(one_hot_logits(labels, 3), labels)) == pytest.approx(0, abs=1e-4)
    wrong = torch.tensor([[[0, 2], [1, 1]]])
    assert float(losses.dice_loss(one_hot_logits(wrong, 3), labels)) == pytest.approx(1, abs=1e-3)


def test_dice_by_hand():
    p = torch.tensor([0.2, 0.7])  # probability of class 1 at two pixels; the label of the second is 1
    logits = torch.stack((torch.zeros(2), torch.logit(p))).reshape(1, 2, 1, 2)
    expected = 1 - (2 * 0.7 + 1e-3) / (0.2**2 + 0.7**2 + 1 + 1e-3)
    assert float(losses.dice_loss(logits, torch.tensor([[[0, 1]]]))) == pytest.approx(expected, rel=1e-5)


def test_dice_leaves_out_background_absent_classes_and_images_without_foreground():
    labels = torch.tensor([[[0, 1], [1, 0]]])
    logits = draw(1, 4, 2, 2)
    alone = losses.dice_loss(logits, labels)
    p = logits.softmax(1)[0, 1]
    area, inside = 2.0, p[labels[0] == 1].sum()
    torch.testing.assert_close(alone, 1 - (2 * inside + 1e-3) / (p.square().sum() + area + 1e-3))
    with_empty = losses.dice_loss(
        torch.cat((logits, draw(1, 4, 2, 2, seed=1))), torch.cat((labels, torch.zeros_like(labels)))
    )
    torch.testing.assert_close(with_empty, alone)


def test_dice_does_not_look_at_ignored_pixels():
    logits, labels = draw(1, 3, 2, 3), torch.tensor([[[0, 1, 255], [2, 1, 255]]])
    left = losses.dice_loss(logits[..., :2], labels[..., :2])
    torch.testing.assert_close(losses.dice_loss(logits, labels), left)


def test_dice_is_added_with_its_weight():
    logits, labels = draw(2, 3, 4, 4), label_map(2, 4, 4, classes=3)
    out = losses.segmentation_loss(logits, labels, dice_weight=0.5)
    torch.testing.assert_close(out.total, out.terms["cross_entropy"] + 0.5 * out.terms["dice"])
    torch.testing.assert_close(out.terms["dice"], losses.dice_loss(logits, labels))
    with pytest.raises(ConfigError, match="dice"):
        losses.segmentation_loss(logits, labels, dice_weight=-1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_every_integer_type_of_labels_works(dtype):
    logits, labels = draw(1, 3, 4, 4), label_map(1, 4, 4, classes=3)
    expected = losses.segmentation_loss(logits, labels).total
    torch.testing.assert_close(losses.segmentation_loss(logits, labels.to(dtype)).total, expected)


@pytest.mark.parametrize(
    "labels, message",
    [
        (torch.zeros(1, 4, 4), r"labels: expected integers, got torch.float32"),
        (torch.zeros(1, 4, 4, dtype=torch.bool), r"labels: expected integers, got torch.bool"),
        (torch.zeros(1, 1, 4, 4, dtype=torch.long), r"labels: expected shape \[1, H, W\], got \[1, 1, 4, 4\]"),
        (torch.zeros(2, 4, 4, dtype=torch.long), r"labels: expected shape \[1, H, W\], got \[2, 4, 4\]"),
        (torch.tensor([[[0, 3, 254, -2]]]), r"classes 0 to 2 or ignore_index 255, got 254 \(3 pixels"),
        (torch.tensor([[[0, 3, -100, 255]]]), r"classes 0 to 2 or ignore_index 255, got -100 \(2 pixels"),
    ],
)
def test_wrong_labels_are_named_by_their_worst_value(labels, message):
    with pytest.raises(InputError, match=message):
        losses.segmentation_loss(torch.zeros(1, 3, 4, 4), labels)


# Normals


def unit_normals(*shape, seed=0):
    return F.normalize(draw(*shape, seed=seed), dim=1)


def test_perfect_normals_cost_nothing_whatever_the_targets_length():
    pred = unit_normals(2, 3, 5, 6)
    out = losses.normal_loss(pred, pred * 7)
    assert {name: pytest.approx(0, abs=1e-6) for name in ("cosine", "l1", "gradient")} == out.terms
    assert float(out.total) == pytest.approx(0, abs=1e-5)


def test_normals_by_hand():
    pred = torch.tensor([2.0, 0.0, 0.0]).reshape(1, 3, 1, 1).expand(1, 3, 1, 2)
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).T.reshape(1, 3, 1, 2)
    out = losses.normal_loss(pred, target)
    assert float(out.terms["cosine"]) == pytest.approx((0 + 1) / 2)
    assert float(out.terms["l1"]) == pytest.approx((1 + 3) / 2)
    assert float(out.terms["gradient"]) == pytest.approx(1 + 1)  # the target turns by (-1, 1, 0), the prediction not
    assert float(out.total) == pytest.approx(10 * 0.5 + 2 + 10 * 2)


def test_cosine_ignores_length_and_l1_does_not():
    pred, target = unit_normals(1, 3, 4, 4), unit_normals(1, 3, 4, 4, seed=1)
    once, twice = losses.normal_loss(pred, target), losses.normal_loss(pred * 2, target)
    torch.testing.assert_close(once.terms["cosine"], twice.terms["cosine"])
    assert not torch.allclose(once.terms["l1"], twice.terms["l1"])


@pytest.mark.parametrize("filler", [0.0, math.nan])
def test_normals_without_length_and_masked_ones_do_not_count(filler):
    pred, target = draw(1, 3, 4, 6), unit_normals(1, 3, 4, 6, seed=1)
    expected = losses.normal_loss(pred[..., :3], target[..., :3])
    holed = target.clone()
    holed[..., 3:] = filler
    out = losses.normal_loss(pred, holed)
    mask = torch.ones(1, 4, 6, dtype=torch.bool)
    mask[..., 3:] = False
    masked = losses.normal_loss(pred, target, mask)
    for name in ("cosine", "l1", "gradient"):
        torch.testing.assert_close(out.terms[name], expected.terms[name])
        torch.testing.assert_close(masked.terms[name], expected.terms[name])


# Albedo


def test_albedo_by_hand():
    pred = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.5, 0.5]]).T.reshape(1, 3, 2, 1)
    target = torch.tensor([[0.3, 0.3, 0.4], [0.5, 0.5, 0.5]]).T.reshape(1, 3, 2, 1)
    out = losses.albedo_loss(pred, target)
    assert float(out.terms["l1"]) == pytest.approx(0.6 / 2)
    assert float(out.terms["gradient"]) == pytest.approx((0.3**2 + 0.3**2) / 2)
    assert float(out.terms["chromaticity"]) == pytest.approx(0.6 / 2, rel=2e-3)
    assert float(out.total) == pytest.approx(2 * 0.3 + 2 * 0.09 + 0.3, rel=1e-3)


def test_chromaticity_sees_color_and_not_brightness():
    rgb = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.3
    dimmed = losses.albedo_loss(rgb * 0.5, rgb)
    assert float(dimmed.terms["chromaticity"]) < 2e-3
    assert float(dimmed.terms["l1"]) > 0.1
    assert float(losses.albedo_loss(rgb.roll(1, dims=1), rgb).terms["chromaticity"]) > 0.05


def test_chromaticity_takes_predictions_as_they_will_be_decoded():
    target = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    overshoot = torch.tensor([1.5, -0.2, 0.0]).reshape(1, 3, 1, 1)
    assert float(losses.albedo_loss(overshoot, target).terms["chromaticity"]) == 0


def test_albedo_gradient_ignores_a_common_offset():
    rgb = torch.rand(1, 3, 4, 4)
    out = losses.albedo_loss(rgb + 0.25, rgb)
    assert float(out.terms["gradient"]) == pytest.approx(0, abs=1e-6)
    assert float(out.terms["l1"]) == pytest.approx(0.75, rel=1e-4)


def test_albedo_that_is_not_finite_does_not_count():
    pred, target = torch.rand(1, 3, 4, 6), torch.rand(1, 3, 4, 6)
    expected = losses.albedo_loss(pred[..., :4], target[..., :4])
    target[:, 1, :, 4:] = math.inf
    torch.testing.assert_close(losses.albedo_loss(pred, target).total, expected.total)


# Both


RECIPES = pytest.mark.parametrize(
    "recipe, weights",
    [(losses.normal_loss, losses.NORMAL_WEIGHTS), (losses.albedo_loss, losses.ALBEDO_WEIGHTS)],
)


@RECIPES
def test_empty_masks_and_no_terms_give_zero_with_a_graph(recipe, weights):
    pred, target = draw(1, 3, 4, 4).requires_grad_(), torch.full((1, 3, 4, 4), math.nan)
    for out in (
        recipe(pred, target),
        recipe(pred, torch.ones(1, 3, 4, 4), torch.zeros(1, 4, 4)),
        recipe(pred, target, weights=dict.fromkeys(weights, 0)),
    ):
        (grad,) = torch.autograd.grad(out.total, pred)
        assert out.total.item() == 0
        assert not grad.any()


@RECIPES
def test_gradients_are_finite_at_zero_and_in_low_precision(recipe, weights):
    for pred in (torch.zeros(1, 3, 4, 4), draw(1, 3, 4, 4).bfloat16(), draw(1, 3, 4, 4).half()):
        pred.requires_grad_()
        out = recipe(pred, torch.rand(1, 3, 4, 4))
        out.total.backward()
        assert out.total.dtype == torch.float32
        assert pred.grad.isfinite().all()


@RECIPES
def test_shapes_and_types_are_checked(recipe, weights):
    with pytest.raises(InputError, match=r"expected shape \[B, 3, H, W\], got \[1, 4, 4, 4\]"):
        recipe(torch.zeros(1, 4, 4, 4), torch.zeros(1, 4, 4, 4))
    with pytest.raises(InputError, match=r"the shape of the prediction, \[1, 3, 4, 4\], got \[1, 3, 4, 5\]"):
        recipe(torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 5))
    with pytest.raises(InputError, match=r"expected floating point, got torch.uint8"):
        recipe(torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
