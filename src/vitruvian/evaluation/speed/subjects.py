"""What can be benchmarked: models with random weights, the reference with the same ones, and inputs for both.

sapiens2-pose-0.4b · sam2-tiny-encoder · sam2-tiny-decoder · maskformer-swin-small · mask2former-swin-small · …
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitruvian.errors import InputError, near_matches
from vitruvian.model import Model

SAPIENS_TASKS = {"pose": "PoseEstimation", "seg": "SemanticSegmentation", "normal": "NormalEstimation"}
SAPIENS_TASKS |= {"pointmap": "PointmapEstimation"}
SAPIENS_FIELDS = {"pose": "heatmaps", "seg": "logits", "normal": "normals", "pointmap": "pointmaps"}
SAPIENS_SIZES = ("0.1b", "0.4b", "0.8b", "1b", "5b")
SAM_SIZES = ("tiny", "small", "base-plus", "large")
# Channels, layers and heads of the stages of Swin, and the side of its windows.
SWINS: dict[str, tuple[int, list[int], list[int], int]] = {
    "tiny": (96, [2, 2, 6, 2], [3, 6, 12, 24], 7),
    "small": (96, [2, 2, 18, 2], [3, 6, 12, 24], 7),
    "base": (128, [2, 2, 18, 2], [4, 8, 16, 32], 12),
    "large": (192, [2, 2, 18, 2], [6, 12, 24, 48], 12),
}
STAGES = ["stage1", "stage2", "stage3", "stage4"]


@dataclass(frozen=True)
class Given:
    """What a subject is measured with.

    Attributes:
        batch: Pictures at once.
        size_hw: Height and width of the pictures.
        prompts: Prompts a picture, for decoders of prompts.
        dtype: Data type of weights and inputs.
        device: Where to run.
    """

    batch: int
    size_hw: tuple[int, int]
    prompts: int
    dtype: torch.dtype
    device: torch.device

    def pixels(self) -> Tensor:
        """Random pictures [B, 3, H, W]."""
        return torch.randn(self.batch, 3, *self.size_hw, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class Subject:
    """A model, how both libraries are asked for its results, and the size of pictures it was made for."""

    name: str
    build: Callable[[Given], Model]
    inputs: Callable[[Given], dict[str, Any]]
    ask: Callable[[Any, dict[str, Any]], Any]  # of a model (ours or the reference's) and inputs
    size_hw: tuple[int, int]
    prompts: int = 0


def names() -> list[str]:
    """All names that `subject` knows."""
    found = [f"sapiens2-{task}-{size}" for task in SAPIENS_TASKS for size in SAPIENS_SIZES]
    found += [f"sam2-{size}-{part}" for size in SAM_SIZES for part in ("encoder", "decoder")]
    return found + [f"{family}-swin-{size}" for family in ("maskformer", "mask2former") for size in SWINS]


def subject(name: str) -> Subject:
    """Return what a name stands for."""
    if name not in names():
        raise InputError(f"--model: there is no {name!r}.{near_matches(name, names())}")
    family, middle, last = name.split("-", 1)[0], *name.split("-", 1)[1].rsplit("-", 1)
    if family == "sapiens2":
        return sapiens(name, middle, last)
    if family == "sam2":
        return sam_encoder(name, middle) if last == "encoder" else sam_decoder(name, middle)
    return segmenter(name, family, last)


def sapiens(name: str, task: str, size: str) -> Subject:
    """A Sapiens2 model of a task."""

    def build(given: Given) -> Model:
        config = package().Sapiens2Config.variant(size, task=task, image_size=list(given.size_hw))
        return fresh(getattr(package(), f"Sapiens2For{SAPIENS_TASKS[task]}"), config, given)

    return Subject(
        name, build, pictures, lambda model, inputs: model(**inputs)[SAPIENS_FIELDS[task]], size_hw=(1024, 768)
    )


def sam_encoder(name: str, size: str) -> Subject:
    """The vision encoder of SAM 2."""
    return Subject(
        name,
        lambda given: sam(size, given),
        pictures,
        lambda model, inputs: tuple(model.get_image_embeddings(**inputs)),
        size_hw=(1024, 1024),
    )


def sam_decoder(name: str, size: str) -> Subject:
    """The prompt encoder and mask decoder of SAM 2, for prompts of one point each."""

    def inputs(given: Given) -> dict[str, Any]:
        h, w = given.size_hw[0] // 16, given.size_hw[1] // 16
        shapes = ((32, 4 * h, 4 * w), (64, 2 * h, 2 * w), (256, h, w))
        embeddings = [torch.randn(given.batch, *shape, device=given.device, dtype=given.dtype) for shape in shapes]
        span = torch.tensor((given.size_hw[1], given.size_hw[0]), device=given.device)
        points = torch.rand(given.batch, given.prompts, 1, 2, device=given.device) * span
        labels = torch.ones(given.batch, given.prompts, 1, dtype=torch.long, device=given.device)
        return {"input_points": points, "input_labels": labels, "image_embeddings": embeddings}

    def ask(model: Any, given: dict[str, Any]) -> Any:
        out = model(**given)
        return out.pred_masks, out.iou_scores

    return Subject(name, lambda given: sam(size, given), inputs, ask, size_hw=(1024, 1024), prompts=64)


def segmenter(name: str, family: str, size: str) -> Subject:
    """MaskFormer or Mask2Former on Swin."""

    def build(given: Given) -> Model:
        channels, depths, heads, window = SWINS[size]
        swin = package().SwinConfig(
            embed_dim=channels, depths=depths, num_heads=heads, window_size=window, out_features=STAGES
        )
        if family == "maskformer":
            config = package().MaskFormerConfig(backbone_config=swin)
            return fresh(package().MaskFormerForInstanceSegmentation, config, given)
        config = package().Mask2FormerConfig(backbone_config=swin)
        return fresh(package().Mask2FormerForUniversalSegmentation, config, given)

    def ask(model: Any, inputs: dict[str, Any]) -> Any:
        out = model(**inputs)
        return out.class_queries_logits, out.masks_queries_logits

    return Subject(name, build, pictures, ask, size_hw=(800, 1088))


def sam(size: str, given: Given) -> Model:
    """A SAM 2 for pictures of a size."""
    config = package().Sam2Config.variant(size, image_size=given.size_hw)
    return fresh(package().Sam2Model, config, given)


def package() -> Any:
    """Our package, whose public names are found as they are asked for."""
    return importlib.import_module("vitruvian")


def pictures(given: Given) -> dict[str, Any]:
    """Pictures alone."""
    return {"pixel_values": given.pixels()}


@torch.no_grad()
def fresh(cls: type[Model], config: Any, given: Given) -> Model:
    """Build a model with random weights of which each matters and none grows: no zero biases, no unit scales."""
    torch.manual_seed(0)
    model = cls.from_config(config, device=given.device).eval()
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        if parameter.ndim == 1:
            parameter.add_(noise * 0.1)
        else:
            parameter.mul_(0.5).add_(noise * (0.5 * parameter[0].numel() ** -0.5))
    return model.to(given.dtype).requires_grad_(False)


def has_reference() -> bool:
    """Tell whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def reference_of(model: Model, given: Given) -> Any:
    """The reference's model with the same weights, opened from our files."""
    library = importlib.import_module("transformers")
    logging = importlib.import_module("transformers.utils.logging")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(known_keys(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
        theirs = getattr(library, type(model).__name__).from_pretrained(folder, dtype=given.dtype)
    return theirs.eval().to(given.device)


def known_keys(config: Any) -> Any:
    """Leave out of a configuration what some releases of the reference refuse and all can do without."""
    if not isinstance(config, dict):
        return config
    return {key: known_keys(value) for key, value in config.items() if key not in ("stage_names", "vitruvian_version")}
