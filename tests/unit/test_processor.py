import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitruvian
from tests.helpers.shared_folder import SHARED, needs_shared
from vitruvian import (
    BatchFeature,
    CheckpointError,
    ConfigError,
    ImageProcessor,
    InputError,
    Mask2FormerImageProcessor,
    MaskFormerImageProcessor,
    Sam2ImageProcessor,
    Sapiens2ImageProcessor,
    processor,
)
from vitruvian.config import config_dataclass

FAMILIES = (Sapiens2ImageProcessor, Sam2ImageProcessor, MaskFormerImageProcessor, Mask2FormerImageProcessor)


@config_dataclass
class Plain(ImageProcessor):
    """Stacks images after rescaling and normalising."""

    size: dict[str, int] = dataclasses.field(default_factory=lambda: {"height": 4, "width": 6})
    strength: float | None = None

    def preprocess(self, images: Any, *args: Any, return_tensors: str | None = None, **options: Any) -> BatchFeature:
        used = self.with_options(**options)
        return BatchFeature(
            {"pixel_values": [used.normalize_pixels(p) for p in processor.as_pixels(images)]}, return_tensors
        )


def image(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(numbers()).convert(mode)


def numbers() -> np.ndarray[Any, Any]:
    """An image as an array [4, 6, 3]."""
    return np.arange(72, dtype=np.uint8).reshape(4, 6, 3)


class TestReading:
    def test_every_kind_gives_the_same_pixels(self, tmp_path: Path) -> None:
        image().save(tmp_path / "a.png")
        want = torch.as_tensor(numbers()).permute(2, 0, 1)
        kinds: list[Any] = [
            image(),
            numbers(),
            numbers().transpose(2, 0, 1),
            torch.as_tensor(numbers()),
            want,
            tmp_path / "a.png",
            str(tmp_path / "a.png"),
            (tmp_path / "a.png").read_bytes(),
        ]
        for kind in kinds:
            (found,) = processor.as_pixels(kind)
            assert torch.equal(found, want), type(kind)
            assert found.dtype == torch.uint8
        assert all(torch.equal(found, want) for found in processor.as_pixels(kinds))

    def test_batches_and_nested_lists(self) -> None:
        batch = np.stack([numbers()] * 2)
        assert len(processor.as_pixels(batch)) == 2
        assert len(processor.as_pixels(torch.as_tensor(batch))) == 2
        assert len(processor.as_pixels([batch, batch])) == 4
        assert len(processor.as_pixels([[image()], [image(), image()]])) == 3
        assert len(processor.as_list((image(),))) == 1
        with pytest.raises(InputError, match="images: expected at least one image, got an empty list"):
            processor.as_pixels([])

    def test_views_that_torch_cannot_share(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (mirrored,) = processor.as_pixels(numbers()[..., ::-1])  # BGR to RGB, as people who read with OpenCV do
            frozen = numbers()
            frozen.flags.writeable = False
            (kept,) = processor.as_pixels(frozen)
        assert torch.equal(mirrored, torch.as_tensor(numbers()).permute(2, 0, 1).flip(0))
        assert torch.equal(kept, torch.as_tensor(numbers()).permute(2, 0, 1))

    def test_values_of_arrays_are_kept(self) -> None:
        for dtype in (np.float32, np.float64, np.int16):
            assert (
                processor.as_pixels(numbers().astype(dtype))[0].dtype == torch.as_tensor(numbers().astype(dtype)).dtype
            )

    def test_gray_is_repeated(self) -> None:
        gray = numbers()[..., 0]
        for kind in (gray, gray[..., None], gray[None]):
            (found,) = processor.as_pixels(kind)
            assert found.shape == (3, 4, 6)
            assert torch.equal(found[2], torch.as_tensor(gray))
        assert processor.as_pixels(image("L"))[0].shape == (3, 4, 6)

    def test_layout_that_the_shape_leaves_open(self) -> None:
        odd = np.zeros((3, 5, 3), dtype=np.uint8)
        assert processor.as_pixels(odd)[0].shape == (3, 5, 3)
        assert processor.as_pixels(odd, input_data_format="channels_last")[0].shape == (3, 3, 5)
        assert processor.as_pixels(odd, input_data_format="channels_first")[0].shape == (3, 5, 3)
        with pytest.raises(
            InputError, match="input_data_format: expected 'channels_first' or 'channels_last', got 'x'"
        ):
            processor.as_pixels(odd, input_data_format="x")

    def test_device(self) -> None:
        assert processor.as_pixels(image(), device="meta")[0].is_meta

    @pytest.mark.parametrize(
        ("image", "why"),
        [
            (np.zeros((4, 6, 4), np.uint8), r"expected 1 or 3 channels, got the shape \[4, 6, 4\]"),
            (np.zeros((1, 2, 3, 4, 5), np.uint8), r"expected arrays of 2 or 3 dimensions"),
            (np.zeros(3, np.uint8), r"expected arrays of 2 or 3 dimensions"),
            (np.array(3), r"expected arrays of 2 or 3 dimensions"),
            (np.array([["a"]]), "expected arrays of numbers"),
            (3, "expected PIL, numpy, torch, a path, a URL or bytes, got int"),
            (None, "got NoneType"),
            ({"image": 1}, "got dict"),
        ],
    )
    def test_what_is_no_image(self, image: Any, why: str) -> None:
        with pytest.raises(InputError, match=f"images: .*{why}"):
            processor.as_pixels(image)


class TestOptions:
    def test_preprocess_and_call_are_the_same(self) -> None:
        processor = Plain()
        one, other = processor(image(), return_tensors="pt"), processor.preprocess(image(), return_tensors="pt")
        assert torch.equal(one.pixel_values, other.pixel_values)
        assert one.pixel_values.dtype == torch.float32

    def test_numbers(self) -> None:
        pixels = torch.as_tensor(numbers()).permute(2, 0, 1).float()
        mean, std = torch.tensor([0.5, 0.25, 0.0])[:, None, None], torch.tensor([0.5, 0.25, 2.0])[:, None, None]
        processor = Plain(image_mean=[0.5, 0.25, 0.0], image_std=[0.5, 0.25, 2.0])
        torch.testing.assert_close(processor(image()).pixel_values[0], (pixels / 255 - mean) / std)
        torch.testing.assert_close(processor(image(), do_normalize=False).pixel_values[0], pixels / 255)
        torch.testing.assert_close(processor(image(), do_rescale=False).pixel_values[0], (pixels - mean) / std)
        found = processor(image(), do_rescale=False, do_normalize=False).pixel_values[0]
        torch.testing.assert_close(found, pixels)
        found = processor(image(), rescale_factor=1.0, image_mean=0.0, image_std=2.0).pixel_values[0]
        torch.testing.assert_close(found, pixels / 2)

    def test_options_of_one_call_do_not_stay(self) -> None:
        processor = Plain()
        assert processor.with_options() is processor
        assert processor.with_options(do_rescale=None) is processor
        assert processor.with_options(do_rescale=False).do_rescale is False
        assert processor.do_rescale is True
        kept = Plain.from_dict({"maker": "acme"}).with_options(do_rescale=False)
        assert kept.extra == {"maker": "acme"}
        with pytest.raises(ConfigError, match="the name of a field, got 'do_rescael'"):
            processor.with_options(do_rescael=False)
        with pytest.raises(ConfigError, match=r"Plain\.do_rescale: expected bool"):
            processor.with_options(do_rescale="no")

    @pytest.mark.parametrize(
        ("given", "want"),
        [
            ({"height": 3, "width": 5}, {"height": 3, "width": 5}),
            (7, {"height": 7, "width": 7}),
            ((3, 5), {"height": 3, "width": 5}),
            ([3, 5], {"height": 3, "width": 5}),
            ({"shortest_edge": 8, "longest_edge": None}, {"shortest_edge": 8}),
        ],
    )
    def test_sizes_in_every_spelling(self, given: Any, want: dict[str, int]) -> None:
        assert processor.size_table(given) == want
        assert Plain(size=given).size == want

    @pytest.mark.parametrize("given", ["big", (1, 2, 3), 1.5])
    def test_what_is_no_size(self, given: Any) -> None:
        with pytest.raises(ConfigError, match="size: expected a table, a number or"):
            Plain(size=given)

    @pytest.mark.parametrize("given", [{"height": 0, "width": 3}, {"height": 3}, {}, {"shortest_edge": 3}])
    def test_sizes_without_height_and_width(self, given: dict[str, int]) -> None:
        with pytest.raises(ConfigError, match=r"Plain\.size: expected a size with height and width of at least 1"):
            processor.height_width(given, "Plain.size")
        assert processor.height_width({"height": 2, "width": 3}, "x") == (2, 3)

    def test_filters_by_number_or_name(self) -> None:
        assert Plain(resample=Image.Resampling.BICUBIC).resample == 3
        assert type(Plain(resample=Image.Resampling.BICUBIC).resample) is int
        with pytest.raises(ConfigError, match=r"Plain\.resample: expected int, got 'bilinear'"):
            Plain(resample="bilinear")  # type: ignore[arg-type]

    def test_a_processor_without_a_family(self) -> None:
        with pytest.raises(InputError, match="ImageProcessor: has no `preprocess`"):
            ImageProcessor()(image())


class TestChannels:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_four_channels_with_four_means(self, family: Any) -> None:
        array = np.arange(4 * 4 * 6, dtype=np.uint8).reshape(4, 6, 4)
        options = {"image_mean": [0.0] * 4, "image_std": [1.0] * 4, "do_resize": False, "return_tensors": "pt"}
        want = torch.as_tensor(array).permute(2, 0, 1) / 255
        for kind in (array, torch.as_tensor(array)):
            found = family()(kind, input_data_format="channels_last", **options).pixel_values
            torch.testing.assert_close(found, want[None])
        gray = family()(array[..., 0], **options).pixel_values
        assert gray.shape == (1, 4, 4, 6)
        with pytest.raises(InputError, match="expected 1 or 3 channels"):
            family()(array, input_data_format="channels_last", do_resize=False)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_format_of_pixel_values(self, family: Any) -> None:
        options = {"do_resize": False, "return_tensors": "pt"}
        first = family()(numbers(), **options).pixel_values
        last = family()(numbers(), data_format="channels_last", disable_grouping=True, **options).pixel_values
        assert torch.equal(last, first.movedim(1, -1))
        arrays = family()(numbers(), data_format="channels_last", do_resize=False, return_tensors="np").pixel_values
        assert np.array_equal(arrays, last.numpy())
        with pytest.raises(InputError, match="data_format: expected 'channels_first' or 'channels_last', got 'x'"):
            family()(numbers(), data_format="x")


class TestSteps:
    """The steps of preprocessing as methods."""

    @pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
    def test_kinds_and_formats_are_kept(self, kind: Any) -> None:
        steps = Plain()
        last, first = kind(numbers()), kind(numbers().transpose(2, 0, 1).copy())
        calls: list[Any] = [
            lambda image, **to: steps.resize(image, {"height": 2, "width": 3}, **to),
            lambda image, **to: steps.center_crop(image, {"height": 2, "width": 8}, **to),
            lambda image, **to: steps.normalize(image, [1.0, 2.0, 3.0], 2.0, **to),
            lambda image, **to: steps.rescale(image, 0.5, **to),
        ]
        for call in calls:
            found = call(first)
            assert type(found) is type(first)
            assert np.array_equal(np.moveaxis(np.asarray(found), 0, -1), np.asarray(call(last)))
            assert np.array_equal(np.asarray(found), np.asarray(call(last, data_format="channels_first")))
            ambiguous = call(last[:3, :3], input_data_format="channels_last")
            assert ambiguous.shape[-1] == 3

    def test_values(self) -> None:
        steps, pixels = Plain(), torch.as_tensor(numbers()).permute(2, 0, 1)
        assert torch.equal(steps.rescale(pixels, 0.5), pixels * 0.5)
        want = (pixels.float() - torch.tensor([1.0, 2.0, 3.0])[:, None, None]) / 2
        torch.testing.assert_close(steps.normalize(pixels, [1.0, 2.0, 3.0], 2.0), want)
        assert torch.equal(steps.center_crop(pixels, 2), pixels[:, 1:3, 2:4])
        assert torch.equal(steps.center_crop(pixels, (4, 8))[..., 1:-1], pixels)
        nearest = steps.resize(pixels, {"height": 2, "width": 3}, resample=0)
        assert torch.equal(nearest, pixels[:, 1::2, 1::2])

    def test_size_rules(self) -> None:
        pixels = torch.zeros(3, 20, 40)
        for size, want in (
            ({"shortest_edge": 10}, (10, 20)),
            ({"shortest_edge": 10, "longest_edge": 12}, (6, 12)),
            ({"max_height": 10, "max_width": 10}, (5, 10)),
            (8, (8, 8)),
        ):
            assert Plain().resize(pixels, size).shape[-2:] == want
        with pytest.raises(ConfigError, match="size: expected a size with height and width"):
            Plain().resize(pixels, {"height": 3})


def test_setting_for_the_results_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_transformers_results", False)
    assert not processor.use_transformers_results(None)
    vitruvian.set_legacy_results(True)
    assert processor.use_transformers_results(None)
    assert not processor.use_transformers_results(False)
    vitruvian.set_legacy_results(False)
    assert processor.use_transformers_results(True)


class TestFiles:
    def test_json_files(self, tmp_path: Path) -> None:
        first = Plain(do_rescale=None, strength=0.5)
        first.to_json_file(tmp_path / "any.json")
        assert (tmp_path / "any.json").read_text() == first.to_json_string()
        assert Plain.from_json_file(tmp_path / "any.json") == first

    def test_steps_that_are_none_are_off(self, tmp_path: Path) -> None:
        first = Plain(do_rescale=None, do_normalize=None)
        assert first.to_dict()["do_rescale"] is None
        first.save_pretrained(tmp_path)
        second = Plain.from_pretrained(tmp_path)
        assert (second.do_rescale, second.do_normalize) == (None, None)
        assert second(image(), return_tensors="pt").pixel_values.max() == 71

    def test_keywords_without_effect(self, tmp_path: Path) -> None:
        Plain().save_pretrained(tmp_path)
        assert Plain.from_pretrained(tmp_path, use_fast=False, backend="pil", trust_remote_code=True) == Plain()

    def test_round_trip(self, tmp_path: Path) -> None:
        processor = Plain.from_dict({"do_rescale": False, "processor_class": "X", "strength": None})
        (path,) = processor.save_pretrained(tmp_path)
        assert path.name == "preprocessor_config.json"
        values = json.loads(path.read_text())
        assert (values["image_processor_type"], values["processor_class"]) == ("Plain", "X")
        assert Plain.from_pretrained(tmp_path) == processor
        assert Plain.from_pretrained(tmp_path, do_rescale=True).do_rescale is True
        assert Plain.from_pretrained(path) == processor

    def test_unset_options_of_other_writers(self) -> None:
        found = Plain.from_dict({"do_resize": None, "size": None, "unknown": None, "feature_extractor_type": "X"})
        assert found.do_resize is None  # off, as in transformers
        assert found.size == {"height": 4, "width": 6}
        assert found.extra == {"unknown": None}

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"expected a file preprocessor_config\.json"):
            Plain.from_pretrained(tmp_path)

    @needs_shared
    @pytest.mark.parametrize("case", ["boxes", "keypoints", "maps-reduce1", "pad0", "pad1"])
    def test_stored_options_survive(self, case: str) -> None:
        folder = SHARED / "golden" / "cases" / f"sapiens2-processor-{case}"
        stored = json.loads((folder / "preprocessor_config.json").read_text())
        written = json.loads(Sapiens2ImageProcessor.from_pretrained(folder).to_json_string())
        assert {key: written.get(key) for key in stored} == stored


class TestArguments:
    def test_counts(self) -> None:
        processor.check_count("boxes", None, 3)
        processor.check_count("boxes", [1, 2, 3], 3)
        with pytest.raises(InputError, match="boxes: expected one entry for each of the 3 images, got 2"):
            processor.check_count("boxes", [1, 2], 3)

    def test_sizes_of_results(self) -> None:
        want = [(1, 2), (3, 4)]
        kinds: list[Any] = [want, [[1, 2], [3, 4]], torch.tensor(want), np.array(want), [torch.tensor(s) for s in want]]
        kinds += [[torch.Size(s) for s in want], ((1.0, 2.0), (3.0, 4.0))]
        for sizes in kinds:
            assert processor.size_list("target_sizes", sizes, 2) == want
        assert processor.size_list("target_sizes", None, 2) is None

    @pytest.mark.parametrize("sizes", [[(1, 2)], [(1, 2), (3,)], [(1, 2), (0, 4)], [(1, 2), 3], (1, 2), [(1, 2), None]])
    def test_sizes_that_do_not_fit(self, sizes: Any) -> None:
        with pytest.raises(InputError, match="target_sizes: expected"):
            processor.size_list("target_sizes", sizes, 2)


def test_what_a_person_gives_is_not_changed() -> None:
    size = {"height": 32, "width": 48}
    for image in (torch.rand(3, 32, 48), torch.rand(3, 20, 30), torch.randint(0, 255, (3, 32, 48), dtype=torch.uint8)):
        before = image.clone()
        Sapiens2ImageProcessor(size=size)(image, return_tensors="pt")
        Sapiens2ImageProcessor(size=size)(image, boxes=[[[0, 0, 20, 20]]], return_tensors="pt")
        assert torch.equal(image, before)
        array = before.numpy().copy()
        Sapiens2ImageProcessor(size=size, do_pad=True)(array, do_resize=False, return_tensors="pt")
        assert np.array_equal(array, before.numpy())
