"""The folder in which command-line tests run: tiny checkpoints under the names of published ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers.tiny_checkpoints import working_in
from tests.integration.cli_case import save_checkpoints


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with tiny checkpoints."""
    root = tmp_path_factory.mktemp("cli")
    save_checkpoints(root)
    return root


@pytest.fixture(scope="module")
def workspace(checkpoints: Path) -> Iterator[Path]:
    """The folder with tiny checkpoints, as the working folder."""
    torch.set_num_threads(1)  # fastest for tiny models
    with working_in(checkpoints):
        yield checkpoints
