"""AdamW and Muon for Sapiens2: groups by depth and by kind of weight, and the course of the learning rate.

A weight at depth d of an encoder of N layers learns at ``lr · layer_decay^(N + 1 − d)``: embeddings are at depth 0,
layer i at i + 1, the final norm and all heads at N + 1. Matrices have weight decay; norms, biases, tokens and layer
scales have none. The learning rate is a function of the step alone, so there is no state to save.

Muon: momentum whose matrices are made orthogonal before they move the weights, for the layers of an encoder.

    momentum M [m, n] ── a few Newton-Schulz steps ──▶ O ≈ U Vᵀ of M = U S Vᵀ ──▶ W −= lr · 0.2 · √max(m, n) · O

All directions of a matrix learn at one pace, so fewer steps are needed than with AdamW. With that factor a step is as
long as one of AdamW, about, whose learning rate and weight decay carry over; all other weights get AdamW itself.
Matrices of one shape, one from each layer, are handled together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.models.sapiens2.trunk import Sapiens2Trunk
from vitruvian.training.config import OptimizerPart, SchedulePart

TOKENS = ("cls_token", "register_tokens", "mask_token", "position_embeddings")


def build_optimizer(model: nn.Module, part: OptimizerPart) -> torch.optim.AdamW:
    """Make an optimizer over the weights of `model` that are trained: one group for each depth and kind.

    AdamW is fused on CUDA. With Muon the matrices of the encoders' layers have groups of their own.
    """
    orthogonal = part.kind == "muon"
    groups = parameter_groups(
        model, weight_decay=part.weight_decay, layer_decay=part.layer_decay, orthogonal=orthogonal
    )
    device = next(model.parameters()).device
    return (MuonAdamW if orthogonal else torch.optim.AdamW)(
        [{**group, "lr": part.lr * group["lr_scale"]} for group in groups],
        lr=part.lr,
        betas=part.betas,
        eps=part.eps,
        fused=True if device.type == "cuda" else None,
    )


def parameter_groups(
    model: nn.Module, *, weight_decay: float, layer_decay: float, orthogonal: bool = False
) -> list[dict[str, Any]]:
    """Sort weights into groups with `params`, `names`, `weight_decay` and `lr_scale`, the lowest first.

    With `orthogonal` the matrices of the layers go into groups that say so.
    """
    found: dict[tuple[float, float, bool], tuple[list[str], list[Tensor]]] = {}
    trunks = find_trunks(model)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scale = layer_decay ** steps_from_the_top(name, trunks)
        decay = weight_decay if has_decay(name, parameter) else 0.0
        turned = orthogonal and parameter.ndim == 2 and in_a_layer(name, trunks)
        names, parameters = found.setdefault((scale, decay, turned), ([], []))
        names.append(name)
        parameters.append(parameter)
    return [
        {"params": parameters, "names": names, "weight_decay": decay, "lr_scale": scale}
        | ({"orthogonal": True} if turned else {})
        for (scale, decay, turned), (names, parameters) in sorted(found.items(), key=lambda item: item[0])
    ]


def find_trunks(model: nn.Module) -> dict[str, int]:
    """Encoders in a model: the beginning of their weights' names → number of layers."""
    return {
        f"{name}." if name else "": len(module.model.layer)
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Sapiens2Trunk)
    }


def steps_from_the_top(name: str, trunks: dict[str, int]) -> int:
    """How many steps a weight lies below the heads: 0 for what is in no encoder, N + 1 for embeddings."""
    layers, rest = within_trunk(name, trunks)
    if rest[0] == "embeddings":
        return layers + 1
    if rest[:2] == ["model", "layer"]:
        return layers - int(rest[2])
    return 0


def in_a_layer(name: str, trunks: dict[str, int]) -> bool:
    """Whether a weight belongs to a layer of an encoder."""
    return within_trunk(name, trunks)[1][:2] == ["model", "layer"]


def within_trunk(name: str, trunks: dict[str, int]) -> tuple[int, list[str]]:
    """The layers of the encoder that a weight is in, and the parts of its name there; 0 and [""] for none."""
    inside = [start for start in trunks if name.startswith(start)]
    if not inside:
        return 0, [""]
    start = max(inside, key=len)
    return trunks[start], name.removeprefix(start).split(".")


def has_decay(name: str, parameter: Tensor) -> bool:
    """Whether a weight is a matrix or a filter, and not a norm, bias, layer scale or token."""
    return parameter.ndim > 1 and name.rpartition(".")[2] not in TOKENS


def rate(step: int, part: SchedulePart, *, steps: int) -> float:
    """Share of the full learning rate at a step, from 0 to `steps` − 1; `final` would be that of step `steps`."""
    if step < part.warmup:
        return part.warmup_start + (1 - part.warmup_start) * step / part.warmup
    if part.decay == "constant":
        return 1.0
    first = part.warmup + part.hold * (steps - part.warmup)
    done = min(1.0, max(0.0, step - first) / max(steps - first, 1))
    left = 1 - done if part.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return part.final + (1 - part.final) * left


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group its share of a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def trained(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, Tensor]]:
    """Names and weights that an optimizer of `build_optimizer` trains."""
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)


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
