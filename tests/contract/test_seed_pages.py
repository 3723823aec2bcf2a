"""The examples of the pages that define the public API run with only the import changed."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pages import Block, python_blocks
from tests.shared import SHARED
from tests.tiny_checkpoints import save_sapiens2, working_in

PICTURE = SHARED / "photos" / "wholebody" / "images" / "000000000785.jpg"


def page(start: str) -> Path | None:
    return next(iter(sorted((SHARED / "seeds").glob(f"{start}*"))), None) if SHARED.is_dir() else None


def blocks(start: str) -> list[Any]:
    found = page(start)
    return [pytest.param(b, id=f"{start}-line{b.line}") for b in python_blocks(found)] if found else []


@pytest.fixture(scope="module")
def sapiens2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("hub")
    save_sapiens2(root)
    with working_in(root):
        yield root


def run(block: Block, namespace: dict[str, Any], pictures: dict[str, str]) -> None:
    """Run a block with its import changed and its picture here; check what doctests say they print."""
    for source, want in block.steps:
        code = re.sub(r"\bfrom transformers", "from vitruvian", source)
        for address, path in pictures.items():
            code = code.replace(address, path)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"line {block.line}", "single" if want else "exec"), namespace)
        if want:
            assert printed.getvalue() == want


@pytest.mark.parametrize("block", blocks("000"))
def test_sapiens2_page(block: Block, sapiens2: Path) -> None:
    torch.manual_seed(0)
    size = (427, 640)
    namespace: dict[str, Any] = {}
    if PICTURE.is_file():
        from PIL import Image

        with Image.open(PICTURE) as picture:
            size = (picture.height, picture.width)
    # The pages use the result of another example by this name.
    namespace["segmentation"] = torch.randint(0, 29, size)
    run(block, namespace, {"http://images.cocodataset.org/val2017/000000004016.jpg": str(PICTURE)})
