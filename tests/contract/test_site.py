"""The documentation site builds without warnings, and has what its navigation promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; broken links, missing anchors and pages outside of the navigation are errors."""
    pytest.importorskip("mkdocs", reason='the site needs pip install "vitruvian[docs]"')
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_built(site: Path) -> None:
    sources = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    for page in [*sources, Path("contributing.html"), Path("recipes.html"), Path("benchmarks-results.html")]:
        assert (site / page).is_file(), page


def test_reference_has_signatures_and_docstrings(site: Path) -> None:
    text = (site / "api" / "pipelines.html").read_text(encoding="utf-8")
    assert 'id="vitruvian.pipelines.pipeline"' in text
    assert "Load a checkpoint for a task" in text
    assert 'id="vitruvian.results.Pose"' in (site / "api" / "results.html").read_text(encoding="utf-8")


def test_search_finds_tasks_and_classes(site: Path) -> None:
    titles = {entry["title"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    assert {"Pose", "Matting", "Speed"} <= titles
    assert any("Mask2FormerForUniversalSegmentation" in title for title in titles)
