"""Resampling, size rules, padding and centring agree with the reference."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from tests.helpers.shared_folder import SHARED, needs_shared
from tests.unit.images.samples import photo, photo_array
from vitruvian.errors import InputError
from vitruvian.images import (
    center_on_canvas,
    fit_inside_hw,
    image_to_tensor,
    pad_bottom_right,
    resample_mode,
    rescale_and_normalize,
    resize,
    round_up_hw,
    shortest_edge_hw,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
SIZES = [(7, 9), (48, 31), (24, 11), (13, 20), (1, 1)]


def pixels():
    return image_to_tensor(photo())  # [3, 24, 20]


def noise(*shape):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


# ---------------------------------------------------------------- resize


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size_hw", SIZES)
def test_float_is_torch_interpolate(device, mode, antialias, size_hw):
    images = noise(2, 3, 24, 20).float().to(device) / 255
    expected = F.interpolate(images, size_hw, mode=mode, antialias=antialias, align_corners=False)
    torch.testing.assert_close(resize(images, size_hw, mode=mode, antialias=antialias), expected)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size_hw", SIZES[:-1])
def test_uint8_on_cpu_is_the_native_kernel(mode, antialias, size_hw):
    images = noise(1, 3, 24, 20)
    expected = F.interpolate(images, size_hw, mode=mode, antialias=antialias, align_corners=False)
    ours = resize(images, size_hw, mode=mode, antialias=antialias)
    assert ours.dtype == torch.uint8
    assert torch.equal(ours, expected)
    assert torch.equal(resize(images[0], size_hw, mode=mode, antialias=antialias), expected[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size_hw", SIZES)
def test_uint8_is_rounded_float(device, size_hw):
    images = pixels().to(device)
    expected = resize(images.float(), size_hw)
    assert (resize(images, size_hw).float() - expected).abs().max() <= 1.0


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("shape", [(3, 24, 20), (1, 5, 2), (4, 2, 1), (5, 5, 5)])
@pytest.mark.parametrize("height", [1, 2, 7])
def test_pictures_one_pixel_wide(mode, antialias, shape, height):
    # Here the native kernel of torch gives garbage or fails, so the float path with its rounding is what counts.
    expected = resize(noise(*shape).float(), (height, 1), mode=mode, antialias=antialias).round().clamp(0, 255)
    assert torch.equal(resize(noise(*shape), (height, 1), mode=mode, antialias=antialias), expected.to(torch.uint8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_uint8_on_a_gpu_is_rounded_half_to_even_and_clamped(mode):
    images = noise(3, 24, 20).cuda()
    expected = resize(images.float(), (31, 47), mode=mode).round().clamp(0, 255).to(torch.uint8)
    assert torch.equal(resize(images, (31, 47), mode=mode), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    images = pixels().to(dtype)
    ours = resize(images, (11, 9))
    assert ours.dtype == dtype
    assert torch.equal(ours, resize(images.float(), (11, 9)).to(dtype))


def test_pil_agrees():
    source = photo(60, 44)
    for number, resample in ((2, Image.Resampling.BILINEAR), (3, Image.Resampling.BICUBIC)):
        expected = image_to_tensor(source.resize((17, 23), resample)).int()
        ours = resize(image_to_tensor(source), (23, 17), mode=resample_mode(number)).int()
        assert (ours - expected).abs().max() <= 1


def test_pil_nearest_is_nearest_exact():
    for size_hw in ((23, 17), (83, 97), (61, 13)):  # odd sides: no sample falls between two pixels
        expected = photo(61, 45).resize(size_hw[::-1], Image.Resampling.NEAREST)
        ours = resize(image_to_tensor(photo(61, 45)), size_hw, mode=resample_mode(0))
        assert torch.equal(ours, image_to_tensor(expected))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("size_hw", SIZES)
def test_nearest_is_torch_nearest(device, mode, size_hw):
    images = noise(2, 3, 24, 20).to(device)
    assert torch.equal(resize(images, size_hw, mode=mode), F.interpolate(images, size_hw, mode=mode))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.int32, torch.int64, torch.float16])
def test_labels_stay_exact(dtype):
    labels = (torch.arange(24 * 20).view(1, 24, 20) * (2**53 // 500 if dtype == torch.int64 else 1)).to(dtype)
    for mode in ("nearest", "nearest-exact"):
        ours = resize(labels, (31, 7), mode=mode)
        assert ours.dtype == dtype
        assert set(ours.flatten().tolist()) <= set(labels.flatten().tolist())
    picked = resize(labels, (24, 10), mode="nearest")
    assert torch.equal(picked, labels[..., ::2])


@pytest.mark.parametrize("shape", [(1, 24, 20), (3, 24, 20), (2, 3, 24, 20), (2, 5, 4, 24, 20)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest-exact"])
def test_leading_axes_are_kept(shape, mode):
    images = noise(*shape)
    ours = resize(images, (10, 12), mode=mode)
    assert tuple(ours.shape) == (*shape[:-2], 10, 12)
    one_by_one = [resize(plane[None], (10, 12), mode=mode) for plane in images.reshape(-1, 24, 20)]
    assert (ours.reshape(-1, 10, 12).int() - torch.cat(one_by_one).int()).abs().max() <= 1


def test_pixel_order_of_memory_changes_no_value_and_survives():
    packed = pixels()
    assert not packed.is_contiguous()
    ours = resize(packed, (11, 9))
    assert torch.equal(ours, resize(packed.contiguous(), (11, 9)))
    assert ours.permute(1, 2, 0).is_contiguous()


def test_same_size_returns_the_input():
    images = pixels()
    assert resize(images, (24, 20)) is images


def test_resize_is_differentiable():
    images = torch.rand(3, 6, 5, requires_grad=True)
    resize(images, (3, 2)).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_resize_refuses_what_it_cannot_do():
    with pytest.raises(InputError, match=r"mode: expected one of .*got 'area'"):
        resize(pixels(), (3, 3), mode="area")
    for dtype in (torch.bool, torch.int64):
        with pytest.raises(InputError, match=f'got {dtype}.*"nearest-exact"'):
            resize(pixels().to(dtype), (3, 3))
    with pytest.raises(InputError, match=r"pixels: expected shape \[..., C, H, W\]"):
        resize(torch.zeros(4, 5), (3, 3))
    with pytest.raises(InputError, match="with at least one pixel"):
        resize(torch.zeros(3, 0, 5), (3, 3))
    for size_hw in ((0, 3), (3, -1), (2.5, 3)):
        with pytest.raises(InputError, match="size_hw: expected positive integers"):
            resize(pixels(), size_hw)
    with pytest.raises(InputError, match=r"size_hw: expected \(height, width\)"):
        resize(pixels(), (3, 3, 3))


def test_resample_numbers():
    assert [resample_mode(number) for number in (0, 2, 3)] == ["nearest-exact", "bilinear", "bicubic"]
    assert resample_mode(Image.Resampling.BICUBIC) == "bicubic"
    for number, name in ((1, "LANCZOS"), (4, "BOX"), (5, "HAMMING")):
        with pytest.raises(InputError, match=f"{name}.*which torch cannot do"):
            resample_mode(number)
    with pytest.raises(InputError, match="got 9"):
        resample_mode(9)


# ---------------------------------------------------------------- sizes


def random_sizes(count=3000):
    rng = np.random.default_rng(1)
    for _ in range(count):
        source = tuple(int(v) for v in rng.integers(1, 3000 if rng.random() < 0.7 else 60, 2))
        yield (
            source,
            int(rng.integers(1, 1400)),
            int(rng.integers(1, 1800)),
            tuple(int(v) for v in rng.integers(1, 1400, 2)),
        )


@pytest.mark.reference
def test_size_rules_are_the_references():
    transforms = pytest.importorskip("transformers.image_transforms")
    utils = pytest.importorskip("transformers.image_utils")
    differed = 0
    for source, shortest, longest, limit in random_sizes():
        fitted = utils.get_image_size_for_max_height_width(source, *limit)
        assert fit_inside_hw(source, limit) == tuple(max(1, side) for side in fitted)
        for bound in (None, longest):
            expected = transforms.get_size_with_aspect_ratio(source, shortest, bound)
            ours = shortest_edge_hw(source, shortest, bound)
            assert ours == tuple(max(1, side) for side in expected)  # the reference may return a side of zero
            differed += ours != source
    assert differed > 4000


def test_size_rules_by_hand():
    assert fit_inside_hw((100, 200), (50, 50)) == (25, 50)
    assert fit_inside_hw((61, 150), (64, 48)) == (19, 48)
    assert fit_inside_hw((4000, 20), (64, 48)) == (64, 1)
    assert shortest_edge_hw((480, 640), 800, 1333) == (800, 1066)
    assert shortest_edge_hw((640, 480), 800) == (1066, 800)
    assert shortest_edge_hw((400, 1600), 800, 1333) == (333, 1333)
    assert shortest_edge_hw((480, 640), 480, 1333) == (480, 640)
    assert round_up_hw((61, 128), 32) == (64, 128)
    assert round_up_hw((1, 33), 32) == (32, 64)


def test_size_rules_refuse_nonsense():
    with pytest.raises(InputError, match="source_hw"):
        fit_inside_hw((0, 5), (4, 4))
    with pytest.raises(InputError, match="limit_hw"):
        fit_inside_hw((5, 5), (4, 0))
    with pytest.raises(InputError, match="shortest"):
        shortest_edge_hw((5, 5), 0)
    with pytest.raises(InputError, match="longest"):
        shortest_edge_hw((5, 5), 4, -1)
    with pytest.raises(InputError, match="divisor"):
        round_up_hw((5, 5), 0)


# ---------------------------------------------------------------- canvas


@pytest.mark.reference
def test_center_on_canvas_is_the_references():
    center_crop = pytest.importorskip("transformers.image_transforms").center_crop
    # Odd paddings are left out: there the reference's two backends disagree, and ours is the torch one (next test).
    for size_hw in ((24, 20), (10, 8), (11, 9), (23, 13), (30, 26), (40, 7), (9, 34)):
        expected = center_crop(photo_array(), size_hw, data_format="channels_first", input_data_format="channels_last")
        assert torch.equal(center_on_canvas(pixels(), size_hw), torch.from_numpy(np.ascontiguousarray(expected)))


def test_center_on_canvas_puts_a_spare_line_at_the_bottom_and_right():
    canvas = center_on_canvas(torch.ones(2, 1, 2, 3), (5, 4))
    assert canvas[1, 0].tolist() == [[0] * 4, [1, 1, 1, 0], [1, 1, 1, 0], [0] * 4, [0] * 4]
    numbers = torch.arange(5).view(1, 1, 5)
    assert center_on_canvas(numbers, (1, 2)).tolist() == [[[1, 2]]]


def test_center_on_canvas_keeps_type_and_bystanders():
    images = noise(2, 3, 6, 6)
    assert center_on_canvas(images, (9, 3)).dtype == torch.uint8
    assert tuple(center_on_canvas(images, (9, 3)).shape) == (2, 3, 9, 3)


def test_pad_bottom_right():
    padded = pad_bottom_right(pixels(), (30, 21), value=7)
    assert torch.equal(padded[:, :24, :20], pixels())
    assert bool((padded[:, 24:] == 7).all())
    assert bool((padded[..., 20:] == 7).all())
    assert bool((pad_bottom_right(pixels(), (30, 20))[:, 24:] == 0).all())
    images = pixels()
    assert pad_bottom_right(images, (24, 20)) is images
    with pytest.raises(InputError, match="expected at least the image's 24×20, got 23×40"):
        pad_bottom_right(pixels(), (23, 40))


# ---------------------------------------------------------------- stored cases, computed with torchvision

CASES = SHARED / "golden" / "cases"


def case(name):
    folder = CASES / name
    config = json.loads(next(folder.glob("*processor_config.json")).read_text())
    return load_file(folder / "io.safetensors"), config.get("image_processor", config)


def normalized(images, config):
    return rescale_and_normalize(
        images, scale=config["rescale_factor"], mean=config["image_mean"], std=config["image_std"]
    )


def assert_matches(ours, stored):
    difference = (ours - stored).abs()
    assert difference.max() < 2e-2
    assert difference.mean() < 1e-3


@needs_shared
@pytest.mark.parametrize("pad", [False, True])
def test_sapiens2_processor(pad):
    tensors, config = case(f"sapiens2-processor-pad{int(pad)}")
    target = (config["size"]["height"], config["size"]["width"])
    for index, stored in enumerate(tensors["out.pixel_values"]):
        image = tensors[f"in.image{index}"].permute(2, 0, 1)
        mode = resample_mode(config["resample"])
        inner = fit_inside_hw(tuple(image.shape[-2:]), target) if pad else target
        image = center_on_canvas(resize(image, inner, mode=mode), target)
        assert_matches(normalized(image, config), stored)


@needs_shared
def test_sam2_processor():
    tensors, config = case("sam2-processor-points")
    target = (config["size"]["height"], config["size"]["width"])
    for index, stored in enumerate(tensors["out.pixel_values"]):
        image = resize(tensors[f"in.image{index}"].permute(2, 0, 1), target)
        assert_matches(normalized(image, config), stored)


@needs_shared
@pytest.mark.parametrize("family", ["maskformer", "mask2former"])
def test_maskformer_processor(family):
    tensors, config = case(f"{family}-processor-maps")
    stored = tensors["out.pixel_values"]
    canvas = tuple(stored.shape[-2:])
    for index in range(len(stored)):
        image, labels = tensors[f"in.image{index}"].permute(2, 0, 1), tensors[f"in.map{index}"][None]
        size = shortest_edge_hw(
            tuple(image.shape[-2:]), config["size"]["shortest_edge"], config["size"]["longest_edge"]
        )
        size = round_up_hw(size, config["size_divisor"])
        ours = pad_bottom_right(normalized(resize(image, size), config), canvas)
        assert_matches(ours, stored[index])
        maps = resize(labels, size, mode="nearest-exact")
        for label, mask in zip(tensors[f"out.class_labels.{index}"], tensors[f"out.mask_labels.{index}"], strict=True):
            padded = pad_bottom_right((maps == label).float(), canvas, value=config["ignore_index"])
            assert torch.equal(padded[0], mask)


@needs_shared
def test_uint8_is_exact_to_the_last_bit():
    # The reference resizes label maps with the image's own filter, so this case records torchvision exactly.
    tensors, config = case("sapiens2-processor-maps-reduce0")
    target = (config["size"]["height"], config["size"]["width"])
    assert torch.equal(resize(tensors["in.segmentation_map"][None], target).long(), tensors["out.labels"])
