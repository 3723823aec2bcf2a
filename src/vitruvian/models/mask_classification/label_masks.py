"""Segmentation maps (one number per pixel) to binary masks, one for each class or object, with labels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from vitruvian.errors import InputError, VitruvianWarning


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
