"""`Sam2PreTrainedModel`: the base of all SAM 2 models."""

from torch import nn
from torch.nn import init

from vitruvian.layers.init import HasInitParameters
from vitruvian.model import Model
from vitruvian.models.sam2.configuration import Sam2Config, Sam2HieraDetConfig, Sam2VisionConfig


class Sam2PreTrainedModel(Model):
    """Base of the SAM 2 models."""

    config: Sam2HieraDetConfig | Sam2VisionConfig | Sam2Config

    def init_module(self, module: nn.Module) -> None:
        """Initialize the parameters of `module` itself: matrices at random, biases and position tables with zeros."""
        std = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.Embedding)):
            init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.LayerNorm)) and module.bias is not None:
            init.zeros_(module.bias)
        if isinstance(module, HasInitParameters):
            module.init_parameters(gain=1.0)
