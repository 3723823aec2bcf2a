"""The public Swin models: the bare encoder, the backbone, and the backbone in the layout of MaskFormer checkpoints.

pixel_values [B, 3, H, W] ─▶ SwinModel ─▶ tokens [B, H/32·W/32, 8C]
                          └▶ SwinBackbone ─▶ maps [B, C, H/4, W/4], [B, 2C, H/8, W/8], …
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

from torch import Tensor, nn, unflatten

from vitruvian.config import Config
from vitruvian.errors import ConfigError
from vitruvian.layers.backbone import BackboneMixin
from vitruvian.layers.init import init_layer, set_init_std
from vitruvian.losses.classification import classification_loss
from vitruvian.model import Model
from vitruvian.models.swin.checkpoint_keys import BACKBONE_RENAMED_KEYS, BACKBONE_SAVED_KEYS, RENAMED_KEYS, SAVED_KEYS
from vitruvian.models.swin.configuration import MaskFormerSwinConfig, SwinConfig
from vitruvian.models.swin.encoder import SwinEmbeddings, SwinEncoder, SwinEncoderOutput, TokenGrid
from vitruvian.outputs import BackboneOutput, BaseModelOutputWithPooling, ModelOutput, OutputKwargs
from vitruvian.weights import KeyMatch, KeyRenames


@dataclass
class SwinModelOutput(BaseModelOutputWithPooling):
    """Hidden states of Swin.

    Attributes:
        last_hidden_state: Tokens of the last stage after the final norm [B, h·w, C].
        pooler_output: Their mean [B, C].
        hidden_states: The embeddings, then the tokens after each stage [B, h·w, C].
        attentions: Weights of each stage's last layer [B · windows, A, N, N].
        reshaped_hidden_states: `hidden_states` as maps [B, C, h, w].
    """

    reshaped_hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class SwinImageClassifierOutput(ModelOutput):
    """Scores of classes [B, K]; hidden states are those of `SwinModelOutput`."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    reshaped_hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class SwinMaskedImageModelingOutput(ModelOutput):
    """Reconstructed images [B, 3, H, W]; hidden states are those of `SwinModelOutput`."""

    loss: Tensor | None = None
    reconstruction: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    reshaped_hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class MaskFormerSwinModelOutput(BaseModelOutputWithPooling):
    """Hidden states of Swin in MaskFormer checkpoints.

    Attributes:
        hidden_states: The embeddings, then for each stage the tokens before and after each layer [B, h·w, C].
        hidden_states_spatial_dimensions: Grid (h, w) of the embeddings and after each stage.
    """

    hidden_states_spatial_dimensions: tuple[tuple[int, int], ...] | None = None


class SwinPreTrainedModel(Model):
    """Base of the Swin models: parameter names in checkpoints, and initialization."""

    config_class: ClassVar[type[Config]] = SwinConfig
    config: SwinConfig
    base_model_prefix: ClassVar[str] = "swin"
    renamed_keys: ClassVar[KeyRenames] = RENAMED_KEYS
    saved_keys: ClassVar[KeyRenames] = SAVED_KEYS
    no_split_modules: ClassVar[tuple[str, ...]] = ("SwinEmbeddings", "SwinLayer", "MaskFormerSwinLayer")
    optional_keys: ClassVar[tuple[str, ...]] = ("relative_position_index", "mask_token")

    def post_init(self) -> None:
        """Finish construction."""
        set_init_std(self, self.config.initializer_range)
        super().post_init()

    def init_module(self, module: nn.Module) -> None:
        """Initialize weights: normal; positions and biases zero."""
        init_layer(module, std=self.config.initializer_range)


class _SwinBackboneBase(BackboneMixin, SwinPreTrainedModel):
    """A Swin that returns the maps of chosen stages before merging, each with its norm."""

    config: SwinConfig
    returns_block_states: ClassVar[bool] = False  # whether hidden states are tokens of each layer, rather than maps
    optional_keys: ClassVar[tuple[str, ...]] = (*SwinPreTrainedModel.optional_keys, "hidden_states_norms")

    @property
    def strides_hw(self) -> list[tuple[int, int]]:
        """Pixels of the image, down and across, for a cell of each map that the backbone returns."""
        levels = [max(self.config.stage_names.index(name) - 1, 0) for name in self.out_features]
        height, width = self.config.patch_hw
        return [(height << level, width << level) for level in levels]

    def parts(self) -> tuple[SwinEmbeddings, SwinEncoder, dict[str, nn.Module]]:
        """Return the modules that `forward` runs; norms by the name of their stage."""
        raise NotImplementedError

    def forward(self, pixel_values: Tensor, **kwargs: Unpack[OutputKwargs]) -> BackboneOutput:
        """Map images [B, 3, H, W] of any size to `feature_maps` [B, C, h, w] of the chosen stages."""
        flags = self.output_flags(**kwargs)
        embeddings, encoder, norms = self.parts()
        embedded = embeddings(pixel_values)
        output = encoder(
            embedded,
            always_shift=True,
            need_weights=flags.attentions,
            need_block_states=flags.hidden_states and self.returns_block_states,
        )
        states = dict(zip(self.config.stage_names, [embedded, *output.before_merging], strict=True))
        normed = [states[name]._replace(tokens=norms[name](states[name].tokens)) for name in self.out_features]
        result = BackboneOutput(
            feature_maps=tuple(state.as_map() for state in normed),
            hidden_states=self._hidden_states(list(states.values()), output) if flags.hidden_states else None,
            attentions=tuple(output.attentions) if flags.attentions else None,
        )
        return self.format_output(result, flags.return_dict)

    def _hidden_states(self, states: list[TokenGrid], output: SwinEncoderOutput) -> tuple[Any, ...]:
        """Return the maps of the stem and of each stage, or the tokens before and after each layer."""
        if self.returns_block_states:
            return (states[0].tokens, *output.block_states)
        return tuple(state.as_map() for state in states)


class SwinModel(SwinPreTrainedModel):
    """Swin without a head.

    Args:
        config: The configuration.
        add_pooling_layer: Also return the mean of the last tokens.
        use_mask_token: Make a token for patches that `bool_masked_pos` hides.
    """

    def __init__(self, config: SwinConfig, add_pooling_layer: bool = True, use_mask_token: bool = False) -> None:
        super().__init__(config)
        self.pooled = add_pooling_layer
        self.embeddings = SwinEmbeddings(config, use_mask_token=use_mask_token)
        self.encoder = SwinEncoder(config)
        self.layernorm: nn.Module = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        *,
        interpolate_pos_encoding: bool = False,
        **kwargs: Unpack[OutputKwargs],
    ) -> SwinModelOutput:
        """Encode images.

        Args:
            pixel_values: Normalized images [B, 3, H, W] of any size.
            bool_masked_pos: True for patches to hide [B, h·w]; the model must have a mask token.
            interpolate_pos_encoding: Resize absolute positions to images of another size than the configured one.
            kwargs: See `OutputKwargs`. Attention weights are those of each stage's last layer.
        """
        flags = self.output_flags(**kwargs)
        embedded = self.embeddings(pixel_values, bool_masked_pos, interpolate=interpolate_pos_encoding)
        encoded = self.encoder(embedded, always_shift=False, need_weights=flags.attentions)
        last = self.layernorm(encoded.after_merging[-1].tokens)
        output = SwinModelOutput(
            last_hidden_state=last,
            pooler_output=last.mean(1) if self.pooled else None,  # [B, C]
            attentions=tuple(encoded.attentions) if flags.attentions else None,
        )
        if flags.hidden_states:
            states = [embedded, *encoded.after_merging]
            output.hidden_states = tuple(state.tokens for state in states)
            output.reshaped_hidden_states = tuple(state.as_map() for state in states)
        return self.format_output(output, flags.return_dict)


class SwinForImageClassification(SwinPreTrainedModel):
    """Swin with a linear classifier of the whole image."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        self.swin = SwinModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        *,
        interpolate_pos_encoding: bool = False,
        **kwargs: Unpack[OutputKwargs],
    ) -> SwinImageClassifierOutput:
        """Classify images.

        Args:
            pixel_values: Normalized images [B, 3, H, W] of any size.
            labels: Class of each image [B], or one number for each class [B, K]; adds `loss`. See
                `vitruvian.losses.classification.classification_loss` and `Config.problem_type`.
            interpolate_pos_encoding: See `SwinModel`.
            kwargs: See `OutputKwargs`.
        """
        flags = self.output_flags(**kwargs)
        encoded = self.swin(pixel_values, interpolate_pos_encoding=interpolate_pos_encoding, **flags.for_inner())
        logits: Tensor = self.classifier(encoded.pooler_output)  # [B, K]
        output = SwinImageClassifierOutput(
            loss=None if labels is None else classification_loss(logits, labels, self.config.problem_type),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
            reshaped_hidden_states=encoded.reshaped_hidden_states,
        )
        return self.format_output(output, flags.return_dict)


class SwinForMaskedImageModeling(SwinPreTrainedModel):
    """Swin with a decoder that reconstructs the pixels of hidden patches, for pretraining."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        self.swin = SwinModel(config, add_pooling_layer=False, use_mask_token=True)
        stride = config.encoder_stride
        self.decoder = nn.Sequential(
            nn.Conv2d(config.hidden_size, stride**2 * config.num_channels, 1), nn.PixelShuffle(stride)
        )
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        *,
        interpolate_pos_encoding: bool = False,
        **kwargs: Unpack[OutputKwargs],
    ) -> SwinMaskedImageModelingOutput:
        """Reconstruct images.

        Args:
            pixel_values: Normalized images [B, 3, H, W].
            bool_masked_pos: True for patches to hide [B, h·w]; adds `loss`, their mean absolute error.
            interpolate_pos_encoding: See `SwinModel`.
            kwargs: See `OutputKwargs`.
        """
        flags = self.output_flags(**kwargs)
        encoded = self.swin(
            pixel_values,
            bool_masked_pos,
            interpolate_pos_encoding=interpolate_pos_encoding,
            **flags._replace(hidden_states=True).for_inner(),
        )
        grid_hw = encoded.reshaped_hidden_states[-1].shape[-2:]
        tokens = encoded.last_hidden_state.transpose(1, 2)  # [B, C, h·w]
        reconstruction: Tensor = self.decoder(unflatten(tokens, 2, grid_hw))  # [B, 3, H, W]
        loss: Tensor | None = None
        if bool_masked_pos is not None:
            patch_hw = self.config.patch_hw
            cells = (pixel_values.shape[-2] // patch_hw[0], pixel_values.shape[-1] // patch_hw[1])
            hidden = unflatten(bool_masked_pos.to(pixel_values.dtype), 1, cells)[:, None]  # [B, 1, h, w]
            mask = hidden.repeat_interleave(patch_hw[0], 2).repeat_interleave(patch_hw[1], 3)  # [B, 1, H, W]
            error = (pixel_values - reconstruction).abs() * mask
            loss = error.sum() / (mask.sum() + 1e-5) / self.config.num_channels
        output = SwinMaskedImageModelingOutput(
            loss=loss,
            reconstruction=reconstruction,
            hidden_states=encoded.hidden_states if flags.hidden_states else None,
            attentions=encoded.attentions,
            reshaped_hidden_states=encoded.reshaped_hidden_states if flags.hidden_states else None,
        )
        return self.format_output(output, flags.return_dict)


class SwinBackbone(_SwinBackboneBase):
    """Swin as a backbone: the feature maps of the stages in `out_features`, before merging, each with its norm."""

    renamed_keys: ClassVar[KeyRenames] = BACKBONE_RENAMED_KEYS
    saved_keys: ClassVar[KeyRenames] = BACKBONE_SAVED_KEYS
    ignored_keys: ClassVar[tuple[str, ...]] = (r"^(swin\.)?layernorm\.", r"^classifier\.")

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        self.swin = SwinModel(config, add_pooling_layer=False)
        self.swin.layernorm = nn.Identity()  # each stage has a norm of its own
        named = zip(self.out_features, self.channels, strict=True)
        self.hidden_states_norms = nn.ModuleDict({name: nn.LayerNorm(channels) for name, channels in named})
        self.post_init()

    @classmethod
    def check_keys(cls, match: KeyMatch, source: str, *, new_head: bool, strict: bool) -> None:
        """As for all models; a file may also have norms of other stages than `out_features`."""
        unexpected = [name for name in match.unexpected if not name.startswith("hidden_states_norms.")]
        super().check_keys(replace(match, unexpected=unexpected), source, new_head=new_head, strict=strict)

    def parts(self) -> tuple[SwinEmbeddings, SwinEncoder, dict[str, nn.Module]]:
        """Return the modules that `forward` runs."""
        return self.swin.embeddings, self.swin.encoder, dict(self.hidden_states_norms.items())


class MaskFormerSwinModel(SwinModel):
    """`SwinModel` as MaskFormer checkpoints have it: hidden states of every layer, and windows that always shift."""

    config_class: ClassVar[type[Config]] = MaskFormerSwinConfig
    renamed_keys: ClassVar[KeyRenames] = SAVED_KEYS  # the names of files in memory too
    saved_keys: ClassVar[KeyRenames] = ()

    def forward(  # type: ignore[override]
        self, pixel_values: Tensor, *, interpolate_pos_encoding: bool = False, **kwargs: Unpack[OutputKwargs]
    ) -> MaskFormerSwinModelOutput:
        """Encode images; see `SwinModel.forward`."""
        flags = self.output_flags(**kwargs)
        embedded = self.embeddings(pixel_values, interpolate=interpolate_pos_encoding)
        encoded = self.encoder(
            embedded, always_shift=True, need_weights=flags.attentions, need_block_states=flags.hidden_states
        )
        last = self.layernorm(encoded.after_merging[-1].tokens)
        output = MaskFormerSwinModelOutput(
            last_hidden_state=last,
            pooler_output=last.mean(1) if self.pooled else None,  # [B, C]
            hidden_states=(embedded.tokens, *encoded.block_states) if flags.hidden_states else None,
            attentions=tuple(encoded.attentions) if flags.attentions else None,
        )
        if flags.return_dict:  # tuples are of tensors
            grids = (state.grid_hw for state in (embedded, *encoded.after_merging))
            output.hidden_states_spatial_dimensions = tuple(grids)
        return self.format_output(output, flags.return_dict)


class MaskFormerSwinBackbone(_SwinBackboneBase):
    """`SwinBackbone` with the parameter names of MaskFormer checkpoints: an inner model, and a norm for every stage.

    Hidden states are the tokens of the stem and, for each stage, those before and after each layer.
    """

    returns_block_states: ClassVar[bool] = True
    config_class: ClassVar[type[Config]] = MaskFormerSwinConfig
    base_model_prefix: ClassVar[str] = "model"
    renamed_keys: ClassVar[KeyRenames] = SAVED_KEYS
    saved_keys: ClassVar[KeyRenames] = ()

    def __init__(self, config: MaskFormerSwinConfig) -> None:
        super().__init__(config)
        if "stem" in self.out_features:
            raise ConfigError(
                "MaskFormerSwinConfig.out_features: expected stages, got the stem, which has no norm. Use SwinBackbone."
            )
        self.model = MaskFormerSwinModel(config)
        self.hidden_states_norms = nn.ModuleList(nn.LayerNorm(channels) for channels in config.stage_channels)
        self.post_init()

    def parts(self) -> tuple[SwinEmbeddings, SwinEncoder, dict[str, nn.Module]]:
        """Return the modules that `forward` runs."""
        norms = dict(zip(self.config.stage_names[1:], self.hidden_states_norms, strict=True))
        return self.model.embeddings, self.model.encoder, norms
