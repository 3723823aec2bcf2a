"""AdamW and Muon for Sapiens2: groups by depth and by kind of weight, and the course of the learning rate.

A weight at depth d of an encoder of N layers learns at ``lr · layer_decay^(N + 1 − d)``: embeddings are at depth 0,
layer i at i + 1, the final norm and all heads at N + 1. Matrices have weight decay; norms, biases, tokens and layer
scales have none. The learning rate is a function of the step alone, so there is no state to save.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.models.sapiens2.modeling import Sapiens2Trunk
from vitruvian.training.config import OptimizerPart, SchedulePart
from vitruvian.training.muon import MuonAdamW

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
