"""What holds for the pipelines of all tasks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

import vitruvian
from tests.helpers.pipelines import NEEDS, SAPIENS, TASKS, arrays, leeway, opened, parts_of, sample_image, write_clip
from vitruvian.errors import ImageError, InputError, VitruvianWarning
from vitruvian.hub import BUILTIN
from vitruvian.pipelines import Failure, Results, _warn_about_builtin, default_model, pipeline, pipeline_class
from vitruvian.pipelines.engine.batches import BatchSize
from vitruvian.pipelines.engine.steps import ModelInput
from vitruvian.tasks import PIPELINE_TASKS, find_task

IMAGES = [sample_image(seed, size) for seed, size in enumerate([(40, 56), (48, 30), (40, 56), (33, 47), (64, 64)])]


def assert_same(one: Any, other: Any, *, at_most: float = 1e-4) -> None:
    """Two results say the same; floating-point work on other batches may differ in the last digits."""
    assert type(one) is type(other)
    mine, theirs = arrays(one), arrays(other)
    assert mine.keys() == theirs.keys()
    for name, values in mine.items():
        assert values.shape == theirs[name].shape, name
        if values.dtype.kind == "f":
            np.testing.assert_allclose(values, theirs[name], err_msg=name, **leeway(name, atol=at_most, rtol=1e-3))
        else:
            assert (values != theirs[name]).mean() < 0.02, name


def test_every_task_has_a_pipeline() -> None:
    assert set(PIPELINE_TASKS) == {*TASKS, "track"}  # which has frames of one video, not images: test_track.py
    for task in PIPELINE_TASKS:
        names = (task, *find_task(task).aliases)
        assert {pipeline_class(name).task for name in names} == {task}


@pytest.mark.parametrize("task", TASKS)
class TestEveryTask:
    def test_one_image(self, task: str) -> None:
        result = opened(task).run(IMAGES[0])
        assert result.size_hw == IMAGES[0].shape[:2]
        assert result.source == "array"
        assert result.image is IMAGES[0]
        assert (result.frame, result.time) == (None, None)
        assert find_task(getattr(result, "kind", result.task)).name == task

    def test_many_images_as_one_by_one(self, task: str) -> None:
        pipe = opened(task)
        found = pipe.run(IMAGES, **({} if task == "masks" else {"batch_size": 3}))
        assert isinstance(found, Results)
        assert found.count == len(IMAGES)
        results = list(found)
        assert [result.size_hw for result in results] == [one.shape[:2] for one in IMAGES]
        for result, one in zip(results, IMAGES, strict=True):
            assert_same(result, pipe.run(one))

    def test_without_the_image(self, task: str) -> None:
        assert opened(task, keep_image=False).run(IMAGES[0]).image is None

    def test_saved_in_the_background(self, task: str, tmp_path: Path) -> None:
        names = [tmp_path / f"p{number}.png" for number in range(3)]
        for name, one in zip(names, IMAGES, strict=False):
            Image.fromarray(one).save(name)
        results = list(opened(task).run(names, save=str(tmp_path / "out" / "{stem}.npz")))
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["p0.npz", "p1.npz", "p2.npz"]
        assert [Path(result.source).name for result in results] == ["p0.png", "p1.png", "p2.png"]

    def test_warming_up_runs_every_batch_size(self, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pipe, sizes = opened(task), []
        forward = type(pipe).forward

        def noted(self: Any, inputs: list[ModelInput]) -> list[Any]:
            sizes.append(len(inputs))
            return forward(self, inputs)

        monkeypatch.setattr(type(pipe), "forward", noted)
        pipe.warm_up(None if task == "masks" else BatchSize(5, fixed=False))
        assert sizes == ([1] if task == "masks" else [1, 2, 4, 5])

    def test_options_that_do_not_exist(self, task: str) -> None:
        with pytest.raises(InputError, match=r"options: .*got 'keep_imag'\. Did you mean keep_image"):
            opened(task, keep_imag=True)
        with pytest.raises(InputError, match=r"options: .*got 'colour'"):
            opened(task).run(IMAGES[0], colour="red")

    def test_without_a_model(self, task: str) -> None:
        if default_model(task) == BUILTIN:
            _warn_about_builtin.cache_clear()  # said once for each task
            with pytest.warns(VitruvianWarning, match="so the small built-in model"):
                assert pipeline(task).name == BUILTIN
        else:
            with pytest.raises(InputError, match=f"model: expected a checkpoint for {task}"):
                pipeline(task)

    def test_a_foreign_model(self, task: str) -> None:
        other, processor = parts_of("embed" if task != "embed" else "pose")
        with pytest.raises(InputError, match="model: expected a checkpoint or"):
            pipeline(task, other, processor=processor)

    def test_a_model_without_its_processor(self, task: str) -> None:
        with pytest.raises(InputError, match="Pass processor="):
            pipeline(task, parts_of(task)[0])

    def test_from_a_folder(self, task: str, tmp_path: Path) -> None:
        model, processor = parts_of(task)
        model.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        pipe = pipeline(task, tmp_path, device="cpu")
        assert (pipe.device, pipe.model.dtype) == (torch.device("cpu"), torch.float32)
        assert not pipe.model.training
        assert pipe.name == str(tmp_path)
        options = NEEDS.get(task, {}) | ({"detect": "whole"} if task in SAPIENS else {})
        assert_same(pipe.run(IMAGES[0], **options), opened(task).run(IMAGES[0]))

    def test_in_half_precision(self, task: str) -> None:
        result = opened(task, dtype="bfloat16").run(IMAGES[0])
        assert all(np.isfinite(values).all() for name, values in arrays(result).items() if values.dtype.kind == "f")


class TestOpening:
    def test_a_task_that_does_not_exist(self) -> None:
        with pytest.raises(InputError, match="Did you mean normals"):
            pipeline("normels")

    def test_a_device_that_is_not_here(self) -> None:
        model, processor = parts_of("pose")
        with pytest.raises(InputError, match="device"):
            pipeline("pose", model, processor=processor, device="tpu")

    def test_the_package_offers_it(self) -> None:
        assert vitruvian.pipeline is pipeline

    def test_a_head_that_is_missing_names_the_class(self, tmp_path: Path) -> None:
        model, processor = parts_of("semantic")
        model.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        with pytest.raises(InputError, match="AutoModelForPoseEstimation"):
            pipeline("pose", tmp_path)
        with pytest.raises(InputError, match="expected a checkpoint of Sapiens2"):
            pipeline("embed", tmp_path)

    @pytest.mark.parametrize(
        "options",
        [
            {"errors": "ignore"},
            {"batch_size": 0},
            {"workers": 0},
            {"save": "out.png"},
            {"on_empty": "panic"},
            {"max_people": 0},
        ],
    )
    def test_options_that_make_no_sense(self, options: dict[str, Any]) -> None:
        with pytest.raises(InputError, match=next(iter(options))):
            opened("normals").run(IMAGES[0], **options)


class TestFailures:
    def test_one_bad_image_raises(self, tmp_path: Path) -> None:
        (tmp_path / "bad.png").write_bytes(b"")
        with pytest.raises(ImageError, match="empty file"):
            opened("normals")(tmp_path / "bad.png")

    def test_among_many_it_is_named(self, tmp_path: Path) -> None:
        for number in range(6):
            Image.fromarray(IMAGES[0]).save(tmp_path / f"{number}.jpg")
        (tmp_path / "3.jpg").write_bytes((tmp_path / "3.jpg").read_bytes()[:200])
        found = list(opened("normals")(tmp_path))
        assert [isinstance(one, Failure) for one in found] == [False, False, False, True, False, False]
        assert found[3].name == str(tmp_path / "3.jpg")
        assert "3.jpg" in found[3].message
        with pytest.raises(ImageError):
            list(opened("normals", errors="raise")(tmp_path))


class TestMemory:
    def test_auto_batches_shrink_to_what_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pipe = opened("pose")
        pipe._auto_batch = BatchSize(16, fixed=False)  # what a GPU starts with; the CPU starts with 1
        sizes: list[int] = []
        forward = pipe.model.forward

        def tight(pixels: torch.Tensor, **options: Any) -> Any:
            sizes.append(len(pixels))
            if len(pixels) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return forward(pixels, **options)

        monkeypatch.setattr(pipe.model, "forward", tight)
        boxes = [[2, 2, 30, 38], [20, 4, 50, 36]]
        found = list(pipe(IMAGES[:1] * 9, boxes=boxes, batch_timeout=60.0))
        assert sizes[:4] == [1, 2, 4, 2]
        assert max(sizes[3:]) == 2
        assert pipe._auto_batch.size == 2
        monkeypatch.undo()
        alone = pipe(IMAGES[0], boxes=boxes)
        for result in found:
            assert_same(result, alone)
        sizes.clear()
        pipe(IMAGES[:1] * 2, boxes=boxes)
        assert pipe._auto_batch.size == 2  # what fits is remembered

    def test_constant_over_many_images(self) -> None:
        """40 images of 3 MB, each with 12 MB of normals: 600 MB in all, of which a few are alive at a time."""
        pipe = opened("normals", keep_image=False, batch_size=2, workers=2)
        process = psutil.Process()
        large = sample_image(1, (1000, 1000))
        for _ in pipe(large.copy() for _ in range(8)):
            pass
        before = peak = process.memory_info().rss
        count = 0
        for result in pipe(large.copy() for _ in range(40)):
            assert not isinstance(result, Failure)
            count += 1
            peak = max(peak, process.memory_info().rss)
        assert count == 40
        assert peak - before < 350e6

    def test_no_thread_is_left(self) -> None:
        before = threading.active_count()
        for task in ("pose", "semantic"):
            stream = opened(task)(IMAGES * 3)
            next(stream)
            stream.close()
            with opened(task)(IMAGES * 3) as stream:
                next(stream)
            assert len(list(opened(task)(IMAGES))) == len(IMAGES)
        assert threading.active_count() == before


class TestVideos:
    def test_a_video(self, tmp_path: Path) -> None:
        path = write_clip(tmp_path / "clip.mp4", [sample_image(number, (48, 64)) for number in range(5)])
        found = opened("pose")(path)
        assert found.video is not None
        assert found.video.size_hw == (48, 64)
        results = list(found)
        assert [result.frame for result in results] == list(range(5))
        assert [result.time for result in results] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
        assert {result.source for result in results} == {str(path)}

    def test_a_generator(self) -> None:
        found = opened("matte")(one for one in IMAGES)
        assert found.count is None
        assert len(list(found)) == len(IMAGES)


def test_the_repr_says_what_it_is() -> None:
    pipe = opened("normals", background="keep", batch_size=2)
    assert repr(pipe) == (
        "NormalsPipeline(model='Sapiens2ForNormalEstimation', device='cpu', dtype='float32', batch_size=2, "
        "detect='whole', background='keep')"
    )
