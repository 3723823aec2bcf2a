"""Rules that no linter checks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FOLDERS = ("src", "tests", "docs", "benchmarks", "examples", "tools", ".ci")
KINDS = {".py", ".md", ".toml", ".txt", ".json", ".yaml", ".yml", ".html", ".js", ".css", ".sh", ""}
# Absolute paths of one machine; built from parts so that this file passes its own test.
LOCAL_PATH = re.compile(
    r"(?<![\w.:/~-])/(?:" + "|".join(("home", "root", "work", "Users", "mnt")) + r")/\w|[A-Z]:\\\\?Users"
)


def texts() -> list[Path]:
    """Return the text files of the project; `.git` is a file in git worktrees."""
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path for path in found if path.suffix in KINDS and path.stat().st_size < 2**20)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_local_paths() -> None:
    found = []
    for path in texts():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{name_of(path)}: {match.group()}" for match in LOCAL_PATH.finditer(text)]
    assert not found


def test_no_modules_for_unrelated_helpers() -> None:
    assert not [name_of(path) for path in SOURCES if path.stem in ("utils", "util", "helpers", "misc", "common")]


def test_sources_do_not_use_the_shared_folder_or_the_reference() -> None:
    pattern = re.compile(r"^\s*(?:import|from)\s+(?:transformers|torchvision|cv2)\b|\.\./shared", re.MULTILINE)
    assert not [name_of(path) for path in SOURCES if pattern.search(path.read_text(encoding="utf-8"))]


SPELLING = re.compile(r"colour|centre|centring|grey|picture", re.IGNORECASE)


def misspelled(text: str) -> list[str]:
    """Return the words with another spelling than ours: color, center, gray, image."""
    return SPELLING.findall(text)


def test_spelling() -> None:
    found = {name_of(path): misspelled(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert not {name: words for name, words in found.items() if words}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the Colour of pixel centres", ["Colour", "centre"]),
        ("greyscale pictures", ["grey", "picture"]),
    ],
)
def test_pattern_of_spelling(text: str, words: list[str]) -> None:
    assert misspelled(text) == words


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("open('/ho" + "me/ann/x')", True),
        ("C:\\Us" + "ers\\ann", True),
        ("https://a.b/ho" + "me/x", False),
        ("~/work", False),
    ],
)
def test_pattern_of_local_paths(text: str, bad: bool) -> None:
    assert bool(LOCAL_PATH.search(text)) == bad
