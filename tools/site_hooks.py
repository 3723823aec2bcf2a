"""Hooks of the documentation site (mkdocs.yml).

- The navigation has a section for each table of docs/index.md, with the pages that the table links.
- Files outside of docs/ that a table links, such as CONTRIBUTING.md, become pages of the site.
- Options of the command line do not break after their hyphens.
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

INLINE_CODE = re.compile(r"<code>[^<]*</code>")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")

# Shapes such as [B][N, 4] in docstrings look like references; they stay as they are.
logging.getLogger("mkdocs.plugins.mkdocs_autorefs").setLevel(logging.ERROR)


def page_of(path: str) -> str:
    """Return the page of a file of the repository: docs/pose.md → pose.md, recipes/README.md → recipes.md."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path.removesuffix(".md").removesuffix("/README").lower().replace("/", "-") + ".md"


def read_index() -> list[tuple[str, str, str]]:
    """Return the headings and the rows of the tables in index.md: heading, or title and path in the repository."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    found = HEADING_OR_ROW.findall(text)
    return [(heading, title, posixpath.normpath(f"docs/{target}")) for heading, title, target in found]


def _guides() -> set[str]:
    """Return the pages that searches show first: all but the API reference and the pages of the project."""
    return {page_of(path) for heading, _, path in read_index() if not heading and re.fullmatch(r"docs/[^/]+", path)}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation from index.md."""
    config.nav = [{"Home": "index.md"}]
    for heading, title, path in read_index():
        if heading:
            config.nav.append({heading: []})
        else:
            next(iter(config.nav[-1].values())).append({title: page_of(path)})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are outside of docs/."""
    for heading, _, path in read_index():
        if not heading and not path.startswith("docs/"):
            files.append(File.generated(config, page_of(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Translate links between files of the repository to links between pages of the site; rank guides first."""
    if page.file.src_uri not in _guides():
        page.meta["search"] = {"boost": 0.5}
    source = Path(str(page.file.abs_src_path)).relative_to(ROOT).as_posix()

    def translate(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        target = page_of(target) if target.endswith(".md") else target.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(translate, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keep options such as --overwrite on one line."""
    return INLINE_CODE.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)
