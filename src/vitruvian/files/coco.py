"""COCO's JSON: records of images, keypoints, instances and panoptic segments, from plain arrays.

Keypoints come as x, y, v: v is 2 where the score reaches the threshold and 0 elsewhere. Places are kept either way,
because evaluation of predictions uses all of them; only points that a layout has and the model lacks are 0, 0, 0.
COCO-WholeBody's 133 points are stored as that dataset does it: 17 under ``keypoints``, the others under ``foot_kpts``,
``face_kpts``, ``lefthand_kpts`` and ``righthand_kpts``. Boxes are x, y, width, height; masks are RLE with compressed
counts. Every prediction carries its ``score``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.human import COCO_17, COCO_WHOLEBODY_133, Layout
from vitruvian.images.rle import Rle, compress_counts, read_rle, rle_area, rle_box_xywh

PERSON = 1  # COCO's category of people
# Where COCO-WholeBody keeps the points beyond the first 17, and how many there are of each.
WHOLEBODY_EXTRAS = {"foot": 6, "face": 68, "lefthand": 21, "righthand": 21}


def image_record(
    *, image_id: int, file_name: str, size_hw: tuple[int, int], frame: int | None = None, time: float | None = None
) -> dict[str, Any]:
    """Return the record of a picture; frames of a video carry their number and time as well."""
    record: dict[str, Any] = {"id": image_id, "file_name": file_name, "height": size_hw[0], "width": size_hw[1]}
    if frame is not None:
        record["frame"] = frame
    if time is not None:
        record["time"] = round(time, 6)
    return record


def keypoint_category(layout: Layout) -> dict[str, Any]:
    """Return the category "person" with the names and bones (counted from 1) of a layout."""
    body = COCO_17 if layout is COCO_WHOLEBODY_133 else layout
    return {
        "id": PERSON,
        "name": "person",
        "supercategory": "person",
        "keypoints": list(body.names),
        "skeleton": [[bone.start + 1, bone.end + 1] for bone in body.skeleton],
    }


def keypoint_record(
    keypoints: NDArray[np.float32],
    scores: NDArray[np.float32],
    *,
    layout: Layout,
    box_xyxy: NDArray[np.float32],
    image_id: int,
    annotation_id: int,
    score: float,
    threshold: float = 0.3,
) -> dict[str, Any]:
    """Return the record of one person with keypoints [J, 2] and scores [J] in `layout`."""
    triples, seen = keypoint_triples(keypoints, scores, threshold=threshold)
    box = xywh(box_xyxy)
    record: dict[str, Any] = {
        "id": annotation_id,
        "image_id": image_id,
        "category_id": PERSON,
        "bbox": box,
        "area": round(box[2] * box[3], 2),
        "iscrowd": 0,
        "score": round(score, 4),
        "num_keypoints": int(seen.sum()),
        "keypoints": triples,
        "keypoint_scores": np.round(scores.astype(np.float64), 4).tolist(),
    }
    if layout is COCO_WHOLEBODY_133:
        start = len(COCO_17.names)
        record |= {"keypoints": triples[: start * 3], "num_keypoints": int(seen[:start].sum())}
        for part, count in WHOLEBODY_EXTRAS.items():
            record[f"{part}_kpts"] = triples[start * 3 : (start + count) * 3]
            record[f"{part}_valid"] = bool(seen[start : start + count].any())
            start += count
    return record


def keypoint_triples(
    keypoints: NDArray[np.float32], scores: NDArray[np.float32], *, threshold: float
) -> tuple[list[float], NDArray[np.bool_]]:
    """Return x, y, v of all points one after another, and which of them are seen [J]."""
    known: NDArray[np.bool_] = np.all(np.isfinite(keypoints), axis=-1)  # [J]
    seen = known & (scores >= threshold)  # [J]
    xy = np.where(known[:, None], np.round(keypoints.astype(np.float64), 2), 0)
    return [value for (x, y), v in zip(xy.tolist(), seen.tolist(), strict=True) for value in (x, y, 2 * v)], seen


def mask_record(
    rle: Rle | Mapping[str, Any], *, image_id: int, annotation_id: int, category_id: int, score: float | None = None
) -> dict[str, Any]:
    """Return the record of one mask, its box and area taken from the mask."""
    record: dict[str, Any] = {
        "id": annotation_id,
        "image_id": image_id,
        "category_id": category_id,
        "segmentation": compressed(rle),
        "area": rle_area(rle),
        "bbox": rle_box_xywh(rle),
        "iscrowd": 0,
    }
    if score is not None:
        record["score"] = round(score, 4)
    return record


def segment_record(
    *, segment_id: int, category_id: int, area: int, box_xyxy: tuple[float, float, float, float], score: float
) -> dict[str, Any]:
    """Return an entry of ``segments_info`` in a panoptic record."""
    return {
        "id": segment_id,
        "category_id": category_id,
        "area": area,
        "bbox": xywh(np.array(box_xyxy)),
        "iscrowd": 0,
        "score": round(score, 4),
    }


def id_picture(segmentation: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Store segment numbers [H, W] as COCO's panoptic PNGs do: number = R + 256·G + 256²·B, uint8 [H, W, 3]."""
    if segmentation.min() < 0 or segmentation.max() >= 1 << 24:
        raise InputError(f"segmentation: expected numbers from 0 to 2²⁴ − 1, got {segmentation.max()}.")
    return np.stack([segmentation & 255, segmentation >> 8 & 255, segmentation >> 16], axis=-1).astype(np.uint8)


def compressed(rle: Rle | Mapping[str, Any]) -> dict[str, Any]:
    """Return an RLE with its counts as COCO's string."""
    if isinstance(rle["counts"], str):
        return {"size": list(rle["size"]), "counts": rle["counts"]}
    height, width, counts = read_rle(rle)
    return {"size": [height, width], "counts": compress_counts(counts)}


def xywh(box_xyxy: NDArray[Any]) -> list[float]:
    """Turn corners [4] into x, y, width, height, to a hundredth of a pixel."""
    x1, y1, x2, y2 = (float(value) for value in box_xyxy)
    return [round(value, 2) for value in (x1, y1, x2 - x1, y2 - y1)]
