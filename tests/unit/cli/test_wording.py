"""Messages of the library in the words of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vitruvian.cli import program
from vitruvian.cli.wording import NAMES, OTHERWISE, SAYINGS, as_typed, option_names
from vitruvian.errors import InputError, MissingExtraError

PROGRAM = program()


@pytest.fixture
def pose() -> Iterator[None]:
    names = option_names(PROGRAM, ["--debug", "pose", "photo.jpg"])
    token = NAMES.set(lambda: names)
    yield
    NAMES.reset(token)


@pytest.mark.usefixtures("pose")
@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("device: 'x' asked for. Use device='cpu'.", "--device: 'x' asked for. Use --device cpu."),
        ("model: got none. Pass model='a/b' or 'c'.", "--model: got none. Pass --model a/b or c."),
        ('boxes and people="whole": got both.', "--boxes and --people whole: got both."),
        ("max_people: expected 1. Pass boxes=… or finder=….", "--max-people: expected 1. Pass --boxes or --finder."),
        ("boxes[2]: expected a box.", "--boxes number 3: expected a box."),
        ('memory: got none. Pass batch_size="auto", or less.', "memory: got none. Pass --batch-size auto, or less."),
        ("photo.jpg: expected boxes, got none.", "photo.jpg: expected boxes, got none."),
        ("https://a.org/x?threshold=3: no.", "https://a.org/x?threshold=3: no."),
        ("tile_hw: pose has no tiles.", "tile_hw: pose has no tiles."),
        ("K and fov: of another command.", "K and fov: of another command."),
        ("a/b: private. Check the name, or pass token=…", "a/b: private. Check the name, or set HF_TOKEN."),
        ("two\n  lines", "two lines"),
    ],
)
def test_what_is_said(said: str, meant: str) -> None:
    assert as_typed(InputError(said)) == meant


def test_where_no_command_runs() -> None:
    assert as_typed("device: expected device='cpu'.") == "device: expected device='cpu'."
    assert as_typed(KeyError()) == "KeyError"
    assert as_typed(MissingExtraError("av", "video", "videos")).endswith('pip install "vitruvian[video]"')


def test_names_are_those_of_the_command() -> None:
    assert option_names(PROGRAM, ["pointmap", "a.jpg", "-K", "1,2,3,4"])["K"] == "--intrinsics"
    assert option_names(PROGRAM, ["models", "info", "x"])["revision"] == "--revision"
    assert "model" not in option_names(PROGRAM, ["evaluate", "run", "set"])  # an argument, no option
    assert option_names(PROGRAM, ["no-such"]) == {}
    assert option_names(PROGRAM, []) == option_names(PROGRAM, ["--debug"])


def test_a_word_that_was_typed_means_itself() -> None:
    assert "boxes" in option_names(PROGRAM, ["pose", "photos"])
    assert "boxes" not in option_names(PROGRAM, ["pose", "boxes"])  # a folder of that name


def test_other_names_exist() -> None:
    known: set[str] = set()
    for name in PROGRAM.commands:  # type: ignore[attr-defined]
        known |= option_names(PROGRAM, [name]).keys()
    assert set(OTHERWISE) <= known


def test_sayings_are_those_of_the_library() -> None:
    """Each is still said somewhere: in one piece, or with its end on the next line."""
    from pathlib import Path

    import vitruvian

    root = Path(vitruvian.__file__).parent
    files = [path for path in root.rglob("*.py") if path.name != "wording.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    for said, _ in SAYINGS:
        assert said[:16] in text or "checkpoint for" in said, said
