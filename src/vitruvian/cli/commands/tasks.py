"""The commands of tasks: `vitruvian pose`, `vitruvian parts`, … Docstrings are the text of `--help`."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from typer import Option

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
)
from vitruvian.cli.task_command import TaskCommand
from vitruvian.errors import InputError
from vitruvian.hub import BUILTIN
from vitruvian.text_files import read_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from vitruvian.results import Result


@dataclass(frozen=True, kw_only=True)
class PoseCommand(PeopleGroup, BatchGroup, CocoGroup, TaskCommand):
    """Find 308 keypoints of each person: body, hands, feet and face. With Sapiens2.

    --save takes json, npz, png, jpg, webp, plot, plot.jpg; of videos also mp4, webm, mov.
    """

    name = "pose"
    example = "vitruvian pose photo.jpg --model facebook/sapiens2-pose-0.4b --save json,plot"
    panel = "Poses"
    basic: ClassVar[tuple[str, ...]] = ("layout",)
    call_names = ("flip",)

    layout: Annotated[
        Literal["sapiens308", "coco17", "coco133", "openpose"], Option(help="Which keypoints to write and draw.")
    ] = "sapiens308"
    keypoint_threshold: Annotated[float, Option(help="Draw keypoints that reach this score.", min=0, max=1)] = 0.3
    draw_boxes: Annotated[bool, Option("--draw-boxes", help="Draw the boxes too.")] = False
    flip: Annotated[bool, Option("--flip", help="Average with mirrored crops: more stable, at twice the work.")] = False

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
    """Segment 29 parts of the body and clothing. With Sapiens2.

    --save takes png (the numbers, with colours as palette), npz, json (areas and masks), plot, plot.jpg; of videos also
    mp4, webm, mov.
    """

    name = "parts"
    example = "vitruvian parts photo.jpg --model facebook/sapiens2-seg-0.4b --save png,plot"
    panel = "Parts"
    call_names = ("with_score",)
    plot_names = ("opacity",)

    with_score: Annotated[bool, Option("--with-score", help="Write the score of each pixel too, in .npz.")] = False
    opacity: Opacity = 0.55


@dataclass(frozen=True, kw_only=True)
class NormalsCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate the surface normal of each pixel. With Sapiens2.

    --save takes png (the usual colours), 16.png, npz, exr, plot, plot.jpg; of videos also mp4, webm, mov, json.
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
    """Estimate where each pixel is in space: point clouds, depth and the focal length. With Sapiens2.

    Points are in metres where the camera is known or the model tells the scale.

    --save takes ply, glb, mesh.glb (the surface), npz, exr, png (depth in colors), 16.png (depth in millimetres), json
    (the camera), plot, plot.jpg; of videos also mp4, webm, mov.
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
    exif: Annotated[bool, Option(help="Use the focal length in the file's EXIF.")] = True
    convention: Convention = "opencv"
    background: Background = "mask"

    def call_options(self) -> dict[str, object]:
        """Add the camera matrix."""
        matrix = None if self.intrinsics is None else _read_intrinsics(self.intrinsics)
        return super().call_options() | {"K": matrix}


@dataclass(frozen=True, kw_only=True)
class MatteCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Cut people out, hair and all: the opacity and the colour of each pixel. With Sapiens2.

    --save takes png and webp (straight alpha), exr (premultiplied, linear), npz, plot, plot.jpg; of videos webm and mov
    with alpha, mp4 over a ground, json.
    """

    name = "matte"
    example = "vitruvian matte photo.jpg --model facebook/sapiens2-matting-1b --save png"
    panel = "Matte"
    basic: ClassVar[tuple[str, ...]] = ("over",)

    over: Annotated[
        str | None,
        Option(
            help="In drawings, put people over this: a colour (white, #00ff00) or an image, rather than a "
            "checkerboard. Videos then come as mp4."
        ),
    ] = None

    def with_defaults(self) -> Self:
        """With --over, save the drawing too."""
        from vitruvian.cli.outputs import OUT, file_kind

        if self.over is None or self.save is not None or self.to_stdout:
            return self
        if file_kind(self.task, Path(self.out or OUT).expanduser(), None) is not None:
            return self
        return dataclasses.replace(self, save="png,plot")

    @property
    def transparent(self) -> bool:
        """Whether nothing is put behind people."""
        return self.over is None

    def draw(self, result: Result, **options: object) -> NDArray[np.uint8] | Image.Image:
        """Draw people over a colour or an image, or over the checkerboard."""
        from vitruvian.results import Matte

        if self.over is None or not isinstance(result, Matte):
            return super().draw(result, **options)
        return result.over(self.over)


@dataclass(frozen=True, kw_only=True)
class AlbedoCommand(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate the colour of each surface without light and shadow. With Sapiens2.

    --save takes png, npz, exr (linear), plot, plot.jpg; of videos also mp4, webm, mov, json.
    """

    name = "albedo"
    example = "vitruvian albedo photo.jpg --model my-albedo-model --save png"
    panel = "Albedo"
    call_names = ("background",)

    background: Background = "mask"


@dataclass(frozen=True, kw_only=True)
class EmbedCommand(BatchGroup, TaskCommand):
    """Turn images into features: a vector for the whole, and one for each patch. With the encoder of Sapiens2.

    The checkpoint of any Sapiens2 task will do. --save takes npz (all), json (the vector of the whole), plot, plot.jpg;
    of videos also mp4, webm, mov.
    """

    name = "embed"
    example = "vitruvian embed photo.jpg --model facebook/sapiens2-pretrain-0.4b --save npz,plot"


@dataclass(frozen=True, kw_only=True)
class SegmentCommand(BatchGroup, CocoGroup, TaskCommand):
    """Segment objects from points and boxes. With SAM 2.

    Points and boxes are pixels of the upright image, and hold for every image and frame.

    --save takes json (COCO RLE), npz, png (numbers of the masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """

    name = "segment"
    example = 'vitruvian segment photo.jpg --model facebook/sam2.1-hiera-large --points "120,80 90,60,0"'
    panel = "Prompts and masks"
    basic: ClassVar[tuple[str, ...]] = ("points", "boxes")
    call_names = ("mask_threshold", "max_hole_area", "max_sprinkle_area")

    points: Annotated[
        list[str] | None, Option(help='Points on one object: "x,y x,y"; "x,y,0" lies off it. Repeat for more objects.')
    ] = None
    boxes: Annotated[list[str] | None, Option(help="Box around an object: x1,y1,x2,y2. Repeat for more objects.")] = (
        None
    )
    all_masks: Annotated[
        bool, Option("--all-masks", help="Write all three proposals for each object, not the best.")
    ] = False
    mask_threshold: Annotated[float, Option(help="Logit of the outline: higher is tighter.")] = 0.0
    max_hole_area: HoleArea = 0.0
    max_sprinkle_area: IslandArea = 0.0

    def call_options(self) -> dict[str, object]:
        """Add the prompts."""
        if not self.points and not self.boxes:
            raise InputError('prompts: expected --points or --boxes, got none. Add --points "x,y", say.')
        options = super().call_options()
        if self.points:
            objects = [_read_points(text) for text in self.points]
            options["points"] = [[row[:2] for row in rows] for rows in objects]
            options["labels"] = [[int(row[2]) if len(row) == 3 else 1 for row in rows] for rows in objects]
        if self.boxes:
            options["boxes"] = [read_numbers("--boxes", text, 4) for text in self.boxes]
        return options | ({"best": False, "multimask": True} if self.all_masks else {})


@dataclass(frozen=True, kw_only=True)
class MasksCommand(CocoGroup, TaskCommand):
    """Segment everything in an image, without prompts. With SAM 2.

    --save takes json (COCO RLE), npz, png (numbers of the masks), plot, plot.jpg; of videos also mp4, webm, mov.
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
    quality: Annotated[float, Option(help="Predicted IoU that a mask must exceed.")] = 0.88
    stability: Annotated[float, Option(help="How little a mask may change with its threshold.")] = 0.95
    crop_layers: Annotated[int, Option(help="Process 4, 16, … crops too, for small things.", min=0, max=4)] = 0
    max_hole_area: HoleArea = 0.0
    max_sprinkle_area: IslandArea = 0.0


@dataclass(frozen=True, kw_only=True)
class TrackCommand(TaskCommand):
    """Track objects through videos, from points and boxes in any frame. With SAM 2.

    A prompt begins with the object's number and the frame's, from 0: 1@0:220,120 is a point on object 1 in frame 0.
    Objects that are added later, and corrections, are prompts on later frames. An interrupted video starts again.

    --save takes mp4, webm, mov (masks over the video), json (a line a frame, masks as COCO RLE), png (a folder of
    numbered images whose pixels are the objects' numbers, as in DAVIS), npz, vis.json (one YouTube-VIS file).
    """

    name = "track"
    example = "vitruvian track clip.mp4 --model facebook/sam2.1-hiera-tiny --points 1@0:22,12 --box 2@3:4,6,40,30"
    panel = "Prompts and masks"
    basic: ClassVar[tuple[str, ...]] = ("points", "box", "everyone", "cutout")
    call_names = ("detect_every", "max_people", "max_hole_area", "max_sprinkle_area", "non_overlapping_masks")
    plot_names = ("opacity",)
    resumes_videos = False

    points: Annotated[
        list[str] | None,
        Option(help='Points on an object: "ID@FRAME:x,y x,y"; "x,y,0" lies off it. Repeat for more.'),
    ] = None
    box: Annotated[list[str] | None, Option(help="Box around an object: ID@FRAME:x1,y1,x2,y2. Repeat for more.")] = None
    everyone: Annotated[bool, Option("--everyone", help="Detect people, and track each.")] = False
    finder: Annotated[str | None, Option(help="What detects people for --everyone: see vitruvian pose --help.")] = None
    detect_every: Annotated[
        int,
        Option(help="With --everyone, look for new people in every so many frames; 0: until someone is found.", min=0),
    ] = 0
    max_people: Annotated[int | None, Option(help="Detect no more people than this, by score.", min=1)] = None
    cutout: Annotated[
        bool, Option("--cutout", help="Write the objects cut out, a video with alpha (webm, mov), not drawn over.")
    ] = False
    opacity: Opacity = 0.5
    max_hole_area: HoleArea = 0.0
    max_sprinkle_area: IslandArea = 0.0
    non_overlapping_masks: Annotated[bool, Option("--no-overlap", help="Give each pixel to one object at most.")] = (
        False
    )

    @property
    def transparent(self) -> bool:
        """Whether objects are cut out."""
        return self.cutout

    def with_defaults(self) -> Self:
        """With --cutout, save a video that has alpha."""
        return dataclasses.replace(self, save="webm,json") if self.cutout and self.save is None else self

    def call_options(self) -> dict[str, object]:
        """Add the prompts and the people detector."""
        if not self.points and not self.box and not self.everyone:
            raise InputError('prompts: expected --points, --box or --everyone, got none. Add --points "1@0:x,y", say.')
        from vitruvian.pipelines.tasks.track import TrackPrompt

        prompts = []
        for text in self.box or ():
            object_id, frame, rest = _read_address("--box", text)
            prompts.append(TrackPrompt(object_id=object_id, frame=frame, box=read_numbers("--box", rest, 4)))
        for text in self.points or ():  # after boxes, which replace points
            object_id, frame, rest = _read_address("--points", text)
            rows = _read_points(rest)
            labels = [int(row[2]) if len(row) == 3 else 1 for row in rows]
            points = [row[:2] for row in rows]
            prompts.append(TrackPrompt(object_id=object_id, frame=frame, points=points, labels=labels))
        finder = (self.finder or BUILTIN) if self.everyone else None
        return super().call_options() | {"prompts": prompts, "finder": finder, "interactive": False}


@dataclass(frozen=True, kw_only=True)
class SemanticCommand(BatchGroup, CocoGroup, TaskCommand):
    """Find the class of each pixel. With Mask2Former or MaskFormer.

    --save takes png (the numbers), npz, json (areas and masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """

    name = "semantic"
    example = "vitruvian semantic photo.jpg --model facebook/mask2former-swin-small-ade-semantic --save png,plot"
    panel = "Classes"
    plot_names = ("opacity",)

    opacity: Opacity = 0.55


@dataclass(frozen=True, kw_only=True)
class InstancesCommand(ThresholdGroup, BatchGroup, CocoGroup, TaskCommand):
    """Find objects: a mask, a class and a score each. With Mask2Former or MaskFormer.

    --save takes json (COCO RLE), npz, png (numbers of the masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """

    name = "instances"
    example = "vitruvian instances photo.jpg --model facebook/mask2former-swin-small-coco-instance --save json,plot"


@dataclass(frozen=True, kw_only=True)
class PanopticCommand(ThresholdGroup, BatchGroup, CocoGroup, TaskCommand):
    """Divide images into objects, one by one, and regions such as sky. With Mask2Former or MaskFormer.

    --save takes png (COCO's numbers as colours), json (the segments), npz, plot, plot.jpg; of videos also mp4, webm,
    mov.
    """

    name = "panoptic"
    example = "vitruvian panoptic photo.jpg --model facebook/mask2former-swin-small-cityscapes-panoptic --save png,json"
    panel = "Objects"
    call_names = ("label_ids_to_fuse",)

    fuse: Annotated[
        list[int] | None,
        Option(help="Number of a class of which there is one segment at most, such as sky. Repeat for more."),
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


def _read_address(option: str, text: str) -> tuple[int, int, str]:
    """Read the object and the frame of a prompt, and return the rest."""
    found = re.fullmatch(r"(\d+)@(\d+):(.+)", text)
    if not found:
        raise InputError(f"{option}: expected ID@FRAME:numbers such as 1@0:220,120, got {text!r}.")
    return int(found[1]), int(found[2]), found[3]


def _read_points(text: str) -> list[list[float]]:
    """Read the points on one object: x, y, and whether they lie on it."""
    rows = [read_numbers("--points", word, 2, 3) for word in text.split()]
    if not rows or any(len(row) == 3 and row[2] not in (0, 1) for row in rows):
        raise InputError(f'--points: expected "x,y" or "x,y,1" on the object and "x,y,0" off it, got {text!r}.')
    return rows


_PEOPLE = (PoseCommand, PartsCommand, NormalsCommand, PointmapCommand, MatteCommand, AlbedoCommand, EmbedCommand)
_ANYTHING = (SegmentCommand, MasksCommand, TrackCommand, SemanticCommand, InstancesCommand, PanopticCommand)
TASK_COMMANDS: dict[str, type[TaskCommand]] = {command.name: command for command in (*_PEOPLE, *_ANYTHING)}
