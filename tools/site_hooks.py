"""Hooks of the documentation site (mkdocs.yml).

- The navigation has a section for each table of docs/index.md, with the pages that the table links.
- Files outside of docs/ that index.md links, such as CONTRIBUTING.md, become pages of the site.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#]+)")  # the target of a Markdown link, without its heading
HEADING_OR_ROW = re.compile(r"^## (.+)$|^\| \[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "recipes/README.md": "recipes.md",
    "benchmarks/results/README.md": "benchmark-results.md",
}

# Shapes such as [B][N, 4] in docstrings look like references; they stay as they are.
logging.getLogger("mkdocs.plugins.mkdocs_autorefs").setLevel(logging.ERROR)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation from index.md."""
    sections: dict[str, list[dict[str, str]]] = {}
    for heading, title, target in HEADING_OR_ROW.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")):
        if heading:
            pages = sections.setdefault(heading, [])
        else:
            pages.append({title: PAGES.get(target.removeprefix("../"), target)})
    config.nav = [{"Home": "index.md"}, *({title: pages} for title, pages in sections.items())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are outside of docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Translate links from places in the repository to places in the site."""
    places = {page: source for source, page in PAGES.items()}
    folder = posixpath.dirname(places.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    here = posixpath.dirname(page.file.src_uri)

    def translate(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        target = PAGES.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(target, here or ".")

    return LINK.sub(translate, markdown)
