"""The table of tasks: one row each, read by everything that needs to know which tasks there are.

A task has one name in Python, on the command line and in file names, and aliases under which people know it from
elsewhere: `pipeline("matting")` is `pipeline("matte")`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from vitruvian.errors import InputError, near_matches

Group = Literal["people", "anything"]


@dataclass(frozen=True)
class Task:
    """A row of the table.

    Attributes:
        name: Its name everywhere: `pipeline(name)`, `vitruvian NAME`, `photo_NAME.json`.
        summary: What it does, in one line.
        group: Whether it is about people or about anything.
        aliases: Further names that `find_task` takes.
        head: What Sapiens2 checkpoints call it (`facebook/sapiens2-HEAD-0.4b`); None where Sapiens2 does not do it.
        auto_task: The key of its model class in `vitruvian.auto`.
        pipeline: Its pipeline class, as "module:class"; None for tasks that are only trained.
        result: Its result class, as "module:class".
        image_files: The kinds of files that are written for an image by default.
        video_files: The kinds of files that are written for a video by default.
        checkpoints: Published checkpoints to name to people who gave none.
    """

    name: str
    summary: str
    group: Group
    auto_task: str
    aliases: tuple[str, ...] = ()
    head: str | None = None
    pipeline: str | None = None
    result: str | None = None
    image_files: tuple[str, ...] = ()
    video_files: tuple[str, ...] = ("mp4", "json")
    checkpoints: tuple[str, ...] = ()

    def pipeline_class(self) -> Any:
        """Import the class of its pipeline."""
        if self.pipeline is None:
            raise InputError(f"task: {self.name!r} has no pipeline of its own.")
        return _import(self.pipeline)

    def result_class(self) -> Any:
        """Import the class of its results."""
        if self.result is None:
            raise InputError(f"task: {self.name!r} has no results of its own.")
        return _import(self.result)


def _import(address: str) -> Any:
    """Import a class from "module:class"."""
    module, _, name = address.partition(":")
    return getattr(importlib.import_module(module), name)


_PIPELINES = "vitruvian.pipelines.tasks"

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "pose",
            "308 keypoints of each person: body, hands, feet and face.",
            "people",
            auto_task="pose",
            aliases=("keypoints", "pose-estimation", "keypoint-detection"),
            head="pose",
            pipeline=f"{_PIPELINES}.pose:PosePipeline",
            result="vitruvian.results:Pose",
            image_files=("json", "plot"),
            checkpoints=("facebook/sapiens2-pose-0.4b", "facebook/sapiens2-pose-1b"),
        ),
        Task(
            "parts",
            "29 body parts and clothes of each person.",
            "people",
            auto_task="semantic",
            aliases=("seg", "body-parts"),
            head="seg",
            pipeline=f"{_PIPELINES}.parts:PartsPipeline",
            result="vitruvian.results:Parts",
            image_files=("png", "plot"),
            checkpoints=("facebook/sapiens2-seg-0.4b", "facebook/sapiens2-seg-1b"),
        ),
        Task(
            "normals",
            "Surface normals of people.",
            "people",
            auto_task="normal",
            aliases=("normal", "normal-estimation"),
            head="normal",
            pipeline=f"{_PIPELINES}.normals:NormalsPipeline",
            result="vitruvian.results:Normals",
            image_files=("png",),
            checkpoints=("facebook/sapiens2-normal-0.4b", "facebook/sapiens2-normal-1b"),
        ),
        Task(
            "pointmap",
            "A 3D point for each pixel of people.",
            "people",
            auto_task="pointmap",
            aliases=("depth", "pointmap-estimation"),
            head="pointmap",
            pipeline=f"{_PIPELINES}.pointmap:PointmapPipeline",
            result="vitruvian.results:Pointmap",
            image_files=("ply", "png"),
            checkpoints=("facebook/sapiens2-pointmap-0.4b", "facebook/sapiens2-pointmap-1b"),
        ),
        Task(
            "matte",
            "People cut out of their background, with soft edges.",
            "people",
            auto_task="matting",
            aliases=("matting", "cutout", "image-matting"),
            head="matting",
            pipeline=f"{_PIPELINES}.matte:MattePipeline",
            result="vitruvian.results:Matte",
            image_files=("png",),
            video_files=("webm", "json"),
            checkpoints=("facebook/sapiens2-matting-1b",),
        ),
        Task(
            "albedo",
            "The colours of people without light and shadow.",
            "people",
            auto_task="albedo",
            aliases=("albedo-estimation",),
            head="albedo",
            pipeline=f"{_PIPELINES}.albedo:AlbedoPipeline",
            result="vitruvian.results:Albedo",
            image_files=("png",),  # no checkpoint is published on the Hub
        ),
        Task(
            "embed",
            "Feature vectors of images, or of each patch.",
            "people",
            auto_task="model",
            aliases=("embedding", "features", "image-feature-extraction"),
            pipeline=f"{_PIPELINES}.embed:EmbedPipeline",
            result="vitruvian.results:Embedding",
            image_files=("npz",),
            checkpoints=("facebook/sapiens2-pretrain-0.4b", "facebook/sapiens2-pretrain-0.1b"),
        ),
        Task(
            "people",
            "Bounding boxes of people.",
            "people",
            auto_task="people",
            aliases=("person-detection",),
            head="people",
        ),
        Task(
            "segment",
            "Masks of anything, from points, boxes or masks.",
            "anything",
            auto_task="mask-generation",
            pipeline=f"{_PIPELINES}.segment:SegmentPipeline",
            result="vitruvian.results:Masks",
            image_files=("json", "plot"),
            checkpoints=("facebook/sam2.1-hiera-large", "facebook/sam2.1-hiera-tiny"),
        ),
        Task(
            "masks",
            "Masks of everything in an image, without prompts.",
            "anything",
            auto_task="mask-generation",
            aliases=("mask-generation", "everything"),
            pipeline=f"{_PIPELINES}.masks:MaskGenerationPipeline",
            result="vitruvian.results:Masks",
            image_files=("json", "plot"),
            checkpoints=("facebook/sam2.1-hiera-large", "facebook/sam2.1-hiera-tiny"),
        ),
        Task(
            "semantic",
            "A class for each pixel.",
            "anything",
            auto_task="universal",
            aliases=("semantic-segmentation",),
            pipeline=f"{_PIPELINES}.semantic:SemanticPipeline",
            result="vitruvian.results:Semantic",
            image_files=("png", "plot"),
            checkpoints=("facebook/mask2former-swin-small-ade-semantic", "facebook/maskformer-swin-base-ade"),
        ),
        Task(
            "instances",
            "A mask, a class and a score for each object.",
            "anything",
            auto_task="universal",
            aliases=("instance", "instance-segmentation"),
            pipeline=f"{_PIPELINES}.instances:InstancePipeline",
            result="vitruvian.results:Masks",
            image_files=("json", "plot"),
            checkpoints=("facebook/mask2former-swin-small-coco-instance", "facebook/maskformer-swin-base-coco"),
        ),
        Task(
            "panoptic",
            "A class for each pixel, and objects told apart.",
            "anything",
            auto_task="universal",
            aliases=("panoptic-segmentation", "image-segmentation"),
            pipeline=f"{_PIPELINES}.panoptic:PanopticPipeline",
            result="vitruvian.results:Panoptic",
            image_files=("png", "json", "plot"),
            checkpoints=("facebook/mask2former-swin-small-cityscapes-panoptic", "facebook/maskformer-swin-base-coco"),
        ),
    )
}
_BY_NAME = {name: task for task in TASKS.values() for name in (task.name, *task.aliases)}
PIPELINE_TASKS = tuple(task.name for task in TASKS.values() if task.pipeline is not None)


def find_task(name: str) -> Task:
    """Return the task of a name or an alias.

    Raises:
        InputError: There is no such task.
    """
    found = _BY_NAME.get(str(name).lower().replace("_", "-"))
    if found is None:
        known = ", ".join(PIPELINE_TASKS)
        raise InputError(f"task: expected one of {known}, got {name!r}.{near_matches(str(name), _BY_NAME)}")
    return found


def task_of_head(head: str) -> Task:
    """Return the task that Sapiens2 checkpoints call `head`."""
    return next(task for task in TASKS.values() if task.head == head)
