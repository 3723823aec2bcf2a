"""Limits, deadlines, keys and owners, on a server in this process."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

from tests.helpers.pipelines import parts_of, sample_image
from tests.helpers.server import Client, archive, form, jpeg, local_server, wait
from tests.unit.files.clips import make_clip
from vitruvian.hub import BUILTIN
from vitruvian.limits import use_limits
from vitruvian.pipelines.people.sapiens2_detector import Sapiens2Detector
from vitruvian.pipelines.tasks.embed import EmbedPipeline
from vitruvian.pipelines.tasks.segment import SegmentPipeline
from vitruvian.serving import jobs
from vitruvian.serving.auth import add_key, read_keys
from vitruvian.serving.errors import status_of
from vitruvian.serving.jobs import Job, JobTable
from vitruvian.serving.metrics import Metrics
from vitruvian.serving.model_queue import FairLock, ModelQueue
from vitruvian.serving.routes.shared import file_response
from vitruvian.serving.service import Service
from vitruvian.serving.settings import ServerLimits, Settings
from vitruvian.serving.upload_folder import UploadFolder

IMAGE = jpeg()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    for task in ("embed", "segment"):
        model, processor = parts_of(task)
        model.save_pretrained(root / task)
        processor.save_pretrained(root / task)
    return {task: str(root / task) for task in ("embed", "segment")}


@contextlib.contextmanager
def serve(
    models: dict[str, str], data: Path, *, limits: dict[str, int] | None = None, **options: Any
) -> Iterator[tuple[Client, Service]]:
    settings = Settings(models=models, data=data, limits=ServerLimits(**limits or {}), **options)
    with local_server(settings) as served:
        yield served


class Gate:
    """Holds the model until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        forward = EmbedPipeline.forward

        def wait_and_forward(pipe: EmbedPipeline, units: list[Any]) -> list[Any]:
            self.reached.set()
            assert self.opened.wait(60)
            return forward(pipe, units)

        monkeypatch.setattr(EmbedPipeline, "forward", wait_and_forward)


def test_limits_of_uploads(models: dict[str, str], tmp_path: Path) -> None:
    limits = {"upload_bytes": 5000, "prompts": 2, "upload_seconds": 1}
    with serve(models, tmp_path, limits=limits) as (client, service), use_limits(image_pixels=3000):
        large = b"\xff\xd8" + bytes(5000)
        for body, headers in ((large, {}), form(("image", "a.jpg", large)), (iter([large[:4000], large]), {})):
            answer = client.post("/v1/embed", body, headers=headers)  # type: ignore[arg-type]
            assert (answer.status, answer.error["expected"]) == (413, "at most 5,000 bytes")
        answer = client.post("/v1/embed", jpeg(size_hw=(60, 60)))
        assert (answer.status, answer.error["expected"]) == (413, "at most 3,000 pixels")
        advice = "Send less, or ask for a higher limit."  # clients cannot raise it
        assert answer.error["hint"] == advice
        expected = f"image: expected at most 3,000 pixels, got 60×60 = 3,600. {advice}"
        assert answer.error["message"] == expected
        answer = client.post("/v1/segment", IMAGE, points=[[1, 1], [2, 2], [3, 3]])
        assert (answer.status, answer.error["got"]) == (413, "3")
        connection = client.connect()
        connection.putrequest("POST", "/v1/embed")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"slow")
        assert connection.getresponse().status == 408
        connection.close()
        assert service.uploads.pending_bytes == 0


def test_a_busy_server_is_not_taken_for_a_dead_one(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with serve(models, tmp_path, limits={"requests": 1}) as (client, _), ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/v1/embed", IMAGE)
        assert gate.reached.wait(60)
        assert client.post("/v1/embed", IMAGE).status == 429
        assert [client.get(path).status for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
        gate.opened.set()
        assert first.result().status == 200


def test_heads_options_and_paths(models: dict[str, str], tmp_path: Path) -> None:
    with serve(models, tmp_path, job_workers=0) as (client, _):
        for path in ("/", "/healthz", "/metrics", "/v1/models", "/web/main.js", "/openapi.json"):
            head, whole = client("HEAD", path), client.get(path)
            assert (head.status, head.body) == (200, b"")
            assert head.headers["content-type"] == whole.headers["content-type"]
        job = client.post("/v1/jobs", IMAGE, task="embed").json["id"]
        assert client("HEAD", f"/v1/jobs/{job}/events").status == 200  # it does not wait for the end of the job
        assert client("HEAD", f"/v1/jobs/{job}/archive").status == 200
        options = client("OPTIONS", "/v1/jobs")
        assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
        assert client("PUT", "/v1/jobs").headers["allow"] == "GET, HEAD, OPTIONS, POST"
        assert client.get("/v1/models/").status == 404  # no redirect to what Host says


def test_values_in_paths_have_the_same_form_of_errors(models: dict[str, str], tmp_path: Path) -> None:
    with serve(models, tmp_path) as (client, _):
        for method, path, status, subject in (
            ("GET", "/v1/jobs/nothing", 404, "job_id"),
            ("GET", f"/v1/videos/{'A' * 22}/frames/x", 404, "frame"),
            ("DELETE", f"/v1/videos/{'A' * 22}/prompts?object_id=x", 422, "object_id"),
        ):
            with contextlib.closing(client.connect()) as connection:
                connection.request(method, path)
                answer = connection.getresponse()
                error = json.loads(answer.read())["error"]
                assert (answer.status, error["subject"]) == (status, subject)
                assert error["expected"]


@pytest.mark.parametrize(
    ("values", "subject", "expected"),
    [
        ({"points": "[999,1]"}, "points", "x in 0…56 and y in 0…40 for image 0"),
        ({"points": "[1,2,3]"}, "points[0][0]", "at most 2 items"),
        ({"points": "[5,5]", "labels": "[[1],[0]]"}, "labels", "one for each point, nested alike"),
        ({"points": "[]"}, "points", "at least 1 item"),
        ({"points": "[[]]"}, "points[0]", "at least 1 item"),
        ({"boxes": "[]"}, "boxes", "at least 1 item"),
        ({"labels": "[1]"}, "prompts", "points or boxes"),
        ({"points": "[5,5]", "boxes": "[[1,1,9,9],[2,2,9,9]]"}, "prompts", "as many objects in each"),
        ({"max_hole_area": "x"}, "max_hole_area", "a valid number"),
    ],
)
def test_errors_name_the_options_of_clients(
    models: dict[str, str], tmp_path: Path, values: dict[str, str], subject: str, expected: str | None
) -> None:
    with serve(models, tmp_path) as (client, _):
        error = client.post("/v1/segment", IMAGE, **values).error
        assert (error["subject"], error["expected"]) == (subject, expected)
        assert error["got"]
        assert error["message"].startswith(f"{subject}: ")
        assert "input_" not in str(error)  # what processors call them


def test_people_of_a_stored_image_are_detected_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detected = []
    detect = Sapiens2Detector.detect

    def counted(self: Sapiens2Detector, image: Any) -> Any:
        detected.append(image.shape)
        return detect(self, image)

    monkeypatch.setattr(Sapiens2Detector, "detect", counted)
    body = (Path(__file__).parents[3] / "examples/grace_hopper.jpg").read_bytes()
    models = {"pose": BUILTIN, "parts": BUILTIN}
    with serve(models, tmp_path) as (client, _):
        image = client.post("/v1/images", body).json["id"]
        with ThreadPoolExecutor() as pool:
            answers = dict(
                zip(models, pool.map(lambda task: client.post(f"/v1/images/{image}/{task}"), models), strict=True)
            )
        assert len(detected) == 1
        assert answers["pose"].json["people"] == client.post("/v1/pose", body).json["people"]
        assert len(detected) == 2
        whole = client.post(f"/v1/images/{image}/pose", {"detect": "whole"}).json["people"]  # by another detector
        assert whole["boxes_xyxy"] != answers["pose"].json["people"]["boxes_xyxy"]
    assert len(detected) == 2


def test_uploads_at_the_same_time_are_within_the_limits(models: dict[str, str], tmp_path: Path) -> None:
    limits = {"queued_jobs": 2, "disk_bytes": 5000}
    with serve(models, tmp_path, limits=limits, job_workers=0) as (client, service):
        uploads = []
        for _ in range(2):
            uploads.append(client.connect())
            uploads[-1].putrequest("POST", "/v1/jobs?task=embed&name=a.jpg")
            uploads[-1].putheader("Content-Length", "4000")
            uploads[-1].endheaders(bytes(2400))
        wait(lambda: service.jobs.nbytes == 4800)
        assert client.post("/v1/jobs", IMAGE, task="embed").status == 429
        uploads[0].send(bytes(1600))
        assert uploads[0].getresponse().status == 507
        for upload in uploads:
            upload.close()
        wait(lambda: service.jobs.nbytes == 0)
        assert not list((tmp_path / "jobs").iterdir())
        assert client.post("/v1/jobs", IMAGE, task="embed").status == 201


def test_an_archive_with_too_many_files_is_refused_before_its_list_is_in_memory(
    models: dict[str, str], tmp_path: Path
) -> None:
    body = archive({f"{number:0>65000}.txt": b"" for number in range(260)})
    with serve(models, tmp_path) as (client, _):
        answer = client.post("/v1/jobs", body, task="embed", name="a.zip")
        assert (answer.status, answer.error["subject"]) == (413, "archive")


def test_forms_need_no_temporary_files_of_the_system(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = IMAGE + bytes(3 << 20)
    body, headers = form(("image", "a.jpg", large))
    with serve(models, tmp_path, job_workers=0) as (client, service):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
        assert client.post("/v1/embed", body, headers=headers).status == 200
        assert client.post("/v1/jobs", body, headers=headers, task="embed").status == 201
        assert service.jobs.nbytes == len(large)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk_is_507(models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def open_file(folder: UploadFolder) -> Iterator[IO[bytes]]:
        folder.folder.mkdir(parents=True)
        with open("/dev/full", "wb") as file:
            yield file

    body, headers = form(("image", "a.jpg", IMAGE))
    with serve(models, tmp_path, job_workers=0) as (client, _):
        monkeypatch.setattr(UploadFolder, "open_file", open_file)
        for answer in (
            client.post("/v1/jobs", body, headers=headers, task="embed"),
            client.post("/v1/jobs", IMAGE, task="embed", name="a.jpg"),
            client.post("/v1/videos", IMAGE, name="a.mp4"),
        ):
            assert (answer.status, answer.error["subject"]) == (507, "disk")
        assert not list((tmp_path / "jobs").iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_disk_that_is_full_while_an_archive_is_unpacked_is_no_damaged_archive(tmp_path: Path) -> None:
    folder = UploadFolder("a", tmp_path, ServerLimits(), lambda _: None)
    with folder.open_file() as file:
        file.write(archive({"a.jpg": IMAGE}))
    (tmp_path / "entry").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        folder.add_upload("a.zip", "")
    assert status_of(caught.value) == 507


def test_a_full_queue_and_pending_bytes(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with serve(models, tmp_path, limits={"queue": 2, "pending_bytes": 40 * len(IMAGE)}) as (client, _):
        with ThreadPoolExecutor(64) as pool:
            answers = [pool.submit(client.post, "/v1/embed", IMAGE) for _ in range(60)]
            wait(lambda: sum(answer.done() for answer in answers) > 20)
            gate.opened.set()
        statuses = [answer.result().status for answer in answers]
        assert set(statuses) == {200, 429}
        refused = next(answer.result() for answer in answers if answer.result().status == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.error["subject"] in ("queue", "uploads")
        assert client.post("/v1/embed", IMAGE).status == 200


def test_a_request_has_a_deadline(models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with serve(models, tmp_path, limits={"request_seconds": 1}) as (client, service):
        answer = client.post("/v1/embed", IMAGE)
        assert (answer.status, answer.error["expected"]) == (504, "an answer within 1 seconds")
        gate.opened.set()
        assert client.post("/v1/embed", IMAGE).status == 200
        assert service.uploads.pending_bytes == 0


def test_a_client_that_hangs_up_cancels_its_request(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with serve(models, tmp_path) as (client, service):
        queue = service.queues["embed"]
        connections = [client.connect() for _ in range(30)]
        for connection in connections:
            connection.request("POST", "/v1/embed", IMAGE)
        assert gate.reached.wait(60)
        wait(lambda: len(queue) > 0)
        for connection in connections:
            connection.close()
        wait(lambda: service.uploads.pending_bytes == 0)
        queue.check_space()  # drops what is cancelled
        assert len(queue) == 0
        gate.opened.set()
        assert client.post("/v1/embed", IMAGE).status == 200
        assert client.metric("vitruvian_requests_total") >= 30


def test_keys_and_owners(models: dict[str, str], tmp_path: Path) -> None:
    alice, bob = add_key(tmp_path / "keys", "alice"), add_key(tmp_path / "keys", "bob")
    with serve(models, tmp_path / "data", keys=read_keys(tmp_path / "keys"), host="0.0.0.0") as (client, _):
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/jobs"):
            answer = client.get(path)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert client.get("/healthz").status == client.get("/readyz").status == 200
        assert client.post("/v1/embed", IMAGE, headers={"Authorization": "Bearer wrong"}).status == 401
        first = Client(client.address, {"Authorization": f"Bearer {alice}"})
        second = Client(client.address, {"X-API-Key": bob, "Host": "example.com"})
        assert first.post("/v1/embed", IMAGE).status == second.post("/v1/embed", IMAGE).status == 200
        image = first.post("/v1/images", IMAGE).json["id"]
        job = first.post("/v1/jobs", IMAGE, task="embed", name="a.jpg").json["id"]
        for path in (f"/v1/images/{image}", f"/v1/jobs/{job}", f"/v1/jobs/{job}/archive", f"/v1/jobs/{job}/events"):
            assert (first.get(path).status, second.get(path).status) == (200, 404)
        assert second.delete(f"/v1/jobs/{job}").status == 404
        assert [len(one.get("/v1/jobs").json["jobs"]) for one in (first, second)] == [1, 0]


def test_stored_images_expire_and_are_evicted(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(models, tmp_path, limits={"images": 2, "image_seconds": 100}) as (client, service):
        ids = [client.post("/v1/images", jpeg(number)).json["id"] for number in range(2)]
        assert client.get(f"/v1/images/{ids[0]}").status == 200  # used last
        ids.append(client.post("/v1/images", jpeg(2)).json["id"])
        assert [client.get(f"/v1/images/{one}").status for one in ids] == [200, 404, 200]
        for image in service.images._items.values():
            image.expires = time.monotonic() - 1
        assert client.get(f"/v1/images/{ids[2]}").status == 404
        assert len(service.images) == service.images.nbytes == 0
    with serve(models, tmp_path / "small", limits={"stored_bytes": 100}) as (client, _):
        assert client.post("/v1/images", IMAGE).status == 413


class SegmentGate:
    """Holds the image encoder of `segment` until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.calls = threading.Event(), 0
        encode = SegmentPipeline.encode

        def wait_and_encode(pipe: SegmentPipeline, inputs: Any) -> Any:
            self.calls += 1
            assert self.opened.wait(60)
            return encode(pipe, inputs)

        monkeypatch.setattr(SegmentPipeline, "encode", wait_and_encode)


def test_a_busy_segment_model_delays_clicks_only(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SegmentGate(monkeypatch)
    with serve(models, tmp_path, limits={"queue": 3}) as (client, service), ThreadPoolExecutor(4) as pool:
        image, *_ = [client.post("/v1/images", jpeg(number)) for number in range(20)]  # more than the queue takes
        assert image.status == 201
        assert image.json["embedded"] is False
        path = f"/v1/images/{image.json['id']}"
        clicks = [pool.submit(client.post, f"{path}/segment", {"points": [9, 7]}) for _ in range(3)]
        gate.opened.set()
        answers = [click.result() for click in clicks]
        assert [answer.status for answer in answers] == [200] * 3
        assert len({answer.body for answer in answers}) == 1
        assert client.get(path).json["embedded"]
        wait(lambda: not service._embedding_tasks)  # of the other images
        calls = gate.calls
        assert client.post(f"{path}/segment", {"points": [20, 20]}).status == 200
        assert gate.calls == calls


def test_a_segment_model_that_loads_delays_clicks_only(models: dict[str, str], tmp_path: Path) -> None:
    with serve(models, tmp_path) as (client, service):
        loaded, name = service.queues["segment"], "segment"
        service.queues[name] = ModelQueue(  # not started
            name, lambda: loaded.pipe, size=3, lock=FairLock(), metrics=Metrics(), batch_size=1, on_failure=print
        )
        image = client.post("/v1/images", IMAGE)
        assert image.status == 201
        path = f"/v1/images/{image.json['id']}"
        assert client.post(f"{path}/embed").status == 200
        assert client.post(f"{path}/segment", {"points": [9, 7]}).status == 503
        service.queues[name] = loaded
        assert client.post(f"{path}/segment", {"points": [9, 7]}).status == 200


def test_images_removed_before_they_are_encoded(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SegmentGate(monkeypatch)
    with serve(models, tmp_path) as (client, service), ThreadPoolExecutor(1) as pool:
        ids = [client.post("/v1/images", jpeg(number)).json["id"] for number in range(12)]
        wait(lambda: gate.calls == 1)
        click = pool.submit(client.post, f"/v1/images/{ids[-1]}/segment", {"points": [9, 7]})
        wait(lambda: service._short_tasks_waiting == 0)
        assert [client.delete(f"/v1/images/{one}").status for one in ids] == [204] * 12
        assert click.result().status == 404
        gate.opened.set()
        assert client.post("/v1/segment", IMAGE, points=[9, 7]).status == 200
        assert (gate.calls, service.images.nbytes) == (2, 0)


def test_embeddings_count_for_the_limit_of_stored_bytes(models: dict[str, str], tmp_path: Path) -> None:
    def click(client: Client, image: str) -> int:
        return client.post(f"/v1/images/{image}/segment", {"points": [9, 7]}).status

    with serve(models, tmp_path) as (client, service):
        assert click(client, client.post("/v1/images", IMAGE).json["id"]) == 200
        whole = service.images.nbytes
    with serve(models, tmp_path, limits={"stored_bytes": whole + len(IMAGE) + 100}) as (client, service):
        ids = [client.post("/v1/images", IMAGE).json["id"] for _ in range(2)]
        assert click(client, ids[1]) == 200
        assert service.images.nbytes <= whole + len(IMAGE) + 100
    with serve(models, tmp_path, limits={"stored_bytes": 2 * len(IMAGE)}) as (client, service):
        image = client.post("/v1/images", IMAGE).json["id"]
        assert [click(client, image) for _ in range(2)] == [200, 200]  # encoded for each
        assert service.images.nbytes == len(IMAGE)


def test_images_are_stored_without_a_model_for_clicks(models: dict[str, str], tmp_path: Path) -> None:
    with serve({"embed": models["embed"]}, tmp_path) as (client, _):
        info = client.post("/v1/images", IMAGE).json
        assert (info["size_hw"], info["embedded"]) == ([40, 56], False)
        assert client.post(f"/v1/images/{info['id']}/embed").status == 200
        answer = client.post(f"/v1/images/{info['id']}/segment", {"points": [1, 1]})
        assert answer.status == 404
        assert "--model segment=" in answer.error["hint"]
        wrong = client.post("/v1/images", b"no image", name="b.jpg")
        assert (wrong.status, wrong.error["subject"]) == (415, "b.jpg")


def test_addresses_of_this_machine_are_never_fetched(models: dict[str, str], tmp_path: Path) -> None:
    with serve(models, tmp_path, allow_urls=True) as (client, _):
        for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "169.254.169.254", "10.0.0.1", "[::ffff:127.0.0.1]"):
            answer = client.post("/v1/embed", None, url=f"http://{host}:{client.address.rpartition(':')[2]}/healthz")
            assert answer.status == 403, host
            assert "not public" in answer.error["got"]
        for url in ("http://[::ffff:127.0.0.1]/", "http://[::127.0.0.1]/a.jpg", "http://[::1]/"):  # without a port
            answer = client.post("/v1/embed", None, url=url)
            assert (answer.status, answer.error["got"]) == (403, "a host whose address is not public")
        assert client.post("/v1/embed", None, url="file:///etc/passwd").status == 422
        assert client.post("/v1/embed", None, url="/etc/passwd").status == 422


def test_limits_of_jobs(models: dict[str, str], tmp_path: Path) -> None:
    limits = {"job_files": 2, "job_upload_bytes": 4000, "jobs": 1}
    with serve(models, tmp_path, limits=limits) as (client, _):
        bomb = archive({"a.jpg": bytes(1), "b.jpg": bytes(5000)})
        for body, expected in ((bytes(5000), "4,000 bytes"), (bomb, "4,000 bytes")):
            answer = client.post("/v1/jobs", body, task="embed", name="a.zip")
            assert answer.status == 413
            assert expected in answer.error["expected"]
        answer = client.post("/v1/jobs", archive(dict.fromkeys(("a.jpg", "b.jpg", "c.jpg"), b"x")), task="embed")
        assert (answer.status, answer.error["expected"]) == (413, "at most 2 files")
        assert not list((tmp_path / "jobs").iterdir())  # nothing is left of them
        job = client.post("/v1/jobs", IMAGE, task="embed", name="a.jpg").json["id"]
        assert client.post("/v1/jobs", IMAGE, task="embed", name="a.jpg").status == 507
        assert client.wait_for_job(job)["state"] == "done"


def test_limits_of_waiting_jobs_disks_and_frames(models: dict[str, str], tmp_path: Path) -> None:
    make_clip(tmp_path / "clip.mkv", [sample_image(number, (32, 32)) for number in range(4)])
    clip = (tmp_path / "clip.mkv").read_bytes()
    with serve(models, tmp_path, limits={"queued_jobs": 2, "frames": 3}, job_workers=0) as (client, _):
        answer = client.post("/v1/jobs", clip, task="segment", name="clip.mkv")
        assert (answer.status, answer.error["expected"]) == (413, "at most 3 frames")
        assert [client.post("/v1/jobs", IMAGE, task="embed").status for _ in range(3)] == [201, 201, 429]
    with serve(models, tmp_path, limits={"disk_bytes": len(IMAGE), "frames": 4}, job_workers=0) as (client, _):
        assert client.post("/v1/jobs", IMAGE, task="embed").status == 507  # the two jobs of before


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("job_bytes", "job: expected at most 10 bytes with results"),
        ("disk_bytes", "disk: expected at most 10 bytes of jobs"),
    ],
)
def test_a_job_with_too_many_bytes_fails(
    limit: str, message: str, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_SIZE_SECONDS", 0.1)
    with serve(models, tmp_path, job_workers=0) as (client, _):
        job = client.post("/v1/jobs", IMAGE, task="embed").json["id"]
    with serve(models, tmp_path, limits={limit: 10}) as (client, _):
        assert message in client.wait_for_job(job)["failures"][0]


def test_finished_jobs_are_removed_after_a_time(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_DELETE_SECONDS", 0.1)
    with serve(models, tmp_path, limits={"job_seconds": 1}) as (client, _):
        job = client.post("/v1/jobs", IMAGE, task="embed", name="a.jpg").json["id"]
        wait(lambda: client.get(f"/v1/jobs/{job}").status == 404)
        wait(lambda: not list((tmp_path / "jobs").iterdir()))


def test_a_folder_belongs_to_one_server(models: dict[str, str], tmp_path: Path) -> None:
    with serve(models, tmp_path), pytest.raises(ValueError, match="no other server"), serve(models, tmp_path):
        pass


def test_jobs_in_the_database(tmp_path: Path) -> None:
    job = Job("a", None, "pose", ("--flip",), {"0001.jpg": "a.jpg"}, created=2.0, failures=("x",))
    store = JobTable(tmp_path / "jobs.sqlite")
    store.put(job)
    store.put(Job("b", "alice", "pose", (), {}, created=1.0, state="done"))
    store.close()
    store = JobTable(tmp_path / "jobs.sqlite")
    assert [one.id for one in store.all()] == ["b", "a"]
    assert store.all()[1] == job
    store.remove("b")
    assert store.all() == [job]
    store.close()


def test_pages_of_other_sites_if_allowed(models: dict[str, str], tmp_path: Path) -> None:
    with serve(models, tmp_path, cors_origins=("https://a.example",)) as (client, _):
        allowed, other = {"Origin": "https://a.example"}, {"Origin": "https://b.example"}
        answer = client.post("/v1/embed", IMAGE, headers=allowed)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://a.example")
        answer = client.post("/v1/embed", IMAGE, headers=other)
        assert (answer.status, "access-control-allow-origin" in answer.headers) == (403, False)


def test_an_unexpected_error_tells_nothing(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret of the machine")

    with serve(models, tmp_path) as (client, _):
        monkeypatch.setattr(EmbedPipeline, "finish", broken)
        answer = client.post("/v1/embed", IMAGE)
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert json.loads(answer.body)["error"]["subject"] == "server"
        assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_the_description_is_true(models: dict[str, str], tmp_path: Path) -> None:
    key = {"X-API-Key": add_key(tmp_path / "keys", "ada")}
    with serve(models, tmp_path, keys=read_keys(tmp_path / "keys"), allow_urls=True) as (client, _):
        client.headers = key
        described = client.get("/openapi.json").json
        assert {"bearer": []} in described["security"]
        assert described["components"]["securitySchemes"]["header"]["name"] == "X-API-Key"
        job = client.post("/v1/jobs", IMAGE, task="embed", name="a.jpg").json["id"]
        name = client.wait_for_job(job)["files"][0]["name"]
        for path, methods in described["paths"].items():
            if "get" in methods and not {"image_id", "video_id"} & set(re.findall(r"\w+", path)):
                answer = client.get(path.format(job_id=job, name=name))
                media = answer.headers["content-type"].partition(";")[0]
                assert answer.status == 200, path
                assert not {media, "*/*"}.isdisjoint(methods["get"]["responses"]["200"]["content"]), path
        check_references(described, described)
        shapes = [re.sub(r"\{\w+\}", "{}", path) for path in described["paths"]]
        assert len(shapes) == len(set(shapes))  # a path has one name for its parameter
        for path, methods in described["paths"].items():
            for operation in methods.values():
                named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
                assert named == set(re.findall(r"\{(\w+)\}", path)), path
        started = described["paths"]["/v1/videos/{video_id}/segment"]["post"]["requestBody"]["content"]
        options = resolve(described, started["application/json"]["schema"]["$ref"])
        assert {"points", "save", "smooth"} <= set(options["properties"])
        created = described["paths"]["/v1/jobs"]["post"]
        form_options = created["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]["options"]
        assert options in [resolve(described, one["$ref"]) for one in form_options["anyOf"]]
        assert "options" in [one["name"] for one in created["parameters"]]
        request = described["paths"]["/v1/embed"]["post"]
        assert "url" in [one["name"] for one in request["parameters"]]
        assert "url" in request["requestBody"]["content"]["application/json"]["schema"]["properties"]
    with serve(models, tmp_path) as (client, _):
        described = client.get("/openapi.json").json
        assert "security" not in described
        assert "url" not in [one["name"] for one in described["paths"]["/v1/embed"]["post"]["parameters"]]


def resolve(described: Any, reference: str) -> Any:
    """Return what a reference in the description is to."""
    for name in reference.removeprefix("#/").split("/"):
        described = described[name]
    return described


def check_references(described: Any, part: Any) -> None:
    """Check that there is everything that a part of the description refers to."""
    if isinstance(part, dict):
        if "$ref" in part:
            resolve(described, part["$ref"])
        for value in part.values():
            check_references(described, value)
    elif isinstance(part, list):
        for value in part:
            check_references(described, value)


def test_names_of_files_keep_their_letters() -> None:
    header = file_response(b"", "json", 'é" 日本.jpg', "pose").headers["content-disposition"]
    assert header == """inline; filename="______pose.json"; filename*=utf-8''%C3%A9%22%20%E6%97%A5%E6%9C%AC_pose.json"""


@pytest.mark.parametrize(("kind", "name"), [("plot", "a_pose_plot.png"), ("plot.jpg", "a_pose_plot.jpg")])
def test_drawings_have_the_file_names_of_the_command_line(kind: str, name: str) -> None:
    assert f'filename="{name}"' in file_response(b"", kind, "a.jpg", "pose").headers["content-disposition"]
