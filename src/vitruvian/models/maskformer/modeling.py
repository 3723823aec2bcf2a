"""The public MaskFormer models.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule ─▶ coarse map ─▶ TransformerModule ─▶ queries [B, Q, C] ─▶ classes
                                              └▶ pixel embeddings [B, M, H/4, W/4] ──────┴▶ masks [B, Q, H/4, W/4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.layers.init import init_layer
from vitruvian.layers.padding import OUTSIDE, Frames
from vitruvian.layers.queries import mask_head, mask_logits
from vitruvian.losses.masks import DenseMasks, MaskLabels, MaskLossWeights, MaskSetLoss
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
from vitruvian.models.maskformer.configuration import MaskFormerConfig
from vitruvian.models.maskformer.outputs import MaskFormerForInstanceSegmentationOutput, MaskFormerModelOutput
from vitruvian.models.maskformer.pixel_decoder import build_pixel_level
from vitruvian.models.maskformer.transformer_decoder import Decoded, TransformerModule
from vitruvian.models.swin.encoder import start_part
from vitruvian.models.swin.fast import fuse_swin


class MaskFormerPreTrainedModel(Model):
    """What both MaskFormer models share: names in checkpoints and starting values."""

    config_class: ClassVar[type[Config]] = MaskFormerConfig
    config: MaskFormerConfig
    base_model_prefix: ClassVar[str] = "model"
    no_split_modules: ClassVar[tuple[str, ...]] = WHOLE_MODULES
    ignored_keys: ClassVar[tuple[str, ...]] = (CLASS_WEIGHTS,)
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
        """Fill fresh weights: normal, Xavier in the pixel decoder and the mask head."""
        init_layer(module, std=self.config.init_std, gain=self.config.init_xavier_std)
        start_part(module)
        start_loss(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, through a recorded graph where `optimize` allows it and the call can be recorded."""
        return call_recorded(self, super().__call__, args, kwargs)

    def prepare_for_inference(self) -> None:
        """Join the projections of the backbone's windows and keep their biases for inference."""
        fuse_swin(self)


class MaskFormerModel(MaskFormerPreTrainedModel):
    """MaskFormer without heads."""

    def __init__(self, config: MaskFormerConfig) -> None:
        super().__init__(config)
        self.pixel_level_module = build_pixel_level(config)
        coarsest = self.pixel_level_module.encoder.channels[-1]
        self.transformer_module = TransformerModule(coarsest, config.decoder)
        self.post_init()

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
        weights = self.resolve_flag("output_attentions", output_attentions)
        features, decoded, _ = self.run(pixel_values, pixel_mask, labelled=False, need_weights=weights)
        output = MaskFormerModelOutput(
            **hidden_fields(features, decoded, states=self.resolve_flag("output_hidden_states", output_hidden_states)),
            attentions=tuple(decoded.attentions) if weights else None,
            auxiliary_hidden_states=tuple(decoded.auxiliary) if self.config.use_auxiliary_loss else None,
        )
        return self.format_output(output, return_dict)

    def run(
        self, pixel_values: Tensor, pixel_mask: Tensor | None, *, labelled: bool, need_weights: bool
    ) -> tuple[PixelFeatures, Decoded, Tensor | None]:
        """Compute a batch, each picture without its padding where the configuration says so.

        The last result tells where frames hold no picture [B, 1, H/4, W/4], where padding was left out.
        """

        def run(pictures: Tensor) -> tuple[PixelFeatures, Decoded, Tensor | None]:
            features: PixelFeatures = self.pixel_level_module(pictures)
            auxiliary = self.config.use_auxiliary_loss
            decoded = self.transformer_module(features.encoder[-1], auxiliary=auxiliary, need_weights=need_weights)
            return features, decoded, None

        use_mask = self.config.leaves_padding_out(labelled=labelled)
        return compute(run, self.join, pixel_values, pixel_mask, use_mask=use_mask)

    def join(
        self, frames: Frames, parts: Sequence[tuple[PixelFeatures, Decoded, Tensor | None]]
    ) -> tuple[PixelFeatures, Decoded, Tensor | None]:
        """Lay what was computed for pictures of one size each into one batch of frames."""
        finest = self.pixel_level_module.encoder.strides_hw[0]
        all_features, all_decoded, _ = zip(*parts, strict=True)
        features = self.pixel_level_module.join(frames, all_features, levels=slice(-2, None, -1), finest=finest)
        decoded = Decoded(
            frames.rows([part.last for part in all_decoded]),
            frames.all_rows([part.auxiliary for part in all_decoded]),
            frames.all_rows([part.states for part in all_decoded]),
            frames.all_rows([part.attentions for part in all_decoded]),
        )
        inside = [part.pixels.new_ones((len(part.pixels), 1, *part.pixels.shape[-2:])) for part in all_features]
        return features, decoded, frames.maps(inside, finest) == 0


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
        self.post_init()

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
        labelled = check_labels(mask_labels, class_labels)
        weights = self.resolve_flag("output_attentions", output_attentions)
        features, decoded, outside = self.model.run(pixel_values, pixel_mask, labelled=labelled, need_weights=weights)
        auxiliary = [self.predict(queries, features.pixels, outside) for queries in decoded.auxiliary]
        final = self.predict(decoded.last, features.pixels, outside)
        loss = None
        if mask_labels is not None and class_labels is not None:
            loss = self.criterion(
                **final, mask_labels=mask_labels, class_labels=class_labels, auxiliary_predictions=auxiliary
            )
        output = MaskFormerForInstanceSegmentationOutput(
            loss=None if loss is None else loss.total,
            class_queries_logits=final["class_queries_logits"],
            masks_queries_logits=final["masks_queries_logits"],
            auxiliary_logits=auxiliary
            if self.resolve_flag("output_auxiliary_logits", output_auxiliary_logits)
            else None,
            **hidden_fields(features, decoded, states=self.resolve_flag("output_hidden_states", output_hidden_states)),
            attentions=tuple(decoded.attentions) if weights else None,
            loss_terms=None if loss is None else loss.terms,
        )
        return self.format_output(output, return_dict)

    def predict(self, queries: Tensor, pixels: Tensor, outside: Tensor | None) -> dict[str, Tensor]:
        """Turn queries [B, Q, C] into scores of classes and pixels."""
        masks = mask_logits(self.mask_embedder(queries), pixels)  # [B, Q, H/4, W/4]
        if outside is not None:
            masks = masks.masked_fill(outside, OUTSIDE)
        return {"class_queries_logits": self.class_predictor(queries), "masks_queries_logits": masks}


def hidden_fields(features: PixelFeatures, decoded: Decoded, *, states: bool) -> dict[str, Any]:
    """Fields of both outputs that hold hidden states, those of every stage where asked for."""
    found: dict[str, Any] = {
        "encoder_last_hidden_state": features.encoder[-1],
        "pixel_decoder_last_hidden_state": features.pixels,
        "transformer_decoder_last_hidden_state": decoded.last,
    }
    if states:
        queries = (*decoded.states[:-1], decoded.last)
        found["encoder_hidden_states"] = features.encoder
        found["pixel_decoder_hidden_states"] = features.levels
        found["transformer_decoder_hidden_states"] = queries
        found["hidden_states"] = (*features.encoder, *features.levels, *queries)
    return found
