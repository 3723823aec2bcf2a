"""Write a set of synthetic people to a folder: pictures, maps and COCO annotations. `set_files` shows the layout.

    (seed, group number) ──▶ eight pictures with truths ──▶ files, then the group's record ──▶ … ──▶ annotations.json

Groups of eight are what randomness starts anew for, so a set is the same however it was written: at once, in parts, or
after an interruption (groups that have a record are skipped), and a longer set begins with the shorter one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vitruvian.atomic import atomic_write, write_text
from vitruvian.config import read_json
from vitruvian.data.synthetic.people import Pack
from vitruvian.data.synthetic.render import RenderOptions, render
from vitruvian.data.synthetic.sample import sample_people
from vitruvian.data.synthetic.set_files import (
    ANNOTATIONS_FILE,
    FOLDERS,
    FORMAT,
    SET_FILE,
    SHEET_FILE,
    ImageFormat,
    PictureMaps,
    file_names,
    read_maps,
    write_maps,
)
from vitruvian.data.synthetic.sheet import contact_sheet
from vitruvian.data.synthetic.texture import TexturePyramid, build_pyramid
from vitruvian.data.synthetic.truth import Truth
from vitruvian.errors import CheckpointError, InputError
from vitruvian.human import KEYPOINT_NAMES, PART_NAMES, SKELETON
from vitruvian.images.rle import encode_rle, rle_area

GROUP = 8
SHEET_ROWS = 8
WRITERS = 4
CATEGORY = 1

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SetOptions:
    """What is in a set. `render.chunk` has no effect: pictures are always drawn eight at a time."""

    render: RenderOptions = field(default_factory=RenderOptions)
    people: float = 1.3  # people a picture, on average; at least one
    image_format: ImageFormat = "jpg"
    quality: int = 95  # of JPEG

    def __post_init__(self) -> None:
        if not 1 <= self.people <= 8:
            raise InputError(f"people: expected 1 to 8 people a picture on average, got {self.people}.")
        if self.image_format not in ("jpg", "png") or not 1 <= self.quality <= 100:
            raise InputError(
                f"SetOptions: expected image_format jpg or png and quality from 1 to 100, got {self.image_format!r} "
                f"and {self.quality}."
            )


def write_set(
    out: str | Path,
    count: int,
    *,
    seed: int = 0,
    pack: Pack,
    options: SetOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write `count` pictures with truths into the folder `out` and return the path of its COCO annotations.

    A folder that holds the beginning of the same set is carried on. The same seed, pack and options give the same
    files on the same kind of device; people, cameras and light are the same on every device, fine noise is not.

    Args:
        out: Folder to write, made if needed.
        count: Number of pictures.
        seed: What the set is drawn from.
        pack: Where people come from, on the device that draws them.
        options: Size, number of people, formats.
        progress: Called with the number of pictures that are written, and `count`.
    """
    options = options or SetOptions()
    folder = Path(out).expanduser()
    if count < 1:
        raise InputError(f"count: expected at least one picture, got {count}.")
    about = describe_set(seed, pack, options)
    start_set(folder, about, count)
    pyramid = build_pyramid(pack.textures)
    with ThreadPoolExecutor(WRITERS) as writers:
        for first in range(0, count, GROUP):
            number = first // GROUP
            last = min(first + GROUP, count)
            if len(read_record(folder, number)["images"]) < last - first:
                drawn = draw_group(pack, seed, number, options, pyramid=pyramid)
                write_group(folder, number, drawn, options, keep=last - first, writers=writers)
            if progress is not None:
                progress(last, count)
    write_annotations(folder, about, count)
    write_sheet(folder, count)
    return folder / ANNOTATIONS_FILE


@dataclass(frozen=True)
class Group:
    """Eight pictures and the stature of everybody in them."""

    truth: Truth
    statures: list[float]  # metres, by `truth.person_index`


def draw_group(pack: Pack, seed: int, number: int, options: SetOptions, *, pyramid: TexturePyramid) -> Group:
    """Draw the pictures of one group, which depend on nothing but the arguments."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, number))
    rate = torch.tensor((options.people - 1) * GROUP)
    extra = int(torch.poisson(rate, generator=generator))
    people = sample_people(pack, GROUP + extra, generator, pack.textures.device)
    truth = render(
        people,
        pack,
        generator=generator,
        pictures=GROUP,
        options=replace(options.render, chunk=GROUP),
        pyramid=pyramid,
    )
    return Group(truth.to("cpu"), people.height.tolist())


def mixed_seed(seed: int, number: int) -> int:
    """A seed for one group: far apart for neighbours, below 2^63."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def write_group(
    folder: Path, number: int, group: Group, options: SetOptions, *, keep: int, writers: ThreadPoolExecutor
) -> None:
    """Write the first `keep` pictures of a group and, when their files are whole, its record."""
    images, annotations, jobs = [], [], []
    for place in range(keep):
        index = number * GROUP + place
        names = file_names(index, options.image_format)
        maps = picture_maps(group.truth, place)
        jobs.append(writers.submit(write_maps, folder, names, maps, quality=options.quality))
        images.append(image_entry(group.truth, place, index, names))
        annotations += person_entries(group, place, index)
    for job in jobs:
        job.result()
    write_text(record_path(folder, number), json.dumps({"images": images, "annotations": annotations}) + "\n")


def picture_maps(truth: Truth, place: int) -> PictureMaps:
    """What is written of one picture of a batch."""
    alpha = truth.alpha[place]  # [1, H, W]
    colour = torch.where(alpha > 0, truth.foreground[place] / alpha.clamp_min(1e-6), 0.0).clamp(0, 1)  # [3, H, W]
    return PictureMaps(
        image=(truth.image[place].clamp(0, 1) * 255).round().byte(),
        matte=torch.cat([colour, alpha]),
        albedo=truth.albedo[place],
        parts=truth.parts[place],
        normals=truth.normals[place],
        depth=truth.pointmap[place, 2],
    )


def image_entry(truth: Truth, place: int, index: int, names: dict[str, str]) -> dict[str, Any]:
    """A picture's entry in the annotations: COCO's fields, the other files, and the camera."""
    H, W = truth.parts.shape[-2:]
    others = {f"{kind}_file": names[kind] for kind in ("matte", "albedo", "parts", "geometry")}
    return {"id": index, "file_name": names["images"], "width": W, "height": H, **others} | {
        "intrinsics": truth.intrinsics[place].double().tolist(),
        "scale": float(truth.scale[place]),
    }


def person_entries(group: Group, place: int, index: int) -> list[dict[str, Any]]:
    """The entries of the people of one picture, the subject first; those of whom nothing is seen are left out."""
    truth = group.truth
    found = []
    for slot, person in enumerate(truth.person_index[place].tolist()):
        box = truth.boxes_xywh[place, slot].tolist()
        if person < 0 or min(box[2:]) <= 0:
            continue
        points = truth.keypoints[place, slot]  # [308, 3]
        shape = encode_rle(truth.instance_masks[place, slot], compress=True)
        rows = [[round(x, 2), round(y, 2), int(state)] if state else [0, 0, 0] for x, y, state in points.tolist()]
        found.append(
            {
                "id": index * 100 + slot,
                "image_id": index,
                "category_id": CATEGORY,
                "bbox": box,
                "area": rle_area(shape),
                "iscrowd": 0,
                "segmentation": shape,
                "keypoints": [value for row in rows for value in row],
                "num_keypoints": int((points[:, 2] > 0).sum()),
                "stature": round(group.statures[person], 4),
            }
        )
    return found


def record_path(folder: Path, number: int) -> Path:
    """Where a group's annotations are."""
    return folder / "records" / f"{number:06d}.json"


def read_record(folder: Path, number: int) -> dict[str, list[dict[str, Any]]]:
    """A group's annotations; empty where it was not written yet."""
    path = record_path(folder, number)
    return read_json(path) if path.is_file() else {"images": [], "annotations": []}


def describe_set(seed: int, pack: Pack, options: SetOptions) -> dict[str, Any]:
    """What must be equal for two sets to be the same, as JSON holds it."""
    chosen = dataclasses.asdict(options)
    chosen["render"].pop("chunk")
    about = {"format": FORMAT, "seed": seed, "pack": fingerprint(pack), "options": chosen}
    loaded: dict[str, Any] = json.loads(json.dumps(about))
    return loaded


def fingerprint(pack: Pack) -> str:
    """A short name for what a pack holds."""
    digest = hashlib.sha256("/".join(pack.wardrobe.names).encode())
    for table in (pack.body.vertex_mean, pack.body.identities, pack.poses.rotations, pack.skins):
        digest.update(table.detach().cpu().contiguous().numpy().tobytes())
    digest.update(repr((tuple(pack.textures.shape), tuple(pack.backgrounds.shape))).encode())
    return digest.hexdigest()[:16]


def start_set(folder: Path, about: dict[str, Any], count: int) -> None:
    """Make the folders of a set, or check that what is there is the beginning of this one."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder to write a set into, got a file. Choose another path.")
    stated = folder / SET_FILE
    if stated.is_file():
        known = read_json(stated)
        differing = [name for name in about if known.get(name) != about[name]]
        if differing:
            raise InputError(
                f"{folder}: holds another set (its {', '.join(differing)} differ). Choose another folder, or the same "
                "seed, pack and options."
            )
        if known.get("count", 0) > count:
            raise InputError(
                f"count: {folder} already holds {known['count']} pictures, more than the {count} asked for. "
                "Ask for at least as many, or choose another folder."
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder}: expected an empty folder or the beginning of a set. Choose another folder.")
    for name in FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    if not stated.is_file():
        write_text(stated, json.dumps(about, indent=2) + "\n")


def write_annotations(folder: Path, about: dict[str, Any], count: int) -> None:
    """Join the records of all groups into one COCO file, and say in `set.json` that the set is whole."""
    images: list[Any] = []
    annotations: list[Any] = []
    for number in range(-(-count // GROUP)):
        record = read_record(folder, number)
        images += record["images"]
        annotations += record["annotations"]
    if len(images) != count:
        raise CheckpointError(f"{folder}: expected records of {count} pictures, found {len(images)}. Run it again.")
    category = {
        "id": CATEGORY,
        "name": "person",
        "supercategory": "person",
        "keypoints": list(KEYPOINT_NAMES),
        "skeleton": [[bone.start + 1, bone.end + 1] for bone in SKELETON],
    }
    table = {
        "info": {"description": "Synthetic people by vitruvian", "parts": list(PART_NAMES), **about},
        "images": images,
        "annotations": annotations,
        "categories": [category],
    }
    write_text(folder / ANNOTATIONS_FILE, json.dumps(table) + "\n")
    write_text(folder / SET_FILE, json.dumps(about | {"count": count}, indent=2) + "\n")


def write_sheet(folder: Path, count: int) -> None:
    """Draw the contact sheet of the first pictures."""
    rows = []
    for number in range(-(-min(count, SHEET_ROWS) // GROUP)):
        record = read_record(folder, number)
        for image in record["images"][:SHEET_ROWS]:
            names = {kind: image[f"{kind}_file"] for kind in ("matte", "albedo", "parts", "geometry")}
            own = [person["keypoints"] for person in record["annotations"] if person["image_id"] == image["id"]]
            points = torch.tensor(own, dtype=torch.float32).reshape(len(own), len(KEYPOINT_NAMES), 3)  # [M, 308, 3]
            rows.append((read_maps(folder, names | {"images": image["file_name"]}), points))
    with atomic_write(folder / SHEET_FILE) as temporary:
        contact_sheet(rows).save(temporary, format="JPEG", quality=90)
