"""Stored images: uploaded once, then any task by id. With a SAM 2 model their embeddings are stored too.

An image is stored at once; its embedding is computed in the background, and the first click waits for it. Further
clicks cost one call of the mask decoder. People are detected once for all tasks. Images are in memory, in the form of
their files; the least recently used are evicted, and each expires some time after its last use.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitruvian.cuda.streams import HostCopy
from vitruvian.images.data_format import pixels_of
from vitruvian.images.read import load_rgb
from vitruvian.images.types import RgbImage
from vitruvian.pipelines.engine.steps import InferenceSteps, ModelInput, Prepared
from vitruvian.pipelines.people.detectors import PeopleDetector
from vitruvian.pipelines.sources import Frame
from vitruvian.pipelines.tasks.segment import SegmentPipeline
from vitruvian.results import Masks, People
from vitruvian.serving.lru_store import StoredItem
from vitruvian.serving.model_queue import ModelQueue


class ImageEmbedding:
    """The levels [1, C, h, w] of an image's embedding, on the device of the model."""

    def __init__(self, levels: list[Tensor]) -> None:
        self.levels = [level.clone() for level in levels]  # without the rest of the batch
        self.nbytes = sum(level.nbytes for level in self.levels)


@dataclass(eq=False, kw_only=True)
class StoredImage(StoredItem):
    """An uploaded image.

    Attributes:
        body: The file.
        embedding: Its SAM 2 embedding, once it is computed.
        embedding_task: The task that computes it, while it does.
        people: The people in it, by the detector that has found them.
    """

    body: bytes
    people: dict[PeopleDetector, People] = field(default_factory=dict)
    embedding: ImageEmbedding | None = None
    embedding_task: asyncio.Task[ImageEmbedding] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the file and the embedding."""
        return len(self.body) + (0 if self.embedding is None else self.embedding.nbytes)


class CachedPeopleDetector:
    """Detects people in a stored image, once for all tasks.

    Args:
        detector: The detector.
        people: What it has found is here, or is put here.
    """

    def __init__(self, detector: PeopleDetector, people: dict[PeopleDetector, People]) -> None:
        self._detector, self._people, self.name = detector, people, detector.name

    def detect(self, image: RgbImage, /) -> People:
        """Return the people in the image."""
        if self._detector not in self._people:
            self._people[self._detector] = self._detector.detect(image)
        return self._people[self._detector]


class ImageEmbeddingSteps(InferenceSteps[ImageEmbedding]):
    """The steps that compute the embedding of an image with the SAM 2 model of a pipeline."""

    def __init__(self, pipe: SegmentPipeline) -> None:
        self._pipe = pipe

    def batch_key(self) -> object:
        """Return the same for all images: any can share a batch."""
        return type(self)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._pipe.device

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Resize and normalize the image."""
        pixels = pixels_of(frame.image)  # [3, H, W]
        return Prepared(frame, [ModelInput(self._pipe.processor.image_processor.prepare_image(pixels))])

    def forward(self, inputs: list[ModelInput]) -> list[ImageEmbedding]:
        """Return the embeddings of the images of a batch."""
        return [ImageEmbedding(levels) for levels in self._pipe.encode([model_input.pixels for model_input in inputs])]

    def finish(self, prepared: Prepared, decoded: ImageEmbedding) -> ImageEmbedding:
        """Return the embedding."""
        return decoded


@torch.inference_mode()
def segment_stored(
    queue: ModelQueue, image: StoredImage, embedding: ImageEmbedding, options: dict[str, Any], *, draws: bool
) -> Masks:
    """Segment a stored image by the prompts of `options`, with its embedding; `draws` if pixels are needed."""
    call = queue.pipe.for_call(options)
    assert isinstance(call, SegmentPipeline)
    pixels = load_rgb(image.body) if draws else np.broadcast_to(np.zeros(3, np.uint8), (*image.size_hw, 3))
    prepared = Prepared(Frame(image=pixels, name=image.name), [])
    prompts = call.prompts(image.size_hw)
    with queue.lock:
        outputs = call.decode_prompts(embedding.levels, *prompts)
    return call.finish(prepared, HostCopy(call.decode(prepared, [outputs])).wait())
