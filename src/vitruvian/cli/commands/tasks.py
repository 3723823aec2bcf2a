"""The commands of tasks: `vitruvian pose`, `vitruvian parts`, … Docstrings are the text of `--help`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from typer import Option

from vitruvian.cli.commands.track import TrackCommand
from vitruvian.cli.options import (
    Background,
    BatchGroup,
    CocoGroup,
    Convention,
    HoleArea,
    IslandArea,
    Opacity,
    PeopleGroup,
    ThresholdGroup,
    TileGroup,
    read_numbers,
    read_points,
)
from vitruvian.cli.task_command import TaskCommand
from vitruvian.errors import InputError
from vitruvian.json_files import read_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from vitruvian.results import Result


@dataclass(frozen=True, kw_only=True)
class PoseCommand(PeopleGroup, BatchGroup, CocoGroup, TaskCommand):
    """Estimate 308 keypoints of each person: body, hands, feet and face. With Sapiens2.

    --save takes json, npz, png, jpg, jpeg, webp, txt (YOLO pose labels), crops.zip (an image of each person), plot,
    plot.jpg; for videos also mp4, webm, mov.
    """

    name = "pose"
    example = "vitruvian pose photo.jpg --model facebook/sapiens2-pose-0.4b --save json,plot"
    panel = "Poses"
    basic: ClassVar[tuple[str, ...]] = ("layout",)
    call_names = ("flip",)

    layout: Annotated[
        Literal["sapiens308", "coco17", "coco133", "openpose"], Option(help="Keypoint layout of files and drawings.")
    ] = "sapiens308"
    keypoint_threshold: Annotated[float, Option(help="Minimum score of drawn keypoints.", min=0, max=1)] = 0.3
    draw_boxes: Annotated[bool, Option("--draw-boxes", help="Draw the boxes of people.")] = False
    flip: Annotated[bool, Option("--flip", help="Average with the mirrored crop; takes twice as long.")] = False

    def plot_options(self) -> dict[str, object]:
        """Return the threshold of keypoints and whether boxes are drawn."""
        return {"threshold": self.keypoint_threshold, "boxes": self.draw_boxes}

    def convert(self, result: Result) -> Result:
        """Convert the keypoints to the layout."""
        from vitruvian.results import Pose

        if self.layout == "sapiens308" or not isinstance(result, Pose):
            return result
        return result.to_layout(self.layout)


@dataclass(frozen=True, kw_only=True)
class PartsCommand(PeopleGroup, TileGroup, BatchGroup, CocoGroup, TaskCommand):
    """Segment people into 29 classes: body parts, clothes and background. With Sapiens2.

    --save takes png (class numbers, with a palette), npz, json (areas and masks), parts.zip (a mask of each
    part), plot, plot.jpg; for videos also mp4, webm, mov.
    """

    name = "parts"
    example = "vitruvian parts photo.jpg --model facebook/sapiens2-seg-0.4b --save png,plot"
    panel = "Parts"
    call_names = ("with_score",)
    plot_names = ("opacity",)

    with_score: Annotated[bool, Option("--with-score", help="Write the score of each pixel to .npz.")] = False
    opacity: Opacity = 0.55


@dataclass(frozen=True, kw_only=True)
class NormalsCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate the surface normal of each pixel. With Sapiens2.

    --save takes png (normals as colors), 16.png, npz, exr, plot, plot.jpg; for videos also mp4, webm, mov, json.
    """

    name = "normals"
    example = "vitruvian normals photo.jpg --model facebook/sapiens2-normal-0.4b --save png,npz"
    panel = "Normals"
    basic: ClassVar[tuple[str, ...]] = ("convention",)
    call_names = ("convention", "background")

    convention: Convention = "opencv"
    background: Background = "mask"


@dataclass(frozen=True, kw_only=True)
class PointmapCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate a 3D point for each pixel: point clouds, depth, meshes and the focal length. With Sapiens2.

    Points are in metres if the camera is known or the model predicts the scale.

    --save takes ply, glb, mesh.glb (the surface), npz, exr, png (depth as colors), 16.png (depth in millimetres), json
    (the camera), plot, plot.jpg; for videos also mp4, webm, mov.
    """

    name = "pointmap"
    example = "vitruvian pointmap photo.jpg --model facebook/sapiens2-pointmap-0.4b --save ply,png"
    panel = "Camera"
    basic: ClassVar[tuple[str, ...]] = ("intrinsics", "fov")
    call_names = ("fov", "exif", "convention", "background")

    intrinsics: Annotated[
        str | None,
        Option("--intrinsics", "-K", help="Camera: fx,fy,cx,cy in pixels, or a .json or .npy file of [3, 3]."),
    ] = None
    fov: Annotated[float | None, Option(help="Horizontal field of view in degrees.")] = None
    exif: Annotated[bool, Option(help="Use the focal length in the EXIF data of the file.")] = True
    convention: Convention = "opencv"
    background: Background = "mask"

    def plot_options(self) -> dict[str, object]:
        """Draw the color bar."""
        return {"color_bar": True}

    def call_options(self) -> dict[str, object]:
        """Add the camera matrix."""
        matrix = None if self.intrinsics is None else _read_intrinsics(self.intrinsics)
        return super().call_options() | {"K": matrix}


@dataclass(frozen=True, kw_only=True)
class MatteCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Cut people out: alpha and foreground color of each pixel. With Sapiens2.

    --save takes png and webp (straight alpha), exr (premultiplied, linear), npz, crops.zip (each person cut out), plot,
    plot.jpg; for videos webm and mov (with alpha), mp4 (over a background), json.
    """

    name = "matte"
    example = "vitruvian matte photo.jpg --model facebook/sapiens2-matting-1b --save png"
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
        from vitruvian.cli.output_plan import OUT, file_kind

        if self.over is None or self.save is not None or self.to_stdout:
            return self
        if file_kind(self.task, Path(self.out or OUT).expanduser(), None) is not None:
            return self
        return dataclasses.replace(self, save="png,plot")

    @property
    def transparent(self) -> bool:
        """Whether nothing is put behind people."""
        return self.over is None

    def draw(self, result: Result) -> NDArray[np.uint8] | Image.Image:
        """Draw people over a color or an image, or over the checkerboard."""
        from vitruvian.results import Matte

        if self.over is None or not isinstance(result, Matte):
            return super().draw(result)
        return result.over(self.over)

    def draw_frame(self, result: Result) -> NDArray[np.uint8] | Image.Image:
        """Draw a frame of a video as an image."""
        return self.draw(result)


@dataclass(frozen=True, kw_only=True)
class AlbedoCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate the color of surfaces without lighting and shadows. With Sapiens2.

    --save takes png, npz, exr (linear), plot, plot.jpg; for videos also mp4, webm, mov, json.
    """

    name = "albedo"
    example = "vitruvian albedo photo.jpg --model my-albedo-model --save png"
    panel = "Albedo"
    call_names = ("background",)

    background: Background = "mask"


@dataclass(frozen=True, kw_only=True)
class EmbedCommand(BatchGroup, TaskCommand):
    """Compute feature vectors: one for the image, and one for each patch. With the encoder of Sapiens2.

    Any Sapiens2 checkpoint works. --save takes npz (all vectors), json (the vector of the image), plot, plot.jpg; for
    videos also mp4, webm, mov.
    """

    name = "embed"
    example = "vitruvian embed photo.jpg --model facebook/sapiens2-pretrain-0.4b --save npz,plot"


@dataclass(frozen=True, kw_only=True)
class SegmentCommand(BatchGroup, CocoGroup, TaskCommand):
    """Segment objects from points and boxes. With SAM 2.

    Points and boxes are in pixels of the upright image, and are used for every image and frame.

    --save takes json (COCO RLE), npz, png (mask numbers), txt (YOLO segment labels), crops.zip (each object cut
    out), plot, plot.jpg; for videos also mp4, webm, mov.
    """

    name = "segment"
    example = 'vitruvian segment photo.jpg --model facebook/sam2.1-hiera-large --points "120,80 90,60,0"'
    panel = "Prompts and masks"
    basic: ClassVar[tuple[str, ...]] = ("points", "boxes")
    call_names = ("mask_threshold", "max_hole_area", "max_sprinkle_area")

    points: Annotated[
        list[str] | None,
        Option(help='Points of one object: "x,y x,y"; "x,y,0" is a background point. Repeat for more objects.'),
    ] = None
    boxes: Annotated[list[str] | None, Option(help="Box around an object: x1,y1,x2,y2. Repeat for more objects.")] = (
        None
    )
    all_masks: Annotated[
        bool, Option("--all-masks", help="Write all three masks of each object instead of the best one.")
    ] = False
    mask_threshold: Annotated[
        float, Option(help="Mask logits above this are inside: higher values give smaller masks.")
    ] = 0.0
    max_hole_area: HoleArea = 0.0
    max_sprinkle_area: IslandArea = 0.0

    def plot_options(self) -> dict[str, object]:
        """Draw the boxes that were given, and mark the points."""
        rows = [row for text in self.points or () for row in read_points(text)]
        labels = [int(row[2]) if len(row) == 3 else 1 for row in rows]
        return {"boxes": bool(self.boxes), "points": [row[:2] for row in rows], "labels": labels}

    def call_options(self) -> dict[str, object]:
        """Add the prompts."""
        if not self.points and not self.boxes:
            raise InputError('prompts: expected --points or --boxes, got none. Add --points "x,y", say.')
        options = super().call_options()
        if self.points:
            objects = [read_points(text) for text in self.points]
            options["points"] = [[row[:2] for row in rows] for rows in objects]
            options["labels"] = [[int(row[2]) if len(row) == 3 else 1 for row in rows] for rows in objects]
        if self.boxes:
            options["boxes"] = [read_numbers("--boxes", text, 4) for text in self.boxes]
        return options | ({"best": False, "multimask": True} if self.all_masks else {})


@dataclass(frozen=True, kw_only=True)
class MasksCommand(CocoGroup, TaskCommand):
    """Segment all objects in an image, without prompts. With SAM 2.

    --save takes json (COCO RLE), npz, png (mask numbers), txt (YOLO segment labels), crops.zip (each object cut
    out), plot, plot.jpg; for videos also mp4, webm, mov.
    """

    name = "masks"
    example = "vitruvian masks photo.jpg --model facebook/sam2.1-hiera-large --save json,plot"
    panel = "Masks"
    basic: ClassVar[tuple[str, ...]] = ("points_per_side", "quality")
    call_names = (
        "points_per_crop",
        "points_per_batch",
        "pred_iou_thresh",
        "stability_score_thresh",
        "crops_n_layers",
        "max_hole_area",
        "max_sprinkle_area",
    )

    points_per_side: Annotated[int, Option(help="Points along each side of the grid.", min=1)] = 32
    points_per_batch: Annotated[int, Option(help="Points in a batch.", min=1)] = 64
    quality: Annotated[float, Option(help="Minimum predicted IoU of a mask.")] = 0.88
    stability: Annotated[
        float, Option(help="Minimum stability score of a mask: how little it changes with its threshold.")
    ] = 0.95
    crop_layers: Annotated[
        int, Option(help="Layers of crops (4, 16, …) that are processed too, for small objects.", min=0, max=4)
    ] = 0
    max_hole_area: HoleArea = 0.0
    max_sprinkle_area: IslandArea = 0.0


@dataclass(frozen=True, kw_only=True)
class SemanticCommand(BatchGroup, CocoGroup, TaskCommand):
    """Predict a class for each pixel. With Mask2Former or MaskFormer.

    --save takes png (class numbers), npz, json (areas and masks), plot, plot.jpg; for videos also mp4, webm, mov.
    """

    name = "semantic"
    example = "vitruvian semantic photo.jpg --model facebook/mask2former-swin-small-ade-semantic --save png,plot"
    panel = "Classes"
    plot_names = ("opacity",)

    opacity: Opacity = 0.55


@dataclass(frozen=True, kw_only=True)
class InstancesCommand(ThresholdGroup, BatchGroup, CocoGroup, TaskCommand):
    """Segment objects: a mask, a class and a score for each. With Mask2Former or MaskFormer.

    --save takes json (COCO RLE), npz, png (mask numbers), txt (YOLO segment labels), crops.zip (each object cut
    out), plot, plot.jpg; for videos also mp4, webm, mov.
    """

    name = "instances"
    example = "vitruvian instances photo.jpg --model facebook/mask2former-swin-small-coco-instance --save json,plot"


@dataclass(frozen=True, kw_only=True)
class PanopticCommand(ThresholdGroup, BatchGroup, CocoGroup, TaskCommand):
    """Segment images into single objects, and regions such as sky. With Mask2Former or MaskFormer.

    --save takes png (COCO's panoptic ids), json (the segments), npz, plot, plot.jpg; for videos also mp4, webm,
    mov.
    """

    name = "panoptic"
    example = "vitruvian panoptic photo.jpg --model facebook/mask2former-swin-small-cityscapes-panoptic --save png,json"
    panel = "Objects"
    call_names = ("label_ids_to_fuse",)

    fuse: Annotated[
        list[int] | None,
        Option(help="Number of a class whose segments are merged into one, such as sky. Repeat for more."),
    ] = None


def _read_intrinsics(text: str) -> list[list[float]]:
    """Read a camera matrix: four numbers, or a file."""
    import numpy as np

    path = Path(text).expanduser()
    if path.suffix.lower() not in (".json", ".npy"):
        fx, fy, cx, cy = read_numbers("--intrinsics", text, 4)
        return [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]
    try:
        # A memory map: the header may declare any size.
        values = np.load(path, mmap_mode="r") if path.suffix.lower() == ".npy" else read_json(path)
        if isinstance(values, dict):  # as `--save json` of this command writes it
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
