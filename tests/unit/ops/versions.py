"""Every version of an operation: plain torch, Triton on a GPU, and Triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from vitruvian.ops import dispatch

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
NO_INTERPRETER = pytest.mark.skipif(not dispatch.IS_INTERPRETED, reason="needs Triton and TRITON_INTERPRET=1")
VERSIONS = [
    "torch",
    pytest.param("triton", marks=NO_GPU),
    pytest.param("interpreter", marks=NO_INTERPRETER),
]


def every_version(test: Callable[..., Any]) -> Any:
    """Run a test with each version of the operations it calls; it takes `version` for `randn`."""

    @pytest.mark.parametrize("version", VERSIONS)
    @wraps(test)
    def run(*args: Any, version: str, **kwargs: Any) -> None:
        with torch.no_grad():
            if version == "torch":
                with dispatch.disable_triton():
                    test(*args, version=version, **kwargs)
            elif version == "interpreter":
                with dispatch.interpret_triton():
                    test(*args, version=version, **kwargs)
            else:
                test(*args, version=version, **kwargs)

    return run


def randn(*shape: int, version: str = "torch", seed: int = 0) -> Tensor:
    """Random numbers where and as the version computes: bfloat16 on the GPU, float32 elsewhere."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to("cuda", torch.bfloat16) if version == "triton" else values


def assert_close(got: Tensor, want: Tensor, *, tolerance: float | None = None) -> None:
    """Compare up to the rounding of the data type."""
    assert got.shape == want.shape
    limit = tolerance or (2e-2 if got.dtype == torch.bfloat16 else 1e-5)
    error = (got.float() - want.float()).abs().max() / (1 + want.float().abs().max())
    assert error < limit, f"relative error {error:.2g}"
