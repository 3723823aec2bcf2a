"""The server as deployments of Ray Serve: replicas, state that one replica holds, an update without failed requests."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.pipelines import parts_of, sample_image
from tests.integration.cli_case import save_images
from tests.integration.ray_cluster import free_port, start_cluster
from tests.unit.files.clips import make_clip

pytest.importorskip("ray")
pytest.importorskip("ray.serve", exc_type=ImportError)
from ray import serve
from ray.serve.schema import ServeDeploySchema

from vitruvian import pipeline
from vitruvian.filesystem.json_files import json_text
from vitruvian.scale.ray_serve import Scaling, serve_config, start_on_serve
from vitruvian.serving.auth import ApiKey
from vitruvian.serving.settings import ServerLimits, Settings

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def cluster() -> Iterator[None]:
    with start_cluster(num_cpus=3):
        yield
        serve.shutdown()


def settings(root: Path, **changes: Any) -> Settings:
    models = {}
    for task in ("pose", "segment"):
        models[task] = str(root / task)
        if not (root / task).exists():
            model, processor = parts_of(task)
            model.save_pretrained(root / task)
            processor.save_pretrained(root / task)
    return Settings(models=models, data=root / "data", device="cpu", **changes)


def test_the_configuration_is_one_of_ray_serve(tmp_path: Path) -> None:
    keys = (ApiKey("someone", "0" * 64),)
    given = settings(
        tmp_path, host="0.0.0.0", keys=keys, limits=ServerLimits(queue=9), cors_origins=("https://a.example",)
    )
    config = serve_config(given, Scaling(min_replicas=1, max_replicas=4, gpus=0.5))
    schema = ServeDeploySchema.model_validate(json.loads(json.dumps(config)))
    assert [one.route_prefix for one in schema.applications] == ["/", "/v1/images", "/v1/videos", "/v1/jobs"]
    tasks = config["applications"][0]
    assert tasks["args"]["settings"]["limits"] == {"queue": 9}
    assert tasks["deployments"][0]["autoscaling_config"] == {
        "min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 8.0
    }  # fmt: skip
    assert [one["deployments"][0].get("num_replicas") for one in config["applications"]] == [None, 1, 1, 1]


def test_replicas_state_and_an_update(cluster: None, tmp_path: Path) -> None:
    port = free_port()
    (image,) = save_images(tmp_path / "in", 1)

    def call(path: str, body: bytes | None = None, kind: str = "image/jpeg") -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers={"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    start_on_serve(settings(tmp_path, port=port), Scaling(min_replicas=2, max_replicas=2))
    expected = pipeline("pose", str(tmp_path / "pose"), device="cpu", detect="whole")(str(image)).to_dict()
    answer = call("/v1/pose?detect=whole", image.read_bytes())
    assert answer | {"source": ""} == json.loads(json_text(expected)) | {"source": ""}
    stored = call("/v1/images", image.read_bytes())["id"]
    for _ in range(4):  # each reaches the replica that has the image
        prompt = json.dumps({"points": [[9, 7]]}).encode()
        assert call(f"/v1/images/{stored}/segment", prompt, "application/json")["task"] == "segment"
    make_clip(tmp_path / "clip.mp4", [sample_image(number, (48, 64)) for number in range(3)])
    video = call("/v1/videos?name=clip.mp4", (tmp_path / "clip.mp4").read_bytes(), "video/mp4")["id"]
    prompt = json.dumps({"frame": 1, "object_id": 1, "points": [[9, 7]]}).encode()
    assert call(f"/v1/videos/{video}/prompts", prompt, "application/json")["task"] == "segment"
    assert [one["frame"] for one in call(f"/v1/videos/{video}")["prompts"]] == [1]
    with pytest.raises(urllib.error.HTTPError, match="422"):
        call(f"/v1/videos/{video}/pose", b'{"no_such_option": 1}', "application/json")
    options = json.dumps({"detect": "whole", "save": "json"}).encode()
    of_video = call(f"/v1/videos/{video}/pose", options, "application/json")  # a job of another replica
    while (state := call(f"/v1/jobs/{of_video['id']}"))["state"] in ("queued", "running"):
        time.sleep(0.2)
    assert (state["state"], state["sources"]) == ("done", ["clip.mp4"])
    assert [file["name"] for file in state["files"]] == ["clip_pose.jsonl"]
    job = call("/v1/jobs?task=pose&detect=whole&name=a.jpg", image.read_bytes())
    assert [one["id"] for one in call("/v1/jobs")["jobs"]] == [job["id"], of_video["id"]]

    failures: list[Exception] = []
    answered, updated = 0, threading.Event()

    def ask() -> None:
        nonlocal answered
        while not updated.is_set():
            try:
                call("/v1/pose?detect=whole", image.read_bytes())
                answered += 1
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    start_on_serve(settings(tmp_path, port=port, limits=ServerLimits(queue=9)), Scaling(min_replicas=2, max_replicas=2))
    updated.set()
    thread.join()
    assert not failures
    assert answered
    assert call("/v1/models")["limits"]["queue"] == 9
    assert [one["id"] for one in call("/v1/jobs")["jobs"]] == [job["id"], of_video["id"]]  # on the disk
