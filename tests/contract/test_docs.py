"""The code in README and docs runs as it is written, against tiny checkpoints named like the real ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pages import Block, python_blocks
from tests.tiny_checkpoints import save_mask2former, save_sam2, save_sapiens2, working_in

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(page, block, id=f"{page.relative_to(ROOT)}-line{block.line}")
    for page in PAGES
    for block in python_blocks(page)
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, dict[str, Any]]]:
    """A folder with tiny checkpoints and the examples; blocks of one page share their names."""
    root = tmp_path_factory.mktemp("docs")
    save_sapiens2(root)
    save_sam2(root)
    save_mask2former(root)
    shutil.copytree(ROOT / "examples", root / "examples")
    with working_in(root):
        yield {}


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_block_runs(page: Path, block: Block, here: dict[Path, dict[str, Any]]) -> None:
    names = here.setdefault(page, {})
    for source, _ in block.steps:
        exec(compile(source, f"{page.name}:{block.line}", "exec"), names)
    assert names


def test_pages_link_to_pages_that_exist() -> None:
    import re

    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
