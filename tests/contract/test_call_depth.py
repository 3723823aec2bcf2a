"""How many Python frames lie between the engine and an attention kernel: a reader must follow each of them."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from torch.nn import functional as F

from tests.helpers.tiny_models import SIZE_HW, tiny_task
from vitruvian import Sapiens2ImageProcessor, pipeline


def test_frames_from_run_many_to_an_attention_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    attend, stacks = F.scaled_dot_product_attention, []

    def record(*args: Any, **kwargs: Any) -> Tensor:
        stacks.append([frame.name for frame in traceback.extract_stack()[:-1]])
        return attend(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    processor = Sapiens2ImageProcessor(size=dict(zip(("height", "width"), SIZE_HW, strict=True)))
    pose = pipeline("pose", tiny_task(), processor=processor, detect="whole")
    list(pose([np.zeros((*SIZE_HW, 3), np.uint8)] * 2))
    frames = stacks[0][stacks[0].index("run_many") :]
    # 8 of them are those of torch.nn.Module, two for each call: task model, encoder, layer and attention. One decides
    # whether the layer is checkpointed.
    assert len(frames) <= 15, "\n".join(frames)
