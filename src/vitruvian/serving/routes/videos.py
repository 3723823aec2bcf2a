"""`/v1/videos`: stored videos, prompts in their frames, and jobs that track the objects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import FastAPI, Path, Request, Response
from pydantic import Field

from vitruvian.serving.media_types import choose_format
from vitruvian.serving.request_bodies import read_options
from vitruvian.serving.routes.jobs import JobInfo, job_info, job_task, job_tasks
from vitruvian.serving.routes.shared import (
    ERRORS,
    Id,
    StoredInfo,
    add_stored,
    file_response,
    file_route,
    job_options,
    stored_fields,
    task_answer,
)
from vitruvian.serving.service import Service
from vitruvian.serving.stored_videos import StoredVideo, open_upload
from vitruvian.serving.task_requests import IMAGE_REQUESTS, JOB_REQUESTS, TaskRequest, TrackPromptFields
from vitruvian.serving.upload_folder import receive_files
from vitruvian.tasks import TASKS

FrameNumber = Annotated[int, Path(ge=0)]


class VideoInfo(StoredInfo):
    """A stored video."""

    frames: int | None = Field(description="Number of frames, if known.")
    rate: float = Field(description="Frames per second.")
    prompts: list[TrackPromptFields] = Field(description="What marks objects, by frame.")


class FramePromptRequest(TrackPromptFields, TaskRequest):
    """A prompt of an object in a frame. It replaces those that the object had in the frame."""

    def segment_options(self) -> TaskRequest:
        """Return the prompt for the frame as an image."""
        return IMAGE_REQUESTS["segment"].read({"points": self.points, "labels": self.labels, "boxes": self.box})


def add_videos(app: FastAPI, service: Service) -> None:
    """Add the routes of stored videos."""
    videos = service.videos

    async def receive(request: Request) -> StoredVideo:
        async with service.video_folder() as folder:
            TaskRequest.read(await receive_files(request, folder))
            video = await asyncio.to_thread(open_upload, folder, request.state.owner)
            videos.add(video)
            return video

    def describe(video: StoredVideo) -> VideoInfo:
        prompts = [prompt for _, prompt in sorted(video.prompts.items())]
        return VideoInfo(**stored_fields(video, videos), frames=video.frames, rate=video.rate, prompts=prompts)

    summary = "Store a video, to prompt its frames and to process it."
    add_stored(app, videos, receive, describe, VideoInfo, summary=summary)

    @app.get("/v1/videos/{video_id}/frames/{frame}", summary="A frame of a stored video.", **file_route("image/jpeg"))
    async def show_frame(request: Request, video_id: Id, frame: FrameNumber) -> Response:
        body = await service.read_frame(request, videos.get(video_id, request.state.owner), frame)
        return Response(body, media_type="image/jpeg")

    @app.post(
        "/v1/videos/{video_id}/prompts",
        summary="Mark an object in a frame; the answer is its mask in this frame.",
        responses={200: task_answer("segment"), **ERRORS},
        response_class=Response,
        openapi_extra={
            "requestBody": {"content": {"application/json": {"schema": TrackPromptFields.model_json_schema()}}}
        },
    )
    async def prompt(request: Request, video_id: Id) -> Response:
        video = videos.get(video_id, request.state.owner)
        fields = await read_options(request)
        file_format = choose_format("segment", accept=request.headers.get("accept"), asked=fields.pop("as", None))
        given = FramePromptRequest.read(fields)
        body = await service.segment_frame(request, video, given.frame, given.segment_options(), file_format)
        service.add_prompt(video, given)
        return file_response(body, file_format, f"{video.name}_{given.frame}.jpg", "segment")

    @app.delete(
        "/v1/videos/{video_id}/prompts",
        summary="Remove prompts: all, or those of an object or a frame.",
        responses=ERRORS,
    )
    async def remove_prompts(
        request: Request, video_id: Id, object_id: int | None = None, frame: int | None = None
    ) -> VideoInfo:
        video = videos.get(video_id, request.state.owner)
        video.remove_prompts(object_id, frame)
        return describe(video)

    for task in job_tasks(service):
        follows = " It follows the objects that were marked." if task == "track" else ""
        app.post(
            f"/v1/videos/{{video_id}}/{task}",
            status_code=201,
            summary=f"Start a job with the video: {TASKS[task].summary}{follows}",
            operation_id=f"video_{task}",
            responses=ERRORS,
            openapi_extra={"requestBody": {"content": {"application/json": {"schema": job_options(task)}}}},
        )(_job_starter(service, task))

    @app.post("/v1/videos/{video_id}/{task}", status_code=201, include_in_schema=False)
    async def start_other(request: Request, video_id: Id, task: str) -> JobInfo:
        """Answer for aliases of tasks, and say how to serve tasks without a model."""
        return await _job_starter(service, job_task(service, task))(request, video_id)


def _job_starter(service: Service, task: str) -> Callable[[Request, str], Awaitable[JobInfo]]:
    async def start(request: Request, video_id: Id) -> JobInfo:
        video = service.videos.get(video_id, request.state.owner)
        fields = await read_options(request)
        if task == "track":
            fields = {"prompts": [one.model_dump() for _, one in sorted(video.prompts.items())]} | fields
        options = JOB_REQUESTS[task].read(fields)
        options.check(service.settings.limits.prompts)
        job = await service.start_job(video, task, request.state.owner, options.arguments())
        return await asyncio.to_thread(job_info, service, job)

    return start
