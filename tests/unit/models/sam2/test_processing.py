"""Processors of SAM 2: images, prompts, configuration files, and every option of post_process_masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitruvian.errors import CheckpointError, ConfigError, InputError, InputTypeError
from vitruvian.models.sam2.processing import Sam2ImageProcessor, Sam2Processor

SMALL = {"height": 64, "width": 64}


def processor(**fields: Any) -> Sam2Processor:
    return Sam2Processor(Sam2ImageProcessor(size=SMALL, mask_size={"height": 16, "width": 16}), **fields)


def gradient_image(height: int = 40, width: int = 80) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 3, y * 5, x + y], -1).astype(np.uint8))


def test_images_of_every_kind_give_the_same() -> None:
    image = gradient_image()
    array = np.array(image)
    forms = [image, array, torch.from_numpy(array), array.transpose(2, 0, 1), torch.from_numpy(array).permute(2, 0, 1)]
    want = processor()(images=image, return_tensors="pt")
    assert want["pixel_values"].shape == (1, 3, 64, 64)
    assert want["original_sizes"].tolist() == [[40, 80]]
    for form in forms:
        torch.testing.assert_close(processor()(images=form, return_tensors="pt")["pixel_values"], want["pixel_values"])
    pair = processor()(images=[image, gradient_image(30, 30)], return_tensors="pt")
    assert pair["pixel_values"].shape == (2, 3, 64, 64)
    assert pair["original_sizes"].tolist() == [[40, 80], [30, 30]]


def test_values_are_normalized_and_options_of_a_call_count() -> None:
    white = Image.new("RGB", (8, 8), (255, 255, 255))
    want = [(1 - mean) / std for mean, std in zip((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)]
    found = processor()(images=white, return_tensors="pt")["pixel_values"][0, :, 0, 0]
    assert found.tolist() == pytest.approx(want, abs=1e-5)
    raw = processor()(images=white, return_tensors="pt", do_normalize=False, do_rescale=False)["pixel_values"]
    assert (raw == 255).all()
    assert processor()(images=white, return_tensors="pt", size=32)["pixel_values"].shape[-1] == 32
    assert processor()(images=white, return_tensors="pt", do_resize=False)["pixel_values"].shape[-1] == 8
    with pytest.raises(ConfigError, match="Did you mean do_resize"):
        processor()(images=white, do_resise=True)


def test_without_return_tensors_images_stay_a_list() -> None:
    found = processor()(images=gradient_image())
    assert isinstance(found["pixel_values"], list)
    assert found["original_sizes"] == [(40, 80)]
    arrays = processor()(images=gradient_image(), input_points=[[[[1, 2]]]], return_tensors="np")
    assert all(isinstance(value, np.ndarray) for value in arrays.values())


def test_the_page_s_example_with_a_missing_level() -> None:
    inputs = processor()(images=gradient_image(), input_points=[[[20, 30]]], return_tensors="pt")
    assert inputs["input_points"].tolist() == [[[[16, 48]]]]
    assert set(inputs) == {"pixel_values", "original_sizes", "input_points"}


def test_prompts_without_images() -> None:
    inputs = processor()(
        input_points=[[[[20, 30], [40, 10]]]],
        input_labels=[[[1, 0]]],
        original_sizes=torch.tensor([[40, 80]]),
        return_tensors="pt",
    )
    assert inputs["input_points"].tolist() == [[[[16, 48], [32, 16]]]]
    assert inputs["input_labels"].dtype == torch.int64
    assert "pixel_values" not in inputs
    with pytest.raises(InputError, match="images, or original_sizes"):
        processor()(input_points=[[[[20, 30]]]])
    with pytest.raises(InputError, match="do_resize: expected images"):
        processor()(original_sizes=[[4, 4]], do_resize=False)
    with pytest.raises(InputError, match="Omit it"):
        processor()(images=gradient_image(), original_sizes=[[4, 4]])


def test_points_and_boxes_must_be_of_as_many_objects() -> None:
    boxes = [[[1, 2, 30, 30], [1, 2, 20, 20]]]
    with pytest.raises(InputError, match="as many objects in each, got 1 in input_points and 2 in input_boxes"):
        processor()(images=gradient_image(), input_points=[[[[20, 30]]]], input_boxes=boxes)


def test_target_size_and_padding_value() -> None:
    other = processor(target_size=128, point_pad_value=-99)
    inputs = other(images=[gradient_image(), gradient_image()], input_points=[[[[20, 30]], [[1, 1]]], [[[20, 30]]]])
    assert inputs["input_points"][0, 0, 0].tolist() == [32, 96]
    assert inputs["input_points"][1, 1, 0].tolist() == [-99, -99]
    wide = Sam2Processor(Sam2ImageProcessor(size={"height": 64, "width": 96}))
    assert wide.target_size == [64, 96]
    assert wide(images=gradient_image(), input_points=[[[[20, 30]]]])["input_points"].tolist() == [[[[24, 48]]]]


def test_label_masks() -> None:
    mask = np.zeros((40, 80), np.uint8)
    mask[:, 40:] = 3
    one = processor()(images=gradient_image(), segmentation_maps=mask, return_tensors="pt")["labels"]
    assert one.shape == (1, 16, 16)
    assert one.dtype == torch.int64
    assert one[0, 3].tolist() == [0] * 8 + [3] * 8
    odd = mask.copy()
    odd[::3, 33:] = 7
    kept = processor()(images=gradient_image(), segmentation_maps=odd, return_tensors="pt")["labels"]
    assert set(kept.unique().tolist()) == {0, 3, 7}  # labels are picked, not mixed
    forms = [Image.fromarray(mask), torch.from_numpy(mask), [mask], mask[None]]
    for form in forms:
        assert torch.equal(
            processor()(images=gradient_image(), segmentation_maps=form, return_tensors="pt")["labels"], one
        )
    several = processor()(images=gradient_image(), segmentation_maps=[np.stack([mask] * 3)], return_tensors="pt")
    assert several["labels"].shape == (1, 3, 16, 16)
    with pytest.raises(InputError, match="one entry for each of the 1 images"):
        processor()(images=gradient_image(), segmentation_maps=[mask, mask])
    with pytest.raises(InputError, match="integers"):
        processor()(images=gradient_image(), segmentation_maps=[mask * 0.5])


def test_saved_and_read_again(tmp_path: Path) -> None:
    original = processor(point_pad_value=-7)
    names = {path.name for path in original.save_pretrained(tmp_path)}
    assert names == {"processor_config.json", "preprocessor_config.json"}
    assert Sam2Processor.from_pretrained(tmp_path) == original
    assert Sam2ImageProcessor.from_pretrained(tmp_path) == original.image_processor
    assert Sam2Processor.from_pretrained(tmp_path, target_size=32).target_size == 32
    assert json.loads((tmp_path / "processor_config.json").read_text())["processor_class"] == "Sam2Processor"
    with pytest.raises(ConfigError, match="the name of a field, got 'taget_size'"):
        Sam2Processor.from_pretrained(tmp_path, taget_size=32)


def test_files_of_the_hub_s_layouts(tmp_path: Path) -> None:
    """Published checkpoints keep images' settings apart and were written by the video processor."""
    images = {"image_processor_type": "Sam2ImageProcessorFast", "size": SMALL, "do_pad": None, "crop_size": None}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    assert Sam2Processor.from_pretrained(tmp_path).target_size == 64
    joint = {"processor_class": "Sam2VideoProcessor", "target_size": 128, "point_pad_value": -10}
    (tmp_path / "processor_config.json").write_text(json.dumps(joint))
    found = Sam2Processor.from_pretrained(tmp_path)
    assert found.target_size == 128
    assert found.image_processor.size == SMALL
    (tmp_path / "preprocessor_config.json").unlink()
    nested = joint | {"image_processor": images, "video_processor": {"size": 1}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert Sam2ImageProcessor.from_pretrained(tmp_path).size == SMALL
    found = Sam2Processor.from_pretrained(tmp_path)
    assert found.image_processor.size == SMALL
    assert "video_processor" not in found.to_dict()
    (tmp_path / "processor_config.json").write_text(json.dumps(joint))
    with pytest.raises(CheckpointError, match="found neither"):
        Sam2Processor.from_pretrained(tmp_path)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="size"):
        Sam2ImageProcessor(size={"shortest_edge": 64})
    with pytest.raises(ConfigError, match="mask_size"):
        Sam2ImageProcessor(mask_size={"height": 0, "width": 4})


# ---------------------------------------------------------------- masks


def blocks() -> torch.Tensor:
    """A 20 × 20 mask with a hole of 4 pixels and an island of 6, as logits [1, 1, 20, 20]."""
    logits = torch.full((20, 20), -3.0)
    logits[2:12, 2:12] = 3
    logits[5:7, 5:7] = -3
    logits[15:17, 15:18] = 3
    return logits[None, None]


def cleaned(**options: Any) -> torch.Tensor:
    return processor().post_process_masks([blocks()], [(20, 20)], **options)[0][0, 0]


def test_masks_come_in_the_size_of_each_image() -> None:
    masks = torch.randn(2, 3, 2, 16, 16)
    found = processor().post_process_masks(masks, torch.tensor([[40, 80], [7, 9]]))
    assert [tuple(mask.shape) for mask in found] == [(3, 2, 40, 80), (3, 2, 7, 9)]
    assert all(mask.dtype == torch.bool for mask in found)
    as_arrays = processor().post_process_masks([mask.numpy() for mask in masks], [(40, 80), (7, 9)])
    assert all(torch.equal(a, b) for a, b in zip(found, as_arrays, strict=True))
    half = processor().post_process_masks(masks.bfloat16(), [(40, 80), (7, 9)], binarize=False)
    assert half[0].dtype == torch.float32


def test_threshold_and_binarize() -> None:
    logits = torch.tensor([[[[1.0, 3.0]]]])
    assert processor().post_process_masks([logits], [(1, 2)], mask_threshold=2)[0].tolist() == [[[[False, True]]]]
    assert torch.equal(processor().post_process_masks([logits], [(1, 2)], binarize=False)[0], logits)


def test_holes_and_sprinkles_by_their_area() -> None:
    assert not cleaned()[5:7, 5:7].any()
    assert not cleaned(max_hole_area=3)[5:7, 5:7].any()
    assert cleaned(max_hole_area=4)[5:7, 5:7].all()
    assert cleaned(max_sprinkle_area=5)[15:17, 15:18].all()
    assert not cleaned(max_sprinkle_area=6)[15:17, 15:18].any()
    both = cleaned(max_hole_area=4, max_sprinkle_area=6)
    assert both.sum() == 100


def test_holes_and_sprinkles_of_logits() -> None:
    found = cleaned(max_hole_area=4, max_sprinkle_area=6, binarize=False, mask_threshold=1.0)
    assert (found[5:7, 5:7] == 11).all()
    assert (found[15:17, 15:18] == -9).all()
    rest = torch.ones(20, 20, dtype=torch.bool)
    rest[5:7, 5:7] = rest[15:17, 15:18] = False
    assert torch.equal(found[rest], blocks()[0, 0][rest])


def test_areas_are_pixels_of_the_image() -> None:
    large = processor().post_process_masks([blocks()], [(40, 40)], max_hole_area=8)[0][0, 0]
    assert not large[11:13, 11:13].any()  # the hole has some 16 pixels here
    large = processor().post_process_masks([blocks()], [(40, 40)], max_hole_area=20)[0][0, 0]
    assert large[11:13, 11:13].all()


def test_each_pixel_to_one_object() -> None:
    logits = torch.randn(4, 2, 8, 8)
    masks = processor().post_process_masks([logits], [(8, 8)], apply_non_overlapping_constraints=True)[0]
    assert masks.sum(dim=0).max() == 1
    raw = processor().post_process_masks([logits], [(8, 8)], binarize=False, apply_non_overlapping_constraints=True)[0]
    assert torch.equal(raw.amax(dim=0), logits.amax(dim=0))
    assert (raw <= -10).sum() == 3 * 2 * 64
    one = torch.randn(1, 2, 8, 8)
    alone = processor().post_process_masks([one], [(8, 8)], binarize=False, apply_non_overlapping_constraints=True)[0]
    assert torch.equal(alone, one)


def test_masks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="original_sizes"):
        processor().post_process_masks(torch.zeros(2, 1, 1, 4, 4), [(4, 4)])
    with pytest.raises(InputError, match=r"\[P, K, h, w\]"):
        processor().post_process_masks(torch.zeros(1, 4, 4), [(4, 4)])
    with pytest.raises(InputError, match="original_sizes"):
        processor().post_process_masks(torch.zeros(1, 1, 1, 4, 4), [(0, 4)])


def test_masks_of_a_wrong_type() -> None:
    with pytest.raises(InputTypeError, match="masks: expected a tensor or an array for each image, got list"):
        processor().post_process_masks([[1, 0], [0, 1]], [(4, 4)])
    assert issubclass(InputTypeError, TypeError)


def test_options_of_the_image_processor_go_through_the_processor(tmp_path: Path) -> None:
    processor().save_pretrained(tmp_path)
    found = Sam2Processor.from_pretrained(
        tmp_path, do_normalize=False, point_pad_value=-5, use_fast=True, trust_remote_code=True, backend="pil"
    )
    assert (found.image_processor.do_normalize, found.point_pad_value) == (False, -5)
    assert found.image_processor.size == SMALL
    with pytest.raises(ConfigError, match="Did you mean do_normalize"):
        Sam2Processor.from_pretrained(tmp_path, do_normalise=False)


def test_label_maps_of_all_integer_types() -> None:
    labels = np.arange(40)[:, None].repeat(80, axis=1) % 7
    want = processor()(gradient_image(), segmentation_maps=labels, return_tensors="pt").labels
    for dtype in (np.uint8, np.int16, np.int32, np.int64):
        found = processor()(gradient_image(), segmentation_maps=labels.astype(dtype), return_tensors="pt").labels
        assert torch.equal(found, want)
        assert found.dtype == torch.int64


# ---------------------------------------------------------------- masks of everything, for the pipeline of transformers


def test_crops_and_points_of_the_whole_image() -> None:
    boxes, found, crops, labels = processor().image_processor.generate_crop_boxes(
        gradient_image(), 64, points_per_crop=2
    )
    assert boxes.tolist() == [[0, 0, 80, 40]]
    assert found.tolist() == [[[[16, 16]], [[48, 16]], [[16, 48]], [[48, 48]]]]
    assert isinstance(crops, torch.Tensor)
    assert torch.equal(crops[0], torch.from_numpy(np.array(gradient_image())).permute(2, 0, 1))
    assert labels.tolist() == [[[1]] * 4]


def test_points_of_the_reference_leave_out_part_of_the_image() -> None:
    images = processor().image_processor
    _, found, *_ = images.generate_crop_boxes(gradient_image(), 64, points_per_crop=2, legacy=True)
    assert found[0, :, 0].tolist() == [[16, 8], [48, 8], [16, 24], [48, 24]]


def test_layers_of_crops() -> None:
    images = processor().image_processor
    boxes, found, crops, labels = images.generate_crop_boxes(
        gradient_image(41, 81), 64, crop_n_layers=1, points_per_crop=4, crop_n_points_downscale_factor=2
    )
    assert (boxes.shape, found.shape, labels.shape) == ((5, 4), (1, 16, 5, 2), (1, 16, 5))
    assert isinstance(crops, list)
    for (x1, y1, x2, y2), crop in zip(boxes.int().tolist(), crops, strict=True):
        assert crop.shape == (3, y2 - y1, x2 - x1)
    assert len(found[0, :, 0].unique(dim=0)) == 16
    assert len(found[0, :, 1].unique(dim=0)) == 4  # half as many a side, the last one repeated
    assert found[0, -1, 1].tolist() == [48, 48]


def disc(x: float, y: float, radius: float, value: float = 20.0, height: int = 100, width: int = 60) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    inside = ((columns - x) ** 2 + (rows - y) ** 2).sqrt() < radius
    return torch.where(inside, value, -value)


def test_masks_are_filtered_and_padded_to_the_image() -> None:
    kept, cut = disc(25, 60, 4), disc(57, 50, 4)
    unstable, empty = disc(25, 60, 4, value=0.5), torch.full((100, 60), -9.0)
    logits = torch.stack([kept, cut, unstable, empty, kept])[:, None]  # [P, 1, h, w]
    scores = torch.tensor([0.95, 0.95, 0.95, 0.95, 0.5])[:, None]
    images, crop = processor().image_processor, torch.tensor([40.0, 0.0, 100.0, 100.0])
    runs, found, boxes = images.filter_masks(logits, scores, (100, 200), crop)
    assert found.tolist() == pytest.approx([0.95])
    assert boxes.tolist() == [[62, 57, 68, 63]]  # inclusive ends, pixels of the image
    assert images.filter_masks(logits, scores, (100, 200), crop, legacy=True)[2].tolist() == [[22, 57, 28, 63]]
    masks, *_ = images.post_process_for_mask_generation(runs, found, boxes)
    assert torch.equal(masks[0], torch.nn.functional.pad(kept > 0, (40, 100)))
    assert len(images.filter_masks(logits, scores, (100, 200), crop, 0.0, 0.0)[0]) == 3
    nothing = images.filter_masks(logits, scores, (100, 200), crop, pred_iou_thresh=0.99)
    assert (nothing[0], nothing[1].shape, nothing[2].shape) == ([], (0,), (0, 4))


def test_worse_masks_of_one_place_are_dropped() -> None:
    images = processor().image_processor
    logits = torch.stack([disc(20, 30, 5), disc(20.2, 30, 5), disc(40, 70, 5)])[:, None]
    filtered = images.filter_masks(logits, torch.tensor([[0.9], [0.95], [0.92]]), (100, 60), (0, 0, 60, 100))
    masks, scores, runs, boxes = images.post_process_for_mask_generation(*filtered, 0.7)
    assert scores.tolist() == pytest.approx([0.95, 0.92])
    assert (len(masks), len(runs), boxes.shape) == (2, 2, (2, 4))
