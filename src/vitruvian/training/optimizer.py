"""Optimizers for Sapiens2: parameter groups of AdamW and Muon.

A weight at depth d of an encoder of N layers has the learning rate ``lr · layer_decay^(N + 1 − d)``: embeddings are at
depth 0, layer i at i + 1, the final norm and all heads at N + 1. Matrices have weight decay; norms, biases, tokens and
layer scales have none.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitruvian.models.sapiens2.modeling import Sapiens2Model
from vitruvian.training.config import OptimizerConfig
from vitruvian.training.muon import MuonAdamW

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


def named_weights(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, Tensor]]:
    """Return the names and weights of an optimizer of `build_optimizer`."""
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)
