"""Feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.errors import ConfigError, check_choice
from vitruvian.layers.joined_linear import JoinedLinear
from vitruvian.ops.swiglu import gated_linear, swiglu

Activation = Callable[[Tensor], Tensor]


def _gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "leaky_relu": F.leaky_relu,
    "relu": F.relu,
    "relu6": F.relu6,
    "sigmoid": Tensor.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": Tensor.tanh,
}


def activation(name: str) -> Activation:
    """Return an activation function by the name that configurations use."""
    check_choice("activation", name, ACTIVATIONS, error=ConfigError)
    return ACTIVATIONS[name]


class MLP(nn.Module):
    """Two linear layers with an activation between."""

    def __init__(self, channels: int, hidden: int, *, act: str = "gelu", bias: bool = True) -> None:
        super().__init__()
        self.up_proj = nn.Linear(channels, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, channels, bias=bias)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., C]."""
        out: Tensor = self.down_proj(self.act(self.up_proj(x)))
        return out


class FeedForward(nn.Module):
    """Two linear layers, named fc1 and fc2, with an activation and dropout between."""

    def __init__(self, channels: int, hidden: int, *, act: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, hidden)
        self.fc2 = nn.Linear(hidden, channels)
        self.act, self.drop_rate = activation(act), dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., C]."""
        out: Tensor = self.fc2(F.dropout(self.act(self.fc1(x)), self.drop_rate, self.training))
        return out


class GatedMLP(nn.Module):
    """SwiGLU: an activated gate times a linear branch, projected back.

    Attributes:
        joined: Gate and up as one matrix for inference, made by `join_weights`.
    """

    def __init__(self, channels: int, hidden: int, *, act: str = "silu", bias: bool = True) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(channels, hidden, bias=bias)
        self.up_proj = nn.Linear(channels, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, channels, bias=bias)
        self.act = activation(act)
        self.joined: JoinedLinear | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., C]."""
        if self.act is not F.silu:
            out: Tensor = self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        elif self.joined is not None and self.joined.is_usable(self.gate_proj, self.up_proj):
            out = self.down_proj(gated_linear(x, self.joined.weight, self.joined.bias))
        else:
            out = swiglu(x, self.gate_proj, self.up_proj, self.down_proj)
        return out

    def join_weights(self) -> None:
        """Join gate and up for inference, with alternating rows."""
        if self.act is F.silu:
            self.joined = JoinedLinear([self.gate_proj, self.up_proj], interleave=True)
