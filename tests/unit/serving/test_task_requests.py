"""Options over HTTP: what becomes of them in a call and on the command line, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vitruvian.cli.app import program
from vitruvian.cli.commands.image_tasks import TASK_COMMANDS
from vitruvian.errors import InputError
from vitruvian.pipelines.options import option_rows
from vitruvian.serving.errors import RequestError, status_of
from vitruvian.serving.media_types import choose_format, formats_of
from vitruvian.serving.task_requests import IMAGE_REQUESTS, JOB_REQUESTS
from vitruvian.tasks import PIPELINE_TASKS, TASKS

CHANGED: dict[str, dict[str, Any]] = {
    "pose": {"boxes": [[1, 2, 3, 4]], "layout": "coco17", "flip": True, "save": "json,mp4", "smooth": False},
    "parts": {"detect": "whole", "with_score": True, "opacity": 0.25, "tile": True, "legend": False},
    "normals": {"tile": 64, "overlap": 0.3, "convention": "opencv", "on_empty": "none"},
    "pointmap": {"intrinsics": [100, 100, 20, 20.5], "exif": False, "background": "keep"},
    "matte": {"over": "#00ff00", "max_people": 2},
    "albedo": {"background": "keep", "sound": False},
    "embed": {"save": "npz"},
    "segment": {"points": [[[3, 4], [5, 6.5]], [[1, 1]]], "labels": [[1, 0], [1]], "all_masks": True},
    "masks": {"points_per_side": 4, "quality": 0.5, "max_hole_area": 3},
    "track": {
        "prompts": [
            {"object_id": 1, "points": [[3, 4]], "labels": [0]},
            {"object_id": 2, "frame": 3, "box": [1, 2, 3, 4]},
        ],
        "no_overlap": True,
        "opacity": 0.25,
    },
    "semantic": {"opacity": 0.25},
    "instances": {"threshold": 0.25, "keep_share": 0.5},
    "panoptic": {"fuse": [0, 2], "mask_threshold": 0.25},
}


@pytest.mark.parametrize("task", PIPELINE_TASKS)
def test_every_task_has_options_and_the_command_line_takes_them(task: str) -> None:
    options = JOB_REQUESTS[task].read(CHANGED[task])
    command = program(task).commands[task]
    context = command.make_context(task, ["a.jpg", *options.arguments()])  # as a job starts it
    given = TASK_COMMANDS[task](**{name: value for name, value in context.params.items() if name != "help_all"})
    names = {"prompts": "points", "labels": "points"}
    for name, value in CHANGED[task].items():
        read = getattr(given, names.get(name, name))
        assert read is not None, name
        if isinstance(value, bool | str) and name != "tile":
            assert read == value, name


@pytest.mark.parametrize("task", IMAGE_REQUESTS)
def test_options_are_arguments_of_the_pipeline(task: str) -> None:
    values = {name: value for name, value in CHANGED[task].items() if name in IMAGE_REQUESTS[task].model_fields}
    for options in (IMAGE_REQUESTS[task].read({}), IMAGE_REQUESTS[task].read(values)):
        if "detect" in values and "tile" in values:
            continue
        TASKS[task].pipeline_class().check_options(options.call_options())


@pytest.mark.parametrize(
    ("task", "values", "subject"),
    [
        ("pose", {"color": "red"}, "color"),
        ("pose", {"boxes": "[[1, 2, 3]]"}, "boxes[0]"),
        ("pose", {"boxes": "[[1, 2"}, "options"),
        ("pose", {"max_people": "none"}, "max_people"),
        ("pose", {"detector": "/etc/passwd"}, "detector"),
        ("pose", {"smooth": True}, "smooth"),
        ("matte", {"over": "/etc/passwd"}, "over"),
        ("parts", {"tile": 1}, "tile"),
        ("segment", {"labels": [[2]]}, "labels[0][0]"),
    ],
)
def test_wrong_options(task: str, values: dict[str, object], subject: str) -> None:
    with pytest.raises(RequestError) as caught:
        IMAGE_REQUESTS[task].read(values)
    assert (caught.value.status, caught.value.subject) == (422, subject)


def test_options_that_jobs_do_not_have() -> None:
    with pytest.raises(RequestError, match="mesh: expected its default, got True"):
        JOB_REQUESTS["pointmap"].read({"mesh": True}).arguments()


@pytest.mark.parametrize("save", ["", "../x", "json --out /", "png,mp4,mov"])
def test_file_formats_that_jobs_do_not_write(save: str) -> None:
    with pytest.raises(InputError, match=r"one or more of |one video format") as caught:
        JOB_REQUESTS["pointmap"].read({"save": save}).check(0)
    assert (status_of(caught.value), caught.value.subject) == (422, "save")


@pytest.mark.parametrize("save", ["mp4", "json", "png,mp4"])
def test_cut_out_objects_are_only_saved_with_alpha(save: str) -> None:
    track = JOB_REQUESTS["track"]
    with pytest.raises(RequestError, match=r"save: expected a video with alpha \(webm, mov\) for cutout"):
        track.read({"everyone": True, "cutout": True, "save": save}).check(0)
    track.read({"everyone": True, "save": save}).check(0)
    for other in ("webm,json", "mov", None):
        track.read({"everyone": True, "cutout": True, "save": other}).check(0)


def test_jobs_read_file_formats_as_the_command_line_does() -> None:
    options = JOB_REQUESTS["matte"].read({"save": ".JSON, png"})
    options.check(0)
    assert options.arguments() == ["--save=.JSON, png"]
    with pytest.raises(InputError, match=r"got 'jpg'\. Did you mean png\? JPEG has no alpha: choose \.png"):
        JOB_REQUESTS["matte"].read({"save": "jpg"}).check(0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("none", "a valid integer"), ("9" * 5000, "a smaller integer"), (0, "greater than or equal to 1")],
)
def test_texts_about_wrong_options(value: object, expected: str) -> None:
    with pytest.raises(RequestError, match="max_people: ") as caught:
        IMAGE_REQUESTS["pose"].read({"max_people": value})
    assert caught.value.expected == expected


def test_limits_of_the_server() -> None:
    library = {row.name: row.info.range.le for row in option_rows(TASKS["masks"].options_class())}
    assert library["crop_layers"] == 4
    IMAGE_REQUESTS["masks"].read({"crop_layers": 2})
    with pytest.raises(RequestError, match="crop_layers"):
        IMAGE_REQUESTS["masks"].read({"crop_layers": 3})


def test_texts_of_query_parameters() -> None:
    options = IMAGE_REQUESTS["segment"].read({"points": "[3, 4]", "labels": "[0]", "all_masks": "true"})
    assert options.call_options()["points"] == [[[3.0, 4.0]]]
    assert options.call_options()["labels"] == [[0]]
    assert options.prompt_count() == 1
    with pytest.raises(RequestError) as caught:
        options.check(0)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("task", "accept", "kind"),
    [
        ("pose", None, "json"),
        ("pose", "*/*", "json"),
        ("pose", "image/*", "png"),
        ("pose", "image/png;kind=plot", "plot"),
        ("pose", "image/webp, image/png;q=0.5", "webp"),
        ("pose", "image/png;q=0.5, image/webp", "webp"),
        ("normals", "image/png;kind=16.png", "16.png"),
        ("normals", "image/*", "png"),
        ("normals", "image/jpeg", "plot.jpg"),
        ("matte", "image/x-exr", "exr"),
        ("pointmap", "model/gltf-binary", "glb"),
        ("pointmap", "model/*", "ply"),
        ("embed", "image/png", "plot"),
        ("embed", "text/html, application/json;q=0.1", "json"),
        ("pose", "application/json;q=0, */*", "npz"),
        ("pose", "*/*, image/png;q=0.5", "json"),
        ("pose", "image/png;kind=plot;q=0, image/png", "png"),
        ("pose", "image/avif,image/webp,image/apng,image/*,*/*;q=0.8", "webp"),
        ("pose", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "json"),
    ],
)
def test_kinds_by_accept(task: str, accept: str | None, kind: str) -> None:
    assert choose_format(task, accept=accept, asked=None) == kind


@pytest.mark.parametrize("accept", ["text/html", "image/webp", "application/json;q=0", "nonsense", "image/png;kind=x"])
def test_kinds_that_there_are_not(accept: str) -> None:
    with pytest.raises(RequestError, match="one of application/json") as caught:
        choose_format("normals", accept=accept, asked=None)
    assert caught.value.status == 406


def test_as_goes_before_accept() -> None:
    assert choose_format("pose", accept="text/html", asked="npz") == "npz"
    with pytest.raises(RequestError, match="exr"):
        choose_format("pose", accept=None, asked="exr")
    assert formats_of("matte")[0] == "json"
