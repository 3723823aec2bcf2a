"""Tiny MaskFormer and Mask2Former learn a few images by heart, from the processor to panoptic quality."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.shared_folder import SHARED
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.modeling import Mask2FormerForUniversalSegmentation
from vitruvian.models.mask2former.processing import Mask2FormerImageProcessor
from vitruvian.models.maskformer.configuration import DetrConfig, MaskFormerConfig
from vitruvian.models.maskformer.modeling import MaskFormerForInstanceSegmentation
from vitruvian.models.maskformer.processing import MaskFormerImageProcessor
from vitruvian.models.swin.configuration import SwinConfig
from vitruvian.training.evaluation import PanopticQuality

PHOTOS = SHARED / "photos" / "coco"
GOAL = 0.8
SIDE = 96
VOID = 255  # segment id of unlabelled pixels

LabeledImage = tuple[Image.Image, np.ndarray, list[dict[str, int]]]  # photo, map of segment ids, their labels


def drawn_shapes() -> list[LabeledImage]:
    """Three images of discs and boxes on two kinds of ground, with two objects of one class in each."""
    y, x = np.mgrid[:SIDE, :SIDE]
    random = np.random.default_rng(0)
    images = []
    for number in range(3):
        ground = y > 40 + 12 * number
        ids = np.where(ground, 2, 1)
        centers = [(24, 24 + 6 * number), (66, 30), (40 + 8 * number, 70)]
        disc, box, other = (
            (y - cy) ** 2 + (x - cx) ** 2 < 15**2 if kind else (abs(y - cy) < 13) & (abs(x - cx) < 13)
            for (cy, cx), kind in zip(centers, (True, False, number % 2), strict=True)
        )
        for segment, shape in enumerate((disc, box, other), start=3):
            ids[shape] = segment
        colors = np.array([(0, 0, 0), (90, 140, 220), (70, 150, 60), (220, 60, 50), (230, 200, 60), (200, 80, 160)])
        pixels = colors[ids] + random.normal(0, 8, (SIDE, SIDE, 3))
        labels = [0, 1, 2, 3, 2 if number % 2 else 3]
        segments = [{"id": segment, "label_id": label} for segment, label in enumerate(labels, start=1)]
        images.append((Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), ids, segments))
    return images


def photos() -> list[LabeledImage]:
    """Two real photographs with their panoptic truth, small, with segments too small to see left unlabelled."""
    table = json.loads((PHOTOS / "panoptic.json").read_text())
    files = {row["id"]: row["file_name"] for row in table["images"]}
    chosen = [row for row in table["annotations"] if row["image_id"] in (322, 326)]
    categories = sorted({segment["category_id"] for row in chosen for segment in row["segments_info"]})
    images = []
    for row in chosen:
        image = Image.open(PHOTOS / files[row["image_id"]]).convert("RGB").resize((128, SIDE))
        png = Image.open(PHOTOS / row["file_name"]).convert("RGB").resize((128, SIDE), Image.Resampling.NEAREST)
        codes = np.asarray(png).astype(np.int64) @ np.array([1, 256, 65536])
        ids, segments = np.full(codes.shape, VOID), []
        for segment in row["segments_info"]:
            inside = codes == segment["id"]
            if inside.sum() >= 150:
                ids[inside] = len(segments) + 1
                segments.append({"id": len(segments) + 1, "label_id": categories.index(segment["category_id"])})
        images.append((image, ids, segments))
    return images


def backbone() -> SwinConfig:
    return SwinConfig(
        image_size=SIDE,
        embed_dim=24,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 4, 8],
        window_size=6,
        drop_path_rate=0.0,
        initializer_range=0.1,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )


def mask2former(num_labels: int) -> tuple[Any, Any]:
    config = Mask2FormerConfig(
        backbone_config=backbone(),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=64,
        encoder_layers=1,
        decoder_layers=4,
        num_attention_heads=4,
        dim_feedforward=64,
        num_queries=12,
        train_num_points=576,
        num_labels=num_labels,
    )
    return Mask2FormerForUniversalSegmentation(config), Mask2FormerImageProcessor(do_resize=False, ignore_index=VOID)


def maskformer(num_labels: int) -> tuple[Any, Any]:
    decoder = DetrConfig(
        d_model=64, decoder_layers=2, decoder_ffn_dim=128, decoder_attention_heads=4, num_queries=12, dropout=0.0
    )
    config = MaskFormerConfig(
        backbone_config=backbone(),
        decoder_config=decoder,
        fpn_feature_size=64,
        mask_feature_size=32,
        use_auxiliary_loss=True,
        init_std=0.05,
        num_labels=num_labels,
    )
    return MaskFormerForInstanceSegmentation(config), MaskFormerImageProcessor(do_resize=False, ignore_index=VOID)


def panoptic_quality(model: Any, processor: Any, batch: Any, images: list[LabeledImage]) -> float:
    """Score the model on the images it learns."""
    model.eval()
    with torch.no_grad():
        outputs = model(pixel_values=batch["pixel_values"], pixel_mask=batch["pixel_mask"])
    sizes = [ids.shape for _, ids, _ in images]
    found = processor.post_process_panoptic_segmentation(outputs, target_sizes=sizes, pixel_mask=batch["pixel_mask"])
    quality = PanopticQuality()
    for result, (_, ids, segments) in zip(found, images, strict=True):
        truth = np.where(ids == VOID, 0, ids)
        quality.update(result["segmentation"], result["segments_info"], truth, segments)
    model.train()
    return quality.compute().pq


@pytest.mark.parametrize(
    ("source", "make", "rate"),
    [(drawn_shapes, maskformer, 5e-4), (photos if PHOTOS.is_dir() else drawn_shapes, mask2former, 2e-3)],
)
def test_overfits_a_few_images(source: Any, make: Any, rate: float) -> None:
    images = source()
    torch.manual_seed(0)
    model, processor = make(1 + max(row["label_id"] for _, _, segments in images for row in segments))
    batch = processor(
        [image for image, _, _ in images],
        [ids for _, ids, _ in images],
        [{row["id"]: row["label_id"] for row in segments} for _, _, segments in images],
        mask_format="bool",
        return_tensors="pt",
    )
    assert [len(masks) for masks in batch["mask_labels"]] == [len(segments) for _, _, segments in images]
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.02, total_iters=50)
    quality = panoptic_quality(model, processor, batch, images)
    assert not quality > 0.3  # it must learn here; NaN where nothing is found
    for step in range(1, 1201):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0:
            quality = panoptic_quality(model, processor, batch, images)
            if quality > GOAL:
                break
    assert quality > GOAL, f"panoptic quality {quality:.3f} after {step} steps, loss {loss:.3f}"
