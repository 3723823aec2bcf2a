"""Stored people and the images made of them: ground truth must stay true however people are cropped and pasted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.training.synthetic.shapes import rng
from vitruvian.human import KEYPOINT_INDEX, PART_NAMES
from vitruvian.training.datasets.compose import (
    CropSampling,
    SceneOptions,
    _crop_around,
    _crop_backgrounds,
    _sample_half_planes,
    compose_crops,
    compose_scenes,
    crop_scenes,
)
from vitruvian.training.datasets.crop_window import CropWindow
from vitruvian.training.datasets.labels import LabeledImages, downsample
from vitruvian.training.synthetic.asset_pack import AssetPack
from vitruvian.training.synthetic.render import RenderOptions
from vitruvian.training.synthetic.samples import Samples, render_samples

SIZE = (96, 72)
RENDER = RenderOptions(size_hw=SIZE, surroundings=2, surroundings_size=24, shadow_size=48, occluders=0.0)
PLAIN = CropSampling.plain(SIZE)


@pytest.fixture(scope="module")
def samples(pack: AssetPack) -> Samples:
    return render_samples(pack, 6, seed=7, options=RENDER)


@pytest.fixture(scope="module")
def walls() -> Tensor:
    """Two images: one all red, one all blue."""
    images = torch.zeros(2, 32, 32, 3, dtype=torch.uint8)
    images[0, ..., 0], images[1, ..., 2] = 200, 200
    return images


def crop(samples: Samples, walls: Tensor, seed: int = 0, **changes: object) -> LabeledImages:
    return compose_crops(samples, walls, rng=rng(seed), options=replace(PLAIN, **changes))  # type: ignore[arg-type]


class TestCrops:
    def test_points_project_onto_their_pixels(self, samples: Samples, walls: Tensor) -> None:
        for seed in range(3):
            crops = crop(samples, walls, seed, scale=(0.7, 1.4), shift=0.1, flip_probability=0.5)
            there = crops.points[:, 2] > 0
            K = crops.intrinsics[:, :, :, None, None]
            x = K[:, 0, 0] * crops.points[:, 0] / crops.points[:, 2].clamp_min(1e-6) + K[:, 0, 2]
            y = K[:, 1, 1] * crops.points[:, 1] / crops.points[:, 2].clamp_min(1e-6) + K[:, 1, 2]
            columns, rows = torch.arange(SIZE[1]), torch.arange(SIZE[0])[:, None]
            assert ((x - columns).abs()[there] < 1e-3).all()
            assert ((y - rows).abs()[there] < 1e-3).all()

    def test_mirrored_points_and_keypoints(self, samples: Samples, walls: Tensor) -> None:
        """The depth at a visible keypoint is about that of the body there, mirrored or not."""
        plain, mirrored = crop(samples, walls), crop(samples, walls, flip_probability=1.0)
        left, right = KEYPOINT_INDEX["left_shoulder"], KEYPOINT_INDEX["right_shoulder"]
        seen = (plain.keypoints[:, [left, right], 2] > 0).all(dim=1)
        assert seen.any()
        swapped = mirrored.keypoints[seen][:, [right, left]]
        expected = plain.keypoints[seen][:, [left, right]]
        assert torch.allclose(swapped[..., 0], SIZE[1] - 1 - expected[..., 0], atol=1e-3)
        assert torch.allclose(swapped[..., 1], expected[..., 1], atol=1e-3)
        assert torch.allclose(mirrored.points[:, 2], plain.points[:, 2].flip(-1), atol=1e-4)
        assert torch.allclose(mirrored.points[:, 0], -plain.points[:, 0].flip(-1), atol=1e-4)
        assert torch.allclose(mirrored.normals[:, 0], -plain.normals[:, 0].flip(-1), atol=1e-4)

    def test_mirrored_parts_swap_left_and_right(self, samples: Samples, walls: Tensor) -> None:
        plain, mirrored = crop(samples, walls), crop(samples, walls, flip_probability=1.0)
        left, right = PART_NAMES.index("Left_Hand"), PART_NAMES.index("Right_Hand")
        assert (plain.parts == left).sum() > 0
        assert torch.equal(mirrored.parts == right, (plain.parts == left).flip(-1))

    def test_keypoints_follow_the_crop(self, samples: Samples, walls: Tensor) -> None:
        crops = crop(samples, walls, scale=(0.7, 1.4), shift=0.1)
        K, before = crops.intrinsics, samples.intrinsics
        for axis in range(2):
            assert (K[:, axis, 2] == (SIZE[1 - axis] - 1) / 2).all()  # the camera looks at the middle
            larger = (K[:, axis, axis] / before[:, axis, axis])[:, None]
            apart = samples.keypoints[..., axis] - samples.keypoints[:, :1, axis]
            found = crops.keypoints[..., axis] - crops.keypoints[:, :1, axis]
            assert torch.allclose(found, apart * larger, atol=2e-2)

    def test_image_is_foreground_over_something(self, samples: Samples, walls: Tensor) -> None:
        crops = crop(samples, walls, 3, background_probability=1.0)
        behind = crops.image - crops.foreground
        empty = crops.alpha[:, 0] == 0
        inside = crops.image.sum(dim=1) > 0  # beyond the image's end everything is black
        red_or_blue = (behind[:, 1] < 1e-6) & ((behind[:, 0] > 0.2) | (behind[:, 2] > 0.2))
        assert red_or_blue[empty & inside].all()
        assert (crops.foreground <= crops.alpha + 1e-5).all()

    def test_bystanders_have_no_points(self, samples: Samples, walls: Tensor) -> None:
        alone, together = crop(samples, walls, 1), crop(samples, walls, 1, bystander_probability=1.0)
        more = together.alpha.sum(dim=(1, 2, 3)) - alone.alpha.sum(dim=(1, 2, 3))
        assert (more > 1).any()
        assert (together.points[:, 2] > 0).sum() <= (alone.points[:, 2] > 0).sum()
        unknown = (together.alpha[:, 0] > 0.9) & (together.points[:, 2] == 0) & (alone.alpha[:, 0] == 0)
        assert (together.parts[:, 0][unknown] > 0).float().mean() > 0.9

    def test_occluders_remove_people_and_hide_keypoints(self, samples: Samples, walls: Tensor) -> None:
        clear, covered = crop(samples, walls, 2), crop(samples, walls, 2, occluder_probability=1.0)
        gone = (clear.alpha > 0.9) & (covered.alpha == 0)
        assert gone.any()
        assert (covered.parts[gone] == 0).all()
        assert ((clear.keypoints[..., 2] == 2) & (covered.keypoints[..., 2] == 1)).any()

    def test_prints_change_colors_of_clothes_only(self, samples: Samples, walls: Tensor) -> None:
        plain = crop(samples, walls)
        names = set()
        for seed in range(12):
            found = crop(samples, walls, seed, print_probability=1.0)
            changed = (found.image != plain.image).any(dim=1)  # [n, H, W]
            names |= {PART_NAMES[part] for part in found.parts[:, 0][changed].unique()}
            for truth in ("parts", "normals", "depth", "alpha", "keypoints"):
                assert torch.equal(getattr(found, truth), getattr(plain, truth)), truth
            inside = changed[:, None].expand(-1, 3, -1, -1)
            assert torch.equal(found.foreground[inside], found.image[inside])
            assert torch.equal((found.albedo != plain.albedo).any(dim=1) & ~changed, torch.zeros_like(changed))
        assert {"Lower_Clothing", "Upper_Clothing"} <= names <= {"Apparel", "Lower_Clothing", "Upper_Clothing"}

    @pytest.mark.parametrize("seed", range(4))
    def test_half_plane_occluders_hide_one_side(self, samples: Samples, walls: Tensor, seed: int) -> None:
        draws = rng(seed)  # compose_crops draws the same first
        edges = _sample_half_planes(samples, draws, probability=1.0)
        window = CropWindow(*_crop_around(edges.boxes_xywh, draws, PLAIN), draws.bernoulli(0.5, len(samples)), SIZE)
        area = edges.boxes_xywh[:, 2:].prod(dim=1) / samples.boxes_xywh[:, 2:].prod(dim=1)
        assert ((area > 0.29) & (area < 0.86)).all()
        hidden = edges.beyond(window)[:, 0]  # [n, H, W]
        share = hidden.float().mean(dim=(1, 2))
        assert ((share > 0.02) & (share < 0.5)).all(), "the edge runs near the rim of a crop about what is left"
        found = crop(samples, walls, seed, edge_probability=1.0, flip_probability=0.5)
        assert (found.parts > 0).flatten(1).any(dim=1).all(), "something of everybody is left"
        assert (found.parts[:, 0][hidden] == 0).all()
        assert (found.points[:, 2][hidden] == 0).all()
        assert found.image[:, 1][hidden].max() < 0.02  # walls are red or blue
        assert (found.keypoints[..., 2] == 2).any()

    def test_image_ends_where_a_person_is_truncated(self, samples: Samples, walls: Tensor) -> None:
        wide = crop(samples, walls, scale=(1.6, 1.6), background_probability=1.0)
        _, y, _, h = samples.boxes_xywh.unbind(1)
        cut = y + h >= SIZE[0] - 1
        if not cut.any():
            pytest.skip("nobody of this seed is cut off below")
        assert (wide.image[cut][:, :, -2:] == 0).all()

    def test_half_size_ground_truth(self, samples: Samples, walls: Tensor) -> None:
        crops = crop(samples, walls)
        small = downsample(crops, 2, rng())
        there = small.points[:, 2] > 0
        K = small.intrinsics[:, :, :, None, None]
        x = K[:, 0, 0] * small.points[:, 0] / small.points[:, 2].clamp_min(1e-6) + K[:, 0, 2]
        assert ((x - torch.arange(SIZE[1] // 2)).abs()[there] < 1e-3).all()
        assert small.parts.shape[-2:] == (SIZE[0] // 2, SIZE[1] // 2)
        assert torch.equal(small.image, crops.image)
        deep = torch.nn.functional.max_pool2d(crops.points[:, 2:], 2)
        near = torch.where(crops.points[:, 2:] > 0, crops.points[:, 2:], 1e9)
        near = -torch.nn.functional.max_pool2d(-near, 2)
        ok = there[:, None]
        assert (small.points[:, 2:][ok] <= deep[ok] + 1e-4).all()
        assert (small.points[:, 2:][ok] >= near[ok] - 1e-4).all()


class TestScenes:
    def scene(self, samples: Samples, walls: Tensor, seed: int = 0, **changes: object) -> LabeledImages:
        options = replace(SceneOptions(size_hw=(72, 96), close_up_probability=0.0), **changes)  # type: ignore[arg-type]
        return compose_scenes(samples, walls, 6, rng=rng(seed), options=options)

    def test_boxes_surround_the_visible_part(self, samples: Samples, walls: Tensor) -> None:
        scenes = self.scene(samples, walls, people=(0.0, 1.0), relative_height=(0.5, 0.9))
        seen = 0
        for image in range(6):
            covered = scenes.parts[image, 0] > 0
            if not scenes.present[image, 0]:
                continue
            seen += 1
            x1, y1, x2, y2 = scenes.boxes_xyxy[image, 0].int().tolist()
            strong = scenes.alpha[image, 0] > 0.5
            assert strong[:, x1].any()
            assert strong[:, x2 - 1].any()
            assert strong[y1].any()
            assert strong[y2 - 1].any()
            outside = strong.clone()
            outside[y1:y2, x1:x2] = False
            assert not outside.any()
            assert covered[y1:y2, x1:x2].any()
        assert seen

    def test_scenes_without_people(self, samples: Samples, walls: Tensor) -> None:
        scenes = self.scene(samples, walls, people=(1.0, 0.0, 0.0))
        assert not scenes.present.any()
        assert not scenes.ignored.any()
        assert scenes.alpha.max() == 0
        assert scenes.image[:, 1].max() == 0  # walls are red or blue

    def test_people_in_front_cover_those_behind(self, samples: Samples, walls: Tensor) -> None:
        scenes = self.scene(samples, walls, 4, people=(0.0, 0.0, 0.0, 0.0, 1.0), relative_height=(0.4, 1.2))
        assert scenes.present.sum() > 6
        assert (scenes.alpha <= 1).all()
        assert (scenes.foreground <= 1).all()
        assert (scenes.parts[scenes.alpha > 0.9] > 0).float().mean() > 0.95

    def test_truncated_samples_are_not_used(self, samples: Samples, walls: Tensor) -> None:
        cut = replace(samples, boxes_xywh=torch.tensor([0.0, 0.0, 72.0, 96.0]).expand(6, 4))
        scenes = self.scene(cut, walls, people=(0.0, 1.0))
        assert not scenes.present.any()
        assert scenes.alpha.max() == 0

    def test_portraits_are_images_as_rendered(self, samples: Samples, walls: Tensor) -> None:
        scenes = self.scene(samples, walls, people=(0.0, 0.0, 1.0), close_up_probability=1.0)
        assert scenes.present[:, 0].sum() >= 4
        assert not scenes.present[:, 1:].any()
        for image in scenes.present[:, 0].nonzero()[:, 0].tolist():
            strong = scenes.alpha[image, 0] > 0.5
            rows, columns = strong.nonzero().unbind(1)
            box = [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]
            assert scenes.boxes_xyxy[image, 0].int().tolist() == box
            assert (scenes.parts[image][scenes.alpha[image] > 0.95] > 0).float().mean() > 0.97
        x1, y1, x2, _ = scenes.boxes_xyxy[scenes.present].unbind(1)
        assert ((x1 == 0) | (y1 == 0) | (x2 == 96)).any()  # cut off elsewhere than below
        behind = scenes.image - scenes.foreground
        assert behind[:, 1].max() > 0.05  # what it was drawn before, not the walls, which are red or blue
        some = self.scene(samples, walls, people=(0.0, 0.0, 1.0), close_up_probability=0.5)
        alone = self.scene(samples, walls, people=(0.0, 0.0, 1.0))
        kept = (some.image == alone.image).flatten(1).all(1)
        assert 0 < kept.sum() < 6

    def test_crops_of_scenes(self, samples: Samples, walls: Tensor) -> None:
        scenes = self.scene(samples, walls, 1, people=(0.0, 1.0), relative_height=(0.3, 0.5))
        crops = crop_scenes(scenes, rng=rng(1), size_hw=SIZE)
        some = scenes.present[:, 0]
        assert some.sum() >= 4
        assert crops.image.shape == (6, 3, *SIZE)
        for image in some.nonzero()[:, 0].tolist():
            rows, columns = (crops.alpha[image, 0] > 0.5).nonzero().unbind(1)
            high, wide = (rows.max() - rows.min() + 1) / SIZE[0], (columns.max() - columns.min() + 1) / SIZE[1]
            assert 0.58 < max(high, wide) < 1.02  # a padding of 1.25 times 0.85 to 1.2
        assert (crops.parts[crops.alpha > 0.95] > 0).float().mean() > 0.97
        assert (crops.parts[crops.alpha < 0.05] > 0).float().mean() < 0.03
        behind = crops.image - crops.foreground  # walls are red or blue
        assert behind[:, 1].abs().mean() < 0.01  # but for the rings of the enlargement

    def test_empty_scenes_are_replaced_by_others(self, samples: Samples, walls: Tensor) -> None:
        scenes = self.scene(samples, walls, people=(0.5, 0.5))
        peopled = scenes.present.any(dim=1)
        assert 0 < peopled.sum() < len(peopled)
        crops = crop_scenes(scenes, rng=rng(2), size_hw=SIZE)
        assert (crops.parts > 0).flatten(1).any(dim=1).all()

    def test_crops_of_scenes_without_people(self, samples: Samples, walls: Tensor) -> None:
        crops = crop_scenes(self.scene(samples, walls, people=(1.0, 0.0)), rng=rng(2), size_hw=SIZE)
        assert crops.alpha.max() == 0
        assert crops.image.amax(dim=(1, 2, 3)).min() > 0.2
        wide = crop_scenes(
            self.scene(samples, walls, people=(0.0, 1.0), relative_height=(1.3, 1.35)), rng=rng(3), size_hw=SIZE
        )
        assert (wide.image[:, :, 0].amax(dim=(1, 2)) == 0).any()


def test_background_crops_are_inside_the_images(walls: Tensor) -> None:
    cut = _crop_backgrounds(walls, 16, (24, 32), rng=rng())
    assert cut.shape == (16, 3, 24, 32)
    assert (cut[:, 1] == 0).all()  # no green was ever there
    assert (cut.amax(dim=(1, 2, 3)) > 0.2).all()
