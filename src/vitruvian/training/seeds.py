"""Seeds of a training run: each use of random numbers has a stream of its own."""

from __future__ import annotations

import hashlib
from enum import IntEnum

import torch


class RandomStream(IntEnum):
    """What a run draws random numbers for: ``derive_seed(seed, stream, number)`` differs for each.

    Groups of images on disk are no part of a run; their seeds are ``derive_seed(seed, number)``.
    """

    FOLDER_ORDER = 0  # number: the epoch
    FOLDER_CROP = 1  # position of the crop, over all epochs
    COMPOSITION = 2  # batch of rendered people
    FOLDER_COLOR = 3  # batch
    RENDERING = 4  # chunk of people
    OBJECTIVE = 5  # batch
    TORCH = 6  # batch, -1 for initial weights: of torch's own generator


def derive_seed(*numbers: int) -> int:
    """Hash numbers into a seed below 2^63."""
    digest = hashlib.blake2b("/".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_step(seed: int, step: int) -> None:
    """Seed torch for a step, so that no step depends on the random numbers drawn before it."""
    torch.manual_seed(derive_seed(seed, RandomStream.TORCH, step))
