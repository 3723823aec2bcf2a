"""The queue of a model: shared batches, errors of one image, a full queue, cancelled requests, draining."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from tests.helpers.pipelines import parts_of
from tests.helpers.server import jpeg, wait
from vitruvian.errors import ImageError, InputError
from vitruvian.pipelines.engine.runner import _SHUTDOWN_TIMEOUT, InferenceEngine
from vitruvian.pipelines.tasks.pose import PosePipeline
from vitruvian.serving.errors import RequestError
from vitruvian.serving.metrics import Metrics
from vitruvian.serving.model_queue import FairLock, ModelQueue
from vitruvian.serving.queued_requests import QueuedRequest


class GatedPose(PosePipeline):
    """Poses whose model waits until the test opens the gate, and notes the sizes of batches."""

    task = "pose"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gate, self.batches, self.running = threading.Event(), [], threading.Event()  # type: ignore[var-annotated]
        self.checks: list[Callable[[list[Any]], None]] = []  # copies of the pipeline share all of these

    def forward(self, units: list[Any]) -> list[Any]:
        self.running.set()
        assert self.gate.wait(60)
        for check in self.checks:
            check(units)
        self.batches.append(len(units))
        return super().forward(units)


def whole_image(image: np.ndarray[Any, Any]) -> list[list[float]]:
    """Detect one person, as large as the image."""
    return [[0, 0, image.shape[1], image.shape[0]]]


@pytest.fixture
def pipe() -> GatedPose:
    return GatedPose(*parts_of("pose"), detect=whole_image)


@pytest.fixture
def queue(pipe: GatedPose) -> Iterator[ModelQueue]:
    made = ModelQueue(
        "pose",
        lambda: pipe,
        size=6,
        lock=FairLock(),
        metrics=Metrics(),
        batch_size=4,
        on_failure=lambda error: None,
    )
    made.start()
    wait(lambda: made.state == "ready")
    yield made
    pipe.gate.set()
    made.close()


def submit(queue: ModelQueue, body: bytes = jpeg(), **options: object) -> Future[Any]:
    return queue.submit(QueuedRequest(body, "a.jpg", queue.pipe.for_call(options), lambda pose: pose))


def fill(queue: ModelQueue, pipe: GatedPose) -> list[Future[Any]]:
    """Submit requests until the engine holds as many as it takes, and the queue is full."""
    submitted = [submit(queue)]
    assert pipe.running.wait(60)
    refusals = 0
    while refusals < 5:
        try:
            submitted.append(submit(queue))
            refusals = 0
        except RequestError:
            refusals += 1
            time.sleep(0.05)  # the engine may take further ones
    return submitted


def wait_until_loaded(queue: ModelQueue, count: int) -> None:
    """Wait until the images of so many requests are decoded."""
    labels = {"task": "pose", "stage": "load"}
    wait(lambda: queue._metrics.registry.get_sample_value("vitruvian_stage_seconds_count", labels) == count)


def test_requests_share_batches(queue: ModelQueue, pipe: GatedPose) -> None:
    first = submit(queue)
    assert pipe.running.wait(60)  # those that follow wait behind it
    others = [submit(queue, jpeg(number), flip=False) for number in range(1, 6)]
    wait_until_loaded(queue, 6)
    pipe.gate.set()
    results = [future.result(60) for future in (first, *others)]
    assert max(pipe.batches) > 1
    assert sum(pipe.batches) == 6
    for number, result in enumerate(results):  # and each has its own answer
        expected = PosePipeline(pipe.model, pipe.processor, detect=whole_image)(jpeg(number))
        np.testing.assert_allclose(result.keypoints, expected.keypoints, atol=1e-2)


def test_an_image_that_takes_long_delays_no_other_request(queue: ModelQueue, pipe: GatedPose) -> None:
    decoded = threading.Event()

    class SlowImage(QueuedRequest[Any]):
        def load(self) -> Any:
            assert decoded.wait(60)
            return super().load()

    pipe.gate.set()
    slow = queue.submit(SlowImage(jpeg(), "slow.jpg", queue.pipe.for_call({}), lambda pose: pose))
    for number in range(20):  # more than fit beside it if their places stay taken
        assert submit(queue, jpeg(number)).result(60).source == "a.jpg"
    assert not slow.done()
    decoded.set()
    assert slow.result(60).source == "slow.jpg"


def test_options_of_a_request_are_its_own(queue: ModelQueue, pipe: GatedPose) -> None:
    boxes = [[2, 3, 30, 38], [10, 5, 50, 35]]
    first = submit(queue)
    assert pipe.running.wait(60)  # the others wait together
    others = [submit(queue, boxes=boxes), *(submit(queue, kernel_size=size) for size in (5, 11, 5))]
    pipe.gate.set()
    assert len(first.result(60)) == 1
    assert others[0].result(60).people.boxes_xyxy.tolist() == boxes
    plain = PosePipeline(pipe.model, pipe.processor, detect=whole_image)
    alone = {size: plain(jpeg(), kernel_size=size).keypoints for size in (5, 11)}
    assert np.abs(alone[5] - alone[11]).max() > 0.1
    for future, size in zip(others[1:], (5, 11, 5), strict=True):
        np.testing.assert_allclose(future.result(60).keypoints, alone[size], atol=1e-2)


def test_a_bad_image_spoils_only_its_own_answer(queue: ModelQueue, pipe: GatedPose) -> None:
    good, bad, wrong = submit(queue), submit(queue, b"no image"), submit(queue, boxes=[[90, 90, 99, 99]])
    last = submit(queue, jpeg(2))
    pipe.gate.set()
    assert len(good.result(60)) == len(last.result(60)) == 1
    with pytest.raises(ImageError, match=r"a\.jpg: expected an image"):
        bad.result(60)
    with pytest.raises(InputError, match="outside"):
        wrong.result(60)


def test_an_error_of_a_batch_is_that_of_one_image(queue: ModelQueue, pipe: GatedPose) -> None:
    first = submit(queue)
    assert pipe.running.wait(60)
    boxes = [[0, 0, 3, 3]]
    others = [submit(queue), submit(queue, boxes=boxes), submit(queue)]
    target = queue.pipe.for_call({"boxes": boxes})
    expected = target.prepare(_frame(), None).inputs[0].pixels  # type: ignore[union-attr]

    def broken(units: list[Any]) -> None:
        if any(unit.pixels.equal(expected) for unit in units):
            raise ValueError("this crop is cursed")

    pipe.checks.append(broken)
    pipe.gate.set()
    assert [len(future.result(60)) for future in (first, others[0], others[2])] == [1, 1, 1]
    with pytest.raises(ValueError, match="cursed"):
        others[1].result(60)


def _frame() -> Any:
    from vitruvian.images.read import load_rgb
    from vitruvian.pipelines.sources import Frame

    return Frame(image=load_rgb(jpeg()), name="a.jpg")


def test_after_an_error_of_the_engine_the_queue_continues_at_once(
    queue: ModelQueue, pipe: GatedPose, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe.gate.set()
    submit(queue).result(60)
    monkeypatch.setattr(InferenceEngine, "complete", lambda engine, batch: 1 / 0)
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        submit(queue).result(60)
    monkeypatch.undo()
    assert len(submit(queue).result(60)) == 1
    assert time.monotonic() - start < _SHUTDOWN_TIMEOUT  # it does not wait for its reader, which waits for requests


def test_a_full_queue_refuses(queue: ModelQueue, pipe: GatedPose) -> None:
    accepted = fill(queue, pipe)
    with pytest.raises(RequestError) as caught:
        queue.check_space()
    assert caught.value.status == 429
    assert int(caught.value.headers["Retry-After"]) >= 1
    pipe.gate.set()
    assert [len(future.result(60)) for future in accepted] == [1] * len(accepted)
    submit(queue).result(60)  # there is space again


def test_cancelled_requests_leave_the_queue(queue: ModelQueue, pipe: GatedPose) -> None:
    accepted = fill(queue, pipe)
    assert len(queue) == 6
    for future in accepted[-3:]:
        assert future.cancel()
    late = [submit(queue) for _ in range(3)]  # in their places
    pipe.gate.set()
    assert [len(future.result(60)) for future in (*accepted[:-3], *late)] == [1] * len(accepted)
    assert sum(pipe.batches) == len(accepted)  # the model never saw the cancelled ones


@pytest.mark.parametrize("people", [8, 200])  # made together, or batch by batch
def test_the_inputs_that_are_left_of_a_cancelled_request_are_not_run(
    people: int, queue: ModelQueue, pipe: GatedPose
) -> None:
    abandoned = submit(queue, boxes=[[0, 0, 30, 30]] * people)
    assert pipe.running.wait(60)
    next_one = submit(queue)
    wait_until_loaded(queue, 2)
    assert abandoned.cancel()
    pipe.gate.set()
    assert len(next_one.result(60)) == 1
    assert sum(pipe.batches) <= 4 + 1  # the batch that ran, and the next request


def test_close_cancels_what_takes_too_long(queue: ModelQueue, pipe: GatedPose) -> None:
    accepted = [submit(queue, boxes=[[0, 0, 30, 30]] * 200), submit(queue)]
    assert pipe.running.wait(60)
    closing = threading.Thread(target=queue.close, args=(0.1,))
    closing.start()
    wait(lambda: all(future.cancelled() for future in accepted))
    pipe.gate.set()
    closing.join(60)
    assert not closing.is_alive()
    assert not queue._thread.is_alive()
    assert sum(pipe.batches) <= 4


def test_close_answers_what_was_accepted(queue: ModelQueue, pipe: GatedPose) -> None:
    accepted = [submit(queue, jpeg(number)) for number in range(5)]
    closing = threading.Thread(target=queue.close)
    closing.start()
    wait(lambda: queue.state == "closed")
    with pytest.raises(RequestError, match="shutting down"):
        submit(queue)
    pipe.gate.set()
    closing.join(60)
    assert not closing.is_alive()
    assert all(future.done() and len(future.result()) == 1 for future in accepted)


def test_a_server_that_ends_while_a_model_loads_never_waits_for_it(pipe: GatedPose) -> None:
    loaded = threading.Event()

    def open_pipe() -> GatedPose:
        assert loaded.wait(60)
        return pipe

    queue = ModelQueue(
        "pose", open_pipe, size=1, lock=FairLock(), metrics=Metrics(), batch_size=None, on_failure=lambda error: None
    )
    queue.start()
    with pytest.raises(RequestError, match="is loading"):
        _ = queue.pipe
    queue.close()
    threading.Timer(20, loaded.set).start()
    with pytest.raises(RequestError, match="shutting down") as caught:
        _ = queue.pipe
    assert caught.value.status == 503
    assert not loaded.is_set()
    loaded.set()


@pytest.mark.parametrize("step", ["open", "optimize"])
def test_a_model_that_cannot_be_opened(step: str) -> None:
    failures: list[Exception] = []

    class Pipe:
        def for_call(self, _: object) -> None:
            raise InputError("model: expected weights, got none.")

    def open_pipe() -> Any:
        return Pipe() if step == "optimize" else Pipe().for_call({})

    queue = ModelQueue(
        "pose", open_pipe, size=1, lock=FairLock(), metrics=Metrics(), batch_size=None,
        on_failure=failures.append,
    )  # fmt: skip
    queue.start()
    wait(lambda: failures)
    assert queue.state == "failed"
    with pytest.raises(InputError, match="expected weights"):
        _ = queue.pipe
    queue.close()


def test_the_lock_of_a_device_is_handed_over_in_order() -> None:
    lock, order = FairLock(), []

    def take(name: str) -> None:
        with lock:
            order.append(name)

    others = [threading.Thread(target=take, args=(name,)) for name in ("first", "second")]
    with lock:
        for count, other in enumerate(others, 1):
            other.start()
            wait(lambda count=count: len(lock._waiting) == count)  # type: ignore[misc]
    with lock:  # asked for again immediately, after the others
        order.append("again")
    for other in others:
        other.join()
    assert order == ["first", "second", "again"]
