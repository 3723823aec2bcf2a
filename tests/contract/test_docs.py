"""The code in README and docs runs, with tiny checkpoints under the names of the published ones.

The command line parses shell commands that call `vitruvian`, so that every option in them exists.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitruvian
from tests.helpers.cached_detections import cached_detections
from tests.helpers.markdown_code import fenced_blocks, python_blocks
from tests.helpers.tiny_checkpoints import SHUFFLE, THIN, save_mask2former, save_sam2, save_sapiens2, working_in
from tests.integration.ray_cluster import only_cluster
from vitruvian.cli.app import program, run
from vitruvian.files.video import VideoWriter
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.training.config import TrainConfig, read_training_config

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
CODE_PAGES = [
    pytest.param(
        page,
        id=str(page.relative_to(ROOT)),
        marks=[pytest.mark.timeout(900)] if page.name == "scale.md" else [],
    )
    for page in PAGES
    if python_blocks(page)
]
MAX_IMAGES, MAX_IMAGE_BYTES = 30, 150_000


def shell_commands(text: str) -> list[list[str]]:
    """Split a block into commands; a trailing backslash joins lines, and a pipe or redirection ends a command."""
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = next((i for i, word in enumerate(words) if word in ("|", ">", "<", "&&")), len(words))
            commands.append(words[:end])
            words = words[end + 1 :]
    return [words for words in commands if words]


# Each command once, with a page that has it.
COMMANDS = [
    pytest.param(list(words[1:]), id=f"{page.relative_to(ROOT)}-{' '.join(words)[:70]}")
    for words, page in {
        tuple(words): page
        for page in PAGES
        for _, text in fenced_blocks(page, "sh")
        for words in shell_commands(text)
        if words[0] == "vitruvian"
    }.items()
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Work in a folder with tiny checkpoints, a short video and the examples."""
    root = tmp_path_factory.mktemp("docs")
    save_sapiens2(root)
    save_albedo(root / "runs/albedo/model")
    save_sam2(root)
    save_mask2former(root)
    set_person_label(root / "facebook/mask2former-swin-small-coco-instance")
    shutil.copytree(ROOT / "examples", root / "examples")
    write_video(root / "clip.mp4", root / "examples/astronaut.jpg")
    with working_in(root), cached_detections():
        yield


def save_albedo(folder: Path) -> None:
    """Write an albedo checkpoint; the Hub has none."""
    torch.manual_seed(0)
    config = Sapiens2Config(**(THIN | {"num_labels": 3, "head_config": SHUFFLE}))
    vitruvian.Sapiens2ForAlbedoEstimation(config).save_pretrained(folder)
    vitruvian.Sapiens2ImageProcessor(do_pad=True).save_pretrained(folder)


def set_person_label(folder: Path) -> None:
    """Rename class 0 of a checkpoint to `person`, as in COCO."""
    config = vitruvian.Mask2FormerConfig.from_pretrained(folder)
    names = dict(config.id2label) | {0: "person"}
    vitruvian.Mask2FormerForUniversalSegmentation.from_pretrained(folder, id2label=names).save_pretrained(folder)


def write_video(path: Path, image: Path) -> None:
    """Write a video of three small frames."""
    with Image.open(image) as opened:
        small = np.asarray(opened.convert("RGB").resize((96, 96)))
    with VideoWriter(path, 25, (96, 96)) as writer:
        for shift in range(3):
            writer.write(np.ascontiguousarray(np.roll(small, shift, axis=1)))


@pytest.mark.filterwarnings("ignore:model. not given")  # the built-in model runs
@pytest.mark.parametrize("page", CODE_PAGES)
def test_code_of_a_page_runs(page: Path, workspace: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")  # a new cluster, also where one runs
    names: dict[str, Any] = {}
    with only_cluster() if page.name == "scale.md" else contextlib.nullcontext():
        for block in python_blocks(page):  # blocks use the names of those before
            for source, _ in block.steps:
                exec(compile(source, f"{page.name}:{block.line}", "exec"), names)
    assert names


@pytest.mark.parametrize("words", COMMANDS)
def test_command_line_parses(words: list[str], workspace: None) -> None:
    parse_command(words)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["pose", "a.jpg", "--no-such"], "--no-such"), (["no-such"], "no-such"), (["pose"], "sources")],
)
def test_unknown_commands_and_options_are_rejected(words: list[str], complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):  # a usage error of click or typer
        parse_command(words)


@pytest.mark.parametrize(
    "words", [one for one in COMMANDS if any(word.startswith("examples/") for word in one.values[0])]
)
@pytest.mark.filterwarnings("default::vitruvian.errors.VitruvianWarning")  # that the built-in model runs
def test_command_line_runs(words: list[str], workspace: None) -> None:
    model = words[words.index("--model") + 1] if "--model" in words else "builtin"
    if model != "builtin" and not Path(model).is_dir():
        pytest.skip("the page trains its model")
    assert run([*words, "--quiet"]) == 0


def parse_command(words: list[str]) -> None:
    """Parse a command without running it."""
    command: Any = program()
    context: Any = None
    name = "vitruvian"
    while hasattr(command, "commands"):  # a group
        context = command.make_context(name, list(words), parent=context)
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, list(words), parent=context)


@pytest.mark.parametrize("page", [page for page in PAGES if fenced_blocks(page, "toml")], ids=lambda page: page.name)
def test_configurations_parse(page: Path, tmp_path: Path) -> None:
    for _, text in fenced_blocks(page, "toml"):
        (tmp_path / "run.toml").write_text(text, encoding="utf-8")
        assert isinstance(read_training_config(tmp_path / "run.toml"), TrainConfig)


def test_pages_link_to_pages_that_exist() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)]+)", page.read_text(encoding="utf-8")):
            name, _, heading = target.partition("#")
            linked = page.parent / name if name else page
            assert linked.exists(), f"{page.name} links to {target}"
            assert not heading or heading in headings(linked), f"{page.name} links to {target}"


def headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub names them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def test_index_links_every_page() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in sorted(DOCS.glob("*.md")):
        assert page.name == "index.md" or f"]({page.name})" in text, f"index.md does not link {page.name}"


def test_images_are_few_small_and_used() -> None:
    images = [path for path in sorted((DOCS / "images").rglob("*")) if path.is_file()]
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(images) <= MAX_IMAGES
    for image in images:
        assert image.stat().st_size < MAX_IMAGE_BYTES, image.name
        assert image.relative_to(DOCS).as_posix() in text, f"{image.name} is not used"


def test_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
