"""The examples of transformers' model pages run with only the import changed.

Everything that they download is local: tiny checkpoints in folders of the same names, images of the sizes that the
examples print, and fake modules `requests` and `httpx` that return them.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitruvian
from tests.helpers.markdown_code import Block, python_blocks
from tests.helpers.shared_folder import SHARED
from tests.helpers.tiny_checkpoints import save_mask2former, save_maskformer, save_sam2, save_sapiens2, working_in

# End of a URL in the examples → size of the image (width, height).
IMAGES = {
    "000000004016.jpg": (640, 427),
    "000000039769.jpg": (640, 480),
    "ADE_val_00000001.jpg": (683, 512),
    "can-handle.png": (676, 338),
    "truck.jpg": (1800, 1200),
    "dog-sam.png": (1000, 800),
    "groceries.jpg": (800, 534),
    "sam-car.png": (900, 700),
}


def page(start: str) -> Path | None:
    return next(iter(sorted((SHARED / "seeds").glob(f"{start}*"))), None) if SHARED.is_dir() else None


def blocks(start: str) -> list[Any]:
    found = page(start)
    return [pytest.param(b, id=f"{start}-line{b.line}") for b in python_blocks(found) if b.steps] if found else []


def image_file(url: str) -> io.BytesIO:
    """Return the image of a URL as a file."""
    size = next(size for end, size in IMAGES.items() if url.endswith(end))
    values = np.random.default_rng(0).integers(0, 255, (size[1] // 8 + 1, size[0] // 8 + 1, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).resize(size).save(file, format="PNG")
    file.seek(0)
    return file


@contextlib.contextmanager
def fake_network() -> Iterator[None]:
    """Replace `requests.get(url, stream=True).raw` and `httpx.stream("GET", url)`."""
    requests, httpx = ModuleType("requests"), ModuleType("httpx")
    requests.get = lambda url, stream=False: SimpleNamespace(raw=image_file(url))  # type: ignore[attr-defined]
    httpx.stream = lambda method, url: contextlib.nullcontext(image_file(url))  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in ("requests", "httpx")}
    sys.modules |= {"requests": requests, "httpx": httpx}
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Run a block with its import changed, and compare its output."""
    for source, want in block.steps:
        code = re.sub(r"\bfrom transformers", "from vitruvian", source).replace(", device=0)", ")")
        for address in re.findall(r'load_image\("(.*?)"\)|image_url = "(.*?)"', code):
            found = address[0] or address[1]
            path = Path(found.rsplit("/", 1)[1]).resolve()
            path.write_bytes(image_file(found).read())
            code = code.replace(found, str(path)) if "pipeline" in code or "load_image" in code else code
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), fake_network():
            exec(compile(code, f"line {block.line}", "single" if want else "exec"), namespace)
        if want:
            assert printed.getvalue() == want


def checkpoints(save: Callable[[Path], None]) -> Any:
    @pytest.fixture(scope="module")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
        root = tmp_path_factory.mktemp("hub")
        save(root)
        with working_in(root):
            yield {}

    return folder


sapiens2 = checkpoints(save_sapiens2)
sam2 = checkpoints(save_sam2)
maskformer = checkpoints(save_maskformer)
mask2former = checkpoints(save_mask2former)


@pytest.mark.parametrize("block", blocks("000"))
def test_sapiens2_page(block: Block, sapiens2: dict[str, Any]) -> None:
    torch.manual_seed(0)
    # The page uses the result of an earlier example.
    run(block, {"segmentation": torch.randint(0, 29, (427, 640))})


@pytest.mark.skipif(not blocks("002"), reason="../shared is absent")
def test_sam2_page(sam2: dict[str, Any]) -> None:
    sam2["Sam2Config"] = vitruvian.Sam2Config  # one example does not import it
    for parameters in blocks("002"):
        torch.manual_seed(0)
        run(parameters.values[0], sam2)  # examples share variables


@pytest.mark.parametrize("block", blocks("003"))
def test_mask2former_page(block: Block, mask2former: dict[str, Any]) -> None:
    torch.manual_seed(0)
    run(block, {})


@pytest.mark.parametrize("block", blocks("004"))
def test_maskformer_page(block: Block, maskformer: dict[str, Any]) -> None:
    torch.manual_seed(0)
    run(block, {})
