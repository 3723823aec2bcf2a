"""What dense predictions of Sapiens2 share: parts, normals, pointmaps, mattes and albedo.

whole   image ─ resize (and pad, if the processor says so) ─▶ one input ─ model ─▶ map ─ unpad, resize ─▶ [H, W]
crop    people ─ crop ─▶ an input each ─ model ─▶ maps ─ blend ─▶ [H, W]
tile    overlapping tiles ─ resize ─▶ an input each ─ model ─▶ maps ─ blend ─▶ [H, W]

Maps with the outlines of people, and normals, are upsampled along the edges of the image (`images/guided_filter.py`).
Normals, points and albedo mean little on the background: a multi-task checkpoint with mattes masks it, with the alpha
that its matting head predicts from the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.cuda.graphs import no_capture
from vitruvian.cuda.pinned_copy import pinned_copy
from vitruvian.cuda.streams import stack_on_device
from vitruvian.errors import InputError
from vitruvian.images.data_format import as_tensor
from vitruvian.images.guided_filter import guided_upsample
from vitruvian.images.types import BoolArray, Float32Array, SizeHW
from vitruvian.model import Model
from vitruvian.models.sapiens2.modeling import Sapiens2ForImageMatting, Sapiens2TaskModel
from vitruvian.models.sapiens2.multitask_checkpoint import local_heads
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor, crop_padding
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.base import ResultFields, TaskPipeline
from vitruvian.pipelines.engine.steps import ModelInput, Prepared
from vitruvian.pipelines.options import DenseOptions, MaskedOptions
from vitruvian.pipelines.people.detectors import PeopleDetector, whole_image
from vitruvian.pipelines.people.selection import people_to_crop
from vitruvian.pipelines.region_blending import Blend, RegionBlender, blurs_when_upsampled
from vitruvian.pipelines.regions import Region, crop_regions, plan_tiles
from vitruvian.pipelines.sources import Frame
from vitruvian.results import People, Result

ResultT = TypeVar("ResultT", bound=Result)
OptionsT = TypeVar("OptionsT", bound=DenseOptions)
FullMap = tuple[Tensor, Tensor | None]  # values [H, W, C], and where they are valid [H, W]; None: everywhere
PERSON_ALPHA = 0.5  # alpha from which a pixel belongs to a person


@dataclass(frozen=True)
class DenseContext:
    """The parts of an image that its inputs show.

    Attributes:
        people: The people that are processed.
        regions: Region of each input; None if there is one input, the whole image.
        are_crops: Whether regions are crops of people rather than tiles.
    """

    people: People
    regions: list[Region] | None = None
    are_crops: bool = False


class DensePipeline(TaskPipeline[ResultT, OptionsT], Generic[ResultT, OptionsT]):
    """A map of the image from a Sapiens2 model; subclasses define the map and build the result."""

    processor: Sapiens2ImageProcessor
    channels: ClassVar[int]
    blend: ClassVar[Blend] = "mean"
    fixed_input_size = True

    def __init__(self, model: Model, processor: Sapiens2ImageProcessor, **options: object) -> None:
        super().__init__(model, processor, **options)
        self._matting: Sapiens2TaskModel | None = None  # has the encoder of the model; masks the background
        if not processor.do_resize or processor.do_center_crop:
            raise InputError(
                "processor: expected do_resize without do_center_crop. Its maps would not cover the image."
            )

    @classmethod
    def load_processor(cls, source: str | Path, **hub: object) -> Sapiens2ImageProcessor:
        """Load the processor. The one of multi-task checkpoints is shared, and padding is up to the task."""
        processor: Sapiens2ImageProcessor = super().load_processor(source, **hub)
        return processor.with_options(do_pad=True) if local_heads(source) else processor

    def for_call(self, changes: Mapping[str, object]) -> Self:
        """Return a copy with the options of one call, and with a matting head if it masks the background."""
        call = super().for_call(changes)
        if isinstance(call.options, MaskedOptions) and call.options.background == "mask":
            self._matting = call._matting = self._matting or self._load_matting()
        else:
            call._matting = None
        return call

    def batch_key(self) -> object:
        """Return a key: calls that agree on whether `forward` masks the background can share a batch."""
        return type(self), self._matting is not None

    def _load_matting(self) -> Sapiens2TaskModel | None:
        """Load the matting head of a multi-task checkpoint; None if it has none."""
        if "matting" not in self.checkpoint_heads:
            return None
        source = self.model.config.name_or_path
        loaded = Sapiens2ForImageMatting.from_pretrained(source, dtype=self.model.dtype, device=self.device)
        if self.model.optimized:
            loaded.optimize(cuda_graphs=self.model.graphs is not None)
        loaded.model = self.model.model
        return loaded

    def choose_detector(self, options: OptionsT) -> PeopleDetector | None:
        """Return the people detector; None with tiles."""
        return None if options.tile else super().choose_detector(options)

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Resize the image or its tiles, or crop its people."""
        context = self._choose_regions(frame, people)

        def make(pixels: Tensor, rows: slice) -> Sequence[Tensor] | Tensor:
            images, boxes = [pixels], None
            if context.are_crops:
                boxes = [context.people.boxes_xywh[rows]]
            elif context.regions is not None:
                images = [region.crop(pixels) for region in context.regions[rows]]
            return self.processor.prepare_images(images, boxes, dtype=self.model.dtype)

        count = 1 if context.regions is None else len(context.regions)
        return Prepared(frame, self.make_inputs(frame, count, make), context)

    def _choose_regions(self, frame: Frame, people: People | None) -> DenseContext:
        if self.options.tile:
            regions = plan_tiles(frame.size_hw, self._tile_hw(), overlap=self.options.overlap)
            return DenseContext(whole_image(frame.size_hw), regions if len(regions) > 1 else None)
        crops = people_to_crop(frame, people, self.options)
        if crops is None or crops.fallback:  # not as a crop of one person: that would be padded differently
            return DenseContext(crops or whole_image(frame.size_hw))
        return DenseContext(crops, crop_regions(crops, self.processor.size_hw), are_crops=True)

    def _tile_hw(self) -> SizeHW:
        tile = self.options.tile
        if tile is None or isinstance(tile, bool):
            return self.processor.size_hw
        height, width = (tile, tile) if isinstance(tile, int) else tile
        return int(height), int(width)

    def forward(self, inputs: list[ModelInput]) -> list[tuple[Any, Tensor | None]]:
        """Return the map of each input, and alpha [1, h, w] where the background is masked."""
        pixels = stack_on_device(
            [model_input.pixels for model_input in inputs], self.device, self.model.dtype
        )  # [B, 3, h, w]
        if self._matting is None:
            return [(dense, None) for dense in self.maps(self.model(pixels, return_dict=True))]
        # A graph of the matting model: it ends with the weights that it reads.
        out, alphas = self._matting.run_captured(self._forward_with_alpha, pixels)
        return list(zip(self.maps(out), alphas.float(), strict=True))

    def _forward_with_alpha(self, pixels: Tensor) -> tuple[ModelOutput, Tensor]:
        """Run the encoder once and both heads: [B, 3, h, w] -> the output of the model, and alpha [B, 1, h, w]."""
        assert self._matting is not None
        with no_capture():
            encoded = self.model.model(pixels, return_dict=True)
            out = self.model(pixels, encoded=encoded, return_dict=True)
            return out, self._matting(pixels, encoded=encoded, return_dict=True)["alphas"]

    def maps(self, out: ModelOutput) -> list[Any]:
        """Take the maps out of the model's output: float32 [C, h, w] each."""
        raise NotImplementedError

    def decode(self, prepared: Prepared, outputs: list[tuple[Any, Tensor | None]]) -> tuple[Any, Tensor | None]:
        """Return the map of the image, and if the background is masked where people are [H, W]."""
        alphas = [alpha for _, alpha in outputs if alpha is not None]
        person = self.full_alpha(prepared, alphas) >= PERSON_ALPHA if alphas else None
        return self.full_map(prepared, [output for output, _ in outputs]), person

    def full_map(self, prepared: Prepared, maps: list[Any]) -> Any:
        """Return the map of the image, at its size, from the maps of its inputs."""
        if prepared.context.regions is None:
            return self.resize_to_image(prepared, maps[0]), None
        regions = self.region_maps(prepared, maps)
        blended = self.blend_maps(prepared, regions, channels=self.channels, blend=self.blend)
        # Tiles cover the image; people do not.
        return blended["values"], blended["cover"] if prepared.context.are_crops else None

    def full_alpha(self, prepared: Prepared, alphas: list[Tensor]) -> Tensor:
        """Return the alpha of the image, at its size, from that of its inputs: [1, h, w] each -> [H, W], 0 to 1."""
        if prepared.context.regions is None:
            alpha = self.resize_to_image(prepared, alphas[0], along_edges=True)
        else:
            regions = self.region_maps(prepared, alphas)
            alpha = self.blend_maps(prepared, regions, channels=1, blend="alpha", along_edges=True)["values"]
        return alpha[..., 0].clamp(0, 1)

    def resize_to_image(self, prepared: Prepared, output: Tensor, *, along_edges: bool = False) -> Tensor:
        """Resize the map of an input that shows the whole image, without padding: [C, h, w] -> [H, W, C]."""
        size_hw = prepared.frame.size_hw
        small = self.unpad(output, size_hw)
        if along_edges and self.options.refine and blurs_when_upsampled(small, size_hw):
            return guided_upsample(small, self.image_of(prepared, output.device)).permute(1, 2, 0).contiguous()
        # Channels last is the layout of the result, and faster to resize for a few channels.
        small = small[None].contiguous(memory_format=torch.channels_last)
        if tuple(small.shape[-2:]) != size_hw:
            small = F.interpolate(small, size=size_hw, mode="bilinear", align_corners=False)
        return small[0].permute(1, 2, 0).contiguous()  # [H, W, C]

    def refines(self, prepared: Prepared, maps: list[Tensor]) -> bool:
        """Return whether a map [C, h, w] is to be upsampled along the edges of the image."""
        frame_hw, regions = prepared.frame.size_hw, prepared.context.regions
        areas = [frame_hw] if regions is None else [region[2:] for region in regions]
        return self.options.refine and any(map(blurs_when_upsampled, self.region_maps(prepared, maps), areas))

    def image_of(self, prepared: Prepared, device: torch.device) -> Tensor:
        """Return the image on a device: uint8 [3, H, W]."""
        return pinned_copy(as_tensor(prepared.frame.image), device).permute(2, 0, 1)

    def region_maps(self, prepared: Prepared, outputs: list[Tensor]) -> list[Tensor]:
        """Return the maps of regions, or of the whole image, [C, h, w] without padding."""
        context: DenseContext = prepared.context
        if context.are_crops:
            return outputs
        if context.regions is None:
            return [self.unpad(output, prepared.frame.size_hw) for output in outputs]
        return [
            self.unpad(output, (int(region.height), int(region.width)))
            for output, region in zip(outputs, context.regions, strict=True)
        ]

    def unpad(self, output: Tensor, size_hw: SizeHW) -> Tensor:
        """Return the part of a map [C, h, w] that is not padding, for an image or tile of `size_hw`."""
        return crop_padding(output, size_hw, self.processor.size_hw) if self.processor.do_pad else output

    def blend_maps(
        self, prepared: Prepared, maps: list[Tensor], *, channels: int, blend: Blend, along_edges: bool = False
    ) -> dict[str, Tensor]:
        """Blend the maps of regions [C, h, w] on their device, since the result is smaller than the maps."""
        context: DenseContext = prepared.context
        device = maps[0].device if maps else torch.device("cpu")
        blender = RegionBlender(
            prepared.frame.size_hw,
            context.regions or [],
            channels=channels,
            blend=blend,
            boxes_xyxy=context.people.boxes_xyxy if context.are_crops else None,
            feather=self.options.feather if context.are_crops else min(0.5, self.options.overlap),
            device=device,
            image=self.image_of(prepared, device) if along_edges and self.options.refine else None,
        )
        for index, values in enumerate(maps):
            blender.add(index, values)
        return blender.result()

    def finish(self, prepared: Prepared, decoded: tuple[Any, Tensor | None]) -> ResultT:
        """Build the result from the map of the image. Values outside of the mask are zero."""
        values, cover = decoded[0]
        mask = _intersection(cover, decoded[1])
        array: Float32Array = values.numpy()
        if mask is not None:
            array[~mask] = 0
        return self.build(self.result_fields(prepared.frame, prepared.context.people), array, mask)

    def build(self, fields: ResultFields, values: Float32Array, mask: BoolArray | None) -> ResultT:
        """Build the result from values [H, W, C] and, unless they are everywhere, where they are [H, W]."""
        raise NotImplementedError


def _intersection(cover: Tensor | None, person: Tensor | None) -> BoolArray | None:
    """Return where two masks [H, W] are True; None stands for everywhere."""
    if cover is None or person is None:
        only = person if cover is None else cover
        return None if only is None else only.numpy()
    return (cover & person).numpy()


def normalize_vectors(vectors: Tensor, *, dim: int) -> Tensor:
    """Divide vectors of three along `dim` by their lengths. Ten times faster than `F.normalize` on a CPU."""
    x, y, z = vectors.unbind(dim)
    length = (x * x + y * y + z * z).sqrt_().clamp_(min=1e-12)
    return vectors / length.unsqueeze(dim)
