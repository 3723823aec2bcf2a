"""`Service`: the models, stored images and jobs behind the routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, get_args

import torch
from fastapi import Request

from vitruvian.errors import InputError
from vitruvian.models.sapiens2.modeling import Sapiens2TaskModel
from vitruvian.models.sapiens2.multitask_checkpoint import local_heads
from vitruvian.pipelines import pipeline, pipeline_class
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.options import PeopleOptions
from vitruvian.pipelines.people.detectors import PeopleDetector, SourceDetector, open_detector
from vitruvian.pipelines.people.selection import detector_spec
from vitruvian.pipelines.save_option import encode_as
from vitruvian.results import Result
from vitruvian.serving.errors import CLIENT_CLOSED_REQUEST, RequestError, not_found, too_many
from vitruvian.serving.job_table import Job, JobState
from vitruvian.serving.jobs import Jobs
from vitruvian.serving.lru_store import LruStore
from vitruvian.serving.metrics import Metrics
from vitruvian.serving.model_queue import FairLock, ModelQueue
from vitruvian.serving.queued_requests import QueuedRequest, decode_upload
from vitruvian.serving.request_bodies import UploadReader
from vitruvian.serving.settings import Settings
from vitruvian.serving.stored_images import (
    CachedPeopleDetector,
    ImageEmbedding,
    ImageEmbeddingSteps,
    StoredImage,
    segment_stored,
)
from vitruvian.serving.stored_videos import StoredVideo, video_store
from vitruvian.serving.task_requests import IMAGE_REQUESTS, TaskRequest, TrackPromptFields, TrackRequest
from vitruvian.serving.upload_folder import UploadFolder
from vitruvian.tasks import PLOTS, TASKS, find_task

_log = logging.getLogger("vitruvian.serving")
AnswerT = TypeVar("AnswerT")
JobStarter = Callable[[StoredVideo, str, str | None, Sequence[str]], Awaitable[Job]]  # video, task, owner, arguments
_SHORT_TASK_THREADS = 2
_EXPIRY_SECONDS = 60.0
_DRAIN_SECONDS = 5.0  # at the end, for what is left after the server has waited for open requests
# For how long a thread keeps the GIL while others wait for it. Python's 5 ms delay each short step of a request behind
# the threads that decode images: 108 instead of 128 requests/s on an H200 (docs/serving.md).
_SWITCH_SECONDS = 0.0005


class Service:
    """A server's models, stored images and jobs.

    Args:
        settings: What it is started with.
        on_failure: Called with the error if a model cannot be opened.
    """

    def __init__(self, settings: Settings, on_failure: Callable[[Exception], object]) -> None:
        self.settings, self.metrics = settings, Metrics()
        limits = settings.limits
        self.images: LruStore[StoredImage] = LruStore(
            "image",
            max_items=limits.images,
            max_bytes=limits.stored_bytes,
            seconds=limits.image_seconds,
            on_remove=_cancel_embedding,
        )
        self._embedding_tasks: set[asyncio.Task[ImageEmbedding]] = set()
        self.videos, self.jobs = video_store(limits), Jobs(settings)
        self.uploads = UploadReader(settings.limits, allow_urls=settings.allow_urls)
        self.start_job: JobStarter = self._start_job_here  # `serve --ray` has the jobs in another process
        self.stopping = asyncio.Event()
        self.temporary, self._video_root = settings.data / "tmp", settings.data / "videos"
        for folder in (self.temporary, self._video_root):
            shutil.rmtree(folder, ignore_errors=True)  # of a killed server
            folder.mkdir(parents=True)
        self._short_tasks = ThreadPoolExecutor(_SHORT_TASK_THREADS, thread_name_prefix="vitruvian-short-task")
        self._short_tasks_waiting = 0
        self._expiry: asyncio.Task[None] | None = None
        self._python_switch_seconds = sys.getswitchinterval()
        self._open_lock, device_lock = threading.Lock(), FairLock()
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
                on_failure=on_failure,
            )
            for task in settings.models
            if task in IMAGE_REQUESTS
        }
        self._add_gauges()

    def _add_gauges(self) -> None:
        gauge = self.metrics.gauge
        for task, queue in self.queues.items():
            gauge("vitruvian_queue_length", "Images that wait for a model.", queue.__len__, task=task)
        gauge("vitruvian_pending_bytes", "Bytes of images that are not answered.", lambda: self.uploads.pending_bytes)
        gauge("vitruvian_stored_images", "Stored images.", self.images.__len__)
        gauge("vitruvian_stored_bytes", "Bytes of stored images and embeddings.", lambda: self.images.nbytes)
        gauge("vitruvian_stored_videos", "Stored videos.", self.videos.__len__)
        gauge("vitruvian_video_bytes", "Bytes of stored videos on the disk.", lambda: self.videos.nbytes)
        gauge("vitruvian_job_bytes", "Bytes of jobs on the disk.", lambda: self.jobs.nbytes)
        for state in get_args(JobState):
            gauge("vitruvian_jobs", "Jobs by state.", lambda state=state: self.jobs.count(state), state=state)  # type: ignore[misc]
        if torch.cuda.is_available():
            gauge("vitruvian_cuda_bytes", "GPU memory of tensors.", lambda: float(torch.cuda.memory_allocated()))
            gauge("vitruvian_cuda_reserved_bytes", "GPU memory held.", lambda: float(torch.cuda.memory_reserved()))

    def start(self) -> None:
        """Open the models in the background, and run jobs that wait. Shortens the interpreter's switch interval."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        for queue in self.queues.values():
            queue.start()
        self.jobs.start()
        self._expiry = asyncio.create_task(self._remove_expired())

    async def _remove_expired(self) -> None:
        """Remove what has expired, from time to time."""
        while True:
            await asyncio.sleep(_EXPIRY_SECONDS)
            self.images.remove_expired()
            self.videos.remove_expired()

    async def stop(self) -> None:
        """Answer what was accepted, for a limited time, and interrupt jobs."""
        self.stopping.set()
        for task in self._embedding_tasks:
            task.cancel()
        closing = (asyncio.to_thread(queue.close, _DRAIN_SECONDS) for queue in self.queues.values())
        await asyncio.gather(self.jobs.stop(), *closing)
        if self._expiry is not None:
            self._expiry.cancel()
        await asyncio.to_thread(self._short_tasks.shutdown, cancel_futures=True)  # waits for two; the loop goes on
        sys.setswitchinterval(self._python_switch_seconds)
        for folder in (self.temporary, self._video_root):
            shutil.rmtree(folder, ignore_errors=True)

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
                own = checkpoint if "people" in local_heads(checkpoint) else None
                detector = detector_spec(PeopleOptions(detect=settings.detector), own)
                if isinstance(detector, str):
                    if detector not in self._detectors:
                        self._detectors[detector] = open_detector(detector, device=settings.device)
                    options["detect"] = self._detectors[detector]
            opened: TaskPipeline[Any, Any]
            if (checkpoint, TASKS[task].auto) in self._loaded:
                return cls(*self._loaded[checkpoint, TASKS[task].auto], **options)  # type: ignore[no-any-return]
            opened = pipeline(task, checkpoint, device=settings.device, dtype=settings.dtype, **options)
            self._loaded[checkpoint, TASKS[task].auto] = opened.model, opened.processor
            if local_heads(checkpoint) and isinstance(opened.model, Sapiens2TaskModel) and opened.device.type == "cpu":
                opened.model.model = self._encoders.setdefault(checkpoint, opened.model.model)
            return opened

    def served_task(self, name: str) -> str:
        """Return the task with this name or alias, or raise an error 404 that says how to serve it."""
        with contextlib.suppress(InputError):
            name = find_task(name).name
        return self.queue(name).name

    def queue(self, task: str) -> ModelQueue:
        """Return the queue of a task, or raise an error 404 that says how to serve it."""
        if task not in self.queues:
            if task not in TASKS or not TASKS[task].takes_images:
                raise not_found("task", repr(task[:40]), f"Tasks are {', '.join(self.queues)}.")
            example = (*TASKS[task].checkpoints, "path/to/a/checkpoint")[0]
            raise RequestError(
                404, subject=task, expected="a task with a model", got="none",
                hint=f"Start the server with it: vitruvian serve --model builtin --model {task}={example}",
            )  # fmt: skip
        return self.queues[task]

    async def answer(
        self,
        request: Request,
        task: str,
        body: bytes,
        name: str,
        options: TaskRequest,
        file_format: str,
        *,
        stored: StoredImage | None = None,
    ) -> bytes:
        """Run a task on an image, which may be stored, and return the result as the bytes of a file."""
        queue = self.queue(task)
        options.check(self.settings.limits.prompts)
        call = queue.pipe.for_call(options.call_options())
        if stored is not None and call.detector is not None and not isinstance(call.detector, SourceDetector):
            call.detector = CachedPeopleDetector(call.detector, stored.people)
        serialize = partial(self._serialize, file_format, options)
        return await self.wait(request, queue.submit(QueuedRequest(body, name, call, serialize)))

    def _serialize(self, file_format: str, options: TaskRequest, result: Result) -> bytes:
        """Return a result as the bytes of a file."""
        output = options.output()
        save = {} if file_format in PLOTS else output.save_options(file_format)
        return encode_as(file_format, output.convert(result), draw=output.draw, folder=self.temporary, **save)

    async def store(self, request: Request, body: bytes, name: str, owner: str | None) -> StoredImage:
        """Store an image. Its embedding follows in the background, if there is a model for it that is not busy."""
        height, width = await self.wait(request, self._submit_short_task(lambda: decode_upload(body, name).shape[:2]))
        image = StoredImage(body=body, name=name, size_hw=(height, width), owner=owner)
        self.images.add(image)
        if "segment" in self.queues:
            with contextlib.suppress(RequestError):  # it loads, or its queue is full
                self._start_embedding(image)
        return image

    def _start_embedding(self, image: StoredImage) -> asyncio.Task[ImageEmbedding]:
        """Return the task that computes the embedding of an image; start it unless it runs."""
        if image.embedding_task is None:
            queue = self.queue("segment")
            pipe: Any = queue.pipe
            future = queue.submit(
                QueuedRequest(image.body, image.name, ImageEmbeddingSteps(pipe), lambda embedding: embedding)
            )
            image.embedding_task = asyncio.create_task(self._wait_for_embedding(image, future))
            self._embedding_tasks.add(image.embedding_task)
            image.embedding_task.add_done_callback(self._embedding_tasks.discard)
            image.embedding_task.add_done_callback(_log_failure)
        return image.embedding_task

    async def _wait_for_embedding(self, image: StoredImage, future: Future[ImageEmbedding]) -> ImageEmbedding:
        """Wait for the embedding of an image, and keep it if there is space."""
        try:
            embedding = await asyncio.wrap_future(future)
        finally:
            image.embedding_task = None
        if image.id in self.images and self.images.fits(image.nbytes + embedding.nbytes):
            image.embedding = embedding
            self.images.make_room(image)
        return embedding

    async def segment(self, request: Request, image: StoredImage, options: TaskRequest, file_format: str) -> bytes:
        """Segment a stored image by prompts, with its embedding."""
        queue = self.queue("segment")
        options.check(self.settings.limits.prompts)
        call_options = options.call_options()
        embedding = image.embedding
        if embedding is None:  # several clicks wait for the same
            try:
                embedding = await self.wait(request, asyncio.shield(self._start_embedding(image)))
            except RequestError:
                self.images.get(image.id, image.owner)  # 404 if it was removed meanwhile
                raise

        def work() -> bytes:
            with self.metrics.stage("segment", "click"):
                result = segment_stored(queue, image, embedding, call_options, draws=file_format in PLOTS)
                return self._serialize(file_format, options, result)

        return await self.wait(request, self._submit_short_task(work))

    async def read_frame(self, request: Request, video: StoredVideo, frame: int) -> bytes:
        """Return a frame of a stored video as a JPEG file."""
        return await self.wait(request, self._submit_short_task(lambda: video.read_frame(frame)))

    async def segment_frame(
        self, request: Request, video: StoredVideo, frame: int, options: TaskRequest, file_format: str
    ) -> bytes:
        """Segment a frame of a stored video by prompts; the frame is a stored image from the first prompt on."""
        self.queue("segment").check_space()
        image = None
        with contextlib.suppress(RequestError):  # none, or it has been evicted
            image = self.images.get(video.frame_images.get(frame, ""), video.owner)
        if image is None:
            body = await self.read_frame(request, video, frame)
            image = await self.store(request, body, f"{video.name} frame {frame}", video.owner)
            video.frame_images[frame] = image.id
        return await self.segment(request, image, options, file_format)

    def add_prompt(self, video: StoredVideo, prompt: TrackPromptFields) -> None:
        """Store a prompt of a video, in the place of an earlier one of the object in this frame."""
        prompts = video.prompts | {(prompt.frame, prompt.object_id): prompt}
        TrackRequest.read({"prompts": list(prompts.values())}).check(self.settings.limits.prompts)
        video.prompts = prompts

    @contextlib.asynccontextmanager
    async def video_folder(self) -> AsyncIterator[UploadFolder]:
        """Yield the folder of a new video to upload to; unless it is stored, it is removed at the end."""
        video_id = secrets.token_urlsafe(16)
        folder = self._video_root / video_id
        async with self.jobs.upload(video_id, folder, is_stored=lambda: video_id in self.videos) as upload:
            yield upload

    async def _start_job_here(self, video: StoredVideo, task: str, owner: str | None, arguments: Sequence[str]) -> Job:
        """Start a job with a stored video, of which it gets a link."""
        async with self.jobs.new_folder() as folder:
            folder.add_link(video.path, video.name)
            return self.jobs.create(folder, task, owner, arguments)

    def _submit_short_task(self, work: Callable[[], AnswerT]) -> Future[AnswerT]:
        """Run a short piece of work in a thread."""
        limit = self.settings.limits.queue
        if self._short_tasks_waiting >= limit:
            raise too_many("queue", limit, "requests that wait", retry_seconds=1)
        self._short_tasks_waiting += 1
        future = self._short_tasks.submit(work)
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:
            self._short_tasks_waiting -= 1

        future.add_done_callback(lambda _: loop.call_soon_threadsafe(done, None))
        return future

    async def wait(self, request: Request, future: Future[AnswerT] | asyncio.Future[AnswerT]) -> AnswerT:
        """Return an answer; cancel it when its time is up (504) or the client has gone."""
        seconds = self.settings.limits.request_seconds
        answer = asyncio.ensure_future(asyncio.wrap_future(future))
        gone = asyncio.create_task(_disconnected(request))
        try:
            waiting: set[asyncio.Future[Any]] = {answer, gone}
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.cancelled():  # by the end of the server
                raise RequestError(
                    503, headers={"Retry-After": "5"}, subject="request", expected="an answer",
                    got="none, since it was cancelled", hint="Try again in 5 seconds.",
                )  # fmt: skip
            if answer.done():
                return answer.result()
            client_gone = gone.done()
        finally:
            gone.cancel()
            answer.cancel()  # cancels `future` too
        if client_gone:
            raise RequestError(
                CLIENT_CLOSED_REQUEST,
                subject="client",
                expected="a client that waits for the answer",
                got="a closed connection",
            )
        raise RequestError(
            504, subject="request", expected=f"an answer within {seconds} seconds", got="none",
            hint="Try again later, or with a smaller image.",
        )  # fmt: skip


def _cancel_embedding(image: StoredImage) -> None:
    if image.embedding_task is not None:
        image.embedding_task.cancel()


def _log_failure(task: asyncio.Task[ImageEmbedding]) -> None:
    """Log why an embedding could not be computed; the next click tries again, and answers with the error."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("the embedding of a stored image: %s", error)


async def _disconnected(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
