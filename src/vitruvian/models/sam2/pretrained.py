"""`Sam2PreTrainedModel`: the base of all SAM 2 models."""

from torch import nn

from vitruvian.layers.init import init_layer
from vitruvian.model import Model
from vitruvian.models.sam2.configuration import Sam2Config, Sam2HieraDetConfig, Sam2VisionConfig


class Sam2PreTrainedModel(Model):
    """Base of the SAM 2 models."""

    config: Sam2HieraDetConfig | Sam2VisionConfig | Sam2Config

    def init_module(self, module: nn.Module) -> None:
        """Initialize the parameters of `module` itself: matrices at random, biases and position tables with zeros."""
        std = self.config.initializer_range
        init_layer(module, std=std, bound=2 * std)
