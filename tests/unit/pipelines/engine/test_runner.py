"""Many images at once: in order, in bounded memory, with failures in their place and threads that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.server import wait
from vitruvian.cuda.graphs import GraphCache
from vitruvian.cuda.streams import CudaStream, HostCopy
from vitruvian.errors import InputError
from vitruvian.pipelines.engine import runner
from vitruvian.pipelines.engine.batches import BatchSize, initial_batch_size
from vitruvian.pipelines.engine.runner import _MAX_LIVE, _max_in_flight, run_many, run_one
from vitruvian.pipelines.engine.steps import DecodeThread, ModelInput, Prepared
from vitruvian.pipelines.sources import Failure, Frame, FrameLoader, Source, open_source

ROOT = Path(__file__).resolve().parents[4]


def solid(value: int) -> np.ndarray:
    return np.full((4, 6, 3), value, np.uint8)


class Doubler:
    """A task whose result is twice the first pixel of an image, summed over its inputs."""

    device = torch.device("cpu")
    detects_people = False
    fixed_input_size = False
    thread: DecodeThread = "worker"  # that decodes
    upload_stream: CudaStream | None = None
    max_ahead: int | None = None
    graphs: GraphCache | None = None

    def __init__(
        self,
        *,
        inputs: int | None = 1,
        max_units: int | None = None,
        slow: float = 0.0,
        sides: tuple[int, int] = (2, 2),  # of the inputs of even and odd images
    ) -> None:
        self.inputs, self.max_units, self.slow, self.sides = inputs, max_units, slow, sides
        self.batches: list[list[int]] = []
        self.detected: list[int] = []
        self.threads: dict[str, set[str]] = {}

    def note(self, step: str) -> None:
        self.threads.setdefault(step, set()).add(threading.current_thread().name)
        assert torch.is_inference_mode_enabled()

    def detects(self, frame: Frame) -> bool:
        return self.detects_people

    def detect(self, frame: Frame) -> Any:
        self.note("detect")
        self.detected.append(frame.index)
        return int(frame.image[0, 0, 0])

    def prepare(self, frame: Frame, people: Any) -> Prepared:
        self.note("prepare")
        value = int(frame.image[0, 0, 0])
        if value == 13:
            raise InputError("thirteen: expected a luckier number.")
        count = value % 4 if self.inputs is None else self.inputs
        pixels = torch.full((3, 2, self.sides[value % 2]), float(value))
        return Prepared(frame, [ModelInput(pixels, value) for _ in range(count)], people)

    def forward(self, inputs: list[ModelInput]) -> list[Any]:
        self.note("forward")
        if self.max_units is not None and len(inputs) > self.max_units:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB.")
        if any(model_input.extra == 17 for model_input in inputs):
            raise ValueError("seventeen")
        torch.stack([model_input.pixels for model_input in inputs])  # as models do
        self.batches.append([model_input.extra for model_input in inputs])
        return [model_input.pixels * 2 for model_input in inputs]

    def decode_thread(self) -> DecodeThread:
        return self.thread

    def decode(self, prepared: Prepared, outputs: list[Any]) -> Any:
        self.note("decode")
        time.sleep(self.slow)
        return [output.mean() for output in outputs]

    def finish(self, prepared: Prepared, decoded: Any) -> int:
        self.note("finish")
        value = int(prepared.frame.image[0, 0, 0])
        if value == 19:
            raise RuntimeError("nineteen")
        return int(sum(float(one) for one in decoded)) if decoded else -value


def results(job: Doubler, source: Any, *, batch: int = 3, fixed: bool = True, **options: Any) -> list[Any]:
    return list(run_many(job, open_source(source), batch=BatchSize(batch, fixed=fixed), **options))


class TestWithoutOrder:
    """Of requests, which wait for nothing but their own image."""

    @pytest.mark.parametrize("step", ["load", "prepare", "finish"])
    def test_a_slow_image_delays_no_other(self, step: str) -> None:
        gate = threading.Event()

        class Gated(Doubler):
            detects_people = step == "prepare"  # prepared in a step of its own

            def prepare(self, frame: Frame, people: Any) -> Prepared:
                assert step != "prepare" or frame.index or gate.wait(5)
                return super().prepare(frame, people)

            def finish(self, prepared: Prepared, decoded: Any) -> int:
                assert step != "finish" or prepared.frame.index or gate.wait(5)
                return super().finish(prepared, decoded)

        def load(number: int) -> Frame:
            assert step != "load" or number or gate.wait(5)
            return Frame(image=solid(number), name=str(number))

        loaders = [FrameLoader(name=str(number), load=lambda number=number: load(number)) for number in range(13)]
        found = run_many(
            Gated(), Source(lambda: iter(loaders)), batch=BatchSize(2, fixed=True), workers=2,
            batch_timeout=None, ordered=False,
        )  # fmt: skip
        assert sorted(next(found) for _ in range(12)) == [2 * number for number in range(1, 13)]
        gate.set()
        assert list(found) == [0]


class TestOrder:
    @pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
    def test_results_come_in_the_order_of_the_source(self, count: int) -> None:
        assert results(Doubler(), [solid(n + 20) for n in range(count)]) == [2 * (n + 20) for n in range(count)]

    def test_units_of_several_images_share_a_batch(self) -> None:
        job = Doubler(inputs=2)
        assert results(job, [solid(n) for n in range(5)], batch_timeout=60.0) == [4 * n for n in range(5)]
        assert job.batches == [[0], [0, 1], [1, 2, 2], [3, 3, 4], [4]]  # small at first

    def test_full_batches_from_the_first_with_graphs(self) -> None:
        job = Doubler(inputs=2)
        job.fixed_input_size = True
        job.graphs = GraphCache(max_batch=1)
        assert results(job, [solid(n) for n in range(5)], batch_timeout=60.0) == [4 * n for n in range(5)]
        assert job.batches == [[0, 0, 1], [1, 2, 2], [3, 3, 4], [4]]

    def test_only_units_of_one_shape_share_a_batch(self) -> None:
        job = Doubler(sides=(2, 3))
        assert results(job, [solid(n) for n in range(9)], batch=4) == [2 * n for n in range(9)]
        assert all(len({note % 2 for note in batch}) == 1 for batch in job.batches)
        assert 2 <= max(len(batch) for batch in job.batches) <= 4

    def test_images_without_units_and_with_many(self) -> None:
        job = Doubler(inputs=None)  # 0 to 3 inputs
        assert results(job, [solid(n) for n in range(8)], batch=2) == [0, 2, 8, 18, -4, 10, 24, 42]

    def test_threads_of_each_step(self) -> None:
        job = Doubler()
        job.detects_people = True
        results(job, [solid(n) for n in range(8)])
        main = threading.current_thread().name
        assert job.threads["forward"] == job.threads["detect"] == {main}
        for step in ("prepare", "decode", "finish"):
            assert main not in job.threads[step]
        assert job.detected == list(range(8))

    def test_on_a_gpu_the_caller_decodes(self) -> None:
        job = Doubler()
        job.thread = "consumer"
        assert results(job, [solid(5)] * 3) == [10] * 3
        assert job.threads["decode"] == {threading.current_thread().name}


class TestFailures:
    def test_failures_keep_the_order_of_the_source(self, tmp_path: Path) -> None:
        (tmp_path / "broken.png").write_bytes(b"no image")
        source = [solid(1), tmp_path / "broken.png", solid(13), solid(17), solid(19), solid(2)]
        found = results(Doubler(), source, batch_timeout=60.0)
        assert [found[0], found[-1]] == [2, 4]
        failures = found[1:-1]
        assert all(isinstance(one, Failure) for one in failures)
        assert [one.index for one in failures] == [1, 2, 3, 4]
        assert [type(one.error).__name__ for one in failures] == [
            "ImageError",
            "InputError",
            "ValueError",
            "RuntimeError",
        ]
        assert failures[0].message.startswith(str(tmp_path / "broken.png"))
        assert failures[2].message == "array: seventeen"

    def test_frames_of_a_video_keep_their_numbers(self) -> None:
        frames = [Frame(image=solid(value), name="clip.mp4", frame=100 + value) for value in (1, 13, 17, 19)]
        found = results(Doubler(), iter(frames))
        assert [one.frame for one in found[1:]] == [113, 117, 119]

    def test_a_bad_unit_does_not_spoil_its_batch(self) -> None:
        found = results(Doubler(), [solid(1), solid(17), solid(2)], batch=3, batch_timeout=60.0)
        assert [found[0], found[2]] == [2, 4]
        assert isinstance(found[1], Failure)

    def test_errors_raise_stops_at_the_first_failure(self) -> None:
        stream = run_many(
            Doubler(),
            open_source([solid(1), solid(13), solid(2)]),
            batch=BatchSize(1, fixed=True),
            errors="raise",
        )
        assert next(stream) == 2
        with pytest.raises(InputError, match="thirteen"):
            next(stream)

    def test_more_failures_than_images_in_flight(self) -> None:
        """A good image that waits for its batch must not wait for ever behind a full line."""
        source = [solid(1)] * 8 + [solid(13)] * 80 + [solid(2)]  # seven go through in the first, small batches
        found = results(Doubler(), source, batch=8, batch_timeout=250.0)
        assert found[:8] == [2] * 8
        assert (found[-1], len(found)) == (4, 89)

    def test_an_error_of_the_source(self) -> None:
        def broken() -> Iterator[np.ndarray]:
            yield solid(1)
            yield solid(2)
            raise OSError("cable pulled")

        found = results(Doubler(), broken(), batch=5)
        assert found[:2] == [2, 4]
        assert isinstance(found[2], Failure)
        assert "cable pulled" in found[2].message

    def test_an_error_of_saving(self) -> None:
        def save(result: int, index: int) -> None:
            if result == 4:
                raise OSError("disk full")

        found = results(Doubler(), [solid(1), solid(2), solid(3)], save=save)
        assert [found[0], found[2]] == [2, 6]
        assert "disk full" in found[1].message


class TestMemory:
    def test_images_in_flight_are_bounded(self) -> None:
        taken: list[int] = []

        def source() -> Iterator[np.ndarray]:
            for number in range(200):
                taken.append(number)
                yield solid(number % 10)

        stream = run_many(Doubler(), open_source(source()), batch=BatchSize(2, fixed=True), workers=2)
        most = _max_in_flight(2, 2)
        for done in range(1, 60):
            next(stream)
            time.sleep(0.001)
            assert len(taken) <= done + most + 1
        stream.close()

    def test_memory_stays_flat(self) -> None:
        """200 images of 3 MB each: what is alive at once is a few of them, not 600 MB."""
        import tracemalloc

        def source() -> Iterator[np.ndarray]:
            for number in range(200):
                yield np.full((1000, 1000, 3), number % 10, np.uint8)

        tracemalloc.start()
        try:
            stream = run_many(Doubler(), open_source(source()), batch=BatchSize(2, fixed=True), workers=2)
            count = sum(1 for _ in stream)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert count == 200
        assert peak < 20 * 3_000_000

    def test_the_batch_size_is_halved_when_memory_runs_out(self) -> None:
        job = Doubler(max_units=3)
        batch = BatchSize(16, fixed=False)
        found = list(run_many(job, open_source([solid(n % 10) for n in range(40)]), batch=batch, batch_timeout=60.0))
        assert found == [2 * (n % 10) for n in range(40)]
        assert batch.size == 2
        assert max(len(one) for one in job.batches) <= 3

    def test_too_little_memory_for_one_image(self) -> None:
        found = results(Doubler(max_units=0), [solid(1), solid(2)], batch=4, fixed=False)
        assert all("out of memory with batch size 1" in one.message for one in found)
        assert all("smaller model" in one.message for one in found)

    def test_a_fixed_batch_size_is_not_reduced(self) -> None:
        stream = run_many(
            Doubler(max_units=1), open_source([solid(1), solid(2)]), batch=BatchSize(2, fixed=True), batch_timeout=60.0
        )
        assert list(stream) == [2, 4]  # one by one after the batch failed, so that nothing is lost
        with pytest.raises(InputError, match="auto"):
            run_one(Doubler(inputs=2, max_units=1), next(open_source(solid(1)).loaders()), BatchSize(2, fixed=True))

    def test_one_image_with_more_units_than_fit(self) -> None:
        job, batch = Doubler(inputs=7, max_units=2), BatchSize(8, fixed=False)
        assert run_one(job, next(open_source(solid(3)).loaders()), batch) == 42
        assert batch.size == 2

    @pytest.mark.parametrize("size", [0, -1, 1.5, True, "many"])
    def test_invalid_batch_sizes(self, size: Any) -> None:
        with pytest.raises(InputError, match="batch_size"):
            BatchSize(size, fixed=True)

    def test_initial_batch_size_on_a_cpu(self) -> None:
        cpu = torch.device("cpu")
        assert initial_batch_size(cpu, (1024, 768)) == 1
        assert initial_batch_size(cpu, (256, 192)) == 1
        assert initial_batch_size(cpu, (4096, 3072)) == 1

    @pytest.mark.parametrize(
        ("free", "unit_hw", "size"),
        [
            (140, (1024, 768), 8),  # more would be no quicker
            (140, (512, 384), 16),
            (140, (256, 192), 16),
            (14, (1024, 768), 4),
            (14, (512, 384), 16),
            (2, (1024, 768), 1),
            (140, (4096, 3072), 2),
        ],
    )
    def test_initial_batch_size_on_a_gpu(
        self, free: int, unit_hw: tuple[int, int], size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free << 30, 150 << 30))
        assert initial_batch_size(torch.device("cuda"), unit_hw) == size

    def test_host_copy_of_nested_values(self) -> None:
        values = {"a": [torch.ones(2), None], "b": (torch.zeros(1), "text", 3)}
        found = HostCopy(values).wait()
        assert found["a"][1] is None
        assert found["b"][1:] == ("text", 3)
        assert torch.equal(found["a"][0], torch.ones(2))


class TestThreads:
    def test_threads_start_with_the_first_result(self) -> None:
        before = threading.active_count()
        stream = run_many(Doubler(), open_source([solid(1)]), batch=BatchSize(1, fixed=True))
        assert threading.active_count() == before
        assert list(stream) == [2]

    @pytest.mark.parametrize("after", [False, True])
    def test_ctrl_c_while_threads_start(self, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        start, before = threading.Thread.start, threading.active_count()

        def interrupted(thread: threading.Thread) -> None:
            if after or thread.name != "vitruvian-source":
                start(thread)
            if thread.name == "vitruvian-source":
                raise KeyboardInterrupt

        monkeypatch.setattr(threading.Thread, "start", interrupted)
        stream = run_many(Doubler(slow=0.01), open_source([solid(1)] * 50), batch=BatchSize(2, fixed=True))
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert threading.active_count() == before

    @pytest.mark.parametrize("taken", [1, 5])
    def test_closing_early_closes_the_source(self, taken: int) -> None:
        closed = threading.Event()

        def source() -> Iterator[np.ndarray]:
            try:
                while True:
                    yield solid(1)
            finally:
                closed.set()

        stream = run_many(Doubler(slow=0.01), open_source(source()), batch=BatchSize(2, fixed=True))
        for _ in range(taken):
            next(stream)
        stream.close()
        assert closed.is_set()

    def test_a_generator_that_is_not_closed(self) -> None:
        stream = run_many(Doubler(), open_source([solid(1)] * 50), batch=BatchSize(2, fixed=True))
        next(stream)
        del stream

    def test_an_error_of_the_consumer(self) -> None:
        def consume() -> None:
            for result in run_many(Doubler(), open_source([solid(1)] * 50), batch=BatchSize(2, fixed=True)):
                result / 0  # type: ignore[operator]

        with pytest.raises(ZeroDivisionError):
            consume()

    def test_a_slow_source_gives_partial_batches(self) -> None:
        """With a batch of 8 and a source that pauses, results do not wait for 8 images."""
        gate = threading.Event()

        def source() -> Iterator[np.ndarray]:
            yield solid(1)
            yield solid(2)
            assert gate.wait(20), "nothing was given out"
            yield solid(3)

        stream = run_many(Doubler(), open_source(source()), batch=BatchSize(8, fixed=True), batch_timeout=0.05)
        assert [next(stream), next(stream)] == [2, 4]
        gate.set()
        assert list(stream) == [6]

    def test_requests_do_not_wait_for_a_full_batch(self) -> None:
        """An idle model starts at once; images that come while it runs form the next batch."""
        running, more = threading.Event(), threading.Event()

        class Slow(Doubler):
            def forward(self, inputs: list[ModelInput]) -> list[Any]:
                running.set()
                assert more.wait(20), "nothing was loaded meanwhile"
                return super().forward(inputs)

        def source() -> Iterator[np.ndarray]:
            yield solid(1)
            assert running.wait(20), "the first image waits for others"
            yield from (solid(number) for number in range(2, 9))
            time.sleep(0.1)  # they are loaded
            more.set()

        job = Slow()
        job.fixed_input_size = True  # batches of graphs have no warmup
        job.graphs = GraphCache(max_batch=1)
        assert results(job, source(), batch=8, batch_timeout=None) == [2 * n for n in range(1, 9)]
        assert job.batches[0] == [1]
        assert max(map(len, job.batches)) > 1

    def test_requests_collect_while_a_batch_runs_and_another_is_queued(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A device that computes for long: two batches are launched, and further images wait for the first to end."""
        computed = threading.Event()

        class Launched:
            reached = property(lambda self: computed.is_set())

            def __init__(self, device: torch.device) -> None: ...

        monkeypatch.setattr(runner, "StreamEvent", Launched)
        job = Doubler()
        job.fixed_input_size, job.graphs = True, GraphCache(max_batch=1)  # batches of graphs have no warmup

        def source() -> Iterator[np.ndarray]:
            for number in (1, 2):  # each is launched immediately
                yield solid(number)
                wait(lambda number=number: len(job.batches) == number)  # type: ignore[misc]
            yield from (solid(number) for number in range(3, 7))
            time.sleep(0.1)  # they are loaded
            assert job.batches == [[1], [2]]
            computed.set()

        assert results(job, source(), batch=8, batch_timeout=None) == [2 * n for n in range(1, 7)]
        assert job.batches == [[1], [2], [3, 4, 5, 6]]

    def test_saving_runs_in_the_background_and_ends_on_closing(self) -> None:
        started, saved = threading.Event(), []

        def save(result: int, index: int) -> None:
            started.set()
            time.sleep(0.05)
            saved.append((result, threading.current_thread().name))

        stream = run_many(Doubler(), open_source([solid(1)] * 30), batch=BatchSize(1, fixed=True), save=save)
        next(stream)
        started.wait(5)
        stream.close()
        count = len(saved)
        assert count >= 1
        assert threading.current_thread().name not in {name for _, name in saved}
        time.sleep(0.1)
        assert len(saved) == count

    @pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
    def test_ctrl_c(self) -> None:
        code = (
            "import itertools, threading, sys\n"
            "from tests.unit.pipelines.engine.test_runner import Doubler, solid, run_many, open_source, BatchSize\n"
            "source = (solid(1) for _ in itertools.count())\n"
            "try:\n"
            "    stream = run_many(Doubler(), open_source(source), batch=BatchSize(2, fixed=True))\n"
            "    for number, _ in enumerate(stream):\n"
            "        if number == 3: print('running', flush=True)\n"
            "except KeyboardInterrupt:\n"
            "    stream.close()\n"
            "    print('stopped', threading.active_count(), flush=True)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip() == "running"
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()  # it would go on for ever
        assert out.strip() == "stopped 1"
        assert process.returncode == 0


def test_errors_of_one_image_are_raised() -> None:
    def read() -> Frame:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        run_one(Doubler(), FrameLoader(name="x", load=read), BatchSize(1, fixed=True))
    with pytest.raises(RuntimeError, match="nineteen"):
        run_one(Doubler(), next(open_source(solid(19)).loaders()), BatchSize(1, fixed=True))


def test_few_images_of_a_camera_wait() -> None:
    """A result shows what the camera saw not long ago, however slow its consumer is."""
    taken: list[int] = []

    def images() -> Iterator[FrameLoader]:
        for number in range(30):
            taken.append(number)
            frame = Frame(image=solid(number % 10), name="camera:0")
            yield FrameLoader(name="camera:0", load=lambda frame=frame: frame)

    source = Source(images, live=True)
    for done, _ in enumerate(run_many(Doubler(), source, batch=BatchSize(1, fixed=True)), start=1):
        time.sleep(0.01)
        assert len(taken) <= done + 1 + _MAX_LIVE
    assert len(taken) == 30
