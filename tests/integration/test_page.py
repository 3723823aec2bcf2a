"""The page of `vitruvian serve` in a real browser, by clicks and keys. Screenshots are kept in `out/page`."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("av")
pytest.importorskip("playwright", reason="needs Playwright")

from playwright import sync_api as playwright

from tests.helpers.pipelines import sample_image
from tests.helpers.server import ServerProcess, jpeg, local_server
from tests.helpers.tiny_checkpoints import working_in
from tests.unit.files.clips import make_clip
from vitruvian.cli import run
from vitruvian.serving.auth import add_key, read_keys
from vitruvian.serving.settings import Settings

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
]  # fmt: skip
MODELS = {
    "segment": "facebook/sam2.1-hiera-large",
    "track": "facebook/sam2.1-hiera-tiny",
    "panoptic": "facebook/mask2former-swin-small-cityscapes-panoptic",
}
SHOTS = Path("out/page").resolve()
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
EXAMPLE = Path(__file__).parents[2] / "src/vitruvian/builtin/astronaut.jpg"
WAIT = 30_000
playwright.expect.set_options(timeout=WAIT)


@pytest.fixture(scope="module")
def server(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = ["--model=builtin", *(f"--model={task}={name}" for task, name in MODELS.items())]
    made = ServerProcess(*models, "--data", tmp_path_factory.mktemp("data"), cwd=checkpoints)
    yield made
    assert made.stop() == 0


@pytest.fixture(scope="module")
def context(server: ServerProcess) -> Iterator[Any]:
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=BROWSER, args=FLAGS)
        made = browser.new_context(viewport=DESKTOP, color_scheme="light", base_url=server.client.address)
        made.set_default_timeout(WAIT)
        made.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.client.address)
        yield made
        browser.close()


@pytest.fixture
def page(context: Any) -> Iterator[Any]:
    """A new tab; no test may leave an error, or something that the policy of the page forbids."""
    made, errors = context.new_page(), []
    made.on("pageerror", lambda error: errors.append(str(error)))
    made.on("console", lambda message: errors.append(message.text) if "Security Policy" in message.text else None)
    made.goto("/")
    made.wait_for_selector("[data-task=pose]")
    yield made
    made.close()
    assert errors == []


def shot(page: Any, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", animations="disabled")


def open_file(page: Any, path: Path | dict[str, Any]) -> None:
    page.set_input_files("#file", path)


def open_example(page: Any) -> None:
    page.click("#empty [data-action=example]")
    done(page, "pose")


def done(page: Any, task: str, status: str = "done") -> None:
    page.wait_for_selector(f"[data-task={task}][data-status={status}]")
    page.evaluate("() => new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)))")


def select(page: Any, task: str) -> None:
    page.click(f"[data-task={task}]")
    done(page, task)


def pixels(page: Any) -> np.ndarray:
    """Return what the stage shows, [H, W, 3]."""
    text = page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>"
        " done(document.querySelector('#canvas').toDataURL()))))"
    )
    with Image.open(io.BytesIO(base64.b64decode(text.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def view(page: Any) -> tuple[float, float, float]:
    """Return where the image begins on the stage, and how many screen pixels one of its pixels has."""
    pixels(page)
    x, y, scale = map(float, page.get_attribute("#stage", "data-view").split(","))
    return x, y, scale


def place(page: Any, x: float, y: float) -> tuple[float, float]:
    """Return where a point of the image, by shares of its sides, is in the window."""
    left, top, scale = view(page)
    box = page.locator("#canvas").bounding_box()
    width, height = map(int, page.locator("#file-size").text_content().split(" × "))
    return box["x"] + left + x * width * scale, box["y"] + top + y * height * scale


def add_box(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag a box around a new object, between two points in shares of the image."""
    page.get_by_role("button", name="New object").click()
    page.get_by_role("button", name="Box", exact=True).click()
    page.mouse.move(*place(page, *start))
    page.mouse.down()
    page.mouse.move(*place(page, *end), steps=3)
    page.mouse.up()


def set_slider(page: Any, label: str, value: float) -> None:
    page.get_by_role("slider", name=label, exact=True).evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input'));"
        " input.dispatchEvent(new Event('change')); }",
        str(value),
    )


def download(page: Any, click: Any) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def clipboard(page: Any) -> str:
    return page.evaluate("() => navigator.clipboard.readText()")  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------ opening


def test_every_way_to_open_an_image(page: Any, tmp_path: Path) -> None:
    page.click("[data-task=segment]")  # nothing runs before a click
    name = page.locator("#file-name")
    page.click("#empty [data-action=example]")
    playwright.expect(name).to_have_text("astronaut.jpg")
    Image.fromarray(sample_image(3, (40, 56))).save(tmp_path / "chosen.png")
    open_file(page, tmp_path / "chosen.png")
    playwright.expect(name).to_have_text("chosen.png")
    assert page.locator("#file-size").text_content() == "56 × 40"
    give = """([event, name, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], name, { type: "image/jpeg" }));
        const made = event === "paste" ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
            : new DragEvent(event, { dataTransfer: data, bubbles: true, cancelable: true });
        document.querySelector("#stage").dispatchEvent(made);
    }"""
    page.evaluate(give, ["dragenter", "dropped.jpg", list(jpeg(1))])
    assert page.locator(".drop-hint").is_visible()
    page.evaluate(give, ["drop", "dropped.jpg", list(jpeg(1))])
    playwright.expect(name).to_have_text("dropped.jpg")
    page.evaluate(give, ["paste", "pasted.jpg", list(jpeg(2))])
    playwright.expect(name).to_have_text("pasted.jpg")
    page.click("#close")
    page.evaluate(
        "async () => { const c = new OffscreenCanvas(20, 10); c.getContext('2d').fillRect(0, 0, 20, 10); await"
        " navigator.clipboard.write([new ClipboardItem({ 'image/png': await c.convertToBlob() })]); }"
    )
    page.click("[data-action=paste]")
    playwright.expect(name).to_have_text("pasted.png")
    page.click("#close")
    page.click("[data-action=camera]")
    page.wait_for_function("() => document.querySelector('#camera video').videoWidth > 0")
    page.click("#camera button[value=photo]")
    playwright.expect(name).to_have_text("photo.jpg")


def test_errors_are_shown_in_place(page: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("no image")
    open_file(page, tmp_path / "notes.jpg")
    playwright.expect(page.locator("#trouble")).to_contain_text("notes.jpg: this browser cannot show it")
    page.get_by_role("button", name="Close the message").click()
    assert page.locator("#trouble").is_hidden()
    open_example(page)
    page.click("#panel summary")
    page.get_by_label("Max people").fill("0")
    page.get_by_label("Max people").blur()
    done(page, "pose", "error")
    assert "max_people: expected greater than or equal to 1" in page.locator("#status [role=alert]").text_content()
    shot(page, "error")
    page.get_by_label("Max people").fill("1")
    page.get_by_label("Max people").blur()
    done(page, "pose")
    assert page.locator("#panel .items li").count() == 1
    page.click("[data-task=instances]")
    note = page.locator("#panel .note")
    playwright.expect(note).to_contain_text("vitruvian serve --model builtin --model instances=facebook/")


def test_a_task_that_failed_runs_again(page: Any) -> None:
    state: dict[str, Any] = {"loading": True, "refusals": 10**6, "after": "0"}
    sent = []

    def models(route: Any) -> None:
        body = route.fetch().json()
        for model in body["models"] if state["loading"] else ():
            model["state"] = "loading"
        route.fulfill(json=body)

    def run_task(route: Any) -> None:
        sent.append(route.request.url.rpartition("/")[2])
        error = {"message": "pose: expected a loaded model, got one that is loading."}
        if state["refusals"]:
            state["refusals"] -= 1
            route.fulfill(status=503, headers={"Retry-After": state["after"]}, json={"error": error})
        else:
            route.continue_()

    page.route("**/v1/models", models)
    page.route(re.compile("/v1/images/[^/]*/"), run_task)
    page.reload()
    page.click("#empty [data-action=example]")
    done(page, "pose", "error")
    playwright.expect(page.locator("#status")).to_contain_text("expected a loaded model")
    assert sent == 6 * ["pose"]  # as often as the server asked for it, within limits
    state |= {"loading": False, "refusals": 0}
    done(page, "pose")  # by itself
    state["refusals"] = 12
    page.click("[data-task=normals]")
    done(page, "normals", "error")
    with page.expect_request("**/normals"):
        page.click("[data-task=normals]")
    done(page, "normals", "error")
    page.get_by_role("button", name="Try again").click()
    done(page, "normals")
    state |= {"refusals": 1, "after": "1"}
    page.click("[data-task=albedo]")
    page.wait_for_selector("[data-task=albedo][data-status=waiting]")
    playwright.expect(page.locator("#status")).to_contain_text("Trying again in 1 s")
    done(page, "albedo")
    state |= {"refusals": 6, "after": "0"}
    page.click("[data-task=segment]")
    page.mouse.click(*place(page, 0.5, 0.5))
    done(page, "segment", "error")
    page.get_by_role("button", name="Try again").click()
    playwright.expect(page.locator("#stage")).to_have_attribute("data-masks", "1")


# ------------------------------------------------------------------------------------------------ results


def test_overlays_compare_zoom_and_hover(page: Any, server: ServerProcess) -> None:
    open_example(page)
    select(page, "parts")
    assert page.locator("#panel .items li").count() > 5
    page.mouse.move(*place(page, 0.4, 0.8))
    tooltip = page.locator("#tooltip")
    assert "Upper Clothing" in tooltip.text_content()
    assert "score 0." in tooltip.text_content() or "score 1.00" in tooltip.text_content()
    shot(page, "parts")
    full = pixels(page)
    set_slider(page, "Opacity", 0)
    plain = pixels(page)
    assert np.abs(full - plain).max() > 40
    set_slider(page, "Opacity", 1)
    opaque = pixels(page)
    page.get_by_role("switch", name="Upper Clothing").click()
    assert np.abs(opaque - pixels(page)).max() > 40
    page.get_by_role("button", name="None of the parts").click()
    np.testing.assert_array_equal(pixels(page), plain)
    page.get_by_role("button", name="All parts").click()
    np.testing.assert_array_equal(pixels(page), opaque)

    page.click("#compare")
    middle = opaque.shape[1] // 2
    halves = pixels(page)
    np.testing.assert_array_equal(halves[:, : middle - 2], plain[:, : middle - 2])
    np.testing.assert_array_equal(halves[:, middle + 2 :], opaque[:, middle + 2 :])
    box = page.locator("#divider").bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 210)
    page.mouse.up()
    np.testing.assert_array_equal(pixels(page)[:, : middle + 190], plain[:, : middle + 190])
    page.focus("#divider")
    stage = page.locator("#stage").bounding_box()
    for key, shown in (("End", plain), ("Home", opaque)):
        page.keyboard.press(key)
        np.testing.assert_array_equal(pixels(page), shown)
        handle = page.locator("#divider .icon").bounding_box()  # never cut off
        assert stage["x"] <= handle["x"] <= stage["x"] + stage["width"] - handle["width"]
    shot(page, "compare")
    page.click("#compare")

    zoom = view(page)[2]
    page.click("#zoom-in")
    page.mouse.move(700, 400)
    page.mouse.wheel(0, -300)
    assert view(page)[2] > 1.5 * zoom
    before = pixels(page)
    page.mouse.down()
    page.mouse.move(760, 430)
    page.mouse.up()
    np.testing.assert_array_equal(pixels(page)[100:400, 200:400], before[70:370, 140:340])
    page.focus("#stage")
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        for _ in range(60):
            page.keyboard.press(f"Shift+{key}")
        left, top, scale = view(page)
        assert 64 - 512 * scale <= left <= stage["width"] - 64  # a part of the image stays in sight
        assert 64 - 512 * scale <= top <= stage["height"] - 64
    page.click("#fit")
    np.testing.assert_array_equal(pixels(page), opaque)

    page.get_by_role("button", name="Show Pose").click()  # beside the parts
    assert page.get_attribute("#stage", "data-layers") == "2"
    pose = server.client.post("/v1/pose", EXAMPLE.read_bytes()).json
    person = max(pose["poses"], key=lambda one: one["box_xyxy"][2] - one["box_xyxy"][0])
    nose = pose["names"].index("nose")
    page.mouse.move(*place(page, *(value / 512 for value in person["keypoints"][nose])))
    assert tooltip.text_content() == f"Nosescore {person['scores'][nose]:.2f}"
    set_slider(page, "Opacity", 0.5)
    page.click("[data-task=pose]")
    assert page.locator("#panel .items .swatch").count() == 0  # colors are those of sides, not of people
    assert page.locator("#panel .legend").inner_text().split() == ["Left", "Right", "Middle"]
    assert page.get_attribute("#stage", "data-layers") == "1"
    shown = pixels(page)
    set_slider(page, "Lowest score", 0.95)
    assert np.abs(shown - pixels(page)).max() > 40


def test_a_matte_over_a_color_and_a_picture(page: Any) -> None:
    open_example(page)
    select(page, "matte")
    x, y = place(page, 0.1, 0.1)
    box = page.locator("#canvas").bounding_box()
    corner = round(y - box["y"]), round(x - box["x"])
    page.get_by_role("button", name="Green").click()
    assert np.abs(pixels(page)[corner] - [0, 177, 64]).max() < 3
    assert "--over '#00b140' --save png,plot" in page.locator("#code").text_content()
    _, body = download(page, page.get_by_role("button", name="Download Drawing", exact=True).click)
    with Image.open(io.BytesIO(body)) as image:
        assert image.getpixel((50, 50)) == (0, 177, 64)
    page.set_input_files("#background-file", {"name": "b.png", "mimeType": "image/png", "buffer": _flat((200, 30, 90))})
    page.wait_for_function("() => document.querySelectorAll('.colors [aria-pressed=true]').length === 0")
    assert np.abs(pixels(page)[corner] - [200, 30, 90]).max() < 3
    shot(page, "matte")
    name, body = download(page, page.get_by_role("button", name="Download the image as shown").click)
    assert name == "astronaut_view.png"
    with Image.open(io.BytesIO(body)) as image:
        assert image.size == (512, 512)
        assert image.convert("RGB").getpixel((50, 50)) == (200, 30, 90)


def _flat(color: tuple[int, int, int]) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (30, 20), color).save(stream, "PNG")
    return stream.getvalue()


def test_points_and_normals_in_3d(page: Any) -> None:
    open_example(page)
    select(page, "pointmap")
    page.mouse.move(*place(page, 0.4, 0.3))
    assert page.locator("#tooltip").text_content().startswith("Depth")
    page.click("#open-3d")
    space = page.locator("#space-view")
    page.wait_for_selector("#space-view[data-points]")
    assert int(space.get_attribute("data-points")) > 10_000
    camera = space.get_attribute("data-view")
    page.mouse.move(700, 400)
    page.mouse.down()
    page.mouse.move(800, 420, steps=3)
    page.mouse.up()
    turned = space.get_attribute("data-view")
    assert turned != camera
    page.focus("#space-view canvas")
    page.keyboard.press("ArrowLeft")
    assert space.get_attribute("data-view") != turned
    drawn = "() => document.querySelector('#space-view canvas').toDataURL('image/jpeg')"
    photo, turned = page.evaluate(drawn), space.get_attribute("data-view")
    page.get_by_role("switch", name="Normal lines").click()
    page.get_by_role("button", name="Normals", exact=True).last.click()
    page.wait_for_selector("#space-view[data-colors=normals]")
    assert page.evaluate(drawn) != photo
    assert space.get_attribute("data-lines") == "true"  # also after the normals of the model have come
    assert space.get_attribute("data-view") == turned
    shot(page, "points")
    _, body = download(page, page.get_by_role("button", name="Download the image as shown").click)
    with Image.open(io.BytesIO(body)) as image:  # the view in 3D
        assert image.size == tuple(page.evaluate("() => [innerWidth - 232 - 320, innerHeight - 52]"))
        assert image.convert("RGB").getpixel((2, 2)) == (246, 246, 248)
    page.set_viewport_size(PHONE)
    tools = page.locator("#space-tools")
    assert tools.evaluate("(bar) => bar.scrollWidth <= bar.clientWidth")
    page.set_viewport_size(DESKTOP)
    page.click("#open-3d")
    assert page.locator("#space").is_hidden()


def test_panoptic_segments_are_switched(page: Any) -> None:
    open_file(page, {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": jpeg(1, (120, 160))})
    page.click("[data-task=panoptic]")
    done(page, "panoptic")
    page.click("#panel summary")
    for label in ("Threshold", "Keep share"):  # random weights have low scores
        set_slider(page, label, 0)
        done(page, "panoptic")
    rows = page.locator("#panel .items li")
    playwright.expect(rows.first).to_be_visible()
    assert "score" in rows.first.text_content()
    shown = pixels(page)
    rows.first.get_by_role("switch").click()
    assert np.abs(shown - pixels(page)).max() > 20


def test_clicks_and_boxes_with_undo(page: Any) -> None:
    open_example(page)
    page.click("[data-task=segment]")
    stage, objects = page.locator("#stage"), page.locator("#panel .objects li")

    def masks(count: int) -> None:
        playwright.expect(stage).to_have_attribute("data-masks", str(count))
        page.wait_for_function("() => !document.querySelector('[data-task=segment] .spinner')")

    page.mouse.click(*place(page, 0.5, 0.5))
    masks(1)
    assert "1 point" in objects.first.text_content()
    first = pixels(page)
    page.get_by_role("button", name="Remove", exact=True).click()
    page.mouse.click(*place(page, 0.2, 0.2))
    playwright.expect(objects.first).to_contain_text("2 points")
    masks(1)
    add_box(page, (0.6, 0.6), (0.9, 0.95))
    masks(2)
    assert "a box" in objects.nth(1).text_content()
    shot(page, "segment")
    page.get_by_role("button", name="curl").click()
    code = page.locator("#code").text_content()
    assert code.count("curl ") == 2  # objects with a box and those without are not in one request
    page.get_by_role("button", name="Python").click()
    assert "labels=[[1, 0]]" in page.locator("#code").text_content()
    with page.expect_download() as one, page.expect_download() as two:
        page.get_by_role("button", name="Download JSON").click()
    names = {one.value.suggested_filename, two.value.suggested_filename}
    assert names <= {"astronaut_segment_1.json", "astronaut_segment_2.json"}
    for _ in range(3):
        page.get_by_role("button", name="Undo").click()
    masks(1)
    playwright.expect(objects).to_have_count(1)
    np.testing.assert_array_equal(pixels(page), first)
    page.get_by_role("button", name="Remove object 1").click()
    masks(0)


def test_undo_shows_the_masks_of_the_object_that_it_changes(page: Any) -> None:
    open_example(page)
    page.click("[data-task=segment]")
    stage = page.locator("#stage")

    def masks(count: int) -> None:
        playwright.expect(stage).to_have_attribute("data-masks", str(count))
        page.wait_for_function("() => !document.querySelector('[data-task=segment] .spinner')")

    page.mouse.click(*place(page, 0.5, 0.5))
    masks(1)
    page.get_by_role("button", name="New object").click()
    page.mouse.click(*place(page, 0.8, 0.2))
    masks(2)
    sent = []
    page.on("request", lambda one: sent.append(json.loads(one.post_data)) if one.url.endswith("/segment") else None)
    page.get_by_role("button", name="Object 1", exact=False).first.click()
    page.mouse.click(*place(page, 0.3, 0.3))
    playwright.expect(page.locator("#panel .objects li").first).to_contain_text("2 points")
    masks(2)
    page.get_by_role("button", name="Object 2", exact=False).first.click()
    assert [len(one["points"][0]) for one in sent] == [2]  # a selection asks for nothing
    page.get_by_role("button", name="Undo").click()
    playwright.expect(page.locator("#panel .objects li").first).to_contain_text("1 point ")
    masks(2)
    assert [len(one["points"][0]) for one in sent] == [2, 1]


def test_a_late_mask_changes_only_its_own_task(page: Any) -> None:
    open_example(page)
    page.click("[data-task=segment]")
    held: list[Any] = []
    page.route("**/segment", lambda route: held.append(route))
    page.mouse.click(*place(page, 0.5, 0.5))
    playwright.expect(page.locator("[data-task=segment] .spinner")).to_be_visible()
    select(page, "parts")
    parts, rows = pixels(page), page.locator("#panel .items li").count()
    with page.expect_response("**/segment"):
        held.pop().continue_()
    playwright.expect(page.locator("[data-task] .spinner")).to_have_count(0)
    np.testing.assert_array_equal(pixels(page), parts)
    assert page.locator("#panel .items li").count() == rows
    page.click("[data-task=segment]")
    assert np.abs(pixels(page) - parts).max() > 20
    assert page.get_attribute("#stage", "data-layers") == "1"
    page.click("[data-task=parts]")
    np.testing.assert_array_equal(pixels(page), parts)


def test_an_image_without_people_says_so(page: Any) -> None:
    open_file(page, {"name": "wall.png", "mimeType": "image/png", "buffer": _flat((90, 140, 200))})
    note = page.locator("#status .note")
    for task in ("pose", "parts", "matte", "normals", "pointmap", "albedo"):
        page.click(f"[data-task={task}]")
        done(page, task)
        playwright.expect(note).to_contain_text("No people were found")
        assert page.locator("#panel .items, #panel input[aria-label=Opacity]").count() == 0
        if task == "pointmap":
            assert page.locator("#open-3d").is_disabled()
            shot(page, "nobody")
    page.get_by_role("button", name="Keep the background").click()
    playwright.expect(note).to_have_count(0)
    playwright.expect(page.get_by_label("Background")).to_have_value("keep")
    page.click("[data-task=pose]")
    page.get_by_role("button", name="Process the whole image").click()
    playwright.expect(note).to_have_count(0)
    playwright.expect(page.locator("#panel .items li")).to_have_count(1)


# ------------------------------------------------------------------------------------------------ files and code


def test_downloads_and_code(page: Any, server: ServerProcess, tmp_path: Path) -> None:
    open_example(page)
    kinds = next(one for one in server.client.get("/v1/models").json["models"] if one["task"] == "pose")["kinds"]
    chips = page.locator("#panel .chip[data-kind]")
    listed = [kind for kind in kinds if kind not in ("png", "jpg", "jpeg")]
    assert chips.evaluate_all("(all) => all.map((one) => one.dataset.kind)") == listed
    for copies in ("pose png plot", "pose jpg plot.jpg", "normals png plot", "pointmap png plot", "albedo png plot"):
        task, *same = copies.split()
        assert len({server.client.post(f"/v1/{task}", jpeg(1), **{"as": kind}).body for kind in same}) == 1, copies
    page.click("#panel summary")
    page.get_by_label("Layout").select_option("coco17")
    done(page, "pose")
    name, body = download(page, page.get_by_role("button", name="Download JSON").click)
    assert name == "astronaut_pose.json"
    result = json.loads(body)
    assert len(result["names"]) == 17
    name, body = download(page, page.get_by_role("button", name="Download Drawing", exact=True).click)
    assert (name, body[:4]) == ("astronaut_pose_plot.png", b"\x89PNG")
    page.get_by_role("button", name="Copy the code").click()
    command = clipboard(page)
    assert command == "vitruvian pose astronaut.jpg --model builtin --layout coco17"
    page.get_by_role("button", name="Python").click()
    page.get_by_role("button", name="Copy the code").click()
    program = clipboard(page)
    with working_in(tmp_path):
        shutil.copy(EXAMPLE, "astronaut.jpg")
        assert run(shlex.split(command)[1:]) == 0
        exec(compile(program, "copied.py", "exec"), {})
    for path in (tmp_path / "out/astronaut_pose.json", tmp_path / "astronaut_pose.json"):
        made = json.loads(path.read_text())
        assert made["names"] == result["names"]
        close = np.abs(np.array(made["poses"][0]["keypoints"]) - np.array(result["poses"][0]["keypoints"]))
        assert close.max() < 1


def test_the_code_of_every_click_and_of_tasks_runs(page: Any, server: ServerProcess, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "it's me.jpg")
    open_file(page, tmp_path / "it's me.jpg")
    done(page, "pose")

    def run_code(results: int) -> None:
        page.get_by_role("button", name="Command line").click()
        commands = page.locator("#code").text_content().splitlines()
        page.get_by_role("button", name="Python").click()
        with working_in(tmp_path):
            assert [run(shlex.split(command)[1:]) for command in commands] == [0] * results
            exec(compile(page.locator("#code").text_content(), "copied.py", "exec"), {})

    select(page, "normals")
    run_code(1)
    with Image.open(tmp_path / "out/it's me_normals.png") as one, Image.open(tmp_path / "it's me_normals.png") as two:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))

    page.click("[data-task=segment]")
    page.mouse.click(*place(page, 0.5, 0.5))
    playwright.expect(page.locator("#stage")).to_have_attribute("data-masks", "1")
    add_box(page, (0.6, 0.6), (0.9, 0.95))
    playwright.expect(page.locator("#stage")).to_have_attribute("data-masks", "2")
    run_code(2)  # in folders of their own, with the checkpoint of this machine
    for number in (1, 2):
        made = json.loads((tmp_path / f"out/{number}/it's me_segment.json").read_text())
        assert made["objects"] == json.loads((tmp_path / f"it's me_segment_{number}.json").read_text())["objects"]


# ------------------------------------------------------------------------------------------------ video


def test_a_video_is_scrubbed_and_tracked(page: Any, tmp_path: Path) -> None:
    scene = sample_image(4, (96, 128))
    clip = make_clip(tmp_path / "clip.mp4", [np.roll(scene, 2 * number, 1) for number in range(20)], rate=20)
    open_file(page, clip)
    playwright.expect(page.locator("#scrubber")).to_have_attribute("max", "19")  # by the rate that the server tells
    first = pixels(page)
    page.focus("#scrubber")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("#frame-number")).to_have_text("2 / 19")
    assert np.abs(pixels(page) - first).max() > 20
    assert page.locator("#start-job").is_disabled()
    page.mouse.click(*place(page, 0.5, 0.5))
    playwright.expect(page.locator("#stage")).to_have_attribute("data-masks", "1")  # the mask in this frame, at once
    assert "--points 1@2:" in page.locator("#code").text_content()
    page.click("#start-job")
    job = page.locator("#panel .job")
    playwright.expect(job).to_have_attribute("data-state", "done")
    playwright.expect(page.locator("#stage")).to_have_attribute("data-layers", "2")
    shot(page, "track")
    name, body = download(page, page.get_by_role("button", name="Download clip_track.mp4").click)
    assert (name, body[4:8]) == ("clip_track.mp4", b"ftyp")
    page.get_by_role("switch", name="Follow everyone").click()
    assert "--everyone" in page.locator("#code").text_content()
    page.click("[data-task=pose]")
    page.click("#start-job")
    playwright.expect(page.locator("#panel .job .state")).to_have_text("running")
    page.get_by_role("button", name="Cancel").click()
    playwright.expect(job).to_have_attribute("data-state", "cancelled")
    page.route("**/v1/jobs", _list_without_files)
    page.click("#show-jobs")
    listed = page.locator("#job-list .job")
    playwright.expect(listed).to_have_count(2)
    listed.first.get_by_role("button", name="Delete the job").click()
    playwright.expect(listed).to_have_count(1)
    listed.get_by_role("button", name="Show 2 files").click()
    name, body = download(page, listed.get_by_role("button", name="Download clip_track.mp4").click)
    assert (name, body[4:8]) == ("clip_track.mp4", b"ftyp")


def _list_without_files(route: Any) -> None:
    """Answer with the list of jobs, in which only the number of files is sure to be."""
    body = route.fetch().json()
    for job in body["jobs"]:
        job.setdefault("file_count", len(job.pop("files", None) or ()))
    route.fulfill(json=body)


def test_every_task_has_its_own_jobs_and_its_own_result(page: Any, tmp_path: Path) -> None:
    name = "a walk through the old town seen from above.mp4"
    open_file(page, make_clip(tmp_path / name, [sample_image(4, (64, 64))] * 2, rate=10))
    playwright.expect(page.locator("#scrubber")).to_have_attribute("max", "1")
    jobs, stage = page.locator("#panel .job"), page.locator("#stage")
    wrong = json.dumps({"boxes": [[500, 500, 600, 600]]})  # fails when it runs
    page.route("**/v1/videos/*/pose", lambda route: route.continue_(post_data=wrong))
    for task in ("matte", "pose"):
        page.click(f"[data-task={task}]")
        playwright.expect(jobs).to_have_count(0)
        page.click("#start-job")
        playwright.expect(jobs).to_have_count(1)
    done(page, "matte")  # also beside another job, and while another task is seen
    done(page, "pose", "error")
    playwright.expect(jobs).to_contain_text("2 of 2 frames failed")
    jobs.get_by_role("button", name="Delete the job").click()
    done(page, "pose", "idle")
    playwright.expect(stage).to_have_attribute("data-layers", "")
    video = pixels(page)
    done(page, "matte")

    page.click("[data-task=matte]")
    playwright.expect(stage).to_have_attribute("data-layers", "1")
    box = page.locator("#canvas").bounding_box()
    inside = [place(page, *at) for at in ((0.02, 0.02), (0.1, 0.1), (0.3, 0.02), (0.02, 0.3), (0.98, 0.98))]
    at = [(round(y - box["y"]), round(x - box["x"])) for x, y in inside]
    playwright.expect(stage).to_have_attribute("data-layers", "1")
    seen = np.array([pixels(page)[one] for one in at])
    checkers = np.abs(seen[:, None] - [[255, 255, 255], [217, 217, 222]]).max(2).min(1)
    assert np.median(checkers) < 12  # not the video, which is seen through the result
    page.get_by_role("button", name="Green").click()
    assert np.median(np.abs(np.array([pixels(page)[one] for one in at]) - [0, 177, 64]).max(1)) < 12
    shot(page, "video-matte")
    page.click("#show-jobs")
    listed = page.locator("#job-list .job").first
    listed.get_by_role("button", name="Show ").click()
    size = listed.locator(".files .muted").first
    assert size.bounding_box()["height"] < 25  # in one line
    shot(page, "jobs")
    listed.get_by_role("button", name="Delete the job").click()
    page.keyboard.press("Escape")
    done(page, "matte", "idle")
    playwright.expect(stage).to_have_attribute("data-layers", "")
    np.testing.assert_array_equal(pixels(page), video)


def test_many_jobs_leave_connections_for_the_page(page: Any, server: ServerProcess) -> None:
    jobs = [
        server.client.post("/v1/jobs", jpeg(1), task="pose", name=f"{number}.jpg").json["id"] for number in range(8)
    ]
    page.click("#show-jobs")
    listed = page.locator("#job-list .job")
    playwright.expect(listed.first).to_be_visible()
    waiting = page.locator("#job-list .job[data-state=queued]")
    waiting.first.get_by_role("button", name="Cancel").click()  # the browser has six connections to a server
    playwright.expect(page.locator("#job-list .job[data-state=cancelled]").first).to_be_visible(timeout=10_000)
    for job in jobs:
        server.client.delete(f"/v1/jobs/{job}")
    page.keyboard.press("Escape")


# ------------------------------------------------------------------------------------------------ everyone


def test_the_keyboard_alone(page: Any) -> None:
    page.focus("body")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.dataset.action") == "example":
            break
    page.keyboard.press("Enter")
    done(page, "pose")
    for _ in range(60):
        if page.evaluate("() => document.activeElement.dataset.task") == "segment":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.id") == "stage":
            break
    for key in ("ArrowLeft", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    playwright.expect(page.locator("#stage")).to_have_attribute("data-masks", "1")
    page.keyboard.press("Control+z")
    playwright.expect(page.locator("#stage")).to_have_attribute("data-masks", "0")
    zoom = view(page)[2]
    page.keyboard.press("+")
    assert view(page)[2] > zoom


def test_layers_and_tasks_on_a_phone(page: Any, tmp_path: Path) -> None:
    page.set_viewport_size(PHONE)
    open_example(page)
    page.get_by_role("button", name="Show Matte").click()
    done(page, "matte")
    playwright.expect(page.locator("#stage")).to_have_attribute("data-layers", "2")
    open_file(page, make_clip(tmp_path / "clip.mp4", [sample_image(4, (64, 64))] * 2, rate=10))
    chip = page.locator("[data-task=track][aria-current=true]")
    playwright.expect(chip).to_be_in_viewport(ratio=1)


def test_widths_and_colors(page: Any) -> None:
    problems = []
    for opened in (False, True):
        if opened:
            open_example(page)
        for size in ("desktop", "phone"):
            page.set_viewport_size(PHONE if size == "phone" else DESKTOP)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                assert page.evaluate(_BACKGROUND) == {"light": "rgb(246, 246, 248)", "dark": "rgb(12, 12, 15)"}[scheme]
                assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
                shot(page, f"{size}-{scheme}{'' if opened else '-start'}")
                problems += _axe(page)
    assert problems == []
    page.click("#theme")
    assert page.evaluate(_BACKGROUND) == "rgb(246, 246, 248)"
    page.evaluate("() => localStorage.clear()")


_BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"


def _axe(page: Any) -> list[str]:
    """Return what axe-core finds; nothing where VITRUVIAN_AXE does not name its file."""
    path = os.environ.get("VITRUVIAN_AXE")
    if not path:
        return []
    page.evaluate(Path(path).read_text())
    found = page.evaluate("() => axe.run()")["violations"]
    return [f"{one['id']} ({one['impact']}): {[node['html'] for node in one['nodes']]}" for one in found]


def test_a_server_with_api_keys(context: Any, checkpoints: Path, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "ada")
    model = str(checkpoints / "facebook/sapiens2-normal-0.4b")
    settings = Settings(models={"normals": model}, data=tmp_path / "data", keys=read_keys(tmp_path / "keys"))
    with local_server(settings) as (client, _):
        page = context.new_page()
        page.goto(client.address)
        dialog = page.locator("#key")
        for text in ("another", key):
            playwright.expect(dialog).to_be_visible()
            dialog.get_by_label("API key").last.fill(text)
            with page.expect_response("**/v1/models"):
                page.keyboard.press("Enter")
        page.click("#empty [data-action=example]")
        done(page, "normals")
        assert page.evaluate("() => sessionStorage.length") == 1
        page.close()


def test_files_are_cached_and_no_others_are_served(server: ServerProcess) -> None:
    page = server.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    again = server.client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    script = server.client.get("/web/main.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    for path in ("/web/../page.py", "/web/%2e%2e/page.py", "/web/nothing.js", "/web/"):
        with contextlib.closing(server.client.connect()) as connection:
            connection.request("GET", path)
            assert connection.getresponse().status == 404
