"""The two ways of a function in `vitruvian.kernels`: its twin in plain torch, and its kernel.

Kernels run on a CUDA device in bfloat16 or, with TRITON_INTERPRET=1 and Triton installed, on the CPU in float32.
"""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
CAN_RUN = INTERPRETED or torch.cuda.is_available()
WAYS = ["twin", pytest.param("kernel", marks=pytest.mark.skipif(not CAN_RUN, reason="no CUDA and no interpreter"))]


class Way:
    """Makes random tensors for a way, and compares."""

    def __init__(self, name: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_gpu = name == "kernel" and not INTERPRETED
        self.generator = torch.Generator().manual_seed(0)
        if name == "kernel" and INTERPRETED:
            monkeypatch.setattr(module, "takes_kernel", lambda *tensors, **options: True)

    def randn(self, *shape: int, scale: float = 1.0) -> Tensor:
        made = torch.randn(shape, generator=self.generator) * scale
        return made.to("cuda", torch.bfloat16) if self.on_gpu else made

    def close(self, got: Tensor, want: Tensor) -> None:
        assert got.shape == want.shape
        error = (got.float() - want.float()).abs().max() / want.float().abs().max()
        assert error < (3e-2 if self.on_gpu else 1e-5), f"{error:.2g}"
