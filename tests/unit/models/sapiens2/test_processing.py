from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from vitruvian.errors import ConfigError, InputError, VitruvianWarning
from vitruvian.losses.heatmap import draw_heatmaps
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor

SIZE = {"height": 64, "width": 48}


def picture(height: int = 40, width: int = 60, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.fixture
def processor() -> Sapiens2ImageProcessor:
    return Sapiens2ImageProcessor(size=SIZE)


def test_defaults() -> None:
    made = Sapiens2ImageProcessor()
    assert made.size == {"height": 1024, "width": 768}
    assert made.resample == 2
    assert made.rescale_factor == pytest.approx(1 / 255)
    assert not made.do_pad


def test_pil_numpy_torch_and_path_agree(processor: Sapiens2ImageProcessor, tmp_path: Path) -> None:
    image = picture()
    image.save(tmp_path / "a.png")
    array = np.asarray(image)
    first = torch.from_numpy(array.copy()).permute(2, 0, 1)
    want = processor(image, return_tensors="pt").pixel_values
    assert want.shape == (1, 3, 64, 48)
    for other in (array, first, str(tmp_path / "a.png"), tmp_path / "a.png", [array], array[None], first[None]):
        assert torch.equal(processor(other, return_tensors="pt").pixel_values, want)


def test_batch_of_mixed_sizes(processor: Sapiens2ImageProcessor) -> None:
    images = [picture(40, 60), picture(100, 30, 1)]
    both = processor(images, return_tensors="pt").pixel_values
    for index, image in enumerate(images):
        assert torch.equal(both[index], processor(image, return_tensors="pt").pixel_values[0])
    assert isinstance(processor(images).pixel_values, list)
    assert isinstance(processor(images, return_tensors="np").pixel_values, np.ndarray)


def test_every_option_has_an_effect(processor: Sapiens2ImageProcessor) -> None:
    image = picture()
    plain = processor(image, return_tensors="pt").pixel_values
    options: list[dict[str, Any]] = [
        {"resample": 0},
        {"resample": 3},
        {"do_pad": True},
        {"do_rescale": False},
        {"rescale_factor": 1 / 128},
        {"do_normalize": False},
        {"image_mean": [0, 0, 0]},
        {"image_std": 1.0},
        {"do_center_crop": True, "crop_size": 32},
        {"size": (32, 32)},
        {"do_resize": False},
    ]
    for option in options:
        changed = processor(image, return_tensors="pt", **option).pixel_values
        assert changed.shape != plain.shape or not torch.allclose(changed, plain), option
    assert torch.equal(processor(image, return_tensors="pt").pixel_values, plain)


def test_padding_is_black_before_normalization(processor: Sapiens2ImageProcessor) -> None:
    white = Image.new("RGB", (48, 16), "white")
    values = processor(white, do_pad=True, return_tensors="pt").pixel_values[0]
    black = torch.tensor([-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225])
    torch.testing.assert_close(values[:, 0, 0], black)
    torch.testing.assert_close(
        values[:, 32, 24], (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    )


def test_normals_come_back_without_the_padding(processor: Sapiens2ImageProcessor) -> None:
    maps = torch.zeros(1, 3, 64, 48)
    maps[:, 2] = 5.0
    maps[:, :, :20] = maps[:, :, -20:] = torch.tensor([1.0, 0, 0]).view(3, 1, 1)  # what lies on the bars
    result = processor.post_process_normal_estimation(SimpleNamespace(normals=maps), source_sizes=[(16, 48)])
    assert result[0]["normals"].shape == (3, 16, 48)
    torch.testing.assert_close(result[0]["normals"][2], torch.ones(16, 48))
    kept = processor.post_process_normal_estimation(
        SimpleNamespace(normals=maps), source_sizes=[(16, 48)], do_remove_padding=False
    )
    assert kept[0]["normals"][0].max() == 1


def test_padding_is_cut_in_proportion_when_maps_are_smaller(processor: Sapiens2ImageProcessor) -> None:
    maps = torch.zeros(1, 3, 32, 24)
    maps[:, :, 12:20] = 1.0  # 16 of 64 rows, in the middle
    result = processor.post_process_albedo_estimation(SimpleNamespace(albedos=maps), source_sizes=[(16, 48)])
    assert result[0]["albedo"].min() == 1


def test_metric_points_are_divided_by_the_scale(processor: Sapiens2ImageProcessor) -> None:
    maps, scales = torch.ones(2, 3, 8, 6), torch.tensor([[2.0], [0.5]])
    results = processor.post_process_pointmap_estimation(SimpleNamespace(pointmaps=maps, scales=scales))
    assert [float(r["pointmap"].mean()) for r in results] == [0.5, 2.0]
    same = processor.post_process_pointmap_estimation(SimpleNamespace(pointmaps=maps, scales=None))
    assert float(same[0]["pointmap"].mean()) == 1.0


def test_segmentation_equals_resizing_everything(processor: Sapiens2ImageProcessor) -> None:
    logits = torch.randn(2, 300, 8, 6)
    sizes = [(20, 31), (8, 6)]
    results = processor.post_process_semantic_segmentation(SimpleNamespace(logits=logits), target_sizes=sizes)
    for one, size, result in zip(logits, sizes, results, strict=True):
        want = F.interpolate(one[None], size=size, mode="bilinear", align_corners=False)[0].argmax(0)
        assert torch.equal(result, want)
        assert result.dtype == torch.int64
    scored = processor.post_process_semantic_segmentation(
        SimpleNamespace(logits=logits), target_sizes=torch.tensor(sizes), return_segmentation_scores=True
    )
    assert scored[0].segmentation_scores.shape == (300, 20, 31)
    assert torch.equal(scored[0].segmentation, results[0])


def test_composite_is_foreground_over_background(processor: Sapiens2ImageProcessor) -> None:
    alpha = torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 1, 3)
    foreground = alpha.expand(1, 3, 1, 3) * 0.8  # premultiplied
    output = SimpleNamespace(alphas=alpha, foregrounds=foreground)
    green = torch.tensor([0, 255, 0], dtype=torch.uint8).view(3, 1, 1)
    for background in (green, Image.new("RGB", (9, 5), (0, 255, 0)), np.full((4, 4, 3), [0, 1.0, 0]), [green]):
        composite = processor.post_process_image_matting(output, backgrounds=background)[0]["composite"]
        assert composite.dtype == torch.uint8
        torch.testing.assert_close(composite[1, 0].long(), torch.tensor([255, 230, 204]), rtol=0, atol=1)
        torch.testing.assert_close(composite[0, 0].long(), torch.tensor([0, 102, 204]), rtol=0, atol=1)
    assert processor.post_process_image_matting(output)[0]["composite"] is None
    big = processor.post_process_image_matting(output, target_sizes=[(4, 6)], backgrounds=green)[0]
    assert big["alpha"].shape == (1, 4, 6)
    assert big["composite"].shape == (3, 4, 6)


def test_crops_go_back_to_where_they_came_from(processor: Sapiens2ImageProcessor) -> None:
    """Draw targets for keypoints, decode them as if predicted: the same pixels come back."""
    boxes = [[[5.0, 3.0, 30.0, 30.0], [20.0, 10.0, 25.0, 28.0]], [[2.0, 2.0, 20.0, 50.0]]]
    generator = np.random.default_rng(0)
    keypoints = [
        [[[x + w * a, y + h * b, 2] for a, b in generator.uniform(0.1, 0.9, (6, 2))] for x, y, w, h in of_one]
        for of_one in boxes
    ]
    images = [picture(40, 60), picture(60, 40, 1)]
    data = processor(images, boxes=boxes, keypoints=keypoints, keypoint_heatmap_sigma=1.5, return_tensors="pt")
    assert data.pixel_values.shape == (3, 3, 64, 48)
    assert data.labels.shape == (3, 6, 16, 12)
    assert data.label_weights.shape == (3, 6)
    results = processor.post_process_pose_estimation(SimpleNamespace(heatmaps=data.labels), boxes=boxes)
    assert [len(people) for people in results] == [2, 1]
    for people, wanted, own in zip(results, keypoints, boxes, strict=True):
        for person, points, (x, y, w, h) in zip(people, wanted, own, strict=True):
            want = torch.tensor(points)[:, :2]
            assert (person["keypoints"] - want).abs().max() < 0.4
            assert person["labels"].tolist() == list(range(6))
            assert person["bbox"].tolist() == [x, y, x + w, y + h]


def test_pose_threshold_and_target_sizes(processor: Sapiens2ImageProcessor) -> None:
    maps = torch.zeros(1, 3, 16, 12)
    maps[0, 0, 4, 5], maps[0, 1, 8, 6] = 0.9, 0.3
    boxes = [[[0.0, 0.0, 48.0, 64.0]]]
    everything = processor.post_process_pose_estimation(SimpleNamespace(heatmaps=maps), boxes=boxes)[0][0]
    some = processor.post_process_pose_estimation(SimpleNamespace(heatmaps=maps), boxes=boxes, threshold=0.5)[0][0]
    assert some["labels"].tolist() == [0]
    scaled = processor.post_process_pose_estimation(
        SimpleNamespace(heatmaps=maps), boxes=boxes, source_sizes=[(64, 48)], target_sizes=[(128, 144)]
    )[0][0]
    torch.testing.assert_close(scaled["keypoints"], everything["keypoints"] * torch.tensor([3.0, 2.0]))
    assert scaled["bbox"].tolist() == [0, 0, 144, 128]


def test_nobody_in_a_picture(processor: Sapiens2ImageProcessor) -> None:
    data = processor([picture(), picture()], boxes=[[], [[1, 1, 5, 5]]], return_tensors="pt")
    assert data.pixel_values.shape == (1, 3, 64, 48)
    results = processor.post_process_pose_estimation(
        SimpleNamespace(heatmaps=torch.rand(1, 2, 16, 12)), boxes=[[], [[1, 1, 5, 5]]]
    )
    assert [len(people) for people in results] == [0, 1]
    assert processor.post_process_pose_estimation(SimpleNamespace(heatmaps=torch.rand(0, 2, 16, 12)), boxes=[[]]) == [
        []
    ]


def test_labels_are_kept_whole_by_nearest(processor: Sapiens2ImageProcessor) -> None:
    labels = np.zeros((40, 60), np.uint8)
    labels[10:, 20:], labels[30:] = 7, 255
    found = processor(picture(), segmentation_maps=labels, label_resample=0, return_tensors="pt").labels
    assert found.shape == (1, 64, 48)
    assert set(found.unique().tolist()) == {0, 7, 255}
    with pytest.warns(VitruvianWarning, match="label_resample"):
        blended = processor(picture(), segmentation_maps=labels, return_tensors="pt").labels
    assert len(blended.unique()) > 3
    reduced = processor(
        picture(), segmentation_maps=labels, label_resample=0, do_reduce_labels=True, return_tensors="pt"
    ).labels
    assert set(reduced.unique().tolist()) == {6, 255}
    cropped = processor(
        picture(), segmentation_maps=labels, boxes=[[[5, 5, 80, 20]]], label_resample=0, return_tensors="pt"
    ).labels
    assert set(cropped.unique().tolist()) <= {0, 7, 255}
    assert cropped.shape == (1, 64, 48)


@pytest.mark.parametrize("boxes", [None, [[[5, 5, 40, 20]]]])
def test_labels_of_all_integer_types(processor: Sapiens2ImageProcessor, boxes: Any) -> None:
    labels = np.zeros((40, 60), np.uint8)
    labels[10:, 20:] = 7
    found = {}
    for dtype in (np.uint8, np.int32, np.int64):
        for resample in (0, None):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[dtype, resample] = processor(
                    picture(),
                    segmentation_maps=labels.astype(dtype),
                    boxes=boxes,
                    label_resample=resample,
                    return_tensors="pt",
                ).labels
    for (_, resample), one in found.items():
        assert one.dtype == torch.int64
        rounding = 0 if resample == 0 else 1  # uint8 is interpolated in fixed point
        assert (one - found[np.int64, resample]).abs().max() <= rounding


def test_palette_maps_are_read_as_indices(processor: Sapiens2ImageProcessor) -> None:
    labels = Image.fromarray(np.full((40, 60), 3, np.uint8)).convert("P")
    labels.putpalette([index % 256 for index in range(768)])
    found = processor(picture(), segmentation_maps=labels, label_resample=0, return_tensors="pt").labels
    assert found.unique().tolist() == [3]


BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"images": []}, "at least one image"),
    ({"images": np.zeros((4, 4, 4, 4, 4))}, "dimensions"),
    ({"images": np.zeros((9, 9, 5), np.uint8)}, "channels"),
    ({"images": 3.5}, "float"),
    ({"boxes": [[[1, 1, 5, 5]], [[1, 1, 5, 5]]]}, "each of the 1 images"),
    ({"boxes": [[[1, 1, 5]]]}, "width, height"),
    ({"boxes": [[[1, 1, 0, 5]]]}, "positive"),
    ({"boxes": [[[1, 1, -4, 5]]]}, "positive"),
    ({"boxes": [[[1, float("nan"), 4, 5]]]}, "finite"),
    ({"boxes": [[1, 1, 5, 5]]}, "width, height"),
    ({"keypoints": [[[[1, 1, 2]]]]}, "boxes"),
    ({"boxes": [[[1, 1, 5, 5]]], "keypoints": [[]]}, "each of the 1 boxes"),
    ({"boxes": [[[1, 1, 5, 5]]], "keypoints": [[[[1]]]]}, "visibility"),
    ({"segmentation_maps": np.zeros((5, 5), np.uint8)}, "size of the image"),
    ({"segmentation_maps": np.full((40, 60), 0.5)}, "integers"),
    ({"segmentation_maps": [np.zeros((40, 60), np.uint8)] * 2}, "each of the 1 images"),
    ({"return_tensors": "tf"}, "return_tensors"),
    ({"resample": 1}, "resample"),
    ({"size": {"height": 0, "width": 5}}, "size"),
    ({"image_mean": [1, 2]}, "mean"),
]


@pytest.mark.parametrize(("call", "message"), BAD_CALLS, ids=lambda value: str(value)[:40])
def test_bad_calls_say_what_was_expected(processor: Sapiens2ImageProcessor, call: dict[str, Any], message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((InputError, ConfigError), match=message):
            processor(**({"images": picture(), "return_tensors": "pt"} | call))


def test_bad_post_processing_calls(processor: Sapiens2ImageProcessor) -> None:
    values = torch.rand(2, 3, 8, 6)
    maps = SimpleNamespace(normals=values, heatmaps=values, logits=values)
    mattes = SimpleNamespace(alphas=values[:, :1], foregrounds=values)
    with pytest.raises(InputError, match="source_sizes"):
        processor.post_process_normal_estimation(maps, source_sizes=[(4, 4)])
    with pytest.raises(InputError, match="do_remove_padding"):
        processor.post_process_normal_estimation(maps, do_remove_padding=True)
    with pytest.raises(InputError, match="target_sizes"):
        processor.post_process_semantic_segmentation(maps, target_sizes=[(4, 4)])
    with pytest.raises(InputError, match="at least 1"):
        processor.post_process_semantic_segmentation(maps, target_sizes=[(0, 4), (4, 4)])
    with pytest.raises(InputError, match="2 heatmaps"):
        processor.post_process_pose_estimation(maps, boxes=[[[1, 1, 5, 5]]])
    with pytest.raises(InputError, match="source_sizes"):
        processor.post_process_pose_estimation(maps, boxes=[[[1, 1, 5, 5]] * 2], target_sizes=[(4, 4)])
    with pytest.raises(InputError, match="backgrounds"):
        processor.post_process_image_matting(mattes, backgrounds=[picture()] * 3)


def test_options_survive_a_file(processor: Sapiens2ImageProcessor, tmp_path: Path) -> None:
    changed = Sapiens2ImageProcessor(size=SIZE, do_pad=True, image_mean=[0.1, 0.2, 0.3], label_resample=0)
    changed.save_pretrained(tmp_path)
    assert Sapiens2ImageProcessor.from_pretrained(tmp_path) == changed
    assert Sapiens2ImageProcessor.from_pretrained(tmp_path, do_pad=False).do_pad is False


def test_targets_leave_out_hidden_and_far_points() -> None:
    points = torch.tensor([[[5.0, 5.0], [5.0, 5.0], [500.0, 5.0], [-4.0, 5.0]]])
    maps, weights = draw_heatmaps(points, torch.tensor([[2, 0, 2, 1]]), size_hw=(16, 16), sigma=2.0)
    assert weights.tolist() == [[1, 0, 0, 1]]
    assert maps[0, 0].max() == 1
    assert maps[0, 1].max() == maps[0, 2].max() == 0
    assert 0 < maps[0, 3].max() < 1  # just outside: its flank is in the image
    assert maps[0, 0, 5, 12] == 0  # truncated beyond three sigma
    assert maps[0, 0, 5, 11] > 0
