"""The encoder as public models: the bare one and the backbone, and what all Sapiens2 models share.

pixel_values [B, 3, H, W] ─▶ Embeddings ─▶ Encoder ─▶ RMSNorm ─▶ tokens [B, 1 + R + h·w, C] or maps [B, C, h, w]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.hub import HubOptions
from vitruvian.kernels.available import is_traced, takes_fused
from vitruvian.kernels.fp8 import can_multiply
from vitruvian.kernels.linear_cpu import packs
from vitruvian.layers.norm import RMSNorm
from vitruvian.layers.residual import LayerScale
from vitruvian.model import Model
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.convert import is_gated, is_original, target_names
from vitruvian.models.sapiens2.encoder import (
    Embeddings,
    Encoded,
    Encoder,
    WindowTokenizer,
    check_pixels,
    positions,
)
from vitruvian.models.sapiens2.fast import FusedLayer, fuse_encoder, run_layers
from vitruvian.models.sapiens2.fast_cpu import FastEncoder
from vitruvian.models.sapiens2.outputs import Sapiens2BackboneOutput
from vitruvian.models.sapiens2.packed import packed_config, packed_files, packed_table
from vitruvian.outputs import BaseModelOutputWithPooling
from vitruvian.weights import WeightFiles


class Sapiens2PreTrainedModel(Model):
    """What all Sapiens2 models share: names in checkpoints and starting values."""

    config_class: ClassVar[type[Config]] = Sapiens2Config
    config: Sapiens2Config
    base_model_prefix: ClassVar[str] = "model"
    no_split_modules: ClassVar[tuple[str, ...]] = ("Embeddings", "Layer")
    ignored_keys: ClassVar[tuple[str, ...]] = (r"(^|\.)periods$",)
    optional_keys: ClassVar[tuple[str, ...]] = ("mask_token",)
    packed_task: ClassVar[str | None] = None  # what packed folders call the task

    @classmethod
    def read_config(
        cls, source: str | Path, config: Config | str | Path | None, options: HubOptions, overrides: dict[str, Any]
    ) -> tuple[Any, bool]:
        """Return the configuration to build with; that of the task, where several are packed together."""
        tasks = packed_table(source, options) if config is None else None
        if tasks is not None:
            config = packed_config(source, tasks, cls.packed_task, options)
        return super().read_config(source, config, options, overrides)

    @classmethod
    def open_files(cls, source: str | Path, options: HubOptions, *, use_safetensors: bool | None) -> WeightFiles:
        """Open the weights; the encoder's and the task's, where several are packed together."""
        tasks = packed_table(source, options)
        if tasks is None:
            return super().open_files(source, options, use_safetensors=use_safetensors)
        return packed_files(source, tasks, cls.packed_task, options)

    @classmethod
    def adapt(cls, files: WeightFiles) -> WeightFiles:
        """Read files in the naming of the original release, which is what the Hub holds."""
        shapes = files.shapes
        if not is_original(shapes):
            return files
        gated = is_gated(shapes)

        def names(name: str) -> tuple[str, ...]:
            found = target_names(name, gated=gated)
            return (name,) if found is None else found

        return WeightFiles(files.readers, renames=names)

    def fp8_hindrance(self) -> str:
        """Return what is missing for ``optimize(fp8=True)``, or nothing."""
        config, some = self.config, next(self.parameters())
        if not (config.use_gated_mlp and config.hidden_act in ("silu", "swish")):
            return f"a gated feed-forward with SiLU, got {config.hidden_act}"
        if not can_multiply(some.device):
            return f"an NVIDIA GPU of the Hopper generation or newer, got a model on {some.device}"
        return "" if some.dtype == torch.bfloat16 else f"a model in bfloat16, got {some.dtype}"

    @torch.no_grad()
    def init_module(self, module: nn.Module) -> None:
        """Fill fresh weights: truncated normal in the encoder, Kaiming in the heads."""
        std = self.config.initializer_range
        kind = getattr(module, "init_kind", "normal")
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            if kind == "kaiming" and isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            elif kind == "kaiming":
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            else:
                nn.init.trunc_normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Embeddings):
            nn.init.trunc_normal_(module.cls_token, std=std)
            nn.init.trunc_normal_(module.register_tokens, std=std)
            if module.mask_token is not None:
                nn.init.zeros_(module.mask_token)
        elif isinstance(module, WindowTokenizer):
            nn.init.trunc_normal_(module.cls_token, std=std)
            nn.init.trunc_normal_(module.position_embeddings, std=std)
        elif isinstance(module, LayerScale):
            nn.init.constant_(module.lambda1, module.value)
        elif isinstance(module, RMSNorm):
            nn.init.ones_(module.weight)


class Sapiens2Trunk(Sapiens2PreTrainedModel):
    """Embeddings, layers and final norm, shared by the bare model and the backbone."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.model = Encoder(config)
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.fused: list[FusedLayer] | FastEncoder | None = None
        self.start()

    def fuse(self) -> None:
        """Join the layers' matrices for inference, where they are of the usual kind."""
        if self.config.use_gated_mlp and self.config.hidden_act in ("silu", "swish"):
            on_cpu = packs(self.norm.weight)
            if on_cpu:
                self.fused = FastEncoder(self.model, self.norm)
            else:
                self.fused = fuse_encoder(self.model, eight_bits=self.fp8)

    def get_input_embeddings(self) -> nn.Module:
        """Return the patch embedding."""
        return self.embeddings.patch_embeddings

    def encode(
        self, pixel_values: Tensor, bool_masked_pos: Tensor | None, *, hidden_states: bool, attentions: bool
    ) -> Encoded:
        """Embed pictures and run the layers; the final norm is not applied."""
        grid_hw = check_pixels(pixel_values, self.config)
        pixel_values = pixel_values.to(self.embeddings.patch_embeddings.weight.dtype)
        tokens = self.embeddings(pixel_values, bool_masked_pos)
        rope = positions(self.config, grid_hw, device=tokens.device, training=self.training)
        found: Encoded = self.model(tokens, rope, hidden_states=hidden_states, attentions=attentions)
        return found


class Sapiens2Model(Sapiens2Trunk):
    """The encoder alone: tokens of all patches, and the class token as a vector for the picture."""

    def forward(
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode pictures.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W], with sides that are multiples of the patch size.
            bool_masked_pos: Patches to replace by the mask token, [B, number of patches].
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights [B, A, N, N] of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        hidden_states = self.flag("output_hidden_states", output_hidden_states)
        attentions = self.flag("output_attentions", output_attentions)
        layerwise = hidden_states or attentions or self.training or torch.is_grad_enabled()
        followed = isinstance(self.fused, FastEncoder) and is_traced()
        if self.fused is not None and not layerwise and not followed:
            return self.give(self.encode_fast(pixel_values, bool_masked_pos, self.fused), return_dict)
        found = self.encode(pixel_values, bool_masked_pos, hidden_states=hidden_states, attentions=attentions)
        tokens = self.norm(found.tokens)  # [B, 1 + R + h·w, C]
        output = BaseModelOutputWithPooling(
            last_hidden_state=tokens,
            pooler_output=tokens[:, 0],
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )
        return self.give(output, return_dict)

    def encode_fast(
        self, pixel_values: Tensor, bool_masked_pos: Tensor | None, fused: list[FusedLayer] | FastEncoder
    ) -> BaseModelOutputWithPooling:
        """Encode pictures with the joint matrices and kernels of `optimize()`."""
        grid_hw = check_pixels(pixel_values, self.config)
        pixels = pixel_values.to(self.norm.weight.dtype)
        in_place = bool_masked_pos is None and self.embeddings.tokenizer is None and takes_fused(pixels)
        embedded = self.embeddings.in_place(pixels) if in_place else self.embeddings(pixels, bool_masked_pos)
        rope = positions(self.config, grid_hw, device=embedded.device, training=False)
        if isinstance(fused, FastEncoder):
            tokens = fused(embedded, rope)  # [B, 1 + R + h·w, C]
        else:
            tokens = run_layers(self.model, fused, embedded, rope, self.norm)
        return BaseModelOutputWithPooling(last_hidden_state=tokens, pooler_output=tokens[:, 0])


class Sapiens2Backbone(Sapiens2Trunk):
    """The encoder as a backbone: maps of the stages that the configuration names."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__(config)
        self.num_features = [config.hidden_size] * (config.num_hidden_layers + 1)

    @property
    def out_features(self) -> list[str]:
        """Names of the stages that are returned."""
        return list(self.config.out_features or [])

    @property
    def out_indices(self) -> list[int]:
        """Indices of the stages that are returned."""
        return list(self.config.out_indices or [])

    @property
    def stage_names(self) -> list[str]:
        """Names of all stages."""
        return self.config.stage_names

    @property
    def channels(self) -> list[int]:
        """Channels of each map that is returned."""
        return [self.config.hidden_size] * len(self.out_features)

    def forward(
        self,
        pixel_values: Tensor,
        *,
        return_class_token: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2BackboneOutput:
        """Return feature maps of pictures [B, 3, H, W].

        Args:
            pixel_values: Prepared pictures.
            return_class_token: Return the class token of each chosen stage too.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        found = self.encode(
            pixel_values,
            None,
            hidden_states=True,
            attentions=self.flag("output_attentions", output_attentions),
        )
        states = found.hidden_states or ()
        chosen = [states[index] for index in sorted(index % len(states) for index in self.out_indices)]
        if self.config.normalize_backbone_outputs:
            chosen = [self.norm(state) for state in chosen]
        with_class = self.flag("return_class_token", return_class_token)
        output = Sapiens2BackboneOutput(
            feature_maps=tuple(self.to_map(state, pixel_values) for state in chosen),
            cls_tokens=tuple(state[:, 0] for state in chosen) if with_class else None,
            hidden_states=states if self.flag("output_hidden_states", output_hidden_states) else None,
            attentions=found.attentions,
        )
        return self.give(output, return_dict)

    def to_map(self, tokens: Tensor, pixel_values: Tensor) -> Tensor:
        """Return patch tokens as a map, or as they are where the configuration says so."""
        if self.config.reshape_hidden_states:
            return patch_map(tokens, self.config, pixel_values)
        return tokens[:, 1 + self.config.num_register_tokens :]  # [B, h·w, C]


def patch_map(tokens: Tensor, config: Sapiens2Config, pixel_values: Tensor) -> Tensor:
    """Lay the patch tokens of [B, 1 + R + h·w, C] out as a map [B, C, h, w]."""
    height, width = config.grid_hw((pixel_values.shape[-2], pixel_values.shape[-1]))
    patches = tokens[:, 1 + config.num_register_tokens :]  # [B, h·w, C]
    return patches.transpose(1, 2).reshape(tokens.shape[0], -1, height, width)  # [B, C, h, w]
