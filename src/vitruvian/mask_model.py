"""What the models of MaskFormer and Mask2Former share: their pixel level, named backbones, and padding left out.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule (backbone, pixel decoder) ─▶ PixelFeatures ─▶ a family's transformer
a batch of mixed sizes    ─▶ compute: once for each size, without padding ─▶ one batch again
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitruvian.errors import InputError
from vitruvian.layers.padding import Frames, check_pixel_mask, pictures_of
from vitruvian.losses.masks import MaskSetLoss
from vitruvian.model import Model

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=Model)

# The weights of classes follow from the configuration, whatever a file says.
CLASS_WEIGHTS = r"(^|\.)criterion\.empty_weight$"
OPTIONAL_KEYS = ("criterion.empty_weight", "relative_position_index", "num_batches_tracked")
WHOLE_MODULES = ("Embeddings", "SwinLayer", "Block", "PixelDecoder", "TransformerModule")


@dataclass
class PixelFeatures:
    """Maps of the backbone, maps of the pixel decoder (coarse to fine), and pixel embeddings [B, M, H/4, W/4]."""

    encoder: tuple[Tensor, ...]
    levels: tuple[Tensor, ...]
    pixels: Tensor


class PixelLevelModule(nn.Module):
    """A backbone and a pixel decoder."""

    def __init__(self, encoder: Any, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def load_backbone(self, name: str) -> None:
        """Fill the backbone with the weights of a checkpoint of its own."""
        trained = type(self.encoder).from_pretrained(name, config=self.encoder.config)
        self.encoder.load_state_dict(trained.state_dict())

    def forward(self, pixel_values: Tensor) -> PixelFeatures:
        """Map images [B, 3, H, W] to features."""
        maps = self.encoder(pixel_values, return_dict=True).feature_maps
        levels, pixels = self.decoder(maps)
        return PixelFeatures(maps, tuple(levels), pixels)

    def join(
        self, frames: Frames, parts: Sequence[PixelFeatures], *, levels: slice, finest: tuple[int, int]
    ) -> PixelFeatures:
        """Lay the features of each size into frames; `levels` picks the strides of the pixel decoder's maps."""
        strides = self.encoder.strides_hw
        return PixelFeatures(
            tuple(frames.all_maps([part.encoder for part in parts], strides)),
            tuple(frames.all_maps([part.levels for part in parts], strides[levels])),
            frames.maps([part.pixels for part in parts], finest),
        )


def with_backbone(model: ModelT) -> ModelT:
    """Give a new model the weights of the backbone that its configuration names, if it wants them."""
    config: Any = model.config
    if config.use_pretrained_backbone and config.backbone and not any(p.is_meta for p in model.parameters()):
        for module in model.modules():
            if isinstance(module, PixelLevelModule):
                module.load_backbone(config.backbone)
    return model


def start_loss(module: nn.Module) -> None:
    """Fill the own weights of a loss; other modules are left alone."""
    if isinstance(module, MaskSetLoss):
        module.start()


def check_labels(mask_labels: Any, class_labels: Any) -> bool:
    """Tell whether there are labels, of which both kinds are needed."""
    if (mask_labels is None) != (class_labels is None):
        raise InputError("mask_labels and class_labels: expected both for a loss, got one. Give both or neither.")
    return mask_labels is not None


def compute(
    run: Callable[[Tensor], T],
    join: Callable[[Frames, list[T]], T],
    pixel_values: Tensor,
    pixel_mask: Tensor | None,
    *,
    use_mask: bool,
) -> T:
    """Compute a batch with `run`: with a mask once for each size of pictures, without padding, and then `join` them."""
    check_pixel_mask(pixel_values, pixel_mask)
    if pixel_mask is None or not use_mask:
        return run(pixel_values)
    if torch.compiler.is_exporting():
        raise InputError(
            "pixel_mask: expected None for an export, which cannot depend on sizes inside the batch, got a mask. "
            "Leave it out, or set config.use_pixel_mask=False."
        )
    frames = pictures_of(pixel_values, pixel_mask)
    if frames is None:
        return run(pixel_values)
    return join(frames, [run(pictures) for pictures in frames.cut(pixel_values)])


def call_recorded(model: Model, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a model: by `call`, which may record a graph, where the call can be recorded, else without one."""
    if model.graphs is None:
        return call(*args, **kwargs)
    given = recordable(model, args, kwargs)
    return nn.Module.__call__(model, *args, **kwargs) if given is None else call(**given)


def recordable(model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return a call's arguments for a recorded graph, or None where one cannot take them.

    Labels are matched on the CPU, and padding splits the batch; a mask that marks none is left out.
    """
    given = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    mask = given.pop("pixel_mask", None)
    if given.get("mask_labels") is not None:
        return None
    if mask is None:
        return given
    check_pixel_mask(given["pixel_values"], mask)
    use_mask = getattr(model.config, "use_pixel_mask", None) is not False
    return None if use_mask and not bool(mask.bool().all()) else given
