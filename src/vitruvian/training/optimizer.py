"""AdamW and Muon for Sapiens2: parameter groups, and the schedule of the learning rate.

A weight at depth d of an encoder of N layers has the learning rate ``lr · layer_decay^(N + 1 − d)``: embeddings are at
depth 0, layer i at i + 1, the final norm and all heads at N + 1. Matrices have weight decay; norms, biases, tokens and
layer scales have none. The learning rate is a function of the step alone, so there is no state to save.

Muon orthogonalizes the momentum of the layers' matrices:

    momentum M [m, n] ── Newton-Schulz iterations ──▶ O ≈ U Vᵀ of M = U S Vᵀ ──▶ W −= lr · 0.2 · √max(m, n) · O

With that factor an update is about as large as one of AdamW, so that learning rate and weight decay carry over; all
other weights use AdamW. Matrices of one shape, one from each layer, are updated together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.models.sapiens2.modeling import Sapiens2Model
from vitruvian.training.config import OptimizerConfig, ScheduleConfig

_TOKENS = ("cls_token", "register_tokens", "mask_token", "position_embeddings")


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Return an optimizer of the trainable weights of `model`, with one group for each depth and kind.

    Groups have `names` and `lr_scale` beside the options of torch, the lowest scale first. AdamW is fused on CUDA. With
    Muon the matrices of the encoders' layers have groups with ``orthogonal=True``.
    """
    muon = config.kind == "muon"
    groups: dict[tuple[float, float, bool], list[tuple[str, Tensor]]] = {}
    layer_counts = {
        f"{name}." if name else "": len(module.model.layer)
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Sapiens2Model)
    }
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        below_heads, in_layer = _depth_below_heads(name, layer_counts)
        is_matrix = parameter.ndim > 1 and name.rpartition(".")[2] not in _TOKENS
        decay = config.weight_decay if is_matrix else 0.0
        key = (config.layer_decay**below_heads, decay, muon and in_layer and parameter.ndim == 2)
        groups.setdefault(key, []).append((name, parameter))
    return (MuonAdamW if muon else torch.optim.AdamW)(
        [
            {
                "params": [parameter for _, parameter in members],
                "names": [name for name, _ in members],
                "lr": config.lr * scale,
                "lr_scale": scale,
                "weight_decay": decay,
                "orthogonal": orthogonal,
            }
            for (scale, decay, orthogonal), members in sorted(groups.items(), key=lambda item: item[0])
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True if next(model.parameters()).device.type == "cuda" else None,
    )


def _depth_below_heads(name: str, layer_counts: dict[str, int]) -> tuple[int, bool]:
    """Return the layers from the heads down to a weight (0 outside of encoders), and whether it is inside a layer.

    `layer_counts` has the number of layers of each encoder, by the prefix of its weights' names.
    """
    encoder = max((prefix for prefix in layer_counts if name.startswith(prefix)), key=len, default=None)
    if encoder is None:
        return 0, False
    path = name.removeprefix(encoder).split(".")
    if path[:2] == ["model", "layer"]:
        return layer_counts[encoder] - int(path[2]), True
    return layer_counts[encoder] + 1 if path[0] == "embeddings" else 0, False


def learning_rate_factor(step: int, config: ScheduleConfig, *, steps: int) -> float:
    """Return the factor of the learning rate at a step from 0 to `steps` − 1."""
    if step < config.warmup:
        return config.warmup_start + (1 - config.warmup_start) * step / config.warmup
    if config.decay == "constant":
        return 1.0
    first = config.warmup + config.hold * (steps - config.warmup)
    done = min(1.0, max(0.0, step - first) / max(steps - first, 1))
    left = 1 - done if config.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.final + (1 - config.final) * left


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group, times its scale."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def named_weights(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, Tensor]]:
    """Return the names and weights of an optimizer of `build_optimizer`."""
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)


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
        every = self.param_groups
        self.param_groups = [group for group in every if not group.get("orthogonal")]
        try:
            super().step(closure)
        finally:
            self.param_groups = every
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        for group in every:
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
