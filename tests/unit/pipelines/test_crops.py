"""People cut out and pasted back: exact where crops agree, without seams where they do not, frugal with memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.images import crop_boxes
from vitruvian.pipelines.crops import BLOCK, Canvas, Pasted, Window, crop_windows, person_windows

Floats = NDArray[np.float32]
SIZE = (300, 420)
BOXES = np.array([[40, 50, 120, 250], [90, 80, 200, 280], [300, -40, 380, 120], [405, 290, 460, 340]], np.float32)


def ramp_map(size_hw: tuple[int, int] = SIZE) -> Floats:
    """Three channels that change evenly from pixel to pixel, each in its own direction: [3, H, W]."""
    rows, columns = np.indices(size_hw, dtype=np.float32)
    return np.stack((columns, rows, 2 * columns - rows + 7))


def paste(source: Floats, windows: list[Window], **options: Any) -> Pasted:
    """Cut a map [C, H, W] up and paste it back."""
    canvas = Canvas(source.shape[1:], windows, channels=len(source), **options)  # type: ignore[arg-type]
    for index, window in enumerate(windows):
        canvas.add(index, window.cut(source.transpose(1, 2, 0)).transpose(2, 0, 1))  # type: ignore[arg-type]
    return canvas.finish()


class TestWindows:
    def test_they_have_the_models_shape_and_lie_inside(self) -> None:
        windows = person_windows(BOXES, SIZE, padding=1.25, aspect=0.75)
        for window, box in zip(windows, BOXES, strict=True):
            assert window.width / window.height == pytest.approx(0.75, abs=0.02)
            assert min(window.top, window.left) >= 0
            assert window.top + window.height <= SIZE[0]
            assert window.left + window.width <= SIZE[1]
            low, high = np.clip(box[:2], 0, [420, 300]), np.clip(box[2:], 0, [420, 300])
            assert (low >= [window.left, window.top]).all()
            assert (high <= [window.left + window.width, window.top + window.height]).all()
        assert windows[0] == Window(25, 0, 250, 188)  # shifted in from the left

    def test_any_box(self) -> None:
        boxes = np.array([[-900, -900, -800, -700], [10, 10, 10.2, 10.1], [-50, -50, 900, 900]], np.float32)
        outside, tiny, all_of_it = person_windows(boxes, SIZE)
        assert outside == Window(0, 0, 250, 188)
        assert tiny == Window(10, 10, 1, 1)
        assert all_of_it == Window(0, 0, 300, 420)
        assert tiny.cut(np.zeros((*SIZE, 3), np.uint8)).shape == (1, 1, 3)

    def test_the_boxs_own_shape(self) -> None:
        (window,) = person_windows(np.array([[100, 100, 140, 120]], np.float32), SIZE, padding=1.5, aspect=None)
        assert window == Window(95, 90, 30, 60)

    @pytest.mark.parametrize(("boxes", "options"), [
        ([[0, 0, 0, 5]], {}), ([[0, 0, np.nan, 5]], {}), ([[0, 0, 5]], {}), ([[0, 0, 5, 5]], {"padding": 0}),
        ([[0, 0, 5, 5]], {"aspect": -1}),
    ])  # fmt: skip
    def test_impossible_ones_are_refused(self, boxes: Any, options: Any) -> None:
        with pytest.raises(InputError, match="expected"):
            person_windows(np.array(boxes, np.float32), SIZE, **options)

    def test_no_boxes(self) -> None:
        assert person_windows(np.zeros((0, 4), np.float32), SIZE) == []
        assert crop_windows(np.zeros((0, 4), np.float32), (64, 48)) == []

    def test_fractions_of_pixels_cannot_be_cut(self) -> None:
        with pytest.raises(InputError, match="whole pixels"):
            Window(0.5, 0, 3, 3).cut(np.zeros((9, 9, 3), np.uint8))
        with pytest.raises(InputError, match="whole pixels"):
            Window(-1, 0, 3, 3).cut(np.zeros((9, 9, 3), np.uint8))

    @pytest.mark.parametrize(("input_hw", "error"), [((128, 96), 0.01), ((64, 48), 0.01), ((400, 300), 0.2)])
    def test_crops_of_the_processor_go_back(self, input_hw: tuple[int, int], error: float) -> None:
        """What `crop_boxes` samples from an even ramp, pasted, is the ramp again: the geometry is the same."""
        source = ramp_map()
        boxes = BOXES[:3]
        sizes = torch.from_numpy(np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1))
        crops = crop_boxes(torch.from_numpy(source), sizes, input_hw)  # [N, 3, h, w]
        seen = crop_boxes(torch.ones(1, *SIZE), sizes, input_hw)[:, 0]  # zeros outside of the picture
        windows = crop_windows(boxes, input_hw)
        canvas = Canvas(SIZE, windows, channels=3, boxes_xyxy=boxes, fill=np.nan)
        for index, crop in enumerate(crops):
            canvas.add(index, crop, confidence=(seen[index] > 0.999).float())
        pasted = canvas.finish()
        for box in boxes:
            x1, y1, x2, y2 = np.clip(box, 3, [417, 297, 417, 297]).astype(int)
            got, want = pasted.values[y1:y2, x1:x2], source[:, y1:y2, x1:x2].transpose(1, 2, 0)
            np.testing.assert_allclose(got, want, atol=error)


class TestExactness:
    @pytest.mark.parametrize("with_boxes", [True, False])
    def test_ramps_come_back(self, with_boxes: bool) -> None:
        source, windows = ramp_map(), person_windows(BOXES, SIZE)
        pasted = paste(source, windows, boxes_xyxy=BOXES if with_boxes else None, fill=-5.0)
        np.testing.assert_allclose(pasted.values[pasted.cover], source.transpose(1, 2, 0)[pasted.cover], rtol=3e-6)
        assert (pasted.values[~pasted.cover] == -5).all()
        for window in windows:
            top, left, height, width = (int(side) for side in window)
            assert pasted.cover[top : top + height, left : left + width].all()

    def test_one_window_is_exact_to_the_bit(self) -> None:
        source = np.random.default_rng(0).normal(size=(2, *SIZE)).astype(np.float32)
        pasted = paste(source, [Window(0, 0, *SIZE)])
        np.testing.assert_array_equal(pasted.values, source.transpose(1, 2, 0))

    @pytest.mark.parametrize("resolution", [(40, 30), (500, 400), (100, 700)])
    def test_constants_come_back_from_any_resolution(self, resolution: tuple[int, int]) -> None:
        windows = person_windows(BOXES, SIZE)
        canvas = Canvas(SIZE, windows, channels=1, boxes_xyxy=BOXES)
        for index in range(len(windows)):
            canvas.add(index, np.full((1, *resolution), 3.25, np.float32))
        pasted = canvas.finish()
        np.testing.assert_allclose(pasted.values[pasted.cover], 3.25, rtol=1e-6)

    def test_enlarging_is_bilinear(self) -> None:
        small = torch.rand(2, 30, 42, generator=torch.Generator().manual_seed(0))
        canvas = Canvas(SIZE, [Window(0, 0, *SIZE)], channels=2)
        canvas.add(0, small)
        want = torch.nn.functional.interpolate(small[None], SIZE, mode="bilinear")[0].permute(1, 2, 0)
        np.testing.assert_allclose(canvas.finish().values, want.numpy(), atol=3e-5)

    def test_shrinking_averages(self) -> None:
        fine = np.random.default_rng(0).uniform(size=(1, 90, 90)).astype(np.float32)
        canvas = Canvas(SIZE, [Window(10, 10, 6, 6)], channels=1)
        canvas.add(0, fine)
        blocks = fine[0].reshape(6, 15, 6, 15).mean((1, 3))
        np.testing.assert_allclose(canvas.finish().values[10:16, 10:16, 0], blocks, atol=0.08)

    def test_window_outside_the_picture_changes_nothing(self) -> None:
        canvas = Canvas(SIZE, [Window(-50, -50, 20, 20), Window(400, 500, 9, 9)], channels=1, fill=2.0)
        canvas.add(0, np.ones((1, 4, 4)))
        canvas.add(1, np.ones((1, 4, 4)))
        pasted = canvas.finish()
        assert not pasted.cover.any()
        assert (pasted.values == 2).all()


class TestBlending:
    def test_no_seam_where_crops_disagree(self) -> None:
        """Two crops differ by one; the step is spread so that no two neighbouring pixels differ by much."""
        windows = [Window(0, 0, 300, 240), Window(0, 180, 300, 240)]
        canvas = Canvas(SIZE, windows, channels=1, feather=0.25)
        canvas.add(0, np.zeros((1, 30, 30)))
        canvas.add(1, np.ones((1, 30, 30)))
        row = canvas.finish().values[150, :, 0]
        assert np.abs(np.diff(row)).max() < 2.0 / 60  # over an overlap of 60 pixels
        assert (row[:180] == 0).all()
        assert (row[240:] == 1).all()
        hard = Canvas(SIZE, windows, channels=1, feather=0.0)
        hard.add(0, np.zeros((1, 30, 30)))
        hard.add(1, np.ones((1, 30, 30)))
        assert np.abs(np.diff(hard.finish().values[150, :, 0])).max() >= 0.5

    def test_each_persons_crop_decides_over_their_box(self) -> None:
        boxes = np.array([[60, 60, 140, 240], [180, 60, 260, 240]], np.float32)
        windows = [Window(40, 20, 220, 180), Window(40, 120, 220, 180)]  # overlap from 120 to 200
        canvas = Canvas(SIZE, windows, channels=1, boxes_xyxy=boxes)
        canvas.add(0, np.zeros((1, 22, 18)))
        canvas.add(1, np.ones((1, 22, 18)))
        row = canvas.finish().values[150, :, 0]
        assert row[130] < 0.1
        assert row[190] > 0.9
        assert np.abs(np.diff(row[20:300])).max() < 0.06

    def test_windows_fade_into_what_lies_under(self) -> None:
        under = np.full((*SIZE, 1), 10.0, np.float32)
        canvas = Canvas(SIZE, [Window(50, 100, 200, 200)], channels=1, under=under)
        canvas.add(0, np.full((1, 20, 20), 11.0))
        pasted = canvas.finish()
        row = pasted.values[150, :, 0]
        assert np.abs(np.diff(row)).max() < 0.12
        assert row[200] == 11
        assert (row[:100] == 10).all()
        faded = Canvas(SIZE, [Window(50, 100, 200, 200)], channels=1, under=0.0)
        faded.add(0, np.ones((1, 20, 20)))
        assert faded.finish().values[150, 101, 0] < 0.02

    def test_vectors_keep_their_length(self) -> None:
        windows = [Window(0, 0, 300, 240), Window(0, 180, 300, 240)]
        canvas = Canvas(SIZE, windows, channels=3, blend="unit", feather=0.25)
        canvas.add(0, np.broadcast_to(np.array([1, 0, 0], np.float32)[:, None, None], (3, 9, 9)).copy())
        canvas.add(1, np.broadcast_to(np.array([0, 1, 0], np.float32)[:, None, None], (3, 9, 9)).copy())
        values = canvas.finish().values
        np.testing.assert_allclose(np.linalg.norm(values, axis=-1), 1, atol=1e-6)
        assert 0.3 < values[150, 210, 0] < 0.95

    def test_mattes_keep_a_person_whom_the_neighbours_crop_does_not_see(self) -> None:
        windows = [Window(0, 0, 300, 240), Window(0, 180, 300, 240)]
        canvas = Canvas(SIZE, windows, channels=4, blend="alpha", feather=0.25)
        canvas.add(0, np.full((4, 30, 24), 1.0))
        canvas.add(1, np.zeros((4, 30, 24)))
        values = canvas.finish().values
        assert values[150, 210].min() > 0.9  # in the middle of the overlap
        assert values[150, 239, 3] < 0.1  # and gone at the edge, where the first crop knows least

    def test_a_soft_edge_stays_soft(self) -> None:
        """How much a crop counts for what it sees must not move the edge of a matte that is enlarged."""
        small = np.zeros((1, 30, 42), np.float32)
        small[:, :, 20:] = 1
        plain, matte = (Canvas(SIZE, [Window(0, 0, *SIZE)], channels=1, blend=blend) for blend in ("mean", "alpha"))  # type: ignore[arg-type]
        plain.add(0, small)
        matte.add(0, small)
        np.testing.assert_allclose(matte.finish().values, plain.finish().values, atol=1e-6)

    def test_labels(self) -> None:
        """Class 0 is background: a crop that sees a part there wins over one that sees nothing."""
        windows = [Window(0, 0, 300, 240), Window(0, 180, 300, 240)]
        part, nothing = np.zeros((3, 30, 24), np.float32), np.zeros((3, 30, 24), np.float32)
        part[2], part[0] = 0.8, 0.2
        nothing[0] = 1.0
        canvas = Canvas(SIZE, windows, channels=3, blend="labels", feather=0.25)
        canvas.add(0, part)
        canvas.add(1, nothing)
        pasted = canvas.finish()
        assert pasted.labels is not None
        assert pasted.labels.dtype == np.uint8
        assert (pasted.labels[:, :225] == 2).all()
        assert (pasted.labels[:, 240:] == 0).all()
        assert pasted.values.shape == (*SIZE, 1)
        assert pasted.values[0, 0, 0] == pytest.approx(0.8)
        assert pasted.values[0, 300, 0] == pytest.approx(1.0)

    def test_what_is_not_known_does_not_count(self) -> None:
        values = np.full((1, 30, 42), 5.0, np.float32)
        values[:, 10:20, 10:20] = np.nan
        confidence = np.ones((30, 42))
        confidence[:, 30:] = 0
        canvas = Canvas(SIZE, [Window(0, 0, *SIZE)], channels=1, fill=-1.0)
        canvas.add(0, values, confidence)
        pasted = canvas.finish()
        np.testing.assert_allclose(pasted.values[pasted.cover], 5, rtol=1e-6)
        assert not pasted.cover[120:180, 120:180].any()
        assert not pasted.cover[:, 320:].any()
        assert pasted.values[150, 150, 0] == -1


def test_memory_follows_the_crops() -> None:
    """Blocks live only until their last window: small people far apart never hold more than one crop's blocks."""
    size, boxes = (2048, 2048), np.array([[x, y, x + 60, y + 80] for y in (100, 900, 1700) for x in (100, 900, 1700)])
    windows = person_windows(boxes.astype(np.float32), size)
    canvas = Canvas(size, windows, channels=1)
    most = 0
    for index in range(len(windows)):
        canvas.add(index, np.ones((1, 8, 6)))
        most = max(most, len(canvas.sums))
    assert most == 0  # each block is closed with the only window in it
    crowd = Canvas(size, [windows[0]] * 5, channels=1)
    for index in range(5):
        crowd.add(index, np.ones((1, 8, 6)))
        assert len(crowd.sums) <= 4
        assert all(max(block.shape[1:]) <= BLOCK for block in crowd.sums.values())
    assert crowd.finish().cover.any()


@pytest.mark.parametrize(
    "options",
    [{"blend": "median"}, {"feather": 0.6}, {"boxes_xyxy": BOXES}, {"under": np.zeros((3, 3, 1), np.float32)},
     {"blend": "labels", "under": 0.0}],
)  # fmt: skip
def test_bad_options_are_refused(options: Any) -> None:
    with pytest.raises(InputError, match="expected"):
        Canvas(SIZE, [Window(0, 0, 9, 9)], channels=1, **options)


def test_bad_maps_are_refused() -> None:
    canvas = Canvas(SIZE, [Window(0, 0, 9, 9)], channels=2)
    for values, confidence in (
        (np.ones((3, 4, 4)), None),
        (np.ones((4, 4)), None),
        (np.ones((2, 4, 4)), np.ones((3, 3))),
    ):
        with pytest.raises(InputError, match="expected the shape"):
            canvas.add(0, values, confidence)
    with pytest.raises(InputError, match="a map for every window"):
        canvas.finish()
    canvas.add(0, np.ones((2, 4, 4)))
    for index in (0, 1, -1):
        with pytest.raises(InputError, match="has no map yet"):
            canvas.add(index, np.ones((2, 4, 4)))
