"""Memory of decoded images, downloads and crowds: bounded, in order, and without a deadlock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.helpers.pipelines import parts_of
from tests.unit.pipelines.engine.test_runner import Doubler, results, solid
from vitruvian.errors import InputError
from vitruvian.limits import use_limits
from vitruvian.pipelines import pipeline
from vitruvian.pipelines.engine.byte_budget import ByteBudget
from vitruvian.pipelines.regions import plan_tiles
from vitruvian.pipelines.sources import Failure


class TestByteBudget:
    def start(self, budget: ByteBudget, index: int, size: int) -> threading.Thread:
        """Reserve in a thread, and return it when it is done or waits."""
        thread = threading.Thread(target=budget.reserve, args=(index, size), daemon=True)
        thread.start()
        thread.join(0.1)
        return thread

    def test_requests_are_granted_in_order(self) -> None:
        with use_limits(decoded_bytes=100):
            budget = ByteBudget()
            budget.reserve(0, 60)
            large = self.start(budget, 1, 500)
            small = self.start(budget, 2, 10)
            assert large.is_alive()  # waits until it is alone
            assert small.is_alive()  # its turn is after the large one's
            budget.release(0)
            large.join(10)
            assert not large.is_alive()
            assert small.is_alive()
            budget.resize(1, 90)
            small.join(10)
            assert not small.is_alive()

    def test_the_oldest_image_never_waits(self) -> None:
        with use_limits(decoded_bytes=100):
            budget = ByteBudget()
            budget.reserve(1, 100)
            assert not self.start(budget, 0, 100).is_alive()

    def test_closing_wakes_up_waiting_threads(self) -> None:
        with use_limits(decoded_bytes=100):
            budget = ByteBudget()
            budget.reserve(0, 100)
            threading.Timer(0.05, budget.close).start()
            with pytest.raises(RuntimeError, match="stopped"):
                budget.reserve(1, 1)


@pytest.mark.parametrize("detects", [False, True])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_budget_for_one_image_at_a_time(tmp_path: Path, workers: int, detects: bool) -> None:
    for number in range(12):
        Image.fromarray(solid(number)).save(tmp_path / f"{number:02d}.png")
    job = Doubler()
    job.detects_people = detects
    with use_limits(decoded_bytes=1):
        assert results(job, tmp_path, workers=workers) == [2 * number for number in range(12)]


def test_decoded_images_in_flight_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit all images of the folder are decoded before the first result is taken."""
    held: list[int] = []
    resize = ByteBudget.resize

    def recorded(self: ByteBudget, index: int, size: int) -> None:
        resize(self, index, size)
        held.append(sum(self._bytes.values()))

    monkeypatch.setattr(ByteBudget, "resize", recorded)
    for number in range(12):
        Image.fromarray(solid(number)).save(tmp_path / f"{number:02d}.png")
    image_bytes = solid(0).nbytes
    with use_limits(decoded_bytes=5 * image_bytes):  # decoding takes three times the bytes of the image
        results(Doubler(), tmp_path, workers=4)
    assert max(held) <= (5 + 3) * image_bytes  # the oldest image does not wait


@pytest.fixture
def slow_server() -> Iterator[tuple[str, threading.Event]]:
    """A server that answers when an event is set."""
    ready = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready.wait(20)
            self.send_response(200)
            self.end_headers()
            Image.fromarray(solid(5)).save(self.wfile, "PNG")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/image.png", ready
        server.shutdown()


def test_a_slow_download_blocks_no_worker(
    slow_server: tuple[str, threading.Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers when the images after it are saved, which one worker must do meanwhile."""
    monkeypatch.setenv("no_proxy", "*")
    url, ready = slow_server
    Image.fromarray(solid(7)).save(tmp_path / "a.png")
    saved: list[int] = []

    class FirstResultWins(Doubler):
        def prepare(self, frame: Any, people: Any) -> Any:
            if frame.path is not None:
                saved.append(frame.index)
                ready.set()
            return super().prepare(frame, people)

    with use_limits(download_seconds=10):
        found = results(FirstResultWins(), [url, url + "?2", tmp_path / "a.png"], workers=1)
    assert found == [10, 10, 14]
    assert saved == [2]


class TestManyPeople:
    @pytest.mark.parametrize("task", ["pose", "normals"])
    def test_many_people_are_cropped_batch_by_batch(self, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model, processor = parts_of(task)
        pipe = pipeline(task, model, processor=processor, device="cpu", batch_size=4)
        image = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
        boxes = [[left, 0, left + 30, 50] for left in range(40)]
        cropped: list[int] = []
        prepare = type(processor).prepare_images

        def counted(self: Any, images: Any, boxes: Any, **options: Any) -> Any:
            cropped.append(len(boxes[0]))
            return prepare(self, images, boxes, **options)

        monkeypatch.setattr(type(processor), "prepare_images", counted)
        lazy = pipe(image, boxes=boxes)
        assert max(cropped) == 1
        monkeypatch.setattr("vitruvian.pipelines.base._MAX_EAGER_INPUTS", 40)
        eager = pipe(image, boxes=boxes)
        assert max(cropped) == 40
        assert {name: str(value) for name, value in lazy.to_dict().items()} == {
            name: str(value) for name, value in eager.to_dict().items()
        }

    def test_an_error_while_cropping_is_a_failure_of_the_image(self) -> None:
        class Broken(Doubler):
            def prepare(self, frame: Any, people: Any) -> Any:
                prepared = super().prepare(frame, people)
                if frame.index == 1:

                    def fail() -> Any:
                        raise InputError("boxes: expected others.")

                    prepared.inputs = [fail] * 3
                return prepared

        first, second, third = results(Broken(), [solid(1), solid(2), solid(3)])
        assert (first, third) == (2, 6)
        assert isinstance(second, Failure)
        assert "expected others" in second.message

    def test_people_and_tiles_are_limited(self) -> None:
        model, processor = parts_of("pose")
        pipe = pipeline("pose", model, processor=processor, device="cpu")
        boxes = [[0, 0, 9, 9]] * 3
        with use_limits(people=2):
            assert len(pipe(solid(0), boxes=boxes, max_people=2).people) == 2
            with pytest.raises(InputError, match=r"array: expected at most 2 people, got 3\."):
                pipe(solid(0), boxes=boxes)
        with pytest.raises(InputError, match=r"tile: expected at most 10,000 tiles, got"):
            plan_tiles((3000, 3000), (16, 16))
