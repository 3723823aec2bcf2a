"""Segmentation maps (one number per pixel) to binary masks, one for each class or object, with labels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitruvian.errors import InputError, VitruvianWarning


def read_label_map(source: object) -> Tensor:
    """Read a map from PIL (gray, palette or 16/32-bit), numpy or torch as int64 [H, W]."""
    if isinstance(source, Image.Image):
        if source.mode not in ("1", "L", "P", "I", "I;16", "I;16B", "I;16L"):
            raise InputError(
                f"segmentation map: expected one number per pixel, got an image of mode {source.mode}. "
                "Turn colors into class or object numbers first."
            )
        source = np.array(source)
    if isinstance(source, np.ndarray) and source.dtype.kind in "ui" and source.dtype.itemsize > 1:
        source = source.astype(np.int64)  # torch lacks some unsigned and all foreign-endian types
    if not isinstance(source, (np.ndarray, Tensor)):
        raise InputError(f"segmentation map: expected PIL, numpy or torch, got {type(source).__name__}.")
    values = torch.as_tensor(source)
    if values.ndim == 3 and 1 in (values.shape[0], values.shape[2]):
        values = values[0] if values.shape[0] == 1 else values[..., 0]  # [H, W]
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"segmentation map: expected the shape [H, W], got {list(values.shape)}.")
    whole = values.long()
    if values.is_floating_point() and not torch.equal(whole.to(values.dtype), values):
        raise InputError("segmentation map: expected integers, got fractions. Resize it without smoothing.")
    return whole


def masks_from_map(
    labels: Tensor,
    *,
    instance_id_to_semantic_id: Mapping[int, int] | None = None,
    ignore_index: int | None = None,
    do_reduce_labels: bool = False,
    num_labels: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Split a map [H, W] into bool masks [N, H, W] and their classes [N], in the order of the numbers in the map.

    | argument                     | numbers in the map | pixels without a mask               | class of a mask       |
    |------------------------------|--------------------|-------------------------------------|-----------------------|
    | neither of the two below     | classes            | `ignore_index`                      | the number            |
    | `do_reduce_labels`           | classes            | `ignore_index` and 0                | the number − 1        |
    | `instance_id_to_semantic_id` | objects            | `ignore_index`                      | that of the table     |
    | both                         | objects            | 0, `ignore_index` outside the table,| that of the table − 1 |
    |                              |                    | objects of class 0                  |                       |

    Classes in the table are those of the dataset, before any reduction; `ignore_index` is compared with the map only.
    """
    if do_reduce_labels and ignore_index is None:
        raise InputError("ignore_index: expected a number with do_reduce_labels=True, got None. 255 is common.")
    table = instance_id_to_semantic_id
    values = [
        value
        for value in torch.unique(labels).tolist()
        if value != ignore_index or (do_reduce_labels and table is not None and value in table)
    ]
    if table is None:
        classes = {value: value for value in values}
    else:
        missing = [value for value in values if value not in table and not (do_reduce_labels and value == 0)]
        if missing:
            raise InputError(
                f"instance_id_to_semantic_id: expected a class for each object in the map, got none for {missing[:8]}. "
                "Add them, or set ignore_index to the number of unlabeled pixels."
            )
        classes = {value: int(table[value]) for value in values if value in table}
    if do_reduce_labels:
        classes = {value: label - 1 for value, label in classes.items() if label != 0 and value != 0}
    wrong = sorted({label for label in classes.values() if label < 0 or (num_labels and label >= num_labels)})
    if wrong:
        allowed = "at least 0" if num_labels is None else f"from 0 to {num_labels - 1} (num_labels={num_labels})"
        message = (
            f"segmentation map: expected classes {allowed}, got {wrong[:8]}. "
            "Set ignore_index to the number of unlabeled pixels, or do_reduce_labels where 0 is the background."
        )
        if wrong[0] < 0:
            raise InputError(message)
        warnings.warn(message, VitruvianWarning, stacklevel=2)
    ids = torch.tensor(list(classes), dtype=torch.int64, device=labels.device)
    masks = labels == ids[:, None, None]  # [N, H, W]
    return masks, torch.tensor(list(classes.values()), dtype=torch.int64, device=labels.device)
