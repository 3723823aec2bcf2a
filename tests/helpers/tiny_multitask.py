"""A tiny multi-task model, packed like the built-in one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers.tiny_models import DECONVOLUTION, SCALE, tiny_config
from vitruvian import hub
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask, save_multitask

DENSE = {"upsample_out_channels": [16, 12, 8], "conv_out_channels": [8]}
FEW = -4.2  # logit bias with which a random head detects a few people
HEADS = {
    "pose": DECONVOLUTION,
    "seg": DENSE,
    "normal": DENSE,
    "pointmap": DENSE | SCALE,
    "matting": DENSE,
    "albedo": DENSE,
    "people": {"upsample_out_channels": [12], "conv_out_channels": [8]},
}


def tiny_multitask(*tasks: str) -> Sapiens2MultiTask:
    """Return a model of some tasks, by default all, with random weights: inputs of 48×32, dense maps of half that."""
    torch.manual_seed(5)
    model = Sapiens2MultiTask(tiny_config(), {task: HEADS[task] for task in tasks or HEADS}).eval()
    if "people" in model.tasks:
        with torch.no_grad():
            model.task_model("people").decode_head.predictor.bias[0] = FEW
    return model


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *tasks: str) -> Path:
    """Pack a tiny model into a folder and use it as the built-in model."""
    save_multitask(tiny_multitask(*tasks), folder)
    monkeypatch.setattr(hub, "BUILTIN_FOLDER", folder)
    return folder
