"""What the parity tests of Swin, MaskFormer and Mask2Former share."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def shake(model: nn.Module, seed: int = 0) -> Any:
    """Give every parameter and running statistic a value that matters, and switch to evaluation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            std = 0.3 if "bias_table" in name else 0.08
            value.add_(torch.randn(value.shape, generator=generator) * std)
        for name, value in model.named_buffers():
            if name.endswith("running_mean"):
                value.add_(torch.randn(value.shape, generator=generator) * 0.1)
            elif name.endswith("running_var"):
                value.add_(torch.rand(value.shape, generator=generator) * 0.2)
    return model.eval()


def hand_over(model: Any, cls: Any, folder: Path) -> Any:
    """Save a model of one library and open it with a class of the other."""
    model.save_pretrained(folder)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return cls.from_pretrained(folder).eval()


def assert_same(got: Tensor, want: Tensor, tolerance: float = 2e-5, what: str = "") -> None:
    """Compare to the size of the largest value."""
    assert got.shape == want.shape, what
    error = (got.detach().double() - want.detach().double()).abs().max() / (1 + want.detach().double().abs().max())
    assert error <= tolerance, f"{what}: relative difference {error:.2g}"


def assert_same_fields(got: Any, want: Any, names: tuple[str, ...], tolerance: float = 2e-5) -> None:
    """Compare tensors and tuples of tensors by name."""
    for name in names:
        left, right = getattr(got, name), getattr(want, name)
        left, right = ([left], [right]) if isinstance(left, Tensor) else (left, right)
        assert len(left) == len(right), name
        for one, other in zip(left, right, strict=True):
            assert_same(one, other, tolerance, name)


def assert_same_settings(ours: Any, theirs: Any, path: str = "") -> None:
    """Compare what two configurations write, for all fields that both have and that mean something here."""
    left = ours if isinstance(ours, dict) else json.loads(ours.to_json_string())
    right = theirs if isinstance(theirs, dict) else json.loads(theirs.to_json_string(use_diff=False))
    shared = (left.keys() & right.keys()) - {"dtype", "architectures", "vitruvian_version", "transformers_version"}
    assert len(shared) > 5
    for name in shared:
        if isinstance(left[name], dict) and "model_type" in left[name]:
            assert_same_settings(left[name], right[name], f"{path}{name}.")
        else:
            assert left[name] == right[name], f"{path}{name}"


def random_images(height: int, width: int, count: int = 2, seed: int = 1) -> Tensor:
    """A batch of noise."""
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def objects(height: int, width: int, numbers: tuple[int, ...], num_labels: int, seed: int = 2) -> dict[str, Any]:
    """Float masks of boxes, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    masks, classes = [], []
    for number in numbers:
        stack = torch.zeros(number, height, width)
        for mask in stack:
            y, x = (int(torch.randint(0, side // 2, (), generator=generator)) for side in (height, width))
            mask[y : y + height // 3, x : x + width // 3] = 1
        masks.append(stack)
        classes.append(torch.randint(0, num_labels, (number,), generator=generator))
    return {"mask_labels": masks, "class_labels": classes}
