"""`vitruvian serve --ray`: the application of `vitruvian.serving` as deployments of Ray Serve.

| application | route | replicas | why |
|---|---|---|---|
| `vitruvian` | / | as many as requests need | nothing is kept between requests |
| `vitruvian-images` | /v1/images | 1 | stored images and their embeddings are in its memory |
| `vitruvian-videos` | /v1/videos | 1 | stored videos and their prompts are in its folder and memory |
| `vitruvian-jobs` | /v1/jobs | 1 | a folder of jobs belongs to one process; jobs run in processes of their own |

A job with a stored video is started by a call from the replica of videos to that of jobs, which copies the video.

A replica is ready once its models are loaded, and answers what it has accepted before it ends. So an update with
`serve deploy` replaces one replica after another, and no request fails.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitruvian.errors import InputError, MissingExtraError
from vitruvian.limits import set_limits
from vitruvian.scale.cluster import import_ray
from vitruvian.serving.app import create_app
from vitruvian.serving.auth import ApiKey
from vitruvian.serving.job_table import Job
from vitruvian.serving.service import Service
from vitruvian.serving.settings import ServerLimits, Settings
from vitruvian.serving.stored_videos import StoredVideo, open_upload

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Role = Literal["tasks", "images", "videos", "jobs"]
_APPLICATIONS: dict[Role, tuple[str, str]] = {  # role -> name and route
    "tasks": ("vitruvian", "/"),
    "images": ("vitruvian-images", "/v1/images"),
    "videos": ("vitruvian-videos", "/v1/videos"),
    "jobs": ("vitruvian-jobs", "/v1/jobs"),
}
_LOCK_SECONDS = 60  # time for the previous replica of jobs to release its folder
_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 30.0  # time for a replica to answer open requests before it ends
_STATE_GPU = 0.25  # share of a GPU, at most, for each of the single replicas
_CHUNK_BYTES = 8 << 20  # bytes of a video that are copied at a time


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How many replicas answer requests.

    Attributes:
        min_replicas: Fewest replicas.
        max_replicas: Most replicas.
        target_requests: Requests of each replica, waiting ones too, above which replicas are added.
        cpus: Cores of each.
        gpus: GPUs of each, possibly a fraction.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    target_requests: float = 8.0
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise InputError(
                f"replicas: expected a number, or two such as 1:4, got {self.min_replicas}:{self.max_replicas}."
            )


def import_serve() -> Any:
    """Import Ray Serve, or raise `MissingExtraError`."""
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtraError("ray[serve]", "scale", "vitruvian serve --ray") from error
    return serve


# ------------------------------------------------------------------------------------------------ configuration


def serve_config(settings: Settings, scaling: Scaling) -> dict[str, Any]:
    """Return the configuration that `serve deploy` takes, as YAML or JSON."""
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": settings.host, "port": settings.port},
        "applications": [
            {
                "name": name,
                "route_prefix": route,
                "import_path": f"{__name__}:build_application",
                "args": {"role": role, "settings": _settings_to_json(settings)},
                "deployments": [{"name": name, **_deployment_options(role, settings, scaling)}],
            }
            for role, (name, route) in _APPLICATIONS.items()
        ],
    }


def _deployment_options(role: Role, settings: Settings, scaling: Scaling) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_ongoing_requests": settings.limits.requests,
        "graceful_shutdown_timeout_s": _DRAIN_SECONDS,
    }
    if role != "tasks":
        resources = {"num_cpus": 0, "num_gpus": min(_STATE_GPU, scaling.gpus)}
        return options | {"num_replicas": 1, "ray_actor_options": resources}
    options["ray_actor_options"] = {"num_cpus": scaling.cpus, "num_gpus": scaling.gpus}
    if scaling.min_replicas == scaling.max_replicas:
        return options | {"num_replicas": scaling.min_replicas}
    return options | {
        "autoscaling_config": {
            "min_replicas": scaling.min_replicas,
            "max_replicas": scaling.max_replicas,
            "target_ongoing_requests": scaling.target_requests,
        }
    }


def _settings_to_json(settings: Settings) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    values = {"models": dict(settings.models), "data": str(settings.data)} | _changed(settings)
    return values if settings.limits == ServerLimits() else values | {"limits": _changed(settings.limits)}


def _changed(values: Settings | ServerLimits) -> dict[str, Any]:
    changed = {}
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if field.name in ("models", "data", "limits") or value in (field.default, {}):
            continue
        if isinstance(value, tuple):
            value = [dataclasses.asdict(item) if isinstance(item, ApiKey) else item for item in value]
        changed[field.name] = value
    return changed


def _settings_from_json(values: Mapping[str, Any]) -> Settings:
    return Settings(
        **dict(values)
        | {
            "data": Path(values["data"]),
            "keys": tuple(ApiKey(**key) for key in values.get("keys", ())),
            "cors_origins": tuple(values.get("cors_origins", ())),
            "limits": ServerLimits(**values.get("limits", {})),
        }
    )


# ------------------------------------------------------------------------------------------------ replicas


def build_application(args: Mapping[str, Any]) -> Any:
    """Return an application for Ray Serve; `serve deploy` calls it with the `args` of `serve_config`."""
    return _deployment(args).bind()


def _deployment(args: Mapping[str, Any]) -> Any:
    serve = import_serve()
    role, settings = args["role"], _settings_from_json(args["settings"])

    def build() -> _ReplicaApp:
        return _ReplicaApp(role, settings)

    return serve.deployment(serve.ingress(build)(Replica), name=_APPLICATIONS[role][0])


class Replica:
    """What replicas call in each other by handles of Ray Serve."""

    async def create_job(self, video: Sequence[Any], name: str, *job: Any) -> Job:
        """Create a job with a video: references to its bytes, its name, and the last arguments of `JobStarter`."""
        assert _ReplicaApp.of_process is not None
        return await _ReplicaApp.of_process.create_job(video, name, *job)


class _ReplicaApp:
    """The ASGI application of a replica."""

    of_process: ClassVar[_ReplicaApp | None] = None  # a replica is a process

    def __init__(self, role: Role, settings: Settings) -> None:
        self._role, self._failures = role, list[Exception]()
        _ReplicaApp.of_process = self
        set_limits(**settings.process_limits())
        if role != "jobs":  # a folder belongs to one process
            self._folder = tempfile.TemporaryDirectory(prefix="vitruvian-serve-")
            settings = dataclasses.replace(settings, data=Path(self._folder.name))
        wait = _LOCK_SECONDS if role == "jobs" else 0
        self._app = _create_app(settings, self._failures, time.monotonic() + wait)
        self._service: Service = self._app.state.service
        if role == "videos":
            self._service.start_job = _start_job
            for task in set(self._service.queues) - {"segment"}:  # segment is for prompts; other tasks are jobs
                del self._service.queues[task]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; routes are those of the whole server, not below the prefix of this application."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            await self._app({**scope, "root_path": ""}, receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._start()
        except Exception as error:  # noqa: BLE001 - the protocol passes its text on
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._role == "jobs":
            self._service.stopping.set()
            await self._service.jobs.stop()
        else:
            await self._service.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        """Load the models, or start jobs, which run in processes of their own."""
        if self._role == "jobs":
            self._service.jobs.start()
            return
        self._service.start()
        while any(queue.state == "loading" for queue in self._service.queues.values()) and not self._failures:
            await asyncio.sleep(_POLL_SECONDS)
        if self._failures:
            raise self._failures[0]

    async def create_job(
        self, video: Sequence[Any], name: str, task: str, owner: str | None, arguments: Sequence[str]
    ) -> Job:
        """Copy a video from the object store, and create a job with it."""
        service = self._service
        async with service.video_folder() as folder:
            with folder.open_file() as file:
                for chunk in video:
                    await asyncio.to_thread(file.write, await chunk)
            await asyncio.to_thread(folder.add_upload, name, "")
            return await service.start_job(open_upload(folder, owner), task, owner, arguments)


async def _start_job(video: StoredVideo, task: str, owner: str | None, arguments: Sequence[str]) -> Job:
    """Start a job with a stored video in the replica of jobs. Its bytes pass through Ray's object store."""
    ray = import_ray()
    handle = import_serve().get_app_handle(_APPLICATIONS["jobs"][0])

    def put() -> list[Any]:
        with video.path.open("rb") as file:
            return [ray.put(chunk) for chunk in iter(lambda: file.read(_CHUNK_BYTES), b"")]

    chunks = await asyncio.to_thread(put)
    try:
        job: Job = await handle.create_job.remote(chunks, video.name, task, owner, arguments)
    except ray.exceptions.RayTaskError as error:
        raise getattr(error, "cause", error) from None
    return job


def _create_app(settings: Settings, failures: list[Exception], deadline: float) -> Any:
    """Create the application; until the deadline, another process may hold the folder of jobs."""
    while True:
        try:
            return create_app(settings, on_failure=failures.append)
        except InputError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


# ------------------------------------------------------------------------------------------------ this machine


def start_on_serve(settings: Settings, scaling: Scaling) -> None:
    """Deploy all applications on the cluster that `ray.init` has connected to, and wait until they are ready.

    Raises:
        InputError: A model cannot be opened.
    """
    serve = import_serve()
    config = serve_config(settings, scaling)
    serve.start(proxy_location=config["proxy_location"], http_options=config["http_options"])
    targets = []
    for application in config["applications"]:
        (options,) = application["deployments"]
        bound = _deployment(application["args"]).options(**options).bind()
        targets.append(serve.RunTarget(bound, name=application["name"], route_prefix=application["route_prefix"]))
    try:
        serve.run_many(targets)
    except RuntimeError as error:
        raise InputError(f"serve --ray: expected deployments that start, got {error}") from error
