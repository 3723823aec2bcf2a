"""Keypoints from heatmaps on a GPU in one launch, and without a question to the device.

The twin in plain torch is `decode_heatmaps` in `models/sapiens2/decoding.py`.
"""

from __future__ import annotations

from torch import Tensor

from vitruvian.kernels.available import is_traced, takes_kernel

MOST_TAPS = 11  # of the Gaussian that smooths maps
MOST_COLUMNS = 1024  # of a map


def decodes_without_sync(like: Tensor, *, kernel_size: int) -> bool:
    """Tell whether the kernel takes maps on the device and of the data type of `like` [..., W], and no wider."""
    if like.requires_grad or is_traced() or kernel_size > MOST_TAPS or not 1 <= like.shape[-1] <= MOST_COLUMNS:
        return False
    return takes_kernel(like, name="peaks", wide=True)


def find_peaks(heatmaps: Tensor, *, kernel_size: int) -> Tensor:
    """Return x and y in heatmap pixels, and the score, of each of the maps [B, J, H, W]: float32 [B, J, 3]."""
    from vitruvian.kernels import peaks_triton

    return peaks_triton.find(heatmaps.contiguous(), kernel_size=kernel_size)
