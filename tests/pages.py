"""Code blocks of Markdown pages, made runnable."""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Block:
    """One block of code: the line it starts at, its statements, and what each should print (None: anything)."""

    line: int
    steps: list[tuple[str, str | None]]


def python_blocks(page: Path) -> list[Block]:
    """Return the fenced Python blocks of a page, and those of an unnamed language that show a Python prompt."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^```(?:(?:python|py)\n|\n(?=>>>))(.*?)^```", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(line, steps(match[1])))
    return found


def steps(code: str) -> list[tuple[str, str | None]]:
    """Split a block into statements with expected output (doctest), or one statement without."""
    if ">>>" in code:
        return [(example.source, example.want) for example in doctest.DocTestParser().get_examples(code)]
    return [(without_output(code), None)]


def without_output(code: str) -> str:
    """Drop the lines of a block that are output rather than code: those at which it does not compile."""
    lines = code.splitlines()
    while True:
        try:
            compile("\n".join(lines), "block", "exec")
        except SyntaxError as error:
            number = (error.lineno or 1) - 1
            lines[number] = ""
        else:
            return "\n".join(lines)
