"""Outputs of models, `ModelOutput` (attribute, key and tuple access), and of processors, `BatchFeature`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypedDict

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError


class ModelOutput(dict[str, Any]):
    """A dataclass of tensors that is also a dict, and reads as a tuple, of the fields that are set.

    ``out.logits``, ``out["logits"]`` and ``out[0]`` name the same tensor; ``None`` fields are left out of
    iteration, ``keys()``, ``len()`` and ``to_tuple()``. Subclasses are plain ``@dataclass`` classes.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # For torch.export and torch.func.
        torch.utils._pytree.register_pytree_node(
            cls,
            lambda output: (list(output.values()), list(output.keys())),
            lambda values, keys: cls(**dict(zip(keys, values, strict=True))),
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        )

    def __post_init__(self) -> None:
        # Wrappers such as accelerate rebuild outputs as type(output)({name: value}).
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        first = getattr(self, names[0])
        if type(first) is dict:
            setattr(self, names[0], None)
            self.update(first)

    # Values are attributes, and items of the dict for what reads it directly, such as ``json`` and ``isinstance``.

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if value is None:
            super().pop(name, None)
        else:
            super().__setitem__(name, value)

    def keys(self) -> list[str]:  # type: ignore[override]
        """Names of the fields that are set, in order, and of other items."""
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return [
            *(name for name in names if super(ModelOutput, self).__contains__(name)),
            *(name for name in super().__iter__() if name not in names),
        ]

    def values(self) -> list[Any]:  # type: ignore[override]
        """Values of the fields that are set."""
        return [super(ModelOutput, self).__getitem__(name) for name in self.keys()]

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Pairs of name and value of the fields that are set."""
        return list(zip(self.keys(), self.values(), strict=True))

    def to_tuple(self) -> tuple[Any, ...]:
        """Values of the fields that are set, in order: what ``return_dict=False`` gives."""
        return tuple(self.values())

    def pop(self, key: str, *default: Any) -> Any:
        """Unset a field and return its value, or `default` where it is not set."""
        value = super().pop(key, *default)
        if key in self.__dict__:
            super().__setattr__(key, None)
        return value

    def update(self, *items: Any, **more: Any) -> None:
        """Set several fields."""
        for name, value in dict(*items, **more).items():
            setattr(self, name, value)

    def copy(self) -> Self:
        """Return another output with the same tensors."""
        return copy.copy(self)

    def __getitem__(self, key: str | int | slice) -> Any:
        if not isinstance(key, str):
            return self.to_tuple()[key]
        if key not in self:
            raise KeyError(f"{key!r}: not among {self.keys()}")
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


@dataclasses.dataclass
class BaseModelOutput(ModelOutput):
    """Hidden states of an encoder."""

    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclasses.dataclass
class BaseModelOutputWithPooling(ModelOutput):
    """Hidden states of an encoder and one vector for the whole image."""

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclasses.dataclass
class BackboneOutput(ModelOutput):
    """Feature maps of the selected stages of a backbone."""

    feature_maps: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclasses.dataclass
class SemanticSegmenterOutput(ModelOutput):
    """Class scores of each pixel: `logits` [B, K, H, W]."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class OutputKwargs(TypedDict, total=False):
    """Keyword arguments of every `forward`. One that is None or absent follows the configuration.

    Attributes:
        output_hidden_states: Return the hidden states of the embeddings and of every layer or stage.
        output_attentions: Return the attention weights of every layer.
        return_dict: Return a `ModelOutput` rather than a tuple.
    """

    output_hidden_states: bool | None
    output_attentions: bool | None
    return_dict: bool | None


class OutputFlags(NamedTuple):
    """`OutputKwargs` of a call after the defaults of the configuration; see `Model.output_flags`."""

    hidden_states: bool
    attentions: bool
    return_dict: bool

    def for_inner(self) -> OutputKwargs:
        """Return the options with which one model calls another inside it."""
        return {"output_hidden_states": self.hidden_states, "output_attentions": self.attentions, "return_dict": True}


class AttributeDict(dict[str, Any]):
    """A dict whose items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no item {name!r}; it has {sorted(self)}") from None


class BatchFeature(AttributeDict):
    """The output of a processor: a dict whose items are attributes too, with `to` for all tensors."""

    def __init__(self, data: Mapping[str, Any] | None = None, tensor_type: str | None = None) -> None:
        super().__init__(data or {})
        self.convert_to_tensors(tensor_type)

    @property
    def data(self) -> dict[str, Any]:
        """The items as a plain dict."""
        return dict(self)

    def convert_to_tensors(self, tensor_type: str | None = None) -> Self:
        """Stack lists to tensors ("pt") or arrays ("np") in place; None leaves them."""
        if tensor_type not in (None, "pt", "np"):
            raise InputError(f"return_tensors: expected 'pt', 'np' or None, got {tensor_type!r}.")
        for key, value in self.items():
            self[key] = _as_tensors(key, value, tensor_type)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move tensors to a device; a floating-point dtype applies to floating-point tensors only."""
        dtype = kwargs.pop("dtype", next((a for a in args if isinstance(a, torch.dtype)), None))
        rest = tuple(a for a in args if not isinstance(a, torch.dtype))

        def move(tensor: Tensor) -> Tensor:
            moved = tensor.to(*rest, **kwargs) if rest or kwargs else tensor
            return moved.to(dtype) if dtype is not None and moved.is_floating_point() else moved

        for key, value in self.items():
            self[key] = map_tensors(move, value)
        return self


def output_field(outputs: Any, name: str) -> Any:
    """Return a field of a model's output, or of a dict with its fields, where a field that is not set may be absent."""
    return outputs.get(name) if isinstance(outputs, dict) else getattr(outputs, name, None)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply `function` to the tensors in nested lists, tuples, named tuples and dicts."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _as_tensors(name: str, value: Any, tensor_type: str | None) -> Any:
    """Stack a list of tensors, arrays or numbers of one shape for ``return_tensors``; without it return the list."""
    if tensor_type is None or not isinstance(value, (list, tuple)) or not value:
        return _to_numpy(value) if tensor_type == "np" else value
    if all(isinstance(item, (Tensor, np.ndarray)) for item in value):
        shapes = {tuple(item.shape) for item in value}
        if len(shapes) > 1:
            raise InputError(
                f"{name}: expected items of one shape to stack, got {sorted(shapes)}. "
                "Pass return_tensors=None for a list, or let the processor resize or pad."
            )
        stacked = torch.stack([torch.as_tensor(item) for item in value])
    else:
        try:
            stacked = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name}: expected numbers in nested lists of one shape to stack, got {value!r:.80}. "
                "Pass return_tensors=None for a list."
            ) from error
    return _to_numpy(stacked) if tensor_type == "np" else stacked


def _to_numpy(value: Any) -> Any:
    """Convert tensors to NumPy arrays, also in nested lists; bfloat16 becomes float32."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return [_to_numpy(item) for item in value] if isinstance(value, (list, tuple)) else value
