import copy
import math

import pytest
import torch
from torch import nn

from vitruvian import losses
from vitruvian.errors import InputError


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_patches_run_row_by_row_and_hold_pixels_then_channels():
    pixels = torch.arange(2 * 3 * 4 * 6.0).reshape(2, 3, 4, 6)
    patches = losses.patchify(pixels, patch_size=2)
    assert patches.shape == (2, 6, 12)
    expected = pixels[1, :, 2:4, 2:4].permute(1, 2, 0).flatten()  # second row, second column: patch 4 of a 2×3 grid
    assert torch.equal(patches[1, 4], expected)
    with pytest.raises(InputError, match="multiples of patch_size 4, got 4×6"):
        losses.patchify(pixels, patch_size=4)


def test_reconstruction_counts_only_masked_patches():
    pixels, mask = draw(2, 3, 4, 4), torch.tensor([[1, 0, 0, 1], [0, 0, 1, 0]]).bool()
    patches = losses.patchify(pixels, patch_size=2)
    pred = torch.where(mask[..., None], patches + 0.5, patches + 100)
    assert float(losses.masked_reconstruction_loss(pred, pixels, mask, 2, normalize=False)) == pytest.approx(
        0.25, rel=1e-4
    )
    assert float(losses.masked_reconstruction_loss(pred, pixels, mask.float(), 2, normalize=False)) == pytest.approx(
        0.25, rel=1e-4
    )


def test_normalized_targets_have_mean_zero_and_variance_one():
    pixels, mask = draw(1, 3, 4, 4) * 3 + 7, torch.ones(1, 4)
    patches = losses.patchify(pixels, patch_size=2)
    target = (patches - patches.mean(-1, keepdim=True)) / patches.std(-1, keepdim=True)
    assert float(losses.masked_reconstruction_loss(target, pixels, mask, 2)) == pytest.approx(0, abs=1e-6)
    brighter = losses.masked_reconstruction_loss(draw(1, 4, 12), pixels * 2 + 1, mask, 2)
    torch.testing.assert_close(
        brighter, losses.masked_reconstruction_loss(draw(1, 4, 12), pixels, mask, 2), rtol=1e-4, atol=0
    )


def test_flat_patches_and_empty_masks_are_safe():
    pred = draw(1, 4, 12).requires_grad_()
    flat = losses.masked_reconstruction_loss(pred, torch.ones(1, 3, 4, 4), torch.ones(1, 4), 2)
    assert flat.isfinite()
    none = losses.masked_reconstruction_loss(pred, torch.ones(1, 3, 4, 4), torch.zeros(1, 4), 2)
    none.backward()
    assert none.item() == 0
    assert not pred.grad.any()


def test_reconstruction_checks_shapes():
    with pytest.raises(InputError, match=r"pred_patches: expected shape \[1, 4, 12\].*got \[1, 4, 4\]"):
        losses.masked_reconstruction_loss(torch.zeros(1, 4, 4), torch.zeros(1, 3, 4, 4), torch.ones(1, 4), 2)
    with pytest.raises(InputError, match=r"mask: expected shape \[1, 4\].*got \[1, 2, 2\]"):
        losses.masked_reconstruction_loss(torch.zeros(1, 4, 12), torch.zeros(1, 3, 4, 4), torch.ones(1, 2, 2), 2)


def test_distillation_by_hand():
    student, teacher = torch.tensor([[0.1, 0.0]]), torch.tensor([[0.04, 0.0]])
    p = 1 / (1 + math.exp(-1))  # both become logits (1, 0)
    expected = -(p * math.log(p) + (1 - p) * math.log(1 - p))
    assert float(losses.self_distillation_loss(student, teacher)) == pytest.approx(expected, rel=1e-5)


def test_the_center_is_taken_from_the_teacher():
    student, teacher, center = draw(4, 6), draw(4, 6, seed=1), draw(6, seed=2)
    torch.testing.assert_close(
        losses.self_distillation_loss(student, teacher, center),
        losses.self_distillation_loss(student, teacher - center),
    )
    assert not torch.allclose(
        losses.self_distillation_loss(student, teacher, center), losses.self_distillation_loss(student, teacher)
    )


def test_only_the_student_learns_and_the_best_student_copies_the_teacher():
    student, teacher = draw(3, 5).requires_grad_(), draw(3, 5, seed=1).requires_grad_()
    losses.self_distillation_loss(student, teacher).backward()
    assert student.grad.any()
    assert teacher.grad is None
    copying = teacher.detach() * (0.1 / 0.04)
    best = losses.self_distillation_loss(copying, teacher)
    assert float(best) <= float(losses.self_distillation_loss(copying + 0.05 * draw(3, 5, seed=2), teacher))


def test_rows_of_any_number_of_axes_are_averaged():
    student, teacher = draw(2, 3, 5), draw(2, 3, 5, seed=1)
    rows = zip(student.flatten(0, 1), teacher.flatten(0, 1), strict=True)
    per_row = [losses.self_distillation_loss(s[None], t[None]) for s, t in rows]
    torch.testing.assert_close(losses.self_distillation_loss(student, teacher), torch.stack(per_row).mean())


def test_no_rows_give_zero():
    student = torch.zeros(0, 5, requires_grad=True)
    assert float(losses.self_distillation_loss(student, torch.zeros(0, 5))) == 0


def test_temperatures_sharpen():
    student, teacher = draw(4, 6), draw(4, 6, seed=1)
    assert float(losses.self_distillation_loss(student, teacher, None, 1.0, 1.0)) < float(
        losses.self_distillation_loss(student, teacher, None, 0.1, 0.04)
    )


def test_distillation_checks_its_inputs():
    with pytest.raises(InputError, match="one shape"):
        losses.self_distillation_loss(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(InputError, match=r"temperatures: expected positive numbers, got 0\.0 and 0\.04"):
        losses.self_distillation_loss(torch.zeros(2, 3), torch.zeros(2, 3), student_temp=0.0)
    with pytest.raises(InputError, match="got both"):
        losses.self_distillation_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3), sinkhorn_iterations=3)


def test_sinkhorn_balances_prototypes():
    logits = draw(64, 4) * 0.05
    logits[:, 0] += 0.2  # without balancing prototype 0 takes most of every row
    plain = (logits / 0.05).softmax(1)
    balanced = losses.sinkhorn(logits, temperature=0.05, iterations=20)
    torch.testing.assert_close(balanced.sum(1), torch.ones(64))
    assert plain.sum(0)[0] > 50
    torch.testing.assert_close(balanced.sum(0), torch.full((4,), 16.0), rtol=1e-2, atol=0)
    assert torch.equal(losses.sinkhorn(logits, temperature=0.05, iterations=0), plain)


def test_distillation_can_use_sinkhorn_and_huge_logits():
    student, teacher = draw(8, 4).requires_grad_(), draw(8, 4, seed=1)
    target = losses.sinkhorn(teacher, temperature=0.04, iterations=3)
    expected = -(target * (student / 0.1).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(losses.self_distillation_loss(student, teacher, sinkhorn_iterations=3), expected)
    assert losses.self_distillation_loss(student, teacher * 1e4, sinkhorn_iterations=3).isfinite()


def test_center_follows_the_mean_of_the_teacher():
    center = losses.TeacherCenter(3, momentum=0.75)
    center.update(torch.tensor([[[4.0, 0.0, 8.0], [0.0, 0.0, 0.0]]]))
    torch.testing.assert_close(center.value, torch.tensor([0.5, 0.0, 1.0]))
    center.update(torch.zeros(0, 3))
    torch.testing.assert_close(center.value, torch.tensor([0.5, 0.0, 1.0]))
    assert list(center.state_dict()) == ["value"]
    with pytest.raises(InputError, match="expected 3 classes, got 4"):
        center.update(torch.zeros(1, 4))
    with pytest.raises(InputError, match="momentum"):
        losses.TeacherCenter(3, momentum=1.5)


def test_center_and_sinkhorn_add_up_over_processes(monkeypatch):
    calls = []

    def pretend_a_twin_process(tensor):
        calls.append(tensor.clone())
        tensor.mul_(2)

    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    alone = losses.sinkhorn(logits, temperature=1.0, iterations=2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", pretend_a_twin_process)
    center = losses.TeacherCenter(2, momentum=0.0)
    center.update(logits)
    torch.testing.assert_close(center.value, torch.tensor([1.0, 0.0]))
    assert [call.tolist() for call in calls] == [[2.0, 0.0], 2.0]
    torch.testing.assert_close(losses.sinkhorn(logits, temperature=1.0, iterations=2), alone)
    assert len(calls) == 4


def test_the_teacher_moves_towards_the_student():
    student = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    teacher = copy.deepcopy(student)
    before = teacher[0].weight.clone()
    with torch.no_grad():
        student[0].weight.add_(1)
    student[1].running_mean.fill_(3)
    student[1].num_batches_tracked.fill_(7)
    losses.ema_update(teacher, student, 0.9)
    torch.testing.assert_close(teacher[0].weight, before + 0.1)
    assert teacher[1].running_mean.tolist() == [3, 3]
    assert int(teacher[1].num_batches_tracked) == 7
    losses.ema_update(teacher, student, 0.0)
    torch.testing.assert_close(teacher[0].weight, student[0].weight)


def test_the_teacher_keeps_its_precision():
    student, teacher = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2)
    losses.ema_update(teacher, student, 0.5)
    assert teacher.weight.dtype == torch.float32


def test_mismatched_modules_and_invalid_momentum_raise():
    with pytest.raises(InputError, match="only in one of them: bias"):
        losses.ema_update(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), 0.9)
    with pytest.raises(InputError, match="momentum: expected a number from 0 to 1, got 2"):
        losses.ema_update(nn.Linear(2, 2), nn.Linear(2, 2), 2)
