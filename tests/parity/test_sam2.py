"""Same weights, same numbers as the reference, live: all kinds of prompts, types, gradients and options."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families.sam2 import hiera_fields, model_fields, vision_fields
from vitruvian.models.sam2.configuration import (
    Sam2Config,
    Sam2HieraDetConfig,
    Sam2MaskDecoderConfig,
    Sam2PromptEncoderConfig,
    Sam2VisionConfig,
)
from vitruvian.models.sam2.hiera import Sam2HieraDetModel
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.vision_encoder import Sam2VisionModel

reference = pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

SIDE = 64


def randomise(model: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.copy_(torch.randn_like(parameter) * max(1, parameter[0].numel()) ** -0.5)
            assert parameter.isfinite().all(), name
    return model.eval()


def pair(tmp_path: Path, **decoder: Any) -> tuple[Any, Sam2Model]:
    """A reference model with random weights, and ours opened from what it saved."""
    theirs = randomise(reference.Sam2Model(reference.Sam2Config(**copy.deepcopy(model_fields(SIDE, **decoder)))))
    theirs.save_pretrained(tmp_path)
    return theirs, Sam2Model.from_pretrained(tmp_path)


def close(got: Tensor, want: Tensor, tolerance: float = 2e-5) -> None:
    assert got.shape == want.shape
    error = (got.double() - want.double()).abs().max() / (1 + want.double().abs().max())
    assert error <= tolerance, f"relative difference {error:.2g}"


def compare(theirs: Any, ours: Any, tolerance: float = 2e-5, **given: Any) -> None:
    with torch.no_grad():
        want, got = theirs(**copy.deepcopy(given)), ours(**given)
    for name in ("iou_scores", "pred_masks", "object_score_logits"):
        close(got[name], want[name], tolerance)
    for mine, their in zip(got.image_embeddings, want.image_embeddings, strict=True):
        close(mine, their, tolerance)


PIXELS = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
POINTS = torch.rand(2, 3, 2, 2, generator=torch.Generator().manual_seed(2)) * SIDE
LABELS = torch.tensor([[[1, 0], [1, -10], [-1, 1]], [[1, 1], [0, 0], [2, 3]]])
BOXES = torch.tensor([[[3, 5, 40, 50], [1, 1, 9, 9], [2, 30, 60, 62]], [[0, 0, 64, 64], [5, 6, 7, 8], [9, 9, 30, 20]]])
BOXES = BOXES.float()
MASK = torch.randn(2, 1, SIDE // 4, SIDE // 4, generator=torch.Generator().manual_seed(3))

PROMPTS: dict[str, dict[str, Any]] = {
    "points": {"input_points": POINTS, "input_labels": LABELS},
    "points without labels": {"input_points": POINTS},
    "boxes": {"input_boxes": BOXES},
    "boxes and points": {"input_boxes": BOXES, "input_points": POINTS, "input_labels": LABELS},
    "mask": {"input_masks": MASK},
    "mask of another size": {
        "input_masks": torch.nn.functional.interpolate(MASK, size=(100, 90)),
        "input_boxes": BOXES,
    },
    "nothing": {},
}


@pytest.mark.parametrize("multimask", [True, False])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_kind_of_prompt(tmp_path: Path, prompt: str, multimask: bool) -> None:
    theirs, ours = pair(tmp_path)
    compare(theirs, ours, pixel_values=PIXELS, multimask_output=multimask, **PROMPTS[prompt])


@pytest.mark.parametrize(
    "decoder",
    [
        {"num_hidden_layers": 1},
        {"num_hidden_layers": 3, "num_attention_heads": 8, "attention_downsample_rate": 1},
        {"num_multimask_outputs": 5, "iou_head_depth": 4},
        {"dynamic_multimask_via_stability": False},
        {"dynamic_multimask_stability_thresh": 0.0},
        {"dynamic_multimask_stability_delta": 2.0},
    ],
    ids=str,
)
def test_other_decoders(tmp_path: Path, decoder: dict[str, Any]) -> None:
    theirs, ours = pair(tmp_path, **decoder)
    for multimask in (True, False):
        compare(theirs, ours, pixel_values=PIXELS, input_points=POINTS, input_labels=LABELS, multimask_output=multimask)


def test_groups_of_prompts_are_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(tmp_path)
    monkeypatch.setattr("vitruvian.models.sam2.mask_decoder._GROUP_BYTES", {"cpu": 1, "cuda": 1})
    assert len(ours.mask_decoder._groups(torch.zeros(1, 1, 16, 32), 3)) == 3
    similarity = torch.randn(6, 4, 1, 16)
    compare(
        theirs, ours, pixel_values=PIXELS, input_points=POINTS, input_labels=LABELS, attention_similarity=similarity
    )


@pytest.mark.parametrize("shape", [(6, 1, 1, 16), (6, 4, 9, 16), (1, 4, 1, 16)])
def test_attention_similarity(tmp_path: Path, shape: tuple[int, ...]) -> None:
    theirs, ours = pair(tmp_path)
    similarity = torch.randn(shape)
    compare(
        theirs, ours, pixel_values=PIXELS, input_points=POINTS, input_labels=LABELS, attention_similarity=similarity
    )


@pytest.mark.parametrize("shape", [(32,), (1, 1, 32), (2, 3, 1, 32)])
def test_target_embedding(tmp_path: Path, shape: tuple[int, ...]) -> None:
    theirs, ours = pair(tmp_path)
    target = torch.randn(shape)
    compare(theirs, ours, pixel_values=PIXELS, input_points=POINTS, input_labels=LABELS, target_embedding=target)


def test_image_embeddings_serve_further_prompts(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path)
    want, got = theirs.get_image_embeddings(PIXELS), ours.get_image_embeddings(PIXELS)
    for mine, their in zip(got, want, strict=True):
        close(mine, their)
    compare(theirs, ours, image_embeddings=want, input_boxes=BOXES)


def test_image_features_and_positions(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path)
    with torch.no_grad():
        want, got = theirs.get_image_features(PIXELS), ours.get_image_features(PIXELS)
    close(got.last_hidden_state, want.last_hidden_state)
    for name in ("fpn_hidden_states", "fpn_position_encoding"):
        for mine, their in zip(got[name], want[name], strict=True):
            close(mine, their)
    close(ours.get_image_wide_positional_embeddings(), theirs.get_image_wide_positional_embeddings())


def test_prompt_embeddings(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path)
    prompts = {"input_points": POINTS, "input_labels": LABELS, "input_boxes": BOXES}
    want = theirs.get_prompt_embeddings(**prompts, input_masks=MASK)
    got = ours.get_prompt_embeddings(**prompts, input_masks=MASK)
    assert got[0] is not None
    close(got[0], want[0])
    close(got[1], want[1])
    close(ours.get_prompt_embeddings(**prompts)[1], theirs.get_prompt_embeddings(**prompts)[1])


def test_hidden_states(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path)
    with torch.no_grad():
        want, got = theirs(PIXELS, output_hidden_states=True), ours(PIXELS, output_hidden_states=True)
    for mine, their in zip(got.vision_hidden_states, want.vision_hidden_states, strict=True):
        close(mine, their)


def test_backbone_and_vision_encoder_alone(tmp_path: Path) -> None:
    pixels = torch.randn(1, 3, 96, 160)
    backbone = randomise(reference.Sam2HieraDetModel(reference.Sam2HieraDetConfig(**hiera_fields())))
    backbone.save_pretrained(tmp_path / "backbone")
    with torch.no_grad():
        want, got = backbone(pixels), Sam2HieraDetModel.from_pretrained(tmp_path / "backbone")(pixels)
    close(got.last_hidden_state, want.last_hidden_state)
    for mine, their in zip(got.intermediate_hidden_states, want.intermediate_hidden_states, strict=True):
        close(mine, their)
    vision = randomise(reference.Sam2VisionModel(reference.Sam2VisionConfig(**vision_fields())))
    vision.save_pretrained(tmp_path / "vision")
    with torch.no_grad():
        want, got = vision(pixels), Sam2VisionModel.from_pretrained(tmp_path / "vision")(pixels)
    for name in ("fpn_hidden_states", "fpn_position_encoding"):
        for mine, their in zip(got[name], want[name], strict=True):
            close(mine, their)


def test_bf16_is_about_as_far_from_float32_as_the_reference(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path)
    random = torch.Generator().manual_seed(4)
    given = [
        {
            "pixel_values": torch.randn(2, 3, SIDE, SIDE, generator=random),
            "input_points": torch.randint(0, SIDE, (2, 3, 2, 2), generator=random).float(),
            "input_labels": LABELS,
        }
        for _ in range(4)
    ]
    with torch.no_grad():
        exact = [theirs(**one).pred_masks for one in given]
        theirs.to(torch.bfloat16)
        ours.to(torch.bfloat16)
        errors = [
            sum((model(**one).pred_masks.float() - want).norm().item() for one, want in zip(given, exact, strict=True))
            for model in (theirs, ours)
        ]
    assert errors[1] <= 1.3 * errors[0]


def test_gradients(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path)
    gradients = []
    for model in (theirs.train(), ours.train()):
        out = model(pixel_values=PIXELS, input_points=POINTS, input_labels=LABELS, input_masks=MASK)
        weight = torch.linspace(-1, 1, out.pred_masks.numel()).view_as(out.pred_masks)
        ((out.pred_masks * weight).sum() + out.iou_scores.sum() + out.object_score_logits.square().sum()).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, want in gradients[0].items():
        error = (gradients[1][name] - want).abs().max()
        assert error <= 2e-4 * (1 + want.abs().max()), f"{name}: {error:.2g}"


def test_reference_opens_what_we_save(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours = randomise(Sam2Model(Sam2Config.from_dict(model_fields())))
    ours.save_pretrained(tmp_path)
    theirs, report = reference.Sam2Model.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    compare(theirs.eval(), ours, pixel_values=PIXELS, input_points=POINTS, input_labels=LABELS)


def test_opens_the_image_part_of_a_video_checkpoint(tmp_path: Path) -> None:
    fields = model_fields() | {
        "image_size": SIDE,
        "memory_attention_hidden_size": 32,
        "memory_attention_feed_forward_hidden_size": 32,
        "memory_attention_num_layers": 1,
        "memory_encoder_hidden_size": 32,
        "memory_encoder_output_channels": 8,
        "mask_downsampler_embed_dim": 32,
        "memory_fuser_embed_dim": 32,
        "memory_fuser_intermediate_dim": 32,
        "memory_attention_rope_feat_sizes": [4, 4],
    }
    video = randomise(reference.Sam2VideoModel(reference.Sam2VideoConfig(**copy.deepcopy(fields))))
    video.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "sam2_video"
    theirs, ours = reference.Sam2Model.from_pretrained(tmp_path).eval(), Sam2Model.from_pretrained(tmp_path)
    compare(theirs, ours, pixel_values=PIXELS, input_points=POINTS, input_labels=LABELS)
    assert torch.equal(ours.no_memory_embedding, video.no_memory_embedding)
    alone = Sam2VisionModel.from_pretrained(tmp_path)
    with torch.no_grad():
        close(alone(PIXELS).fpn_hidden_states[0], ours.vision_encoder(PIXELS).fpn_hidden_states[0])
        backbone = Sam2HieraDetModel.from_pretrained(tmp_path)
        close(backbone(PIXELS).last_hidden_state, alone(PIXELS).last_hidden_state)
    ours.save_pretrained(tmp_path / "again")
    again = reference.Sam2Model.from_pretrained(tmp_path / "again").eval()
    compare(again, ours, pixel_values=PIXELS, input_boxes=BOXES)


@pytest.mark.parametrize(
    "cls",
    [Sam2HieraDetConfig, Sam2VisionConfig, Sam2PromptEncoderConfig, Sam2MaskDecoderConfig, Sam2Config],
    ids=lambda cls: cls.__name__,
)
def test_defaults_are_the_reference_s(cls: Any) -> None:
    theirs, ours = getattr(reference, cls.__name__)().to_dict(), cls().to_dict()

    def same(want: Any, got: Any) -> None:
        for name, value in want.items():
            if isinstance(value, dict) and name in got and name.endswith("_config"):
                same(value, got[name])
            elif name in got and name not in ("dtype", "architectures", "id2label", "label2id"):
                assert got[name] == value, name

    same(theirs, ours)
    documented = {name for name in theirs if name in cls.__dataclass_fields__}
    assert len(documented) >= 4
