"""Layers that the parts of SAM 2 share."""

from __future__ import annotations

from torch import Tensor, nn

from vitruvian.layers.mlp import activation


def per_object(x: Tensor, objects: int) -> Tensor:
    """Repeat features of B images for O objects, O / B of each image: [B, …] -> [O, …]. No copy if B is 1 or O."""
    if len(x) == 1:
        return x.expand(objects, *x.shape[1:])
    return x if len(x) == objects else x.repeat_interleave(objects // len(x), dim=0)


class Sam2MLP(nn.Module):
    """Linear layers with an activation between them: `proj_in`, `depth` − 2 of `layers`, `proj_out`."""

    def __init__(self, channels: int, hidden: int, out: int, *, depth: int, act: str = "relu") -> None:
        super().__init__()
        self.act = activation(act)
        self.proj_in = nn.Linear(channels, hidden)
        self.proj_out = nn.Linear(hidden, out)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth - 2))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., out]."""
        x = self.act(self.proj_in(x))
        for layer in self.layers:
            x = self.act(layer(x))
        out: Tensor = self.proj_out(x)
        return out
