"""Seeded mutations: of bytes, and of JSON values."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

# What replaces a value: extremes of every type of JSON, and names that formats treat specially.
VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "0", "x" * 300, "\x00", "\ud800", "../../etc/passwd", "nan", "é" * 200, "-1", "1e400"),
    *(0, 1, -1, 2, 3, 255, 65_536, 2**31 - 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-320, 1e59, 1e308, float("inf"), float("-inf"), float("nan")),
    *([], {}, [[]], [{}], {"": 0}, {"a": None}, [0] * 5, [None] * 4, [[0, 0, 1]] * 3, ["a", 1, None]),
)
_WORDS = (b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x01")
_DEPTHS = (40, 2_000, 100_000)


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return a copy with one to eight changes: flips, extreme numbers, cuts, insertions, and copied blocks."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4, 8))):
        if not data:
            data += rng.randbytes(8)
        at = _position(data, rng)
        kind = rng.randrange(8)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            word = rng.choice(_WORDS)
            data[at : at + len(word)] = word
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del data[at : at + rng.randrange(1, 64)]
        elif kind == 5:
            data[at:at] = rng.randbytes(rng.randrange(1, 64))
        elif kind == 6:
            start = rng.randrange(len(data))
            data[at:at] = data[start : start + rng.randrange(1, 4096)]
        else:
            data[at : at + 8] = rng.randbytes(8)
    return bytes(data)


def _position(data: bytearray, rng: random.Random) -> int:
    """Return an index; every third is in the first bytes, where formats have magic numbers and sizes."""
    return rng.randrange(min(len(data), 64) if rng.randrange(3) == 0 else len(data))


def mutate_json(tree: Any, rng: random.Random) -> Any:
    """Return a copy of a JSON value with one to four changes: values swapped, replaced, removed, repeated or nested."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return rng.choice(VALUES)
        holder, key = rng.choice(places)
        kind = rng.randrange(8)
        if kind <= 3:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 4:
            other, other_key = rng.choice(places)
            holder[key] = copy.deepcopy(other[other_key])
        elif kind == 5:
            del holder[key]
        elif kind == 6 and isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[:8]))
        elif isinstance(holder, dict):
            holder[str(rng.choice(VALUES))] = holder.pop(key)
        else:
            holder[key] = {"a": [holder[key]]}
    return tree


def _places(tree: Any) -> Any:
    """Yield every (container, key) of a JSON value."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


def mutate_json_text(content: bytes, rng: random.Random) -> bytes:
    """Return the text of a mutated JSON value: mostly of its values, else nested or with changed bytes."""
    kind = rng.randrange(8)
    if kind == 0:
        depth = rng.choice(_DEPTHS)
        opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
        return opening * depth + b"1" + closing * (depth if rng.randrange(2) else 0)
    if kind <= 2:
        return mutate_bytes(content, rng)
    text = json.dumps(mutate_json(json.loads(content), rng))
    if kind == 3:
        text = text.replace("0", "9" * 5_000, 1)  # more digits than int() converts
    return text.encode("utf-8", "surrogatepass")
