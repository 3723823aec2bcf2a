"""Person crops: separable sampling gives what a dense grid gives, also where a grid cannot."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.shared import SHARED, needs_shared
from tests.unit.images.pictures import photo
from vitruvian.errors import InputError
from vitruvian.images import crop_boxes, crop_params, image_to_tensor, rescale_and_normalize

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
OUTPUT = (32, 24)
BOXES = {
    "enlarged": [20.0, 15.0, 12.0, 18.0],
    "shrunk": [4.0, 3.0, 60.0, 70.0],
    "half a pixel": [30.2, 40.7, 0.5, 0.4],
    "over the left edge": [-20.0, 10.0, 40.0, 30.0],
    "over the corner": [60.0, 80.0, 50.0, 50.0],
    "larger than the picture": [-50.0, -40.0, 300.0, 200.0],
    "wide": [5.0, 40.0, 70.0, 3.0],
    "exactly at scale one": [10.0, 10.0, 23 / 1.25, 31 / 1.25],
}


def picture(height=100, width=80, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)


def dense(pixels, boxes, output_hw, padding=1.25):
    """The same windows from a full sampling grid, in float64."""
    height, width = output_hw
    center, size = crop_params(boxes.double(), output_hw, padding)
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BOXES)
def test_one_box_equals_a_dense_grid(name, device):
    boxes = torch.tensor([BOXES[name]])
    ours = crop_boxes(picture().to(device), boxes, OUTPUT)
    assert ours.dtype == torch.float32
    assert tuple(ours.shape) == (1, 3, *OUTPUT)
    torch.testing.assert_close(ours.cpu(), dense(picture(), boxes, OUTPUT), atol=2e-2, rtol=0)
    assert ours.abs().sum() > 0


@pytest.mark.parametrize("device", DEVICES)
def test_many_boxes_equal_single_boxes(device):
    boxes = torch.tensor([*BOXES.values(), *BOXES.values()])
    ours = crop_boxes(picture().to(device), boxes, OUTPUT)
    for crop, box in zip(ours, boxes, strict=True):
        assert torch.equal(crop, crop_boxes(picture().to(device), box[None], OUTPUT)[0])


def test_far_shrinking_reads_single_lines():
    wide = picture(40, 3000)
    boxes = torch.tensor([[100.0, 0.0, 2200.0, 40.0], [0.0, -500.0, 3000.0, 900.0]])
    torch.testing.assert_close(crop_boxes(wide, boxes, (6, 8)), dense(wide, boxes, (6, 8)), atol=0.1, rtol=0)


@pytest.mark.parametrize("box", [[200.0, 10.0, 20.0, 20.0], [-90.0, -90.0, 9.0, 9.0], [0.0, 1e9, 5.0, 5.0]])
def test_boxes_wholly_outside_are_empty(box):
    assert not crop_boxes(picture(), torch.tensor([box]), OUTPUT).any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (30, 1), (2, 2)])
@pytest.mark.parametrize("box", [[-2.0, -3.0, 5.0, 6.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 30.0, 40.0]])
def test_pictures_of_single_lines(shape, box):
    # Zeros lie outside, so a border of zeros around the picture may change nothing; with it a grid works too.
    small = picture(*shape)
    boxes, shifted = torch.tensor([box]), torch.tensor([[box[0] + 9, box[1] + 9, *box[2:]]])
    ours = crop_boxes(small, boxes, OUTPUT)
    torch.testing.assert_close(ours, dense(F.pad(small, (9, 9, 9, 9)), shifted, OUTPUT), atol=2e-2, rtol=0)
    assert ours.any()


def test_a_window_on_whole_pixels_copies_them():
    boxes = torch.tensor([[3.0, 5.0, 31.0, 31.0]])
    ours = crop_boxes(picture(), boxes, (32, 32), padding=1.0)
    torch.testing.assert_close(ours[0], picture()[:, 5:37, 3:35].float(), atol=1e-2, rtol=0)


def test_memory_order_and_type_change_nothing():
    packed = image_to_tensor(photo(40, 30))
    boxes = torch.tensor([[2.0, 3.0, 10.0, 20.0]])
    wanted = crop_boxes(packed, boxes, OUTPUT)
    assert torch.equal(crop_boxes(packed.contiguous(), boxes, OUTPUT), wanted)
    assert torch.equal(crop_boxes(packed.float(), boxes, OUTPUT), wanted)
    assert torch.equal(crop_boxes(packed.half(), boxes.double(), OUTPUT), wanted)


def test_pixels_that_ask_for_gradients_are_fine():
    boxes = torch.tensor([[2.0, 3.0, 10.0, 20.0]])
    ours = crop_boxes(picture().float().requires_grad_(), boxes, OUTPUT)
    assert torch.equal(ours, crop_boxes(picture(), boxes, OUTPUT))
    assert not ours.requires_grad


@pytest.mark.parametrize("channels", [1, 4])
def test_any_number_of_channels(channels):
    boxes = torch.tensor([[2.0, 3.0, 10.0, 20.0]])
    source = picture(50, 50, channels)
    torch.testing.assert_close(crop_boxes(source, boxes, OUTPUT), dense(source, boxes, OUTPUT), atol=2e-2, rtol=0)


def test_no_boxes_and_single_pixel_outputs():
    assert tuple(crop_boxes(picture(), torch.zeros(0, 4), OUTPUT).shape) == (0, 3, *OUTPUT)
    boxes = torch.tensor([[9.0, 19.0, 2.0, 2.0]])
    ours = crop_boxes(picture(), boxes, (1, 1))
    assert ours.flatten().tolist() == picture()[:, 20, 10].tolist()  # the centre of the box


def test_crop_params_pad_and_grow():
    boxes = torch.tensor([[10.0, 20.0, 40.0, 40.0], [0.0, 0.0, 30.0, 80.0], [0.0, 0.0, 60.0, 80.0]])
    center, size = crop_params(boxes, (64, 48))
    assert center.tolist() == [[30, 40], [15, 40], [30, 40]]
    torch.testing.assert_close(size, torch.tensor([[50.0, 50 / 0.75], [75.0, 100.0], [75.0, 100.0]]))
    assert crop_params(boxes, (64, 48), padding=1.0)[1][2].tolist() == [60, 80]


def test_mistakes_are_named():
    for boxes in (torch.zeros(4), torch.zeros(1, 5), torch.zeros(1, 1, 4)):
        with pytest.raises(InputError, match=r"boxes_xywh: expected shape \[N, 4\]"):
            crop_boxes(picture(), boxes, OUTPUT)
    good = [1.0, 2.0, 3.0, 4.0]
    for bad in ([1, 2, 0, 4], [1, 2, 3, -4], [float("nan"), 2, 3, 4], [1, 2, float("inf"), 4]):
        with pytest.raises(InputError, match=r"expected finite boxes with positive width and height.*at index 1"):
            crop_boxes(picture(), torch.tensor([good, bad]), OUTPUT)
    with pytest.raises(InputError, match=r"expected one picture \[C, H, W\]"):
        crop_boxes(picture()[None], torch.tensor([good]), OUTPUT)
    with pytest.raises(InputError, match="output_hw"):
        crop_boxes(picture(), torch.tensor([good]), (0, 5))
    for padding in (0, -1, float("nan")):
        with pytest.raises(InputError, match="padding: expected a positive factor"):
            crop_boxes(picture(), torch.tensor([good]), OUTPUT, padding=padding)


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
