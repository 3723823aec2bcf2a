"""Code blocks of Markdown pages."""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Block:
    """A block of Python: its first line, its statements, and the expected output of each (None: any)."""

    line: int
    steps: list[tuple[str, str | None]]


def python_blocks(page: Path) -> list[Block]:
    """Return the fenced Python blocks of a page, and those of an unnamed language that show a Python prompt."""
    return [Block(line, _statements(code)) for line, code in _blocks(page, r"(?:(?:python|py)\n|\n(?=>>>))")]


def fenced_blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Return the first line and the text of the fenced blocks of a language."""
    return _blocks(page, rf"{language}\n")


def _blocks(page: Path, opening: str) -> list[tuple[int, str]]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{opening}(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start()) + 2, match[1]) for match in found]


def _statements(code: str) -> list[tuple[str, str | None]]:
    """Split a doctest into statements with their output; other code is one statement without."""
    if ">>>" in code:
        return [(example.source, example.want) for example in doctest.DocTestParser().get_examples(code)]
    return [(_without_output(code), None)]


def _without_output(code: str) -> str:
    """Remove the lines that do not compile: output rather than code."""
    lines = code.splitlines()
    while True:
        try:
            compile("\n".join(lines), "block", "exec")
        except SyntaxError as error:
            number = (error.lineno or 1) - 1
            lines[number] = ""
        else:
            return "\n".join(lines)
