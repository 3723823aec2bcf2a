"""Image features with the encoder of Sapiens2: one vector for the image, one for each patch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitruvian.auto import AutoConfig
from vitruvian.cuda.streams import stack_on_device
from vitruvian.devices import Device, DType, default_placement
from vitruvian.errors import InputError
from vitruvian.images.data_format import pixels_of
from vitruvian.model import Model
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.modeling import Sapiens2Model, patch_map
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.steps import ModelInput, Prepared
from vitruvian.pipelines.options import Options
from vitruvian.pipelines.sources import Frame
from vitruvian.results import Embedding, People


class EmbedPipeline(TaskPipeline[Embedding, Options]):
    """CLS and patch features after the final norm. Takes the checkpoint of any task, without its head."""

    processor: Sapiens2ImageProcessor
    task = "embed"
    forward_options = ()

    @classmethod
    def accepts(cls) -> tuple[type[Model], ...]:
        """Return the encoder alone: other families have no such features."""
        return (Sapiens2Model,)

    @classmethod
    def load(cls, source: str | Path, *, device: Device, dtype: DType, **hub: Any) -> Model:
        """Load the encoder of a checkpoint."""
        config = AutoConfig.from_pretrained(Path(source).parent if Path(source).is_file() else source, **hub)
        if not isinstance(config, Sapiens2Config):
            raise InputError(f"{source}: expected a checkpoint of Sapiens2, got one of {config.model_type}.")
        return Sapiens2Model.from_pretrained(source, strict=True, **default_placement(device, dtype), **hub)

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Resize and normalize the image."""
        pixels = pixels_of(frame.image)  # [3, H, W]
        return Prepared(frame, [ModelInput(tensor) for tensor in self.processor.prepare_images([pixels], None)])

    def forward(self, inputs: list[ModelInput]) -> list[tuple[Tensor, Tensor]]:
        """Return the CLS feature [C] and the patch features [h, w, C] of each image."""
        pixels = stack_on_device([model_input.pixels for model_input in inputs], self.device)  # [B, 3, H, W]
        tokens = self.model(pixels, return_dict=True).last_hidden_state.float()  # [B, 1 + R + h·w, C]
        maps = patch_map(tokens, self.model.config, pixels).permute(0, 2, 3, 1)  # [B, h, w, C]
        return list(zip(tokens[:, 0], maps, strict=True))

    def finish(self, prepared: Prepared, decoded: tuple[Tensor, Tensor]) -> Embedding:
        """Build the result."""
        cls, patches = (np.ascontiguousarray(part.numpy()) for part in decoded)
        return Embedding(**self.result_fields(prepared.frame), cls=cls, patches=patches)
