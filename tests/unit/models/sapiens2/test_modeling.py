from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.families.sapiens2 import DECONVOLUTION, PRETRAINING, SCALE, SHUFFLE, tiny
from tests.helpers.tiny_models import tiny_task
from vitruvian.errors import ConfigError, InputError
from vitruvian.models.sapiens2.modeling import (
    Sapiens2Backbone,
    Sapiens2ForAlbedoEstimation,
    Sapiens2ForImageMatting,
    Sapiens2ForNormalEstimation,
    Sapiens2ForPointmapEstimation,
    Sapiens2ForPoseEstimation,
    Sapiens2ForSemanticSegmentation,
    Sapiens2Model,
)
from vitruvian.models.sapiens2.pretraining import Sapiens2ForPreTraining, SelfDistillation


def pixels(count: int = 2, height: int = 64, width: int = 48) -> torch.Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2, 3, 60, 48), "64×48"),
        (torch.zeros(2, 1, 64, 48), "3, H, W"),
        (torch.zeros(3, 64, 48), "3, H, W"),
        (torch.zeros(2, 3, 64, 48, dtype=torch.uint8), "Sapiens2ImageProcessor"),
        (torch.zeros(2, 3, 0, 48), "multiple"),
    ],
)
def test_pictures_that_do_not_fit(value: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sapiens2Model(tiny())(value)


def test_four_k_needs_multiples_of_the_window() -> None:
    model = Sapiens2Model(tiny(use_tokenizer=True, tokenizer_window_size=4))
    with pytest.raises(InputError, match="multiple of 64"):
        model(pixels(1, 96, 64))


def test_masks_need_a_token_and_the_right_shape() -> None:
    with pytest.raises(InputError, match="use_mask_token"):
        Sapiens2Model(tiny())(pixels(), torch.ones(2, 12, dtype=torch.bool))
    with pytest.raises(InputError, match="one entry for each patch"):
        Sapiens2Model(tiny(use_mask_token=True))(pixels(), torch.ones(2, 5, dtype=torch.bool))


def test_task_without_a_head_says_how_to_get_one() -> None:
    with pytest.raises(ConfigError, match="head_config"):
        Sapiens2ForPoseEstimation(tiny())


@pytest.mark.parametrize("head", [DECONVOLUTION, SHUFFLE])
def test_optimized_model_gives_the_same_and_keeps_its_weights(head: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Sapiens2ForPoseEstimation(tiny(num_labels=5, head_config=head)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        want, before = model(pixels()).heatmaps, {k: v.clone() for k, v in model.state_dict().items()}
        assert model.optimize() is model
        got = model(pixels()).heatmaps
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert got.is_contiguous()
        after = model.state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        # The joint matrices and the parameters are one memory: what is loaded later counts.
        model.load_state_dict({name: value * 1.1 for name, value in before.items()})
        plain = Sapiens2ForPoseEstimation(tiny(num_labels=5, head_config=head)).eval()
        plain.load_state_dict(model.state_dict())
        torch.testing.assert_close(model(pixels()).heatmaps, plain(pixels()).heatmaps, rtol=1e-4, atol=1e-5)
        moved = model.double()
        torch.testing.assert_close(
            moved(pixels().double()).heatmaps, plain.double()(pixels().double()).heatmaps, rtol=1e-4, atol=1e-5
        )
    assert model(pixels().double()).heatmaps.requires_grad  # training takes the plain way


def test_optimized_model_can_be_saved(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Sapiens2ForPoseEstimation(tiny(num_labels=5, head_config=DECONVOLUTION)).eval().optimize()
    model.save_pretrained(tmp_path)
    again = Sapiens2ForPoseEstimation.from_pretrained(tmp_path)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())


def test_switches_come_from_the_configuration_unless_a_call_says_otherwise() -> None:
    model = Sapiens2Model(tiny(output_hidden_states=True, output_attentions=True, return_dict=False)).eval()
    assert isinstance(model(pixels()), tuple)
    output = model(pixels(), return_dict=True)
    assert len(output.hidden_states) == 5
    assert len(output.attentions) == 4
    assert model(pixels(), return_dict=True, output_hidden_states=False).hidden_states is None


def test_class_token_of_the_backbone_on_demand() -> None:
    model = Sapiens2Backbone(tiny()).eval()
    assert model(pixels()).cls_tokens is None
    assert model(pixels(), return_class_token=True).cls_tokens[0].shape == (2, 32)


def test_drop_path_drops_in_training_only() -> None:
    torch.manual_seed(0)
    model = Sapiens2Model(tiny(drop_path_rate=0.5)).eval()
    assert torch.equal(model(pixels()).last_hidden_state, model(pixels()).last_hidden_state)
    model.train()
    assert not torch.equal(model(pixels()).last_hidden_state, model(pixels()).last_hidden_state)


def test_attention_dropout_acts_in_training_only() -> None:
    model = Sapiens2Model(tiny(attention_dropout=0.5)).eval()
    assert torch.equal(model(pixels()).last_hidden_state, model(pixels()).last_hidden_state)
    model.train()
    assert not torch.equal(model(pixels()).last_hidden_state, model(pixels()).last_hidden_state)


def test_scale_branch_takes_other_sizes_and_is_exact_at_its_own() -> None:
    torch.manual_seed(0)
    model = Sapiens2ForPointmapEstimation(tiny(num_labels=3, head_config=SHUFFLE | SCALE)).eval()
    assert model(pixels(2, 128, 96)).scales.shape == (2, 1)
    assert Sapiens2ForPointmapEstimation(tiny(num_labels=3, head_config=SHUFFLE))(pixels()).scales is None


def test_flip_is_its_own_inverse() -> None:
    torch.manual_seed(0)
    model = Sapiens2ForPoseEstimation(tiny(num_labels=5, head_config=DECONVOLUTION)).eval()
    pairs = torch.tensor([[1, 2], [3, 4]])
    plain, flipped = model(pixels()).heatmaps, model(pixels(), flip_pairs=pairs).heatmaps
    order = [0, 2, 1, 4, 3]
    assert torch.equal(flipped, plain[:, order].flip(-1))
    with pytest.raises(InputError, match="flip_pairs"):
        model(pixels(), flip_pairs=torch.tensor([1, 2]))


WRONG_LABELS: list[tuple[Any, dict[str, Any], torch.Tensor]] = [
    (Sapiens2ForPoseEstimation, {"num_labels": 5, "head_config": DECONVOLUTION}, torch.rand(2, 5, 64, 48)),
    (Sapiens2ForSemanticSegmentation, {"num_labels": 5, "head_config": DECONVOLUTION}, torch.rand(2, 64, 48)),
    (Sapiens2ForSemanticSegmentation, {"num_labels": 5, "head_config": DECONVOLUTION}, torch.full((2, 64, 48), 9)),
    (Sapiens2ForNormalEstimation, {"num_labels": 3, "head_config": SHUFFLE}, torch.rand(2, 1, 64, 48)),
    (Sapiens2ForAlbedoEstimation, {"num_labels": 3, "head_config": SHUFFLE}, torch.rand(1, 3, 64, 48)),
    (Sapiens2ForPointmapEstimation, {"num_labels": 3, "head_config": SHUFFLE}, torch.rand(2, 3, 32, 48)),
    (Sapiens2ForImageMatting, {"num_labels": 4, "head_config": SHUFFLE}, torch.rand(2, 3, 64, 48)),
]


@pytest.mark.parametrize(("cls", "fields", "labels"), WRONG_LABELS, ids=lambda v: getattr(v, "__name__", ""))
def test_wrong_labels_are_refused(cls: Any, fields: dict[str, Any], labels: torch.Tensor) -> None:
    with pytest.raises(InputError):
        cls(tiny(**fields))(pixels(), labels=labels)


@pytest.mark.parametrize(
    ("cls", "fields", "terms"),
    [
        (Sapiens2ForNormalEstimation, {"head_config": SHUFFLE, "num_labels": 3}, {"cosine", "l1", "gradient"}),
        (Sapiens2ForAlbedoEstimation, {"head_config": SHUFFLE, "num_labels": 3}, {"l1", "gradient", "chromaticity"}),
        (
            Sapiens2ForImageMatting,
            {"head_config": SHUFFLE, "num_labels": 4},
            {"alpha", "color", "laplacian", "composite", "gradient"},
        ),
    ],
)
def test_losses_come_with_their_terms(cls: Any, fields: dict[str, Any], terms: set[str]) -> None:
    output = cls(tiny(**fields))(pixels(), labels=torch.rand(2, fields["num_labels"], 64, 48))
    assert set(output.loss_terms) == terms
    assert output.loss.requires_grad


def test_pointmap_loss_uses_what_it_is_given() -> None:
    torch.manual_seed(0)
    model = Sapiens2ForPointmapEstimation(tiny(num_labels=3, head_config=SHUFFLE | SCALE))
    labels = torch.rand(2, 3, 64, 48) + 1
    camera = torch.tensor([[48.0, 0, 24], [0, 48, 32], [0, 0, 1]]).expand(2, 3, 3)
    plain = model(pixels(), labels=labels)
    assert "scale" not in plain.loss_terms
    known = model(pixels(), labels=labels, label_scales=torch.full((2, 1), 1.0))
    assert "scale" in known.loss_terms
    seen = model(pixels(), labels=labels, label_intrinsics=camera)
    assert {"scale", "intrinsics"} <= set(seen.loss_terms)
    # 768/1024 of the height is the canonical focal length: this camera is the canonical one.
    torch.testing.assert_close(seen.loss_terms["scale"], known.loss_terms["scale"])
    masked = model(pixels(), labels=labels, label_mask=torch.zeros(2, 64, 48))
    assert masked.loss.item() == 0


def test_full_recipe_is_one_option_away() -> None:
    torch.manual_seed(0)
    labels = torch.rand(2, 5, 16, 12)
    plain = Sapiens2ForPoseEstimation(tiny(num_labels=5, head_config=DECONVOLUTION)).eval()
    recipe = Sapiens2ForPoseEstimation(tiny(num_labels=5, head_config=DECONVOLUTION, use_loss_recipe=True)).eval()
    recipe.load_state_dict(plain.state_dict())
    torch.testing.assert_close(recipe(pixels(), labels=labels).loss, 10 * plain(pixels(), labels=labels).loss)
    parts = Sapiens2ForSemanticSegmentation(tiny(num_labels=5, head_config=DECONVOLUTION, use_loss_recipe=True))
    output = parts(pixels(), labels=torch.randint(0, 5, (2, 64, 48)))
    assert set(output.loss_terms) == {"cross_entropy", "dice"}


@pytest.mark.parametrize("cls", [Sapiens2ForNormalEstimation, Sapiens2ForAlbedoEstimation])
def test_training_lowers_the_loss(cls: Any) -> None:
    torch.manual_seed(0)
    model = cls(tiny(num_labels=3, head_config=SHUFFLE)).train()
    labels = torch.rand(2, 3, 64, 48)
    labels = labels / labels.norm(dim=1, keepdim=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = model(pixels(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_self_distillation_trains_the_student_and_moves_the_teacher() -> None:
    torch.manual_seed(0)
    both = SelfDistillation(Sapiens2ForPreTraining(tiny(**PRETRAINING)), momentum=0.5).train()
    before = {name: value.clone() for name, value in both.teacher.named_parameters()}
    optimizer = torch.optim.SGD(both.student.parameters(), lr=0.1)
    output = both(pixels(), pixels().flip(-1), torch.rand(2, 12) > 0.5)
    assert set(output.loss_terms) == {"reconstruction", "distillation"}
    output.loss.backward()
    assert all(parameter.grad is None for parameter in both.teacher.parameters())
    optimizer.step()
    both.step()
    name, after = next((n, p) for n, p in both.teacher.named_parameters() if "prototypes" in n)
    student = dict(both.student.named_parameters())[name]
    torch.testing.assert_close(after, (before[name] + student.detach()) / 2)
    assert both.center.value.abs().sum() > 0
    assert not both.teacher.training


def test_pretraining_needs_a_mask_token() -> None:
    with pytest.raises(InputError, match="use_mask_token"):
        Sapiens2ForPreTraining(tiny())


def test_predictions_are_not_rounded_under_autocast() -> None:
    model = tiny_task("pointmap").train()
    pixels = torch.randn(1, 3, *model.config.image_hw, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.decode_head.predictor.bias[2] = 4.0  # meters, where bfloat16 moves in steps of 3 cm
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(pixels).pointmaps[:, 2]
    assert found.dtype == torch.float32
    assert not torch.equal(found, found.bfloat16().float())
