"""Options that instances and panoptic segmentation share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

OWN = "Objects"


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What counts as an object."""

    threshold: Annotated[float, Option(help="Lowest score of an object.", min=0, max=1, rich_help_panel=OWN)] = 0.5
    mask_threshold: Annotated[
        float, Option(help="Lowest probability of a pixel in a mask.", min=0, max=1, rich_help_panel=OWN)
    ] = 0.5
    keep_share: Annotated[
        float,
        Option(help="Share of its mask that an object must keep against others.", min=0, max=1, rich_help_panel=OWN),
    ] = 0.8

    def options(self) -> dict[str, float]:
        """Return the options as the pipelines name them."""
        return {
            "threshold": self.threshold,
            "mask_threshold": self.mask_threshold,
            "overlap_mask_area_threshold": self.keep_share,
        }
