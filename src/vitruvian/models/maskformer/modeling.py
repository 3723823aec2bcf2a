"""The public MaskFormer models.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule ─▶ coarse map ─▶ TransformerModule ─▶ queries [B, Q, C] ─▶ classes
                                              └▶ pixel embeddings [B, M, H/4, W/4] ──────┴▶ masks [B, Q, H/4, W/4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.errors import InputError
from vitruvian.layers.padding import (
    OUTSIDE,
    check_pixel_mask,
    frame_size,
    join_maps,
    join_rows,
    same_size,
)
from vitruvian.layers.queries import mask_head, mask_logits
from vitruvian.layers.start import start_layer
from vitruvian.losses.masks import DenseMasks, MaskLabels, MaskLossWeights, MaskSetLoss
from vitruvian.model import Model
from vitruvian.models.maskformer.configuration import MaskFormerConfig
from vitruvian.models.maskformer.outputs import MaskFormerForInstanceSegmentationOutput, MaskFormerModelOutput
from vitruvian.models.maskformer.pixel_decoder import PixelFeatures, PixelLevelModule
from vitruvian.models.maskformer.transformer_decoder import Decoded, TransformerModule
from vitruvian.models.swin.encoder import start_part


class MaskFormerPreTrainedModel(Model):
    """What both MaskFormer models share: names in checkpoints and starting values."""

    config_class: ClassVar[type[Config]] = MaskFormerConfig
    config: MaskFormerConfig
    base_model_prefix: ClassVar[str] = "model"
    no_split_modules: ClassVar[tuple[str, ...]] = ("Embeddings", "SwinLayer", "Block", "DecoderLayer")
    # The weights of classes follow from the configuration, whatever a file says.
    ignored_keys: ClassVar[tuple[str, ...]] = (r"(^|\.)criterion\.empty_weight$",)
    optional_keys: ClassVar[tuple[str, ...]] = (
        "criterion.empty_weight",
        "relative_position_index",
        "num_batches_tracked",
    )

    def start(self) -> None:
        """Finish construction."""
        super().start()
        if not any(parameter.is_meta for parameter in self.parameters()):
            self.load_backbone()

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        dtype: torch.dtype | str | None = None,
        device: str | torch.device | int | None = None,
        attn_implementation: str | None = None,
    ) -> Self:
        """Build a new model; see `Model.from_config`. Its backbone may start with the weights of `backbone`."""
        model = super().from_config(config, dtype=dtype, device=device, attn_implementation=attn_implementation)
        model.load_backbone()
        return model

    def load_backbone(self) -> None:
        """Give a new model the weights of the backbone that its configuration names, if it wants them."""
        if self.config.use_pretrained_backbone and self.config.backbone:
            for module in self.modules():
                if isinstance(module, PixelLevelModule):
                    module.load_backbone(self.config.backbone)

    def init_module(self, module: nn.Module) -> None:
        """Fill fresh weights: normal, Xavier in the pixel decoder and the mask head."""
        start_layer(module, std=self.config.init_std, gain=self.config.init_xavier_std)
        start_part(module)
        if isinstance(module, MaskSetLoss):
            module.start()


class MaskFormerModel(MaskFormerPreTrainedModel):
    """MaskFormer without heads."""

    def __init__(self, config: MaskFormerConfig) -> None:
        super().__init__(config)
        self.pixel_level_module = PixelLevelModule(config)
        coarsest = self.pixel_level_module.encoder.channels[-1]
        self.transformer_module = TransformerModule(coarsest, config.decoder)
        self.start()

    def forward(
        self,
        pixel_values: Tensor,
        pixel_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> MaskFormerModelOutput:
        """Compute queries and pixel embeddings.

        Args:
            pixel_values: Normalised images [B, 3, H, W] of any size.
            pixel_mask: 1 where there is picture, 0 in the padding [B, H, W]; see `MaskFormerConfig.use_pixel_mask`.
            output_hidden_states: Also return maps and queries of every stage.
            output_attentions: Also return the attention of the queries to each other.
            return_dict: Return a `MaskFormerModelOutput` rather than a tuple.
        """
        check_pixel_mask(pixel_values, pixel_mask)
        weights = self.flag("output_attentions", output_attentions)
        if pixel_mask is not None and self.config.use_pixel_mask:
            parts = [(places, *self.run(pictures, weights)) for places, pictures in same_size(pixel_values, pixel_mask)]
            features, decoded = self.join(parts, pixel_values)
        else:
            features, decoded = self.run(pixel_values, weights)
        hidden: tuple[tuple[Tensor, ...], ...] = ()
        if self.flag("output_hidden_states", output_hidden_states):
            hidden = (features.encoder, features.pyramid, (*decoded.states[:-1], decoded.last))
        output = MaskFormerModelOutput(
            encoder_last_hidden_state=features.encoder[-1],
            pixel_decoder_last_hidden_state=features.pixels,
            transformer_decoder_last_hidden_state=decoded.last,
            encoder_hidden_states=hidden[0] if hidden else None,
            pixel_decoder_hidden_states=hidden[1] if hidden else None,
            transformer_decoder_hidden_states=hidden[2] if hidden else None,
            hidden_states=sum(hidden, ()) if hidden else None,
            attentions=tuple(decoded.attentions) if weights else None,
            auxiliary_hidden_states=tuple(decoded.auxiliary) if self.config.use_auxiliary_loss else None,
        )
        return self.give(output, return_dict)

    def run(self, pixel_values: Tensor, need_weights: bool) -> tuple[PixelFeatures, Decoded]:
        """Compute a batch as it is."""
        features: PixelFeatures = self.pixel_level_module(pixel_values)
        auxiliary = self.config.use_auxiliary_loss
        return features, self.transformer_module(features.encoder[-1], auxiliary=auxiliary, need_weights=need_weights)

    def join(
        self, parts: Sequence[tuple[Tensor, PixelFeatures, Decoded]], pixel_values: Tensor
    ) -> tuple[PixelFeatures, Decoded]:
        """Lay what was computed for pictures of one size each into one batch of frames."""
        batch = pixel_values.shape[0]
        sizes = [frame_size(pixel_values.shape[-2:], stride) for stride in self.pixel_level_module.encoder.strides_hw]

        def rows(get: str) -> list[Tensor]:
            lists = [[(places, state) for state in getattr(decoded, get)] for places, _, decoded in parts]
            return [join_rows(same, batch=batch) for same in zip(*lists, strict=True)]

        def maps(get: str, level_sizes: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
            lists = [[(places, level) for level in getattr(features, get)] for places, features, _ in parts]
            joined = zip(zip(*lists, strict=True), level_sizes, strict=True)
            return tuple(join_maps(same, batch=batch, size_hw=size) for same, size in joined)

        pixels = [(places, features.pixels) for places, features, _ in parts]
        features = PixelFeatures(
            encoder=maps("encoder", sizes),
            pyramid=maps("pyramid", sizes[-2::-1]),
            pixels=join_maps(pixels, batch=batch, size_hw=sizes[0]),
        )
        last = join_rows([(places, decoded.last) for places, _, decoded in parts], batch=batch)
        return features, Decoded(last, rows("auxiliary"), rows("states"), rows("attentions"))


class MaskFormerForInstanceSegmentation(MaskFormerPreTrainedModel):
    """MaskFormer with a class and a mask for each query: semantic, instance and panoptic segmentation."""

    def __init__(self, config: MaskFormerConfig) -> None:
        super().__init__(config)
        channels = config.decoder.d_model
        self.model = MaskFormerModel(config)
        self.class_predictor = nn.Linear(channels, config.num_labels + 1)
        self.mask_embedder = mask_head(channels, config.mask_feature_size)
        self.criterion = MaskSetLoss(
            num_labels=config.num_labels,
            no_object_weight=config.no_object_weight,
            weights=MaskLossWeights(config.cross_entropy_weight, config.mask_weight, config.dice_weight),
            class_cost_weight=1.0,
            measure=DenseMasks(),
        )
        self.start()

    def forward(
        self,
        pixel_values: Tensor,
        mask_labels: Sequence[MaskLabels] | None = None,
        class_labels: Sequence[Tensor] | None = None,
        pixel_mask: Tensor | None = None,
        output_auxiliary_logits: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> MaskFormerForInstanceSegmentationOutput:
        """Predict a class and a mask for each query.

        Args:
            pixel_values: Normalised images [B, 3, H, W] of any size.
            mask_labels: For each image the masks of its objects [T, H, W], bool or numbers, or a list of COCO RLEs.
            class_labels: For each image the classes of its masks [T].
            pixel_mask: 1 where there is picture, 0 in the padding [B, H, W]; see `MaskFormerConfig.use_pixel_mask`.
            output_auxiliary_logits: Also return the predictions after each decoder layer but the last; they exist with
                `MaskFormerConfig.use_auxiliary_loss`.
            output_hidden_states: Also return maps and queries of every stage.
            output_attentions: Also return the attention of the queries to each other.
            return_dict: Return a `MaskFormerForInstanceSegmentationOutput` rather than a tuple.
        """
        if (mask_labels is None) != (class_labels is None):
            raise InputError("mask_labels and class_labels: expected both for a loss, got one. Give both or neither.")
        hidden = self.model(
            pixel_values,
            pixel_mask,
            output_hidden_states=self.flag("output_hidden_states", output_hidden_states),
            output_attentions=self.flag("output_attentions", output_attentions),
            return_dict=True,
        )
        pixels = hidden.pixel_decoder_last_hidden_state
        outside = None
        if pixel_mask is not None and self.config.use_pixel_mask:
            down, across = self.model.pixel_level_module.encoder.strides_hw[0]
            outside = pixel_mask[:, None, ::down, ::across] == 0  # [B, 1, H/4, W/4]
        auxiliary = [self.predict(queries, pixels, outside) for queries in hidden.auxiliary_hidden_states or ()]
        final = self.predict(hidden.transformer_decoder_last_hidden_state, pixels, outside)
        loss = None
        if mask_labels is not None and class_labels is not None:
            loss = self.criterion(
                **final, mask_labels=mask_labels, class_labels=class_labels, auxiliary_predictions=auxiliary
            )
        shared: dict[str, Any] = {name: value for name, value in hidden.items() if name != "auxiliary_hidden_states"}
        output = MaskFormerForInstanceSegmentationOutput(
            loss=None if loss is None else loss.total,
            class_queries_logits=final["class_queries_logits"],
            masks_queries_logits=final["masks_queries_logits"],
            auxiliary_logits=auxiliary if self.flag("output_auxiliary_logits", output_auxiliary_logits) else None,
            loss_terms=None if loss is None else loss.terms,
            **shared,
        )
        return self.give(output, return_dict)

    def predict(self, queries: Tensor, pixels: Tensor, outside: Tensor | None) -> dict[str, Tensor]:
        """Turn queries [B, Q, C] into scores of classes and pixels."""
        masks = mask_logits(self.mask_embedder(queries), pixels)  # [B, Q, H/4, W/4]
        if outside is not None:
            masks = masks.masked_fill(outside, OUTSIDE)
        return {"class_queries_logits": self.class_predictor(queries), "masks_queries_logits": masks}
