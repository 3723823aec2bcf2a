"""`vitruvian serve` as a process, over real HTTP: every task, kind, stored image and job."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

pytest.importorskip("av")

from PIL import Image

from tests.helpers.pipelines import sample_image
from tests.helpers.server import Client, ServerProcess, archive, form, jpeg, opened, wait
from tests.integration.cli_case import CHECKPOINTS
from tests.unit.files.clips import make_clip
from vitruvian.images.rle import decode_rle
from vitruvian.pipelines import pipeline
from vitruvian.serving.media_types import formats_of
from vitruvian.tasks import find_task


def png() -> bytes:
    """Return an image file."""
    stream = io.BytesIO()
    Image.fromarray(sample_image(0, (40, 56))).save(stream, "PNG")
    return stream.getvalue()


def damaged_archive(method: int) -> bytes:
    """Return a ZIP archive of an image, whose compressed data is damaged."""
    body = bytearray(archive({"a.jpg": bytes(range(256)) * 40}, method))
    start = body.index(b"a.jpg") + len("a.jpg") + (12 if method == zipfile.ZIP_LZMA else 0)  # behind the header of LZMA
    body[start : start + 28] = b"\xff" * 28
    return bytes(body)


IMAGE = jpeg()
CUT_FORM = (form(("a", "a.jpg", IMAGE))[0][:-200], form()[1])
SIZE = [40, 56]
OPTIONS: dict[str, dict[str, Any]] = {
    "segment": {"points": [[[9, 7]]]},
    "masks": {"points_per_side": 3, "quality": -1, "stability": -1},
    "instances": {"threshold": 0},
    "panoptic": {"threshold": 0, "keep_share": 0},
}
SIGNATURES = {
    "json": b"{", "npz": b"PK", "png": b"\x89PNG", "16.png": b"\x89PNG", "plot": b"\x89PNG", "jpg": b"\xff\xd8",
    "jpeg": b"\xff\xd8", "plot.jpg": b"\xff\xd8", "webp": b"RIFF", "exr": b"v/1\x01", "ply": b"ply", "glb": b"glTF",
    "mesh.glb": b"glTF", "txt": b"", "crops.zip": b"PK", "parts.zip": b"PK",
}  # fmt: skip
MODELS = {find_task(task).name: name for name, task in CHECKPOINTS.items()} | {"masks": "facebook/sam2.1-hiera-large"}
TASKS = [task for task in MODELS if task != "track"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server(checkpoints: Path, data: Path) -> Iterator[ServerProcess]:
    models = [f"--model={task}={name}" for task, name in MODELS.items()]
    made = ServerProcess(*models, "--data", data, "--batch-size", 4, cwd=checkpoints)
    yield made
    assert made.stop() == 0
    assert "Stopped." in "".join(made.messages)
    assert sorted(path.name for path in data.iterdir()) == ["jobs", "jobs.sqlite"]


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client


# ------------------------------------------------------------------------------------------------ tasks


@pytest.mark.parametrize("task", TASKS)
def test_a_task_answers_as_its_pipeline_and_its_schema(task: str, client: Client, checkpoints: Path) -> None:
    answer = client.post(f"/v1/{task}", IMAGE, name="a.jpg", **OPTIONS.get(task, {}))
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert (answer.json["source"], answer.json["size_hw"]) == ("a.jpg", SIZE)
    operation = client.get("/openapi.json").json["paths"][f"/v1/{task}"]["post"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json, schema | {"additionalProperties": False})
    if task in OPTIONS:
        return
    pipe = pipeline(task, checkpoints / MODELS[task])
    expected = json.loads(json.dumps(pipe.run(IMAGE).to_dict()))
    found = answer.json
    for values in (found, expected):  # the note says how the detector was chosen: by the server, or by default
        values["people"] = {**(values.get("people") or {}), "note": None}
    for name, value in expected.items():
        if name not in ("source", "model"):
            assert _close(found[name], value), name


def _close(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_close(first[name], second[name]) for name in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_close, first, second))
    return abs(first - second) < 0.02 if isinstance(first, float) else bool(first == second)


@pytest.mark.parametrize("task", TASKS)
def test_every_kind_of_answer(task: str, client: Client) -> None:
    for kind in formats_of(task):
        answer = client.post(f"/v1/{task}", IMAGE, **OPTIONS.get(task, {}), **{"as": kind})
        if kind == "glb":  # all points of the tiny model are beside depth edges; some triangles between them are not
            assert answer.status == 422
            assert "at least one point" in answer.error["message"]
            continue
        assert answer.status == 200, (kind, answer.body)
        assert answer.body.startswith(SIGNATURES[kind]), kind
    info = next(model for model in client.get("/v1/models").json["models"] if model["task"] == task)
    assert info["kinds"] == list(formats_of(task))
    assert (info["state"], info["device"], info["images"]) == ("ready", "cpu", True)


def test_tiles_replace_the_detector_of_the_server(client: Client) -> None:
    tiled = client.post("/v1/normals", IMAGE, tile=32, background="keep")
    assert (tiled.status, tiled.json["people"]["detector"]) == (200, "whole image")
    assert client.post("/v1/normals", IMAGE, tile=False).json["people"]["detector"] == "builtin"
    both = client.post("/v1/normals", IMAGE, tile=32, boxes=[[1, 1, 20, 20]])
    assert (both.status, both.error["subject"]) == (422, "tile")


def test_accept_and_forms(client: Client) -> None:
    body, headers = form(
        ("photo", "my photo.jpg", IMAGE), ("layout", None, b"coco17"), ("boxes", None, b"[[2,3,30,38]]")
    )
    answer = client.post("/v1/pose", body, headers=headers)
    assert answer.status == 422  # the tiny model has other keypoints
    body, headers = form(("photo", "my photo.jpg", IMAGE), ("boxes", None, b"[[2,3,30,38]]"))
    answer = client.post("/v1/pose", body, headers=headers)
    assert answer.json["source"] == "my photo.jpg"
    assert answer.json["people"]["boxes_xyxy"] == [[2, 3, 30, 38]]
    cutout = client.post("/v1/matting", IMAGE, headers={"Accept": "image/webp"})  # an alias
    assert cutout.headers["content-type"] == "image/webp"
    assert opened(cutout.body).shape == (*SIZE, 4)
    drawn = client.post("/v1/matte", IMAGE, over="#ff0000", **{"as": "plot"})
    assert opened(drawn.body).shape == (*SIZE, 3)


def test_headers(client: Client) -> None:
    answer = client.get("/v1/models")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in client.get("/v1/models", headers={"Origin": "http://a.example"}).headers
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "subject"),
    [
        ("POST", "/v1/pose", b"no image at all", {}, 415, "image"),
        ("POST", "/v1/pose", IMAGE[:200], {}, 415, "image"),
        ("POST", "/v1/pose", IMAGE[:-100], {}, 415, "image"),
        ("POST", "/v1/pose", png()[:-30], {}, 415, "image"),
        ("POST", "/v1/images", png()[:-30], {}, 415, "image"),
        ("POST", "/v1/pose", b"", {}, 422, "image"),
        ("POST", "/v1/pose?color=1", IMAGE, {}, 422, "color"),
        ("POST", "/v1/pose?boxes=[[99,99,120,120]]", IMAGE, {}, 422, "boxes[0]"),
        ("POST", "/v1/pose?detect=whole&boxes=[[1,1,9,9]]", IMAGE, {}, 422, "boxes"),
        ("POST", "/v1/normals?tile=32&boxes=[[1,1,9,9]]", IMAGE, {}, 422, "tile"),
        ("POST", "/v1/pointmap?fov=60&intrinsics=[9,9,1,1]", IMAGE, {}, 422, "intrinsics and fov"),
        ("POST", "/v1/pointmap?intrinsics=[0,9,1,1]", IMAGE, {}, 422, "intrinsics"),
        ("POST", "/v1/segment", IMAGE, {}, 422, "prompts"),
        ("POST", "/v1/segment?points=[99,99]", IMAGE, {}, 422, None),
        ("POST", "/v1/pose?url=http://127.0.0.1/a.jpg", b"", {}, 403, "url"),
        ("POST", "/v1/pose", b"[1]", {"Content-Type": "application/json"}, 400, "body"),
        ("POST", "/v1/pose", b'{"as": 5}', {"Content-Type": "application/json"}, 406, "as"),
        ("POST", "/v1/pose", b'{"as": {}}', {"Content-Type": "application/json"}, 406, "as"),
        ("POST", "/v1/pose", b"x", {"Content-Type": "multipart/form-data"}, 400, "form"),
        ("POST", "/v1/pose", CUT_FORM[0], CUT_FORM[1], 400, "form"),
        ("POST", "/v1/jobs?task=embed", CUT_FORM[0], CUT_FORM[1], 400, "form"),
        ("POST", "/v1/pose", IMAGE, {"Accept": "text/html"}, 406, "Accept"),
        ("POST", "/v1/pose?as=exr", IMAGE, {}, 406, "as"),
        ("POST", "/v1/nothing", IMAGE, {}, 404, "task"),
        ("POST", "/v1/people", IMAGE, {}, 404, "task"),
        ("POST", "/v1/track", IMAGE, {}, 404, "task"),
        ("GET", "/v1/pose", None, {}, 405, "request"),
        ("GET", "/nothing", None, {}, 404, "request"),
        ("GET", "/v1/images/AAAAAAAAAAAAAAAAAAAAAA", None, {}, 404, "image"),
        ("GET", "/v1/jobs/AAAAAAAAAAAAAAAAAAAAAA", None, {}, 404, "job"),
        ("GET", "/v1/jobs/../../etc/passwd", None, {}, 404, "request"),
        ("POST", "/v1/jobs", IMAGE, {}, 422, "task"),
        ("POST", "/v1/jobs?task=pose", b"", {}, 422, "files"),
        ("POST", "/v1/jobs?task=pose&save=foo", IMAGE, {}, 422, "save"),
        ("POST", "/v1/jobs?task=pose&save=mp4,webm", IMAGE, {}, 422, "save"),
        ("POST", "/v1/jobs?task=pose&detect=whole&boxes=[[1,1,9,9]]", IMAGE, {}, 422, "boxes"),
        ("POST", "/v1/jobs?task=segment", IMAGE, {}, 422, "prompts"),
        ("POST", "/v1/jobs?task=segment&points=[5,5]&labels=[[1],[0]]", IMAGE, {}, 422, "labels"),
        ("POST", "/v1/jobs?task=pointmap&intrinsics=[0,9,1,1]", IMAGE, {}, 422, "intrinsics"),
        ("POST", "/v1/jobs?task=pose&name=a.exe", b"MZ", {}, 415, "a.exe"),
        ("POST", "/v1/jobs?task=pose&name=a.mp4", b"no video", {}, 415, "a.mp4"),
        ("POST", "/v1/jobs?task=pose&name=a.zip", b"PK\x03\x04 no archive", {}, 415, "archive"),
        ("POST", "/v1/jobs?task=pose&name=a.zip", damaged_archive(zipfile.ZIP_DEFLATED), {}, 415, "archive"),
        ("POST", "/v1/jobs?task=pose&name=a.zip", damaged_archive(zipfile.ZIP_BZIP2), {}, 415, "archive"),
        ("POST", "/v1/jobs?task=pose&name=a.zip", damaged_archive(zipfile.ZIP_LZMA), {}, 415, "archive"),
        ("POST", "/v1/jobs?task=track&name=a.mp4", b"x", {}, 415, "a.mp4"),
        ("POST", "/v1/pose", IMAGE, {"Origin": "http://evil.example"}, 403, "Origin"),
        ("POST", "/v1/pose", IMAGE, {"Origin": "http://["}, 403, "Origin"),
        ("GET", "/v1/models", None, {"Host": "evil.example"}, 421, "Host"),
        ("GET", "/v1/models", None, {"Host": "["}, 421, "Host"),
    ],
)
def test_errors_have_the_right_status_and_parts(
    client: Client, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int, subject: str
) -> None:
    with_query = path.replace("[", "%5B").replace("]", "%5D")
    connection = client.connect()
    connection.request(method, with_query, body, headers)
    answer = connection.getresponse()
    error = json.loads(answer.read())["error"]
    connection.close()
    assert answer.status == status, error
    assert set(error) == {"message", "subject", "expected", "got", "hint"}
    assert all(error[part] for part in ("message", "expected", "got"))
    assert subject is None or error["subject"] == subject


def test_requests_at_the_same_time_share_batches(client: Client) -> None:
    batches = client.metric("vitruvian_batch_size_count")
    images = client.metric("vitruvian_batch_size_sum")
    bodies = [b"broken" if number % 4 == 3 else jpeg(number) for number in range(24)]
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda body: client.post("/v1/embed", body), bodies))
    assert [answer.status for answer in answers] == [415 if body == b"broken" else 200 for body in bodies]
    alone = [client.post("/v1/embed", body).json["cls"] for body in bodies[:3]]
    for answer, expected in zip(answers, alone, strict=False):
        np.testing.assert_allclose(answer.json["cls"], expected, atol=1e-4)
    assert client.metric("vitruvian_batch_size_sum") - images == 18 + 3
    assert client.metric("vitruvian_batch_size_count") - batches < 18  # fewer batches than images


def test_metrics(client: Client) -> None:
    assert client.post("/v1/embed", IMAGE).status == 200
    text = client.get("/metrics").body.decode()
    for name in (
        "vitruvian_requests_total",
        "vitruvian_queue_length",
        "vitruvian_stage_seconds_bucket",
        "process_resident_memory_bytes",
    ):
        assert name in text


# ------------------------------------------------------------------------------------------------ stored images


def test_a_click_on_a_stored_image(client: Client) -> None:
    stored = client.post("/v1/images", IMAGE, name="a.jpg")
    assert stored.status == 201
    info = stored.json
    assert (info["name"], info["size_hw"]) == ("a.jpg", SIZE)
    wait(lambda: client.get(f"/v1/images/{info['id']}").json["embedded"])
    encoded = client.metric("vitruvian_batch_size_sum")
    prompts = {"points": [[[9, 7], [20, 20]], [[3, 3]]], "labels": [[1, 0], [1]]}
    click = client.post(f"/v1/images/{info['id']}/segment", prompts)
    assert client.metric("vitruvian_batch_size_sum") == encoded  # no image was encoded
    assert click.json == client.post("/v1/segment", IMAGE, name="a.jpg", **prompts).json
    assert decode_rle(click.json["objects"][0]["rle"]).shape == tuple(SIZE)
    drawn = client.post(f"/v1/images/{info['id']}/segment", prompts, headers={"Accept": "image/png;kind=plot"})
    assert drawn.body == client.post("/v1/segment", IMAGE, **prompts, **{"as": "plot"}).body
    pose = client.post(f"/v1/images/{info['id']}/pose")
    assert pose.json == client.post("/v1/pose", IMAGE, name="a.jpg").json
    wrong = client.post(f"/v1/images/{info['id']}/segment", {"points": [99, 99]})
    assert wrong.status == 422
    assert client.delete(f"/v1/images/{info['id']}").status == 204
    assert client.post(f"/v1/images/{info['id']}/segment", prompts).status == 404


# ------------------------------------------------------------------------------------------------ jobs


def test_an_archive_of_images(client: Client) -> None:
    files = {
        "x/../../my beach.jpg": jpeg(1),
        "y/my beach.png": jpeg(2),
        "bad.jpg": b"no image",
        "notes.txt": b"",
        ".hidden.jpg": IMAGE,
    }
    created = client.post("/v1/jobs", archive(files), task="embed", name="a.zip", save="json,npz")
    assert created.status == 201
    assert created.json["sources"] == ["my beach.jpg", "my beach.png", "bad.jpg"]
    job = client.wait_for_job(created.json["id"])
    assert (job["state"], job["done"], job["failed"], job["progress"]) == ("done", 2, 1, 1.0)
    assert job["failures"][0].startswith("bad.jpg: expected an image")
    names = [
        "my beach_0001_embed.json",
        "my beach_0001_embed.npz",
        "my beach_0002_embed.json",
        "my beach_0002_embed.npz",
    ]
    assert sorted(file["name"] for file in job["files"]) == names
    for file in job["files"]:
        answer = client.get(file["href"])
        assert (len(answer.body), answer.headers["content-type"]) == (file["bytes"], file["media_type"])
    assert client.get(job["files"][0]["href"]).json["source"] == "my beach.jpg"
    with zipfile.ZipFile(io.BytesIO(client.get(f"/v1/jobs/{job['id']}/archive").body)) as results:
        assert sorted(results.namelist()) == names
        assert results.testzip() is None
    for name in ("../input/0001.jpg", ".vitruvian.jsonl", "../../../jobs.sqlite", "/etc/passwd"):
        assert client.get(f"/v1/jobs/{job['id']}/files/{name}").status == 404
    listed = next(one for one in client.get("/v1/jobs").json["jobs"] if one["id"] == job["id"])
    assert listed == {name: value for name, value in job.items() if name != "files"}
    assert listed["file_count"] == len(names)
    assert client.post(f"/v1/jobs/{job['id']}/cancel").status == 409
    assert client.delete(f"/v1/jobs/{job['id']}").status == 204
    assert client.get(f"/v1/jobs/{job['id']}").status == 404


def test_a_video_is_tracked_with_events(client: Client, tmp_path: Path) -> None:
    scene = sample_image(4, (48, 64))
    make_clip(tmp_path / "clip.mp4", [np.roll(scene, number, 1) for number in range(12)], rate=25)
    prompts = [{"object_id": 3, "points": [[22, 12]]}, {"object_id": 5, "frame": 2, "box": [4, 6, 40, 30]}]
    created = client.post(
        "/v1/jobs", (tmp_path / "clip.mp4").read_bytes(), task="track", name="clip.mp4", prompts=prompts
    )
    assert created.status == 201, created.body
    events = client.get(f"/v1/jobs/{created.json['id']}/events")
    assert events.headers["content-type"].startswith("text/event-stream")
    jobs = [json.loads(line[6:]) for line in events.body.decode().splitlines() if line.startswith("data: ")]
    assert jobs[-1]["state"] == "done", jobs[-1]
    assert [file["name"] for file in jobs[-1]["files"]] == ["clip_track.jsonl", "clip_track.mp4"]
    progress = [job["progress"] for job in jobs]
    assert progress == sorted(progress)
    lines = client.get(jobs[-1]["files"][0]["href"]).body.decode().splitlines()
    assert [{one["id"] for one in json.loads(line)["objects"]} for line in lines] == [{3}] * 2 + [{3, 5}] * 10
    part = client.get(jobs[-1]["files"][1]["href"], headers={"Range": "bytes=4-7"})
    assert (part.status, part.body) == (206, b"ftyp")


def test_a_video_is_prompted_frame_by_frame_and_tracked(client: Client, data: Path, tmp_path: Path) -> None:
    scene = sample_image(4, (48, 64))
    make_clip(tmp_path / "clip.mp4", [np.roll(scene, number, 1) for number in range(12)], rate=25)
    stored = client.post("/v1/videos", (tmp_path / "clip.mp4").read_bytes(), name="my clip.mp4")
    assert stored.status == 201, stored.body
    video, path = stored.json, f"/v1/videos/{stored.json['id']}"
    assert (video["name"], video["size_hw"], video["frames"], video["rate"]) == ("my clip.mp4", [48, 64], 12, 25)

    frame = client.get(f"{path}/frames/2")
    assert frame.headers["content-type"] == "image/jpeg"
    assert np.abs(opened(frame.body).astype(int) - np.roll(scene, 2, 1)).mean() < 25
    assert client.get(f"{path}/frames/99").error["subject"] == "frame"

    marked = client.post(f"{path}/prompts", {"object_id": 3, "frame": 2, "points": [[22, 12]]})
    assert marked.status == 200, marked.body
    assert marked.json["objects"] == client.post("/v1/segment", frame.body, points=[22, 12]).json["objects"]
    encoded = client.metric("vitruvian_batch_size_sum")
    prompt = {"object_id": 3, "frame": 2, "points": [[22, 12], [40, 30]], "labels": [1, 0]}
    assert client.post(f"{path}/prompts", prompt).status == 200
    assert opened(client.post(f"{path}/prompts", prompt, **{"as": "plot"}).body).shape[:2] == (48, 64)
    assert client.post(f"{path}/prompts", {"object_id": 5, "box": [4, 6, 40, 30]}).status == 200
    assert client.metric("vitruvian_batch_size_sum") == encoded + 1  # the second frame, once
    assert [(one["frame"], one["object_id"]) for one in client.get(path).json["prompts"]] == [(0, 5), (2, 3)]
    for wrong in ({"object_id": 1}, {"object_id": 1, "points": [[99, 99]]}, {"object_id": 1, "color": 3}):
        assert client.post(f"{path}/prompts", wrong).status == 422
    assert len(client("DELETE", f"{path}/prompts", object_id=5).json["prompts"]) == 1

    job = client.post(f"{path}/track", {"save": "json"})
    assert job.status == 201, job.body
    assert client.delete(path).status == 204  # the job has the file
    assert client.post(f"{path}/track").status == 404
    assert not list((data / "videos").iterdir())
    ended = client.wait_for_job(job.json["id"])
    assert (ended["state"], ended["sources"]) == ("done", ["my clip.mp4"]), ended
    lines = client.get(ended["files"][0]["href"]).body.decode().splitlines()
    assert [{one["id"] for one in json.loads(line)["objects"]} for line in lines] == [set()] * 2 + [{3}] * 10
    assert {json.loads(line)["source"] for line in lines} == {"my clip.mp4"}
    assert client.post("/v1/videos", IMAGE, name="a.jpg").status == 415


def test_jobs_that_are_cancelled_and_deleted(client: Client, server: ServerProcess) -> None:
    many = archive({f"{number}.jpg": jpeg(number) for number in range(300)})
    running = client.post("/v1/jobs", many, task="normals", name="a.zip").json["id"]
    waiting = client.post("/v1/jobs", IMAGE, task="pose", name="b.jpg").json["id"]
    assert client.get(f"/v1/jobs/{waiting}").json["state"] == "queued"
    client.wait_for_job(running, ("running",))
    assert client.post(f"/v1/jobs/{running}/cancel").json["state"] == "cancelled"
    assert client.wait_for_job(waiting)["state"] == "done"
    assert client.get(f"/v1/jobs/{running}").json["state"] == "cancelled"
    busy = client.post("/v1/jobs", many, task="normals", name="a.zip").json["id"]
    client.wait_for_job(busy, ("running",))
    for job in (running, waiting, busy):
        assert client.delete(f"/v1/jobs/{job}").status == 204
    assert client.get("/v1/jobs").json["jobs"] == [
        job for job in client.get("/v1/jobs").json["jobs"] if job["id"] not in (running, waiting, busy)
    ]


def test_a_client_that_hangs_up_blocks_neither_the_model_nor_the_shutdown(tmp_path: Path) -> None:
    large = jpeg(size_hw=(1000, 1000))  # 3,025 tiles, minutes of work
    models = ["--model=normals=builtin", "--model=albedo=builtin"]
    server = ServerProcess(*models, "--data", tmp_path, "--limit", "request_tiles=10000", cwd=tmp_path)
    client = server.client

    def hang_up_while_it_runs() -> None:
        before = client.metric("vitruvian_batch_size_count")
        connection = client.connect()
        connection.request("POST", "/v1/normals?tile=24", large)
        wait(lambda: client.metric("vitruvian_batch_size_count") > before + 2)
        connection.close()

    hang_up_while_it_runs()
    assert client.post("/v1/normals", IMAGE, detect="whole").status == 200
    hang_up_while_it_runs()
    assert server.stop() == 0


def test_tiles_of_a_request_are_limited(tmp_path: Path) -> None:
    server = ServerProcess("--model=normals=builtin", "--data", tmp_path, cwd=tmp_path)
    answer = server.client.post("/v1/normals", jpeg(size_hw=(200, 200)), tile=24, overlap=0)
    assert (answer.status, answer.error["subject"], answer.error["expected"]) == (413, "tile", "at most 64 tiles")
    assert server.client.post("/v1/normals", jpeg(size_hw=(40, 40)), tile=24).status == 200
    assert server.stop() == 0


def test_a_client_that_hangs_up_is_counted_and_forgotten(client: Client) -> None:
    def hang_up(number: int) -> None:
        connection = client.connect()
        connection.putrequest("POST", "/v1/embed")
        connection.putheader("Content-Length", str(len(IMAGE)))
        connection.endheaders(IMAGE[:100] if number % 2 else IMAGE)
        connection.close()

    threads = [threading.Thread(target=hang_up, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.post("/v1/embed", IMAGE).status == 200
    assert client.metric("vitruvian_pending_bytes") == 0
