"""People detector in an ONNX file, YOLOX or RTMDet, with onnxruntime.

    image ── letterbox ──▶ [1, 3, H, W] ── session ──▶ outputs ── _read_outputs ──▶ boxes ── NMS ──▶ People

Size, layout and data type of the input are read from the graph. YOLOX takes BGR values from 0 to 255, RTMDet normalized
ones; which of the two a file holds is derived from its outputs, its name, or the names of its weights. Outputs are
recognized by their shapes:

YOLOX           [1, N, 5 + K]                 cx, cy, w, h, objectness, classes: on the grids of 3 or 4 strides (raw),
                                              or in pixels (decoded in the graph)
with NMS        [1, N, 5] and labels [1, N]   x1, y1, x2, y2, score (mmdeploy: RTMDet, YOLOX)
with NMS        [1, N, 4], [1, N], labels [1, N], and the number of valid rows (mmyolo)
without NMS     [1, N, 4] and [1, N, K]       corners and scores of all classes
RTMDet, bare    L × [1, K, h, w], L × [1, 4, h, w]   class logits, and distances to left, top, right, bottom in
                                              pixels from the corner of each cell (mmdetection)
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitruvian.devices import Device
from vitruvian.errors import CheckpointError, InputError, import_extra
from vitruvian.images.data_format import pixels_of
from vitruvian.images.nms import box_nms
from vitruvian.images.resize import fit_inside_hw, resize
from vitruvian.images.types import Float32Array, RgbImage, SizeHW
from vitruvian.results.base import People

Array = NDArray[np.generic]
DetectorKind = Literal["yolox", "rtmdet"]
_KINDS: tuple[DetectorKind, ...] = ("yolox", "rtmdet")
# Names of weights that only one of them has.
_WEIGHT_NAMES: dict[bytes, DetectorKind] = {
    b"rtm_cls": "rtmdet",
    b"rtm_reg": "rtmdet",
    b"obj_preds": "yolox",
    b"multi_level_conv_obj": "yolox",
}
# For values from 0 to 255, in the order B, G, R.
_RTMDET_MEAN = np.array((103.53, 116.28, 123.675), np.float32)
_RTMDET_STD = np.array((57.375, 57.12, 58.395), np.float32)
_PAD_VALUE = 114.0
_DEFAULT_SIDE = 640  # input size for a graph with a dynamic one
_MAX_CANDIDATES = 1000
_NMS_IOU = 0.6
_PERSON = 0  # index of the class in models of COCO
_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
}
_YOLOX_STRIDES: tuple[tuple[int, ...], ...] = ((8, 16, 32), (8, 16, 32, 64))


class _InputLayout(NamedTuple):
    """The input of a graph."""

    name: str
    size_hw: SizeHW
    channels_last: bool
    dtype: type[np.generic]


class _Detections(NamedTuple):
    """Candidates of one image in pixels of the input."""

    boxes_xyxy: Float32Array  # [N, 4]
    scores: Float32Array  # [N]
    suppressed: bool  # whether the graph includes NMS


class OnnxDetector:
    """Detects people with a YOLOX or RTMDet in an ONNX file, with or without NMS in the graph.

    Args:
        path: The .onnx file.
        threshold: Lowest score of a person.
        kind: ``"yolox"`` or ``"rtmdet"``; by default derived from the file.
        device: ``"cpu"`` or ``"cuda"``; by default CUDA if this onnxruntime supports it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        threshold: float = 0.5,
        kind: DetectorKind | None = None,
        device: Device = None,
    ) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self.threshold = threshold
        self.session = _open_session(self.path, device)
        self.layout = _read_input(self.session.get_inputs(), self.name)
        if kind is not None and kind not in _KINDS:
            raise InputError(f"kind: expected yolox or rtmdet, got {kind!r}.")
        self.kind = kind or _detect_kind(self.path, [output.shape for output in self.session.get_outputs()])

    def detect(self, image: RgbImage, /) -> People:
        """Return the people in an image [H, W, 3], by score."""
        pixels, inner_hw = _letterbox(image, self.layout.size_hw)
        values = self.session.run(None, {self.layout.name: self._to_input(pixels)})
        names = [output.name for output in self.session.get_outputs()]
        detections = _read_outputs(dict(zip(names, values, strict=True)), self.layout.size_hw, subject=self.name)
        boxes, scores = self._select(detections)
        height, width = image.shape[:2]
        scale = np.array([width / inner_hw[1], height / inner_hw[0]] * 2, np.float32)
        limits = np.array([width, height] * 2, np.float32)
        return People(boxes_xyxy=np.clip(boxes * scale, 0, limits), scores=scores, detector=self.name)

    def _to_input(self, pixels: Float32Array) -> Array:
        """Convert RGB 0..255 [H, W, 3] to the input of the graph: BGR, normalized for RTMDet."""
        values: Float32Array = pixels[..., ::-1]  # [H, W, 3] BGR
        if self.kind == "rtmdet" and self.layout.dtype != np.uint8:
            values = (values - _RTMDET_MEAN) / _RTMDET_STD
        if not self.layout.channels_last:
            values = values.transpose(2, 0, 1)  # [3, H, W]
        return np.ascontiguousarray(values[None].astype(self.layout.dtype))  # [1, 3, H, W] or [1, H, W, 3]

    def _select(self, detections: _Detections) -> tuple[Float32Array, Float32Array]:
        """Apply the threshold, and NMS unless the graph includes it: [P, 4], [P]."""
        order = np.flatnonzero(detections.scores >= self.threshold)
        order = order[np.argsort(-detections.scores[order], kind="stable")][:_MAX_CANDIDATES]
        boxes, scores = detections.boxes_xyxy[order], detections.scores[order]
        if not detections.suppressed:
            selected = box_nms(torch.from_numpy(boxes), torch.from_numpy(scores), _NMS_IOU).numpy()
            boxes, scores = boxes[selected], scores[selected]
        return boxes, scores


def _open_session(path: Path, device: Device) -> Any:
    """Open an ONNX file on a device."""
    onnxruntime = import_extra("onnxruntime", "detect", "ONNX detectors")
    if not path.is_file():
        raise CheckpointError(f"{path}: file not found. Check the path of the ONNX file.")
    available = onnxruntime.get_available_providers()
    kind = None if device is None else torch.device(device).type
    if kind not in (None, "cpu", "cuda", "mps"):
        raise InputError(f"device: expected cpu or cuda for an ONNX detector, got {device!r}.")
    if kind == "cuda" and "CUDAExecutionProvider" not in available:
        raise InputError("device: this onnxruntime has no CUDA support. Install onnxruntime-gpu.")
    wanted = ["CUDAExecutionProvider"] if kind in (None, "cuda") else []
    providers = [provider for provider in [*wanted, "CPUExecutionProvider"] if provider in available]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: exporters leave harmless warnings
    try:
        return onnxruntime.InferenceSession(str(path), sess_options=options, providers=providers)
    except Exception as error:  # onnxruntime raises a dozen classes of its own, none of them public
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path.name}: expected an ONNX model that onnxruntime runs, got: {text[:200]}"
        ) from error


def _read_input(inputs: Sequence[Any], name: str) -> _InputLayout:
    """Read size, layout and data type of a graph's only input."""
    shapes = {entry.name: list(entry.shape) for entry in inputs}
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _DTYPES:
        raise InputError(
            f"{name}: expected one input [1, 3, H, W] or [1, H, W, 3] of float32, float16 or uint8, got {shapes}. "
            "Is this a detector?"
        )
    only = inputs[0]
    channels_last = only.shape[3] == 3 and only.shape[1] != 3
    if not channels_last and only.shape[1] not in (3, None) and not isinstance(only.shape[1], str):
        raise InputError(f"{name}: expected an input with 3 channels, got {shapes}.")
    sides = only.shape[1:3] if channels_last else only.shape[2:4]
    height, width = (side if isinstance(side, int) and side > 0 else _DEFAULT_SIDE for side in sides)
    return _InputLayout(only.name, (height, width), channels_last, _DTYPES[only.type])


def _detect_kind(path: Path, output_shapes: Sequence[Sequence[object]]) -> DetectorKind:
    """Distinguish YOLOX from RTMDet by outputs, file name, or the names of the weights."""
    if len(output_shapes) == 1 and len(output_shapes[0]) == 3 and output_shapes[0][2] not in (4, 5):
        return "yolox"
    for kind in _KINDS:
        if kind in path.name.lower():
            return kind
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for weight_name, kind in _WEIGHT_NAMES.items():
            if content.find(weight_name) >= 0:
                return kind
    raise InputError(
        f'{path.name}: cannot tell YOLOX from RTMDet, whose pixels are prepared differently. Pass kind="yolox" or '
        '"rtmdet" to OnnxDetector, or put it into the file name.'
    )


def _letterbox(image: RgbImage, size_hw: SizeHW) -> tuple[Float32Array, tuple[int, int]]:
    """Resize an image to fit the top left of a gray one [H, W, 3], float32; return it and the resized size.

    Downsampling is antialiased, unlike in the training of these models, whose photographs were small.
    """
    inner_hw = fit_inside_hw((image.shape[0], image.shape[1]), size_hw)
    source = pixels_of(image)  # [3, H, W]
    canvas = np.full((*size_hw, 3), _PAD_VALUE, np.float32)
    canvas[: inner_hw[0], : inner_hw[1]] = resize(source, inner_hw).permute(1, 2, 0).numpy()
    return canvas, inner_hw


def _read_outputs(outputs: Mapping[str, Array], size_hw: SizeHW, *, subject: str) -> _Detections:
    """Read a detector's outputs for one image."""
    arrays = [value[0] for value in outputs.values() if value.ndim >= 2 and value.shape[0] == 1]
    rows = [array for array in arrays if array.ndim == 1]
    tables = [array.astype(np.float32) for array in arrays if array.ndim == 2]
    maps = [array.astype(np.float32) for array in arrays if array.ndim == 3]
    tables.sort(key=lambda table: table.shape[1] != 4)  # corners first
    widths = [table.shape[1] for table in tables]
    detections: _Detections | None = None
    if widths == [5] or (widths == [4] and rows):
        detections = _final_detections(tables[0], rows)
    elif len(widths) == 2 and widths[0] == 4 != widths[1]:
        if len(tables[0]) == len(tables[1]) and widths[1] > _PERSON:
            detections = _Detections(tables[0], tables[1][:, _PERSON], False)
    elif len(tables) == len(arrays) == 1 and widths[0] > 5 + _PERSON:
        detections = _yolox_detections(tables[0], size_hw)
    elif maps and len(maps) == len(arrays):
        detections = _map_detections(maps, size_hw)
    if detections is None:
        shapes = {name: list(value.shape) for name, value in outputs.items()}
        raise InputError(
            f"{subject}: expected the outputs of YOLOX or RTMDet, got {shapes} for an input of "
            f"{size_hw[0]}×{size_hw[1]}. Export it with mmdeploy or YOLOX's own tool, or write a detector for it."
        )
    return detections


def _final_detections(table: Float32Array, rows: Sequence[Array]) -> _Detections | None:
    """Read corners and scores after NMS: [N, 5], or [N, 4] and scores [N].

    Labels [N] and the number of valid rows [1] may be missing.
    """
    integers = [row for row in rows if np.issubdtype(row.dtype, np.integer)]
    labels = [row for row in integers if len(row) == len(table)]
    scores = [row for row in rows if np.issubdtype(row.dtype, np.floating) and len(row) == len(table)]
    if table.shape[1] == 5:
        labels, scores = labels + scores, [table[:, 4]]
    if len(scores) != 1 or len(labels) > 1:
        return None
    valid = np.isfinite(table).all(1)  # [N]
    if labels:
        valid &= labels[0] == _PERSON
    for count in (row for row in integers if len(row) == 1 != len(table)):
        valid &= np.arange(len(table)) < int(count[0])
    return _Detections(table[valid, :4], scores[0][valid].astype(np.float32), True)


def _yolox_detections(table: Float32Array, size_hw: SizeHW) -> _Detections | None:
    """Read YOLOX's [N, 5 + K], and decode it unless the graph does."""
    grid = next((g for g in (_yolox_grid(size_hw, s) for s in _YOLOX_STRIDES) if len(g) == len(table)), None)
    if grid is None:
        return None
    center_xy, size_wh = table[:, :2], table[:, 2:4]
    # Logarithms of sides are below this; of sides in pixels some are above.
    if size_wh.max() < math.log(10 * max(size_hw)):
        strides = grid[:, 2:]  # [N, 1]
        center_xy = (center_xy + grid[:, :2]) * strides
        size_wh = np.exp(size_wh) * strides
    boxes = np.concatenate((center_xy - size_wh / 2, center_xy + size_wh / 2), axis=1)  # [N, 4]
    return _Detections(boxes.astype(np.float32), table[:, 4] * table[:, 5 + _PERSON], False)


def _yolox_grid(size_hw: SizeHW, strides: Sequence[int]) -> Float32Array:
    """Return column, row and stride of every cell, level by level: [N, 3]."""
    levels = []
    for stride in strides:
        rows, columns = np.indices((size_hw[0] // stride, size_hw[1] // stride), dtype=np.float32)  # [h, w] each
        levels.append(np.stack((columns, rows, np.full_like(rows, stride)), axis=-1).reshape(-1, 3))
    return np.concatenate(levels)


def _map_detections(maps: Sequence[Float32Array], size_hw: SizeHW) -> _Detections | None:
    """Read maps of class logits [K, h, w] and of distances [4, h, w], a pair for each level in any order."""
    boxes, scores = [], []
    for grid_hw in dict.fromkeys(level.shape[1:] for level in maps):
        pair = [level for level in maps if level.shape[1:] == grid_hw]
        if len(pair) != 2 or 4 not in (pair[0].shape[0], pair[1].shape[0]):
            return None
        # Class logits come first if both have four channels.
        classes, distances = pair if pair[1].shape[0] == 4 else pair[::-1]
        if len(classes) <= _PERSON:
            return None
        rows, columns = np.indices(grid_hw, dtype=np.float32)
        center_xy = np.stack((columns * (size_hw[1] / grid_hw[1]), rows * (size_hw[0] / grid_hw[0])))  # [2, h, w]
        level = np.concatenate((center_xy - distances[:2], center_xy + distances[2:]))  # [4, h, w]
        boxes.append(level.reshape(4, -1).T)  # [h·w, 4]
        scores.append(1 / (1 + np.exp(-classes[_PERSON].reshape(-1))))  # [h·w]
    return _Detections(np.concatenate(boxes), np.concatenate(scores).astype(np.float32), False)
