"""What dense predictions of Sapiens2 share: parts, normals, pointmaps, mattes and albedo.

whole   image ─ resize (and pad, if the processor says so) ─▶ one unit ─ model ─▶ map ─ unpad, resize ─▶ [H, W]
crop    people ─ crop ─▶ a unit each ─ model ─▶ maps ─ blend ─▶ [H, W]
tile    overlapping tiles ─ resize ─▶ a unit each ─ model ─▶ maps ─ blend ─▶ [H, W]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.auto import packed_tasks
from vitruvian.errors import InputError
from vitruvian.model import Model
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor, crop_padding
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.base import ResultFields, TaskPipeline
from vitruvian.pipelines.engine.cuda_streams import stack_on_device
from vitruvian.pipelines.engine.task import Prepared, Unit
from vitruvian.pipelines.options import Options
from vitruvian.pipelines.people.detectors import PeopleDetector, is_fallback, whole_image
from vitruvian.pipelines.people.selection import PeopleOptions, people_to_crop
from vitruvian.pipelines.regions import Blend, Region, RegionBlender, boxes_xywh, crop_regions, plan_tiles
from vitruvian.pipelines.sources import Frame
from vitruvian.results import People, Result

ResultT = TypeVar("ResultT", bound=Result)
OptionsT = TypeVar("OptionsT", bound="DenseOptions")
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class DenseOptions(PeopleOptions):
    """Options of dense predictions.

    Args:
        tile: Process large images in tiles of this many pixels: a number, (height, width), or True for the size of the
            model's input. An image that is not larger than a tile is processed whole.
        overlap: Minimum share of a tile's side that it has in common with the next.
        feather: Share of a person's crop, at each edge, over which its weight falls to zero.
    """

    tile: int | Sequence[int] | bool | None = None
    overlap: float = 0.25
    feather: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile and (self.boxes is not None or (self.people is not None and not self.crops_are_disabled)):
            raise InputError("tile and people: expected one of them, got both. Tiles are for whole images.")


@dataclass(frozen=True)
class DenseContext:
    """The parts of an image that its units show.

    Attributes:
        people: The people that are processed.
        regions: Region of each unit; None if there is one unit, the whole image.
        are_crops: Whether regions are crops of people rather than tiles.
    """

    people: People
    regions: list[Region] | None = None
    are_crops: bool = False


class DensePipeline(TaskPipeline[ResultT, OptionsT], Generic[ResultT, OptionsT]):
    """A map of the image from a Sapiens2 model; subclasses define the map and build the result."""

    processor: Sapiens2ImageProcessor
    options_class: ClassVar[type[Options]] = DenseOptions
    channels: ClassVar[int]
    blend: ClassVar[Blend] = "mean"
    fixed_input_size = True

    def __init__(self, model: Model, processor: Sapiens2ImageProcessor, **options: object) -> None:
        super().__init__(model, processor, **options)
        if not processor.do_resize or processor.do_center_crop:
            raise InputError(
                "processor: expected one that resizes and does not cut (do_resize, no do_center_crop), got another. "
                "Its maps would not cover the image."
            )

    @classmethod
    def load_processor(cls, source: str | Path, **hub: object) -> Sapiens2ImageProcessor:
        """Load the processor. The one of packed checkpoints is shared, and padding is up to the task."""
        processor: Sapiens2ImageProcessor = super().load_processor(source, **hub)
        return processor.with_options(do_pad=True) if packed_tasks(source) else processor

    def choose_detector(self, options: OptionsT) -> PeopleDetector | None:
        """Return the people detector; None with tiles."""
        return None if options.tile else super().choose_detector(options)

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Resize the image or its tiles, or crop its people."""
        context = self._choose_regions(frame, people)

        def make(pixels: Tensor, rows: slice) -> Sequence[Tensor] | Tensor:
            images, boxes = [pixels], None
            if context.are_crops:
                boxes = [boxes_xywh(context.people)[rows]]
            elif context.regions is not None:
                images = [region.crop(pixels) for region in context.regions[rows]]
            return self.processor.prepare_images(images, boxes, dtype=self.model.dtype)

        count = 1 if context.regions is None else len(context.regions)
        return Prepared(frame, self.make_units(frame, count, make), context)

    def _choose_regions(self, frame: Frame, people: People | None) -> DenseContext:
        if self.options.tile:
            regions = plan_tiles(frame.size_hw, self._tile_hw(), overlap=self.options.overlap)
            return DenseContext(whole_image(frame.size_hw), regions if len(regions) > 1 else None)
        crops = people_to_crop(frame, people, self.options)
        if crops is None or is_fallback(crops):  # not as a crop of one person: that would be padded differently
            return DenseContext(whole_image(frame.size_hw) if crops is None else crops)
        return DenseContext(crops, crop_regions(crops, self.processor.size_hw), are_crops=True)

    def _tile_hw(self) -> tuple[int, int]:
        tile = self.options.tile
        if tile is None or isinstance(tile, bool):
            return self.processor.size_hw
        height, width = (tile, tile) if isinstance(tile, int) else tile
        return int(height), int(width)

    def forward(self, units: list[Unit]) -> list[Any]:
        """Return the map of each unit."""
        pixels = stack_on_device([unit.pixels for unit in units], self.device, self.model.dtype)  # [B, 3, h, w]
        return self.maps(self.model(pixels, return_dict=True))

    def maps(self, out: ModelOutput) -> list[Any]:
        """Take the maps out of the model's output: float32 [C, h, w] each."""
        raise NotImplementedError

    def decode(self, prepared: Prepared, outputs: list[Any]) -> Any:
        """Return the map of the whole image [H, W, C], or what `RegionBlender.tensors` returns."""
        if prepared.context.regions is None:
            return self.whole_map(prepared, outputs[0])
        return self.blend_maps(prepared, self.region_maps(prepared, outputs), channels=self.channels, blend=self.blend)

    def whole_map(self, prepared: Prepared, one: Tensor) -> Tensor:
        """Resize the map of the whole image: [C, h, w] -> [H, W, C]."""
        size_hw = prepared.frame.size_hw
        # Channels last is the layout of the result, and faster to resize for a few channels.
        small = self.unpad(one, size_hw)[None].contiguous(memory_format=torch.channels_last)
        if tuple(small.shape[-2:]) != size_hw:
            small = F.interpolate(small, size=size_hw, mode="bilinear", align_corners=False)
        return self.after_resize(small[0].permute(1, 2, 0).contiguous())  # [H, W, C]

    def after_resize(self, one: Tensor) -> Tensor:
        """Correct what resizing does to a map [H, W, C]."""
        return one

    def region_maps(self, prepared: Prepared, outputs: list[Tensor]) -> list[Tensor]:
        """Return the maps of regions [C, h, w], those of tiles without padding."""
        context: DenseContext = prepared.context
        if context.are_crops:
            return outputs
        return [
            self.unpad(one, (int(region.height), int(region.width)))
            for one, region in zip(outputs, context.regions or [], strict=True)
        ]

    def unpad(self, one: Tensor, size_hw: tuple[int, int]) -> Tensor:
        """Return the part of a map [C, h, w] that is not padding, for an image or tile of `size_hw`."""
        return crop_padding(one, size_hw, self.processor.size_hw) if self.processor.do_pad else one

    def blend_maps(self, prepared: Prepared, maps: list[Tensor], *, channels: int, blend: Blend) -> dict[str, Tensor]:
        """Blend the maps of regions [C, h, w] on their device, since the result is smaller than the maps."""
        context: DenseContext = prepared.context
        blender = RegionBlender(
            prepared.frame.size_hw,
            context.regions or [],
            channels=channels,
            blend=blend,
            boxes_xyxy=context.people.boxes_xyxy if context.are_crops else None,
            feather=self.options.feather if context.are_crops else min(0.5, self.options.overlap),
            device=maps[0].device if maps else None,
        )
        for number, one in enumerate(maps):
            blender.add(number, one)
        return blender.tensors()

    def finish(self, prepared: Prepared, decoded: Any) -> ResultT:
        """Build the result from a map of the whole image, or from blended ones."""
        context: DenseContext = prepared.context
        fields = self.result_fields(prepared.frame, context.people)
        if context.regions is None:
            return self.build(fields, decoded.numpy(), None)
        # Tiles cover the image; people do not.
        cover = decoded["cover"].numpy() if context.are_crops else None
        return self.build(fields, decoded["values"].numpy(), cover)

    def build(self, fields: ResultFields, values: Floats, cover: Mask | None) -> ResultT:
        """Build the result from values [H, W, C] and, unless they are everywhere, where they are [H, W]."""
        raise NotImplementedError


def normalize_vectors(vectors: Tensor, *, dim: int) -> Tensor:
    """Divide vectors of three along `dim` by their lengths. Ten times faster than `F.normalize` on a CPU."""
    x, y, z = vectors.unbind(dim)
    length = (x * x + y * y + z * z).sqrt_().clamp_(min=1e-12)
    return vectors / length.unsqueeze(dim)
