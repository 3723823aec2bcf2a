"""Crops of boxes: every version against a dense sampling grid, and the geometry of crop windows."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.shared_folder import SHARED, needs_shared
from tests.unit.images.samples import photo
from tests.unit.ops.versions import every_version
from vitruvian.errors import InputError
from vitruvian.images import image_to_tensor
from vitruvian.ops.crop import (
    crop_boxes,
    crop_to_image_xy,
    crop_windows,
    crop_windows_numpy,
    image_to_crop_xy,
    sample_positions,
)
from vitruvian.ops.pixel_normalization import rescale_and_normalize

IMAGENET = {"scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
OUTPUT = (16, 12)
BOXES = {
    "enlarged": [20.0, 15.0, 6.0, 9.0],
    "shrunk": [4.0, 3.0, 60.0, 70.0],
    "half a pixel": [30.2, 40.7, 0.5, 0.4],
    "over the left edge": [-20.0, 10.0, 40.0, 30.0],
    "over the corner": [60.0, 80.0, 50.0, 50.0],
    "larger than the image": [-50.0, -40.0, 300.0, 200.0],
    "wide": [5.0, 40.0, 70.0, 3.0],
    "exactly at scale one": [10.0, 10.0, 11 / 1.25, 15 / 1.25],
}


def image(height=100, width=80, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)


def dense(pixels, boxes, output_hw, padding=1.25):
    """The same windows from a full sampling grid, in float64."""
    height, width = output_hw
    center, size = crop_windows(boxes.double(), output_hw, padding)
    center, size = center.double(), size.double()
    crops = []
    for (cx, cy), (box_w, box_h) in zip(center, size, strict=True):
        x = torch.arange(width) * box_w / (width - 1) + cx - box_w / 2
        y = torch.arange(height) * box_h / (height - 1) + cy - box_h / 2
        grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # [h, w, 2]
        grid = 2 * grid / torch.tensor([pixels.shape[2] - 1, pixels.shape[1] - 1]) - 1
        mode = "bilinear" if min((width - 1) / box_w, (height - 1) / box_h) < 1 else "bicubic"
        crops.append(F.grid_sample(pixels.double()[None], grid[None], mode=mode, align_corners=True)[0])
    return torch.stack(crops).float()


def device_of(version):
    return "cuda" if version == "triton" else "cpu"


@every_version
@pytest.mark.parametrize("name", BOXES)
def test_one_box_equals_a_dense_grid(name, version):
    boxes = torch.tensor([BOXES[name]])
    ours = crop_boxes(image().to(device_of(version)), boxes, OUTPUT)
    assert ours.dtype == torch.float32
    assert tuple(ours.shape) == (1, 3, *OUTPUT)
    torch.testing.assert_close(ours.cpu(), dense(image(), boxes, OUTPUT), atol=2e-2, rtol=0)
    assert ours.abs().sum() > 0


@every_version
@pytest.mark.parametrize("output_hw", [(5, 3), (1, 1), (2, 130)], ids=str)
def test_versions_agree_for_every_memory_order(output_hw, version):
    boxes = torch.tensor(
        [[10, 12, 100, 80], [60, 40, 3, 4], [-30, 60, 70, 90], [-900, -900, 3000, 2500], [1e9, 5, 20, 20]]
    )
    pixels = image(110, 130).permute(1, 2, 0).contiguous().permute(2, 0, 1)
    for source in (pixels, pixels.contiguous(), pixels[:, 5:90, 3:]):
        want = rescale_and_normalize(crop_boxes(source.float(), boxes, output_hw), **IMAGENET)
        got = crop_boxes(source.to(device_of(version)), boxes, output_hw, **IMAGENET)
        assert got.dtype == torch.float32
        assert got.is_contiguous()
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-5)


@every_version
def test_data_types_options_and_empty_input(version):
    pixels = image(40, 30).to(device_of(version))
    boxes = np.array([[10, 12, 20, 15]], np.float32)
    for options in ({}, {"scale": 0.5, "mean": 3.0, "std": [1.0, 2.0, 4.0]}):
        want = crop_boxes(pixels.cpu().float(), boxes, (8, 6), **options)
        got = crop_boxes(pixels, boxes, (8, 6), dtype=torch.bfloat16, **options)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.cpu().float(), want, rtol=1 / 128, atol=1e-3)
    assert crop_boxes(pixels, boxes[:0], (8, 6), **IMAGENET).shape == (0, 3, 8, 6)
    with pytest.raises(InputError, match="std: expected positive"):
        crop_boxes(pixels, boxes, (8, 6), std=0.0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_device_is_not_synchronized(dtype):
    """A meta tensor has no values to read."""
    crops = crop_boxes(image().to("meta", dtype), torch.tensor([*BOXES.values()]), OUTPUT, **IMAGENET)
    assert crops.is_meta
    assert tuple(crops.shape) == (len(BOXES), 3, *OUTPUT)


def test_many_boxes_equal_single_boxes():
    boxes = torch.tensor([*BOXES.values(), *BOXES.values()])
    ours = crop_boxes(image(), boxes, OUTPUT)
    for crop, box in zip(ours, boxes, strict=True):
        assert torch.equal(crop, crop_boxes(image(), box[None], OUTPUT)[0])


def test_far_shrinking_reads_single_lines():
    wide = image(40, 3000)
    boxes = torch.tensor([[100.0, 0.0, 2200.0, 40.0], [0.0, -500.0, 3000.0, 900.0]])
    torch.testing.assert_close(crop_boxes(wide, boxes, (6, 8)), dense(wide, boxes, (6, 8)), atol=0.1, rtol=0)


@pytest.mark.parametrize("box", [[200.0, 10.0, 20.0, 20.0], [-90.0, -90.0, 9.0, 9.0], [0.0, 1e9, 5.0, 5.0]])
def test_boxes_wholly_outside_are_empty(box):
    assert not crop_boxes(image(), torch.tensor([box]), OUTPUT).any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (30, 1), (2, 2)])
@pytest.mark.parametrize("box", [[-2.0, -3.0, 5.0, 6.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 30.0, 40.0]])
def test_images_of_single_lines(shape, box):
    # Zeros lie outside, so a border of zeros around the image may change nothing; with it a grid works too.
    small = image(*shape)
    boxes, shifted = torch.tensor([box]), torch.tensor([[box[0] + 9, box[1] + 9, *box[2:]]])
    ours = crop_boxes(small, boxes, (32, 24))
    torch.testing.assert_close(ours, dense(F.pad(small, (9, 9, 9, 9)), shifted, (32, 24)), atol=2e-2, rtol=0)
    assert ours.any()


def test_a_window_on_whole_pixels_copies_them():
    boxes = torch.tensor([[3.0, 5.0, 31.0, 31.0]])
    ours = crop_boxes(image(), boxes, (32, 32), padding=1.0)
    torch.testing.assert_close(ours[0], image()[:, 5:37, 3:35].float(), atol=1e-2, rtol=0)


def test_memory_order_and_type_change_nothing():
    packed = image_to_tensor(photo(40, 30))
    boxes = torch.tensor([[2.0, 3.0, 10.0, 20.0]])
    wanted = crop_boxes(packed, boxes, OUTPUT)
    assert torch.equal(crop_boxes(packed.contiguous(), boxes, OUTPUT), wanted)
    assert torch.equal(crop_boxes(packed.float(), boxes, OUTPUT), wanted)
    assert torch.equal(crop_boxes(packed.half(), boxes.double(), OUTPUT), wanted)


def test_no_gradient_flows_back():
    boxes = torch.tensor([[2.0, 3.0, 10.0, 20.0]])
    ours = crop_boxes(image().float().requires_grad_(), boxes, OUTPUT)
    assert torch.equal(ours, crop_boxes(image(), boxes, OUTPUT))
    assert not ours.requires_grad


@pytest.mark.parametrize("channels", [1, 4])
def test_any_number_of_channels(channels):
    boxes = torch.tensor([[2.0, 3.0, 10.0, 20.0]])
    source = image(50, 50, channels)
    torch.testing.assert_close(crop_boxes(source, boxes, OUTPUT), dense(source, boxes, OUTPUT), atol=2e-2, rtol=0)


def test_no_boxes_and_single_pixel_outputs():
    assert tuple(crop_boxes(image(), torch.zeros(0, 4), OUTPUT).shape) == (0, 3, *OUTPUT)
    boxes = torch.tensor([[9.0, 19.0, 2.0, 2.0]])
    ours = crop_boxes(image(), boxes, (1, 1))
    assert ours.flatten().tolist() == image()[:, 20, 10].tolist()  # the center of the box


def test_crop_windows_pad_and_grow():
    boxes = torch.tensor([[10.0, 20.0, 40.0, 40.0], [0.0, 0.0, 30.0, 80.0], [0.0, 0.0, 60.0, 80.0]])
    center, size = crop_windows(boxes, (64, 48))
    assert center.tolist() == [[30, 40], [15, 40], [30, 40]]
    torch.testing.assert_close(size, torch.tensor([[50.0, 50 / 0.75], [75.0, 100.0], [75.0, 100.0]]))
    assert crop_windows(boxes, (64, 48), padding=1.0)[1][2].tolist() == [60, 80]


@pytest.mark.parametrize("size_hw", [(1024, 768), (300, 200), (7, 5), (1, 1)], ids=str)
def test_windows_and_positions_are_those_of_float32_torch(size_hw):
    generator = np.random.default_rng(0)
    corners, sides = generator.uniform(-300, 2000, (400, 2)), 10 ** generator.uniform(-1, 3.5, (400, 2))
    boxes, (height, width) = np.concatenate((corners, sides), axis=1).astype(np.float32), size_hw
    given = torch.from_numpy(boxes)
    box_width, box_height = (given[:, 2:] * 1.25).unbind(-1)
    aspect = width / height
    size = torch.stack([box_width.maximum(box_height * aspect), box_height.maximum(box_width / aspect)], dim=-1)
    center = given[:, :2] + 0.5 * given[:, 2:]
    center_xy, size_wh = crop_windows_numpy(boxes, size_hw)
    np.testing.assert_array_equal(center_xy, center.numpy())
    np.testing.assert_array_equal(size_wh, size.numpy())
    positions = sample_positions(boxes, size_hw)
    assert positions.dtype == center_xy.dtype == size_wh.dtype == np.float32
    enlarged = ((width - 1) / size[:, 0]).minimum((height - 1) / size[:, 1]) >= 1
    np.testing.assert_array_equal(positions[:, 0], enlarged.numpy())
    for axis, count, got in ((0, width, positions[:, 1 : 1 + width]), (1, height, positions[:, 1 + width :])):
        steps = torch.arange(count, dtype=torch.float32) / max(1, count - 1) - (0.5 if count > 1 else 0.0)
        np.testing.assert_array_equal(got, (center[:, axis, None] + steps * size[:, axis, None]).numpy())


def test_points_of_crops_and_of_the_image():
    boxes, grid_hw = np.array([BOXES["wide"], [3.0, 5.0, 40.0, 90.0]], np.float32), (16, 12)
    windows = crop_windows_numpy(boxes, (64, 48))
    corners = np.array([[[0, 0], [11, 15], [5.5, 7.5]]] * 2, np.float32)  # [N, 3, 2]
    xy = crop_to_image_xy(corners, windows, grid_hw)
    assert xy.dtype == np.float32
    center_xy, size_wh = windows
    expected = np.stack([center_xy - size_wh / 2, center_xy + size_wh / 2, center_xy], axis=1)
    np.testing.assert_allclose(xy, expected, atol=1e-4)
    as_tensors = tuple(map(torch.from_numpy, windows))
    again = crop_to_image_xy(torch.from_numpy(corners), as_tensors, grid_hw)
    np.testing.assert_array_equal(again.numpy(), xy)
    torch.testing.assert_close(image_to_crop_xy(again, as_tensors, grid_hw), torch.from_numpy(corners))


def test_positions_need_no_call_of_torch():
    class Forbidden(TorchDispatchMode):
        def __torch_dispatch__(self, function, *_):
            raise AssertionError(f"{function} was called")

    with Forbidden():
        crop_to_image_xy(np.zeros((1, 2, 2), np.float32), (np.zeros((1, 2), np.float32),) * 2, (64, 48))
        assert sample_positions(np.array([BOXES["wide"]], np.float32), (64, 48)).shape == (1, 1 + 48 + 64)


def test_mistakes_are_named():
    for boxes in (torch.zeros(4), torch.zeros(1, 5), torch.zeros(1, 1, 4)):
        with pytest.raises(InputError, match=r"boxes_xywh: expected shape \[N, 4\]"):
            crop_boxes(image(), boxes, OUTPUT)
    good = [1.0, 2.0, 3.0, 4.0]
    for bad in ([1, 2, 0, 4], [1, 2, 3, -4], [float("nan"), 2, 3, 4], [1, 2, float("inf"), 4]):
        with pytest.raises(InputError, match=r"expected finite boxes with positive width and height.*at index 1"):
            crop_boxes(image(), torch.tensor([good, bad]), OUTPUT)
    with pytest.raises(InputError, match=r"expected one image \[C, H, W\]"):
        crop_boxes(image()[None], torch.tensor([good]), OUTPUT)
    with pytest.raises(InputError, match="output_hw"):
        crop_boxes(image(), torch.tensor([good]), (0, 5))
    for padding in (0, -1, float("nan")):
        with pytest.raises(InputError, match="padding: expected a positive factor"):
            crop_boxes(image(), torch.tensor([good]), OUTPUT, padding=padding)


@needs_shared
@pytest.mark.parametrize("name", ["sapiens2-processor-boxes", "sapiens2-processor-keypoints"])
def test_stored_crops(name):
    folder = SHARED / "golden" / "cases" / name
    tensors = load_file(folder / "io.safetensors")
    config = json.loads((folder / "preprocessor_config.json").read_text())
    size = (config["size"]["height"], config["size"]["width"])
    crops = torch.cat(
        [crop_boxes(tensors[f"in.image{i}"].permute(2, 0, 1), tensors[f"in.boxes{i}"], size) for i in range(2)]
    )
    ours = rescale_and_normalize(
        crops, scale=config["rescale_factor"], mean=config["image_mean"], std=config["image_std"], out=crops
    )
    torch.testing.assert_close(ours, tensors["out.pixel_values"], atol=2e-3, rtol=0)
