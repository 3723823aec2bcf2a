"""Every kind of pixel a file or array can hold becomes upright 8-bit RGB."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from tests.unit.images.samples import encode, exif_bytes, photo, photo_array
from vitruvian.errors import ImageError, InputError
from vitruvian.images import image_to_tensor, load_image, tensor_to_image


def pixels(image):
    assert image.mode == "RGB"
    return np.asarray(image)


def gray_array():
    return photo_array()[..., 0]


def as_rgb(gray):
    return np.repeat(gray[..., None], 3, axis=-1)


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, depth, color, rows, *extra):
    """A PNG written by hand, for what Pillow cannot write."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_rgb_files_are_exact(file_format):
    data = encode(photo(), file_format, **({"lossless": True} if file_format == "WEBP" else {}))
    np.testing.assert_array_equal(pixels(load_image(data)), photo_array())


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_gray_and_bilevel(file_format):
    gray = Image.fromarray(gray_array())
    np.testing.assert_array_equal(pixels(load_image(encode(gray, file_format))), as_rgb(gray_array()))
    bits = gray.point(lambda value: 255 * (value > 99)).convert("1")
    expected = np.where(gray_array() > 99, 255, 0)
    np.testing.assert_array_equal(pixels(load_image(encode(bits, file_format))), as_rgb(expected))


def test_palette_is_looked_up():
    image = photo().quantize(8)
    np.testing.assert_array_equal(pixels(load_image(encode(image))), np.asarray(image.convert("RGB")))


def test_palette_transparency_shows_the_background():
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 255, 10, 20, 30])
    image.putpixel((1, 0), 1)
    loaded = load_image(encode(image, transparency=0), background=(1, 2, 3))
    assert pixels(loaded).tolist() == [[[1, 2, 3], [10, 20, 30]]]


def test_hidden_color_under_alpha_never_shows():
    image = Image.new("RGBA", (3, 1), (255, 0, 255, 0))
    image.putpixel((1, 0), (200, 100, 0, 128))
    image.putpixel((2, 0), (7, 8, 9, 255))
    for data in (encode(image), encode(image, "WEBP", lossless=True, exact=True), encode(image, "TIFF")):
        clear, half, solid = pixels(load_image(data))[0].tolist()
        assert clear == [255, 255, 255]
        assert half == [round(c * 128 / 255 + 255 * 127 / 255) for c in (200, 100, 0)]
        assert solid == [7, 8, 9]
    assert pixels(load_image(encode(image), background=(0, 0, 0)))[0, 0].tolist() == [0, 0, 0]


def test_premultiplied_modes_are_divided_out():
    straight = Image.new("RGBA", (2, 2), (200, 100, 40, 128))
    flat, premultiplied = (pixels(load_image(im)).astype(int) for im in (straight, straight.convert("RGBa")))
    assert np.abs(flat - premultiplied).max() <= 1


def test_gray_with_alpha():
    image = Image.new("LA", (2, 1), (9, 0))
    image.putpixel((1, 0), (9, 255))
    assert pixels(load_image(encode(image), background=(5, 6, 7)))[0].tolist() == [[5, 6, 7], [9, 9, 9]]


def test_transparent_color_of_plain_png():
    rgb = encode(Image.new("RGB", (2, 2), (1, 2, 3)), transparency=(1, 2, 3))
    assert (pixels(load_image(rgb)) == 255).all()
    gray = encode(Image.new("L", (2, 2), 4), transparency=4)
    assert (pixels(load_image(gray, background=(0, 0, 9))) == (0, 0, 9)).all()


def test_transparent_color_of_16_bit_png():
    row = struct.pack(">6H", 0x1200, 0x3400, 0x5600, 0xFFFF, 0, 0)
    data = png(2, 1, 16, 2, [row], chunk(b"tRNS", struct.pack(">3H", 0x1200, 0x3400, 0x5600)))
    assert pixels(load_image(data, background=(0, 9, 0)))[0].tolist() == [[0, 9, 0], [255, 0, 0]]


def test_cmyk_jpeg_stored_inverted():
    cmyk = Image.new("CMYK", (16, 16), (0, 200, 100, 30))
    data = encode(cmyk, "JPEG", quality=100)
    assert b"Adobe" in data
    expected = [round((255 - c) * (255 - 30) / 255) for c in (0, 200, 100)]
    assert np.abs(pixels(load_image(data)).astype(int) - expected).max() <= 3


def test_cmyk_tiff():
    data = encode(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "TIFF")
    assert (pixels(load_image(data)) == (255, 0, 0)).all()


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_16_bit_gray_is_divided_by_257_not_clipped(file_format):
    deep = Image.fromarray(gray_array().astype(np.uint16) * 257)
    np.testing.assert_array_equal(pixels(load_image(encode(deep, file_format))), as_rgb(gray_array()))
    dark = Image.fromarray(np.full((2, 2), 200, np.uint16))
    assert (pixels(load_image(encode(dark, file_format))) == 1).all()  # 200 / 257, not 200


def test_16_bit_rgb_png():
    rows = [b"".join(struct.pack(">3H", *(int(v) * 257 for v in pixel)) for pixel in row) for row in photo_array()]
    data = png(20, 24, 16, 2, rows)
    np.testing.assert_array_equal(pixels(load_image(data)), photo_array())


def test_16_bit_pgm_of_mode_i():
    for values, expected in (((65535, 257), [255, 1]), ((200, 0), [1, 0])):
        data = b"P5 2 1 65535\n" + struct.pack(">2H", *values)
        assert Image.open(io.BytesIO(data)).mode == "I"
        assert pixels(load_image(data))[0, :, 0].tolist() == expected


def test_big_endian_16_bit_mode():
    for values, expected in (((257, 65535), [1, 255]), ((200, 0), [1, 0])):
        image = Image.frombytes("I;16B", (2, 1), struct.pack(">2H", *values))
        assert pixels(load_image(image))[0, :, 0].tolist() == expected


def test_12_bit_tiff_is_scaled_by_its_own_white():
    # PhotometricInterpretation 1, BitsPerSample 12, two pixels 4095 and 0 packed in three bytes.
    entries = [(256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 200), (277, 1), (278, 1), (279, 3)]
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", tag, 3, 1, v) for tag, v in entries)
    data = (b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", 0)).ljust(200, b"\0") + b"\xff\xf0\x00"
    assert pixels(load_image(data))[0, :, 0].tolist() == [255, 0]


@pytest.mark.parametrize(
    ("values", "expected"), [([0, 128, 255], [0, 128, 255]), ([0, 257 * 7, 65535], [0, 7, 255])], ids=["8", "16"]
)
def test_32_bit_integers_by_their_range(values, expected):
    image = Image.fromarray(np.array([values], dtype=np.int32))
    assert image.mode == "I"
    assert pixels(load_image(image))[0, :, 0].tolist() == expected
    assert pixels(load_image(encode(image, "TIFF")))[0, :, 0].tolist() == expected


@pytest.mark.parametrize("values", [[-1, 5], [0, 70000]])
def test_32_bit_integers_without_a_white_level_are_refused(values):
    with pytest.raises(ImageError, match=r"expected integers from 0 to \d+, got .* uint8"):
        load_image(Image.fromarray(np.array([values], dtype=np.int32)))


def test_float_tiff_from_0_to_1():
    image = Image.fromarray((gray_array() / 255).astype(np.float32))
    np.testing.assert_array_equal(pixels(load_image(encode(image, "TIFF"))), as_rgb(gray_array()))


@pytest.mark.parametrize("values", [[0.0, 255.0], [-0.5, 1.0], [0.0, float("nan")], [0.0, float("inf")]])
def test_floats_outside_0_to_1_are_refused_not_stretched(values):
    image = Image.fromarray(np.array([values], dtype=np.float32))
    with pytest.raises(ImageError, match="expected floating-point values from 0 to 1, got"):
        load_image(image)


@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "RGBX"])
def test_other_color_modes(mode):
    image = photo().convert(mode)
    np.testing.assert_array_equal(pixels(load_image(image)), np.asarray(image.convert("RGB")))


def test_lab_is_refused_by_name():
    with pytest.raises(ImageError, match=r"got mode LAB\. Convert it to RGB first"):
        load_image(Image.new("LAB", (2, 2)))


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_many(file_format):
    frames = [Image.new("RGB", (8, 8), color) for color in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    options = {"lossless": True} if file_format == "WEBP" else {}
    data = encode(frames[0], file_format, save_all=True, append_images=frames[1:], **options)
    assert (pixels(load_image(data)) == (250, 0, 0)).all()


def test_color_profile_is_carried_and_pixels_are_left():
    loaded = load_image(encode(photo(), icc_profile=b"a profile that is not even valid"))
    np.testing.assert_array_equal(pixels(loaded), photo_array())
    assert loaded.info == {"icc_profile": b"a profile that is not even valid"}


# ---------------------------------------------------------------- orientation

# What a camera in this orientation stores, for each EXIF orientation.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a.transpose(1, 0, 2)[::-1],
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: a.transpose(1, 0, 2)[:, ::-1],
}


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(file_format, orientation):
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](photo_array())))
    options = {"lossless": True} if file_format == "WEBP" else {}
    loaded = load_image(encode(stored, file_format, exif=exif_bytes(orientation), **options))
    np.testing.assert_array_equal(pixels(loaded), photo_array())
    np.testing.assert_array_equal(pixels(load_image(loaded)), photo_array())


def test_orientation_of_deep_and_transparent_images():
    stored = STORED[6](photo_array())
    alpha = np.full((*stored.shape[:2], 1), 255, np.uint8)
    data = encode(Image.fromarray(np.concatenate([stored, alpha], axis=-1)), exif=exif_bytes(6))
    np.testing.assert_array_equal(pixels(load_image(data)), photo_array())
    deep = Image.fromarray(np.ascontiguousarray(stored[..., 0]).astype(np.uint16) * 257)
    np.testing.assert_array_equal(pixels(load_image(encode(deep, exif=exif_bytes(6)))), as_rgb(gray_array()))


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_impossible_orientation_is_ignored(orientation):
    np.testing.assert_array_equal(pixels(load_image(encode(photo(), exif=exif_bytes(orientation)))), photo_array())


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("block", [b"MM\0*\xff\xff\xff\xff garbage", b"no TIFF header at all"])
def test_broken_exif_is_ignored(block):
    data = encode(photo(), exif=b"Exif\0\0" + block)
    np.testing.assert_array_equal(pixels(load_image(data)), photo_array())


# ---------------------------------------------------------------- arrays and tensors


@pytest.mark.parametrize("make", [np.asarray, lambda a: torch.from_numpy(np.ascontiguousarray(a))], ids=["np", "torch"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize(
    "convert",
    [
        lambda a: a,
        lambda a: a.astype(np.uint16) * 257,
        lambda a: (a / 255).astype(np.float32),
        lambda a: a / 255,
        lambda a: a.astype(np.int64),
    ],
    ids=["uint8", "uint16", "float32", "float64", "int64"],
)
def test_arrays_of_every_layout_and_type(make, layout, convert):
    array = convert(photo_array())
    array = array if layout == "HWC" else array.transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels(load_image(make(array))), photo_array())


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["np", "torch"])
def test_gray_bool_and_alpha_arrays(make):
    gray = gray_array().copy()
    for shaped in (gray, gray[None], gray[..., None]):
        np.testing.assert_array_equal(pixels(load_image(make(shaped))), as_rgb(gray))
    np.testing.assert_array_equal(pixels(load_image(make(gray > 99))), as_rgb(np.where(gray > 99, 255, 0)))
    clear = np.zeros((5, 6, 4), np.uint8)
    clear[..., :3] = (255, 0, 255)
    assert (pixels(load_image(make(clear), background=(4, 5, 6))) == (4, 5, 6)).all()


def test_ambiguous_shapes_follow_the_custom_of_the_library():
    values = np.arange(3 * 5 * 3, dtype=np.uint8).reshape(3, 5, 3)
    assert load_image(values).size == (5, 3)  # [H, W, C]
    assert load_image(torch.from_numpy(values)).size == (3, 5)  # [C, H, W]


def test_half_precision_gradients_and_strides():
    tensor = torch.from_numpy(photo_array() / 255).permute(2, 0, 1)
    for values in (tensor.to(torch.bfloat16), tensor.half(), tensor.float().requires_grad_()):
        assert np.abs(pixels(load_image(values)).astype(int) - photo_array()).max() <= 1
    np.testing.assert_array_equal(pixels(load_image(photo_array()[::-1])), photo_array()[::-1])


@pytest.mark.parametrize("shape", [(2, 6, 5), (6, 5, 2), (1, 3, 4, 5), (7,), ()])
def test_arrays_of_the_wrong_shape_are_named(shape):
    with pytest.raises(ImageError, match=r"array: expected shape \[H, W\].*got \["):
        load_image(np.zeros(shape, np.uint8))


def test_empty_and_odd_arrays_are_refused():
    with pytest.raises(ImageError, match="expected at least one pixel, got 4×0"):
        load_image(np.zeros((0, 4, 3), np.uint8))
    with pytest.raises(ImageError, match="got complex64"):
        load_image(np.zeros((2, 2), np.complex64))
    with pytest.raises(ImageError, match="Divide by the white level"):
        load_image(photo_array().astype(np.float32))


def test_slack_for_floats_that_were_resampled():
    values = np.array([[-0.0005, 1.0005]], dtype=np.float32)
    assert pixels(load_image(values))[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize("background", [(1, 2), (0, 0, 256), (-1, 0, 0), (0.5, 0, 0)])
def test_background_is_checked(background):
    with pytest.raises(InputError, match="background: expected three integers"):
        load_image(photo(), background=background)


# ---------------------------------------------------------------- tensors and back


def test_image_to_tensor_and_back():
    tensor = image_to_tensor(photo())
    assert tensor.dtype == torch.uint8
    assert tuple(tensor.shape) == (3, 24, 20)
    np.testing.assert_array_equal(tensor.permute(1, 2, 0).numpy(), photo_array())
    assert tensor.permute(1, 2, 0).is_contiguous()  # the layout that resize is fast on
    np.testing.assert_array_equal(np.asarray(tensor_to_image(tensor)), photo_array())
    np.testing.assert_array_equal(np.asarray(tensor_to_image(tensor.float() / 255)), photo_array())


@pytest.mark.filterwarnings("error")
def test_image_to_tensor_owns_its_memory():
    image = photo()
    image_to_tensor(image).zero_()
    np.testing.assert_array_equal(np.asarray(image), photo_array())


def test_image_to_tensor_takes_other_modes():
    gray = image_to_tensor(Image.fromarray(gray_array()))
    np.testing.assert_array_equal(gray.permute(1, 2, 0).numpy(), as_rgb(gray_array()))


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (1, 3, 4, 5), (2, 4, 5)])
def test_tensor_to_image_wants_channels_first(shape):
    with pytest.raises(ImageError, match=r"expected shape \[3, H, W\]"):
        tensor_to_image(torch.zeros(shape, dtype=torch.uint8))


def test_tensor_to_image_of_one_channel():
    plane = torch.from_numpy(gray_array().copy())[None]
    np.testing.assert_array_equal(np.asarray(tensor_to_image(plane)), as_rgb(gray_array()))
