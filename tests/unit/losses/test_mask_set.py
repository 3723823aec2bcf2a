from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.rle import encode_rle
from vitruvian.losses import mask_comparison
from vitruvian.losses.focal_dice import mask_dice_loss, sigmoid_focal_loss
from vitruvian.losses.mask_comparison import PixelComparison, PointComparison
from vitruvian.losses.mask_set import MaskLossWeights, MaskSetLoss, _read_targets

CLASSES, QUERIES = 4, 6
MEASURES = [PixelComparison(), PointComparison(count=40)]


def criterion(comparison: Any, **fields: Any) -> MaskSetLoss:
    base = {"num_labels": CLASSES, "no_object_weight": 0.1, "weights": MaskLossWeights(), "class_cost_weight": 1.0}
    return MaskSetLoss(**(base | fields), comparison=comparison)


def batch(numbers: tuple[int, ...] = (3, 0, 1, 2), seed: int = 0) -> dict[str, Any]:
    """Predictions and objects; the second image has none."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "masks_queries_logits": torch.randn(len(numbers), QUERIES, 8, 10, generator=generator) * 2,
        "class_queries_logits": torch.randn(len(numbers), QUERIES, CLASSES + 1, generator=generator),
        "mask_labels": [torch.randn(n, 32, 40, generator=generator) > 0 for n in numbers],
        "class_labels": [torch.randint(0, CLASSES, (n,), generator=generator) for n in numbers],
    }


def part(inputs: dict[str, Any], positions: slice) -> dict[str, Any]:
    return {name: value[positions] for name, value in inputs.items()}


@pytest.mark.parametrize("comparison", MEASURES, ids=["dense", "points"])
def test_perfect_predictions_cost_almost_nothing(comparison: Any) -> None:
    squares = torch.zeros(2, 32, 40, dtype=torch.bool)
    squares[0, :16, :20], squares[1, 16:, 20:] = True, True
    logits = F.interpolate(squares[None].float(), size=(8, 10)) * 40 - 20
    masks = torch.cat((torch.full((1, QUERIES - 2, 8, 10), -20.0), logits.flip(1)), dim=1)
    classes = torch.full((1, QUERIES, CLASSES + 1), -20.0)
    classes[0, :-2, -1], classes[0, -2, 3], classes[0, -1, 1] = 20.0, 20.0, 20.0
    loss = criterion(comparison)(masks, classes, [squares], [torch.tensor([1, 3])])
    assert loss.terms["loss_cross_entropy"] < 1e-4
    assert loss.terms["loss_dice"] < 0.2  # edges of coarse masks
    assert loss.total < 0.5
    torch.manual_seed(0)
    worse = criterion(comparison)(masks, classes, [squares], [torch.tensor([3, 1])])
    assert worse.total > 2


@pytest.mark.parametrize("comparison", MEASURES, ids=["dense", "points"])
@pytest.mark.parametrize("name", ["loss_cross_entropy", "loss_mask", "loss_dice"])
def test_every_weight_counts(comparison: Any, name: str) -> None:
    inputs = batch()
    zero = {"loss_cross_entropy": 0.0, "loss_mask": 0.0, "loss_dice": 0.0}
    torch.manual_seed(0)
    loss = criterion(comparison, weights=MaskLossWeights(**(zero | {name: 3.0})))(**inputs)
    torch.testing.assert_close(loss.total, 3 * loss.terms[name])
    assert loss.total > 0


def test_masks_of_0_and_255_are_an_error_and_padding_is_not() -> None:
    like, classes = torch.zeros(1, QUERIES, 8, 10), [torch.zeros(2, dtype=torch.int64)]
    masks = torch.zeros(2, 8, 10, dtype=torch.uint8)
    masks[:, 2:5, 3:6] = 255
    with pytest.raises(InputError, match=r"mask_labels\[0\]: expected masks of 0 and 1, got none of 1 and some of 255"):
        _read_targets([masks], classes, like=like, num_labels=CLASSES)
    masks[0, 2:5, 3:6] = 1  # the processor leaves such values in its padding only
    masks[1] = 0
    masks[:, :, 7:], masks[:, 6:] = 255, 255
    (target,) = _read_targets([masks], classes, like=like, num_labels=CLASSES)
    assert torch.equal(target.masks.sum(dim=(1, 2)), torch.tensor([9, 0]))
    (target,) = _read_targets([masks[1:]], [classes[0][1:]], like=like, num_labels=CLASSES)
    assert not target.masks.any()


def test_no_object_weight_counts() -> None:
    inputs = batch(numbers=(0, 0))
    queries = inputs["class_queries_logits"]
    light = criterion(PixelComparison(), no_object_weight=0.1)(**inputs)
    want = F.cross_entropy(queries.flatten(0, 1), torch.full((2 * QUERIES,), CLASSES))
    torch.testing.assert_close(light.terms["loss_cross_entropy"], want)  # alone, the weight cancels
    inputs = batch()
    values = [criterion(PixelComparison(), no_object_weight=w)(**inputs).total for w in (0.1, 1.0)]
    assert abs(values[0] - values[1]) > 0.01
    nothing = criterion(PixelComparison(), no_object_weight=0.0)(**batch(numbers=(0, 0)))
    assert nothing.total == 0


@pytest.mark.parametrize("comparison", MEASURES, ids=["dense", "points"])
def test_no_objects_at_all(comparison: Any) -> None:
    inputs = batch(numbers=(0, 0))
    inputs["mask_labels"] = [[], torch.zeros(0, 32, 40)]
    for name in ("masks_queries_logits", "class_queries_logits"):
        inputs[name].requires_grad_()
    loss = criterion(comparison)(**inputs)
    loss.total.backward()
    assert loss.terms["loss_mask"] == loss.terms["loss_dice"] == 0
    assert inputs["masks_queries_logits"].grad.abs().sum() == 0
    assert inputs["class_queries_logits"].grad.abs().sum() > 0


@pytest.mark.parametrize("comparison", MEASURES, ids=["dense", "points"])
def test_more_objects_than_queries(comparison: Any) -> None:
    loss = criterion(comparison)(**batch(numbers=(9,)))
    assert loss.total.isfinite()


@pytest.mark.parametrize("comparison", MEASURES, ids=["dense", "points"])
def test_labels_of_every_form_give_the_same(comparison: Any) -> None:
    inputs = batch()
    values = []
    for convert in (
        lambda masks: masks,
        lambda masks: masks.to(torch.uint8),
        lambda masks: masks.float(),
        lambda masks: [encode_rle(mask) for mask in masks],
        lambda masks: [encode_rle(mask, compress=True) for mask in masks],
    ):
        torch.manual_seed(0)
        labels = [convert(masks) for masks in inputs["mask_labels"]]
        values.append(criterion(comparison)(**(inputs | {"mask_labels": labels})).total)
    for value in values[1:]:
        torch.testing.assert_close(value, values[0])


@pytest.mark.parametrize("comparison", MEASURES, ids=["dense", "points"])
def test_smaller_labels_are_padded_to_the_largest(comparison: Any) -> None:
    inputs = batch(numbers=(2, 2))
    cut = inputs["mask_labels"][1][:, :20, :25]
    padded = F.pad(cut.float(), (0, 15, 0, 12))
    values = []
    for labels in (cut, padded):
        torch.manual_seed(0)
        values.append(criterion(comparison)(**(inputs | {"mask_labels": [inputs["mask_labels"][0], labels]})).total)
    torch.testing.assert_close(*values)


def test_padding_with_the_ignore_index_is_no_object() -> None:
    like = torch.zeros(1, 2, 4)
    masks = torch.zeros(1, 2, 6, 6)
    masks[:, 0, :3], masks[..., 4:] = 1.0, 255.0
    (target,) = _read_targets(list(masks), [torch.tensor([0, 1])], like=like, num_labels=3)
    assert target.masks.max() == 1
    assert target.masks[..., 4:].sum() == 0
    assert torch.equal(target.masks[..., :4], masks[0, ..., :4])


def test_dense_chunks_and_reruns_change_neither_loss_nor_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = []
    for limit in (1, 1 << 22):
        monkeypatch.setattr(mask_comparison, "_MAX_PIXELS", limit)
        inputs = batch()
        logits = inputs["masks_queries_logits"].requires_grad_()
        loss = criterion(PixelComparison())(**inputs).total
        loss.backward()
        actual.append((loss.detach(), logits.grad))
    torch.testing.assert_close(*(value for value, _ in actual))
    torch.testing.assert_close(*(gradient for _, gradient in actual))
    with torch.no_grad():
        torch.testing.assert_close(criterion(PixelComparison())(**batch()).total, actual[0][0])


def test_dense_losses_and_gradients_are_those_of_the_plain_functions() -> None:
    inputs = batch()
    logits = inputs["masks_queries_logits"].requires_grad_()
    targets = _read_targets(inputs["mask_labels"], inputs["class_labels"], like=logits, num_labels=CLASSES)
    pairs = [(torch.tensor([4, 0, 2]), torch.tensor([1, 2, 0])), (torch.tensor([]).long(),) * 2]
    pairs += [(torch.tensor([5]), torch.tensor([0])), (torch.tensor([1, 3]), torch.tensor([0, 1]))]
    focal, dice = PixelComparison().losses(logits, targets, pairs, (32, 40))
    (got,) = torch.autograd.grad(3 * focal + 7 * dice, logits)
    sums = []
    for maps, target, (queries, objects) in zip(logits, targets, pairs, strict=True):
        large = F.interpolate(maps[queries][:, None], size=(32, 40), mode="bilinear").flatten(1)
        wanted = target.masks[objects].float().flatten(1)
        sums.append((sigmoid_focal_loss(large, wanted).sum(), mask_dice_loss(large, wanted).sum()))
    want_focal, want_dice = (sum(part) for part in zip(*sums, strict=True))
    (want,) = torch.autograd.grad(3 * want_focal + 7 * want_dice, logits)
    torch.testing.assert_close(focal, want_focal)
    torch.testing.assert_close(dice, want_dice)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [(8, 10), (7, 9), (32, 40), (50, 60)])
def test_downsampling_reads_the_pixels_of_interpolate(size: tuple[int, int]) -> None:
    masks = torch.rand(2, 32, 40)
    want = F.interpolate(masks[:, None], size=size, mode="nearest")[:, 0]
    assert torch.equal(mask_comparison._downsample(masks, (32, 40), size), want)


def test_auxiliary_predictions_get_an_ending_and_count_once_each() -> None:
    inputs = batch()
    auxiliary = [{name: inputs[name] * 0.5 for name in ("masks_queries_logits", "class_queries_logits")}]
    loss = criterion(PixelComparison())(**inputs, auxiliary_predictions=auxiliary)
    assert list(loss.terms) == [
        f"loss_{kind}{ending}" for ending in ("", "_0") for kind in ("mask", "dice", "cross_entropy")
    ]
    torch.testing.assert_close(loss.total, sum(loss.terms.values()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask_labels": []}, "one entry for each of 4 images"),
        ({"class_labels": [torch.zeros(9)] * 4}, "one class for each of 3 masks"),
        ({"class_labels": [torch.tensor([0, 4, 1])] + [torch.zeros(n) for n in (0, 1, 2)]}, "0 to 3"),
        ({"mask_labels": [torch.zeros(32, 40)] * 4}, r"\[T, H, W\]"),
        (
            {
                "mask_labels": [
                    [encode_rle(torch.ones(4, 4)), encode_rle(torch.ones(5, 4)), encode_rle(torch.ones(4, 4))]
                ]
                * 4
            },
            "one size",
        ),
    ],
)
def test_labels_that_cannot_be_used(change: dict[str, Any], message: str) -> None:
    inputs = batch() | change
    with pytest.raises(InputError, match=message):
        _read_targets(
            inputs["mask_labels"], inputs["class_labels"], like=inputs["masks_queries_logits"], num_labels=CLASSES
        )


# ------------------------------------------------------------------------------------------------ several processes


def fixed_points(*shape: int, **_: Any) -> Tensor:
    """The same scattered points for every mask, whatever the batch."""
    steps = torch.arange(shape[-2])[:, None] * torch.tensor([0.7548777, 0.5698403])
    return (steps % 1).expand(shape)


def losses(comparison: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
    for name in ("masks_queries_logits", "class_queries_logits"):
        inputs[name] = inputs[name].detach().clone().requires_grad_()
    actual = criterion(comparison)(**inputs)
    actual.total.backward()
    gradients = {f"grad_{name}": inputs[name].grad for name in ("masks_queries_logits", "class_queries_logits")}
    return {"total": actual.total.detach()} | {n: v.detach() for n, v in actual.terms.items()} | gradients


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)  # a forked process must not enter the parent's thread pool
    torch.rand = fixed_points
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    positions = slice(0, 1) if rank == 0 else slice(1, 4)  # three masks in one image, and three in three images
    actual = [losses(comparison, part(batch(), positions)) for comparison in MEASURES]
    torch.save(actual, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_equal_one_with_the_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.multiprocessing.start_processes(worker, args=(str(tmp_path),), nprocs=2, start_method="fork")
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    monkeypatch.setattr(torch, "rand", fixed_points)
    for number, comparison in enumerate(MEASURES):
        whole = losses(comparison, batch())
        for name, value in whole.items():
            one, other = (share[number][name] for share in shares)
            # Data-parallel training averages the processes' gradients, as if their losses were averaged.
            both = torch.cat((one, other)) / 2 if name.startswith("grad") else (one + other) / 2
            torch.testing.assert_close(both, value, rtol=1e-5, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}")
