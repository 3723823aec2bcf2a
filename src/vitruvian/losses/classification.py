"""Loss of a classifier of whole images."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def classification_loss(logits: Tensor, labels: Tensor, problem_type: str | None = None) -> Tensor:
    """Compare logits [B, K] with labels.

    Args:
        logits: Scores of the classes.
        labels: Class of each image [B], or one number for each class [B, K].
        problem_type: ``"regression"``: mean squared error; ``"single_label_classification"``: cross-entropy;
            ``"multi_label_classification"``: binary cross-entropy of each class. By default the first for one class,
            the second for integer labels, the third for others.
    """
    if problem_type is None:
        single = not labels.is_floating_point()
        labeled = "single_label_classification" if single else "multi_label_classification"
        problem_type = "regression" if logits.shape[-1] == 1 else labeled
    if problem_type == "regression":
        return F.mse_loss(logits, labels.to(logits.dtype).view_as(logits))
    if problem_type == "single_label_classification":
        return F.cross_entropy(logits, labels.flatten().long())
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
