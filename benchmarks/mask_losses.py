"""Memory and time of the mask losses with 200 instances at 1024², next to transformers, in one run.

    python benchmarks/mask_losses.py [--instances 200] [--side 1024] [--predictions 10] [--threads 1] [--limit-gb 14]

One image, 200 queries, masks of a quarter of the side, the loss of the last prediction and of the auxiliary ones, and
the gradient. Each row runs in a new process. Memory is the peak resident memory above that before the call, when logits
and labels exist already (labels as bool, or as RLE; the reference accepts float only, converted before the call). A
process that exceeds the limit of address space is reported as out of memory.

Prints a table: family, library, format of the labels, seconds, memory, and our budget.
"""

from __future__ import annotations

import argparse
from typing import Any

from comparison import as_arguments, print_limited, run_in_new_process, time_and_peak

BUDGET_GB = {"mask2former": 1.0, "maskformer": 1.0}  # above the gradient of the logits
LABELS = 80
NUMBERS = ("instances", "side", "predictions", "threads", "limit_gb")


def make_batch(instances: int, side: int, predictions: int) -> dict[str, Any]:
    """Discs as objects, and predictions that are noisy versions of them."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(0)
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    masks = torch.empty(instances, side, side, dtype=torch.bool)
    for mask in masks:
        cy, cx, radius = (torch.rand(3) * torch.tensor([side, side, side / 6])).tolist()
        torch.lt((y - cy) ** 2 + (x - cx) ** 2, (radius + 8) ** 2, out=mask)
    small = torch.cat([F.interpolate(part[None].float(), size=(side // 4,) * 2)[0] for part in masks.split(10)])
    logits = [
        {
            "masks_queries_logits": (small * 8 - 4 + torch.randn(small.shape))[None].requires_grad_(),
            "class_queries_logits": torch.randn(1, instances, LABELS + 1).requires_grad_(),
        }
        for _ in range(predictions)
    ]
    return {"masks": masks, "classes": torch.randint(0, LABELS, (instances,)), "logits": logits}


def our_loss(family: str) -> Any:
    from vitruvian.losses import MaskLossWeights, MaskSetLoss, PixelComparison, PointComparison

    criterion = MaskSetLoss(
        num_labels=LABELS,
        no_object_weight=0.1,
        weights=MaskLossWeights(2.0, 5.0, 5.0),
        class_cost_weight=2.0,
        comparison=PointComparison() if family == "mask2former" else PixelComparison(),
    )
    return lambda *inputs: criterion(*inputs).total


def their_loss(family: str) -> Any:
    from transformers import Mask2FormerConfig
    from transformers.models.mask2former.modeling_mask2former import Mask2FormerLoss
    from transformers.models.maskformer.modeling_maskformer import MaskFormerHungarianMatcher, MaskFormerLoss

    weights = {"loss_cross_entropy": 2.0, "loss_mask": 5.0, "loss_dice": 5.0}
    if family == "mask2former":
        criterion = Mask2FormerLoss(Mask2FormerConfig(num_labels=LABELS), weights)
    else:
        criterion = MaskFormerLoss(LABELS, MaskFormerHungarianMatcher(2.0, 5.0, 5.0), weights, 0.1)

    def total(*inputs: Any) -> Any:
        terms = criterion(*inputs)
        return sum(weights[name.rstrip("_0123456789")] * value for name, value in terms.items())

    return total


def run_one(library: str, family: str, kind: str, options: argparse.Namespace) -> None:
    """Measure one row and print it as JSON."""
    import torch

    from vitruvian.images.rle import encode_rle

    torch.set_num_threads(options.threads)
    loss = our_loss(family) if library == "vitruvian" else their_loss(family)

    def step(batch: dict[str, Any], labels: Any) -> None:
        first, *rest = batch["logits"]
        loss(*first.values(), [labels], [batch["classes"]], rest).backward()

    warm = make_batch(3, 64, 2)
    step(warm, warm["masks"].float())
    batch = make_batch(options.instances, options.side, options.predictions)
    labels = batch.pop("masks")
    if kind == "rle":
        labels = [encode_rle(mask) for mask in labels]
    elif kind == "float":
        labels = labels.float()
    torch.manual_seed(0)
    print_limited(lambda: time_and_peak(lambda: step(batch, labels)), limit_gb=options.limit_gb)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--predictions", type=int, default=10, help="the last and the auxiliary ones")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit-gb", type=float, default=14.0)
    parser.add_argument("--ours", action="store_true", help="leave transformers out")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        library, family, kind = options.one
        run_one(library, family, kind, options)
        return
    print(
        f"{options.instances} instances and queries at {options.side}², {options.predictions} predictions, loss and "
        f"gradient, {options.threads} threads; the gradient of the logits alone is "
        f"{options.predictions * options.instances * (options.side // 4) ** 2 * 4 / 1e9:.2f} GB of it"
    )
    print(f"| family | library | labels | time | memory | budget |\n|{'---|' * 6}")
    for family, budget in BUDGET_GB.items():
        grad = options.predictions * options.instances * (options.side // 4) ** 2 * 4 / 1e9
        for library, kind in (("vitruvian", "bool"), ("vitruvian", "rle"), ("transformers", "float")):
            if library == "transformers" and options.ours:
                continue
            result = run_in_new_process(__file__, "--one", library, family, kind, *as_arguments(options, NUMBERS))
            if "error" in result:
                print(f"| {family} | {library} | {kind} | {result['error']} | | |", flush=True)
                continue
            verdict = f"{budget + grad:.2f} GB: {'met' if result['gb'] <= budget + grad else 'EXCEEDED'}"
            verdict = verdict if library == "vitruvian" else ""
            print(
                f"| {family} | {library} | {kind} | {result['seconds']:.1f} s | {result['gb']:.2f} GB | {verdict} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
