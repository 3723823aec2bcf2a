"""Feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.errors import ConfigError, near_matches

Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
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
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation: expected one of {', '.join(ACTIVATIONS)}.{near_matches(name, ACTIVATIONS)}")
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


class GatedMLP(nn.Module):
    """SwiGLU: an activated gate times a linear branch, projected back."""

    def __init__(self, channels: int, hidden: int, *, act: str = "silu", bias: bool = True) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(channels, hidden, bias=bias)
        self.up_proj = nn.Linear(channels, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, channels, bias=bias)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., C]."""
        out: Tensor = self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        return out
