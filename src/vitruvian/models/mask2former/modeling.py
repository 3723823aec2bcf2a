"""The public Mask2Former models.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule ─▶ maps at 1/32 … 1/8 ─▶ TransformerModule ─▶ queries [B, Q, C] ─▶ classes
                                              └▶ pixel embeddings [B, M, H/4, W/4] ──────┴▶ masks [B, Q, H/4, W/4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.errors import InputError
from vitruvian.layers.deformable import start_offsets
from vitruvian.layers.padding import OUTSIDE, check_pixel_mask, frame_size, join_maps, join_rows, same_size
from vitruvian.layers.queries import PackedAttention, start_packed
from vitruvian.layers.start import start_layer
from vitruvian.losses.masks import MaskLabels, MaskLossWeights, MaskSetLoss, PointMasks
from vitruvian.model import Model
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.outputs import Mask2FormerForUniversalSegmentationOutput, Mask2FormerModelOutput
from vitruvian.models.mask2former.pixel_decoder import LEVELS, PixelDecoder, PixelFeatures, PixelLevelModule
from vitruvian.models.mask2former.transformer_decoder import Decoded, TransformerModule
from vitruvian.models.swin.encoder import start_part


class Mask2FormerPreTrainedModel(Model):
    """What both Mask2Former models share: names in checkpoints and starting values."""

    config_class: ClassVar[type[Config]] = Mask2FormerConfig
    config: Mask2FormerConfig
    base_model_prefix: ClassVar[str] = "model"
    no_split_modules: ClassVar[tuple[str, ...]] = (
        "Embeddings",
        "SwinLayer",
        "Block",
        "DeformableLayer",
        "DecoderLayer",
    )
    # The weights of classes follow from the configuration, and no map passes the last norm of the bare Swin.
    ignored_keys: ClassVar[tuple[str, ...]] = (r"(^|\.)criterion\.empty_weight$", r"\.encoder\.swin\.layernorm\.")
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
        """Fill fresh weights: normal, Xavier in the transformers, a ring of points for deformable attention."""
        start_layer(module, std=self.config.init_std, gain=self.config.init_xavier_std)
        start_part(module)
        if hasattr(module, "start_ring") and isinstance(module, nn.Linear):
            start_offsets(module)
        elif isinstance(module, PackedAttention):
            start_packed(module, gain=self.config.init_xavier_std)
        elif isinstance(module, PixelDecoder):
            nn.init.zeros_(module.level_embed)
        elif isinstance(module, MaskSetLoss):
            module.start()


class Mask2FormerModel(Mask2FormerPreTrainedModel):
    """Mask2Former without the class head."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__(config)
        self.pixel_level_module = PixelLevelModule(config)
        self.transformer_module = TransformerModule(config)
        self.start()

    def forward(
        self,
        pixel_values: Tensor,
        pixel_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Mask2FormerModelOutput:
        """Compute queries and masks.

        Args:
            pixel_values: Normalised images [B, 3, H, W] of any size.
            pixel_mask: 1 where there is picture, 0 in the padding [B, H, W]; see `Mask2FormerConfig.use_pixel_mask`.
            output_hidden_states: Also return maps and queries of every stage.
            output_attentions: Also return the attention of the queries to each other.
            return_dict: Return a `Mask2FormerModelOutput` rather than a tuple.
        """
        weights = self.flag("output_attentions", output_attentions)
        features, decoded = self.run(pixel_values, pixel_mask, all_masks=True, need_weights=weights)
        hidden = self.flag("output_hidden_states", output_hidden_states)
        output = Mask2FormerModelOutput(
            encoder_last_hidden_state=features.encoder[-1],
            pixel_decoder_last_hidden_state=features.pixels,
            transformer_decoder_last_hidden_state=decoded.states[-1],
            encoder_hidden_states=features.encoder if hidden else None,
            pixel_decoder_hidden_states=features.levels if hidden else None,
            transformer_decoder_hidden_states=queries_first(decoded.states) if hidden else None,
            transformer_decoder_intermediate_states=queries_first(decoded.normed) if hidden else None,
            masks_queries_logits=tuple(decoded.masks),
            attentions=tuple(decoded.attentions) if weights else None,
        )
        return self.give(output, return_dict)

    def run(
        self, pixel_values: Tensor, pixel_mask: Tensor | None, *, all_masks: bool, need_weights: bool
    ) -> tuple[PixelFeatures, Decoded]:
        """Compute a batch, each picture without its padding where the configuration says so."""
        check_pixel_mask(pixel_values, pixel_mask)
        if pixel_mask is None or not self.config.use_pixel_mask:
            return self.run_frames(pixel_values, all_masks, need_weights)
        pictures = same_size(pixel_values, pixel_mask)
        parts = [(places, *self.run_frames(part, all_masks, need_weights)) for places, part in pictures]
        return self.join(parts, pixel_values)

    def run_frames(self, pixel_values: Tensor, all_masks: bool, need_weights: bool) -> tuple[PixelFeatures, Decoded]:
        """Compute a batch as it is."""
        features: PixelFeatures = self.pixel_level_module(pixel_values)
        decoded = self.transformer_module(
            features.levels, features.pixels, all_masks=all_masks, need_weights=need_weights
        )
        return features, decoded

    def join(
        self, parts: Sequence[tuple[Tensor, PixelFeatures, Decoded]], pixel_values: Tensor
    ) -> tuple[PixelFeatures, Decoded]:
        """Lay what was computed for pictures of one size each into one batch of frames."""
        batch = pixel_values.shape[0]
        sizes = [frame_size(pixel_values.shape[-2:], stride) for stride in self.pixel_level_module.encoder.strides_hw]
        finest = sizes[len(sizes) - LEVELS - self.pixel_level_module.decoder.laterals]

        def rows(get: str) -> list[Tensor]:
            lists = [[(places, state) for state in getattr(decoded, get)] for places, _, decoded in parts]
            return [join_rows(same, batch=batch) for same in zip(*lists, strict=True)]

        def maps(owner: int, get: str, map_sizes: Sequence[tuple[int, int]], outside: float = 0.0) -> list[Tensor]:
            lists = [[(part[0], one) for one in getattr(part[owner], get)] for part in parts]
            joined = zip(zip(*lists, strict=True), map_sizes, strict=True)
            return [join_maps(same, batch=batch, size_hw=size, outside=outside) for same, size in joined]

        features = PixelFeatures(
            encoder=tuple(maps(1, "encoder", sizes)),
            levels=tuple(maps(1, "levels", sizes[: -LEVELS - 1 : -1])),
            pixels=join_maps([(part[0], part[1].pixels) for part in parts], batch=batch, size_hw=finest),
        )
        masks = maps(2, "masks", [finest] * len(parts[0][2].masks), OUTSIDE)
        return features, Decoded(rows("states"), rows("normed"), masks, rows("attentions"))


class Mask2FormerForUniversalSegmentation(Mask2FormerPreTrainedModel):
    """Mask2Former with a class and a mask for each query: semantic, instance and panoptic segmentation."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__(config)
        self.model = Mask2FormerModel(config)
        self.class_predictor = nn.Linear(config.hidden_dim, config.num_labels + 1)
        self.criterion = MaskSetLoss(
            num_labels=config.num_labels,
            no_object_weight=config.no_object_weight,
            weights=MaskLossWeights(config.class_weight, config.mask_weight, config.dice_weight),
            class_cost_weight=config.class_weight,
            measure=PointMasks(config.train_num_points, config.oversample_ratio, config.importance_sample_ratio),
        )
        self.start()

    def forward(
        self,
        pixel_values: Tensor,
        mask_labels: Sequence[MaskLabels] | None = None,
        class_labels: Sequence[Tensor] | None = None,
        pixel_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_auxiliary_logits: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Mask2FormerForUniversalSegmentationOutput:
        """Predict a class and a mask for each query.

        Args:
            pixel_values: Normalised images [B, 3, H, W] of any size.
            mask_labels: For each image the masks of its objects [T, H, W], bool or numbers, or a list of COCO RLEs.
            class_labels: For each image the classes of its masks [T].
            pixel_mask: 1 where there is picture, 0 in the padding [B, H, W]; see `Mask2FormerConfig.use_pixel_mask`.
            output_hidden_states: Also return maps and queries of every stage.
            output_auxiliary_logits: Also return the predictions before the last.
            output_attentions: Also return the attention of the queries to each other.
            return_dict: Return a `Mask2FormerForUniversalSegmentationOutput` rather than a tuple.
        """
        if (mask_labels is None) != (class_labels is None):
            raise InputError("mask_labels and class_labels: expected both for a loss, got one. Give both or neither.")
        labelled = mask_labels is not None and class_labels is not None
        return_auxiliary = self.flag("output_auxiliary_logits", output_auxiliary_logits)
        weights = self.flag("output_attentions", output_attentions)
        features, decoded = self.model.run(
            pixel_values,
            pixel_mask,
            all_masks=return_auxiliary or (labelled and self.config.use_auxiliary_loss),
            need_weights=weights,
        )
        scored = decoded.normed[-len(decoded.masks) :]
        predictions = [
            {"class_queries_logits": self.class_predictor(queries), "masks_queries_logits": masks}
            for queries, masks in zip(scored, decoded.masks, strict=True)
        ]
        loss = None
        if mask_labels is not None and class_labels is not None:
            loss = self.criterion(
                **predictions[-1],
                mask_labels=mask_labels,
                class_labels=class_labels,
                auxiliary_predictions=predictions[:-1] if self.config.use_auxiliary_loss else (),
            )
        hidden = self.flag("output_hidden_states", output_hidden_states)
        output = Mask2FormerForUniversalSegmentationOutput(
            loss=None if loss is None else loss.total,
            **predictions[-1],
            auxiliary_logits=predictions[:-1] if return_auxiliary else None,
            encoder_last_hidden_state=features.encoder[-1],
            pixel_decoder_last_hidden_state=features.pixels,
            transformer_decoder_last_hidden_state=decoded.states[-1],
            encoder_hidden_states=features.encoder if hidden else None,
            pixel_decoder_hidden_states=features.levels if hidden else None,
            transformer_decoder_hidden_states=queries_first(decoded.states) if hidden else None,
            attentions=tuple(decoded.attentions) if weights else None,
            loss_terms=None if loss is None else loss.terms,
        )
        return self.give(output, return_dict)


def queries_first(states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Lay queries out as the published models return them: [B, Q, C] -> [Q, B, C] each."""
    return tuple(state.transpose(0, 1) for state in states)
