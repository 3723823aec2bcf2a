"""What the runner and a task tell each other: units, prepared pictures, failures, and the steps of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from vitruvian.pipelines.memory import Arrival, Lane
from vitruvian.pipelines.sources import Frame

DoneT = TypeVar("DoneT", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A picture that gave no result.

    Attributes:
        name: File name, URL or "array".
        error: What went wrong.
        index: Its place in the source.
        frame: Its number in a video.
    """

    name: str
    error: Exception
    index: int = 0
    frame: int | None = None

    @property
    def message(self) -> str:
        """What went wrong in one line, with the picture's name in front."""
        text = " ".join(str(self.error).split()) or type(self.error).__name__
        return text if text.startswith(self.name) else f"{self.name}: {text}"


class Unit(NamedTuple):
    """What the model takes at a time: `pixels` [3, h, w] of a picture, a person or a tile, and what it is.

    Where another thread makes them on the device, `arrival` tells when they are there.
    """

    pixels: Tensor
    note: Any = None
    arrival: Arrival | None = None


@dataclass(eq=False)
class Prepared:
    """A picture on its way through the model.

    Attributes:
        frame: The picture.
        units: What the model takes: the whole picture, or one for each person or tile. There may be none.
        note: What the task needs to know again later: who was looked at, where.
    """

    frame: Frame
    units: list[Unit]
    note: Any = None


class Job(Protocol[DoneT]):
    """What a task does with a picture. Every method is called under `torch.inference_mode`."""

    device: torch.device
    looks: bool  # whether `look` has something to do
    decodes_behind: bool  # whether `decode` is for background threads
    lane: Lane | None  # where `prepare` works, if that is on the device; `decode` then has a lane and a thread too
    steady: bool  # whether whole batches are quickest, so that the first need not be smaller than the others

    def look(self, frame: Frame) -> Any:
        """Find people, say; called in the order of pictures, in the caller's thread."""
        ...

    def prepare(self, frame: Frame, seen: Any) -> Prepared:
        """Make the model's inputs; called in background threads."""
        ...

    def forward(self, units: list[Unit]) -> list[Any]:
        """Run the model on units of one shape and return one output each; called in the caller's thread."""
        ...

    def decode(self, prepared: Prepared, outputs: list[Any]) -> Any:
        """Turn the outputs of a picture's units into what its result is made of, on the model's device."""
        ...

    def finish(self, prepared: Prepared, decoded: Any) -> DoneT:
        """Build the result from what was decoded, which now is on the CPU; called in background threads."""
        ...
