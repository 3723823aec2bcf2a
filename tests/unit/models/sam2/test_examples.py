"""The examples of the published page, step by step, on a tiny checkpoint in the layout of the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.families.sam2 import SIDE, tiny
from vitruvian.models.sam2.automatic_masks import MaskProposals, Sam2AutomaticMaskGenerator
from vitruvian.models.sam2.configuration import (
    Sam2Config,
    Sam2MaskDecoderConfig,
    Sam2PromptEncoderConfig,
    Sam2VisionConfig,
)
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2ImageProcessor, Sam2Processor

TRUCK = Image.effect_noise((2250, 1500), 60).convert("RGB")
DOG = Image.effect_noise((1000, 700), 60).convert("RGB")
GROCERIES = Image.effect_noise((720, 480), 60).convert("RGB")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder: Path = tmp_path_factory.mktemp("sam2.1-hiera-tiny")
    torch.manual_seed(0)
    Sam2Model(tiny()).save_pretrained(folder)
    Sam2Processor(Sam2ImageProcessor(size={"height": SIDE, "width": SIDE})).save_pretrained(folder)
    model = Sam2Model.from_pretrained(folder, device_map="auto")
    return model, Sam2Processor.from_pretrained(folder)


def run(
    opened: tuple[Any, Any], images: Any, multimask_output: bool | None = None, **prompts: Any
) -> list[torch.Tensor]:
    model, processor = opened
    inputs = processor(images=images, **prompts, return_tensors="pt").to(model.device)
    with torch.no_grad():
        outputs = model(**inputs, **({} if multimask_output is None else {"multimask_output": multimask_output}))
    return processor.post_process_masks(outputs.pred_masks.cpu(), inputs["original_sizes"])


def test_single_point_click(opened: tuple[Any, Any]) -> None:
    masks = run(opened, TRUCK, input_points=[[[[500, 375]]]], input_labels=[[[1]]])[0]
    assert masks.shape == torch.Size((1, 3, 1500, 2250))


def test_multiple_points(opened: tuple[Any, Any]) -> None:
    masks = run(opened, TRUCK, input_points=[[[[500, 375], [1125, 625]]]], input_labels=[[[1, 1]]])[0]
    assert masks.shape[:2] == (1, 3)


def test_bounding_box(opened: tuple[Any, Any]) -> None:
    assert run(opened, TRUCK, input_boxes=[[[75, 275, 1725, 850]]])[0].shape[:2] == (1, 3)


def test_multiple_objects(opened: tuple[Any, Any]) -> None:
    points, labels = [[[[500, 375]], [[650, 750]]]], [[[1], [1]]]
    assert run(opened, TRUCK, False, input_points=points, input_labels=labels)[0].shape[0] == 2


def test_batched_images(opened: tuple[Any, Any]) -> None:
    points, labels = [[[[500, 375]]], [[[770, 200]]]], [[[1]], [[1]]]
    masks = run(opened, [TRUCK, DOG], False, input_points=points, input_labels=labels)
    assert [tuple(mask.shape) for mask in masks] == [(1, 1, 1500, 2250), (1, 1, 700, 1000)]


def test_batched_objects_with_different_counts(opened: tuple[Any, Any]) -> None:
    points, labels = [[[[500, 375]], [[650, 750]]], [[[770, 200]]]], [[[1], [1]], [[1]]]
    assert len(run(opened, [TRUCK, DOG], False, input_points=points, input_labels=labels)) == 2


def test_batched_images_objects_and_points(opened: tuple[Any, Any]) -> None:
    points = [[[[500, 375]], [[650, 750]]], [[[400, 300]], [[630, 300], [550, 300]]]]
    labels = [[[1], [1]], [[1], [1, 1]]]
    assert len(run(opened, [TRUCK, GROCERIES], False, input_points=points, input_labels=labels)) == 2


def test_batched_boxes(opened: tuple[Any, Any]) -> None:
    boxes = [
        [[75, 275, 1725, 850], [425, 600, 700, 875], [1375, 550, 1650, 800], [1240, 675, 1400, 750]],
        [[450, 170, 520, 350], [350, 190, 450, 350], [500, 170, 580, 350], [580, 170, 640, 350]],
    ]
    assert [mask.shape[0] for mask in run(opened, [TRUCK, GROCERIES], False, input_boxes=boxes)] == [4, 4]


def test_previous_masks_as_input(opened: tuple[Any, Any]) -> None:
    model, processor = opened
    inputs = processor(images=DOG, input_points=[[[[500, 375]]]], input_labels=[[[1]]], return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs.to(model.device))
    mask_input = outputs.pred_masks[:, :, torch.argmax(outputs.iou_scores.squeeze())]
    inputs = processor(
        input_points=[[[[500, 375], [450, 300]]]],
        input_labels=[[[1, 1]]],
        original_sizes=inputs["original_sizes"],
        return_tensors="pt",
    ).to(model.device)
    with torch.no_grad():
        refined = model(
            **inputs, input_masks=mask_input, image_embeddings=outputs.image_embeddings, multimask_output=False
        )
    assert refined.pred_masks.shape == (1, 1, 1, SIDE // 4, SIDE // 4)


def test_a_window_of_the_car_with_a_level_left_out(opened: tuple[Any, Any]) -> None:
    assert run(opened, DOG, input_points=[[[400, 650]]])[0].shape == (1, 3, 700, 1000)


def test_configurations() -> None:
    configuration = Sam2Config()
    assert configuration == Sam2Config.variant("tiny")
    with torch.device("meta"):
        assert Sam2Model(configuration).config is configuration
    assert Sam2Config(Sam2VisionConfig(), Sam2PromptEncoderConfig(), Sam2MaskDecoderConfig()) == configuration


def test_automatic_masks(opened: tuple[Any, Any]) -> None:
    outputs = Sam2AutomaticMaskGenerator(*opened, points_per_crop=3)(GROCERIES, points_per_batch=64)
    assert isinstance(outputs, MaskProposals)
    assert outputs.masks.shape[1:] == (480, 720)
