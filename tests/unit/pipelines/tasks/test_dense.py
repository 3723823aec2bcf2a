"""Maps of whole images, people and tiles lie where they belong; pointmaps know their camera."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from tests.helpers.pipelines import DENSE, opened, parts_of, sample_image
from vitruvian import Sapiens2ImageProcessor, pipeline
from vitruvian.errors import InputError
from vitruvian.models.sapiens2.configuration import CANONICAL_FOCAL
from vitruvian.pipelines.pinhole_camera import median_focal
from vitruvian.pipelines.regions import Region
from vitruvian.results import People

MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
LARGE = {"height": 96, "width": 72}


def colours(pixels: torch.Tensor) -> torch.Tensor:
    """Undo what the processor did to values: 0 to 1."""
    return pixels.float() * STD + MEAN


def seeing(task: str, answer: Any, *, padded: bool, **options: Any) -> Any:
    """A pipeline whose model answers with what a function makes of the colours it is shown [B, 3, h, w]."""
    model, _ = parts_of(task)
    model.forward = lambda pixels, **_: answer(colours(pixels))
    processor = Sapiens2ImageProcessor(size=LARGE, do_pad=padded)
    return pipeline(task, model, processor=processor, device="cpu", **({"detect": "whole"} | options))


def bright_parts(seen: torch.Tensor) -> dict[str, Any]:
    """What a model says that takes bright pixels for part 2 and dark ones for background."""
    bright = seen.mean(1, keepdim=True)
    nothing = torch.full_like(bright, -30.0)
    return {"logits": torch.cat((8 - 16 * bright, nothing, 16 * bright - 8, nothing), dim=1)}


def bright_matte(seen: torch.Tensor) -> dict[str, Any]:
    """What a model says that takes bright pixels for people, all of them green, in a map of a quarter of the size."""
    alphas = (F.avg_pool2d(seen.mean(1, keepdim=True), 4) * 2.2 - 0.5).clamp(0, 1)
    return {"alphas": alphas, "foregrounds": alphas * torch.tensor([0.0, 1.0, 0.0])[:, None, None]}


def person_on_black() -> np.ndarray:
    """A bright disc with a pattern on black, 400×400."""
    shown = np.zeros((400, 400, 3), np.uint8)
    pattern = np.random.default_rng(1).integers(200, 250, (400, 400, 3), np.uint8)
    disc = np.hypot(*(np.mgrid[:400, :400] - 200)) < 110
    shown[disc] = pattern[disc]
    return shown


def mirror(*, padded: bool, **options: Any) -> Any:
    """An albedo model that gives back what it sees."""
    return seeing("albedo", lambda seen: {"albedos": seen}, padded=padded, **options)


def finds(*boxes: list[float]) -> Any:
    """A detector that finds these."""
    return SimpleNamespace(
        name="test",
        detect=lambda _: People(
            boxes_xyxy=np.array(boxes, np.float32).reshape(-1, 4),
            scores=np.ones(len(boxes), np.float32),
            detector="test",
        ),
    )


class TestWhereMapsLie:
    """A model that gives back its input must give back the image."""

    @pytest.mark.parametrize("padded", [True, False])
    @pytest.mark.parametrize("size_hw", [(80, 60), (60, 110), (150, 61)])
    def test_whole(self, padded: bool, size_hw: tuple[int, int]) -> None:
        shown = sample_image(2, size_hw)
        result = mirror(padded=padded)(shown)
        assert result.mask is None
        assert result.people.detector == "whole image"
        np.testing.assert_allclose(result.albedo, shown / 255, atol=0.08)
        assert np.abs(result.albedo - shown / 255).mean() < 0.01

    @pytest.mark.parametrize("padded", [True, False])
    def test_people(self, padded: bool) -> None:
        shown = sample_image(4, (160, 200))
        boxes = [[20, 30, 70, 120], [100, 40, 170, 150]]
        result = mirror(padded=padded)(shown, boxes=boxes)
        assert result.people.detector == "given"
        inside = np.zeros((160, 200), bool)
        for left, top, right, bottom in boxes:
            inside[top:bottom, left:right] = True
        assert result.mask[inside].all()
        assert not result.mask.all()
        np.testing.assert_allclose(result.albedo[inside], (shown / 255)[inside], atol=0.06)
        assert (result.albedo[~result.mask] == 0).all()

    @pytest.mark.parametrize("padded", [True, False])
    @pytest.mark.parametrize("tile", [100, (120, 90), True])
    def test_tiles(self, padded: bool, tile: Any) -> None:
        shown = sample_image(6, (230, 310))
        result = mirror(padded=padded)(shown, tile=tile)
        assert result.mask is None
        np.testing.assert_allclose(result.albedo, shown / 255, atol=0.06)

    def test_a_image_that_fits_into_a_tile_is_whole(self) -> None:
        pipe, shown = opened("normals"), sample_image(1, (40, 30))
        np.testing.assert_array_equal(pipe(shown, tile=64).normals, pipe(shown).normals)

    def test_tiles_see_more_than_the_whole(self) -> None:
        """Stripes that vanish when the image is made small are there in tiles."""
        shown = np.zeros((400, 300, 3), np.uint8)
        shown[:, ::4] = shown[:, 1::4] = 255
        pipe = mirror(padded=False)
        assert pipe(shown, tile=(96, 72)).albedo.std() > 0.4
        assert pipe(shown).albedo.std() < 0.1

    def test_units_of_all_people_and_images_share_batches(self) -> None:
        sizes: list[int] = []

        def answer(seen: torch.Tensor) -> dict[str, Any]:
            sizes.append(len(seen))
            return {"albedos": seen}

        pipe = seeing("albedo", answer, padded=True)
        shown = [sample_image(seed, (100, 120)) for seed in range(4)]
        boxes = [[[5, 5, 60, 90]], [[5, 5, 60, 90], [50, 10, 110, 95]], [], [[40, 5, 90, 90]]]
        found = list(pipe(shown, boxes=boxes, batch_size=2, batch_timeout=60.0))
        assert sizes == [1, 2, 1]
        assert [len(result.people) for result in found] == [1, 2, 0, 1]
        assert not found[2].mask.any()  # told that nobody is there, it looks at nobody


@pytest.mark.parametrize("task", DENSE)
class TestWhoIsLookedAt:
    def test_by_default_the_builtin_detector(self, task: str) -> None:
        result = opened(task, detect=None)(np.zeros_like(sample_image()), on_empty="none")
        assert (result.people.detector, len(result.people)) == ("builtin", 0)

    def test_the_whole_image(self, task: str) -> None:
        result = opened(task)(sample_image())
        assert (result.people.detector, result.people.note) == ("whole image", None)
        assert result.people.boxes_xyxy.tolist() == [[0, 0, 56, 40]]

    def test_a_detector_means_crops(self, task: str) -> None:
        pipe, detector = opened(task), finds([5, 5, 30, 35])
        result = pipe(sample_image(), detect=detector)
        assert result.people.detector == "test"
        by_hand = pipe(sample_image(), boxes=[5, 5, 30, 35])
        for name, values in result.arrays().items():
            if not name.startswith("people"):
                np.testing.assert_array_equal(values, by_hand.arrays()[name])

    def test_nobody_found(self, task: str) -> None:
        pipe = opened(task, detect=finds())
        result = pipe(sample_image())
        assert result.people.note == "no person detected; processed the whole image"
        np.testing.assert_array_equal(
            next(iter(result.arrays().values())), next(iter(pipe(sample_image(), detect="whole").arrays().values()))
        )
        empty = pipe(sample_image(), on_empty="none")
        assert (len(empty.people), empty.people.note) == (0, "no person detected")
        with pytest.raises(InputError, match="no one"):
            pipe(sample_image(), on_empty="error")

    def test_tiles_and_people(self, task: str) -> None:
        with pytest.raises(InputError, match=r"tile: expected tiles, .* got both"):
            opened(task)(sample_image(), tile=32, boxes=[5, 5, 30, 35])
        with pytest.raises(InputError, match=r"tile: expected tiles, .* got both"):
            opened(task, detect=finds())(sample_image(), tile=32, detect=finds())

    def test_an_option_of_the_call_replaces_those_of_the_pipeline(self, task: str) -> None:
        detecting, tiling = opened(task, detect=finds()), opened(task, tile=32)
        assert detecting(sample_image(), tile=32).people.detector == "whole image"
        assert detecting(sample_image(), tile=False).people.detector != "whole image"
        assert tiling(sample_image(), boxes=[5, 5, 30, 35]).people.detector != "whole image"


class TestValues:
    def test_normals_are_unit_vectors(self) -> None:
        for options in ({}, {"boxes": [[4, 4, 30, 36], [20, 4, 50, 36]]}, {"tile": 24}):
            result = opened("normals")(sample_image(), **options)
            length = np.linalg.norm(result.normals, axis=-1)
            where = np.ones(length.shape, bool) if result.mask is None else result.mask
            np.testing.assert_allclose(length[where], 1, atol=1e-4)

    def test_normals_in_other_axes(self) -> None:
        pipe = opened("normals")
        plain, turned = pipe(sample_image()), pipe(sample_image(), convention="opencv")
        assert plain.convention == "opengl"  # the model's own
        assert turned.convention == "opencv"
        np.testing.assert_allclose(turned.normals, plain.normals * [1, -1, -1], atol=1e-6)

    def test_parts_by_hand(self) -> None:
        pipe, shown = opened("parts", with_score=True, refine=False), sample_image()
        inputs = pipe.processor(shown, return_tensors="pt")
        with torch.inference_mode():
            out = pipe.model(**inputs)
        (wanted,) = pipe.processor.post_process_semantic_segmentation(out, target_sizes=[shown.shape[:2]])
        result = pipe(shown)
        np.testing.assert_array_equal(result.labels, wanted.numpy())
        assert result.names == tuple(pipe.model.config.id2label.values())
        assert result.score.dtype == np.float16
        assert ((result.score > 0.2) & (result.score <= 1)).all()
        assert opened("parts")(shown).score is None

    def test_parts_of_people_over_background(self) -> None:
        """Bright pixels are part 2: found where the person is, background where nobody was looked at."""
        shown = np.zeros((160, 200, 3), np.uint8)
        shown[50:110, 40:80] = 255
        shown[50:110, 160:190] = 255
        result = seeing("parts", bright_parts, padded=False)(shown, boxes=[30, 40, 90, 120], with_score=True)
        assert set(np.unique(result.labels)) == {0, 2}
        wanted = (shown[..., 0] > 0) & (np.arange(200) < 120)
        assert (result.labels[:, :120] == 2 * wanted[:, :120]).mean() > 0.98
        assert (result.labels[:, 170:] == 0).all()

    def test_mattes_by_hand(self) -> None:
        pipe, shown = opened("matte", refine=False), sample_image()
        with torch.inference_mode():
            out = pipe.model(**pipe.processor(shown, return_tensors="pt"))
        (wanted,) = pipe.processor.post_process_image_matting(out, target_sizes=[shown.shape[:2]])
        result = pipe(shown)
        np.testing.assert_allclose(result.alpha, wanted["alpha"][0].numpy(), atol=1e-5)
        np.testing.assert_allclose(result.foreground, wanted["foreground"].permute(1, 2, 0).numpy(), atol=1e-5)

    @pytest.mark.parametrize("options", [{}, {"boxes": [60, 40, 340, 360]}, {"tile": (300, 300)}])
    def test_mattes_have_the_edges_and_the_colours_of_the_image(self, options: dict[str, Any]) -> None:
        """The model sees bright pixels as a person, at a fifth of the resolution, in a colour of its own."""
        shown = person_on_black()
        pipe = seeing("matte", bright_matte, padded=True)
        wanted = shown[..., 0] > 100
        result, smooth = pipe(shown, **options), pipe(shown, refine=False, **options)
        assert np.abs(result.alpha - wanted).mean() < 0.6 * np.abs(smooth.alpha - wanted).mean()
        inside = np.zeros(wanted.shape, bool)
        inside[165:235, 165:235] = True
        np.testing.assert_array_equal(result.rgba()[inside][:, :3], shown[inside])
        assert (smooth.rgba()[inside][:, :3] == [0, 255, 0]).all()  # what the model says
        outside = ~wanted & (np.hypot(*(np.mgrid[:400, :400] - 200)) > 150)
        assert result.alpha[outside].max() < 0.05

    @pytest.mark.parametrize("options", [{}, {"boxes": [60, 40, 340, 360]}])
    def test_outlines_of_parts_follow_the_image_and_labels_do_not_mix(self, options: dict[str, Any]) -> None:
        shown = person_on_black()
        pipe = seeing("parts", lambda seen: bright_parts(F.avg_pool2d(seen, 4)), padded=True)
        wanted = shown[..., 0] > 100
        result, smooth = pipe(shown, **options), pipe(shown, refine=False, **options)
        assert set(np.unique(result.labels)) == {0, 2}
        assert ((result.labels == 2) != wanted).mean() < 0.7 * ((smooth.labels == 2) != wanted).mean()

    def test_a_processor_that_cuts_is_refused(self) -> None:
        model, _ = parts_of("normals")
        with pytest.raises(InputError, match="do_center_crop"):
            pipeline("normals", model, processor=Sapiens2ImageProcessor(do_center_crop=True))


HEIGHT, WIDTH = 120, 90  # fits the input's 96×72 at a scale of 0.8
CANONICAL = CANONICAL_FOCAL * 96 / 0.8  # in pixels of the image


def wall(depth: float, *, scale: float | None, fan: float | None = None, padded: bool = True) -> Any:
    """A pointmap model that sees a wall at `depth` of the canonical camera; `fan` is the focal length of its rays."""

    def answer(seen: torch.Tensor) -> dict[str, Any]:
        count, _, height, width = seen.shape
        rows, columns = torch.meshgrid(torch.arange(height) + 0.0, torch.arange(width) + 0.0, indexing="ij")
        focal = fan or CANONICAL_FOCAL * height
        x, y = (columns - (width - 1) / 2) / focal, (rows - (height - 1) / 2) / focal
        points = torch.stack((x, y, torch.ones_like(x))) * depth
        scales = None if scale is None else torch.full((count, 1), scale)
        return {"pointmaps": points.expand(count, -1, -1, -1), "scales": scales}

    return seeing("pointmap", answer, padded=padded)


def shown_wall() -> np.ndarray:
    return sample_image(1, (HEIGHT, WIDTH))


class TestCamera:
    def test_the_model_s_own_scale(self) -> None:
        result = wall(3.0, scale=1.5, fan=50.0)(shown_wall())
        assert (result.metric, result.scale, result.intrinsics_from) == (True, 1.5, "estimated")
        np.testing.assert_allclose(result.points[..., 2], 2.0, rtol=1e-5)
        assert result.intrinsics[0, 0] == pytest.approx(50.0 / 0.8, rel=0.02)
        assert result.intrinsics[:2, 2].tolist() == [(WIDTH - 1) / 2, (HEIGHT - 1) / 2]
        assert result.mask.all()

    def test_no_scale_and_no_camera(self) -> None:
        result = wall(3.0, scale=None, fan=50.0)(shown_wall())
        assert (result.metric, result.scale) == (False, None)
        np.testing.assert_allclose(result.points[..., 2], 3.0, rtol=1e-5)

    @pytest.mark.parametrize("scale", [None, 9.0])
    def test_a_known_camera_beats_the_model(self, scale: float | None) -> None:
        K = [[180.0, 0, 44], [0, 180.0, 60], [0, 0, 1]]
        result = wall(3.0, scale=scale)(shown_wall(), K=K)
        assert (result.metric, result.intrinsics_from) == (True, "given")
        assert result.scale == pytest.approx(CANONICAL / 180)
        np.testing.assert_allclose(result.points[..., 2], 3.0 * 180 / CANONICAL, rtol=1e-5)
        np.testing.assert_array_equal(result.intrinsics, np.array(K, np.float32))

    def test_a_matrix_for_each_image(self) -> None:
        matrices = [np.diag([focal, focal, 1.0]) for focal in (100.0, 200.0)]
        first, second = wall(3.0, scale=None)([shown_wall()] * 2, K=np.stack(matrices))
        assert second.points[5, 5, 2] == pytest.approx(2 * first.points[5, 5, 2])

    def test_a_field_of_view(self) -> None:
        result = wall(3.0, scale=None)(shown_wall(), fov=60)
        assert result.intrinsics_from == "field of view"
        assert result.intrinsics[0, 0] == pytest.approx(WIDTH / 2 / math.tan(math.radians(30)))

    def test_exif(self, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0xA405] = 50
        Image.fromarray(shown_wall()).save(tmp_path / "a.jpg", exif=exif, quality=95)
        pipe = wall(3.0, scale=2.0)
        result = pipe(tmp_path / "a.jpg")
        assert result.intrinsics_from == "exif"
        assert result.intrinsics[0, 0] == pytest.approx(50 / math.hypot(36, 24) * math.hypot(HEIGHT, WIDTH))
        assert pipe(tmp_path / "a.jpg", exif=False).intrinsics_from == "estimated"
        assert pipe(tmp_path / "a.jpg", fov=50).intrinsics_from == "field of view"

    @pytest.mark.parametrize("options", [{}, {"boxes": [[5, 5, 80, 110]]}])
    @pytest.mark.parametrize(("fan", "scale"), [(5.0, 20.0), (2000.0, 0.03)])
    def test_no_lens_sees_that_much_or_little(self, options: dict[str, Any], fan: float, scale: float) -> None:
        pipe = wall(3.0, scale=scale, fan=fan)
        result = pipe(shown_wall(), **options)
        assert (result.metric, result.scale, result.intrinsics_from) == (False, None, "assumed")
        assert "outside of 15° to 110°" in result.note
        assert result.to_dict()["note"] == result.note
        assert result.focal == pytest.approx(CANONICAL)
        rows, columns = np.nonzero(result.mask)
        x, y, z = result.points[result.mask].T
        np.testing.assert_allclose(
            x / z * result.focal + (WIDTH - 1) / 2, columns, atol=0.01
        )  # the points belong to it
        np.testing.assert_allclose(y / z * result.focal + (HEIGHT - 1) / 2, rows, atol=0.01)
        told = pipe(shown_wall(), fov=5, **options)  # whoever knows the camera is believed
        assert (told.metric, told.note, told.intrinsics_from) == (True, None, "field of view")

    def test_large_people_tell_the_camera(self) -> None:
        """Scales of two small crops are wrong."""
        focals = [500.0, 90.0, 400.0]
        areas = [(10, 10), (80, 100), (10, 10)]
        regions = [Region(0, 0, *area) for area in areas]
        maps = [torch.ones(3, 4, 4)] * 3
        assert median_focal(maps, [1.0] * 3, focals, regions) == 90.0

    def test_points_behind_the_camera(self) -> None:
        result = wall(-1.0, scale=None)(shown_wall())
        assert not result.mask.any()
        assert (result.points == 0).all()
        assert result.focal > 0

    @pytest.mark.parametrize("options", [{"boxes": [[20, 20, 60, 100]]}, {"tile": 60}])
    def test_windows_agree_with_the_whole(self, options: dict[str, Any]) -> None:
        """A window sees the wall larger, so closer in its own canonical camera: the image's camera puts it right."""
        K = [[CANONICAL, 0, (WIDTH - 1) / 2], [0, CANONICAL, (HEIGHT - 1) / 2], [0, 0, 1]]

        def answer(seen: torch.Tensor) -> dict[str, Any]:
            # Canonical depth is metric depth × canonical focal length of the window / focal length of the image.
            grown = self.canonical_of_windows / CANONICAL
            return {"pointmaps": torch.full_like(seen, 2.0 * grown), "scales": None}

        pipe = seeing("pointmap", answer, padded=True)
        frame = SimpleNamespace(size_hw=(HEIGHT, WIDTH), index=0, name="array")
        context = pipe.for_call(options)._choose_regions(frame, None)
        self.canonical_of_windows = pipe._region_focal(context.regions[0], is_crop=context.are_crops)
        result = pipe(shown_wall(), K=K, **options)
        assert result.metric
        np.testing.assert_allclose(result.points[..., 2][result.mask], 2.0, rtol=1e-3)
        there = result.points[result.mask]
        rows, columns = np.nonzero(result.mask)
        np.testing.assert_allclose(there[:, 0] / there[:, 2] * CANONICAL + K[0][2], columns, atol=1e-2)
        np.testing.assert_allclose(there[:, 1] / there[:, 2] * CANONICAL + K[1][2], rows, atol=1e-2)

    def test_people_tell_the_camera(self) -> None:
        """Without a camera, the scales that crops tell give one focal length for all."""
        result = wall(3.0, scale=0.5)(shown_wall(), boxes=[[20, 20, 60, 100]])
        assert (result.metric, result.intrinsics_from) == (True, "estimated")
        assert result.focal == pytest.approx(CANONICAL_FOCAL * 100 * 96 / 95 / 0.5, rel=0.02)
        np.testing.assert_allclose(result.points[..., 2][result.mask], 6.0, rtol=1e-3)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"K": np.eye(4)}, "K: expected the shape"),
            ({"K": -np.eye(3)}, "positive focal"),
            ({"K": "wide"}, "camera matrix"),
            ({"K": np.eye(3), "fov": 50}, "K and fov"),
            ({"fov": 200}, "fov: expected above 0 and below 180"),
        ],
    )
    def test_cameras_that_make_no_sense(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            wall(1.0, scale=None)(shown_wall(), **options)
