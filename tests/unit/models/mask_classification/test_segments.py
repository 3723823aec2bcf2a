from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.rle import decode_rle
from vitruvian.models.mask_classification import mask_grid, semantic
from vitruvian.models.mask_classification.mask_grid import MaskGrid, make_axis
from vitruvian.models.mask_classification.segments import (
    Thresholds,
    instance_map,
    instance_masks,
    panoptic_segments,
    stack_masks,
)
from vitruvian.models.mask_classification.semantic import semantic_map, semantic_scores

DEFAULT = Thresholds()
SIZES = [(37, 53), (24, 32), (11, 9), (1, 1), (24, 90), (130, 32)]


def queries(seed: int, count: int = 12, labels: int = 5, grid: tuple[int, int] = (24, 32)) -> tuple[Tensor, Tensor]:
    """Smooth masks and class logits of mixed certainty."""
    torch.manual_seed(seed)
    classes = torch.randn(count, labels + 1) * 3
    small = torch.randn(1, count, 6, 8)
    masks = F.interpolate(small, size=grid, mode="bicubic")[0] * torch.rand(count, 1, 1) * 6 - torch.rand(count, 1, 1)
    return classes, masks


def upsampled(masks: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(masks[None], size=size, mode="bilinear", align_corners=False)[0]


# ------------------------------------------------------------------------------------------------------- the grid


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_interpolate(size: tuple[int, int]) -> None:
    _, masks = queries(0)
    grid, expected = MaskGrid.make(masks, size), upsampled(masks, size)
    top, left = size[0] // 3, size[1] // 4
    for query in range(3):
        assert torch.allclose(grid.at(query, (0, size[0], 0, size[1])), expected[query], atol=1e-5)
        part = grid.at(query, (top, size[0], left, size[1]))
        assert torch.allclose(part, expected[query, top:, left:], atol=1e-5)


def test_padding_has_no_part_in_the_pixels() -> None:
    _, masks = queries(1)
    padded = torch.full((12, 40, 48), 100.0)
    padded[:, :24, :32] = masks
    window = (0, 50, 0, 60)
    inside = MaskGrid.make(padded, (50, 60), (24, 32))
    assert torch.equal(inside.at(3, window), MaskGrid.make(masks, (50, 60)).at(3, window))


def test_content_that_ends_inside_a_cell() -> None:
    axis = make_axis(2.5, 10)
    position = [min(max((i + 0.5) / 4 - 0.5, 0), 2) for i in range(10)]
    assert (axis.low + axis.weight).tolist() == pytest.approx(position)
    assert axis.cells == 3
    assert MaskGrid.make(torch.zeros(1, 4, 4), None, (2.5, 3)).size_hw == (3, 3)


@pytest.mark.parametrize("size", SIZES)
def test_nothing_lies_outside_of_the_windows(size: tuple[int, int]) -> None:
    _, masks = queries(2)
    grid, level = MaskGrid.make(masks, size), torch.linspace(-2, 4, 12)
    expected = upsampled(masks, size) >= level[:, None, None]
    shrunk = 0
    for mask, (top, bottom, left, right) in zip(expected, grid.windows(range(12), level), strict=True):
        assert int(mask.sum()) == int(mask[top:bottom, left:right].sum())
        shrunk += (bottom - top) * (right - left) < mask.numel()
    assert shrunk or size == (1, 1)


def test_strips_cover_a_window_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mask_grid._STRIP_PIXELS, "cpu", 100)
    grid = MaskGrid.make(torch.zeros(1, 4, 4), (50, 40))
    strips = list(grid.strips((3, 20, 5, 30)))
    assert [strip[:2] for strip in strips] == [(3, 7), (7, 11), (11, 15), (15, 19), (19, 20)]
    assert {strip[2:] for strip in strips} == {(5, 30)}
    assert list(grid.strips((0, 0, 0, 0))) == []


@pytest.mark.parametrize("content", [(0, 4), (4, 9), (5, 4)])
def test_content_must_lie_on_the_grid(content: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="4×8 mask grid"):
        MaskGrid.make(torch.zeros(1, 4, 8), (5, 5), content)


# ------------------------------------------------------------------------------------------------------- panoptic


def brute_panoptic(classes, masks, size, threshold, mask_threshold, overlap, fuse) -> tuple[Tensor, list[dict]]:
    """The rules of `panoptic_segments` on full planes."""
    scores, labels = classes.softmax(-1).max(-1)
    selected = [q for q in range(len(scores)) if labels[q] < classes.shape[1] - 1 and scores[q] > threshold]
    ids, infos, shared = torch.zeros(size, dtype=torch.int32), [], {}
    if not selected:
        return ids, infos
    chances = upsampled(masks, size).sigmoid()[selected]
    owner = (chances * scores[selected][:, None, None]).argmax(0)
    for index, query in enumerate(selected):
        inside = chances[index] >= mask_threshold
        visible = inside & (owner == index)
        if not visible.any() or visible.sum() < overlap * inside.sum():
            continue
        label = int(labels[query])
        if label in shared:
            info = shared[label]
            info["score"] = max(info["score"], round(float(scores[query]), 6))
        else:
            info = {"id": len(infos) + 1, "label_id": label, "was_fused": label in fuse}
            info["score"] = round(float(scores[query]), 6)
            infos.append(info)
            if label in fuse:
                shared[label] = info
        ids[visible] = info["id"]
    return ids, infos


@pytest.mark.parametrize("size", SIZES[:3])
@pytest.mark.parametrize(
    "options", [(0.5, 0.5, 0.4, ()), (0.3, 0.5, 0.3, (1, 2)), (0.2, 0.2, 0.0, ()), (0.3, 0.8, 0.5, (0, 1, 2, 3, 4))]
)
def test_panoptic_against_full_planes(size: tuple[int, int], options: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mask_grid._STRIP_PIXELS, "cpu", 200)
    threshold, mask_threshold, overlap, fuse = options
    found = 0
    for seed in range(6):
        classes, masks = queries(seed)
        thresholds = Thresholds(threshold, mask_threshold, overlap)
        ids, segments = panoptic_segments(classes, MaskGrid.make(masks, size), thresholds, fuse)
        expected, infos = brute_panoptic(classes, masks, size, threshold, mask_threshold, overlap, fuse)
        assert [segment.info() for segment in segments] == infos
        assert (ids != expected).float().mean() < 0.002  # a probability of exactly the threshold may round either way
        found += len(infos)
    assert ids.dtype == torch.int32
    assert found > 3


def shapes(*rows: str, high: float = 6.0) -> Tensor:
    """Draw masks: one string a row of the grid, a letter where the mask of that letter is high."""
    letters = sorted(set("".join(rows)) - {"."})
    return torch.stack([torch.tensor([[high if c == x else -high for c in row] for row in rows]) for x in letters])


def sure_of(*labels: int, count: int = 3, logit: float = 9.0) -> Tensor:
    """Class logits of queries that are sure of a label each; `count` means no object."""
    return torch.stack([F.one_hot(torch.tensor(label), count + 1) * logit for label in labels])


def test_fused_labels_share_an_id_and_new_ids_stay_free() -> None:
    masks, classes = shapes("aabbccdd"), sure_of(0, 1, 0, 1)
    ids, segments = panoptic_segments(classes, MaskGrid.make(masks), DEFAULT, {0})
    assert ids.tolist() == [[1, 1, 2, 2, 1, 1, 3, 3]]
    assert [(s.id, s.label_id, s.was_fused) for s in segments] == [(1, 0, True), (2, 1, False), (3, 1, False)]


def test_weak_winners_leave_pixels_empty() -> None:
    masks = torch.tensor([[[6.0, -0.5, -6.0]]])  # one query wins everywhere
    ids, _ = panoptic_segments(sure_of(1), MaskGrid.make(masks), DEFAULT)
    assert ids.tolist() == [[1, 0, 0]]
    ids, _ = panoptic_segments(sure_of(1), MaskGrid.make(masks), Thresholds(mask_threshold=0.3))
    assert ids.tolist() == [[1, 1, 0]]


def test_a_sure_query_beats_a_less_sure_one_even_where_its_mask_is_weak() -> None:
    masks = torch.tensor([[[6.0, -0.2, -9.0, -9.0]], [[-9.0, 0.5, 0.5, 0.5]]])
    classes = torch.stack([sure_of(0)[0], torch.tensor([0.0, 1.8, 0.0, 0.0])])  # scores of about 1 and 0.67
    ids, _ = panoptic_segments(classes, MaskGrid.make(masks), Thresholds(overlap_mask_area_threshold=0.5))
    assert ids.tolist() == [[1, 0, 2, 2]]  # 1 · 0.45 is more than 0.67 · 0.62, but 0.45 is too little


@pytest.mark.parametrize(("overlap", "count"), [(0.0, 2), (0.5, 2), (0.51, 1)])
def test_hidden_queries_are_dropped(overlap: float, count: int) -> None:
    masks = torch.tensor([[[8.0, 8.0, -8.0, -8.0]], [[-8.0, 4.0, 4.0, -8.0]]])  # the second wins one of its two pixels
    ids, segments = panoptic_segments(
        sure_of(0, 1), MaskGrid.make(masks), Thresholds(overlap_mask_area_threshold=overlap)
    )
    assert len(segments) == count
    assert ids.tolist() == [[1, 1, 2 if count == 2 else 0, 0]]


def test_no_query_above_the_threshold() -> None:
    classes, masks = sure_of(3, 3), shapes("ab")
    ids, segments = panoptic_segments(classes, MaskGrid.make(masks, (4, 6)), DEFAULT)
    assert (ids.tolist(), segments) == (torch.zeros(4, 6).tolist(), [])
    ids, segments = instance_map(classes, MaskGrid.make(masks, (4, 6)), DEFAULT)
    assert (ids.tolist(), segments) == (torch.full((4, 6), -1).tolist(), [])
    found, segments = instance_masks(classes, MaskGrid.make(masks, (4, 6)), DEFAULT)
    assert (found, segments) == ([], [])
    assert stack_masks(found, (4, 6)).shape == (0, 4, 6)


# ------------------------------------------------------------------------------------------------------- instances


def brute_instances(classes, masks, size, threshold, mask_threshold) -> list[tuple[float, int, Tensor]]:
    """Score, label and mask of each instance, best first, on full planes and before overlaps are looked at."""
    chances = upsampled(masks, size).sigmoid()
    rows = []
    for pair in classes.softmax(-1)[:, :-1].flatten().topk(len(classes)).indices.tolist():
        query, label = divmod(pair, classes.shape[1] - 1)
        inside = chances[query] >= mask_threshold
        if inside.any():
            score = float(classes.softmax(-1)[query, label] * chances[query][inside].mean())
            rows.append((score, label, inside))
    return sorted((row for row in rows if row[0] >= threshold), key=lambda row: -row[0])


@pytest.mark.parametrize("size", SIZES[:3])
@pytest.mark.parametrize(("threshold", "mask_threshold"), [(0.5, 0.5), (0.2, 0.5), (0.1, 0.8), (0.0, 0.3)])
def test_masks_against_full_planes(
    size: tuple[int, int], threshold: float, mask_threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mask_grid._STRIP_PIXELS, "cpu", 200)
    found = 0
    for seed in range(4):
        classes, masks = queries(seed)
        small, segments = instance_masks(classes, MaskGrid.make(masks, size), Thresholds(threshold, mask_threshold, 0))
        expected = brute_instances(classes, masks, size, threshold, mask_threshold)
        taken: dict[int, Tensor] = {}
        expected = [  # without those that better ones of their label hide wholly
            row
            for row in expected
            if (row[2] & ~taken.get(row[1], torch.zeros(size, dtype=torch.bool))).any()
            and (taken.update({row[1]: taken.get(row[1], row[2]) | row[2]}) or True)
        ]
        assert [(s.id, s.label_id) for s in segments] == [(i, label) for i, (_, label, _) in enumerate(expected)]
        assert [s.score for s in segments] == pytest.approx([score for score, _, _ in expected], abs=1e-5)
        stacked = stack_masks(small, size)
        for plane, mask, (_, _, inside) in zip(stacked, small, expected, strict=True):
            assert (plane != inside).float().mean() < 0.002
            assert torch.equal(decode_rle(mask.rle(size)), plane)
            assert mask.area == int(plane.sum())
        found += len(segments)
    assert found > 3
    assert stacked.dtype == torch.bool


def test_masks_may_overlap_unless_they_are_doubles_of_a_label() -> None:
    masks = torch.tensor([[[6.0, 6.0, 6.0, -6.0]], [[5.0, 5.0, 5.0, -6.0]], [[-6.0, 4.0, 4.0, 4.0]]])
    grid = MaskGrid.make(masks)

    def labels(*wanted: int, overlap: float = 0.8) -> list[int]:
        thresholds = Thresholds(overlap_mask_area_threshold=overlap)
        return [segment.label_id for segment in instance_masks(sure_of(*wanted), grid, thresholds)[1]]

    assert labels(0, 1, 2) == [0, 1, 2]
    assert labels(0, 0, 2) == [0, 2]  # all of the second is covered by the first
    assert labels(0, 1, 0) == [0, 1]  # a third of the third is left, less than 0.8
    assert labels(0, 1, 0, overlap=0.3) == [0, 1, 0]


def test_map_gives_each_pixel_to_the_surest() -> None:
    masks = torch.tensor([[[6.0, 6.0, 1.0, -6.0]], [[-6.0, -6.0, 4.0, 4.0]]])
    ids, segments = instance_map(sure_of(2, 1), MaskGrid.make(masks), Thresholds(overlap_mask_area_threshold=0.6))
    first, second = (0, 1) if segments[0].label_id == 2 else (1, 0)
    assert ids.tolist() == [[first, first, second, second]]
    assert ids.dtype == torch.int32
    ids, segments = instance_map(sure_of(2, 1), MaskGrid.make(masks), DEFAULT)
    assert [s.label_id for s in segments] == [1]  # the other wins two of three pixels
    assert ids.tolist() == [[-1, -1, 0, 0]]


def test_map_and_masks_agree_where_nothing_overlaps() -> None:
    masks, classes = shapes("aab.", "aab.", "cccc"), sure_of(0, 1, 1)
    grid = MaskGrid.make(masks, (30, 40))
    ids, segments = instance_map(classes, grid, Thresholds(overlap_mask_area_threshold=0))
    small, same = instance_masks(classes, grid, Thresholds(overlap_mask_area_threshold=0))
    assert segments == same
    for segment, plane in zip(segments, stack_masks(small, (30, 40)), strict=True):
        assert torch.equal(plane, ids == segment.id)


def test_a_query_with_two_labels_is_two_masks_but_one_region() -> None:
    classes = torch.tensor([[5.0, 5.0, 0.0]])
    grid = MaskGrid.make(shapes("aa"))
    assert [s.label_id for s in instance_masks(classes, grid, Thresholds(0.3))[1]] == [0]  # at most Q pairs
    classes, grid = classes.expand(2, 3), MaskGrid.make(shapes("ab"))
    assert len(instance_masks(classes, grid, Thresholds(0.3))[1]) == 2
    ids, segments = instance_map(classes, grid, Thresholds(0.3))
    assert sorted({s.id for s in segments} | {-1}) == sorted(set(ids.flatten().tolist()) | {-1})


@pytest.mark.parametrize("name", ["threshold", "mask_threshold", "overlap_mask_area_threshold"])
def test_thresholds_are_fractions(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}: expected a number from 0 to 1, got 1\.5"):
        Thresholds(**{name: 1.5})


@pytest.mark.parametrize("function", [panoptic_segments, instance_map, instance_masks, semantic_map, semantic_scores])
def test_half_precision_and_wrong_shapes(function) -> None:
    classes, masks = queries(4)
    options = () if function in (semantic_map, semantic_scores) else (DEFAULT,)
    exact = function(classes.bfloat16().float(), MaskGrid.make(masks.bfloat16().float(), (30, 30)), *options)
    half = function(classes.bfloat16(), MaskGrid.make(masks.bfloat16(), (30, 30)), *options)
    if isinstance(exact, tuple):
        assert exact[1] == half[1]
    else:
        assert torch.equal(exact, half)
    with pytest.raises(InputError, match="class logits"):
        function(classes[:3], MaskGrid.make(masks), *options)
    with pytest.raises(InputError, match="mask logits"):
        function(classes, MaskGrid.make(masks[0]), *options)


# ------------------------------------------------------------------------------------------------------- semantic


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("max_values", [1 << 24, 1 << 10])
def test_semantic_against_full_planes(size: tuple[int, int], max_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semantic, "_MAX_VALUES", max_values)
    for seed in range(4):
        classes, masks = queries(seed, count=15, labels=9)
        expected = torch.einsum("qk,qhw->khw", classes.softmax(-1)[:, :-1], upsampled(masks, size).sigmoid())
        grid = MaskGrid.make(masks, size)
        assert torch.allclose(semantic_scores(classes, grid), expected, atol=1e-5)
        found = semantic_map(classes, grid)
        top = expected.topk(2, dim=0).values
        clear = top[0] - top[1] > 1e-5  # of equals either will do
        assert torch.equal(found[clear], expected.argmax(0)[clear])
        assert found.dtype == torch.int64
    assert clear.float().mean() > 0.99


def test_most_pixels_are_never_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["a" * 20 + "b" * 20] * 30
    grid, computed, block_logits = MaskGrid.make(shapes(*rows), (300, 400)), [], semantic._block_logits

    def counted(*arguments):
        computed.append(block_logits(*arguments))
        return computed[-1]

    monkeypatch.setattr(semantic, "_block_logits", counted)
    found = semantic_map(sure_of(0, 1), grid)
    assert found[:, :200].eq(0).all()
    assert found[:, 200:].eq(1).all()
    assert 0 < sum(part.numel() for part in computed) < 0.1 * 2 * 300 * 400


def test_one_class_and_one_query() -> None:
    grid = MaskGrid.make(torch.randn(1, 4, 4), (9, 9))
    assert semantic_map(torch.zeros(1, 2), grid).eq(0).all()
    assert math.isclose(
        float(semantic_scores(torch.zeros(1, 2), grid).max()),
        float(grid.at(0, (0, 9, 0, 9)).sigmoid().max() / 2),
        rel_tol=1e-5,
    )
