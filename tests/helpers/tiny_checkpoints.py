"""Tiny checkpoints in folders with the names of published ones, so that published examples run unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import vitruvian
from tests.helpers.tiny_models import shuffle_head
from vitruvian.models.sapiens2.configuration import Sapiens2Config

# The published input size, so that examples print the same shapes; one narrow layer, so that they are fast.
THIN = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads_per_layer": [1],
    "intermediate_size": 8,
    "image_size": [1024, 768],
}
WIDE = THIN | {"hidden_size": 1024}  # the width that examples print
DECONVOLUTION = {"conv_out_channels": [4]}
SHUFFLE = shuffle_head(8, 4, 4, 4, kernel_size=1)
SCALE = {"scale_conv_out_channels": [4, 4, 4], "scale_final_hidden_sizes": [8, 4]}


def sapiens2_checkpoints() -> dict[str, tuple[str, dict[str, Any], bool]]:
    """Return Hub name → class, configuration beside the encoder's, and whether images are padded."""
    from vitruvian.human import FLIP_PAIRS

    pose = DECONVOLUTION | {"upsample_out_channels": [4, 4]}
    seg = DECONVOLUTION | {"upsample_out_channels": [4, 4, 4, 4]}
    flips = [list(pair) for pair in FLIP_PAIRS]
    return {
        "facebook/sapiens2-pretrain-0.4b": ("Sapiens2Model", WIDE, False),
        "facebook/sapiens2-pose-0.4b": (
            "Sapiens2ForPoseEstimation",
            {"num_labels": 308, "head_config": pose, "flip_pairs": flips},
            False,
        ),
        "facebook/sapiens2-seg-0.4b": (
            "Sapiens2ForSemanticSegmentation",
            {"num_labels": 29, "head_config": seg},
            False,
        ),
        "facebook/sapiens2-normal-0.4b": (
            "Sapiens2ForNormalEstimation",
            {"num_labels": 3, "head_config": SHUFFLE},
            True,
        ),
        "facebook/sapiens2-pointmap-0.4b": (
            "Sapiens2ForPointmapEstimation",
            {"num_labels": 3, "head_config": SHUFFLE | SCALE},
            True,
        ),
        "facebook/sapiens2-matting-1b": ("Sapiens2ForImageMatting", {"num_labels": 4, "head_config": SHUFFLE}, False),
    }


def save_sapiens2(root: Path) -> None:
    """Write all Sapiens2 checkpoints that the pages name."""
    torch.manual_seed(0)
    for name, (cls, fields, pads) in sapiens2_checkpoints().items():
        model = getattr(vitruvian, cls).from_config(Sapiens2Config(**(THIN | fields)))
        model.save_pretrained(root / name)
        vitruvian.Sapiens2ImageProcessor(do_pad=pads).save_pretrained(root / name)


SWIN = {
    "image_size": 64,
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 2, 2],
    "window_size": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
SMALL_SIZE = {"shortest_edge": 64, "longest_edge": 128}


def save_maskformer(root: Path) -> None:
    """Write the MaskFormer checkpoints that the pages name, with the number and width of queries that they print."""
    torch.manual_seed(0)
    decoder = {"d_model": 256, "decoder_layers": 1, "decoder_ffn_dim": 16, "decoder_attention_heads": 4}
    for name in ("facebook/maskformer-swin-base-ade", "facebook/maskformer-swin-base-coco"):
        config = vitruvian.MaskFormerConfig(
            backbone_config=vitruvian.SwinConfig(**SWIN),
            decoder_config=vitruvian.DetrConfig(num_queries=100, **decoder),
            fpn_feature_size=32,
            mask_feature_size=32,
            num_labels=5,
        )
        vitruvian.MaskFormerForInstanceSegmentation(config).save_pretrained(root / name)
        vitruvian.MaskFormerImageProcessor(size=SMALL_SIZE, num_labels=5).save_pretrained(root / name)


def save_mask2former(root: Path) -> None:
    """Write the Mask2Former checkpoints that the pages name."""
    torch.manual_seed(0)
    for name in ("coco-instance", "ade-semantic", "cityscapes-panoptic"):
        config = vitruvian.Mask2FormerConfig(
            backbone_config=vitruvian.SwinConfig(**SWIN),
            feature_size=32,
            mask_feature_size=32,
            hidden_dim=32,
            encoder_feedforward_dim=32,
            dim_feedforward=32,
            encoder_layers=1,
            decoder_layers=2,
            num_attention_heads=4,
            num_queries=10,
            num_labels=5,
        )
        folder = root / f"facebook/mask2former-swin-small-{name}"
        vitruvian.Mask2FormerForUniversalSegmentation(config).save_pretrained(folder)
        vitruvian.Mask2FormerImageProcessor(size=SMALL_SIZE, num_labels=5).save_pretrained(folder)


def save_sam2(root: Path) -> None:
    """Write the SAM 2 checkpoints that the pages name."""
    from tests.families.sam2 import SIDE, tiny, video_fields

    torch.manual_seed(0)
    for name in ("facebook/sam2.1-hiera-large", "danelcsb/sam2.1_hiera_tiny"):
        vitruvian.Sam2Model(tiny()).save_pretrained(root / name)
        images = vitruvian.Sam2ImageProcessor(
            size={"height": SIDE, "width": SIDE}, mask_size={"height": SIDE // 4, "width": SIDE // 4}
        )
        vitruvian.Sam2Processor(images).save_pretrained(root / name)
    size = {"height": SIDE, "width": SIDE}
    name = "facebook/sam2.1-hiera-tiny"
    vitruvian.Sam2VideoModel(vitruvian.Sam2VideoConfig.from_dict(video_fields())).save_pretrained(root / name)
    videos = vitruvian.Sam2VideoVideoProcessor(size=size)
    vitruvian.Sam2VideoProcessor(vitruvian.Sam2ImageProcessor(size=size), videos).save_pretrained(root / name)


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Run a block in another working directory."""
    with contextlib.chdir(folder):
        yield
