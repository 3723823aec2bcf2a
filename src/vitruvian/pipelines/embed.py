"""Features of whole pictures, with the encoder of Sapiens2: one vector for all, one for each patch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitruvian.auto import AutoConfig, AutoModel
from vitruvian.errors import InputError
from vitruvian.model import Model
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.modeling import Sapiens2Model, patch_map
from vitruvian.pipelines.base import Options, TaskPipeline, best_place
from vitruvian.pipelines.memory import to_device
from vitruvian.pipelines.runner import Prepared, Unit
from vitruvian.pipelines.sources import Frame
from vitruvian.processor import as_tensor
from vitruvian.results import Embedding, People


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(Options):
    """Options of features: those of every pipeline."""


class EmbedPipeline(TaskPipeline[Embedding, EmbedOptions]):
    """CLS and patch features after the final norm. The checkpoint of any task will do; its head is left out."""

    task = "embed"
    checkpoints = ("facebook/sapiens2-pretrain-0.4b", "facebook/sapiens2-pretrain-0.1b")
    auto = AutoModel
    accepts = (Sapiens2Model,)
    options_class = EmbedOptions

    @classmethod
    def load(cls, source: str | Path, *, device: Any, dtype: Any, **hub: Any) -> Model:
        """Open the encoder of a checkpoint."""
        config = AutoConfig.from_pretrained(Path(source).parent if Path(source).is_file() else source, **hub)
        if not isinstance(config, Sapiens2Config):
            raise InputError(f"{source}: expected a checkpoint of Sapiens2, got one of {config.model_type}.")
        return Sapiens2Model.from_pretrained(source, **best_place(device, dtype), **hub)

    @property
    def unit_hw(self) -> tuple[int, int]:
        """Height and width of an input."""
        found: tuple[int, int] = self.processor.size_hw
        return found

    def prepare(self, frame: Frame, people: People | None, options: EmbedOptions) -> Prepared:
        """Resize and normalise the picture."""
        pixels = as_tensor(frame.picture).permute(2, 0, 1)  # [3, H, W]
        return Prepared(frame, [Unit(one) for one in self.processor.prepare_pictures([pixels], None)])

    def forward(self, units: list[Unit], options: EmbedOptions) -> list[tuple[Tensor, Tensor]]:
        """Return the CLS feature [C] and the patch features [h, w, C] of each picture."""
        pixels = to_device([unit.pixels for unit in units], self.device)  # [B, 3, H, W]
        tokens = self.model(pixels, return_dict=True).last_hidden_state.float()  # [B, 1 + R + h·w, C]
        maps = patch_map(tokens, self.model.config, pixels).permute(0, 2, 3, 1)  # [B, h, w, C]
        return list(zip(tokens[:, 0], maps, strict=True))

    def decode(self, prepared: Prepared, outputs: list[Any], options: EmbedOptions) -> Any:
        """Features are the result."""
        return outputs[0]

    def finish(self, prepared: Prepared, decoded: Any, options: EmbedOptions) -> Embedding:
        """Build the result."""
        cls, patches = (np.ascontiguousarray(part.numpy()) for part in decoded)
        return Embedding(**self.about(prepared.frame, options), cls=cls, patches=patches)
