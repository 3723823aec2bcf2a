"""The reference implementation with its image processors, which need torchvision.

The registry has CUDA builds of torchvision only. Its image functions are plain torch; the compiled operators that it
registers on import are not used here, so declaring their names is enough to import it beside a CPU build of torch.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import torch

DECLARED: list[torch.library.Library] = []


def load_reference() -> ModuleType:
    """Import transformers with torchvision."""
    if importlib.util.find_spec("torchvision") is None:
        raise SystemExit("These benchmarks compare with transformers' own processors: run them with `make bench`.")
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        DECLARED.append(library)
        import torchvision  # noqa: F401
    import transformers

    return transformers
