"""MaskFormer's and Mask2Former's image processors against the PIL ones of transformers, which need no torchvision."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from vitruvian.models.mask2former.processing import Mask2FormerImageProcessor
from vitruvian.models.maskformer.processing import MaskFormerImageProcessor

pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

SMALL = {"size": {"shortest_edge": 64, "longest_edge": 120}, "size_divisor": 32}
SIZES = [(120, 90), (61, 150)]


@pytest.fixture(params=["maskformer", "mask2former"])
def pair(request: pytest.FixtureRequest):
    """Our class and theirs."""
    from transformers.models.mask2former.image_processing_pil_mask2former import Mask2FormerImageProcessorPil
    from transformers.models.maskformer.image_processing_pil_maskformer import MaskFormerImageProcessorPil

    if request.param == "maskformer":
        return MaskFormerImageProcessor, MaskFormerImageProcessorPil
    return Mask2FormerImageProcessor, Mask2FormerImageProcessorPil


def random_images() -> list[Image.Image]:
    random = np.random.default_rng(0)
    smooth = [random.integers(0, 256, (h // 5, w // 5, 3), dtype=np.uint8) for h, w in SIZES]
    return [
        Image.fromarray(p).resize(size[::-1], Image.Resampling.BICUBIC) for p, size in zip(smooth, SIZES, strict=True)
    ]


def maps(high: int = 5) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [
        np.kron(random.integers(0, high, (h // 10 + 1, w // 10 + 1)), np.ones((10, 10)))[:h, :w].astype(np.uint8)
        for h, w in SIZES
    ]


@pytest.mark.parametrize(
    "options",
    [
        SMALL,
        {"size": {"height": 70, "width": 90}, "size_divisor": 0},
        {"size": {"max_height": 70, "max_width": 90}, "size_divisor": 16},
        {**SMALL, "pad_size": {"height": 160, "width": 170}},
        {"do_resize": False, "do_normalize": False},
        {**SMALL, "do_rescale": False, "image_mean": [100.0, 110.0, 120.0], "image_std": [50.0, 60.0, 70.0]},
    ],
)
def test_images(pair, options: dict) -> None:
    ours, theirs = (cls(**options) for cls in pair)
    found, expected = ours(random_images(), return_tensors="pt"), theirs(random_images(), return_tensors="pt")
    assert torch.equal(found.pixel_mask, expected["pixel_mask"])
    assert found.pixel_values.shape == expected["pixel_values"].shape
    step = 1.01 / (255 * 0.224) if options.get("do_rescale", True) else 1.01 / 50  # one level of 256
    assert (found.pixel_values - expected["pixel_values"]).abs().max() < step


@pytest.mark.parametrize(
    ("options", "table"),
    [
        ({}, None),
        ({"ignore_index": 255}, None),
        ({"ignore_index": 3}, None),
        ({"ignore_index": 255, "do_reduce_labels": True}, None),
        ({"ignore_index": 255}, {0: 7, 1: 7, 2: 3, 3: 0, 4: 9}),
        ({"ignore_index": 255, "do_reduce_labels": True}, {1: 7, 2: 3, 3: 1, 4: 9}),
        ({"ignore_index": 0}, {1: 0, 2: 0, 3: 1, 4: 0}),
        ({"ignore_index": 3}, {0: 3, 1: 7, 2: 3, 4: 1}),
        ({"ignore_index": 0}, [{1: 7, 2: 3, 3: 1, 4: 9}, {1: 5, 2: 5, 3: 5, 4: 5}]),
    ],
)
def test_maps(pair, options: dict, table) -> None:
    ours, theirs = (cls(**SMALL, **options) for cls in pair)
    if options.get("ignore_index") is None:  # there the reference cannot pad masks
        batches = [(random_images()[:1], maps()[:1])]
    else:
        batches = [(random_images(), maps())]
    for images, labels in batches:
        found = ours(images, labels, table, return_tensors="pt")
        expected = theirs(images, labels, table, return_tensors="pt")
        for name in ("mask_labels", "class_labels"):
            assert len(found[name]) == len(expected[name])
            for mine, wanted in zip(found[name], expected[name], strict=True):
                assert mine.dtype == wanted.dtype
                assert torch.equal(mine, wanted)


def test_settings_files_go_both_ways(pair, tmp_path) -> None:
    ours, theirs = pair
    options = {**SMALL, "ignore_index": 255, "do_reduce_labels": True, "num_labels": 9}
    theirs(**options).save_pretrained(tmp_path / "theirs")
    assert ours.from_pretrained(tmp_path / "theirs") == ours(**options)
    ours(**options).save_pretrained(tmp_path / "ours")
    read = theirs.from_pretrained(tmp_path / "ours")
    for name, value in options.items():
        assert getattr(read, name) == value or dict(getattr(read, name)) == value


def outputs(seed: int) -> SimpleNamespace:
    torch.manual_seed(seed)
    masks = F.interpolate(torch.randn(2, 9, 6, 8), size=(24, 32), mode="bicubic") * 4
    return SimpleNamespace(class_queries_logits=torch.randn(2, 9, 6) * 3, masks_queries_logits=masks)


@pytest.mark.parametrize("target_sizes", [None, SIZES])
@pytest.mark.parametrize("seed", range(3))
class TestLegacy:
    """With `legacy=True` results are those of the reference, number for number."""

    def test_semantic(self, pair, seed: int, target_sizes) -> None:
        ours, theirs = (cls() for cls in pair)
        found = ours.post_process_semantic_segmentation(outputs(seed), target_sizes, legacy=True)
        expected = theirs.post_process_semantic_segmentation(outputs(seed), target_sizes)
        for mine, wanted in zip(found, expected, strict=True):
            assert mine.dtype == wanted.dtype
            assert mine.shape == wanted.shape
            assert (mine != wanted).float().mean() < 1e-4
        (found, _) = ours.post_process_semantic_segmentation(
            outputs(seed), target_sizes, return_segmentation_scores=True, legacy=True
        )
        (expected, _) = theirs.post_process_semantic_segmentation(
            outputs(seed), target_sizes, return_segmentation_scores=True
        )
        assert torch.allclose(found.segmentation_scores, expected.segmentation_scores, atol=1e-5)

    @pytest.mark.parametrize("threshold", [0.1, 0.5, 0.999])
    @pytest.mark.parametrize("kind", [{}, {"return_binary_maps": True}, {"return_coco_annotation": True}])
    def test_instances(self, pair, seed: int, target_sizes, threshold: float, kind: dict) -> None:
        ours, theirs = (cls() for cls in pair)
        options = {"threshold": threshold, "target_sizes": target_sizes, **kind}
        found = ours.post_process_instance_segmentation(outputs(seed), **options, legacy=True)
        expected = theirs.post_process_instance_segmentation(outputs(seed), **options)
        for mine, wanted in zip(found, expected, strict=True):
            assert mine["segments_info"] == wanted["segments_info"]
            if kind.get("return_coco_annotation"):
                assert mine["segmentation"] == wanted["segmentation"]
            else:
                assert mine["segmentation"].dtype == wanted["segmentation"].dtype
                assert torch.equal(mine["segmentation"], wanted["segmentation"])

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"threshold": 0.2, "overlap_mask_area_threshold": 0.3},
            {
                "threshold": 0.2,
                "mask_threshold": 0.2,
                "overlap_mask_area_threshold": 0.1,
                "label_ids_to_fuse": {0, 1, 2},
            },
            {"threshold": 0.9999},
        ],
    )
    def test_panoptic(self, pair, seed: int, target_sizes, options: dict) -> None:
        ours, theirs = (cls() for cls in pair)
        options = {**options, "target_sizes": target_sizes}
        found = ours.post_process_panoptic_segmentation(outputs(seed), **options, legacy=True)
        expected = theirs.post_process_panoptic_segmentation(outputs(seed), **options)
        for mine, wanted in zip(found, expected, strict=True):
            assert mine["segments_info"] == wanted["segments_info"]
            assert mine["segmentation"].dtype == wanted["segmentation"].dtype
            assert torch.equal(mine["segmentation"], wanted["segmentation"])


def test_results_agree_with_the_reference_where_it_is_right(pair) -> None:
    """Far from borders and without overlaps, on a grid that the reference does not squeeze, both must say the same."""
    ours, theirs = (cls(**SMALL) for cls in pair)
    masks = torch.full((1, 3, 24, 32), -9.0)
    masks[0, 0, :12], masks[0, 1, 12:, :16], masks[0, 2, 12:, 16:] = 9, 9, 9
    classes = F.one_hot(torch.tensor([[1, 0, 1]]), 4) * 9.0
    model_outputs = SimpleNamespace(class_queries_logits=classes, masks_queries_logits=masks)
    sizes = [(96, 128)]
    inner = torch.ones(96, 128, dtype=torch.bool)
    inner[44:52], inner[48:, 60:68] = False, False
    found = ours.post_process_panoptic_segmentation(model_outputs, target_sizes=sizes)[0]
    expected = theirs.post_process_panoptic_segmentation(model_outputs, target_sizes=sizes)[0]
    assert found["segments_info"] == expected["segments_info"]
    assert torch.equal(found["segmentation"][inner], expected["segmentation"][inner])
    found = ours.post_process_semantic_segmentation(model_outputs, target_sizes=sizes)[0]
    expected = theirs.post_process_semantic_segmentation(model_outputs, target_sizes=sizes)[0]
    assert torch.equal(found[inner], expected[inner])
    found = ours.post_process_instance_segmentation(model_outputs, target_sizes=sizes, return_binary_maps=True)[0]
    expected = theirs.post_process_instance_segmentation(model_outputs, target_sizes=sizes, return_binary_maps=True)[0]
    key = lambda result: sorted(map(str, result["segmentation"][:, inner].float().tolist()))  # noqa: E731
    assert key(found) == key(expected)
    assert sorted(r["label_id"] for r in found["segments_info"]) == sorted(
        r["label_id"] for r in expected["segments_info"]
    )
