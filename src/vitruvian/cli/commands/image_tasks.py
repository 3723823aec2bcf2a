"""The commands of tasks: `vitruvian pose`, `vitruvian parts`, … Docstrings are the text of `--help`.

Options come from the table in `vitruvian.pipelines.options`; a class declares those that have another form in a text.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar, Self

from typer import Option

from vitruvian.cli.commands.track import TrackCommand
from vitruvian.cli.option_groups import BatchGroup, CocoGroup, PeopleGroup, TileGroup, read_numbers, read_points
from vitruvian.cli.task_command import TaskCommand, task_command
from vitruvian.errors import InputError
from vitruvian.filesystem.json_files import read_json
from vitruvian.pipelines.options import intrinsics_matrix
from vitruvian.pipelines.output_options import (
    ALL_MASKS_HELP,
    MatteOutputOptions,
    OutputOptions,
    PointmapOutputOptions,
    PromptedMasksOutputOptions,
)

_MASK_FILES = "json (COCO RLE), npz, png (mask numbers), txt (YOLO segment labels), crops.zip (each object cut out)"


@task_command
class PoseCommand(PeopleGroup, BatchGroup, CocoGroup, TaskCommand):
    """Estimate 308 keypoints of each person: body, hands, feet and face (Sapiens2)."""

    name = "pose"
    example = "vitruvian pose photo.jpg --model facebook/sapiens2-pose-0.4b --save json,plot"
    save_help = (
        "json, npz, png, jpg, jpeg and webp (the drawing), txt (YOLO pose labels), crops.zip (an image of each person)"
    )


@task_command
class PartsCommand(PeopleGroup, TileGroup, BatchGroup, CocoGroup, TaskCommand):
    """Segment people into 29 classes: body parts, clothes and background (Sapiens2)."""

    name = "parts"
    example = "vitruvian parts photo.jpg --model facebook/sapiens2-seg-0.4b --save png,plot"
    save_help = "png (indexed, class ids), npz, json (areas and masks), parts.zip (a mask of each part)"


@task_command
class NormalsCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate the surface normal of each pixel (Sapiens2)."""

    name = "normals"
    example = "vitruvian normals photo.jpg --model facebook/sapiens2-normal-0.4b --save png,npz"
    save_help = "png (normals as colors), 16.png, npz, exr"
    video_save_help = "also mp4, webm, mov, json"


@task_command
class PointmapCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate a 3D point for each pixel: point clouds, depth, meshes and the focal length (Sapiens2).

    Points are in meters if the camera is known or the model predicts the scale.
    """

    name = "pointmap"
    example = "vitruvian pointmap photo.jpg --model facebook/sapiens2-pointmap-0.4b --save ply,png"
    save_help = (
        "ply, glb, mesh.glb (the surface), npz, exr, png (depth as colors), 16.png (depth in millimeters), "
        "json (the camera)"
    )
    panel = "Camera"
    basic: ClassVar[tuple[str, ...]] = ("intrinsics",)

    intrinsics: Annotated[
        str | None,
        Option("--intrinsics", "-K", help="Camera: fx,fy,cx,cy in pixels, or a .json or .npy file with a 3×3 matrix."),
    ] = None

    @property
    def output(self) -> OutputOptions:
        """Draw a color bar."""
        return PointmapOutputOptions(color_bar=True)

    def call_options(self) -> dict[str, object]:
        """Add the camera matrix."""
        matrix = None if self.intrinsics is None else _read_intrinsics(self.intrinsics)
        return super().call_options() | {"K": matrix}


@task_command
class MatteCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Cut people out: alpha and foreground color of each pixel (Sapiens2)."""

    name = "matte"
    example = "vitruvian matte photo.jpg --model facebook/sapiens2-matting-1b --save png"
    save_help = "png and webp (straight alpha), exr (premultiplied, linear), npz, crops.zip (each person cut out)"
    video_save_help = "webm and mov (with alpha), mp4 (over a background), json"
    panel = "Matte"
    basic: ClassVar[tuple[str, ...]] = ("over",)

    over: Annotated[
        str | None,
        Option(
            help="Background of drawings: a color (white, #00ff00) or an image; by default a checkerboard. Videos "
            "are then written as mp4."
        ),
    ] = None

    def with_defaults(self) -> Self:
        """With --over, save the drawing too."""
        from vitruvian.cli.output_plan import OUT, named_format

        if self.over is None or self.save is not None or self.to_stdout:
            return self
        if named_format(self.task, Path(self.out or OUT).expanduser(), None) is not None:
            return self
        return dataclasses.replace(self, save="png,plot")

    @property
    def transparent(self) -> bool:
        """Whether videos have alpha: with --over, drawings have a background instead."""
        return self.over is None

    @property
    def output(self) -> OutputOptions:
        """Draw people over a color or an image, or over the checkerboard."""
        return MatteOutputOptions(over=self.over)


@task_command
class AlbedoCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate the color of surfaces without lighting and shadows (Sapiens2)."""

    name = "albedo"
    example = "vitruvian albedo photo.jpg --model my-albedo-model --save png"
    save_help = "png, npz, exr (linear)"
    video_save_help = "also mp4, webm, mov, json"


@task_command
class EmbedCommand(BatchGroup, TaskCommand):
    """Compute feature vectors: one per image and one per patch (the encoder of Sapiens2).

    Any Sapiens2 checkpoint works.
    """

    name = "embed"
    example = "vitruvian embed photo.jpg --model facebook/sapiens2-pretrain-0.4b --save npz,plot"
    save_help = "npz (all vectors), json (the vector of the image)"


@task_command
class SegmentCommand(BatchGroup, CocoGroup, TaskCommand):
    """Segment objects from points and boxes (SAM 2).

    Points and boxes are in pixels of the upright image, and are used for every image and frame.
    """

    name = "segment"
    example = 'vitruvian segment photo.jpg --model facebook/sam2.1-hiera-large --points "120,80 90,60,0"'
    save_help = _MASK_FILES
    panel = "Prompts and masks"
    basic: ClassVar[tuple[str, ...]] = ("points", "boxes")

    points: Annotated[
        list[str] | None,
        Option(help='Points of one object: "x,y x,y"; "x,y,0" is a background point. Repeat for more objects.'),
    ] = None
    boxes: Annotated[list[str] | None, Option(help="Box around an object: x1,y1,x2,y2. Repeat for more objects.")] = (
        None
    )
    all_masks: Annotated[bool, Option("--all-masks", help=ALL_MASKS_HELP)] = False

    @property
    def output(self) -> OutputOptions:
        """Draw the boxes that were given, and mark the points."""
        points = [point for points, labels in self._objects() for point in points]
        labels = [label for points, labels in self._objects() for label in labels]
        return PromptedMasksOutputOptions(**vars(super().output), boxes=bool(self.boxes), points=points, labels=labels)

    def call_options(self) -> dict[str, object]:
        """Add the prompts."""
        if not self.points and not self.boxes:
            raise InputError('prompts: expected --points or --boxes, got none. For example: --points "x,y".')
        options = super().call_options()
        if self.points:
            options["points"], options["labels"] = map(list, zip(*self._objects(), strict=True))
        if self.boxes:
            options["boxes"] = [read_numbers("--boxes", text, 4) for text in self.boxes]
        return options | ({"best": False, "multimask": True} if self.all_masks else {})

    def _objects(self) -> list[tuple[list[list[float]], list[int]]]:
        """Read the points and labels of each object."""
        return [read_points(text) for text in self.points or ()]


@task_command
class MasksCommand(CocoGroup, TaskCommand):
    """Segment all objects in an image, without prompts (SAM 2)."""

    name = "masks"
    example = "vitruvian masks photo.jpg --model facebook/sam2.1-hiera-large --save json,plot"
    save_help = _MASK_FILES


@task_command
class SemanticCommand(BatchGroup, CocoGroup, TaskCommand):
    """Predict a class for each pixel (Mask2Former or MaskFormer)."""

    name = "semantic"
    example = "vitruvian semantic photo.jpg --model facebook/mask2former-swin-small-ade-semantic --save png,plot"
    save_help = "png (class numbers), npz, json (areas and masks)"


@task_command
class InstancesCommand(BatchGroup, CocoGroup, TaskCommand):
    """Segment objects: a mask, a class and a score for each (Mask2Former or MaskFormer)."""

    name = "instances"
    example = "vitruvian instances photo.jpg --model facebook/mask2former-swin-small-coco-instance --save json,plot"
    save_help = _MASK_FILES


@task_command
class PanopticCommand(BatchGroup, CocoGroup, TaskCommand):
    """Panoptic segmentation: objects (things) and regions such as sky (stuff), with Mask2Former or MaskFormer."""

    name = "panoptic"
    example = "vitruvian panoptic photo.jpg --model facebook/mask2former-swin-small-cityscapes-panoptic --save png,json"
    save_help = "png (COCO's panoptic ids), json (the segments), npz"


def _read_intrinsics(text: str) -> list[list[float]]:
    """Read a camera matrix: four numbers, or a file."""
    import numpy as np

    path = Path(text).expanduser()
    if path.suffix.lower() not in (".json", ".npy"):
        return intrinsics_matrix(*read_numbers("--intrinsics", text, 4))
    try:
        # A memory map: the header may declare any size.
        values = np.load(path, mmap_mode="r") if path.suffix.lower() == ".npy" else read_json(path)
        if isinstance(values, dict):  # the file that `--save json` of this command writes
            values = values.get("intrinsics", values.get("K"))
        table = np.asarray([] if values is None else values, dtype=np.float64)
        if table.size == 9:
            table = np.array(table)  # ends the memory map
    except InputError:
        raise
    except Exception as error:  # numpy's reader raises errors of many kinds
        raise InputError(f"{path}: expected a file with a camera matrix, got {type(error).__name__}.") from error
    if table.shape != (3, 3):
        raise InputError(f"{path}: expected a camera matrix [3, 3], got the shape {list(table.shape)}.")
    rows: list[list[float]] = table.tolist()
    return rows


_PEOPLE = (PoseCommand, PartsCommand, NormalsCommand, PointmapCommand, MatteCommand, AlbedoCommand, EmbedCommand)
_ANYTHING = (SegmentCommand, MasksCommand, TrackCommand, SemanticCommand, InstancesCommand, PanopticCommand)
TASK_COMMANDS: dict[str, type[TaskCommand]] = {command.name: command for command in (*_PEOPLE, *_ANYTHING)}
