"""The public Mask2Former models.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule ─▶ maps at 1/32 … 1/8 ─▶ TransformerModule ─▶ queries [B, Q, C] ─▶ classes
                                              └▶ pixel embeddings [B, M, H/4, W/4] ──────┴▶ masks [B, Q, H/4, W/4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.layers.deformable import start_offsets
from vitruvian.layers.init import init_layer
from vitruvian.layers.padding import OUTSIDE, Frames
from vitruvian.layers.queries import PackedAttention, start_packed
from vitruvian.losses.masks import MaskLabels, MaskLossWeights, MaskSetLoss, PointMasks
from vitruvian.mask_model import (
    CLASS_WEIGHTS,
    OPTIONAL_KEYS,
    WHOLE_MODULES,
    PixelFeatures,
    call_recorded,
    check_labels,
    compute,
    start_loss,
    with_backbone,
)
from vitruvian.model import Model
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.fast import fuse_deformable
from vitruvian.models.mask2former.outputs import Mask2FormerForUniversalSegmentationOutput, Mask2FormerModelOutput
from vitruvian.models.mask2former.pixel_decoder import LEVELS, PixelDecoder, build_pixel_level
from vitruvian.models.mask2former.transformer_decoder import Decoded, TransformerModule
from vitruvian.models.swin.encoder import start_part
from vitruvian.models.swin.fast import fuse_swin


class Mask2FormerPreTrainedModel(Model):
    """What both Mask2Former models share: names in checkpoints and starting values."""

    config_class: ClassVar[type[Config]] = Mask2FormerConfig
    config: Mask2FormerConfig
    base_model_prefix: ClassVar[str] = "model"
    no_split_modules: ClassVar[tuple[str, ...]] = WHOLE_MODULES
    # No map passes the last norm of the bare Swin.
    ignored_keys: ClassVar[tuple[str, ...]] = (CLASS_WEIGHTS, r"\.encoder\.swin\.layernorm\.")
    optional_keys: ClassVar[tuple[str, ...]] = OPTIONAL_KEYS

    def post_init(self) -> None:
        """Finish construction."""
        super().post_init()
        with_backbone(self)

    @classmethod
    def from_config(cls, config: Config, **options: Any) -> Self:
        """Build a new model; see `Model.from_config`. Its backbone may start with the weights of `backbone`."""
        return with_backbone(super().from_config(config, **options))

    def init_module(self, module: nn.Module) -> None:
        """Fill fresh weights: normal, Xavier in the transformers, a ring of points for deformable attention."""
        init_layer(module, std=self.config.init_std, gain=self.config.init_xavier_std)
        start_part(module)
        start_loss(module)
        if hasattr(module, "start_ring") and isinstance(module, nn.Linear):
            start_offsets(module)
        elif isinstance(module, PackedAttention):
            start_packed(module, gain=self.config.init_xavier_std)
        elif isinstance(module, PixelDecoder):
            nn.init.zeros_(module.level_embed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, through a recorded graph where `optimize` allows it and the call can be recorded."""
        return call_recorded(self, super().__call__, args, kwargs)

    def prepare_for_inference(self) -> None:
        """Join projections, and keep the biases of the backbone's windows, for inference."""
        fuse_swin(self)
        fuse_deformable(self)


class Mask2FormerModel(Mask2FormerPreTrainedModel):
    """Mask2Former without the class head."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__(config)
        self.pixel_level_module = build_pixel_level(config)
        self.transformer_module = TransformerModule(config)
        self.post_init()

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
        weights = self.resolve_flag("output_attentions", output_attentions)
        features, decoded = self.run(pixel_values, pixel_mask, labelled=False, all_masks=True, need_weights=weights)
        hidden = self.resolve_flag("output_hidden_states", output_hidden_states)
        output = Mask2FormerModelOutput(
            **hidden_fields(features, decoded, states=hidden),
            transformer_decoder_intermediate_states=queries_first(decoded.normed) if hidden else None,
            masks_queries_logits=tuple(decoded.masks),
            attentions=tuple(decoded.attentions) if weights else None,
        )
        return self.format_output(output, return_dict)

    def run(
        self, pixel_values: Tensor, pixel_mask: Tensor | None, *, labelled: bool, all_masks: bool, need_weights: bool
    ) -> tuple[PixelFeatures, Decoded]:
        """Compute a batch, each picture without its padding where the configuration says so."""

        def run(pictures: Tensor) -> tuple[PixelFeatures, Decoded]:
            features: PixelFeatures = self.pixel_level_module(pictures)
            decoded = self.transformer_module(
                features.levels, features.pixels, all_masks=all_masks, need_weights=need_weights
            )
            return features, decoded

        use_mask = self.config.leaves_padding_out(labelled=labelled)
        return compute(run, self.join, pixel_values, pixel_mask, use_mask=use_mask)

    def join(self, frames: Frames, parts: Sequence[tuple[PixelFeatures, Decoded]]) -> tuple[PixelFeatures, Decoded]:
        """Lay what was computed for pictures of one size each into one batch of frames."""
        all_features, all_decoded = zip(*parts, strict=True)
        strides, decoder = self.pixel_level_module.encoder.strides_hw, self.pixel_level_module.decoder
        assert isinstance(decoder, PixelDecoder)
        finest = strides[len(strides) - LEVELS - decoder.laterals]
        features = self.pixel_level_module.join(
            frames, all_features, levels=slice(None, -LEVELS - 1, -1), finest=finest
        )
        masks = [part.masks for part in all_decoded]
        decoded = Decoded(
            frames.all_rows([part.states for part in all_decoded]),
            frames.all_rows([part.normed for part in all_decoded]),
            frames.all_maps(masks, [finest] * len(masks[0]), OUTSIDE),
            frames.all_rows([part.attentions for part in all_decoded]),
        )
        return features, decoded


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
        self.post_init()

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
        labelled = check_labels(mask_labels, class_labels)
        return_auxiliary = self.resolve_flag("output_auxiliary_logits", output_auxiliary_logits)
        weights = self.resolve_flag("output_attentions", output_attentions)
        features, decoded = self.model.run(
            pixel_values,
            pixel_mask,
            labelled=labelled,
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
        output = Mask2FormerForUniversalSegmentationOutput(
            loss=None if loss is None else loss.total,
            **predictions[-1],
            auxiliary_logits=predictions[:-1] if return_auxiliary else None,
            **hidden_fields(features, decoded, states=self.resolve_flag("output_hidden_states", output_hidden_states)),
            attentions=tuple(decoded.attentions) if weights else None,
            loss_terms=None if loss is None else loss.terms,
        )
        return self.format_output(output, return_dict)


def hidden_fields(features: PixelFeatures, decoded: Decoded, *, states: bool) -> dict[str, Any]:
    """Fields of both outputs that hold hidden states, those of every stage where asked for."""
    found: dict[str, Any] = {
        "encoder_last_hidden_state": features.encoder[-1],
        "pixel_decoder_last_hidden_state": features.pixels,
        "transformer_decoder_last_hidden_state": decoded.states[-1],
    }
    if states:
        found["encoder_hidden_states"] = features.encoder
        found["pixel_decoder_hidden_states"] = features.levels
        found["transformer_decoder_hidden_states"] = queries_first(decoded.states)
    return found


def queries_first(states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Lay queries out as the published models return them: [B, Q, C] -> [Q, B, C] each."""
    return tuple(state.transpose(0, 1) for state in states)
