"""Labels of other tools: YOLO's text files, and COCO datasets converted for Label Studio and CVAT."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError, one_line
from vitruvian.filesystem.atomic import write_lines
from vitruvian.filesystem.json_files import JsonObject, json_text
from vitruvian.filesystem.output_paths import name_key, output_path
from vitruvian.images.polygons import Polygon, mask_polygons
from vitruvian.images.rle import decode_rle
from vitruvian.images.types import SizeHW

_YOLO_VISIBLE = 2
_VISIBLE_SCORE = 0.3  # lowest score of a keypoint that counts as visible
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # such as bytes that are not UTF-8


def yolo_pose_lines(
    keypoints: NDArray[np.float32],
    scores: NDArray[np.float32],
    boxes_xyxy: NDArray[np.float32],
    size_hw: SizeHW,
    *,
    class_index: int = 0,
) -> list[str]:
    """Return a line of YOLO's pose labels for each person: class, box, and x, y, visibility of each keypoint.

    Keypoints with low scores are 0, 0, 0.

    Args:
        keypoints: Coordinates [P, J, 2] in pixels.
        scores: Of each keypoint [P, J].
        boxes_xyxy: Boxes of people [P, 4].
        size_hw: Height and width of the image. All numbers are shares of it.
        class_index: First number of each line.
    """
    height, width = size_hw
    lines = []
    for points, confidence, box in zip(keypoints, scores, boxes_xyxy, strict=True):
        inside = np.isfinite(points).all(-1) & (confidence >= _VISIBLE_SCORE)  # [J]
        inside &= (points >= 0).all(-1) & (points < [width, height]).all(-1)
        values = [*_yolo_box(box, size_hw)]
        for (x, y), visible in zip(points.tolist(), inside.tolist(), strict=True):
            values += [x / width, y / height, _YOLO_VISIBLE] if visible else [0, 0, 0]
        lines.append(_yolo_line(class_index, values))
    return lines


def yolo_segment_lines(polygons: Iterable[Polygon | None], classes: Iterable[int], size_hw: SizeHW) -> list[str]:
    """Return a line of YOLO's segment labels for each object: class, and the points of its polygon as shares."""
    height, width = size_hw
    return [
        _yolo_line(number, (polygon / np.array([width, height], np.float32)).clip(0, 1).ravel().tolist())
        for polygon, number in zip(polygons, classes, strict=True)
        if polygon is not None
    ]


def _yolo_box(box_xyxy: NDArray[np.float32], size_hw: SizeHW) -> list[float]:
    """Return the center, width and height of a box that is clipped to the image, as shares of the image."""
    height, width = size_hw
    x1, y1, x2, y2 = (box_xyxy / np.array([width, height] * 2)).clip(0, 1).tolist()
    return [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]


def _yolo_line(number: int, values: Sequence[float]) -> str:
    return " ".join([str(number), *(f"{value:.6f}".rstrip("0").rstrip(".") for value in values)])


# ------------------------------------------------------------------------------------------- from a COCO dataset


def write_label_studio(path: str | Path, coco: Mapping[str, Any], *, image_root: str = "") -> None:
    """Write a COCO dataset as tasks with predictions that Label Studio imports, and the labeling interface as .xml.

    Keypoints have the box of their person as parent.

    Args:
        path: The .json file.
        coco: The dataset, as `CocoWriter` writes it.
        image_root: URL or folder in front of file names, such as ``/data/local-files/?d=``.
    """
    tasks = []
    for image, records in _by_image(coco):
        results = [shape for record in records for shape in _label_studio_shapes(record, image, coco)]
        scores = [float(record["score"]) for record in records if "score" in record]
        prediction: JsonObject = {"model_version": "vitruvian", "result": results}
        prediction |= {"score": round(float(np.mean(scores)), 4)} if scores else {}
        tasks.append({"data": {"image": f"{image_root}{image['file_name']}"}, "predictions": [prediction]})
    write_lines(path, [json_text(tasks)])
    write_lines(Path(path).with_suffix(".xml"), [_label_studio_interface(coco)])


def _label_studio_interface(coco: Mapping[str, Any]) -> str:
    """Return the labeling interface whose tags the predictions name."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", {"name": "image", "value": "$image"})
    names = [_xml_text(category["name"]) for category in coco["categories"]]
    keypoints = [_xml_text(name) for category in coco["categories"] for name in category.get("keypoints", ())]
    tags = {"RectangleLabels": ("box", names), "PolygonLabels": ("polygon", names), "KeyPointLabels": ("kp", keypoints)}
    for tag, (name, labels) in tags.items():
        if labels:
            parent = ElementTree.SubElement(view, tag, {"name": name, "toName": "image"})
            for index, label in enumerate(dict.fromkeys(labels)):
                ElementTree.SubElement(parent, "Label", {"value": label, "model_index": str(index)})
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode")


def _label_studio_shapes(
    record: Mapping[str, Any], image: Mapping[str, Any], coco: Mapping[str, Any]
) -> list[JsonObject]:
    """Return the box, the polygons and the keypoints of an annotation, in percent of the image."""
    width, height = image["width"], image["height"]
    category = _category(record, coco)
    label = _xml_text(category["name"])  # as in the interface
    common = {"to_name": "image", "original_width": width, "original_height": height, "image_rotation": 0}
    x, y, w, h = record["bbox"]
    box = {"x": 100 * x / width, "y": 100 * y / height, "width": 100 * w / width, "height": 100 * h / height}
    box["rotation"] = 0
    shapes: list[JsonObject] = [
        {"from_name": "box", "type": "rectanglelabels", "value": box | {"rectanglelabels": [label]}}
    ]
    for polygon in _polygons(record):
        points = (polygon * np.array([100 / width, 100 / height])).round(3).tolist()
        value: JsonObject = {"points": points, "polygonlabels": [label]}
        shapes.append({"from_name": "polygon", "type": "polygonlabels", "value": value})
    for name, px, py, visible in _keypoints(record, category):
        if not visible:
            continue
        value = {"x": 100 * px / width, "y": 100 * py / height, "width": 0.5, "keypointlabels": [_xml_text(name)]}
        shapes.append({"from_name": "kp", "type": "keypointlabels", "value": value, "parentID": f"{record['id']}-0"})
    return [shape | common | {"id": f"{record['id']}-{number}"} for number, shape in enumerate(shapes)]


def write_cvat(path: str | Path, coco: Mapping[str, Any]) -> None:
    """Write a COCO dataset as "CVAT for images 1.1".

    Keypoints become skeletons and masks polygons. Annotations that have neither become boxes.
    """
    images = _by_image(coco)
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    labels = ElementTree.SubElement(ElementTree.SubElement(ElementTree.SubElement(root, "meta"), "task"), "labels")
    for category in coco["categories"]:
        points = category.get("keypoints", ())
        _add_cvat_label(labels, category["name"], "skeleton" if points else "any")
        for name in points:
            _add_cvat_label(labels, name, "points", parent=category["name"])
    for number, (image, records) in enumerate(images):
        details = {"id": number, "name": image["file_name"], "width": image["width"], "height": image["height"]}
        parent = ElementTree.SubElement(root, "image", _attributes(details))
        for record in records:
            category = _category(record, coco)
            common = {"label": category["name"], "occluded": 0, "source": "auto", "z_order": 0}
            polygons = _polygons(record)
            if "keypoints" in record:
                skeleton = ElementTree.SubElement(parent, "skeleton", _attributes(common))
                for name, x, y, visible in _keypoints(record, category):  # CVAT expects all points of a skeleton
                    point = {
                        "label": name,
                        "occluded": 0,
                        "source": "auto",
                        "outside": int(not visible),
                        "points": f"{x:.2f},{y:.2f}",
                    }
                    ElementTree.SubElement(skeleton, "points", _attributes(point))
            for polygon in polygons:
                points = ";".join(f"{x:.2f},{y:.2f}" for x, y in polygon.tolist())
                ElementTree.SubElement(parent, "polygon", _attributes(common | {"points": points}))
            if "keypoints" not in record and not polygons:
                x, y, w, h = record["bbox"]
                corners = {"xtl": x, "ytl": y, "xbr": x + w, "ybr": y + h}
                ElementTree.SubElement(parent, "box", _attributes(common | corners))
    ElementTree.indent(root)
    write_lines(path, [ElementTree.tostring(root, encoding="unicode", xml_declaration=True)])


def _add_cvat_label(labels: ElementTree.Element, name: str, kind: str, parent: str | None = None) -> None:
    """Add a label to the definitions of a task."""
    label = ElementTree.SubElement(labels, "label")
    for tag, text in {"name": name, "type": kind, "attributes": None, "parent": parent}.items():
        if text is not None or tag == "attributes":
            ElementTree.SubElement(label, tag).text = None if text is None else _xml_text(text)


def write_yolo(folder: str | Path, coco: Mapping[str, Any]) -> None:
    """Write a COCO dataset as YOLO's labels: a text file for each image, classes.txt and data.yaml.

    Text files are in subfolders like their images, below the folder that all images have in common. Keypoints give
    pose labels, masks segment labels with the largest outline of each, and others boxes.
    """
    paths = _yolo_paths(folder, coco)
    classes = sorted(coco["categories"], key=lambda category: category["id"])
    index = {category["id"]: number for number, category in enumerate(classes)}
    names = [one_line(str(category["name"])) for category in classes]
    write_lines(Path(folder, "classes.txt"), names)
    keypoints = next((category["keypoints"] for category in classes if "keypoints" in category), None)
    shape = [] if keypoints is None else [f"kpt_shape: [{len(keypoints)}, 3]"]
    write_lines(Path(folder, "data.yaml"), [f"nc: {len(names)}", f"names: {json.dumps(names)}", *shape])
    for (image, records), path in zip(_by_image(coco), paths, strict=True):
        size_hw = image["height"], image["width"]
        lines = []
        for record in records:
            x, y, w, h = record["bbox"]
            box, number = np.array([x, y, x + w, y + h], np.float32), index[record["category_id"]]
            if "keypoints" in record:
                table = np.array(record["keypoints"], np.float32).reshape(1, -1, 3)  # [1, J, 3]
                lines += yolo_pose_lines(table[..., :2], table[..., 2], box[None], size_hw, class_index=number)
            elif polygons := _polygons(record):
                lines += yolo_segment_lines(polygons[:1], [number], size_hw)
            else:
                lines.append(_yolo_line(number, _yolo_box(box, size_hw)))
        write_lines(path, lines)


def _yolo_paths(folder: str | Path, coco: Mapping[str, Any]) -> list[Path]:
    """Return the file of each image's labels: its path below the folder that all images have in common."""
    paths = [PurePosixPath("/", str(image["file_name"])) for image, _ in _by_image(coco)]
    root = os.path.commonpath([path.parent for path in paths]) if paths else "/"
    names = [str(path.with_suffix("").relative_to(root)) for path in paths]
    counts = Counter(map(name_key, ["classes", *names]))
    for name, path in zip(names, paths, strict=True):
        if counts[name_key(name)] > 1:
            raise InputError(f"{path.name}: expected images with different names, got {name} twice. Rename one.")
    return [output_path(folder, name, ".txt") for name in names]


def _by_image(coco: Mapping[str, Any]) -> Iterable[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Yield the images of a dataset with their annotations."""
    if not all(isinstance(coco.get(key), list) for key in ("images", "annotations", "categories")):
        raise InputError("dataset: expected a COCO dataset with images, annotations and categories.")
    records: dict[int, list[Mapping[str, Any]]] = {image["id"]: [] for image in coco["images"]}
    for record in coco["annotations"]:
        if "bbox" not in record or record.get("image_id") not in records:
            raise InputError(
                "dataset: expected annotations with image_id and bbox. Panoptic datasets are not supported."
            )
        records[record["image_id"]].append(record)
    return ((image, records[image["id"]]) for image in coco["images"])


def _category(record: Mapping[str, Any], coco: Mapping[str, Any]) -> Mapping[str, Any]:
    found = next((category for category in coco["categories"] if category["id"] == record["category_id"]), None)
    return found or {"name": str(record["category_id"])}


def _polygons(record: Mapping[str, Any]) -> list[Polygon]:
    """Return the outlines of an annotation's mask: RLE, or polygons as COCO has them."""
    mask = record.get("segmentation")
    if isinstance(mask, Mapping):
        return mask_polygons(decode_rle(mask).numpy())
    return [np.array(polygon, np.float32).reshape(-1, 2) for polygon in mask or ()]


def _keypoints(record: Mapping[str, Any], category: Mapping[str, Any]) -> list[tuple[str, float, float, bool]]:
    """Return name, x, y and visibility of the keypoints of an annotation."""
    flat = record.get("keypoints", ())
    names = category.get("keypoints") or [str(number) for number in range(len(flat) // 3)]
    triples = zip(names, flat[0::3], flat[1::3], flat[2::3], strict=False)
    return [(str(name), float(x), float(y), bool(visible)) for name, x, y, visible in triples]


def _attributes(values: Mapping[str, object]) -> dict[str, str]:
    return {name: _xml_text(value) for name, value in values.items()}


def _xml_text(value: object) -> str:
    """Return a text without characters that XML does not allow."""
    return _NOT_XML.sub("\ufffd", str(value))
