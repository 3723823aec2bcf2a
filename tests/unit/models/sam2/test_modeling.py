"""Sam2Model: prompts, reuse of embeddings, losses, weights on demand, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from tests.families.sam2 import SIDE, hiera_fields, tiny
from vitruvian.errors import InputError, WeightsError
from vitruvian.losses.prompted_masks import prompted_mask_loss
from vitruvian.models.sam2.configuration import Sam2HieraDetConfig
from vitruvian.models.sam2.hiera import HieraAttention, Sam2HieraDetModel, _bicubic_matrix, max_pool
from vitruvian.models.sam2.mask_decoder import _select_stable, stability_score
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.ops import dispatch, layer_norm, two_way_attention, window_attention

PIXELS = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
POINTS = torch.tensor([[[[10.0, 20.0]], [[40.0, 30.0]]], [[[5.0, 5.0]], [[60.0, 60.0]]]])


@pytest.fixture(scope="module")
def model() -> Sam2Model:
    torch.manual_seed(0)
    config = tiny()
    config.initializer_range = 0.2
    return Sam2Model(config).eval()


@torch.no_grad()
def masks(model: Sam2Model, **given: Any) -> torch.Tensor:
    found: torch.Tensor = model(**({} if "image_embeddings" in given else {"pixel_values": PIXELS}), **given).pred_masks
    return found


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_embeddings_cost_the_encoder_once(model: Sam2Model) -> None:
    calls = []
    handle = model.vision_encoder.backbone.register_forward_hook(lambda *_: calls.append(1))
    embeddings = model.get_image_embeddings(PIXELS)
    for _ in range(3):
        found = masks(model, image_embeddings=embeddings, input_points=POINTS)
    handle.remove()
    assert len(calls) == 1
    close(found, masks(model, input_points=POINTS))
    assert not embeddings[0].requires_grad


def test_objects_do_not_influence_each_other(model: Sam2Model) -> None:
    both = masks(model, input_points=POINTS)
    for index in range(2):
        close(masks(model, input_points=POINTS[:, index : index + 1])[:, 0], both[:, index])


def test_each_object_may_have_its_own_mask(model: Sam2Model) -> None:
    prompts = torch.randn(2, 2, SIDE // 4, SIDE // 4)
    both = masks(model, input_points=POINTS, input_masks=prompts)
    for index in range(2):
        one = slice(index, index + 1)
        close(masks(model, input_points=POINTS[:, one], input_masks=prompts[:, one])[:, 0], both[:, index])
    shared = masks(model, input_points=POINTS, input_masks=prompts[:, 0])  # [B, h, w]: the same for all objects
    close(shared[:, 0], both[:, 0])
    assert masks(model, input_masks=prompts).shape[:2] == (2, 2)


def test_hard_masks_are_logits_of_ten(model: Sam2Model) -> None:
    hard = torch.rand(2, 1, SIDE, SIDE) > 0.5
    want = masks(model, input_masks=hard.float() * 20 - 10)
    close(masks(model, input_masks=hard), want)
    close(masks(model, input_masks=hard.long() * 255), want)
    close(masks(model, input_masks=hard[:, 0]), want)


def test_boxes_of_padding_are_harmless(model: Sam2Model) -> None:
    boxes = torch.tensor([[[1.0, 2, 30, 40], [-10, -10, -10, -10]], [[1, 2, 30, 40], [5, 5, 20, 20]]])
    found = masks(model, input_boxes=boxes)
    assert found.isfinite().all()
    close(masks(model, input_boxes=boxes[:, :1])[:, 0], found[:, 0])
    labels = torch.ones(2, 2, 16, 16)
    with torch.no_grad():
        loss = model(PIXELS, input_boxes=boxes, labels=labels).loss
        labels[0, 1] = 0
        torch.testing.assert_close(model(PIXELS, input_boxes=boxes, labels=labels).loss, loss)


def test_one_mask_is_the_stable_one_or_the_best_other() -> None:
    logits = torch.full((1, 2, 3, 4, 4), -1.0)
    logits[:, :, 0, :2] = 1  # stable
    logits[0, 1, 0, :2] = 0.01  # unstable: gone with a slightly higher cut
    logits[:, :, 2, 3] = 5
    ious = torch.tensor([[[0.1, 0.2, 0.9], [0.1, 0.2, 0.9]]])
    chosen, scores = _select_stable(logits, ious, delta=0.05, threshold=0.98)
    assert torch.equal(chosen[0, 0, 0], logits[0, 0, 0])
    assert torch.equal(chosen[0, 1, 0], logits[0, 1, 2])
    assert scores[0, :, 0].tolist() == pytest.approx([0.1, 0.9])


def test_stability() -> None:
    logits = torch.tensor([[[2.0, 0.5, -0.5, -2.0]], [[-9.0, -9.0, -9.0, -9.0]]])
    assert stability_score(logits, 1.0).tolist() == pytest.approx([1 / 3, 1.0])
    assert stability_score(logits, 1.0, threshold=-1.0).tolist() == pytest.approx([2 / 3, 1.0])


@pytest.mark.parametrize("group_bytes", [1, 1 << 30])
def test_confident_masks_are_those_of_a_call(
    model: Sam2Model, group_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitruvian.models.sam2.mask_decoder._GROUP_BYTES", {"cpu": group_bytes, "cuda": 1})
    points = torch.rand(1, 9, 1, 2, generator=torch.Generator().manual_seed(1)) * SIDE
    embeddings = model.get_image_embeddings(PIXELS[:1])
    with torch.no_grad():
        out = model(input_points=points, image_embeddings=embeddings)
    level = out.iou_scores.quantile(0.8).item()
    prompts, kinds = (out.iou_scores[0] > level).nonzero(as_tuple=True)
    assert 0 < len(prompts.unique()) < 9  # some prompts are left out altogether
    found = model.confident_masks(points, embeddings, min_iou=level)
    assert torch.equal(found.prompts, prompts)
    close(found.iou_scores, out.iou_scores[0, prompts, kinds])
    close(found.masks, out.pred_masks[0, prompts, kinds])
    nothing = model.confident_masks(points, embeddings, min_iou=2.0)
    assert nothing.masks.shape == (0, *out.pred_masks.shape[-2:])
    assert len(nothing.iou_scores) == len(nothing.prompts) == 0
    with pytest.raises(InputError, match="image_embeddings: expected those of one image, got 2"):
        model.confident_masks(points.expand(2, -1, -1, -1), model.get_image_embeddings(PIXELS), min_iou=0.5)


@pytest.mark.parametrize("size", [1, 5000, 1 << 30])
def test_strips_are_the_whole(model: Sam2Model, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    want = model(PIXELS, input_points=POINTS)  # with gradients: without strips
    monkeypatch.setattr("vitruvian.models.sam2.hiera._CPU_STRIP_BYTES", size)
    with torch.no_grad():
        got = model(PIXELS, input_points=POINTS)
    for one, other in zip(got.image_embeddings, want.image_embeddings, strict=True):
        close(one, other.detach())
    close(got.pred_masks, want.pred_masks.detach())


@pytest.mark.skipif(not dispatch.IS_INTERPRETED, reason="needs Triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("prompts", [1, 3])
def test_the_plain_model_runs_the_kernels(model: Sam2Model, prompts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: set[str] = set()
    for module in (layer_norm, two_way_attention, window_attention):
        for kernel, launch in list(vars(module).items()):
            if kernel.startswith("_") and kernel.endswith("_triton") and kernel != "_use_triton":

                def noted(*args: Any, kernel: str = kernel, launch: Any = launch, **kwargs: Any) -> Any:
                    launched.add(kernel)
                    return launch(*args, **kwargs)

                monkeypatch.setattr(module, kernel, noted)
    points = torch.rand(2, prompts, 1, 2, generator=torch.Generator().manual_seed(1)) * SIDE
    with torch.no_grad():
        want = model(PIXELS, input_points=points)
        assert not launched
        with dispatch.interpret_triton():
            got = model(PIXELS, input_points=points)
    names = ("layer_norm", "window_attention", "tokens_to_image", "image_to_tokens")
    assert launched == {f"_{name}_triton" for name in names}
    for one, other in zip(got.image_embeddings, want.image_embeddings, strict=True):
        close(one, other)
    close(got.pred_masks, want.pred_masks)
    close(got.iou_scores, want.iou_scores)


@pytest.mark.parametrize(
    "fields", [{}, {"num_query_pool_stages": 1}, {"query_stride": [2, 1], "num_query_pool_stages": 1}]
)
def test_other_backbones_with_and_without_weights(fields: dict[str, Any]) -> None:
    settings = hiera_fields() | {
        "image_size": [64, 96],
        "embed_dim_per_stage": [8, 8, 8, 8],
        "num_attention_heads_per_stage": [2, 2, 2, 2],
        "window_size_per_stage": [4, 4, 4, 2],
        "num_query_pool_stages": 0,
    }
    torch.manual_seed(0)
    backbone = Sam2HieraDetModel(Sam2HieraDetConfig(**settings | fields)).eval()
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        pixels = torch.randn(2, 3, 64, 96)
        got, want = backbone(pixels), backbone(pixels, output_attentions=True, output_hidden_states=True)
    for one, other in zip(got.intermediate_hidden_states, want.intermediate_hidden_states, strict=True):
        close(one, other)


def test_windows_attend_with_the_chosen_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    used, real = [], window_attention.attention

    def recorded(*args: Any, implementation: str, **options: Any) -> Any:
        used.append(implementation)
        return real(*args, implementation=implementation, **options)

    monkeypatch.setattr(window_attention, "attention", recorded)
    attend = HieraAttention(16, 16, heads=2, window=4, stride=None)
    for name in ("sdpa", "flash_attention_2"):
        attend.attn_implementation = name
        attend(torch.randn(1, 8, 8, 16))
    assert used == ["sdpa", "flash_attention_2"]


def test_pooling_and_bicubic_matrix() -> None:
    x = torch.randn(2, 6, 8, 5, generator=torch.Generator().manual_seed(0))
    for stride in ((2, 2), (3, 2), (1, 4)):
        assert torch.equal(max_pool(x, stride), F.max_pool2d(x.movedim(-1, 1), stride).movedim(1, -1))
    table = torch.randn(1, 1, 5, 7, generator=torch.Generator().manual_seed(0))
    rows, columns = _bicubic_matrix(5, 12, table.device), _bicubic_matrix(7, 7, table.device)
    close(rows @ table @ columns.T, F.interpolate(table, size=(12, 7), mode="bicubic"))


@pytest.mark.parametrize("multimask", [True, False])
def test_the_decoder_returns_the_tokens_of_its_masks(model: Sam2Model, multimask: bool) -> None:
    sparse, dense = model.prompt_encoder(POINTS, torch.ones(POINTS.shape[:3]).long(), None, None)
    levels, positions = model.get_image_embeddings(PIXELS), model._cell_positions()
    with torch.no_grad():
        out = model.mask_decoder(levels, positions, sparse, dense, multimask_output=multimask)
    assert out.mask_tokens.shape == (2, 2, 3 if multimask else 1, 32)


def test_attentions_are_weights(model: Sam2Model) -> None:
    with torch.no_grad():
        out = model(PIXELS, input_points=POINTS, output_attentions=True)
    assert len(out.vision_attentions) == 6
    assert [tuple(w.shape) for w in out.mask_decoder_attentions] == [(4, 4, 8, 16)] * 2
    for weights in (*out.vision_attentions, *out.mask_decoder_attentions):
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    close(out.pred_masks, masks(model, input_points=POINTS))


def test_labels_give_the_loss_of_the_masks(model: Sam2Model) -> None:
    labels = (torch.rand(2, 2, 16, 16) > 0.5).long()
    for multimask in (True, False):
        out = model(PIXELS, input_points=POINTS, labels=labels, multimask_output=multimask)
        want = prompted_mask_loss(out.pred_masks, out.iou_scores, out.object_score_logits, labels)
        torch.testing.assert_close(out.loss, want.total)
        assert out.loss.requires_grad
        assert out[0] is out.loss
    with torch.no_grad():
        assert model(PIXELS, input_points=POINTS).loss is None


def test_labels_of_other_sizes_and_padded_objects(model: Sam2Model) -> None:
    labels = torch.zeros(2, 2, 64, 48)
    labels[:, :, :20] = 1
    with torch.no_grad():
        assert model(PIXELS, input_points=POINTS, labels=labels).loss > 0
        kinds = torch.tensor([[[1], [-10]], [[1], [1]]])
        padded = model(PIXELS, input_points=POINTS, input_labels=kinds, labels=labels).loss
        labels[0, 1] = 0
        again = model(PIXELS, input_points=POINTS, input_labels=kinds, labels=labels).loss
        one = model(PIXELS, input_points=POINTS[:, :1], labels=labels[:, 0].long()).loss
    torch.testing.assert_close(padded, again)
    assert one > 0
    with pytest.raises(InputError, match="labels: expected"):
        model(PIXELS, input_points=POINTS, labels=labels[:, 0])


def test_outputs_as_a_tuple_and_without_what_was_not_asked(model: Sam2Model) -> None:
    with torch.no_grad():
        out = model(PIXELS)
        parts = model(PIXELS, return_dict=False)
    assert list(out) == ["iou_scores", "pred_masks", "object_score_logits", "image_embeddings"]
    assert torch.equal(parts[1], out.pred_masks)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "exactly one"),
        ({"pixel_values": PIXELS, "image_embeddings": []}, "exactly one"),
        ({"image_embeddings": [torch.zeros(1, 32, 4, 4)]}, "three levels"),
        ({"image_embeddings": torch.zeros(1, 32, 4, 4)}, "three levels"),
        ({"pixel_values": PIXELS, "input_points": POINTS[:1]}, "each of 2 images, got 1"),
        ({"pixel_values": PIXELS, "input_points": POINTS[:, 0]}, r"\[B, P, N, 2\]"),
        ({"pixel_values": PIXELS, "input_boxes": POINTS[:, :, 0]}, r"\[B, P, 4\]"),
        ({"pixel_values": PIXELS, "input_points": POINTS, "input_labels": torch.full((2, 2, 1), 7)}, "got 7"),
        ({"pixel_values": PIXELS, "input_points": POINTS, "input_labels": torch.ones(2, 2, 3)}, "one for each point"),
        ({"pixel_values": PIXELS, "input_labels": torch.ones(2, 2, 1)}, "Add the points"),
        ({"pixel_values": PIXELS, "input_points": POINTS, "input_boxes": torch.zeros(2, 1, 4)}, "as many objects"),
        ({"pixel_values": PIXELS, "input_points": POINTS, "input_masks": torch.zeros(2, 3, 8, 8)}, "2 objects, got 3"),
        ({"pixel_values": PIXELS, "input_masks": torch.zeros(8, 8)}, "input_masks"),
        ({"pixel_values": PIXELS, "input_points": torch.zeros(2, 0, 1, 2)}, "input_points"),
        ({"pixel_values": PIXELS, "attention_similarity": torch.zeros(3, 1, 1, 16)}, "attention_similarity"),
    ],
)
def test_bad_inputs_are_refused(model: Sam2Model, given: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        model(**given)


def test_a_checkpoint_with_shared_positions_stored_once(model: Sam2Model, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    once = "prompt_encoder.shared_embedding.positional_embedding"
    save_file({name: value for name, value in state.items() if name != once}, tmp_path / "model.safetensors")
    again = Sam2Model.from_pretrained(tmp_path)
    close(masks(again, input_points=POINTS), masks(model, input_points=POINTS))
    save_file(
        {name: value for name, value in state.items() if "positional" not in name}, tmp_path / "model.safetensors"
    )
    with pytest.raises(WeightsError, match="shared_image_embedding"):
        Sam2Model.from_pretrained(tmp_path, strict=True)


def test_fresh_models_use_one_table_of_positions() -> None:
    for model in (Sam2Model(tiny()), Sam2Model.from_config(tiny())):
        image, prompts = model.shared_image_embedding, model.prompt_encoder.shared_embedding
        assert torch.equal(image.positional_embedding, prompts.positional_embedding)
        assert image.positional_embedding.std() > 0.3
