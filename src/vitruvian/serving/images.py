"""Stored images: uploaded once, then any task by id. With a SAM 2 model their embeddings are stored too.

A click on a stored image costs one call of the mask decoder. Images are in memory, in the form of their files; those
not used for the longest time make room, and each expires some time after its last use.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitruvian.cuda.streams import HostCopy
from vitruvian.images.data_format import pixels_of
from vitruvian.pipelines.engine.steps import InferenceSteps, ModelInput, Prepared
from vitruvian.pipelines.sources import Frame, load_rgb
from vitruvian.pipelines.tasks.segment import SegmentPipeline
from vitruvian.results import Masks, People
from vitruvian.serving.batching import ModelQueue
from vitruvian.serving.errors import not_found, too_large
from vitruvian.serving.settings import ServerLimits


class Embedding:
    """The levels [1, C, h, w] of an image's embedding, on the device of the model."""

    def __init__(self, levels: list[Tensor]) -> None:
        self.levels = [level.clone() for level in levels]  # without the rest of the batch
        self.nbytes = sum(level.nbytes for level in self.levels)


@dataclass(eq=False)
class StoredImage:
    """An uploaded image.

    Attributes:
        body: The file.
        name: Its name.
        size_hw: Height and width of the upright image.
        owner: Name of the API key that it was uploaded with.
        embedding: Its SAM 2 embedding, if there is a model.
        id: Its id.
        expires: Monotonic time at which it is removed.
    """

    body: bytes
    name: str
    size_hw: tuple[int, int]
    owner: str | None
    embedding: Embedding | None = None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    expires: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the file and the embedding."""
        return len(self.body) + (0 if self.embedding is None else self.embedding.nbytes)


class ImageStore:
    """The stored images. Used by the event loop's thread only."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._images: OrderedDict[str, StoredImage] = OrderedDict()  # the oldest use first

    def __len__(self) -> int:
        return len(self._images)

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return sum(image.nbytes for image in self._images.values())

    def add(self, image: StoredImage) -> None:
        """Store an image; others make room for it."""
        if image.nbytes > self._limits.stored_bytes:
            raise too_large("image", self._limits.stored_bytes, "bytes with its embedding", f"{image.nbytes:,}")
        self._images[image.id] = image
        self._touch(image)
        self.remove_expired()
        while len(self._images) > self._limits.images or self.nbytes > self._limits.stored_bytes:
            self._images.popitem(last=False)

    def get(self, image_id: str, owner: str | None) -> StoredImage:
        """Return an image of this owner."""
        self.remove_expired()
        image = self._images.get(image_id)
        if image is None or image.owner != owner:
            raise not_found("image", repr(image_id[:40]), "It may have expired: upload it again with POST /v1/images.")
        self._touch(image)
        return image

    def remove(self, image_id: str, owner: str | None) -> None:
        """Remove an image of this owner."""
        del self._images[self.get(image_id, owner).id]

    def remove_expired(self) -> None:
        """Remove images that were not used for a time."""
        now = time.monotonic()
        for image in [image for image in self._images.values() if image.expires < now]:
            del self._images[image.id]

    def _touch(self, image: StoredImage) -> None:
        image.expires = time.monotonic() + self._limits.image_seconds
        self._images.move_to_end(image.id)


class EncodeImage(InferenceSteps[tuple[tuple[int, int], Embedding]]):
    """Encodes an image with the SAM 2 model of a pipeline: the size of the image, and its embedding."""

    forward_options = ()

    def __init__(self, pipe: SegmentPipeline) -> None:
        self._pipe = pipe

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._pipe.device

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Resize and normalize the image."""
        pixels = pixels_of(frame.image)  # [3, H, W]
        return Prepared(frame, [ModelInput(self._pipe.processor.image_processor.prepare_image(pixels))])

    def forward(self, inputs: list[ModelInput]) -> list[Embedding]:
        """Return the embeddings of the images of a batch."""
        return [Embedding(levels) for levels in self._pipe.encode([model_input.pixels for model_input in inputs])]

    def finish(self, prepared: Prepared, decoded: Embedding) -> tuple[tuple[int, int], Embedding]:
        """Return the size of the image too."""
        return prepared.frame.size_hw, decoded


@torch.inference_mode()
def segment_stored(queue: ModelQueue, image: StoredImage, options: dict[str, Any], *, draws: bool) -> Masks:
    """Segment a stored image that has an embedding by the prompts of `options`; `draws` if pixels are needed."""
    assert image.embedding is not None
    call = queue.pipe.for_call(options)
    assert isinstance(call, SegmentPipeline)
    pixels = load_rgb(image.body) if draws else np.broadcast_to(np.zeros(3, np.uint8), (*image.size_hw, 3))
    prepared = Prepared(Frame(image=pixels, name=image.name), [])
    prompts = call.prompts(image.size_hw)
    with queue.lock:
        outputs = call.decode_prompts(image.embedding.levels, *prompts)
    return call.finish(prepared, HostCopy(call.decode(prepared, [outputs])).wait())
