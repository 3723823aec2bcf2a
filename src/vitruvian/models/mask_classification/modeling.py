"""What the models of MaskFormer and Mask2Former share: backbone and pixel decoder, batches of mixed sizes, the loss.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule (backbone, pixel decoder) ─▶ PixelFeatures ─▶ decoder ─▶ DecoderOutput
a batch of mixed sizes    ─▶ once for each size, without padding ─▶ merged into one batch
"""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.errors import InputError
from vitruvian.layers.init import init_layer
from vitruvian.losses.mask_set import MaskLabels, MaskSetLoss
from vitruvian.losses.terms import LossTerms
from vitruvian.model import Model
from vitruvian.models.mask_classification.configuration import MaskClassificationConfig
from vitruvian.models.mask_classification.outputs import DecoderOutput, PixelFeatures, QueryPredictions
from vitruvian.models.mask_classification.padding import PADDING_LOGIT, ImageGroups, check_pixel_mask, group_by_size
from vitruvian.models.resnet.modeling import ResNetBackbone
from vitruvian.models.swin.modeling import MaskFormerSwinBackbone, SwinBackbone
from vitruvian.outputs import ModelOutput, OutputFlags, OutputKwargs

Backbone = SwinBackbone | MaskFormerSwinBackbone | ResNetBackbone
StrideHW = tuple[int, int]


class PixelLevelModule(nn.Module):
    """A backbone and a pixel decoder.

    Args:
        encoder: The backbone.
        decoder: Maps the backbone's maps to others, coarse to fine, and to pixel embeddings.
        level_strides_hw: Strides of the pixel decoder's maps.
        pixel_stride_hw: Stride of the pixel embeddings.
    """

    def __init__(
        self, encoder: Backbone, decoder: nn.Module, *, level_strides_hw: Sequence[StrideHW], pixel_stride_hw: StrideHW
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.level_strides_hw, self.pixel_stride_hw = level_strides_hw, pixel_stride_hw

    def load_backbone(self, name: str) -> None:
        """Load the weights of the backbone from a checkpoint of the backbone."""
        pretrained = type(self.encoder).from_pretrained(name, config=self.encoder.config)
        self.encoder.load_state_dict(pretrained.state_dict())

    def forward(self, pixel_values: Tensor) -> PixelFeatures:
        """Map images [B, 3, H, W] to features."""
        maps = self.encoder(pixel_values, return_dict=True).feature_maps
        levels, pixels = self.decoder(maps)
        return PixelFeatures(maps, tuple(levels), pixels)

    def merge(self, groups: ImageGroups, parts: Sequence[PixelFeatures]) -> PixelFeatures:
        """Merge the features of each group of images into one padded batch."""
        inside = [[part.pixels.new_ones((len(part.pixels), 1, *part.pixels.shape[-2:]))] for part in parts]
        return PixelFeatures(
            tuple(groups.merge_maps([part.encoder for part in parts], self.encoder.strides_hw)),
            tuple(groups.merge_maps([part.levels for part in parts], self.level_strides_hw)),
            groups.merge_maps([[part.pixels] for part in parts], [self.pixel_stride_hw])[0],
            groups.merge_maps(inside, [self.pixel_stride_hw])[0] == 0,
        )


class MaskClassificationPreTrainedModel(Model):
    """Base of the MaskFormer and Mask2Former models: checkpoints, initialization, CUDA graphs."""

    config: MaskClassificationConfig
    base_model_prefix: ClassVar[str] = "model"
    no_split_modules: ClassVar[tuple[str, ...]] = (
        "SwinEmbeddings", "SwinLayer", "MaskFormerSwinLayer", "ResNetBlock", "MaskFormerPixelDecoder",
        "MaskFormerTransformerModule", "Mask2FormerPixelDecoder", "Mask2FormerTransformerModule",
    )  # fmt: skip
    # Class weights follow from the configuration, whatever a file says.
    ignored_keys: ClassVar[tuple[str, ...]] = (r"(^|\.)criterion\.empty_weight$",)
    optional_keys: ClassVar[tuple[str, ...]] = (
        r"criterion\.empty_weight$", "relative_position_index", "num_batches_tracked",
    )  # fmt: skip

    def post_init(self) -> None:
        """Finish construction."""
        super().post_init()
        self._load_backbone()

    @classmethod
    def from_config(cls, config: Config, **options: Any) -> Self:
        """Build a new model, with `use_pretrained_backbone` around a pretrained backbone; see `Model.from_config`."""
        model = super().from_config(config, **options)
        model._load_backbone()
        return model

    def _load_backbone(self) -> None:
        """Load the pretrained backbone, if the configuration asks for one and weights are in memory."""
        name = self.config.backbone
        if self.config.use_pretrained_backbone and name and not any(p.is_meta for p in self.parameters()):
            for module in self.modules():
                if isinstance(module, PixelLevelModule):
                    module.load_backbone(name)

    def init_module(self, module: nn.Module) -> None:
        """Initialize weights: normal, Xavier in the decoders."""
        init_layer(module, std=self.config.init_std, gain=self.config.init_xavier_std)

    def _captured_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the `forward` of the class, as a CUDA graph if the call can be captured.

        Labels are matched on the CPU, and padding splits the batch. A mask without padding is left out.
        """
        arguments = inspect.signature(type(self).forward).bind(self, *args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        del arguments["self"]
        mask = arguments.pop("pixel_mask", None)
        check_pixel_mask(arguments["pixel_values"], mask)
        ignores_mask = mask is None or self.config.use_pixel_mask is False
        if arguments.get("mask_labels") is None and (ignores_mask or bool(mask.bool().all())):
            return super()._captured_forward(**arguments)
        return type(self).forward(self, *args, **kwargs)


class MaskClassificationModel(MaskClassificationPreTrainedModel):
    """Base of the models without heads: features, then a transformer decoder."""

    pixel_level_module: PixelLevelModule

    def forward(
        self, pixel_values: Tensor, pixel_mask: Tensor | None = None, **kwargs: Unpack[OutputKwargs]
    ) -> ModelOutput:
        """Compute queries and pixel embeddings.

        Args:
            pixel_values: Normalized images [B, 3, H, W] of any size.
            pixel_mask: 1 for the image, 0 in the padding [B, H, W]; see `MaskClassificationConfig.use_pixel_mask`.
            kwargs: See `OutputKwargs`. Attention weights are those of the queries to each other.
        """
        flags = self.output_flags(**kwargs)
        features, decoded = self.compute(pixel_values, pixel_mask, need_weights=flags.attentions)
        return self.format_output(self.build_output(features, decoded, flags), flags.return_dict)

    def build_output(self, features: PixelFeatures, decoded: DecoderOutput, flags: OutputFlags) -> ModelOutput:
        """Return the output of `forward`."""
        raise NotImplementedError

    def decode(self, features: PixelFeatures, *, all_masks: bool, need_weights: bool) -> DecoderOutput:
        """Run the transformer decoder."""
        raise NotImplementedError

    def hidden_fields(self, features: PixelFeatures, decoded: DecoderOutput, flags: OutputFlags) -> dict[str, Any]:
        """Return the fields of outputs with hidden states, the last of each part or all, and with attentions."""
        fields: dict[str, Any] = {
            "encoder_last_hidden_state": features.encoder[-1],
            "pixel_decoder_last_hidden_state": features.pixels,
            "transformer_decoder_last_hidden_state": decoded.states[-1],
        }
        if flags.hidden_states:
            fields["encoder_hidden_states"] = features.encoder
            fields["pixel_decoder_hidden_states"] = features.levels
            fields["transformer_decoder_hidden_states"] = tuple(decoded.states)
        if flags.attentions:
            fields["attentions"] = tuple(decoded.attentions)
        return fields

    def compute(
        self,
        pixel_values: Tensor,
        pixel_mask: Tensor | None,
        *,
        has_labels: bool = False,
        all_masks: bool = True,
        need_weights: bool = False,
    ) -> tuple[PixelFeatures, DecoderOutput]:
        """Compute images [B, 3, H, W], each without its padding where `use_pixel_mask` says so.

        With `all_masks`, return the masks before the last ones too; with `need_weights`, attention weights.
        """

        def run(images: Tensor) -> tuple[PixelFeatures, DecoderOutput]:
            features: PixelFeatures = self.pixel_level_module(images)
            return features, self.decode(features, all_masks=all_masks, need_weights=need_weights)

        check_pixel_mask(pixel_values, pixel_mask)
        if pixel_mask is None or not self.config.crops_padding(has_labels=has_labels):
            return run(pixel_values)
        if torch.compiler.is_exporting():
            raise InputError(
                "pixel_mask: expected None for an export, which cannot depend on sizes inside the batch, got a mask. "
                "Leave it out, or set config.use_pixel_mask=False."
            )
        groups = group_by_size(pixel_values, pixel_mask)
        if groups is None:
            return run(pixel_values)
        features, decoded = zip(*(run(images) for images in groups.crop(pixel_values)), strict=True)
        masks = [part.masks for part in decoded]
        mask_strides_hw = [self.pixel_level_module.pixel_stride_hw] * len(masks[0])
        return self.pixel_level_module.merge(groups, features), DecoderOutput(
            groups.merge_rows([part.states for part in decoded]),
            groups.merge_rows([part.normed for part in decoded]),
            groups.merge_rows([part.attentions for part in decoded]),
            groups.merge_maps(masks, mask_strides_hw, fill=PADDING_LOGIT),
        )


class MaskClassificationForSegmentation(MaskClassificationPreTrainedModel):
    """Base of the models with a class and a mask for each query."""

    output_class: ClassVar[type[QueryPredictions]]
    model: MaskClassificationModel
    criterion: MaskSetLoss

    def predict(self, features: PixelFeatures, decoded: DecoderOutput) -> list[dict[str, Tensor]]:
        """Return `class_queries_logits` and `masks_queries_logits` of each prediction; the last is the result."""
        raise NotImplementedError

    def get_loss_dict(
        self,
        masks_queries_logits: Tensor,
        class_queries_logits: Tensor,
        mask_labels: Sequence[MaskLabels],
        class_labels: Sequence[Tensor],
        auxiliary_predictions: Sequence[dict[str, Tensor]] | None = None,
    ) -> dict[str, Tensor]:
        """Return the terms of the loss, each times its weight; the arguments are those of `MaskSetLoss`."""
        loss: LossTerms = self.criterion(
            masks_queries_logits, class_queries_logits, mask_labels, class_labels, auxiliary_predictions or ()
        )
        weights = self.criterion.weights
        return {name: getattr(weights, name.rstrip("_0123456789")) * term for name, term in loss.terms.items()}

    def get_loss(self, loss_dict: dict[str, Tensor]) -> Tensor:
        """Return the sum of the terms of `get_loss_dict`."""
        return torch.stack(list(loss_dict.values())).sum()

    def forward(
        self,
        pixel_values: Tensor,
        mask_labels: Sequence[MaskLabels] | None = None,
        class_labels: Sequence[Tensor] | None = None,
        pixel_mask: Tensor | None = None,
        *,
        output_auxiliary_logits: bool | None = None,
        **kwargs: Unpack[OutputKwargs],
    ) -> QueryPredictions:
        """Predict a class and a mask for each query; returns the model's `output_class`.

        Args:
            pixel_values: Normalized images [B, 3, H, W] of any size.
            mask_labels: For each image the masks of its objects [T, H, W], bool or numbers, or a list of COCO RLEs.
            class_labels: For each image the classes of its masks [T].
            pixel_mask: 1 for the image, 0 in the padding [B, H, W]; see `MaskClassificationConfig.use_pixel_mask`.
            output_auxiliary_logits: Also return the predictions before the last. MaskFormer has them with
                `MaskFormerConfig.use_auxiliary_loss` only.
            kwargs: See `OutputKwargs`. Attention weights are those of the queries to each other.
        """
        has_labels = mask_labels is not None
        if has_labels != (class_labels is not None):
            raise InputError("mask_labels and class_labels: expected both for a loss, got one. Give both or neither.")
        flags = self.output_flags(**kwargs)
        auxiliary_loss = has_labels and self.config.use_auxiliary_loss
        return_auxiliary = self.resolve_flag("output_auxiliary_logits", output_auxiliary_logits)
        features, decoded = self.model.compute(
            pixel_values,
            pixel_mask,
            has_labels=has_labels,
            all_masks=return_auxiliary or auxiliary_loss,
            need_weights=flags.attentions,
        )
        predictions = self.predict(features, decoded)
        fields: dict[str, Any] = predictions[-1] | self.model.hidden_fields(features, decoded, flags)
        if return_auxiliary:
            fields["auxiliary_logits"] = predictions[:-1]
        if has_labels:
            loss: LossTerms = self.criterion(
                **predictions[-1],
                mask_labels=mask_labels,
                class_labels=class_labels,
                auxiliary_predictions=predictions[:-1] if auxiliary_loss else (),
            )
            fields |= {"loss": loss.total, "loss_terms": loss.terms}
        return self.format_output(self.output_class(**fields), flags.return_dict)
