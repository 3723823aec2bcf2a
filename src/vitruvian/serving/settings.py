"""What a server is started with: models, keys, folders and limits."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitruvian.errors import InputError, check_names
from vitruvian.limits import Limits, check_positive_integers, limits_from_environment, parse_numbers
from vitruvian.serving.auth import ApiKey

_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits of a server. Those of images, `vitruvian.limits.Limits`, hold too.

    Args:
        upload_bytes: Bytes of an uploaded image.
        pending_bytes: Bytes of all images that are uploaded and not answered.
        upload_seconds: Seconds that an upload may take.
        request_seconds: Seconds from the upload to the answer.
        requests: Requests at the same time.
        connections: Connections at the same time; further ones take the place of those that send nothing.
        header_seconds: Seconds in which the header of a request must arrive.
        queue: Images that wait for a model.
        prompts: Points and boxes in a request.
        request_tiles: Tiles of the image of a request. For jobs, `Limits.tiles` holds.
        images: Stored images.
        stored_bytes: Bytes of stored images and their embeddings.
        image_seconds: Seconds that a stored image stays after its last use.
        videos: Stored videos.
        video_bytes: Bytes of stored videos.
        video_seconds: Seconds that a stored video stays after its last use.
        jobs: Stored jobs, finished ones too.
        queued_jobs: Jobs that wait.
        job_files: Files of a job.
        job_upload_bytes: Bytes that are uploaded for a job, unpacked.
        job_bytes: Bytes of a job's folder, with its results.
        disk_bytes: Bytes of all jobs.
        job_seconds: Seconds that a finished job is stored.
        frames: Frames of a video.
    """

    upload_bytes: int = 64 * _MIB
    pending_bytes: int = 1 * _GIB
    upload_seconds: int = 120
    request_seconds: int = 60
    requests: int = 512
    connections: int = 768
    header_seconds: int = 15
    queue: int = 64
    prompts: int = 256
    request_tiles: int = 64
    images: int = 64
    stored_bytes: int = 1 * _GIB
    image_seconds: int = 900
    videos: int = 16
    video_bytes: int = 8 * _GIB
    video_seconds: int = 3600
    jobs: int = 1000
    queued_jobs: int = 64
    job_files: int = 1000
    job_upload_bytes: int = 2 * _GIB
    job_bytes: int = 8 * _GIB
    disk_bytes: int = 32 * _GIB
    job_seconds: int = 7 * 24 * 3600
    frames: int = 100_000

    def __post_init__(self) -> None:
        check_positive_integers(self)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a server.

    Args:
        models: The checkpoint of each task that is served, by name.
        data: Folder of the jobs and of temporary files.
        host: Address to listen on.
        port: Port to listen on.
        keys: API keys; none are needed only if `host` is a loopback address.
        device: Device of the models; by default the best one available.
        dtype: Data type of the weights; by default what suits the device.
        detector: What detects people, unless the model does: see `vitruvian.pipelines.people.open_detector`.
        batch_size: Inputs in a batch; None chooses by device.
        job_workers: Jobs that run at the same time.
        allow_urls: Whether images may be fetched from public addresses that clients name.
        cors_origins: Origins of other sites whose pages may call the server.
        limits: Limits of the server.
        image_limits: Changes to `vitruvian.limits.Limits` for the processes of jobs.
    """

    models: Mapping[str, str]
    data: Path
    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[ApiKey, ...] = ()
    device: str | None = None
    dtype: str | None = None
    detector: str | None = None
    batch_size: int | None = None
    job_workers: int = 1
    allow_urls: bool = False
    cors_origins: tuple[str, ...] = ()
    limits: ServerLimits = field(default_factory=ServerLimits)
    image_limits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.keys and not is_loopback(self.host):
            raise InputError(
                subject="api_key_file",
                expected=f"API keys to listen on {self.host}",
                got="none",
                hint="Create one with: vitruvian serve --api-key-file keys --add-key NAME",
            )

    def process_limits(self) -> dict[str, int]:
        """Return changes to `vitruvian.limits.Limits` for the process of the server: what clients send is smaller."""
        return {
            "download_bytes": self.limits.upload_bytes,
            "download_seconds": self.limits.upload_seconds,
            **self.image_limits,
            "tiles": self.limits.request_tiles,
        }


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_limits(texts: Mapping[str, str], *, subject: str) -> tuple[dict[str, int], ServerLimits]:
    """Read limits such as ``{"queue": "8", "image_pixels": "4e7"}``: those of `Limits`, and those of the server.

    Limits of the server come from the environment too: VITRUVIAN_MAX_QUEUE=8.
    """
    server = [one.name for one in dataclasses.fields(ServerLimits)]
    shared = [one.name for one in dataclasses.fields(Limits)]
    check_names(subject, texts, [*server, *shared], expected="the name of a limit")
    found = limits_from_environment(ServerLimits)
    numbers = parse_numbers(texts, subject=subject)
    found |= {name: value for name, value in numbers.items() if name in server}
    return {name: value for name, value in numbers.items() if name in shared}, ServerLimits(**found)


def default_data_folder() -> Path:
    """Return the folder of jobs if none is named."""
    root = os.environ.get("XDG_DATA_HOME")
    return (Path(root) if root else Path.home() / ".local" / "share") / "vitruvian" / "serve"
