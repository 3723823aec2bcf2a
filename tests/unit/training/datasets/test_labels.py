"""Views of images, and that every truth moves with the pixels."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.training.synthetic.shapes import rng
from vitruvian.errors import InputError
from vitruvian.human import FLIP_PERMUTATION, PART_FLIP_PERMUTATION
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.ops.heatmap_peaks import decode_heatmaps
from vitruvian.training.config import AugmentConfig
from vitruvian.training.datasets.crop_window import CropWindow
from vitruvian.training.datasets.folder import _Annotations, _crop_image, _image_crop, _person_crop, _random_crop
from vitruvian.training.datasets.labels import (
    LABEL_FIELDS,
    LabeledImages,
    downsample,
    keypoint_targets,
    normalize,
    task_labels,
)
from vitruvian.training.synthetic.camera import points_from_depth
from vitruvian.training.synthetic.dataset import ImageMaps

H, W = 40, 30
BOX = torch.tensor([6.0, 5.0, 16.0, 24.0])
CAMERA = torch.tensor([[50.0, 0, 14.0], [0, 50.0, 20.0], [0, 0, 1]])
LEFT_HAND, RIGHT_HAND = 6, 15


def person(device_noise: int = 0) -> tuple[ImageMaps, _Annotations]:
    """A slanted plane that stands in a box, left hand on one half."""
    generator = torch.Generator().manual_seed(device_noise)
    inside = torch.zeros(H, W)
    inside[5:29, 6:22] = 1
    x = torch.arange(W).expand(H, W)
    parts = (inside * torch.where(x < 14, LEFT_HAND, RIGHT_HAND)).byte()
    nearness = 0.4 + 0.002 * x + 0.001 * torch.arange(H)[:, None]
    color = torch.rand(3, H, W, generator=generator)
    alpha = inside[None] * 0.8
    back = torch.rand(3, H, W, generator=generator)
    image = color * alpha + back * (1 - alpha)
    points = torch.zeros(308, 3)
    points[0] = torch.tensor([10.0, 12.0, 2.0])
    points[1] = torch.tensor([15.5, 20.25, 1.0])
    normals = torch.tensor([0.6, 0.0, -0.8])[:, None, None] * inside
    maps = ImageMaps(
        image=(image * 255).round().byte(), matte=torch.cat([color, alpha]),
        albedo=color, parts=parts, normals=normals, depth=inside / nearness,
    )  # fmt: skip
    return maps, _Annotations(
        files={}, size_hw=(H, W), intrinsics=CAMERA, keypoints=points,
        boxes_xywh=torch.stack([BOX, torch.tensor([0.0, 0, 1, 1])]), stature_m=1.7, area=float(inside.sum()),
    )  # fmt: skip


def smooth() -> tuple[ImageMaps, _Annotations]:
    """The same person in an image whose color is the position: red is x, green is y."""
    y, x = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    maps, known = person()
    return {**maps, "image": torch.stack([x * 6, y * 6, torch.zeros_like(x)]).byte()}, known


def adjusted(window: CropWindow, scale: float, shift_xy: tuple[float, float], flipped: bool = False) -> CropWindow:
    size = torch.tensor([window.size_hw[1], window.size_hw[0]])
    middle = (size - 1) / 2
    start = window.start_xy + window.step_xy * (middle - (middle + torch.tensor(shift_xy) * size) / scale)
    return replace(window, start_xy=start, step_xy=window.step_xy / scale, flipped=torch.tensor([flipped]))


WINDOWS = {
    "same": _image_crop((H, W), (H, W)),
    "larger": _image_crop((H, W), (2 * H, 2 * W)),
    "person": _person_crop(BOX, (64, 48)),
    "moved": adjusted(_person_crop(BOX, (64, 48)), 1.2, (0.05, -0.1)),
    "mirrored": adjusted(_person_crop(BOX, (64, 48)), 0.9, (0.05, 0.1), flipped=True),
}


def test_crop_of_the_whole_image():
    maps, known = person()
    view = _crop_image(maps, known, WINDOWS["same"])
    assert torch.allclose(view.image[0], maps["image"] / 255, atol=1e-5)
    assert torch.allclose(view.alpha[0], maps["matte"][3:], atol=1e-5)  # type: ignore[index]
    assert torch.equal(view.parts[0, 0], maps["parts"].long())  # type: ignore[index,union-attr]
    assert torch.allclose(view.depth[0, 0], maps["depth"], atol=1e-5)  # type: ignore[index,arg-type]
    assert torch.equal(view.intrinsics[0], CAMERA)
    assert torch.equal(view.keypoints[0], known.keypoints)
    assert view.boxes_xyxy[0].tolist() == [[6, 5, 22, 29], [0, 0, 0, 0]]  # one pixel is no person
    assert view.area.item() == 16 * 24


@pytest.mark.parametrize("name", WINDOWS)
def test_keypoints_follow_the_pixels(name: str):
    view = _crop_image(*smooth(), WINDOWS[name])
    order = FLIP_PERMUTATION if WINDOWS[name].flipped else range(308)
    for number, (x, y) in ((0, (10.0, 12.0)), (1, (15.5, 20.25))):
        u, v, state = view.keypoints[0, order[number]].tolist()
        assert state > 0
        grid = torch.tensor([[[[u / (view.image.shape[3] - 1) * 2 - 1, v / (view.image.shape[2] - 1) * 2 - 1]]]])
        red, green, _ = torch.nn.functional.grid_sample(view.image, grid, align_corners=True)[0, :, 0, 0].tolist()
        assert (red * 255 / 6, green * 255 / 6) == pytest.approx((x, y), abs=0.06)


@pytest.mark.parametrize("name", WINDOWS)
def test_points_do_not_depend_on_the_crop(name: str):
    maps, known = person()
    window = WINDOWS[name]
    view = _crop_image(maps, known, window)
    before = points_from_depth(maps["depth"][None], CAMERA[None])[0]  # type: ignore[index]
    seen = before[2] > 0
    plane = torch.linalg.lstsq(before[:, seen].T, torch.ones(int(seen.sum()), 1)).solution  # n · p = 1
    after = view.points[0]
    inner = (after[2] > 0) & (torch.nn.functional.avg_pool2d((after[2:] > 0).float()[None], 5, 1, 2)[0, 0] > 0.99)
    assert inner.sum() > 50
    found = after[:, inner].T
    if window.flipped:
        found = found * torch.tensor([-1.0, 1.0, 1.0])
    if window.centered:  # its camera looks at the middle: back to where the image's own looks
        own = replace(window, centered=False, flipped=torch.zeros(1, dtype=torch.bool)).camera(CAMERA[None])[0]
        middle = window.camera(CAMERA[None])[0, :2, 2]
        assert middle.tolist() == [(window.size_hw[1] - 1) / 2, (window.size_hw[0] - 1) / 2]
        found[:, :2] += (middle - own[:2, 2]) / own.diagonal()[:2] * found[:, 2:]
    assert torch.allclose(found @ plane, torch.ones(len(found), 1), atol=2e-3)
    # and the corners of the person are at the same place in space
    assert found.amin(0).tolist() == pytest.approx(before[:, seen].amin(1).tolist(), abs=0.15)
    assert found.amax(0).tolist() == pytest.approx(before[:, seen].amax(1).tolist(), abs=0.15)


def test_mirrored_crop_swaps_sides():
    window = WINDOWS["same"]
    view = _crop_image(*person(), window)
    mirrored = _crop_image(*person(), replace(window, flipped=torch.tensor([True])))
    assert torch.allclose(mirrored.image, view.image.flip(-1))
    assert PART_FLIP_PERMUTATION[LEFT_HAND] == RIGHT_HAND
    assert mirrored.parts is not None
    assert view.parts is not None
    assert mirrored.parts[0, 0, 10, W - 1 - 8] == RIGHT_HAND
    assert view.parts[0, 0, 10, 8] == LEFT_HAND
    assert mirrored.normals[0, :, 10, W - 1 - 8].tolist() == pytest.approx([-0.6, 0.0, -0.8])  # type: ignore[index]
    assert mirrored.intrinsics[0, 0, 2].item() == W - 1 - 14
    assert mirrored.keypoints[0, FLIP_PERMUTATION[1]].tolist() == pytest.approx([W - 1 - 15.5, 20.25, 1.0])
    assert mirrored.boxes_xyxy[0].tolist() == [[W - 22, 5, W - 6, 29], [0, 0, 0, 0]]


def test_person_crop_equals_the_image_processor():
    maps, known = smooth()
    view = _crop_image(maps, known, WINDOWS["person"])
    processor = Sapiens2ImageProcessor(size={"height": 64, "width": 48}, do_normalize=False)
    theirs = processor(maps["image"], boxes=[[BOX.tolist()]], return_tensors="pt").pixel_values
    inner = view.valid[0, 0].clone()
    inner &= torch.nn.functional.avg_pool2d(view.valid.float(), 7, 1, 3)[0, 0] > 0.999
    assert (view.image[0] - theirs[0])[:, inner].abs().max() < 0.01  # cubic there, linear here


def test_pixels_outside_the_image_are_ignored():
    view = _crop_image(*person(), adjusted(WINDOWS["larger"], 0.5, (0.4, 0.0)))
    assert 0.4 < 1 - view.valid.float().mean() < 0.9
    assert (task_labels(view, "parts", stride=1)["labels"] == 255).eq(~view.valid[:, 0]).all()
    for task in ("normals", "matte", "albedo"):
        assert not (task_labels(view, task, stride=1)["label_mask"] & ~view.valid).any()
    away = _crop_image(*person(), adjusted(WINDOWS["same"], 1.0, (-0.6, 0.0)))
    assert (away.keypoints[..., 2] == 0).all()


def test_labels_of_every_task():
    view = _crop_image(*person(), WINDOWS["person"])
    both = LabeledImages.cat([view, view])
    assert len(both) == 2
    assert normalize(both.image).shape == (2, 3, 64, 48)
    labels = {task: task_labels(both, task, stride={"pose": 4, "people": 8}.get(task, 1)) for task in LABEL_FIELDS}
    assert labels["pose"]["labels"].shape == (2, 308, 16, 12)
    assert labels["pose"]["label_weights"].sum() == 4
    assert labels["parts"]["labels"].dtype == torch.int64
    assert torch.equal(labels["pointmap"]["labels"][:, 2] > 0, both.parts[:, 0] > 0)
    assert labels["people"]["labels"].center.shape == (2, 1, 8, 6)
    assert (labels["people"]["labels"].center.flatten(1).amax(1) > 0.9).all()
    matte = labels["matte"]["labels"]
    assert (matte[:, :3] <= matte[:, 3:] + 1e-6).all()  # premultiplied
    with pytest.raises(InputError, match="expected one of pose, parts"):
        task_labels(view, "mood", stride=1)
    without = replace(view, parts=None)
    assert view.has_labels("albedo")
    assert not without.has_labels("albedo")
    with pytest.raises(InputError, match="parts is needed for this task"):
        task_labels(without, "parts", stride=1)


def test_ignored_people_are_no_targets():
    view = _crop_image(*person(), WINDOWS["same"])
    assert view.present.tolist() == [[True, False]]  # the second has no box
    ignored = replace(view, ignored=torch.tensor([[True, False]]))
    assert not ignored.present.any()
    target = task_labels(ignored, "people", stride=4)["labels"]
    assert target.center.max() == 0
    assert 0 < target.weight.mean() < 1


def test_labels_of_heads_at_half_size():
    view = _crop_image(*person(), WINDOWS["person"])
    small = downsample(view, 2, rng())
    assert torch.equal(small.image, view.image)
    assert small.alpha.shape == small.parts.shape == small.valid.shape == (1, 1, 32, 24)
    labels = {task: task_labels(small, task, stride=2) for task in ("parts", "normals", "pointmap", "matte", "albedo")}
    assert labels["parts"]["labels"].shape == (1, 32, 24)
    assert labels["matte"]["labels"].shape == (1, 4, 32, 24)
    assert task_labels(view, "pose", stride=8)["labels"].shape == (1, 308, 8, 6)
    # the point that a cell shows is that of the pixels in it
    full, points = view.points, labels["pointmap"]["labels"]
    means = torch.nn.functional.avg_pool2d(full, 2)
    edge = torch.nn.functional.avg_pool2d((full[:, 2:] > 0).float(), 2)[0, 0] < 1
    seen = (points[0, 2] > 0) & ~edge
    assert seen.sum() > 50
    assert (points - means)[0, :, seen].abs().max() < 0.01
    assert torch.allclose(small.normals[0, :, seen].norm(dim=0), torch.ones(int(seen.sum())), atol=1e-4)
    assert {int(downsample(view, 2, rng(seed)).parts.sum()) for seed in range(8)} != {int(small.parts.sum())}
    assert downsample(view, 1, rng()) is view


def test_heatmaps_decode_to_their_keypoints():
    view = _crop_image(*person(), _person_crop(BOX, (256, 192)))
    heatmaps, weights = keypoint_targets(view.keypoints, size_hw=(256, 192), sigma=2.0)
    xy, _ = decode_heatmaps(heatmaps)
    xy = xy * torch.tensor([191 / 47, 255 / 63])
    known = weights[0] > 0
    assert known.nonzero().flatten().tolist() == [0, 1]
    assert torch.allclose(xy[0, known], view.keypoints[0, known, :2], atol=0.2)
    wide, narrow = (keypoint_targets(view.keypoints, size_hw=(256, 192), sigma=s)[0].sum() for s in (None, 0.75))
    assert wide / narrow == pytest.approx((1.5 / 0.75) ** 2, rel=0.05)  # 6 at 256 rows is 1.5 at 64


def test_random_crops_are_within_their_limits():
    base, part = WINDOWS["person"], AugmentConfig(flip=0.25, scale=0.2, shift=0.1)
    generator = torch.Generator().manual_seed(0)
    drawn = [_random_crop(base, part, generator) for _ in range(200)]
    scales = [float(base.step_xy[0, 0] / window.step_xy[0, 0]) for window in drawn]
    assert 1 / 1.2 - 1e-6 <= min(scales) < 0.87
    assert 1.15 < max(scales) <= 1.2 + 1e-6
    assert 20 < sum(bool(window.flipped) for window in drawn) < 80
    middle = Tensor([(47) / 2, (63) / 2])
    kept = middle * base.step_xy + base.start_xy  # what was in the middle
    shifts = torch.stack([((kept - w.start_xy) / w.step_xy - middle) / Tensor([48, 64]) for w in drawn])
    assert shifts.abs().max() <= 0.1 + 1e-5
    assert shifts.abs().max() > 0.08
    still = _random_crop(base, AugmentConfig(flip=0, scale=0, shift=0), generator)
    assert torch.allclose(still.start_xy, base.start_xy)
    assert torch.allclose(still.step_xy, base.step_xy)
    assert not still.flipped


def test_heatmaps_peak_where_keypoints_are() -> None:
    keypoints = torch.tensor([[[0.0, 0.0, 2.0], [47.0, 63.0, 1.0], [20.0, 30.0, 0.0]]])
    maps, weights = keypoint_targets(keypoints, size_hw=(64, 48), stride=4, sigma=1.0)
    assert maps.shape == (1, 3, 16, 12)
    assert maps[0, 0].argmax() == 0
    assert maps[0, 1].argmax() == 16 * 12 - 1
    assert maps[0, 0].max() == pytest.approx(1.0)
    assert maps[0, 0, 0, 1] == pytest.approx(torch.tensor(-0.5).exp().item(), abs=1e-6)
    assert weights.tolist() == [[1.0, 1.0, 0.0]]
