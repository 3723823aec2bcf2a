"""`Service`: the models, stored images and jobs behind the routes."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from fastapi import Request

from vitruvian.models.sapiens2.modeling import Sapiens2TaskModel
from vitruvian.models.sapiens2.multitask_checkpoint import local_checkpoint_tasks
from vitruvian.pipelines import pipeline, pipeline_class
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.options import PeopleOptions
from vitruvian.pipelines.people.detectors import PeopleDetector, open_detector
from vitruvian.pipelines.people.selection import detector_spec
from vitruvian.pipelines.sources import load_rgb
from vitruvian.results import Result
from vitruvian.serving.batching import ModelQueue, Ticket
from vitruvian.serving.content import encode
from vitruvian.serving.errors import RequestError, not_found, too_many
from vitruvian.serving.images import EncodeImage, ImageStore, StoredImage, segment_stored
from vitruvian.serving.jobs import Jobs
from vitruvian.serving.metrics import Metrics
from vitruvian.serving.options import IMAGE_OPTIONS, TaskOptions
from vitruvian.serving.settings import Settings
from vitruvian.serving.uploads import UploadReader
from vitruvian.tasks import PLOTS, TASKS

AnswerT = TypeVar("AnswerT")
_CLICK_THREADS = 2
_CLIENT_GONE = 499  # for the log and the metrics: no client reads it
_JOB_STATES = ("queued", "running", "done", "failed", "cancelled")


class Service:
    """A server's models, stored images and jobs.

    Args:
        settings: What it is started with.
        on_failure: Called with the error if a model cannot be opened.
    """

    def __init__(self, settings: Settings, on_failure: Callable[[Exception], object]) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.images, self.jobs = ImageStore(settings.limits), Jobs(settings)
        self.uploads = UploadReader(settings.limits, allow_urls=settings.allow_urls)
        self.stopping = asyncio.Event()
        self.temporary = settings.data / "tmp"
        shutil.rmtree(self.temporary, ignore_errors=True)  # of a killed server
        self.temporary.mkdir(parents=True)
        self._clicks = ThreadPoolExecutor(_CLICK_THREADS, thread_name_prefix="vitruvian-click")
        self._clicks_waiting = 0
        self._open_lock, device_lock = threading.Lock(), threading.Lock()
        self._loaded: dict[object, tuple[Any, Any]] = {}  # models and processors, by checkpoint and class
        self._encoders: dict[str, Any] = {}  # of multi-task checkpoints
        self._detectors: dict[str, PeopleDetector] = {}
        self.queues = {
            task: ModelQueue(
                task,
                lambda task=task: self._open(task),  # type: ignore[misc]
                size=settings.limits.queue,
                lock=device_lock,
                metrics=self.metrics,
                batch_size=None if task == "masks" else settings.batch_size,
                batch_timeout=settings.batch_timeout,
                on_failure=on_failure,
            )
            for task in settings.models
            if task in IMAGE_OPTIONS
        }
        self._add_gauges()

    def _add_gauges(self) -> None:
        gauge = self.metrics.gauge
        for task, queue in self.queues.items():
            gauge("vitruvian_queue_length", "Images that wait for a model.", queue.__len__, task=task)
        gauge("vitruvian_pending_bytes", "Bytes of images that are not answered.", lambda: self.uploads.pending_bytes)
        gauge("vitruvian_stored_images", "Stored images.", self.images.__len__)
        gauge("vitruvian_stored_bytes", "Bytes of stored images and embeddings.", lambda: self.images.nbytes)
        gauge("vitruvian_job_bytes", "Bytes of jobs on the disk.", lambda: self.jobs.nbytes)
        for state in _JOB_STATES:
            gauge("vitruvian_jobs", "Jobs by state.", lambda state=state: self.jobs.count(state), state=state)  # type: ignore[misc]
        if torch.cuda.is_available():
            gauge("vitruvian_cuda_bytes", "GPU memory of tensors.", lambda: float(torch.cuda.memory_allocated()))
            gauge("vitruvian_cuda_reserved_bytes", "GPU memory held.", lambda: float(torch.cuda.memory_reserved()))

    def start(self) -> None:
        """Open the models in the background, and run jobs that wait."""
        for queue in self.queues.values():
            queue.start()
        self.jobs.start()

    async def stop(self) -> None:
        """Answer what was accepted, and interrupt jobs."""
        self.stopping.set()
        await asyncio.gather(self.jobs.stop(), *(asyncio.to_thread(queue.close) for queue in self.queues.values()))
        self._clicks.shutdown(wait=True)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _open(self, task: str) -> TaskPipeline[Any, Any]:
        """Open the pipeline of a task. What several tasks have in common is in memory once.

        Tasks with the same checkpoint and class share the model; tasks of a multi-task checkpoint share the people
        detector, and on a CPU the encoder. Models of a device run one at a time.
        """
        settings, cls = self.settings, pipeline_class(task)
        checkpoint = settings.models[task]
        options: dict[str, Any] = {}
        with self._open_lock:
            if issubclass(TASKS[task].options_class(), PeopleOptions):
                own = checkpoint if "people" in local_checkpoint_tasks(checkpoint) else None
                detector = detector_spec(PeopleOptions(detect=settings.detector), own)
                if isinstance(detector, str):
                    if detector not in self._detectors:
                        self._detectors[detector] = open_detector(detector, device=settings.device)
                    options["detect"] = self._detectors[detector]
            opened: TaskPipeline[Any, Any]
            if (checkpoint, TASKS[task].auto_key) in self._loaded:
                return cls(*self._loaded[checkpoint, TASKS[task].auto_key], **options)  # type: ignore[no-any-return]
            opened = pipeline(task, checkpoint, device=settings.device, dtype=settings.dtype, **options)
            self._loaded[checkpoint, TASKS[task].auto_key] = opened.model, opened.processor
            if (
                local_checkpoint_tasks(checkpoint)
                and isinstance(opened.model, Sapiens2TaskModel)
                and opened.device.type == "cpu"
            ):
                opened.model.model = self._encoders.setdefault(checkpoint, opened.model.model)
            return opened

    def queue(self, task: str) -> ModelQueue:
        """Return the queue of a task, or raise an error 404 that says how to serve it."""
        if task not in self.queues:
            if task not in TASKS or not TASKS[task].image_files:
                raise not_found("task", repr(task[:40]), f"Tasks are {', '.join(self.queues)}.")
            example = (*TASKS[task].checkpoints, "path/to/a/checkpoint")[0]
            raise RequestError(
                404, subject=task, expected="a task with a model", got="none",
                hint=f"Start the server with it: vitruvian serve --model builtin --model {task}={example}",
            )  # fmt: skip
        return self.queues[task]

    async def answer(
        self, request: Request, task: str, body: bytes, name: str, options: TaskOptions, kind: str
    ) -> bytes:
        """Run a task on an image, and return the result as the bytes of a file."""
        queue = self.queue(task)
        options.check_prompts(self.settings.limits.prompts)
        call = queue.pipe.for_call(options.call_options())

        def answer(result: Result) -> bytes:
            return encode(result, kind, options, self.temporary)

        return await self.wait(request, queue.submit(Ticket(body, name, call, answer)))

    async def store(self, request: Request, body: bytes, name: str, owner: str | None) -> StoredImage:
        """Store an image, with its embedding if there is a model for that."""
        queue = self.queues.get("segment")
        if queue is None:
            size_hw = await self.wait(request, self._submit_click(lambda: load_rgb(body).shape[:2]))
            image = StoredImage(body, name, (size_hw[0], size_hw[1]), owner)
        else:
            pipe: Any = queue.pipe
            ticket: Ticket[Any] = Ticket(body, name, EncodeImage(pipe), lambda encoded: encoded)
            size_hw, embedding = await self.wait(request, queue.submit(ticket))
            image = StoredImage(body, name, size_hw, owner, embedding)
        self.images.add(image)
        return image

    async def segment(self, request: Request, image: StoredImage, options: TaskOptions, kind: str) -> bytes:
        """Segment a stored image by prompts, with its embedding."""
        queue = self.queue("segment")
        options.check_prompts(self.settings.limits.prompts)
        call_options = options.call_options()

        def work() -> bytes:
            with self.metrics.stage("segment", "click"):
                result = segment_stored(queue, image, call_options, draws=kind in PLOTS)
                return encode(result, kind, options, self.temporary)

        return await self.wait(request, self._submit_click(work))

    def _submit_click(self, work: Callable[[], AnswerT]) -> Future[AnswerT]:
        """Run a short piece of work in a thread."""
        limit = self.settings.limits.queue
        if self._clicks_waiting >= limit:
            raise too_many("queue", limit, "clicks that wait", retry_seconds=1)
        self._clicks_waiting += 1
        future = self._clicks.submit(work)
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:
            self._clicks_waiting -= 1

        future.add_done_callback(lambda _: loop.call_soon_threadsafe(done, None))
        return future

    async def wait(self, request: Request, future: Future[AnswerT]) -> AnswerT:
        """Return an answer; cancel it when its time is up (504) or the client has gone."""
        seconds = self.settings.limits.request_seconds
        answer = asyncio.ensure_future(asyncio.wrap_future(future))
        gone = asyncio.create_task(_disconnected(request))
        try:
            waiting: set[asyncio.Future[Any]] = {answer, gone}
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            client_gone = gone.done()
        finally:
            gone.cancel()
            answer.cancel()  # cancels `future` too
        if client_gone:
            raise RequestError(_CLIENT_GONE, subject="client", expected="one that waits for the answer", got="none")
        raise RequestError(
            504, subject="request", expected=f"an answer within {seconds} seconds", got="none",
            hint="Try again later, or with a smaller image.",
        )  # fmt: skip


async def _disconnected(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
