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
Convention = Literal["opencv", "opengl"]  # camera axes of normals and points; see `vitruvian.results.camera_map`
VIDEO_FORMATS = ("mp4", "webm", "mov")
ALPHA_VIDEO_FORMATS = ("webm", "mov")
VIDEO_DATASET = "vis.json"  # for tasks on videos only: all records as one YouTube-VIS dataset
CROPS = "crops"  # for tasks on videos only: a folder with an image of each visible object in each frame
PLOTS = {"plot": "_plot.png", "plot.jpg": "_plot.jpg"}  # file formats with the drawing of a result


@dataclass(frozen=True)
class Task:
    """A row of the table.

    Attributes:
        name: Its name everywhere: `pipeline(name)`, `vitruvian NAME`, `photo_NAME.json`.
        group: Whether it is about people or about anything.
        summary: What it does, in one line.
        sapiens2_head: What Sapiens2 checkpoints call it (`facebook/sapiens2-HEAD-0.4b`); None where Sapiens2 does not
            do it.
        auto: Its auto class in `vitruvian.auto`, which opens checkpoints.
        result: Its result class in `vitruvian.results`; None for tasks without a pipeline.
        options: Its class in `vitruvian.pipelines.options`.
        output: Its class in `vitruvian.pipelines.output_options`.
        default_image_formats: The file formats that are written for an image by default.
        default_video_formats: The file formats that are written for a video by default.
        aliases: Further names for `find_task`.
        checkpoints: Published checkpoints to suggest.
    """

    name: str
    group: Group
    summary: str
    auto: str
    sapiens2_head: str | None = None
    result: str | None = None
    options: str = "Options"
    output: str = "OutputOptions"
    default_image_formats: tuple[str, ...] = ()
    default_video_formats: tuple[str, ...] = ("mp4", "json")
    aliases: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()

    @property
    def has_pipeline(self) -> bool:
        """Whether the task can be run; others are only trained."""
        return self.result is not None

    @property
    def takes_images(self) -> bool:
        """Whether the task runs on images; others run on videos only."""
        return bool(self.default_image_formats)

    def pipeline_class(self) -> Any:
        """Import the class of its pipeline: `NamePipeline` in `vitruvian.pipelines.tasks.name`."""
        if not self.has_pipeline:
            raise InputError(f"task: {self.name!r} has no pipeline.")
        return _import(f"vitruvian.pipelines.tasks.{self.name}", f"{self.name.capitalize()}Pipeline")

    def auto_class(self) -> Any:
        """Import its auto class."""
        return _import("vitruvian.auto", self.auto)

    def options_class(self) -> Any:
        """Import the class of its pipeline's options."""
        return _import("vitruvian.pipelines.options", self.options)

    def output_class(self) -> Any:
        """Import the class of the options of how its results are drawn and written."""
        return _import("vitruvian.pipelines.output_options", self.output)

    def image_formats(self) -> tuple[str, ...]:
        """Return the file formats that can be written for an image: extensions, and the drawings."""
        return (*(extension.lstrip(".") for extension in self.result_class().extensions), *PLOTS)

    def save_formats(self) -> tuple[str, ...]:
        """Return everything that `--save` takes: for images, and for videos, for which there is always json."""
        of_objects = () if self.takes_images else (VIDEO_DATASET, CROPS)
        return tuple(dict.fromkeys((*self.image_formats(), *VIDEO_FORMATS, "json", *of_objects)))

    def read_formats(self, save: str) -> tuple[str, ...]:
        """Return the file formats in a comma-separated list, in which ".PNG" is png.

        Raises:
            InputError: There are none, unknown ones, or several video formats.
        """
        known = self.save_formats()
        expected = f"one or more of {', '.join(known)}"
        words = tuple(dict.fromkeys(word.strip().lower().lstrip(".") for word in save.split(",") if word.strip()))
        if not words:
            raise InputError(subject="save", expected=expected, got="an empty string")
        for word in words:
            if word not in known:
                reason = self.result_class().refused_extensions.get(f".{word}", "")  # such as JPEG of mattes
                raise InputError(
                    subject="save",
                    expected=f"{expected} for {self.name}",
                    got=repr(word),
                    hint=f"{near_matches(word, known)}{reason}".strip() or None,
                )
        videos = [word for word in words if word in VIDEO_FORMATS]
        if len(videos) > 1:
            got, hint = " and ".join(videos), "Run the command once for each."
            raise InputError(subject="save", expected="one video format", got=got, hint=hint)
        return words

    def result_class(self) -> Any:
        """Import the class of its results."""
        if self.result is None:
            raise InputError(f"task: {self.name!r} has no results.")
        return _import("vitruvian.results", self.result)


def file_extension(file_format: str) -> str:
    """Return what follows the name of a source and a task in the name of a file of this format."""
    return PLOTS.get(file_format, f".{file_format}")


def _import(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


_SAM2 = ("facebook/sam2.1-hiera-large", "facebook/sam2.1-hiera-tiny")

# fmt: off
_ROWS = (
    Task("pose", "people", "308 keypoints of each person: body, hands, feet and face.",
         auto="AutoModelForPoseEstimation", sapiens2_head="pose", result="Pose",
         options="PoseOptions", output="PoseOutputOptions", default_image_formats=("json", "plot"),
         aliases=("keypoints", "pose-estimation", "keypoint-detection"),
         checkpoints=("facebook/sapiens2-pose-0.4b", "facebook/sapiens2-pose-1b")),
    Task("parts", "people", "28 body-part and clothing classes, and background.",
         auto="AutoModelForSemanticSegmentation", sapiens2_head="seg", result="Parts",
         options="PartsOptions", output="LabelMapOutputOptions", default_image_formats=("png", "plot"),
         aliases=("seg", "body-parts"),
         checkpoints=("facebook/sapiens2-seg-0.4b", "facebook/sapiens2-seg-1b")),
    Task("normals", "people", "Surface normals of people.",
         auto="AutoModelForNormalEstimation", sapiens2_head="normal", result="Normals", options="NormalsOptions",
         default_image_formats=("png",), aliases=("normal", "normal-estimation"),
         checkpoints=("facebook/sapiens2-normal-0.4b", "facebook/sapiens2-normal-1b")),
    Task("pointmap", "people", "A 3D point for each pixel of people.",
         auto="AutoModelForPointmapEstimation", sapiens2_head="pointmap", result="Pointmap",
         options="PointmapOptions", output="PointmapOutputOptions",
         default_image_formats=("ply", "png"), aliases=("depth", "pointmap-estimation"),
         checkpoints=("facebook/sapiens2-pointmap-0.4b", "facebook/sapiens2-pointmap-1b")),
    Task("matte", "people", "People cut out of their background, with soft edges.",
         auto="AutoModelForImageMatting", sapiens2_head="matting", result="Matte", options="DenseOptions",
         output="MatteOutputOptions", default_image_formats=("png",), default_video_formats=("webm", "json"),
         aliases=("matting", "cutout", "image-matting"), checkpoints=("facebook/sapiens2-matting-1b",)),
    Task("albedo", "people", "Surface color without lighting and shadows.",  # no checkpoint is published
         auto="AutoModelForAlbedoEstimation", sapiens2_head="albedo", result="Albedo", options="MaskedOptions",
         default_image_formats=("png",), aliases=("albedo-estimation",)),
    Task("embed", "people", "Feature vectors: one per image and one per patch.",
         auto="AutoModel", result="Embedding", default_image_formats=("npz",),
         aliases=("embedding", "features", "image-feature-extraction"),
         checkpoints=("facebook/sapiens2-pretrain-0.4b", "facebook/sapiens2-pretrain-0.1b")),
    Task("people", "people", "Bounding boxes of people.",
         auto="AutoModelForPeopleDetection", sapiens2_head="people", aliases=("person-detection",)),
    Task("segment", "anything", "Masks of anything, from points, boxes or masks.",
         auto="AutoModelForMaskGeneration", result="Masks",
         options="PromptOptions", output="MasksOutputOptions", default_image_formats=("json", "plot"),
         checkpoints=_SAM2),
    Task("masks", "anything", "Masks of everything in an image, without prompts.",
         auto="AutoModelForMaskGeneration", result="Masks",
         options="MasksOptions", output="MasksOutputOptions", default_image_formats=("json", "plot"),
         aliases=("mask-generation", "everything"), checkpoints=_SAM2),
    Task("track", "anything", "Objects tracked through a video, from points, boxes or masks.",
         auto="AutoModelForObjectTracking", result="Track", options="TrackOptions", output="MasksOutputOptions",
         aliases=("tracking", "video-segmentation", "object-tracking"), checkpoints=_SAM2),
    Task("semantic", "anything", "A class for each pixel.",
         auto="AutoModelForUniversalSegmentation", result="Semantic", output="LabelMapOutputOptions",
         default_image_formats=("png", "plot"), aliases=("semantic-segmentation",),
         checkpoints=("facebook/mask2former-swin-small-ade-semantic", "facebook/maskformer-swin-base-ade")),
    Task("instances", "anything", "A mask, a class and a score for each object.",
         auto="AutoModelForUniversalSegmentation", result="Masks",
         options="QueryThresholdOptions", output="MasksOutputOptions", default_image_formats=("json", "plot"),
         aliases=("instance", "instance-segmentation"),
         checkpoints=("facebook/mask2former-swin-small-coco-instance", "facebook/maskformer-swin-base-coco")),
    Task("panoptic", "anything", "A class for each pixel; objects as separate segments.",
         auto="AutoModelForUniversalSegmentation", result="Panoptic",
         options="PanopticOptions", output="PanopticOutputOptions", default_image_formats=("png", "json", "plot"),
         aliases=("panoptic-segmentation", "image-segmentation"),
         checkpoints=("facebook/mask2former-swin-small-cityscapes-panoptic", "facebook/maskformer-swin-base-coco")),
)
# fmt: on
TASKS = {task.name: task for task in _ROWS}
_BY_NAME = {name: task for task in TASKS.values() for name in (task.name, *task.aliases)}
PIPELINE_TASKS = tuple(task.name for task in TASKS.values() if task.has_pipeline)


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
    return next(task for task in TASKS.values() if task.sapiens2_head == head)
