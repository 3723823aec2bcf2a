"""People from an ONNX detector, YOLOX or RTMDet, through onnxruntime.

    picture ── letterbox ──▶ [1, 3, H, W] ── session ──▶ outputs ── detector_outputs ──▶ boxes ── NMS ──▶ People

Size, layout and type of the input are read off the graph. What the outputs are is told by their shapes, see
`detector_outputs`. YOLOX wants BGR values as they are, RTMDet wants them normalised: which of the two a file holds is
told by its outputs, its name, or the names of its weights.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitruvian.errors import CheckpointError, InputError, MissingExtraError
from vitruvian.images.nms import box_nms
from vitruvian.images.resize import fit_inside_hw, resize
from vitruvian.pipelines.finders.onnx_outputs import Detections, detector_outputs
from vitruvian.processor import as_tensor
from vitruvian.results.base import People, Picture

DetectorKind = Literal["yolox", "rtmdet"]
KINDS: tuple[DetectorKind, ...] = ("yolox", "rtmdet")
# Names of weights that only one of them has.
MARKS: dict[bytes, DetectorKind] = {
    b"rtm_cls": "rtmdet",
    b"rtm_reg": "rtmdet",
    b"obj_preds": "yolox",
    b"multi_level_conv_obj": "yolox",
}
# Of the values 0..255, in the order B, G, R.
RTMDET_MEAN = (103.53, 116.28, 123.675)
RTMDET_STD = (57.375, 57.12, 58.395)
PAD_VALUE = 114.0
FREE_SIDE = 640  # of a graph that leaves its size open
MOST_CANDIDATES = 1000
DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
}


class InputLayout(NamedTuple):
    """What a graph wants to see."""

    name: str
    size_hw: tuple[int, int]
    channels_last: bool
    dtype: type[np.generic]


class OnnxFinder:
    """Finds people with a YOLOX or RTMDet in an ONNX file, with or without NMS in the graph.

    Args:
        path: The .onnx file.
        threshold: Lowest score of a person.
        iou_threshold: Of two boxes that overlap by more, the better is kept; where the graph does that itself, unused.
        kind: ``"yolox"`` or ``"rtmdet"``; by default told from the file.
        person_label: Number of the class person; 0 in models of COCO.
        size_hw: Input size, where the graph leaves it open; by default 640×640.
        device: ``"cpu"`` or ``"cuda"``; by default CUDA where this onnxruntime has it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        threshold: float = 0.5,
        iou_threshold: float = 0.6,
        kind: DetectorKind | None = None,
        person_label: int = 0,
        size_hw: tuple[int, int] | None = None,
        device: Any = None,
    ) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self.threshold, self.iou_threshold, self.person_label = threshold, iou_threshold, person_label
        self.session = open_session(self.path, device)
        self.layout = read_input(self.session.get_inputs(), self.name, size_hw)
        if kind is not None and kind not in KINDS:
            raise InputError(f"kind: expected yolox or rtmdet, got {kind!r}.")
        self.kind = kind or tell_kind(self.path, [output.shape for output in self.session.get_outputs()])

    def find(self, picture: Picture) -> People:
        """Return the people in a picture [H, W, 3], best first."""
        pixels, inner_hw = letterbox(picture, self.layout.size_hw)
        values = self.session.run(None, {self.layout.name: self.as_input(pixels)})
        names = [output.name for output in self.session.get_outputs()]
        found = detector_outputs(
            dict(zip(names, values, strict=True)), self.layout.size_hw, self.person_label, subject=self.name
        )
        boxes, scores = self.select(found)
        height, width = picture.shape[:2]
        scale = np.array([width / inner_hw[1], height / inner_hw[0]] * 2, np.float32)
        limits = np.array([width, height] * 2, np.float32)
        return People(boxes_xyxy=np.clip(boxes * scale, 0, limits), scores=scores, finder=self.name)

    def as_input(self, pixels: NDArray[np.float32]) -> NDArray[Any]:
        """Bring RGB 0..255 [H, W, 3] into the form of the graph: BGR, normalised for RTMDet."""
        values: NDArray[Any] = pixels[..., ::-1]  # [H, W, 3] BGR
        if self.kind == "rtmdet" and self.layout.dtype != np.uint8:
            values = (values - np.array(RTMDET_MEAN, np.float32)) / np.array(RTMDET_STD, np.float32)
        if not self.layout.channels_last:
            values = values.transpose(2, 0, 1)  # [3, H, W]
        return np.ascontiguousarray(values[None].astype(self.layout.dtype))  # [1, 3, H, W] or [1, H, W, 3]

    def select(self, found: Detections) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Keep sure boxes, and of overlapping ones the best, where the graph has not done so: [P, 4], [P]."""
        sure = np.flatnonzero(found.scores >= self.threshold)
        sure = sure[np.argsort(-found.scores[sure], kind="stable")][:MOST_CANDIDATES]
        boxes, scores = found.boxes_xyxy[sure], found.scores[sure]
        if not found.suppressed:
            kept = box_nms(torch.from_numpy(boxes), torch.from_numpy(scores), self.iou_threshold).numpy()
            boxes, scores = boxes[kept], scores[kept]
        return boxes, scores


def open_session(path: Path, device: Any) -> Any:
    """Open an ONNX file on a device."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "detect", "ONNX detectors") from error
    if not path.is_file():
        raise CheckpointError(f"{path}: expected an ONNX file, got no such file. Check the path.")
    have = onnxruntime.get_available_providers()
    kind = None if device is None else torch.device(device).type
    if kind not in (None, "cpu", "cuda", "mps"):
        raise InputError(f"device: expected cpu or cuda for an ONNX detector, got {device!r}.")
    if kind == "cuda" and "CUDAExecutionProvider" not in have:
        raise InputError("device: 'cuda' asked for, but this onnxruntime has no CUDA. Install onnxruntime-gpu.")
    wanted = ["CUDAExecutionProvider"] if kind in (None, "cuda") else []
    providers = [provider for provider in [*wanted, "CPUExecutionProvider"] if provider in have]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: exporters leave harmless warnings
    try:
        return onnxruntime.InferenceSession(str(path), sess_options=options, providers=providers)
    except Exception as error:  # onnxruntime raises a dozen classes of its own, none of them public
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path.name}: expected an ONNX model that onnxruntime runs, got: {text[:200]}"
        ) from error


def read_input(inputs: Sequence[Any], name: str, size_hw: tuple[int, int] | None) -> InputLayout:
    """Read size, layout and type off a graph's only input."""
    shapes = {entry.name: list(entry.shape) for entry in inputs}
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in DTYPES:
        raise InputError(
            f"{name}: expected one input [1, 3, H, W] or [1, H, W, 3] of float32, float16 or uint8, got {shapes}. "
            "Is this a detector?"
        )
    only = inputs[0]
    channels_last = only.shape[3] == 3 and only.shape[1] != 3
    if not channels_last and only.shape[1] not in (3, None) and not isinstance(only.shape[1], str):
        raise InputError(f"{name}: expected an input with 3 channels, got {shapes}.")
    sides = only.shape[1:3] if channels_last else only.shape[2:4]
    fixed = [side if isinstance(side, int) and side > 0 else None for side in sides]
    if size_hw is not None and any(side not in (None, want) for side, want in zip(fixed, size_hw, strict=True)):
        raise InputError(f"size_hw: expected {fixed[0]}×{fixed[1]}, which {name} is fixed to, got {size_hw}.")
    height, width = (side or want for side, want in zip(fixed, size_hw or (FREE_SIDE, FREE_SIDE), strict=True))
    return InputLayout(only.name, (height, width), channels_last, DTYPES[only.type])


def tell_kind(path: Path, output_shapes: Sequence[Sequence[Any]]) -> DetectorKind:
    """Tell YOLOX from RTMDet by outputs, file name, or the names of the weights."""
    if len(output_shapes) == 1 and len(output_shapes[0]) == 3 and output_shapes[0][2] not in (4, 5):
        return "yolox"
    for kind in KINDS:
        if kind in path.name.lower():
            return kind
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for mark, kind in MARKS.items():
            if content.find(mark) >= 0:
                return kind
    raise InputError(
        f'{path.name}: cannot tell YOLOX from RTMDet, whose pixels are prepared differently. Pass kind="yolox" or '
        '"rtmdet" to OnnxFinder, or put it into the file name.'
    )


def letterbox(picture: Picture, size_hw: tuple[int, int]) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """Fit a picture into the top left of a grey [H, W, 3], float32, and return how large it became.

    Shrinking averages, unlike in the training of these models: their photographs were small already.
    """
    inner_hw = fit_inside_hw((picture.shape[0], picture.shape[1]), size_hw)
    source = as_tensor(picture).permute(2, 0, 1)  # [3, H, W]
    canvas = np.full((*size_hw, 3), PAD_VALUE, np.float32)
    canvas[: inner_hw[0], : inner_hw[1]] = resize(source, inner_hw).permute(1, 2, 0).numpy()
    return canvas, inner_hw
