"""Streams: which devices have them. tests/unit/pipelines/engine runs pipelines with them."""

from __future__ import annotations

import torch

from vitruvian.cuda.streams import CudaStream, upload_stream

CPU = torch.device("cpu")


def test_upload_streams_are_for_cuda_devices_and_reused() -> None:
    assert upload_stream(CPU, None) is None
    held = CudaStream(CPU)
    assert upload_stream(CPU, held) is held
    assert upload_stream(torch.device("mps"), held) is None
