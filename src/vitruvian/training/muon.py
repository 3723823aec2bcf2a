"""Muon, an optimizer that orthogonalizes the momentum of matrices:

    momentum M [m, n] ── Newton-Schulz iterations ──▶ O ≈ U Vᵀ of M = U S Vᵀ ──▶ W −= lr · 0.2 · √max(m, n) · O

With that factor an update is about as large as one of AdamW, so that learning rate and weight decay carry over; all
other weights use AdamW. Matrices of one shape, one from each layer, are updated together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Coefficients of x ↦ a x + b x³ + c x⁵, whose iteration brings singular values from (0, 1] close to 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95
_STEP_LENGTH = 0.2  # root mean square of AdamW's typical update, over the learning rate


class MuonAdamW(torch.optim.AdamW):
    """Muon for groups with ``orthogonal=True``, whose weights are all matrices, and AdamW for the others."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights; skipped where `found_inf` is 1, without synchronization."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group.get("orthogonal")]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        for group in groups:
            if group.get("orthogonal"):
                self._muon_step(group, found_inf)

    def _muon_step(self, group: dict[str, Any], found_inf: Tensor | None) -> None:
        """Update the matrices of a group."""
        same_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in group["params"]:
            if weight.grad is not None:
                same_shape.setdefault(weight.shape, []).append(weight)
        for weights in same_shape.values():
            for weight in weights:
                state = self.state[weight]
                if not state:
                    state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(weight)}
                state["step"] += 1
            momenta = [self.state[weight]["exp_avg"] for weight in weights]
            gradient = torch.stack([weight.grad for weight in weights if weight.grad is not None])  # [k, m, n]
            rate: float | Tensor = 1 - _MOMENTUM
            if found_inf is not None:
                gradient = torch.where(found_inf > 0, 0.0, gradient)
                rate = (1 - found_inf) * rate
            momentum = torch.stack(momenta)
            momentum = momentum + rate * (gradient - momentum)
            torch._foreach_copy_(momenta, list(momentum))
            nesterov = torch.lerp(gradient, momentum, _MOMENTUM)
            size = _STEP_LENGTH * max(momentum.shape[1:]) ** 0.5
            update = _orthogonalize(nesterov) * (-group["lr"] * size)
            shrink: float | Tensor = group["lr"] * group["weight_decay"]
            if found_inf is not None:
                update, shrink = update * (1 - found_inf), shrink * (1 - found_inf)
            stacked = torch.stack(list(weights))
            torch._foreach_copy_(weights, list(stacked * (1 - shrink) + update))


def _orthogonalize(matrices: Tensor) -> Tensor:
    """Return approximately the nearest orthogonal matrices: singular values of [k, m, n] become 0.7 to 1.2.

    The Newton-Schulz iteration runs in bfloat16; the result is float32.
    """
    a, b, c = _QUINTIC
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (torch.linalg.matrix_norm(x.float()).to(x.dtype)[:, None, None] + 1e-7)
    for _ in range(_ITERATIONS):
        square = x @ x.mT  # [k, m, m]
        x = a * x + (b * square + c * (square @ square)) @ x
    orthogonal: Tensor = x.mT if tall else x
    return orthogonal.float()
