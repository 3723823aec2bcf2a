"""SAM 2 next to the reference, in one run: automatic masks of a 1024² picture, prompts in one call, clean-up of masks.

    python benchmarks/sam2.py                    # a minute on two cores
    python benchmarks/sam2.py --side 32 --variant large --device cuda

The reference's own mask-generation pipeline needs torchvision, which is not installed here. In its place runs a loop
over the reference *model* that takes the pipeline's steps in its order: embed once, decode the grid in batches, enlarge
every mask to the picture, filter by predicted IoU and by stability, find boxes, encode run lengths, suppress, decode.
Suppression and run lengths are ours in both, which is faster than what the pipeline has. Weights are random, so the IoU
threshold is set where the wished share of masks passes, the same for both, and the stability filter computes but drops
nothing.

Each measurement has a process of its own, so that peak memory is its own. CPU seconds (all threads) tell more than
seconds where other work runs on the machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.images.components import fill_holes
from vitruvian.images.nms import box_nms, mask_boxes
from vitruvian.images.rle import decode_rles, encode_rles
from vitruvian.models.sam2.automatic import MaskProposals, Sam2AutomaticMaskGenerator, point_grid
from vitruvian.models.sam2.configuration import Sam2Config
from vitruvian.models.sam2.mask_decoder import stability
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2Processor

IMAGE = 1024


def picture() -> Tensor:
    """A picture with soft shapes [3, 1024, 1024], uint8."""
    torch.manual_seed(0)
    small = torch.rand(1, 3, 24, 24) * 255
    return F.interpolate(small, size=(IMAGE, IMAGE), mode="bicubic").clamp(0, 255)[0].to(torch.uint8)


def our_model(options: argparse.Namespace) -> Sam2Model:
    torch.manual_seed(0)
    model = Sam2Model(Sam2Config.variant(options.variant))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # larger than for training, so that masks differ from point to point
                parameter.copy_(torch.randn_like(parameter) * max(1, parameter[0].numel()) ** -0.5)
    return model.eval().to(options.device, getattr(torch, options.dtype))


def their_model(options: argparse.Namespace) -> Any:
    import transformers

    ours = our_model(options)
    parts = {k: v for k, v in ours.config.to_dict().items() if k.endswith("_config")}
    model = transformers.Sam2Model(transformers.Sam2Config(**parts))
    model.load_state_dict(ours.state_dict())
    return model.eval().to(options.device, getattr(torch, options.dtype))


def threshold(model: Any, embeddings: Any, options: argparse.Namespace) -> float:
    """The predicted IoU that the wished share of masks exceeds."""
    points = point_grid(4)[None, :, None].to(options.device) * IMAGE
    with torch.no_grad():
        scores = model(input_points=points, image_embeddings=embeddings).iou_scores
    return float(torch.quantile(scores.float(), 1 - options.keep))


def ours(options: argparse.Namespace) -> dict[str, Any]:
    model, processor = our_model(options), Sam2Processor()
    prepared = processor(images=picture(), return_tensors="pt")["pixel_values"].to(options.device)
    level = threshold(model, model.get_image_embeddings(prepared), options)
    calls: list[int] = []
    model.mask_decoder.register_forward_hook(lambda module, given, out: calls.append(given[2].shape[1]))
    generator = Sam2AutomaticMaskGenerator(
        model,
        processor,
        points_per_crop=options.side,
        points_per_batch=options.batch,
        pred_iou_thresh=level,
        stability_score_thresh=-1.0,
    )
    start = clock(options)
    found = generator(picture())
    assert isinstance(found, MaskProposals)
    return {"decoder calls": len(calls), "points": sum(calls), "masks": len(found)} | since(start, options)


def theirs(options: argparse.Namespace) -> dict[str, Any]:
    model, processor = their_model(options), Sam2Processor()
    prepared = processor(images=picture(), return_tensors="pt")["pixel_values"].to(options.device)
    level = threshold(model, model.get_image_embeddings(prepared), options)
    calls: list[int] = []
    start = clock(options)
    with torch.no_grad():
        pixels = processor(images=picture(), return_tensors="pt")["pixel_values"].to(options.device)
        embeddings = model.get_image_embeddings(pixels)
        grid = point_grid(options.side).to(options.device) * IMAGE
        runs, scores, boxes = [], [], []
        for first in range(0, len(grid), options.batch):
            points = grid[None, first : first + options.batch, None]
            labels = torch.ones(points.shape[:3], dtype=torch.long, device=points.device)
            out = model(input_points=points, input_labels=labels, image_embeddings=embeddings)
            calls.append(points.shape[1])
            large = F.interpolate(out.pred_masks[0].float(), size=(IMAGE, IMAGE), mode="bilinear", align_corners=False)
            large, predicted = large.flatten(0, 1), out.iou_scores[0].flatten().float()
            keep = (predicted > level) & (stability(large, 1.0) > -1.0)
            masks = large[keep] > 0
            boxes.append(mask_boxes(masks))
            scores.append(predicted[keep])
            runs += encode_rles(masks) if len(masks) else []
        kept = box_nms(torch.cat(boxes), torch.cat(scores), 0.7)
        found = decode_rles([runs[i] for i in kept.tolist()])
    return {"decoder calls": len(calls), "points": sum(calls), "masks": len(found)} | since(start, options)


def prompts(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """One call with many prompts for one encoded picture."""
    torch.manual_seed(1)
    kind = getattr(torch, options.dtype)
    sizes = ((32, 256), (64, 128), (256, 64))
    embeddings = [torch.randn(1, c, n, n, device=options.device, dtype=kind) for c, n in sizes]
    points = torch.rand(1, options.prompts, 1, 2, device=options.device) * IMAGE
    taken = []
    with torch.no_grad():
        for _ in range(options.repeats):
            start = clock(options)
            model(input_points=points, image_embeddings=embeddings)
            taken.append(since(start, options))
    return {"prompts": options.prompts} | {name: min(one[name] for one in taken) for name in taken[0]}


def cleaning() -> None:
    """Holes of 64 masks of 1024², against scipy, an independent implementation that labels only."""
    random = np.random.default_rng(0)
    small = torch.from_numpy(random.standard_normal((64, 1, 32, 32))).float()
    masks = F.interpolate(small, size=(IMAGE, IMAGE), mode="bicubic")[:, 0] > 0
    start = time.perf_counter()
    fill_holes(masks, 200)
    mine = time.perf_counter() - start
    line = f"clean-up of 64 masks of 1024²: {mine:.2f} s, {mine / 64 * 1e3:.1f} ms a mask"
    try:
        from scipy import ndimage
    except ImportError:
        print(line)
        return
    start = time.perf_counter()
    for mask in masks.numpy():
        ndimage.label(~mask, np.ones((3, 3)))
    print(f"{line}  (scipy, labels alone: {time.perf_counter() - start:.2f} s)")


def clock(options: argparse.Namespace) -> tuple[float, float]:
    if options.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float], options: argparse.Namespace) -> dict[str, float]:
    now = clock(options)
    return {"seconds": now[0] - start[0], "CPU seconds": now[1] - start[1]}


def peak(options: argparse.Namespace) -> float:
    """Most memory held so far, in MiB: of the process, or on the GPU."""
    if options.device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Do one measurement; memory counts from when the model stands."""
    model = (our_model if options.only.startswith("our") else their_model)(options)
    base = peak(options)
    if options.only in ("our prompts", "their prompts"):
        found = prompts(options, model)
    else:
        del model
        found = ours(options) if options.only == "our masks" else theirs(options)
    return found | {"peak MiB above the model": peak(options) - base}


def apart(options: argparse.Namespace, only: str) -> dict[str, Any]:
    """Measure in a process of its own."""
    given = [f"--{name}={value}" for name, value in vars(options).items() if name != "only"]
    out = subprocess.run([sys.executable, __file__, f"--only={only}", *given], capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(out.stderr)
    found: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="tiny")
    parser.add_argument("--side", type=int, default=12, help="points along a side of the grid; 32 is customary")
    parser.add_argument("--batch", type=int, default=64, help="points a batch")
    parser.add_argument("--keep", type=float, default=0.3, help="share of masks that pass the IoU filter")
    parser.add_argument("--prompts", type=int, default=64, help="prompts in one call")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.only:
        print(json.dumps(measure(options)))
        return
    print(f"SAM 2 {options.variant}, {options.dtype}, {options.device}, {options.threads} threads")
    for what, title in (("masks", f"automatic masks, grid {options.side}²"), ("prompts", "prompts in one call")):
        reference, mine = apart(options, f"their {what}"), apart(options, f"our {what}")
        print(title)
        for name, value in mine.items():
            if isinstance(value, int):
                print(f"  {name:26} reference {reference[name]:>9}   ours {value:>9}")
            else:
                ratio = reference[name] / max(value, 1e-9)
                print(f"  {name:26} reference {reference[name]:>9.2f}   ours {value:>9.2f}   ratio {ratio:.1f}")
    cleaning()


if __name__ == "__main__":
    main()
