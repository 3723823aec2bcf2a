from __future__ import annotations

import numpy as np
import pytest
import torch
from pycocotools import mask as coco

from vitruvian.errors import InputError
from vitruvian.images import rle as rle_module
from vitruvian.images.boxes import mask_boxes
from vitruvian.images.rle import (
    _decompress_counts,
    compress_counts,
    decode_rle,
    decode_rles,
    encode_packed,
    encode_rle,
    encode_rles,
    pack_masks,
    rle_area,
    rle_box_xywh,
    rle_iou,
)


def drawn(height: int, width: int, seed: int) -> np.ndarray:
    """Random blobs: a few boxes, some of them erased again."""
    random = np.random.default_rng(seed)
    mask = np.zeros((height, width), dtype=bool)
    for value in (True, True, False, True):
        y, x = random.integers(height), random.integers(width)
        mask[y : y + random.integers(1, height + 1), x : x + random.integers(1, width + 1)] = value
    return mask


def masks() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    corner = np.zeros((4, 6), dtype=bool)
    corner[0, 0] = True
    wrap = np.zeros((4, 6), dtype=bool)
    wrap[3, 1] = wrap[0, 2] = True  # one run over two columns
    return {
        "empty": np.zeros((5, 7), dtype=bool),
        "full": np.ones((5, 7), dtype=bool),
        "one pixel": np.ones((1, 1), dtype=bool),
        "one empty pixel": np.zeros((1, 1), dtype=bool),
        "row": random.random((1, 31)) > 0.5,
        "column": random.random((31, 1)) > 0.5,
        "corner": corner,
        "wrap": wrap,
        "noise": random.random((37, 53)) > 0.5,
        "sparse": random.random((200, 310)) > 0.999,
        "big": drawn(1500, 2100, 3),
        **{f"drawn {seed}": drawn(60, 47, seed) for seed in range(5)},
    }


@pytest.fixture(params=list(masks()), scope="module")
def mask(request: pytest.FixtureRequest) -> np.ndarray:
    return masks()[request.param]


def theirs(mask: np.ndarray) -> dict:
    return coco.encode(np.asfortranarray(mask.astype(np.uint8)))


def test_strings_are_those_of_pycocotools(mask: np.ndarray) -> None:
    expected = theirs(mask)
    actual = encode_rle(mask, compress=True)
    assert actual == {"size": list(expected["size"]), "counts": expected["counts"].decode()}


def test_lists_are_columns_with_background_first(mask: np.ndarray) -> None:
    counts = encode_rle(mask)["counts"]
    value, flat = False, []
    for count in counts:
        flat += [value] * count
        value = not value
    assert flat == mask.T.ravel().tolist()
    assert 0 not in counts[1:]


@pytest.mark.parametrize("compress", [False, True])
def test_round_trip(mask: np.ndarray, compress: bool) -> None:
    actual = decode_rle(encode_rle(mask, compress=compress))
    assert actual.dtype == torch.bool
    assert actual.is_contiguous()
    assert torch.equal(actual, torch.from_numpy(mask))


def test_pycocotools_reads_ours_and_we_read_its_bytes(mask: np.ndarray) -> None:
    assert np.array_equal(coco.decode(encode_rle(mask, compress=True)), mask)
    assert torch.equal(decode_rle(theirs(mask)), torch.from_numpy(mask))


def test_area_and_box_are_those_of_pycocotools(mask: np.ndarray) -> None:
    rle = encode_rle(mask)
    assert rle_area(rle) == coco.area(theirs(mask))
    assert rle_box_xywh(rle) == coco.toBbox(theirs(mask)).tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_dtypes_and_kinds_agree(dtype: torch.dtype) -> None:
    mask = torch.from_numpy(drawn(9, 11, 1))
    expected = encode_rle(mask)
    assert encode_rle(mask.to(dtype)) == expected
    assert encode_rle(mask.to(dtype).numpy()) == expected
    assert encode_rle(mask.t().contiguous().t().to(dtype)) == expected


def test_batches_are_singles(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = torch.stack([torch.from_numpy(drawn(20, 30, seed)) for seed in range(7)])
    batch[2], batch[3] = False, True
    singles = [encode_rle(mask, compress=True) for mask in batch]
    assert encode_rles(batch, compress=True) == singles
    monkeypatch.setattr(rle_module, "_CHUNK_PIXELS", 1300)
    assert encode_rles(batch, compress=True) == singles
    assert torch.equal(decode_rles(singles), batch)
    assert encode_rles(batch[:0]) == []


def test_packed_masks(mask: np.ndarray) -> None:
    tensor = torch.from_numpy(np.stack([mask, ~mask]))
    bits = pack_masks(tensor)
    assert torch.equal(rle_module._pack_on_device(tensor), bits)
    assert np.array_equal(np.unpackbits(bits.numpy(), axis=-1, count=mask.shape[1]).astype(bool), tensor.numpy())
    rles, boxes = encode_packed(bits.numpy(), mask.shape[1])
    assert rles == encode_rles(tensor)
    assert boxes.dtype == np.float32
    assert boxes.tolist() == mask_boxes(tensor).tolist()


def test_long_and_shrinking_runs_survive_the_string() -> None:
    counts = [0, 1 << 40, 3, 15, 16, 17, 511, 512, 1 << 33, 1, 5, 0]
    assert _decompress_counts(compress_counts(counts)).tolist() == counts


def test_iou_is_that_of_pycocotools() -> None:
    first = np.stack([drawn(40, 50, seed) for seed in range(6)] + [np.zeros((40, 50), dtype=bool)])
    second = np.stack([drawn(40, 50, seed) for seed in range(3, 8)] + [np.ones((40, 50), dtype=bool)])
    crowd = [0, 1, 0, 0, 1, 0]
    for flags in ([0] * 6, crowd):
        expected = coco.iou([theirs(m) for m in first], [theirs(m) for m in second], flags)
        actual = rle_iou(encode_rles(first), encode_rles(second, compress=True), crowd=[bool(f) for f in flags])
        assert np.allclose(actual.numpy(), expected, rtol=1e-12, atol=0)
    assert rle_iou([], encode_rles(second)).shape == (0, 6)
    assert rle_iou(encode_rles(first), []).shape == (7, 0)


@pytest.mark.parametrize(
    "rle",
    [
        {"size": [3, 4], "counts": [5, 6]},
        {"size": [3, 4], "counts": [5, 8]},
        {"size": [3, 4], "counts": [14, -2]},
        {"size": [3, 4], "counts": []},
        {"size": [3, 4], "counts": [[12]]},
        {"size": [3, 4], "counts": ["many"]},
        {"size": [3, 4], "counts": None},
        {"size": [3, 4], "counts": ""},
        {"size": [3, 4], "counts": "äö"},
        {"size": [3, 4], "counts": "\x01"},
        {"size": [3, 4], "counts": "P"},  # announces a next group that is missing
        {"size": [3, 4], "counts": "o" * 13 + "0"},
        {"size": [0, 4], "counts": [0]},
        {"size": [3], "counts": [3]},
        {"size": "34", "counts": [3]},
        {"counts": [3]},
        {"size": [3, 4]},
        [12],
        None,
    ],
)
def test_malformed_rle_is_an_input_error(rle: object) -> None:
    with pytest.raises(InputError, match=r"expected|invalid"):
        decode_rle(rle)


def test_malformed_masks_are_input_errors() -> None:
    with pytest.raises(InputError, match=r"\[H, W\]"):
        encode_rle(torch.zeros(1, 2, 3, dtype=torch.bool))
    with pytest.raises(InputError, match=r"\[N, H, W\]"):
        encode_rles(torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="at least 1"):
        encode_rle(torch.zeros(0, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="only 0 and 1"):
        encode_rle(torch.tensor([[0.3, 1.0]]))
    with pytest.raises(InputError, match="only 0 and 1"):
        encode_rle(torch.tensor([[0, 255]], dtype=torch.uint8))
    with pytest.raises(InputError, match="one size"):
        decode_rles([encode_rle(np.ones((2, 3))), encode_rle(np.ones((3, 2)))])
    with pytest.raises(InputError, match="got no masks"):
        decode_rles([])
    with pytest.raises(InputError, match="crowd"):
        rle_iou([encode_rle(np.ones((2, 3)))], [encode_rle(np.ones((2, 3)))], crowd=[])


def test_sizes_are_limited_before_memory_is_allocated() -> None:
    for size, counts in (([10**9, 10**9], [10**18]), ([3, 3], [2**62, 2**62, 2**62, 2**62, 9])):
        with pytest.raises(InputError, match="expected"):
            decode_rle({"size": size, "counts": counts})
