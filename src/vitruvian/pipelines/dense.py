"""What the maps of Sapiens2 share: parts, normals, pointmaps, mattes and albedo, of whole pictures, people or tiles.

whole   picture ─ resize (and pad, where the processor says so) ─▶ one unit ─ model ─▶ map ─ cut, stretch ─▶ [H, W]
crop    people ─ cut out ─▶ a unit each ─ model ─▶ maps ─ paste back, blended ─▶ [H, W]
tile    tiles that overlap ─ resize ─▶ a unit each ─ model ─▶ maps ─ paste back, blended ─▶ [H, W]
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
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor, crop_padding
from vitruvian.pipelines.base import PeopleOptions, TaskPipeline, people_in
from vitruvian.pipelines.crops import Blend, Canvas, Pasted, Window, crop_windows
from vitruvian.pipelines.memory import to_device
from vitruvian.pipelines.people import NobodyRule, whole_picture
from vitruvian.pipelines.runner import Prepared, Unit
from vitruvian.pipelines.sources import Frame
from vitruvian.pipelines.tiles import plan_tiles
from vitruvian.results import People, Result

ResultT = TypeVar("ResultT", bound=Result)
OptionsT = TypeVar("OptionsT", bound="DenseOptions")
Values = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class DenseOptions(PeopleOptions):
    """Options of maps.

    Args:
        tile: Look at large pictures in tiles of this many pixels: a number, (height, width), or True for the size of
            the model's input. A picture that fits into one is looked at whole.
        overlap: Share of a tile's side that it has in common with the next, at least.
        feather: Share of a person's window, at each edge, over which it fades into what lies beside it.
    """

    tile: int | Sequence[int] | bool | None = None
    overlap: float = 0.25
    feather: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile and (self.boxes is not None or self.people not in (None, "whole")):
            raise InputError("tile and people: expected one of them, got both. Tiles are for whole pictures.")


@dataclass(frozen=True)
class Looked:
    """What of a picture the units show.

    Attributes:
        people: Who was looked at.
        windows: Where each unit lies; None where there is one unit, the whole picture.
        persons: Whether windows are those of people rather than tiles.
    """

    people: People
    windows: list[Window] | None = None
    persons: bool = False


class DensePipeline(TaskPipeline[ResultT, OptionsT], Generic[ResultT, OptionsT]):
    """A map of the picture from a Sapiens2 model; tasks say what the map is and what it becomes."""

    processor: Sapiens2ImageProcessor
    channels: ClassVar[int]
    blend: ClassVar[Blend] = "mean"
    one_size = True

    def __init__(self, model: Any, processor: Any, **options: Any) -> None:
        super().__init__(model, processor, **options)
        if not processor.do_resize or processor.do_center_crop:
            raise InputError(
                "processor: expected one that resizes and does not cut (do_resize, no do_center_crop), got another. "
                "Its maps would not cover the picture."
            )

    @classmethod
    def load_processor(cls, source: str | Path, **hub: Any) -> Any:
        """Open the processor; the one that packed tasks share leaves it to the task to keep pictures in proportion."""
        found = super().load_processor(source, **hub)
        return found.with_options(do_pad=True) if packed_tasks(source) else found

    @property
    def unit_hw(self) -> tuple[int, int]:
        """Height and width of an input."""
        return self.processor.size_hw

    def finder_for(self, options: OptionsT) -> Any:
        """Nobody is looked for where tiles are asked for."""
        return None if options.tile else super().finder_for(options)

    def nobody_rule(self, options: OptionsT) -> NobodyRule:
        """Where nobody is found, the whole picture is looked at as a picture, not as a person."""
        rule = super().nobody_rule(options)
        return "none" if rule == "whole" else rule

    # ------------------------------------------------------------------------------------------------ picture → units

    def prepare(self, frame: Frame, people: People | None, options: OptionsT) -> Prepared:
        """Resize the picture, its tiles, or the people in it."""
        looked = self.looked(frame, people, options)

        def cut_out(pixels: Tensor) -> list[Tensor] | Tensor:
            shown, boxes = [pixels], None
            if looked.persons:
                boxes = looked.people.boxes_xyxy.copy()  # [P, 4]
                boxes[:, 2:] -= boxes[:, :2]
            elif looked.windows is not None:
                shown = [window.cut_tensor(pixels) for window in looked.windows]
            people = None if boxes is None else [boxes]
            return self.processor.prepare_pictures(shown, people, dtype=self.model.dtype)

        units, arrival = self.on_device(frame, cut_out)  # [3, h, w] each
        return Prepared(frame, [Unit(one, arrival=arrival) for one in units], looked)

    def looked(self, frame: Frame, people: People | None, options: OptionsT) -> Looked:
        """Decide what to look at."""
        if options.tile:
            windows = plan_tiles(frame.size_hw, self.tile_hw(options), overlap=options.overlap)
            return Looked(whole_picture(frame.size_hw), windows if len(windows) > 1 else None)
        found = people_in(frame, people, options)
        if found is None:
            return Looked(whole_picture(frame.size_hw))
        if people is not None and not len(people) and super().nobody_rule(options) == "whole":
            note = f"{people.note}; looked at the whole picture"
            return Looked(whole_picture(frame.size_hw, finder=found.finder, score=0.0, note=note))
        return Looked(found, crop_windows(found.boxes_xyxy, self.processor.size_hw), persons=True)

    def tile_hw(self, options: OptionsT) -> tuple[int, int]:
        """Return the size of tiles."""
        tile = options.tile
        if tile is None or isinstance(tile, bool):
            return self.processor.size_hw
        height, width = (tile, tile) if isinstance(tile, int) else tile
        return int(height), int(width)

    # ------------------------------------------------------------------------------------------------ units → maps

    def forward(self, units: list[Unit], options: OptionsT) -> list[Any]:
        """Return the map of each unit."""
        pixels = to_device([unit.pixels for unit in units], self.device, self.model.dtype)  # [B, 3, h, w]
        return self.maps(self.model(pixels, return_dict=True))

    def maps(self, out: Any) -> list[Any]:
        """Take the maps out of the model's output: float32 [C, h, w] each."""
        raise NotImplementedError

    def decode(self, prepared: Prepared, outputs: list[Any], options: OptionsT) -> Any:
        """Return the map of the whole picture [H, W, C], or what `Canvas.tensors` has where windows were pasted."""
        maps = self.stretched(prepared, outputs)
        if isinstance(maps, Tensor):
            return maps
        return self.canvas(prepared, maps, options, channels=self.channels, blend=self.blend).tensors()

    def stretched(self, prepared: Prepared, outputs: list[Tensor]) -> Tensor | list[Tensor]:
        """Return the map of the whole picture [H, W, C], or a list of the windows' maps [C, h, w]."""
        if prepared.note.windows is not None:
            return [self.content(one, prepared.note, number) for number, one in enumerate(outputs)]
        size_hw = prepared.frame.size_hw
        return self.polished(enlarged(self.fitted(outputs[0], size_hw), size_hw))

    def polished(self, one: Tensor) -> Tensor:
        """Put right what stretching does to a map [H, W, C]."""
        return one

    def content(self, one: Tensor, looked: Looked, number: int) -> Tensor:
        """Return the part of a window's map [C, h, w] that shows the window; tiles may have been padded."""
        if looked.windows is None or looked.persons:
            return one
        window = looked.windows[number]
        return self.fitted(one, (int(window.height), int(window.width)))

    def fitted(self, one: Tensor, size_hw: tuple[int, int]) -> Tensor:
        """Return the part of a map [C, h, w] that is not padding, for a picture or tile of `size_hw`."""
        return crop_padding(one, size_hw, self.processor.size_hw) if self.processor.do_pad else one

    # ------------------------------------------------------------------------------------------------ maps → result

    def finish(self, prepared: Prepared, decoded: Any, options: OptionsT) -> ResultT:
        """Build the result from a map of the whole picture, or from pasted ones."""
        about = self.about(prepared.frame, options, prepared.note.people)
        if prepared.note.windows is None:
            return self.build(about, decoded.numpy(), None, options)
        # Tiles are everywhere; people are not.
        cover = decoded["cover"].numpy() if prepared.note.persons else None
        return self.build(about, decoded["values"].numpy(), cover, options)

    def build(
        self, about: dict[str, Any], values: Values, cover: npt.NDArray[np.bool_] | None, options: OptionsT
    ) -> ResultT:
        """Build the result from values [H, W, C] and, where that is not everywhere, where there are some [H, W]."""
        raise NotImplementedError

    def pasted(
        self, prepared: Prepared, maps: list[Tensor], options: OptionsT, *, channels: int, blend: Blend
    ) -> Pasted:
        """Put the maps of windows [C, h, w] together."""
        return self.canvas(prepared, maps, options, channels=channels, blend=blend).finish()

    def canvas(
        self, prepared: Prepared, maps: list[Tensor], options: OptionsT, *, channels: int, blend: Blend
    ) -> Canvas:
        """Paste the maps of windows [C, h, w] where they are: results are smaller than maps, and a GPU is quicker."""
        looked: Looked = prepared.note
        canvas = Canvas(
            prepared.frame.size_hw,
            looked.windows or [],
            channels=channels,
            blend=blend,
            boxes_xyxy=looked.people.boxes_xyxy if looked.persons else None,
            feather=options.feather if looked.persons else min(0.5, options.overlap),
            device=maps[0].device if maps else None,
        )
        for number, one in enumerate(maps):
            canvas.add(number, one)
        return canvas


def enlarged(one: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Resize a map [C, h, w] bilinearly and lay it out as results have it: [H, W, C]."""
    # Pixels first: that is how the result is wanted, and torch is quicker so for a few channels.
    small = one[None].contiguous(memory_format=torch.channels_last)
    if tuple(one.shape[-2:]) != tuple(size_hw):
        small = F.interpolate(small, size=size_hw, mode="bilinear", align_corners=False)
    return small[0].permute(1, 2, 0).contiguous()  # [H, W, C]


def unit_vectors(vectors: Tensor, *, dim: int) -> Tensor:
    """Divide vectors of three along `dim` by their lengths; torch's own way is ten times slower on a CPU."""
    x, y, z = vectors.unbind(dim)
    length = (x * x + y * y + z * z).sqrt_().clamp_(min=1e-12)
    return vectors / length.unsqueeze(dim)
