"""What is fuzzed: for each target, valid files to mutate and the function of the library that reads them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tests.families import CASES
from tests.fuzz.debug_log import last_exception
from tests.fuzz.mutations import VALUES, mutate_bytes, mutate_json, mutate_json_text
from tests.helpers.pipelines import opened, parts_of, sample_image
from tests.helpers.tiny_models import SIZE_HW
from tests.helpers.tiny_multitask import tiny_multitask
from tests.unit.images.samples import encode, photo
from tests.unit.models.sam2.test_convert import original as original_sam2
from vitruvian import AutoConfig, AutoImageProcessor, AutoModelForPoseEstimation, Sam2Config, Sam2Model
from vitruvian.cli import run
from vitruvian.cli.coco_dataset import CocoDataset
from vitruvian.cli.commands.image_tasks import PointmapCommand
from vitruvian.cli.named_sources import NamedSource
from vitruvian.cli.resume_journal import JOURNAL, Journal
from vitruvian.errors import InputError, VitruvianError
from vitruvian.files.video import VideoReader
from vitruvian.filesystem.json_files import read_json
from vitruvian.filesystem.media_files import is_url
from vitruvian.images.rle import compress_counts, decode_rle
from vitruvian.layers.init import no_init_weights
from vitruvian.models.sam2.convert import convert_checkpoint
from vitruvian.models.sapiens2.convert import save_converted
from vitruvian.models.sapiens2.multitask import save_multitask
from vitruvian.pipelines.people.boxes_file import BoxesFile
from vitruvian.pipelines.sources import open_source
from vitruvian.scale.rows import Row, rows_to_table
from vitruvian.scale.shards import ShardFormat, ShardIndex, write_shard
from vitruvian.scale.sources import list_sources, read_sources
from vitruvian.serving.auth import read_keys
from vitruvian.training.config import read_training_config
from vitruvian.training.datasets.folder import ANNOTATIONS_FILE, PeopleFolder

MAX_FRAMES = 40  # of a mutated video, whose header may state any number


@dataclass(frozen=True)
class Seed:
    """A valid file, how it is mutated, and what reads it.

    Attributes:
        path: The file, in the folder of the target.
        content: Its valid content.
        read: Reads the mutated file. Returning and raising a `VitruvianError` are both right.
        mutate: Makes the content of a mutated file.
    """

    path: str
    content: bytes
    read: Callable[[Path], object]
    mutate: Callable[[bytes, random.Random], bytes] = mutate_bytes


# ------------------------------------------------------------------------------------------------ images and videos


def images(folder: Path) -> list[Seed]:
    """Every format that Pillow writes here, EXIF blocks with focal lengths, 16 bits, palettes and animations."""
    Image.init()
    seeds = {}
    for file_format in sorted(Image.SAVE):
        for mode in ("RGB", "L", "P", "1", "CMYK", "I;16"):
            try:
                content = encode(photo().convert(mode), file_format)
            except (OSError, ValueError, KeyError, AttributeError, TypeError, RuntimeError):
                continue
            seeds[f"{file_format}-{mode.replace(';', '')}.{file_format.lower()}"] = content
    exif = Image.Exif()
    exif.get_ifd(0x8769).update({0x920A: 35.0, 0xA20E: 4000.0, 0xA210: 3, 0xA002: 20, 0xA003: 24})
    exif[0x0112] = 6
    for file_format in ("JPEG", "PNG", "WEBP", "TIFF"):
        seeds[f"exif.{file_format.lower()}"] = encode(photo(), file_format, exif=exif.tobytes())
    frames = [photo().rotate(angle) for angle in (90, 180)]
    seeds["animated.gif"] = encode(photo(), "GIF", save_all=True, append_images=frames)
    seeds["animated.webp"] = encode(photo(), "WEBP", save_all=True, append_images=frames)
    seeds["lzw.tiff"] = encode(photo(), "TIFF", compression="tiff_lzw")
    return [Seed(name, content, _read_image) for name, content in seeds.items()]


def _read_image(path: Path) -> None:
    for loader in open_source(path).loaders():
        loader.load()


def videos(folder: Path) -> list[Seed]:
    """Containers and codecs that PyAV writes, with and without sound."""
    import av

    from tests.unit.files.clips import tone

    seeds = []
    for name, codec, sound in (
        ("h264.mp4", "libx264", "aac"),
        ("vp9.webm", "libvpx-vp9", None),
        ("mpeg4.avi", "mpeg4", "mp3"),
        ("prores.mov", "prores_ks", None),
        ("h264.mkv", "libx264", None),
        ("mpeg2.ts", "mpeg2video", None),
    ):
        with av.open(str(folder / name), "w") as container:
            video: Any = container.add_stream(codec, rate=10)
            video.height, video.width = 48, 64
            video.pix_fmt = "yuv422p10le" if codec == "prores_ks" else "yuv420p"
            audio: Any = container.add_stream(sound, rate=44_100, layout="stereo") if sound else None
            for number in range(12):
                container.mux(video.encode(av.VideoFrame.from_ndarray(sample_image(number, (48, 64)), format="rgb24")))
            container.mux(video.encode())
            if audio is not None:
                container.mux(audio.encode(tone(1.2)))
                container.mux(audio.encode(None))
        seeds.append(Seed(name, (folder / name).read_bytes(), _read_video))
    return seeds


def _read_video(path: Path) -> None:
    reader = VideoReader(path)
    for start in (0, 5):
        for _ in itertools.islice(reader.frames(start), MAX_FRAMES):
            pass


# ------------------------------------------------------------------------------------------------ checkpoints


def checkpoints(folder: Path) -> list[Seed]:
    """Weight files of every format, and the index of shards."""
    model, processor = parts_of("pose")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seeds = []

    def add(kind: str, name: str, mutate: Callable[[bytes, random.Random], bytes], read: Any = _open_pose) -> None:
        processor.save_pretrained(folder / kind)
        model.config.save_pretrained(folder / kind)
        path = folder / kind / name
        seeds.append(Seed(f"{kind}/{name}", path.read_bytes(), read, mutate))

    model.save_pretrained(folder / "safetensors")
    model.save_pretrained(folder / "header")
    model.save_pretrained(folder / "shards", max_shard_size="100kB")
    for kind in ("zip", "records", "legacy", "tensors"):
        (folder / kind).mkdir()
        torch.save(state, folder / kind / "pytorch_model.bin", _use_new_zipfile_serialization=kind != "legacy")
    add("safetensors", "model.safetensors", mutate_bytes)
    add("header", "model.safetensors", mutate_safetensors)
    add("shards", "model.safetensors.index.json", mutate_json_text)
    add("zip", "pytorch_model.bin", mutate_bytes)
    add("records", "pytorch_model.bin", mutate_zip)
    add("legacy", "pytorch_model.bin", mutate_bytes)
    add("tensors", "pytorch_model.bin", mutate_tensors)
    save_multitask(tiny_multitask("pose", "people"), folder / "packed")
    for name in sorted(path.name for path in (folder / "packed").iterdir() if path.suffix != ".md"):
        mutate = mutate_json_text if name.endswith(".json") else mutate_safetensors
        save_multitask(tiny_multitask("pose", "people"), folder / f"packed-{name}")
        content = (folder / "packed" / name).read_bytes()
        seeds.append(Seed(f"packed-{name}/{name}", content, _open_pose, mutate))
    return seeds


def _open_pose(path: Path) -> None:
    AutoModelForPoseEstimation.from_pretrained(path.parent)


def mutate_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Change the header of a safetensors file, with its length corrected most of the time."""
    size = int.from_bytes(content[:8], "little")
    header = mutate_json_text(content[8 : 8 + size], rng)
    length = len(header) if rng.randrange(4) else rng.choice((0, 1, size, 2**31, 2**63, len(content)))
    return length.to_bytes(8, "little") + header + content[8 + size :]


def mutate_zip(content: bytes, rng: random.Random) -> bytes:
    """Cut, lengthen, change, remove or repeat a record of a zip file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    names = list(records)
    name = rng.choice(names[:2] + rng.sample(names, 1))  # the pickle is the first, with the byte order
    kind = rng.randrange(6)
    if kind == 0:
        records[name] = records[name][: rng.randrange(len(records[name]) + 1)]
    elif kind == 1:
        records[name] += rng.randbytes(rng.randrange(1, 64))
    elif kind == 2:
        records[name] = mutate_bytes(records[name], rng)
    elif kind == 3:
        del records[name]
    elif kind == 4:
        records[name] = records[rng.choice(names)]
    else:
        records[f"{name}{rng.randrange(9)}"] = records.pop(name)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for record, data in records.items():
            archive.writestr(record, data)
    return stream.getvalue()


def mutate_tensors(content: bytes, rng: random.Random) -> bytes:
    """Change the state dict of a `torch.save` file: names, shapes, data types, values, and what holds it."""
    state: Any = torch.load(io.BytesIO(content), weights_only=True)
    inner: dict[Any, Any] = state.get("model", state) if isinstance(state.get("model"), dict) else state
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not inner:
            break
        name = rng.choice(list(inner))
        tensor = inner[name]
        if not isinstance(tensor, Tensor):
            continue
        kind = rng.randrange(10)
        if kind <= 1:
            dtypes = (torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float64, torch.float16)
            inner[name] = tensor.to(rng.choice((*dtypes, torch.float8_e4m3fn)))
        elif kind <= 3:
            shape = list(tensor.shape) or [1]
            shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 3, 7, 50))
            inner[name] = torch.zeros(1).expand(shape)
        elif kind == 4:
            shapes = (torch.tensor(1.0), tensor[None], tensor.flatten(), tensor.reshape(-1)[:0])
            inner[name] = rng.choice(shapes)
        elif kind == 5:
            del inner[name]
        elif kind == 6:
            number = rng.choice((0, 3, 99, 9_999_999, 10**30))
            inner[".".join(str(number) if part.isdigit() else part for part in str(name).split("."))] = tensor
        elif kind == 7:
            inner[rng.choice(("", 7, "x", f"{name}.{name}", "model", f"backbone.{name}"))] = inner.pop(name)
        elif kind == 8:
            inner[name] = torch.full(tensor.shape, rng.choice((float("nan"), float("inf"), 1e38)))
        else:
            inner[name] = rng.choice(VALUES)
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


# ------------------------------------------------------------------------------------------------ configurations


def configurations(folder: Path) -> list[Seed]:
    """`config.json` of every family, with and without weights, and `preprocessor_config.json`."""
    seeds = []
    for case in CASES:
        path = folder / case.name / "config.json"
        case.config().save_pretrained(path.parent)
        seeds.append(Seed(f"{case.name}/config.json", path.read_bytes(), build_model(case.cls), mutate_json_text))
    for task in ("pose", "segment", "semantic"):
        model, processor = parts_of(task)
        model.save_pretrained(folder / task)
        processor.save_pretrained(folder / task)
        for name in ("config.json", "preprocessor_config.json"):
            model.save_pretrained(folder / f"{task}-{name}")
            processor.save_pretrained(folder / f"{task}-{name}")
            read = partial(_open_model, model=type(model)) if name == "config.json" else _open_processor
            content = (folder / task / name).read_bytes()
            seeds.append(Seed(f"{task}-{name}/{name}", content, read, mutate_json_text))
    return seeds


def build_model(cls: Any) -> Callable[[Path], object]:
    """Return a function that builds a model of this class by a `config.json`."""

    def build(path: Path) -> None:
        config = AutoConfig.from_pretrained(path.parent)
        if isinstance(config, cls.config_class):
            with no_init_weights():
                cls(config)

    return build


def _open_model(path: Path, *, model: Any) -> None:
    model.from_pretrained(path.parent)


def _open_processor(path: Path) -> None:
    AutoImageProcessor.from_pretrained(path.parent)(sample_image(1), return_tensors="pt")


# ------------------------------------------------------------------------------------------------ converters


def converters(folder: Path) -> list[Seed]:
    """Checkpoints of the original releases, with tensors that take no space in the file."""
    sapiens2 = {name: torch.zeros(1).expand(shape) for name, shape in _SAPIENS2.items()}
    with no_init_weights():
        model = Sam2Model(Sam2Config.variant("tiny"))
    state = {name: torch.zeros(1).expand(tensor.shape) for name, tensor in model.state_dict().items()}
    sam2 = {"model": original_sam2(state)}
    seeds = []
    for name, content, read in (("sapiens2", sapiens2, _convert_sapiens2), ("sam2", sam2, _convert_sam2)):
        stream = io.BytesIO()
        torch.save(content, stream)
        for kind, mutate in (("tensors", mutate_tensors), ("records", mutate_zip), ("bytes", mutate_bytes)):
            seeds.append(Seed(f"{name}-{kind}.pth", stream.getvalue(), read, mutate))
    return [*seeds[:1] * 3, *seeds[3:4], *seeds]  # most often names, shapes and data types


_LAYER: dict[str, tuple[int, ...]] = {
    "ln1.weight": (32,),
    "ln2.weight": (32,),
    **{f"attn.{name}.weight": (32, 32) for name in ("wq", "wk", "wv", "proj")},
    **{f"attn.{name}.bias": (32,) for name in ("wq", "wk", "wv", "proj")},
    "attn.q_norm.weight": (16,),
    "attn.k_norm.weight": (16,),
    "attn.gamma.weight": (32,),
    "ffn.w12.weight": (96, 32),
    "ffn.w12.bias": (96,),
    "ffn.w3.weight": (32, 48),
    "ffn.w3.bias": (32,),
}
_SAPIENS2: dict[str, tuple[int, ...]] = {
    "backbone.cls_token": (1, 1, 32),
    "backbone.storage_tokens": (1, 2, 32),
    "backbone.patch_embed.projection.weight": (32, 3, 16, 16),
    "backbone.patch_embed.projection.bias": (32,),
    "backbone.ln1.weight": (32,),
    **{f"backbone.blocks.{n}.{name}": shape for n in range(2) for name, shape in _LAYER.items()},
    "decode_head.deconv_layers.0.weight": (32, 24, 4, 4),
    "decode_head.deconv_layers.3.weight": (24, 16, 4, 4),
    "decode_head.conv_layers.0.weight": (16, 16, 1, 1),
    "decode_head.conv_layers.0.bias": (16,),
    "decode_head.conv_pose.weight": (5, 16, 1, 1),
    "decode_head.conv_pose.bias": (5,),
}


def _convert_sapiens2(path: Path) -> None:
    save_converted(path, path.parent / "converted", image_hw=SIZE_HW)


def _convert_sam2(path: Path) -> None:
    convert_checkpoint(path)


# ------------------------------------------------------------------------------------------------ tables


def tables(folder: Path) -> list[Seed]:
    """Files of boxes in every format, COCO datasets, and cameras."""
    box = [4.0, 5.0, 20.0, 30.0]
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "area": 600.0, "iscrowd": 0}
    coco = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 40, "width": 56}],
        "annotations": [annotation, annotation | {"id": 2, "score": 0.5}],
        "categories": [{"id": 1, "name": "person"}],
    }
    people = {
        "images": [
            {"id": 1, "file_name": "a.jpg", "height": 40, "width": 56, "intrinsics": [[9, 0, 2], [0, 9, 2], [0, 0, 1]]}
        ],
        "annotations": [annotation | {"keypoints": [1.0] * (3 * 308), "bbox": [0, 0, 30, 30]}],
    }
    table = {"a.jpg": [box, [*box, 0.9]], "b/a.jpg": [], "clip.mp4": {"0": [box], "3": [box]}}
    detections = [{"image_id": 139, "category_id": 1, "bbox": box, "score": 0.9}] * 2
    camera = {"intrinsics": [[50.0, 0, 28], [0, 50.0, 20], [0, 0, 1]], "fov": 60.0}
    csv = b"file,frame,x,y,w,h,score\na.jpg,,4,5,20,30,0.9\nclip.mp4,3,1,2,3,4,\n"
    npy = io.BytesIO()
    np.save(npy, np.array(camera["intrinsics"]))

    def text(path: str, value: object, read: Callable[[Path], object]) -> Seed:
        return Seed(path, json.dumps(value).encode(), read, mutate_json_text)

    return [
        text("boxes.json", table, _read_boxes),
        text("coco.json", coco, _read_boxes),
        text("detections.json", detections, _read_boxes),
        Seed("boxes.csv", csv, _read_boxes),
        text("dataset.json", coco, _extend_dataset),
        text(ANNOTATIONS_FILE, people, _open_people_folder),
        text("camera.json", camera, _read_camera),
        Seed("camera.npy", npy.getvalue(), _read_camera),
    ]


def _read_boxes(path: Path) -> None:
    detector = BoxesFile(path, threshold=0.1)
    for source, frame in (("x/a.jpg", None), ("clip.mp4", 3), ("000000000139.jpg", None)):
        detector.detect_in(sample_image(), source=source, frame=frame)
    detector.detect(sample_image())


def _extend_dataset(path: Path) -> None:
    CocoDataset(path, overwrite=False).close()


def _read_camera(path: Path) -> None:
    PointmapCommand(sources=[], intrinsics=str(path)).call_options()


def _open_people_folder(path: Path) -> None:
    for view in ("person", "picture"):
        PeopleFolder(path.parent, size_hw=SIZE_HW, tasks=["pose"], view=view).read(0)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ journals


def journals(folder: Path) -> list[Seed]:
    """The journal of an output folder, and the plan and segments of an interrupted video."""
    source = folder / "a.jpg"
    source.write_bytes(encode(photo(), "JPEG"))
    one = NamedSource(identity=str(source), name=str(source), kind="image", path=source)
    out = folder / "out"
    paths = [out / "a.json", out / "a.png"]
    journal = Journal(out)
    fingerprint = journal.begin(one, paths, "settings")
    for path in paths:
        path.write_text("result")
    journal.done(fingerprint, paths)

    def read(path: Path) -> None:
        opened = Journal(path.parent)
        opened.wrote(paths[0])
        opened.status(one, paths, "settings")
        opened.done(opened.begin(one, paths, "other"), paths)
        assert Journal(path.parent).status(one, paths, "other") == "done"

    content = (out / JOURNAL).read_bytes()
    return [Seed(f"out/{JOURNAL}", content, read), Seed(f"out/{JOURNAL}", content, read, _mutate_lines)]


def _mutate_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = mutate_json_text(lines[at], rng)
    return b"\n".join(lines) + b"\n" * rng.randrange(2)


# ------------------------------------------------------------------------------------------------ calls


def calls(folder: Path) -> list[Seed]:
    """Pipelines on arrays of strange shapes and types, with strange options. The seed's content is the call."""
    pipes = {task: opened(task) for task in ("pose", "normals", "pointmap", "segment", "semantic")}
    box = [4.0, 5.0, 20.0, 30.0]
    options: dict[str, dict[str, Any]] = {
        "pose": {"boxes": [box]},
        "normals": {"boxes": [box]},
        "pointmap": {"K": [[50.0, 0, 28], [0, 50.0, 20], [0, 0, 1]], "fov": None},
        "segment": {"points": [[9, 7]], "boxes": [box]},
        "semantic": {},
    }

    def run(path: Path) -> None:
        call = json.loads(path.read_bytes())
        image: Any = call["image"]
        if isinstance(image, dict):
            shape, dtype = image.get("shape"), image.get("dtype")
            image = np.zeros([int(side) for side in shape], dtype) if _is_shape(shape) else shape
        given = call["options"] if isinstance(call["options"], dict) else {}
        pipes[call["task"]](image, **given)

    def mutate(content: bytes, rng: random.Random) -> bytes:
        call = json.loads(content)
        part = rng.choice(("image", "options"))
        if part == "options" and call["options"]:
            call["options"] = mutate_json(call["options"], rng)
        elif rng.randrange(2):
            sides = (0, 1, 2, 3, 4, 5, 17, 40, 300, 20_000)
            shape = [rng.choice(sides), rng.choice(sides), rng.choice((1, 3, 3, 3, 4))]
            dtype = rng.choice(("uint8", "uint8", "float32", "float64", "bool", "int64", "uint16", "complex64", "U3"))
            call["image"] = {"shape": shape[: rng.choice((1, 2, 3, 3, 3))], "dtype": dtype}
        else:
            call["image"] = rng.choice([value for value in VALUES if not isinstance(value, int)])
        return json.dumps(call).encode()

    image = {"shape": [40, 56, 3], "dtype": "uint8"}
    return [
        Seed(f"{task}.json", json.dumps({"task": task, "image": image, "options": given}).encode(), run, mutate)
        for task, given in options.items()
    ]


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(isinstance(side, int) for side in shape) and np.prod(shape) < 1e6


# ------------------------------------------------------------------------------------------------ labels and settings


def labels(folder: Path) -> list[Seed]:
    """COCO datasets that become labels of other tools, RLEs, training configurations, and lists of API keys."""
    rle = {"size": [40, 56], "counts": [500, 30, 1000, 10, 700]}
    compressed = rle | {"counts": compress_counts(rle["counts"])}
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [4.0, 5.0, 20.0, 30.0], "score": 0.5}
    coco = {
        "images": [{"id": number, "file_name": f"{number}/a.jpg", "height": 40, "width": 56} for number in (1, 2)],
        "categories": [{"id": 1, "name": "person", "keypoints": ["nose"], "skeleton": []}],
        "annotations": [
            annotation,
            annotation | {"keypoints": [9.0, 7.0, 2], "num_keypoints": 1},
            annotation | {"segmentation": rle},
            annotation | {"segmentation": [[1.0, 2.0, 9.0, 2.0, 9.0, 8.0]]},
        ],
    }
    config = b'task = "pose"\n[data]\ntrain = "people"\nbatch_size = 2\n[optimizer]\nlr = 1e-4\n'
    return [
        *(_json_seed(f"{tool}.json", coco, partial(_write_labels, tool=tool)) for tool in _TOOLS),
        _json_seed("rle.json", rle, _decode_rle),
        _json_seed("compressed.json", compressed, _decode_rle),
        Seed("train.toml", config, read_training_config),
        Seed("keys", f"# keys\nann {'0a' * 32}\nbob {'1b' * 32}\n".encode(), read_keys),
    ]


_TOOLS = {"yolo": "labels", "cvat": "labels.xml", "label-studio": "tasks.json"}


def _json_seed(path: str, value: object, read: Callable[[Path], object]) -> Seed:
    return Seed(path, json.dumps(value).encode(), read, mutate_json_text)


def _write_labels(path: Path, *, tool: str) -> None:
    out = path.parent / "labels" / _TOOLS[tool]
    _run_command("labels", path, "--to", tool, "-o", out)
    if tool != "yolo":
        ElementTree.parse(out.with_suffix(".xml"))


def _run_command(*words: object) -> None:
    """Run a command of the command line; a failure that it explains is an `InputError`."""
    log = io.StringIO()
    with contextlib.redirect_stderr(log), contextlib.redirect_stdout(log):
        code = run([*map(str, words), "--debug"])
    if code and not (last_exception(log.getvalue()) or "").startswith("vitruvian.errors."):
        raise RuntimeError(log.getvalue())
    if code:
        raise InputError(log.getvalue())


def _decode_rle(path: Path) -> None:
    decode_rle(read_json(path))


# ------------------------------------------------------------------------------------------------ kept states of videos


def states(folder: Path) -> list[Seed]:
    """What `vitruvian track --keep-state` keeps, which --refine reads."""
    from tests.unit.files.clips import make_clip

    for part in parts_of("track"):
        part.save_pretrained(folder / "model")
    scene = sample_image(4, (48, 64))
    make_clip(folder / "clip.mp4", [np.roll(scene, number, 1) for number in range(4)], rate=1)
    words = ["track", folder / "clip.mp4", "-m", folder / "model", "-o", folder / "out", "--save", "json"]
    _run_command(*words, "--points", "1@0:22,12", "--keep-state")
    kept = folder / "kept"
    shutil.copytree(folder / "out" / "clip_track.state", kept)

    def read(path: Path) -> None:
        state = folder / "again"
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(kept, state)
        shutil.copyfile(path, state / path.name)
        _run_command(*words, "--refine", state, "--points", "1@3:9,9", "--overwrite")

    seeds = []
    for file in sorted(kept.iterdir()):
        mutate = mutate_json_text if file.suffix == ".json" else mutate_bytes
        seeds.append(Seed(f"mutated/{file.name}", file.read_bytes(), read, mutate))
    (folder / "mutated").mkdir()
    return seeds


# ------------------------------------------------------------------------------------------------ sources and shards


def sources(folder: Path) -> list[Seed]:
    """Lists, tar and Parquet files of images, and the shards of results that a cluster wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    png = encode(photo(), "PNG")
    (folder / "a.png").write_bytes(png)
    rows = {"image": [png, png, None], "other": [{"bytes": png, "path": "a.png"}] * 3, "path": ["a.png", "b.png", ""]}
    for name, columns in (("bytes", ["image"]), ("paths", ["path"])):
        pq.write_table(pa.table({column: rows[column] for column in columns}), folder / f"{name}.parquet")
    pq.write_table(pa.table({"image": rows["other"]}), folder / "struct.parquet", row_group_size=2)
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in ("a.png", "b/c.png"):
            archive.add(folder / "a.png", name)
    (folder / "list.txt").write_text("# images\na.png\nhttp:/x\nb.png\n")
    names = ("bytes.parquet", "paths.parquet", "struct.parquet", "a.tar", "list.txt")
    seeds = [Seed(name, (folder / name).read_bytes(), _read_sources) for name in names]
    table = rows_to_table([Row(source="a.png", status="done", files={"json": b"{}"})] * 3, ["json"])
    forms: tuple[ShardFormat, ...] = ("parquet", "tar")
    for form in forms:
        name = write_shard([table], str(folder / form), "part-00000", settings="s", shard_format=form)
        seeds.append(Seed(f"{form}/{name}", (folder / form / name).read_bytes(), _read_shards))
    return seeds


def _read_sources(path: Path) -> None:
    items = list(itertools.islice(list_sources([str(path)]), MAX_FRAMES))
    for content in read_sources([item for item in items if not is_url(item.path)]):
        if isinstance(content, VitruvianError):
            raise content


def _read_shards(path: Path) -> None:
    ShardIndex.read(str(path.parent), settings="s")


# ------------------------------------------------------------------------------------------------ requests


def requests(folder: Path) -> list[Seed]:
    """Bodies and options of requests to the server: images, forms, JSON, query parameters, archives for jobs."""
    from tests.helpers.server import archive, form, jpeg, local_server
    from vitruvian.serving.settings import ServerLimits, Settings

    models = {}
    for task in ("pose", "segment"):
        for part in parts_of(task):
            part.save_pretrained(folder / task)
        models[task] = str(folder / task)
    # Jobs do not start, for there is no worker: the queue is full with the first.
    limits = ServerLimits(queued_jobs=1)
    settings = Settings(models=models, data=folder / "data", detector="whole", limits=limits, job_workers=0)
    client, _ = servers.enter_context(local_server(settings))
    image = jpeg()
    stored = client.post("/v1/images", image).json["id"]

    def send(url: str, headers: dict[str, str] | None = None) -> Callable[[Path], None]:
        return lambda path: _check(client.post(url, path.read_bytes(), headers=headers or {}))

    def query(url: str, body: bytes) -> Callable[[Path], None]:
        def read(path: Path) -> None:
            try:
                _check(client.post(url, body, **_query(path)))
            except ConnectionError as error:  # what uvicorn does to a request line of more than 64 kB
                if path.stat().st_size < 20_000:
                    raise
                raise InputError("request line") from error

        return read

    prompts = {"points": [[9, 7], [30, 20]], "labels": [1, 0], "boxes": [[4, 5, 20, 30]]}
    options = {"boxes": [[4, 5, 20, 30]], "box_format": "xyxy", "on_empty": "none"}
    fields = [("image", "a.jpg", image), ("points", None, b"[[9, 7]]")]
    body, headers = form(*fields)
    job, job_headers = form(("file", "a.zip", archive({"a.jpg": image, "b/c.jpg": image})), ("task", None, b"pose"))
    as_json = {"Content-Type": "application/json"}
    return [
        Seed("image.jpg", image, send("/v1/pose")),
        Seed("form", body, send("/v1/segment", headers)),
        Seed(
            "stored.json", json.dumps(prompts).encode(), send(f"/v1/images/{stored}/segment", as_json), mutate_json_text
        ),
        Seed("query.json", json.dumps(options).encode(), query("/v1/pose", image), mutate_json_text),
        Seed("prompts.json", json.dumps(prompts).encode(), query("/v1/segment", image), mutate_json_text),
        Seed("job", job, send("/v1/jobs", job_headers)),
        Seed("zip", archive({"a.jpg": image}), send("/v1/jobs?task=pose"), mutate_zip),
    ]


servers = contextlib.ExitStack()  # what the caller closes in the end


def _query(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        values = path.read_bytes().decode("latin-1")
    values = values if isinstance(values, dict) else {"points": values}
    return {_encodable(name): _encodable(value) for name, value in values.items()}


def _encodable(value: Any) -> Any:
    """Replace surrogates, which a URL cannot have."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _check(answer: Any) -> None:
    """Raise for an answer that blames the server."""
    if answer.status >= 500:
        raise RuntimeError(answer.body.decode())
    if answer.status >= 400:
        is_json = answer.headers.get("content-type", "").startswith("application/json")  # uvicorn's own errors are text
        raise InputError(answer.error["message"] if is_json else answer.body.decode(errors="replace"))


TARGETS: dict[str, Callable[[Path], list[Seed]]] = {
    "images": images,
    "videos": videos,
    "checkpoints": checkpoints,
    "configurations": configurations,
    "converters": converters,
    "tables": tables,
    "journals": journals,
    "calls": calls,
    "labels": labels,
    "states": states,
    "sources": sources,
    "requests": requests,
}
