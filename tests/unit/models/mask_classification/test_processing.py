from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import vitruvian
from vitruvian.errors import ConfigError, InputError, VitruvianError, VitruvianWarning
from vitruvian.images.rle import decode_rle, decode_rles
from vitruvian.models.mask2former.processing import Mask2FormerImageProcessor
from vitruvian.models.maskformer.processing import MaskFormerImageProcessor

CLASSES = [MaskFormerImageProcessor, Mask2FormerImageProcessor]
SMALL = {"size": {"shortest_edge": 64, "longest_edge": 120}, "size_divisor": 32}


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def labeled(height: int, width: int) -> np.ndarray:
    labels = np.zeros((height, width), dtype=np.uint8)
    labels[: height // 2] = 2
    labels[height // 2 :, : width // 3] = 3
    return labels


# ------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("cls", CLASSES)
def test_defaults(cls) -> None:
    processor = cls()
    assert processor.size == {"shortest_edge": 800, "longest_edge": 1333}
    assert (processor.size_divisor, processor.resample, processor.do_pad) == (32, 2, True)
    assert (processor.ignore_index, processor.do_reduce_labels, processor.num_labels) == (None, False, None)
    assert processor.model_input_names == ["pixel_values", "pixel_mask"]


def test_names_of_the_implementations_of_transformers_are_the_same_classes() -> None:
    assert vitruvian.MaskFormerImageProcessorFast is vitruvian.MaskFormerImageProcessorPil is MaskFormerImageProcessor
    assert (
        vitruvian.Mask2FormerImageProcessorFast is vitruvian.Mask2FormerImageProcessorPil is Mask2FormerImageProcessor
    )
    assert vitruvian.Sam2ImageProcessorFast is vitruvian.Sam2ImageProcessor


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"size": 640}, {"shortest_edge": 640, "longest_edge": 1333}),
        ({"size": 640, "max_size": 2048}, {"shortest_edge": 640, "longest_edge": 2048}),
        ({"max_size": 999}, {"shortest_edge": 800, "longest_edge": 999}),
        ({"size": (50, 60)}, {"height": 50, "width": 60}),
        ({"size": {"max_height": 50, "max_width": 60}}, {"max_height": 50, "max_width": 60}),
    ],
)
def test_sizes_in_all_spellings(options: dict, size: dict) -> None:
    assert MaskFormerImageProcessor(**options).size == size


def test_older_files_are_read(tmp_path: Path) -> None:
    older = {
        "feature_extractor_type": "MaskFormerFeatureExtractor",
        "size": 640,
        "max_size": 2560,
        "size_divisibility": 16,
        "reduce_labels": True,
        "ignore_index": 255,
        "num_text": 7,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(older))
    processor = MaskFormerImageProcessor.from_pretrained(tmp_path)
    assert processor.size == {"shortest_edge": 640, "longest_edge": 2560}
    assert (processor.size_divisor, processor.do_reduce_labels) == (16, True)
    processor.save_pretrained(tmp_path / "new")
    written = json.loads((tmp_path / "new" / "preprocessor_config.json").read_text())
    assert written["image_processor_type"] == "MaskFormerImageProcessor"
    assert not {"max_size", "reduce_labels", "size_divisibility"} & set(written)
    assert written["num_text"] == 7
    assert MaskFormerImageProcessor.from_pretrained(tmp_path / "new") == processor


@pytest.mark.parametrize(
    "options",
    [
        {"size": {"longest_edge": 5}},
        {"size": {"shortest_edge": 0}},
        {"size": {}},
        {"size_divisor": -1},
        {"pad_size": {"height": 4}},
        {"sizes": 3},
    ],
)
def test_options_that_cannot_be(options: dict) -> None:
    with pytest.raises(ConfigError):
        MaskFormerImageProcessor(**options)


@pytest.mark.parametrize(
    ("options", "source", "expected"),
    [
        ({"size_divisor": 32}, (480, 640), (800, 1088)),
        ({"size_divisor": 0}, (480, 640), (800, 1066)),
        ({"size_divisor": 0}, (100, 1000), (133, 1333)),
        ({"size": {"shortest_edge": 100}, "size_divisor": 0}, (50, 1000), (100, 2000)),
        ({"size": {"height": 30, "width": 50}}, (7, 9), (32, 64)),
        ({"size": {"max_height": 50, "max_width": 50}, "size_divisor": 0}, (100, 200), (25, 50)),
        ({"do_resize": False}, (77, 99), (77, 99)),
    ],
)
def test_resized_size(options: dict, source: tuple, expected: tuple) -> None:
    assert MaskFormerImageProcessor(**options).resized_hw(source) == expected


# ------------------------------------------------------------------------------------------------------- images in


def test_batch_of_mixed_sizes_is_padded() -> None:
    processor = Mask2FormerImageProcessor(**SMALL)
    images = [photo(120, 90), photo(61, 150, 1)]
    batch = processor(images, return_tensors="pt")
    assert batch.pixel_values.shape == (2, 3, 96, 128)
    assert batch.pixel_mask.shape == (2, 96, 128)
    for index, (image, (height, width)) in enumerate(zip(images, [(96, 64), (64, 128)], strict=True)):
        alone = processor(Image.fromarray(image), return_tensors="pt")
        assert alone.pixel_values.shape == (1, 3, height, width)
        assert alone.pixel_mask.eq(1).all()
        assert torch.equal(batch.pixel_values[index, :, :height, :width], alone.pixel_values[0])
        assert batch.pixel_mask[index].sum() == height * width
        assert batch.pixel_mask[index, :height, :width].all()
        outside = batch.pixel_values[index] * (1 - batch.pixel_mask[index])
        assert outside.eq(0).all()


def test_kinds_of_pictures_agree() -> None:
    processor, image = MaskFormerImageProcessor(**SMALL), photo(70, 50)
    expected = processor(Image.fromarray(image), return_tensors="pt").pixel_values
    for other in (image, image.transpose(2, 0, 1), torch.from_numpy(image), [image], image[None]):
        assert torch.allclose(processor(other, return_tensors="pt").pixel_values, expected, atol=1e-5)
    last = processor(image, return_tensors="pt", data_format="channels_last").pixel_values
    assert torch.allclose(last.permute(0, 3, 1, 2), expected, atol=1e-5)
    numbers = processor(image, return_tensors="np", data_format="channels_last")
    assert isinstance(numbers.pixel_values, np.ndarray)
    assert numbers.pixel_values.shape == (1, 96, 64, 3)
    assert isinstance(processor(image).pixel_values, list)


def test_arrays_of_other_kinds() -> None:
    processor, image = MaskFormerImageProcessor(**SMALL), photo(70, 50)
    expected = processor(image, return_tensors="pt").pixel_values
    deep = image.astype(np.uint16) * 257
    for other in (
        image.astype(np.int64),
        deep,
        deep.astype(">u2"),
        torch.from_numpy(image).int(),
        deep.transpose(2, 0, 1),
    ):
        assert torch.equal(processor(other, return_tensors="pt").pixel_values, expected)
    floats = processor(image.astype(np.float32), return_tensors="pt").pixel_values
    assert (floats - expected).abs().max() < 0.02  # the one that is not rounded while it is resized
    gray = image[..., 0]
    repeated = processor(np.stack([gray] * 3, axis=-1), return_tensors="pt").pixel_values
    for other in (gray, gray[..., None], gray[None], Image.fromarray(gray)):
        assert torch.equal(processor(other, return_tensors="pt").pixel_values, repeated)
    black_and_white = processor(gray > 99, return_tensors="pt").pixel_values
    assert torch.equal(black_and_white, processor((gray > 99).astype(np.uint8) * 255, return_tensors="pt").pixel_values)
    with pytest.raises(VitruvianError, match="from 0 to 65535"):
        processor(image.astype(np.int64) * 300, return_tensors="pt")


def test_arrays_with_alpha_become_rgb_where_asked() -> None:
    processor, image = MaskFormerImageProcessor(**SMALL), photo(70, 50)
    alpha = np.where(np.arange(50) < 20, 0, 255).astype(np.uint8)[None, :, None].repeat(70, axis=0)
    with_alpha = np.concatenate((image, alpha), axis=-1)
    laid = np.where(alpha == 0, 255, image).astype(np.uint8)
    expected = processor(laid, return_tensors="pt").pixel_values
    planes = with_alpha.transpose(2, 0, 1)
    for other in (with_alpha, planes, torch.from_numpy(with_alpha), Image.fromarray(with_alpha)):
        found = processor(other, do_convert_rgb=True, return_tensors="pt").pixel_values
        assert torch.equal(found, expected)
    said = processor(planes, do_convert_rgb=True, input_data_format="channels_first", return_tensors="pt").pixel_values
    assert torch.equal(said, expected)
    assert torch.equal(
        MaskFormerImageProcessor(do_convert_rgb=True, **SMALL)(with_alpha, return_tensors="pt").pixel_values, expected
    )
    for wrong in (with_alpha, with_alpha.astype(np.float32)):
        with pytest.raises(InputError, match="do_convert_rgb=True"):
            processor(wrong, do_convert_rgb=wrong.dtype != np.uint8)


def test_crops_of_the_middle() -> None:
    processor, image, labels = Mask2FormerImageProcessor(do_resize=False), photo(70, 50), labeled(70, 50)
    options = {"do_center_crop": True, "crop_size": {"height": 40, "width": 32}}
    found = processor(image, labels, return_tensors="pt", **options)
    expected = processor(image[15:55, 9:41], labels[15:55, 9:41], return_tensors="pt")
    assert torch.equal(found.pixel_values, expected.pixel_values)
    assert torch.equal(found.mask_labels[0], expected.mask_labels[0])
    always = Mask2FormerImageProcessor(do_resize=False, **options)
    assert torch.equal(always(image, return_tensors="pt").pixel_values, expected.pixel_values)
    assert always.resized_hw((70, 50)) == (40, 32)
    assert processor(image, do_center_crop=True, crop_size=30, return_tensors="pt").pixel_values.shape[-2:] == (
        30,
        30,
    )
    with pytest.raises(InputError, match="crop_size: expected at most the resized image's 70×50, got 80×32"):
        processor(image, do_center_crop=True, crop_size=(80, 32))
    with pytest.raises(ConfigError, match="crop_size"):
        processor(image, do_center_crop=True)


def test_pictures_of_one_size_can_be_resized_together() -> None:
    processor = MaskFormerImageProcessor(**SMALL)
    images = [photo(70, 50, 1), photo(64, 90, 2), photo(70, 50, 3), photo(70, 50, 4).astype(np.float32)]
    apart = processor(images, return_tensors="pt", disable_grouping=True)
    together = processor(images, return_tensors="pt", disable_grouping=False)
    assert torch.allclose(apart.pixel_values, together.pixel_values, atol=1e-5)
    assert torch.equal(apart.pixel_mask, together.pixel_mask)


def test_options_of_a_call_win_and_do_not_stay() -> None:
    processor, image = MaskFormerImageProcessor(), photo(20, 30)
    plain = processor(image, do_resize=False, do_rescale=False, do_normalize=False, return_tensors="pt")
    assert torch.equal(plain.pixel_values[0], torch.from_numpy(image).permute(2, 0, 1).float())
    scaled = processor(image, do_resize=False, rescale_factor=0.5, do_normalize=False, return_tensors="pt")
    assert torch.equal(scaled.pixel_values, plain.pixel_values / 2)
    moved = processor(
        image, do_resize=False, do_rescale=False, image_mean=[1.0, 2.0, 3.0], image_std=2.0, return_tensors="pt"
    )
    expected = (plain.pixel_values - torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)) / 2
    assert torch.allclose(moved.pixel_values, expected, atol=1e-4)
    assert processor(image, size=64, size_divisor=8, return_tensors="pt").pixel_values.shape == (1, 3, 64, 96)
    square = processor(image, size=64, default_to_square=True, return_tensors="pt")
    assert square.pixel_values.shape == (1, 3, 64, 64)
    nearest = processor(
        image, size=(40, 60), size_divisor=0, resample=0, do_rescale=False, do_normalize=False, return_tensors="pt"
    )
    assert torch.equal(nearest.pixel_values[..., ::2, ::2], plain.pixel_values)
    assert processor == MaskFormerImageProcessor()


def test_padding_to_a_size_or_not_at_all() -> None:
    processor, image = MaskFormerImageProcessor(do_resize=False), photo(20, 30)
    wide = processor(image, pad_size={"height": 25, "width": 40}, return_tensors="pt")
    assert wide.pixel_values.shape == (1, 3, 25, 40)
    assert wide.pixel_mask.sum() == 600
    with pytest.raises(InputError, match="pad_size: expected at least the largest image's 20×30"):
        processor(image, pad_size={"height": 25, "width": 29})
    apart = processor([image, photo(10, 12)], do_pad=False)
    assert [tuple(p.shape) for p in apart.pixel_values] == [(3, 20, 30), (3, 10, 12)]
    assert [int(m.sum()) for m in apart.pixel_mask] == [600, 120]
    with pytest.raises(InputError, match="one shape"):
        processor([image, photo(10, 12)], do_pad=False, return_tensors="pt")


def test_pad_alone() -> None:
    images = [torch.ones(1, 2, 3), torch.ones(1, 4, 1)]
    batch = MaskFormerImageProcessor().pad(images, constant_values=7, return_tensors="pt")
    assert batch.pixel_values.shape == (2, 1, 4, 3)
    assert batch.pixel_values[0, 0, 2:].eq(7).all()
    assert torch.equal(batch.pixel_values[:, 0].eq(1).long(), batch.pixel_mask)
    assert list(MaskFormerImageProcessor().pad(images, return_pixel_mask=False)) == ["pixel_values"]


# ------------------------------------------------------------------------------------------------------- maps in


@pytest.mark.parametrize("kind", [np.asarray, Image.fromarray, torch.from_numpy])
def test_maps_become_masks_and_classes(kind) -> None:
    processor = Mask2FormerImageProcessor(ignore_index=255, num_labels=4, **SMALL)
    maps = [labeled(120, 90), np.full((61, 150), 255, dtype=np.uint8)]
    batch = processor([photo(120, 90), photo(61, 150)], [kind(m) for m in maps], return_tensors="pt")
    assert [c.tolist() for c in batch.class_labels] == [[0, 2, 3], []]
    assert [tuple(m.shape) for m in batch.mask_labels] == [(3, 96, 128), (0, 96, 128)]
    masks = batch.mask_labels[0]
    assert masks.dtype == torch.float32
    assert masks[:, :96, :64].sum(0).eq(1).all()
    assert masks[1, :48, :64].eq(1).all()
    assert masks[:, :, 64:].eq(255).all()  # the reference's padding


def test_formats_of_masks() -> None:
    processor = Mask2FormerImageProcessor(ignore_index=255, **SMALL)
    arguments = ([photo(120, 90), photo(61, 150)], [labeled(120, 90), labeled(61, 150)])
    floats, bools, runs = (processor(*arguments, mask_format=kind).mask_labels for kind in ("float", "bool", "rle"))
    for number, plain, run in zip(floats, bools, runs, strict=True):
        assert plain.dtype == torch.bool
        assert torch.equal(number == 1, plain)
        assert torch.equal(decode_rles(run), plain)
    unset = Mask2FormerImageProcessor(**SMALL)(*arguments).mask_labels
    assert torch.equal(unset[0], bools[0].float())
    with pytest.raises(InputError, match="mask_format"):
        processor(*arguments, mask_format="png")


def test_one_map_a_stack_of_maps_and_numpy_out() -> None:
    processor = MaskFormerImageProcessor(do_resize=False)
    one = processor(photo(8, 6), labeled(8, 6), return_tensors="np")
    assert isinstance(one.mask_labels[0], np.ndarray)
    assert isinstance(one.class_labels[0], np.ndarray)
    stack = np.stack([labeled(8, 6)] * 2)
    assert len(processor([photo(8, 6)] * 2, stack).mask_labels) == 2


def test_tables_for_all_or_for_each() -> None:
    processor, images = MaskFormerImageProcessor(do_resize=False), [photo(8, 6)] * 2
    maps = [labeled(8, 6)] * 2
    shared = processor(images, maps, {0: 5, 2: 6, 3: 5})
    assert [c.tolist() for c in shared.class_labels] == [[5, 6, 5]] * 2
    each = processor(images, maps, [{0: 5, 2: 6, 3: 5}, {0: 1, 2: 1, 3: 1}])
    assert [c.tolist() for c in each.class_labels] == [[5, 6, 5], [1, 1, 1]]
    with pytest.raises(InputError, match="instance_id_to_semantic_id: expected one entry for each of the 2"):
        processor(images, maps, [{0: 5}])


def test_encode_inputs_takes_finished_images() -> None:
    processor = MaskFormerImageProcessor(do_reduce_labels=True, ignore_index=255)
    images = [torch.rand(3, 8, 6), np.random.rand(3, 4, 9).astype(np.float32)]
    batch = processor.encode_inputs(images, [labeled(8, 6), labeled(4, 9)], return_tensors="pt")
    assert batch.pixel_values.shape == (2, 3, 8, 9)
    assert torch.equal(batch.pixel_values[0, :, :, :6], images[0])
    assert [c.tolist() for c in batch.class_labels] == [[1, 2], [1, 2]]
    plain = processor.encode_inputs(images, [labeled(8, 6), labeled(4, 9)], do_reduce_labels=False, ignore_index=2)
    assert [c.tolist() for c in plain.class_labels] == [[0, 3], [0, 3]]
    assert set(processor.encode_inputs(images)) == {"pixel_values", "pixel_mask"}
    last = processor.encode_inputs([np.zeros((5, 7, 3))], input_data_format="channels_last", return_tensors="pt")
    assert last.pixel_values.shape == (1, 3, 5, 7)


def test_maps_that_do_not_fit() -> None:
    processor = MaskFormerImageProcessor(do_resize=False)
    with pytest.raises(InputError, match="size of the image"):
        processor(photo(8, 6), labeled(6, 8))
    with pytest.raises(InputError, match="segmentation_maps: expected one entry for each of the 2"):
        processor([photo(8, 6)] * 2, [labeled(8, 6)])
    with pytest.raises(InputError, match="data_format"):
        processor(photo(8, 6), data_format="sideways")
    with pytest.raises(InputError, match=r"\[C, H, W\]"):
        processor.encode_inputs([torch.zeros(3, 4)])


# ------------------------------------------------------------------------------------------------------- results out


def outputs(count: int, grid: tuple[int, int], seed: int = 0, queries: int = 10, labels: int = 4) -> SimpleNamespace:
    torch.manual_seed(seed)
    masks = F.interpolate(torch.randn(count, queries, 5, 6), size=grid, mode="bicubic") * 6
    return SimpleNamespace(class_queries_logits=torch.randn(count, queries, labels + 1) * 3, masks_queries_logits=masks)


def all_results(processor, model_outputs, **options) -> list[dict]:
    """Everything that the processor can make of outputs, for each image."""
    semantic = processor.post_process_semantic_segmentation(model_outputs, **options)
    maps = processor.post_process_instance_segmentation(
        model_outputs, threshold=0.2, overlap_mask_area_threshold=0.2, **options
    )
    runs = processor.post_process_instance_segmentation(
        model_outputs, threshold=0.2, return_coco_annotation=True, **options
    )
    panoptic = processor.post_process_panoptic_segmentation(
        model_outputs, threshold=0.2, overlap_mask_area_threshold=0.2, label_ids_to_fuse={0}, **options
    )
    return [
        {"semantic": s, "map": m, "runs": r, "panoptic": p}
        for s, m, r, p in zip(semantic, maps, runs, panoptic, strict=True)
    ]


def same(first: dict, second: dict) -> None:
    assert torch.equal(first["semantic"], second["semantic"])
    for name in ("map", "panoptic"):
        assert torch.equal(first[name].segmentation, second[name].segmentation)
        assert first[name].segments_info == second[name].segments_info
    assert first["runs"] == second["runs"]
    assert first["map"].segments_info
    assert first["runs"].segments_info
    assert first["panoptic"].segments_info


def padded_batch(
    sizes: list[tuple[int, int]], processor
) -> tuple[SimpleNamespace, list[SimpleNamespace], torch.Tensor]:
    """Outputs of images alone, and of the padded batch with rubbish in the padding, and its pixel mask."""
    resized = [processor.resized_hw(size) for size in sizes]
    singles = [outputs(1, (-(-h // 4), -(-w // 4)), seed) for seed, (h, w) in enumerate(resized)]
    padded = processor.padded_hw(resized)
    pixel_mask = torch.zeros(len(sizes), *padded, dtype=torch.int64)
    masks = torch.randn(len(sizes), 10, -(-padded[0] // 4), -(-padded[1] // 4)) * 20
    for index, (single, (height, width)) in enumerate(zip(singles, resized, strict=True)):
        content = single.masks_queries_logits[0]
        masks[index, :, : content.shape[1], : content.shape[2]] = content
        pixel_mask[index, :height, :width] = 1
    classes = torch.cat([single.class_queries_logits for single in singles])
    return SimpleNamespace(class_queries_logits=classes, masks_queries_logits=masks), singles, pixel_mask


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "options",
    [
        SMALL,
        {**SMALL, "pad_size": {"height": 160, "width": 192}},
        {"size": 50, "size_divisor": 1},
        {"do_resize": False},
    ],
)
def test_a_batch_of_mixed_sizes_gives_what_single_pictures_give(cls, options: dict) -> None:
    processor, sizes = cls(**options), [(120, 90), (61, 150), (77, 83)]
    batch, singles, pixel_mask = padded_batch(sizes, processor)
    together = all_results(processor, batch, target_sizes=sizes)
    for found, single, size in zip(together, singles, sizes, strict=True):
        if processor.pad_size is None:
            same(found, all_results(processor, single, target_sizes=[size])[0])
        alone = cls(**{**options, "pad_size": None})
        same(found, all_results(alone, single, target_sizes=[size])[0])
    for found, other in zip(
        together, all_results(processor, batch, target_sizes=sizes, pixel_mask=pixel_mask), strict=True
    ):
        same(found, other)
    halves = [(h // 2, w // 2) for h, w in sizes]
    by_source = all_results(processor, batch, target_sizes=halves, source_sizes=sizes)
    by_mask = all_results(processor, batch, target_sizes=halves, pixel_mask=pixel_mask)
    for found, other, half in zip(by_source, by_mask, halves, strict=True):
        assert found["semantic"].shape == half
        same(found, other)


def test_without_target_sizes_results_have_the_size_of_the_grid() -> None:
    processor = Mask2FormerImageProcessor(**SMALL)
    batch, singles, pixel_mask = padded_batch([(120, 90), (61, 150)], processor)
    assert [r["semantic"].shape for r in all_results(processor, batch)] == [(24, 32)] * 2
    cut = all_results(processor, batch, pixel_mask=pixel_mask)
    assert [r["map"].shape for r in cut] == [(24, 16), (16, 32)]
    same(cut[0], all_results(processor, singles[0])[0])


def test_the_setting_of_the_process_gives_the_fixed_grid_of_the_reference() -> None:
    processor, model_outputs = Mask2FormerImageProcessor(), outputs(1, (20, 20))
    vitruvian.set_legacy_results(True)
    try:
        (found,) = processor.post_process_semantic_segmentation(model_outputs)
        (own,) = processor.post_process_semantic_segmentation(model_outputs, legacy=False)
    finally:
        vitruvian.set_legacy_results(False)
    assert (found.shape, own.shape) == ((384, 384), (20, 20))
    assert processor.post_process_semantic_segmentation(model_outputs)[0].shape == (20, 20)


def test_target_sizes_of_free_choice_take_the_whole_grid() -> None:
    processor, model_outputs = MaskFormerImageProcessor(**SMALL), outputs(2, (20, 20))
    with pytest.warns(VitruvianWarning, match="padding is not removed"):
        found = all_results(processor, model_outputs, target_sizes=[(50, 70), (70, 50)])
    plain = MaskFormerImageProcessor(do_resize=False).post_process_semantic_segmentation(
        model_outputs, target_sizes=[(50, 70), (70, 50)], pixel_mask=torch.ones(2, 80, 80)
    )
    assert torch.equal(found[0]["semantic"], plain[0])
    processor.post_process_semantic_segmentation(model_outputs, target_sizes=[(50, 70), (50, 70)])  # no warning
    with pytest.raises(InputError, match=r"source_sizes: .*mask grid"):
        processor.post_process_semantic_segmentation(
            model_outputs, target_sizes=[(50, 70), (70, 50)], source_sizes=[(50, 70), (70, 50)]
        )


def test_kinds_of_instances_agree() -> None:
    processor, model_outputs = Mask2FormerImageProcessor(**SMALL), outputs(1, (24, 32), 3)
    options = {"threshold": 0.2, "overlap_mask_area_threshold": 0.5, "target_sizes": [(96, 128)]}
    (masks,) = processor.post_process_instance_segmentation(model_outputs, return_binary_maps=True, **options)
    (runs,) = processor.post_process_instance_segmentation(model_outputs, return_coco_annotation=True, **options)
    assert masks.segments_info == runs.segments_info
    assert masks["segmentation"].dtype == torch.bool
    assert masks.shape == (len(masks.segments_info), 96, 128)
    assert torch.equal(torch.stack([decode_rle(rle) for rle in runs.segmentation]), masks.segmentation)
    assert [row["id"] for row in masks.segments_info] == list(range(len(masks.segments_info)))
    assert all(set(row) == {"id", "label_id", "score", "was_fused"} for row in masks.segments_info)
    json.dumps(dict(runs))
    with pytest.raises(InputError, match="at most one"):
        processor.post_process_instance_segmentation(
            model_outputs, return_binary_maps=True, return_coco_annotation=True
        )


def same_result(first, second) -> bool:
    if isinstance(first, dict):
        return first["segments_info"] == second["segments_info"] and same_result(
            first["segmentation"], second["segmentation"]
        )
    return torch.equal(first, second)


@pytest.mark.parametrize(
    ("method", "name", "values"),
    [
        ("instance", "threshold", (0.1, 0.9)),
        ("instance", "mask_threshold", (0.3, 0.9)),
        ("instance", "overlap_mask_area_threshold", (0.0, 0.9)),
        ("panoptic", "threshold", (0.1, 0.9)),
        ("panoptic", "mask_threshold", (0.3, 0.9)),
        ("panoptic", "overlap_mask_area_threshold", (0.0, 0.9)),
        ("panoptic", "label_ids_to_fuse", (None, {0, 1, 2, 3})),
        ("instance", "target_sizes", ([(96, 128)], [(48, 64)])),
        ("semantic", "target_sizes", ([(96, 128)], [(48, 64)])),
    ],
)
def test_each_argument_has_an_effect(method: str, name: str, values: tuple) -> None:
    processor, model_outputs = Mask2FormerImageProcessor(**SMALL), outputs(1, (24, 32), 1, queries=20)
    fixed = {} if method == "semantic" else {"threshold": 0.1, "overlap_mask_area_threshold": 0.1}
    function = getattr(processor, f"post_process_{method}_segmentation")
    first, second = (function(model_outputs, **{**fixed, name: value})[0] for value in values)
    assert not same_result(first, second)
    if method == "instance" and name != "target_sizes":
        kinds = {"return_binary_maps": True}
        first, second = (function(model_outputs, **{**fixed, name: value, **kinds})[0] for value in values)
        assert not same_result(first, second)


def test_scores_on_request() -> None:
    processor, model_outputs = MaskFormerImageProcessor(**SMALL), outputs(1, (24, 32))
    (plain,) = processor.post_process_semantic_segmentation(model_outputs, [(96, 128)])
    (both,) = processor.post_process_semantic_segmentation(model_outputs, [(96, 128)], return_segmentation_scores=True)
    assert both.segmentation_scores.shape == (4, 96, 128)
    assert (both.segmentation != plain).float().mean() < 1e-3
    with pytest.raises(AttributeError, match="it has"):
        _ = both.segments_info


def test_outputs_that_are_none() -> None:
    processor, good = MaskFormerImageProcessor(), outputs(2, (24, 32))
    with pytest.raises(InputError, match="class_queries_logits"):
        processor.post_process_semantic_segmentation(SimpleNamespace())
    with pytest.raises(InputError, match="same images"):
        processor.post_process_semantic_segmentation(
            {"class_queries_logits": good.class_queries_logits[:1], "masks_queries_logits": good.masks_queries_logits}
        )
    with pytest.raises(InputError, match="target_sizes: expected one entry for each of the 2"):
        processor.post_process_semantic_segmentation(good, target_sizes=[(4, 4)])
    with pytest.raises(InputError, match="pixel_mask"):
        processor.post_process_semantic_segmentation(good, pixel_mask=torch.ones(1, 96, 128))
    with pytest.raises(InputError, match="pixel_mask"):
        processor.post_process_semantic_segmentation(good, pixel_mask=torch.zeros(2, 96, 128))


def test_outputs_that_carry_gradients() -> None:
    model_outputs = outputs(1, (24, 32))
    model_outputs.masks_queries_logits.requires_grad_()
    found = Mask2FormerImageProcessor().post_process_semantic_segmentation(
        model_outputs, return_segmentation_scores=True
    )
    assert not found[0].segmentation_scores.requires_grad
