"""Take docs/images/serve-page.jpg and serve-points.jpg: the page of `vitruvian serve` with the built-in model.

    python tools/page_images.py

Needs Chromium, and Playwright for Python, which the extra dev has.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright import sync_api as playwright

from vitruvian.hub import BUILTIN_FOLDER

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
SIZE = {"width": 1280, "height": 800}
WAIT = 60_000  # milliseconds


def main() -> None:
    """Start a server and a browser, and take the images."""
    if BROWSER is None:
        raise SystemExit("Chromium is not installed.")
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "vitruvian", "serve", "--port=0", f"--data={data}"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            address = next(found[0] for line in server.stderr if (found := re.search(r"http://[\d.:]+", line)))
            with playwright.sync_playwright() as tool:
                browser = tool.chromium.launch(executable_path=BROWSER, args=FLAGS)
                take(browser, address, "serve-page", "light", BUILTIN_FOLDER / "astronaut.jpg", show_parts)
                take(browser, address, "serve-points", "dark", BUILTIN_FOLDER / "standing.jpg", show_points)
                browser.close()
        finally:
            server.terminate()
            server.wait()


def take(browser: Any, address: str, name: str, scheme: str, image: Path, show: Any) -> None:
    """Open an image, show a result, and write what is seen."""
    page = browser.new_page(viewport=SIZE, color_scheme=scheme)
    page.set_default_timeout(WAIT)
    page.goto(address)
    page.wait_for_selector("[data-task=pose]")
    page.set_input_files("#file", image)
    show(page)
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path, animations="disabled")
    Image.open(path).convert("RGB").save(path.with_suffix(".jpg"), quality=78, optimize=True, progressive=True)
    path.unlink()
    page.close()


def show_parts(page: Any) -> None:
    """Show body parts behind the slider."""
    page.click("[data-task=parts]")
    page.wait_for_selector("[data-task=parts][data-status=done]")
    page.get_by_role("button", name="Compare").click()


def show_points(page: Any) -> None:
    """Show points in 3D, in the colors of their normals, from the side."""
    page.click("[data-task=pointmap]")
    page.wait_for_selector("[data-task=pointmap][data-status=done]")
    page.click("#open-3d")
    page.wait_for_selector("#space-view[data-points]")
    page.get_by_role("button", name="Normals", exact=True).last.click()
    page.get_by_role("switch", name="Normal lines").click()
    box = page.locator("#space-view canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 50, y, steps=8)
    page.mouse.up()
    page.wait_for_timeout(1000)  # the view comes to rest


if __name__ == "__main__":
    main()
