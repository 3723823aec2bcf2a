"""Datasets of synthetic people on disk: images, maps and COCO annotations.

    DATASET/set.json                 seed, options, size
    DATASET/annotations.json         COCO: images with their cameras, people with boxes, masks and 308 keypoints
    DATASET/contact-sheet.jpg        the first images and their ground truth
    DATASET/images/000000.jpg        the image
    DATASET/matte/000000.png         people without background: straight sRGB and alpha, 8 bit
    DATASET/albedo/000000.png        surface color without light, sRGB, 8 bit
    DATASET/parts/000000.png         one of 29 classes a pixel, as palette indices
    DATASET/geometry/000000.npz      `normals` float16 [3, H, W]; `depth` uint16 [H, W], see `samples.decode_depth`
    DATASET/records/000000.json      annotations of eight images: what `annotations.json` is joined from

Axes are the camera's (x right, y down, z forward); `camera.points_from_depth` unprojects depth.
Groups of eight images are seeded by their number, so that a dataset is the same whether it was written in one run, in
parts, or after an interruption (groups with a record are skipped), and a longer one begins with the shorter one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Required, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitruvian.draw.contact_sheet import contact_sheet
from vitruvian.draw.dense import checkerboard, color_depth, color_normals, composite
from vitruvian.draw.pose import draw_pose
from vitruvian.errors import CheckpointError, ImageError, InputError
from vitruvian.filesystem.atomic import atomic_write, write_text
from vitruvian.filesystem.json_files import JsonObject, read_json_object
from vitruvian.human import KEYPOINT_NAMES, PART_COLORS, PART_NAMES, SAPIENS_308, SKELETON
from vitruvian.images import image_to_tensor, load_image
from vitruvian.images.rle import encode_rle, rle_area
from vitruvian.images.types import RgbImage, SizeHW
from vitruvian.training.seeds import derive_seed
from vitruvian.training.synthetic.asset_pack import AssetPack
from vitruvian.training.synthetic.people_batch import sample_people
from vitruvian.training.synthetic.render import GroundTruth, RenderOptions, render
from vitruvian.training.synthetic.samples import decode_depth, encode_depth
from vitruvian.training.synthetic.textures import TexturePyramid, build_pyramid

_ImageFormat = Literal["jpg", "png"]
ANNOTATIONS_FILE: Final = "annotations.json"
SHEET_FILE: Final = "contact-sheet.jpg"
MAPS: Final = frozenset({"matte", "albedo", "parts", "geometry"})
_GROUP = 8
_FORMAT: Final = "vitruvian-people-set-1"
_SET_FILE: Final = "set.json"
_FOLDERS: Final = ("images", "matte", "albedo", "parts", "geometry", "records")
_DEPTH_CODES: Final = 65534  # of 16 bits; 0 is nothing
_WRITERS = 4
_CATEGORY = 1
_SHEET_HEIGHT = 192  # pixels of an image
_SHEET_TITLES = ("image", "keypoints", "parts", "normals", "depth", "albedo", "matte")


# ------------------------------------------------------------------------------------------------ files of an image


class ImageMaps(TypedDict, total=False):
    """One image and those of its maps that were read."""

    image: Required[Tensor]  # [3, H, W] uint8, sRGB
    matte: Tensor  # [4, H, W] float32 0..1: straight color, alpha
    albedo: Tensor  # [3, H, W] float32 0..1, sRGB
    parts: Tensor  # [H, W] uint8
    normals: Tensor  # [3, H, W] float32, zero where there is no person
    depth: Tensor  # [H, W] float32 meters, zero where there is no person


def _maps_of(truth: GroundTruth, row: int) -> ImageMaps:
    """Return the maps of one image of a batch."""
    alpha = truth.alpha[row]  # [1, H, W]
    color = torch.where(alpha > 0, truth.foreground[row] / alpha.clamp_min(1e-6), 0.0).clamp(0, 1)  # [3, H, W]
    return {
        "image": (truth.image[row].clamp(0, 1) * 255).round().byte(), "matte": torch.cat([color, alpha]),
        "albedo": truth.albedo[row], "parts": truth.parts[row], "normals": truth.normals[row],
        "depth": truth.pointmap[row, 2],
    }  # fmt: skip


def _file_names(index: int, image_format: _ImageFormat) -> dict[str, str]:
    """Return the names of an image's files, relative to the dataset."""
    endings = {"images": image_format, "matte": "png", "albedo": "png", "parts": "png", "geometry": "npz"}
    return {folder: f"{folder}/{index:06d}.{ending}" for folder, ending in endings.items()}


def _write_maps(folder: Path, names: Mapping[str, str], maps: ImageMaps, *, quality: int) -> None:
    """Write an image and all its maps; existing files are replaced."""
    options: JsonObject = {"quality": quality, "subsampling": 0} if names["images"].endswith("jpg") else {}
    Image.fromarray(_to_pixels(maps["image"] / 255)).save(folder / names["images"], **options)
    Image.fromarray(_to_pixels(maps["matte"])).save(folder / names["matte"])
    Image.fromarray(_to_pixels(maps["albedo"])).save(folder / names["albedo"])
    labels = Image.fromarray(maps["parts"].contiguous().numpy()).convert("L")
    labels.putpalette([channel for color in PART_COLORS for channel in color])  # converts to palette mode
    labels.save(folder / names["parts"])
    codes, low, step = encode_depth(maps["depth"][None].double(), codes=_DEPTH_CODES)
    with (folder / names["geometry"]).open("wb") as file:
        normals = maps["normals"].numpy().astype(np.float16)
        depth = codes[0].numpy().astype(np.uint16)
        np.savez_compressed(file, normals=normals, depth=depth, depth_low=low[0].numpy(), depth_step=step[0].numpy())


def read_maps(folder: Path, names: Mapping[str, str], wanted: frozenset[str] = MAPS) -> ImageMaps:
    """Read an image and those of its maps that are `wanted`: "matte", "albedo", "parts", "geometry"."""
    image = image_to_tensor(load_image(folder / names["images"]))  # [3, H, W]
    size_hw = (image.shape[1], image.shape[2])
    maps = ImageMaps(image=image)
    for kind, mode in (("matte", "RGBA"), ("albedo", "RGB")):
        if kind in wanted:
            pixels = _read_png(folder / names[kind], (mode,), size_hw)
            maps[kind] = torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32) / 255.0)  # type: ignore[literal-required]
    if "parts" in wanted:
        maps["parts"] = torch.from_numpy(_read_png(folder / names["parts"], ("P", "L"), size_hw).copy())
    if "geometry" in wanted:
        maps["normals"], maps["depth"] = _read_geometry(folder / names["geometry"], size_hw)
    return maps


def _read_geometry(path: Path, size_hw: SizeHW) -> tuple[Tensor, Tensor]:
    """Read normals [3, H, W] and depth [H, W]."""
    try:
        with np.load(path, allow_pickle=False) as file:
            normals = file["normals"].astype(np.float32)
            codes = torch.from_numpy(file["depth"].astype(np.int32))
            low, step = (torch.from_numpy(file[name].astype(np.float64)) for name in ("depth_low", "depth_step"))
            depth = decode_depth(codes[None], low, step)[0].float()
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise CheckpointError(f"{path}: expected normals and depth, but {error}. Write the dataset again.") from error
    if normals.shape != (3, *size_hw) or depth.shape != size_hw:
        raise CheckpointError(
            f"{path}: expected maps of {size_hw[0]}×{size_hw[1]}, got normals {list(normals.shape)} and depth "
            f"{list(depth.shape)}. Write the dataset again."
        )
    return torch.from_numpy(normals), depth


def _read_png(path: Path, modes: tuple[str, ...], size_hw: SizeHW) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            mode, pixels = image.mode, np.asarray(image)
    except (OSError, SyntaxError) as error:
        raise ImageError(f"{path}: expected a PNG of the dataset, but {error}. Write the dataset again.") from error
    if mode not in modes or pixels.shape[:2] != size_hw:
        raise ImageError(
            f"{path}: expected {modes[0]} of {size_hw[0]}×{size_hw[1]}, got {mode} of {pixels.shape[0]}×"
            f"{pixels.shape[1]}. Write the dataset again."
        )
    return np.asarray(pixels, np.uint8)


def _to_pixels(values: Tensor) -> RgbImage:
    """Convert [C, H, W] in 0..1 to uint8 [H, W, C]."""
    pixels: RgbImage = (values.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
    return pixels


# --------------------------------------------------------------------------------------------------- whole datasets


@dataclass(frozen=True)
class DatasetOptions:
    """What a dataset holds. `render.chunk` has no effect: images are always rendered eight at a time."""

    render: RenderOptions = field(default_factory=RenderOptions)
    people: float = 1.3  # people per image, on average; at least one
    image_format: _ImageFormat = "jpg"
    quality: int = 95  # of JPEG

    def __post_init__(self) -> None:
        if not 1 <= self.people <= 8:
            raise InputError(f"people: expected 1 to 8 people per image on average, got {self.people}.")
        if self.image_format not in ("jpg", "png") or not 1 <= self.quality <= 100:
            raise InputError(
                f"DatasetOptions: expected image_format jpg or png and quality from 1 to 100, got "
                f"{self.image_format!r} and {self.quality}."
            )


def write_dataset(
    out: str | Path,
    count: int,
    *,
    seed: int = 0,
    pack: AssetPack,
    options: DatasetOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write `count` images with ground truth into the folder `out` and return the path of its COCO annotations.

    A folder that holds the beginning of the same dataset is continued. The same seed, pack and options give the same
    files on the same kind of device; people, cameras and light are the same on every device, fine noise is not.

    Args:
        out: Folder to write, created if needed.
        count: Number of images.
        seed: Seed of the dataset.
        pack: Where people come from, on the device that renders them.
        options: Size, number of people, formats.
        progress: Called with the number of images that are written, and `count`.
    """
    options = options or DatasetOptions()
    folder = Path(out).expanduser()
    if count < 1:
        raise InputError(f"count: expected at least one image, got {count}.")
    about = _describe(seed, pack, options)
    _initialize_folder(folder, about, count)
    pyramid = build_pyramid(pack.textures)
    with ThreadPoolExecutor(_WRITERS) as writers:
        for first in range(0, count, _GROUP):
            number, last = first // _GROUP, min(first + _GROUP, count)
            if len(_read_record(folder, number)["images"]) < last - first:
                truth = _render_group(pack, seed, number, options, pyramid=pyramid)
                _write_group(folder, number, truth, options, count=last - first, writers=writers)
            if progress is not None:
                progress(last, count)
    _write_annotations(folder, about, count)
    _write_sheet(folder)
    return folder / ANNOTATIONS_FILE


def _render_group(
    pack: AssetPack, seed: int, number: int, options: DatasetOptions, *, pyramid: TexturePyramid
) -> GroundTruth:
    """Render the images of one group, which depend on nothing but the arguments."""
    generator = torch.Generator().manual_seed(derive_seed(seed, number))
    extra = int(torch.poisson(torch.tensor((options.people - 1) * _GROUP), generator=generator))
    people = sample_people(pack, _GROUP + extra, generator)
    together = replace(options.render, chunk=_GROUP)
    return render(people, pack, generator=generator, image_count=_GROUP, options=together, pyramid=pyramid).to("cpu")


def _write_group(
    folder: Path, number: int, truth: GroundTruth, options: DatasetOptions, *, count: int, writers: ThreadPoolExecutor
) -> None:
    """Write the first `count` images of a group and, when their files are complete, its record."""
    images, annotations, jobs = [], [], []
    for row in range(count):
        index = number * _GROUP + row
        names = _file_names(index, options.image_format)
        maps = _maps_of(truth, row)
        jobs.append(writers.submit(_write_maps, folder, names, maps, quality=options.quality))
        images.append(_image_entry(truth, row, index, names))
        annotations += _person_entries(truth, row, index)
    for job in jobs:
        job.result()
    write_text(_record_path(folder, number), json.dumps({"images": images, "annotations": annotations}) + "\n")


def _image_entry(truth: GroundTruth, row: int, index: int, names: Mapping[str, str]) -> JsonObject:
    """Return an image's entry in the annotations: COCO's fields, the other files, and the camera."""
    H, W = truth.parts.shape[-2:]
    return {
        "id": index, "file_name": names["images"], "width": W, "height": H,
        **{f"{kind}_file": names[kind] for kind in ("matte", "albedo", "parts", "geometry")},
        "intrinsics": truth.intrinsics[row].double().tolist(), "scale": float(truth.scale[row]),
    }  # fmt: skip


def _person_entries(truth: GroundTruth, row: int, index: int) -> list[JsonObject]:
    """Return the entries of the people of one image, the subject first, without those that are not visible."""
    entries: list[JsonObject] = []
    for slot, stature in enumerate(truth.stature_m[row].tolist()):
        box = truth.boxes_xywh[row, slot].tolist()
        if min(box[2:]) <= 0:
            continue
        points = truth.keypoints[row, slot]  # [308, 3]
        mask = encode_rle(truth.instance_masks[row, slot], compress=True)
        rows = [[round(x, 2), round(y, 2), int(state)] if state else [0, 0, 0] for x, y, state in points.tolist()]
        entries.append({
            "id": index * 100 + slot, "image_id": index, "category_id": _CATEGORY, "bbox": box, "area": rle_area(mask),
            "iscrowd": 0, "segmentation": mask, "keypoints": [value for point in rows for value in point],
            "num_keypoints": int((points[:, 2] > 0).sum()), "stature": round(stature, 4),
        })  # fmt: skip
    return entries


def _record_path(folder: Path, number: int) -> Path:
    return folder / "records" / f"{number:06d}.json"


def _read_record(folder: Path, number: int) -> dict[str, list[JsonObject]]:
    """Return a group's annotations; empty where it was not written yet."""
    path = _record_path(folder, number)
    return read_json_object(path) if path.is_file() else {"images": [], "annotations": []}


def _describe(seed: int, pack: AssetPack, options: DatasetOptions) -> JsonObject:
    """Return what must be equal for two datasets to be the same, as JSON holds it."""
    chosen = dataclasses.asdict(options)
    chosen["render"].pop("chunk")
    about = {"format": _FORMAT, "seed": seed, "pack": _fingerprint(pack), "options": chosen}
    loaded: JsonObject = json.loads(json.dumps(about))
    return loaded


def _fingerprint(pack: AssetPack) -> str:
    """Return a hash of what a pack holds."""
    digest = hashlib.sha256("/".join(pack.wardrobe.names).encode())
    for table in (pack.body.vertex_mean, pack.body.identities, pack.poses.rotations, pack.skins):
        digest.update(table.detach().cpu().contiguous().numpy().tobytes())
    digest.update(repr((tuple(pack.textures.shape), tuple(pack.scenery.backgrounds.shape))).encode())
    return digest.hexdigest()[:16]


def _initialize_folder(folder: Path, about: JsonObject, count: int) -> None:
    """Create the folders of a dataset, or check that the files in it are the beginning of this one."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder to write a dataset into, got a file. Choose another path.")
    path = folder / _SET_FILE
    if path.is_file():
        known = read_json_object(path)
        differing = [name for name in about if known.get(name) != about[name]]
        if differing:
            raise InputError(
                f"{folder}: holds another dataset (its {', '.join(differing)} differ). Choose another folder, or the "
                "same seed, pack and options."
            )
        if known.get("count", 0) > count:
            raise InputError(
                f"count: {folder} already holds {known['count']} images, more than {count}. Ask for at least as many, "
                "or choose another folder."
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder}: expected an empty folder or the beginning of a dataset. Choose another folder.")
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        write_text(path, json.dumps(about, indent=2) + "\n")


def _write_annotations(folder: Path, about: JsonObject, count: int) -> None:
    """Join the records of all groups into one COCO file, and mark the dataset as complete in `set.json`."""
    records = [_read_record(folder, number) for number in range(-(-count // _GROUP))]
    images, annotations = (
        [entry for record in records for entry in record[kind]] for kind in ("images", "annotations")
    )
    if len(images) != count:
        raise CheckpointError(f"{folder}: expected records of {count} images, got {len(images)}. Run it again.")
    category = {
        "id": _CATEGORY, "name": "person", "supercategory": "person", "keypoints": list(KEYPOINT_NAMES),
        "skeleton": [[bone.start + 1, bone.end + 1] for bone in SKELETON],
    }  # fmt: skip
    table = {
        "info": {"description": "Synthetic people by vitruvian", "parts": list(PART_NAMES), **about},
        "images": images, "annotations": annotations, "categories": [category],
    }  # fmt: skip
    write_text(folder / ANNOTATIONS_FILE, json.dumps(table) + "\n")
    write_text(folder / _SET_FILE, json.dumps(about | {"count": count}, indent=2) + "\n")


# ---------------------------------------------------------------------------------------------------- contact sheet


def _write_sheet(folder: Path) -> None:
    """Draw the images of the first group beside their keypoints, parts, normals, depth, albedo and mattes."""
    record = _read_record(folder, 0)
    rows = []
    for entry in record["images"]:
        names = {kind: entry[f"{kind}_file"] for kind in MAPS} | {"images": entry["file_name"]}
        people = [person["keypoints"] for person in record["annotations"] if person["image_id"] == entry["id"]]
        keypoints = np.array(people, np.float32).reshape(len(people), len(KEYPOINT_NAMES), 3)  # [M, 308, 3]
        rows.append(_sheet_row(read_maps(folder, names), keypoints))
    with atomic_write(folder / SHEET_FILE) as temporary:
        sheet = contact_sheet(
            rows,
            titles=_SHEET_TITLES,
            row_titles=[entry["file_name"] for entry in record["images"]],
            height=_SHEET_HEIGHT,
        )
        Image.fromarray(sheet).save(temporary, format="JPEG", quality=90)


def _sheet_row(maps: ImageMaps, keypoints: NDArray[np.float32]) -> list[RgbImage]:
    image, matte = _to_pixels(maps["image"] / 255), maps["matte"].permute(1, 2, 0).numpy()  # [H, W, 3 or 4]
    alpha = matte[..., 3]
    return [
        image,
        draw_pose(image, keypoints[..., :2], keypoints[..., 2], layout=SAPIENS_308),
        np.array(PART_COLORS, np.uint8)[maps["parts"].numpy()],
        color_normals(maps["normals"].permute(1, 2, 0).numpy()),
        color_depth(maps["depth"].numpy()),
        _to_pixels(maps["albedo"]),
        composite(matte[..., :3] * alpha[..., None], alpha, checkerboard((len(image), image.shape[1]))),
    ]
