"""Maps that are smaller than the model's input: the built-in model's are half as large, its heatmaps a quarter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.tiny_models import pixels
from tests.helpers.tiny_multitask import tiny_multitask
from vitruvian import Sapiens2ImageProcessor
from vitruvian.images import crop_windows
from vitruvian.losses.heatmap import draw_heatmaps
from vitruvian.models.sapiens2.configuration import CANONICAL_FOCAL
from vitruvian.models.sapiens2.processing import crop_padding

INPUT_HW, HALF_HW, QUARTER_HW = (384, 288), (192, 144), (96, 72)
PROCESSOR = Sapiens2ImageProcessor(size={"height": INPUT_HW[0], "width": INPUT_HW[1]})


def ramp(size_hw: tuple[int, int]) -> Tensor:
    """How far across and down each pixel's center lies, [2, h, w], from 0 to 1."""
    across, down = ((torch.arange(side) + 0.5) / side for side in reversed(size_hw))
    return torch.stack((across.expand(size_hw), down[:, None].expand(size_hw)))


def apart(found: Tensor, size_hw: tuple[int, int]) -> float:
    """How far a ramp of `size_hw` is from being one, in pixels of its own; two map pixels at the edges do not count."""
    edge = [max(2, side // 40) for side in size_hw]
    error = (found[:2] - ramp(size_hw)) * torch.tensor(size_hw[::-1])[:, None, None]
    return float(error[:, edge[0] : -edge[0], edge[1] : -edge[1]].abs().max())


@pytest.mark.parametrize("size_hw", [(768, 576), (500, 375), (301, 403)])
def test_maps_of_stretched_pictures_cover_the_picture(size_hw: tuple[int, int]) -> None:
    flat = ramp(HALF_HW)[None]  # [1, 2, h, w]
    three, sizes = torch.cat((flat, flat[:, :1]), dim=1), [size_hw]
    matte = PROCESSOR.post_process_image_matting(
        SimpleNamespace(foregrounds=three, alphas=flat[:, :1]), target_sizes=sizes
    )[0]
    assert apart(matte["foreground"], size_hw) < 0.05
    albedo = PROCESSOR.post_process_albedo_estimation(SimpleNamespace(albedos=three), target_sizes=sizes)[0]
    assert apart(albedo["albedo"], size_hw) < 0.05
    points = PROCESSOR.post_process_pointmap_estimation(
        SimpleNamespace(pointmaps=three, scales=torch.tensor([[2.0]])), target_sizes=sizes
    )[0]
    assert apart(points["pointmap"] * 2, size_hw) < 0.05
    logits = torch.stack((flat[:, 0] - 0.5, 0.5 - flat[:, 0]), dim=1)  # class 1 on the left
    labels = PROCESSOR.post_process_semantic_segmentation(SimpleNamespace(logits=logits), target_sizes=sizes)[0]
    middle = size_hw[1] / 2
    assert (labels[:, : int(middle) - 1] == 1).all()
    assert (labels[:, int(middle) + 2 :] == 0).all()


# Fitted into 384×288, these leave bars whose borders fall on, and between, the pixels of a half-size map.
@pytest.mark.parametrize("size_hw", [(288, 288), (480, 640), (422, 640), (640, 421), (1000, 501)])
def test_maps_of_padded_pictures_lose_the_bars_and_no_more(size_hw: tuple[int, int]) -> None:
    padded = PROCESSOR.with_options(do_pad=True, do_normalize=False, do_rescale=False)
    across, down = ramp(size_hw)
    picture = torch.stack((across, down, torch.ones_like(down)))
    shown = padded(picture, return_tensors="pt")["pixel_values"]  # [1, 3, H, W], black bars
    maps = torch.nn.functional.avg_pool2d(shown, 2)  # [1, 3, h, w]
    (found,) = padded.post_process_pointmap_estimation(
        SimpleNamespace(pointmaps=maps, scales=None), source_sizes=[size_hw]
    )
    assert found["pointmap"].shape == (3, *size_hw)
    scale = min(INPUT_HW[0] / size_hw[0], INPUT_HW[1] / size_hw[1])
    assert apart(found["pointmap"], size_hw) < 0.3 / scale  # pixels of the input


def test_maps_at_full_size_are_cut_as_they_are() -> None:
    full = torch.arange(384.0 * 288).view(1, *INPUT_HW)
    assert torch.equal(crop_padding(full, (427, 640), INPUT_HW), full[:, 96:288])


def test_keypoints_of_small_heatmaps() -> None:
    boxes = torch.tensor([[30.0, 50.0, 120.0, 300.0]])
    points = torch.tensor([[[60.0, 80.0], [121.3, 333.9], [90.5, 200.25]]])  # [1, J, 2] in the picture
    (center,), (extent,) = crop_windows(boxes, INPUT_HW)
    in_crop = ((points - center) / extent + 0.5) * torch.tensor([INPUT_HW[1] - 1.0, INPUT_HW[0] - 1.0])
    scale = torch.tensor([(QUARTER_HW[1] - 1) / (INPUT_HW[1] - 1), (QUARTER_HW[0] - 1) / (INPUT_HW[0] - 1)])
    heatmaps, _ = draw_heatmaps(in_crop * scale, torch.ones(1, 3), size_hw=QUARTER_HW, sigma=2.0)
    out = SimpleNamespace(heatmaps=heatmaps)
    ((person,),) = PROCESSOR.post_process_pose_estimation(out, boxes=[boxes.tolist()])
    assert torch.allclose(person["keypoints"], points[0], atol=0.3)


def test_pointmaps_learn_the_same_scale_at_any_size_of_labels() -> None:
    model: Any = tiny_multitask("pointmap").task_model("pointmap")
    picture = pixels(1)  # [1, 3, 48, 32]
    H, W = picture.shape[-2:]
    focal = 60.0  # pixels of the picture
    out = model(picture)
    h, w = out.pointmaps.shape[-2:]
    assert (h, w) == (H // 2, W // 2)
    K = torch.tensor([[[focal / 2, 0, (w - 1) / 2], [0, focal / 2, (h - 1) / 2], [0, 0, 1]]])
    points = torch.randn(1, 3, h, w).abs() + 1
    told = model(picture, labels=points, label_intrinsics=K).loss_terms["scale"]
    true_scale = CANONICAL_FOCAL * H / focal  # both in pixels of the picture
    assert float(told.detach()) == pytest.approx(abs(true_scale - float(out.scales.detach())), rel=1e-4)
