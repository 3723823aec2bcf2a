"""JSON schemas of results, made from what their `to_dict` returns for small examples.

What the examples of a result have in common is required; values that are null in one of them may be null.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitruvian.filesystem.json_files import json_text
from vitruvian.results import (
    Albedo,
    Embedding,
    Masks,
    Matte,
    Normals,
    Panoptic,
    Parts,
    People,
    Pointmap,
    Pose,
    Result,
    Semantic,
)
from vitruvian.results.panoptic import Segment

Schema = dict[str, Any]
_H, _W = 2, 3
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


@functools.cache
def result_schemas() -> dict[str, Schema]:
    """Return the schema of the result of each task that answers with JSON."""
    return {task: _describe(examples) for task, examples in _examples().items()}


def _describe(examples: Sequence[Result]) -> Schema:
    schema = _schema_of([json.loads(json_text(example.to_dict())) for example in examples])
    return {
        "title": type(examples[0]).__name__,
        "description": inspect.getdoc(type(examples[0]).to_dict) or "",
        **schema,
    }


def _schema_of(values: Sequence[object]) -> Schema:
    """Return a schema that all these values follow."""
    present = [value for value in values if value is not None]
    nullable = len(present) < len(values)
    if not present:
        return {"type": "null"} if values else {}
    schema = _schema_of_present(present)
    if not nullable:
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


def _schema_of_present(values: Sequence[object]) -> Schema:
    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) == len(values):
        names = {name: None for value in objects for name in value}
        if all(name.isdigit() for name in names) and names:  # numbers of classes
            return {"type": "object", "additionalProperties": _schema_of([one for v in objects for one in v.values()])}
        return {
            "type": "object",
            "properties": {name: _schema_of([value.get(name) for value in objects]) for name in names},
            "required": [name for name in names if all(name in value for value in objects)],
        }
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values):
        return {"type": "array", "items": _schema_of([one for value in lists for one in value])}
    types = {_TYPES[type(value)] for value in values}
    if types == {"integer", "number"}:
        types = {"number"}
    return {"type": types.pop()} if len(types) == 1 else {"anyOf": [{"type": one} for one in sorted(types)]}


def _examples() -> dict[str, tuple[Result, ...]]:
    """Return examples of the results of each task: with everything, and with as little as possible."""
    boxes = np.array([[0, 0, 2, 1]], np.float32)
    people = People(
        boxes_xyxy=boxes,
        scores=np.ones(1, np.float32),
        ids=np.ones(1, np.int64),
        detector="given",
        note="a note",
    )
    plain_people = People(boxes_xyxy=boxes, scores=np.ones(1, np.float32), detector="given")
    full: dict[str, Any] = {"size_hw": (_H, _W), "source": "a.jpg", "model": "builtin", "frame": 0, "time": 0.0}
    bare: dict[str, Any] = {"size_hw": (_H, _W), "source": "a.jpg", "model": "builtin"}
    flat, vectors = np.zeros((_H, _W), np.float32), np.zeros((_H, _W, 3), np.float32)
    vectors[..., 2] = 1
    mask = np.ones((_H, _W), bool)
    one: dict[str, Any] = {"rles": mask[None], "scores": np.ones(1, np.float32), "boxes_xyxy": boxes}
    camera = np.eye(3, dtype=np.float32)

    def masks(kind: Any, *, labels: bool) -> tuple[Masks, ...]:
        named: dict[str, Any] = {"label_ids": np.zeros(1, np.int64), "label_names": ("person",)} if labels else {}
        return Masks(**full, kind=kind, **one, **named), Masks(**bare, kind=kind, **one, **named)

    def dense(cls: type[Result], optional: dict[str, Any] | None = None, **fields: Any) -> tuple[Result, ...]:
        return (
            cls(**full, people=people, **fields, **(optional or {})),
            cls(**bare, people=plain_people, **fields),
            cls(**bare, **fields),
        )

    keypoints = np.zeros((1, 17, 2), np.float32)
    missing = np.full((1, 17, 2), np.nan, np.float32)
    names = tuple(f"point {number}" for number in range(17))
    scores = np.ones((1, 17), np.float32)
    segment = Segment(id=1, label_id=0, label="person", score=0.5, area=6, box_xyxy=(0.0, 0.0, 3.0, 2.0), is_thing=True)
    stuff = Segment(id=1, label_id=0, label="sky", score=0.5, area=6, box_xyxy=(0.0, 0.0, 3.0, 2.0))
    numbers = np.ones((_H, _W), np.int32)
    return {
        "pose": (
            Pose(**full, people=people, keypoints=keypoints, scores=scores, names=names),
            Pose(**bare, people=plain_people, keypoints=missing, scores=scores, names=names),
            Pose(**bare, keypoints=keypoints, scores=scores, names=names),
        ),
        "parts": dense(Parts, labels=np.zeros((_H, _W), np.uint8)),
        "normals": dense(Normals, optional={"mask": mask}, normals=vectors),
        "pointmap": (
            Pointmap(**full, people=people, points=vectors, mask=mask, intrinsics=camera, intrinsics_from="assumed",
                     metric=True, scale=1.0, note="why"),
            Pointmap(**bare, people=plain_people, points=vectors, mask=~mask, intrinsics=camera,
                     intrinsics_from="given", metric=False),
            Pointmap(**bare, points=vectors, mask=mask, intrinsics=camera, intrinsics_from="given", metric=False),
        ),
        "matte": dense(Matte, alpha=flat, foreground=np.zeros((_H, _W, 3), np.float32)),
        "albedo": dense(Albedo, optional={"mask": mask}, albedo=flat[..., None].repeat(3, -1)),
        "embed": (
            Embedding(**full, cls=np.full(2, 0.5, np.float32), patches=np.zeros((1, 1, 2), np.float32)),
            Embedding(**bare, cls=np.full(2, 0.5, np.float32), patches=np.zeros((1, 1, 2), np.float32)),
        ),
        "segment": masks("segment", labels=False),
        "masks": masks("masks", labels=False),
        "instances": masks("instances", labels=True),
        "semantic": (
            Semantic(**full, labels=numbers, id2label={1: "sky"}),
            Semantic(**bare, labels=numbers, id2label={1: "sky"}),
        ),
        "panoptic": (
            Panoptic(**full, segmentation=numbers, segments=(segment,)),
            Panoptic(**bare, segmentation=numbers, segments=(stuff,)),
        ),
    }  # fmt: skip
