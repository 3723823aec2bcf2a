"""The demo: people found in a few pictures, every task on them, files in a folder and one sheet of it all.

    pictures ─▶ a finder ─▶ people ─┬▶ matte ─▶ files, a drawing
                                    ├▶ pose ─▶ …                    ──▶ sheet.png: a row a picture, a column a task
                                    └▶ parts, normals, pointmap, albedo

The models are those inside the package, or any checkpoints; where there are none, random ones of the same kind show the
way that pictures take.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian import hub
from vitruvian.auto import packed_tasks
from vitruvian.draw import draw_boxes, sheet
from vitruvian.errors import InputError, VitruvianWarning, near_matches
from vitruvian.files import write_png
from vitruvian.pipelines import INSIDE, pipeline, pipeline_class
from vitruvian.pipelines.people import PeopleFinder, find_people, open_finder
from vitruvian.pipelines.sources import BadFrame, Frame, open_source
from vitruvian.results.base import Picture

PLOT = "_plot.png"
# task -> what the names of its files end in; mattes first, since they say where others hold
TASKS: dict[str, tuple[str, ...]] = {
    "matte": (".png",),
    "pose": (".json", PLOT),
    "parts": (".png", PLOT),
    "normals": (".png",),
    "pointmap": (".ply", PLOT),
    "albedo": (".png",),
}
# column of the sheet -> its title
COLUMNS = {
    "people": "people",
    "pose": "pose",
    "parts": "body parts",
    "normals": "normals",
    "pointmap": "depth of 3D points",
    "matte": "matte",
    "albedo": "albedo",
}
PICTURES = hub.BUILTIN_FOLDER  # beside the model
SHEET = "sheet.png"
SHEET_HEIGHT, MARGIN = 360, 12  # of a picture on the sheet, and around all of them
GROUND = 128  # grey of normals and points where there is nobody
Where = NDArray[np.bool_]


@dataclass(frozen=True)
class DemoReport:
    """What the demo wrote.

    Attributes:
        sheet: The picture of all results.
        files: Every file, the sheet among them.
        people: How many people were found.
        seconds: How long it took.
        failures: Pictures that could not be read, and why.
    """

    sheet: Path
    files: list[Path]
    people: int
    seconds: float
    failures: dict[str, Exception] = field(default_factory=dict)


def run_demo(
    pictures: Any = None,
    out: str | Path = "out/demo",
    *,
    model: str | Path | Mapping[str, str | Path] | None = None,
    finder: Any = None,
    device: Any = None,
    dtype: Any = None,
    progress: Callable[[str], None] | None = None,
) -> DemoReport:
    """Find people in pictures, run every task on them, and write the results and a sheet into a folder.

    Args:
        pictures: Any source that pipelines take; by default the pictures that ship with the package.
        out: The folder, made if needed.
        model: What `demo_models` takes. By default the model inside the package; where there is none, models with
            random weights, and a warning that says so.
        finder: Who finds people, as `open_finder` takes it; by default the model itself where it can.
        device: Where models run; by default the best device here.
        dtype: Data type of their weights.
        progress: Is told what was done, line by line.
    """
    start, folder = time.perf_counter(), Path(out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder to write into, got a file. Choose another.")
    tell = progress or (lambda _: None)
    models = chosen_models(model)
    looks = open_demo_finder(finder, models, device=device, dtype=dtype)
    frames, failures = read_frames(demo_pictures() if pictures is None else pictures)
    rows = [Row(frame, folder, name) for frame, name in zip(frames, stems(frames), strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        row.find(looks)
    people = sum(len(row.boxes) for row in rows)
    if looks is not None:
        tell(f"people: {people} found in {len(rows)} {'picture' if len(rows) == 1 else 'pictures'}")
    for task, source in models.items():
        pipe = (
            random_pipeline(task, device=device)
            if source is None
            else pipeline(task, source, device=device, dtype=dtype)
        )
        for row in rows:
            row.run(task, pipe, people_alone=source is not None and bool(packed_tasks(source)))
        tell(f"{task}: {', '.join(str(folder / f'*_{task}{ending}') for ending in TASKS[task])}")
    write_png(folder / SHEET, sheet_of(rows, found=looks is not None, chance=None in models.values()))
    files = [*(path for row in rows for path in row.files), folder / SHEET]
    return DemoReport(folder / SHEET, files, people, time.perf_counter() - start, failures)


class Row:
    """A picture on its way through the demo: who is in it, what was written, and what goes on the sheet."""

    def __init__(self, frame: Frame, folder: Path, name: str) -> None:
        self.frame, self.folder, self.name = frame, folder, name
        self.boxes: NDArray[np.float32] = np.zeros((0, 4), np.float32)  # people [P, 4]
        self.inside: Where | None = None  # where people are [H, W]
        self.drawings: dict[str, Picture] = {}
        self.files: list[Path] = []

    def find(self, finder: PeopleFinder | None) -> None:
        """Find the people, and draw their boxes."""
        picture = self.frame.picture
        self.drawings["people"] = picture
        if finder is None:
            return
        found = find_people(finder, picture, source=str(self.frame.path or self.frame.name), nobody="none")
        self.boxes = found.boxes_xyxy
        self.drawings["people"] = draw_boxes(picture, found.boxes_xyxy, scores=found.scores.tolist())
        self.files.append(self.folder / f"{self.name}_people.png")
        write_png(self.files[-1], self.drawings["people"])

    def run(self, task: str, pipe: Any, *, people_alone: bool) -> None:
        """Run a task, write its files and draw it.

        Args:
            task: The task.
            pipe: Its pipeline.
            people_alone: Leave out what lies outside people, which the small model never learned.
        """
        result = pipe(self.frame, **({"boxes": self.boxes} if len(self.boxes) else {"people": "whole"}))
        if people_alone and task == "matte":
            self.inside = result.alpha > 0.5
        elif people_alone and self.inside is not None and task in ("normals", "pointmap", "albedo"):
            result = replace(result, mask=self.inside if result.mask is None else result.mask & self.inside)
        for ending in TASKS[task]:
            path = self.folder / f"{self.name}_{task}{ending}"
            if ending == PLOT:
                write_png(path, np.asarray(result.plot().convert("RGB")))
            else:
                result.save(path)
            self.files.append(path)
        plain = {"legend": False} if task == "parts" else {}  # pictures on the sheet are too small to read one
        drawn = np.asarray(result.plot(**plain).convert("RGB"))
        if task == "albedo" and result.mask is not None:  # before the ground of normals and points, not before black
            drawn = np.where(result.mask[..., None], drawn, GROUND).astype(np.uint8)
        self.drawings[task] = drawn


def sheet_of(rows: list[Row], *, found: bool, chance: bool) -> Picture:
    """Put everything on one sheet.

    Args:
        rows: The pictures with their drawings.
        found: Whether people were looked for.
        chance: Whether the models have random weights, which the sheet then says.
    """
    columns = [column for column in COLUMNS if column in rows[0].drawings]
    titles = [COLUMNS[column] for column in columns]
    titles[0] = titles[0] if found else "picture"
    drawn = sheet(
        [[row.drawings[column] for column in columns] for row in rows],
        titles=titles,
        row_titles=[f"{row.name}: random weights" if chance else row.name for row in rows],
        height=SHEET_HEIGHT,
    )
    return np.pad(drawn, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), constant_values=255)


# ------------------------------------------------------------------------------------------------------ models


def chosen_models(model: str | Path | Mapping[str, str | Path] | None) -> Mapping[str, str | Path | None]:
    """Return the checkpoint of each task to run, None for random weights where there is no model at all."""
    if model is not None or hub.has_builtin():
        return demo_models(hub.BUILTIN if model is None else model)
    warnings.warn(
        "model: none was named and this installation has none inside, so the demo runs models with random weights: it "
        "shows the way from picture to files, not the skill. Install vitruvian from a wheel, or name checkpoints such "
        "as facebook/sapiens2-pose-0.4b.",
        VitruvianWarning,
        stacklevel=3,
    )
    return dict.fromkeys(TASKS)


def demo_models(model: str | Path | Mapping[str, str | Path]) -> dict[str, str | Path]:
    """Return the checkpoint of each task that there is one for, in the order of the demo.

    Args:
        model: ``"builtin"``; a folder that is packed like it; the folder of a training run, with a folder for each
            task; a checkpoint of one task, by its path or Hub name; or a table of tasks and checkpoints.
    """
    if isinstance(model, Mapping):
        for task in model:
            if task not in TASKS:
                raise InputError(
                    f"model: expected tasks of {', '.join(TASKS)}, got {task!r}.{near_matches(task, TASKS)}"
                )
        found: dict[str, str | Path] = dict(model)
    elif hub.names_builtin(model) and not hub.has_builtin():
        hub.local_path(model)  # says that there is none
        found = {}
    elif inside := packed_tasks(model):
        found = {task: model for task in TASKS if INSIDE[task] in inside}
    else:
        found = run_folders(model) or dict.fromkeys(tasks_of(model), model)
    if not found:
        raise InputError(f"model: expected checkpoints for {', '.join(TASKS)}, got none of these in {model}.")
    return {task: found[task] for task in TASKS if task in found}


def run_folders(model: str | Path) -> dict[str, str | Path]:
    """Return the models of a training run's folder, none for anything else."""
    folder = Path(model).expanduser()
    folder = folder / "model" if (folder / "model").is_dir() else folder
    return {
        task: folder / inner
        for task in TASKS
        if (inner := INSIDE[task]) is not None and (folder / inner / hub.CONFIG_FILE).is_file()
    }


def tasks_of(model: str | Path) -> list[str]:
    """Return the tasks that a checkpoint of the ordinary kind is for."""
    from vitruvian.auto import AutoConfig

    named = [str(name) for name in AutoConfig.from_pretrained(model).to_dict().get("architectures") or []]
    return [task for task in TASKS if any(one.__name__ in named for one in pipeline_class(task).accepts)]


def open_demo_finder(
    finder: Any, models: Mapping[str, str | Path | None], *, device: Any, dtype: Any
) -> PeopleFinder | None:
    """Open who finds people: what was asked for, or the first of the models that can; None where nobody does."""
    if finder is None:
        finder = next((one for one in models.values() if one is not None and "people" in packed_tasks(one)), None)
    return None if finder is None else open_finder(finder, device=device, dtype=dtype)


def random_pipeline(task: str, *, device: Any) -> Any:
    """Return a task's pipeline on a small model with random weights, the same at every run."""
    import torch

    from vitruvian.models.sapiens2.configuration import Sapiens2Config
    from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
    from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor

    inner = INSIDE[task]
    assert inner is not None  # every task of the demo has a head
    config = Sapiens2Config(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_attention_heads=1,
        intermediate_size=128,
        image_size=[256, 192],
        num_first_full_attention_layers=1,
        num_last_full_attention_layers=1,
    )
    head: dict[str, Any] = {"upsample_out_channels": [32, 16, 16], "conv_out_channels": [16]}
    if task == "pointmap":
        head |= {"scale_conv_out_channels": [8], "scale_final_hidden_sizes": [8, 8]}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Sapiens2MultiTask(config, {inner: head}).eval().task_model(inner)
    height, width = config.image_hw
    processor = Sapiens2ImageProcessor(size={"height": height, "width": width}, do_pad=task != "pose")
    return pipeline(task, model, processor=processor, device=device)


# ------------------------------------------------------------------------------------------------------ pictures


def demo_pictures() -> list[Path]:
    """Return the pictures that ship with the package."""
    return sorted(PICTURES.glob("*.jpg"))


def read_frames(pictures: Any) -> tuple[list[Frame], dict[str, Exception]]:
    """Read all pictures of a source, and tell which could not be read; at least one must be."""
    frames: list[Frame] = []
    failures: dict[str, Exception] = {}
    for frame in open_source(pictures):
        if isinstance(frame, BadFrame):
            failures[frame.name] = frame.error
        else:
            frames.append(frame)
    if not frames:
        raise next(iter(failures.values()), InputError("pictures: expected at least one, got none."))
    return frames, failures


def stems(frames: list[Frame]) -> list[str]:
    """Return a name for the files of each picture, no two alike."""
    names = [Path(frame.name.partition("?")[0]).stem or "picture" for frame in frames]
    return [f"{name}_{number}" if names.count(name) > 1 else name for number, name in enumerate(names)]
