"""Muon: momentum whose matrices are made orthogonal before they move the weights, for the layers of an encoder.

    momentum M [m, n] ── a few Newton-Schulz steps ──▶ O ≈ U Vᵀ of M = U S Vᵀ ──▶ W −= lr · 0.2 · √max(m, n) · O

All directions of a matrix learn at one pace, so fewer steps are needed than with AdamW. With that factor a step is as
long as one of AdamW, about, whose learning rate and weight decay carry over; all other weights get AdamW itself.
Matrices of one shape, one from each layer, are handled together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Coefficients of x ↦ a x + b x³ + c x⁵, whose iterates bring singular values from (0, 1] close to 1, quickly.
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95
STEP_LENGTH = 0.2  # root mean square of AdamW's usual step, over the learning rate


class MuonAdamW(torch.optim.AdamW):
    """Muon for groups with ``orthogonal=True``, whose weights are all matrices, and AdamW for the others."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move all weights; nothing moves where `found_inf` is 1, and nobody waits for the device to know."""
        every = self.param_groups
        self.param_groups = [group for group in every if not group.get("orthogonal")]
        try:
            super().step(closure)
        finally:
            self.param_groups = every
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        for group in every:
            if group.get("orthogonal"):
                self.turn(group, found_inf)

    def turn(self, group: dict[str, Any], found_inf: Tensor | None) -> None:
        """Take a step with the matrices of a group."""
        for weights in by_shape([weight for weight in group["params"] if weight.grad is not None]):
            for weight in weights:
                state = self.state[weight]
                if not state:
                    state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(weight)}
                state["step"] += 1
            momenta = [self.state[weight]["exp_avg"] for weight in weights]
            gradient = torch.stack([weight.grad for weight in weights if weight.grad is not None])  # [k, m, n]
            fresh: float | Tensor = 1 - MOMENTUM
            if found_inf is not None:
                gradient = torch.where(found_inf > 0, 0.0, gradient)
                fresh = (1 - found_inf) * fresh
            momentum = torch.stack(momenta)
            momentum = momentum + fresh * (gradient - momentum)
            torch._foreach_copy_(momenta, list(momentum))
            ahead = torch.lerp(gradient, momentum, MOMENTUM)  # as Nesterov does
            size = STEP_LENGTH * max(momentum.shape[1:]) ** 0.5
            move = orthogonal(ahead) * (-group["lr"] * size)
            shrink: float | Tensor = group["lr"] * group["weight_decay"]
            if found_inf is not None:
                move, shrink = move * (1 - found_inf), shrink * (1 - found_inf)
            stacked = torch.stack(list(weights))
            torch._foreach_copy_(weights, list(stacked * (1 - shrink) + move))


def by_shape(weights: list[Tensor]) -> list[list[Tensor]]:
    """Sort matrices by their shapes."""
    found: dict[tuple[int, ...], list[Tensor]] = {}
    for weight in weights:
        found.setdefault(tuple(weight.shape), []).append(weight)
    return list(found.values())


def orthogonal(matrices: Tensor) -> Tensor:
    """Return the nearest orthogonal matrices, about: singular values of [k, m, n] become 0.7 to 1.2; float32.

    Computed in bfloat16, which is all that the iteration needs.
    """
    a, b, c = QUINTIC
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (torch.linalg.matrix_norm(x.float()).to(x.dtype)[:, None, None] + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT  # [k, m, m]
        x = a * x + (b * square + c * (square @ square)) @ x
    found: Tensor = x.mT if tall else x
    return found.float()
