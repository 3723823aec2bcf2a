"""The history of a video session on a disk, instead of in memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from vitruvian.errors import InputError

_FILE_BYTES = 256 << 20  # of a file with history
_ALIGNMENT = 64  # of tensors in it, in bytes


class HistoryFiles:
    """Memory-mapped tensors in temporary files of a folder, which are loaded when they are read.

    The files have no name: their space is free when the last tensor is.

    Args:
        folder: An existing folder on a disk with enough space.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        if not self._folder.is_dir():
            raise InputError(f"history_folder: expected an existing folder, got {str(folder)!r}.")
        self._file, self._used = torch.empty(0, dtype=torch.uint8), 0

    def store(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to a file; return the copy, on the CPU."""
        values = tensor.detach().cpu().contiguous()
        size = values.nbytes
        if self._used + size > len(self._file):
            self._file, self._used = self._map_file(max(size, _FILE_BYTES)), 0
        copy = self._file[self._used : self._used + size].view(values.dtype).view(values.shape)
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return copy.copy_(values)

    def _map_file(self, size: int) -> Tensor:
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder) as file:
                if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a signal later
                    os.posix_fallocate(file.fileno(), 0, size)
                return torch.from_file(file.name, shared=True, size=size, dtype=torch.uint8)
        except OSError as error:
            raise InputError(f"history_folder: expected {size >> 20} MiB of free space, got: {error}.") from error
