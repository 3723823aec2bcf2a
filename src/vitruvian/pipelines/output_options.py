"""Options of how results are converted, drawn and written, which the command line and the server add to a pipeline's.

This module does not import torch, as `options.py` does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from vitruvian.pipelines.options import option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from vitruvian.results import Result

ALL_MASKS_HELP = "Return all three candidate masks per object, not only the best."
_OPACITY_HELP, _OUTLINE_HELP = "Overlay opacity.", "Draw outlines."


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How results are converted, drawn and written. By default fields are arguments of the result's `plot`."""

    panel: ClassVar[str | None] = None

    def convert(self, result: "Result") -> "Result":
        """Convert a result before it is written and drawn."""
        return result

    def plot_options(self) -> dict[str, object]:
        """Return the arguments of the result's `plot`."""
        return dict(vars(self))

    def draw(self, result: "Result") -> "NDArray[np.uint8] | Image.Image":
        """Draw a result."""
        plot: Callable[..., Image.Image] = result.plot
        return plot(**self.plot_options())

    def draw_frame(self, result: "Result") -> "NDArray[np.uint8] | Image.Image":
        """Draw the result of a frame of a video, at the size of the frame."""
        return result.plot_frame(**self.plot_options())

    def save_options(self, file_format: str) -> dict[str, object]:
        """Return the arguments of the result's `save` for a file format."""
        return {}


@dataclass(frozen=True, kw_only=True)
class PoseOutputOptions(OutputOptions):
    """Which keypoints are written and drawn."""

    panel = "Poses"

    layout: Literal["sapiens308", "coco17", "coco133", "openpose"] = option(
        "sapiens308", "Keypoint layout of files and drawings.", basic=True
    )
    keypoint_threshold: float = option(0.3, "Minimum score of drawn keypoints.", ge=0, le=1)
    draw_boxes: bool = option(False, "Draw the boxes of people.")

    def convert(self, result: "Result") -> "Result":
        """Convert the keypoints to the layout."""
        from vitruvian.results import Pose

        return result.to_layout(self.layout) if isinstance(result, Pose) and self.layout != "sapiens308" else result

    def plot_options(self) -> dict[str, object]:
        """Return the threshold of keypoints and whether boxes are drawn."""
        return {"threshold": self.keypoint_threshold, "boxes": self.draw_boxes}


@dataclass(frozen=True, kw_only=True)
class LabelMapOutputOptions(OutputOptions):
    """How class maps are drawn."""

    panel = "Drawing"

    opacity: float = option(0.55, _OPACITY_HELP, ge=0, le=1)
    legend: bool = option(True, "Draw a legend beside the image.")
    outline: bool = option(True, _OUTLINE_HELP)


@dataclass(frozen=True, kw_only=True)
class PointmapOutputOptions(OutputOptions):
    """How points are written, and depth is drawn."""

    # Not on the command line, which has the file format mesh.glb.
    mesh: bool = option(False, "Write a mesh to GLB instead of points.", cli=False)
    max_points: int | None = option(None, "Maximum number of points in PLY and GLB.", ge=1, cli=False)
    color_bar: bool = False

    def plot_options(self) -> dict[str, object]:
        """Return whether a color bar is drawn."""
        return {"color_bar": self.color_bar}

    def save_options(self, file_format: str) -> dict[str, object]:
        """Only point clouds have such options."""
        return {"mesh": self.mesh, "max_points": self.max_points} if file_format in ("ply", "glb") else {}


@dataclass(frozen=True, kw_only=True)
class MatteOutputOptions(OutputOptions):
    """What is behind people in drawings. The field is set by the command line and the server, in different forms."""

    over: str | None = None

    def draw(self, result: "Result") -> "NDArray[np.uint8] | Image.Image":
        """Draw people over a color or an image, or over a checkerboard."""
        from vitruvian.results import Matte

        return result.over(self.over) if isinstance(result, Matte) and self.over is not None else result.plot()

    def draw_frame(self, result: "Result") -> "NDArray[np.uint8] | Image.Image":
        """Draw a frame of a video as an image."""
        return self.draw(result)


@dataclass(frozen=True, kw_only=True)
class MasksOutputOptions(OutputOptions):
    """How masks are drawn."""

    panel = "Drawing"

    opacity: float = option(0.5, _OPACITY_HELP, ge=0, le=1)
    outline: bool = option(True, _OUTLINE_HELP)


@dataclass(frozen=True, kw_only=True)
class PromptedMasksOutputOptions(MasksOutputOptions):
    """How masks are drawn with their prompts."""

    boxes: bool = False
    points: Sequence[Sequence[float]] = ()
    labels: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class PanopticOutputOptions(MasksOutputOptions):
    """How segments are drawn."""

    panel = "Drawing"

    opacity: float = option(0.6, _OPACITY_HELP, ge=0, le=1)


@dataclass(frozen=True, kw_only=True)
class CommonVideoOptions:
    """Options of the video loop that the command line and the server have too; `track` has its own `detect_every`."""

    panel: ClassVar[str | None] = "Video and cameras"

    smooth: bool = option(True, "Smooth results over time.")
    sound: bool = option(True, "Keep the audio.")
    detect_every: int = option(1, "Detect people every N frames, and track them in between.", ge=1)
