"""Methods of models that libraries around transformers call, such as peft, accelerate and its `Trainer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from torch import nn
from torch.utils.hooks import RemovableHandle

from vitruvian.config import Config
from vitruvian.errors import InputError
from vitruvian.layers.gradient_checkpointing import CheckpointedLayer


class TransformersMixin(nn.Module):
    """Base of `Model`: sizes, embeddings and gradient checkpointing under their names in transformers."""

    supports_gradient_checkpointing: ClassVar[bool] = True
    _input_grad_hook: RemovableHandle | None = None

    @classmethod
    def _from_config(cls, config: Config, **options: Any) -> Self:
        """Same as `from_config`, under the name by which other libraries call it."""
        return cls.from_config(config, **options)  # type: ignore[attr-defined, no-any-return]

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Number of parameters: all, those with gradients, those outside of embedding tables."""
        tables = {m.weight for m in self.modules() if exclude_embeddings and isinstance(m, nn.Embedding)}
        counted = (p for p in self.parameters() if p not in tables and (p.requires_grad or not only_trainable))
        return sum(parameter.numel() for parameter in counted)

    def get_memory_footprint(self, return_buffers: bool = True) -> int:
        """Bytes of all parameters and, with `return_buffers`, buffers."""
        tensors = [*self.parameters(), *(self.buffers() if return_buffers else ())]
        return sum(tensor.nbytes for tensor in tensors)

    @classmethod
    def can_generate(cls) -> bool:
        """Return False: the models do not generate text."""
        return False

    def get_input_embeddings(self) -> nn.Module:
        """Return the layer that embeds the pixels: the first convolution."""
        return self.get_submodule(self._input_embeddings_name())

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the layer that embeds the pixels."""
        self.set_submodule(self._input_embeddings_name(), value)

    def _input_embeddings_name(self) -> str:
        names: Iterator[str] = (name for name, module in self.named_modules() if isinstance(module, nn.Conv2d))
        return next(names)

    def get_output_embeddings(self) -> None:
        """Return None: no model here predicts tokens of a vocabulary."""

    def enable_input_require_grads(self) -> None:
        """Have gradients flow to the embedded pixels even if the embedding is frozen, as adapters need it."""
        self.disable_input_require_grads()
        parent = self.get_submodule(self._input_embeddings_name().rpartition(".")[0])  # it may read the weights itself
        self._input_grad_hook = parent.register_forward_hook(lambda _, __, output: output.requires_grad_(True))

    def disable_input_require_grads(self) -> None:
        """Undo `enable_input_require_grads`."""
        if self._input_grad_hook is not None:
            self._input_grad_hook.remove()
        self._input_grad_hook = None

    def gradient_checkpointing_enable(
        self,
        gradient_checkpointing_kwargs: dict[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Recompute layers in the backward pass of training, to save memory.

        Args:
            gradient_checkpointing_kwargs: Keywords of `torch.utils.checkpoint.checkpoint`, such as `use_reentrant`.
            every_n_layers: Recompute the first of every N layers only.
            offload: Not supported; must be False.
        """
        if offload:
            raise InputError("offload: expected False, got True. Use torch.autograd.graph.save_on_cpu around training.")
        options = {"use_reentrant": False} | (gradient_checkpointing_kwargs or {})
        layers = self._checkpointed_layers()
        if not layers:
            raise InputError(f"{type(self).__name__}: has no layers that can be checkpointed.")
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing, layer.checkpoint_options = number % every_n_layers == 0, options

    def gradient_checkpointing_disable(self) -> None:
        """Store all activations in training."""
        for layer in self._checkpointed_layers():
            layer.gradient_checkpointing = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether layers are recomputed in the backward pass."""
        return any(layer.gradient_checkpointing for layer in self._checkpointed_layers())

    def _checkpointed_layers(self) -> list[CheckpointedLayer]:
        return [module for module in self.modules() if isinstance(module, CheckpointedLayer)]
