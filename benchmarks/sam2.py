"""SAM 2 next to the reference: automatic masks of a 1024² image, the encoder, and many prompts in one call.

    make bench                                   # all benchmarks
    .venv-bench/bin/python benchmarks/sam2.py    # a few minutes on two cores
    .venv-bench/bin/python benchmarks/sam2.py --side 32 --variant large --device cuda

The reference for automatic masks is its mask-generation pipeline with our non-maximum suppression, since the compiled
one of torchvision is not installed. Weights are random: the IoU threshold is a quantile of the scores, the same for
both, and the stability filter and suppression run but remove nothing, since they would remove all random masks.

Prints, for each of the three, seconds, CPU seconds (all threads) and memory of both, and our share of the reference's.
Each measurement runs in a new process, so that peaks do not mix; rounds alternate. On a busy machine compare CPU
seconds, with --threads 1.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from common.measure import as_arguments, run_in_new_process
from common.random_inputs import smooth_image
from common.reference import load_reference
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitruvian.images.connected_components import fill_holes
from vitruvian.images.nms import box_nms
from vitruvian.models.sam2.automatic_masks import MaskProposals, Sam2AutomaticMaskGenerator, point_grid
from vitruvian.models.sam2.configuration import Sam2Config
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2Processor

IMAGE = 1024


def random_image() -> NDArray[np.uint8]:
    return smooth_image((IMAGE, IMAGE), np.random.default_rng(0))


def our_model(options: argparse.Namespace) -> Sam2Model:
    torch.manual_seed(0)
    model = Sam2Model(Sam2Config.variant(options.variant))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # larger than for training, so that masks differ from point to point
                parameter.copy_(torch.randn_like(parameter) * max(1, parameter[0].numel()) ** -0.5)
    return model.eval().to(options.device, getattr(torch, options.dtype))


def their_model(options: argparse.Namespace) -> Any:
    transformers = load_reference()
    ours = our_model(options)
    parts = {k: v for k, v in ours.config.to_dict().items() if k.endswith("_config")}
    model = transformers.Sam2Model(transformers.Sam2Config(**parts))
    model.load_state_dict(ours.state_dict())
    return model.eval().to(options.device, getattr(torch, options.dtype))


def threshold(model: Any, embeddings: Any, options: argparse.Namespace) -> float:
    """Return the predicted IoU that the share `--keep` of masks exceeds."""
    points = point_grid(4)[None, :, None].to(options.device) * IMAGE
    with torch.no_grad():
        scores = model(input_points=points, image_embeddings=embeddings).iou_scores
    return float(torch.quantile(scores.float(), 1 - options.keep))


def settings(options: argparse.Namespace, level: float) -> dict[str, Any]:
    """Return the settings of both generators."""
    return {
        "points_per_crop": options.side,
        "points_per_batch": options.batch,
        "pred_iou_thresh": level,
        "stability_score_thresh": -1.0,
        "crops_nms_thresh": 1.0,
    }


def ours(options: argparse.Namespace) -> dict[str, Any]:
    model, processor = our_model(options), Sam2Processor()
    prepared = processor(images=random_image(), return_tensors="pt")["pixel_values"].to(options.device)
    level = threshold(model, model.get_image_embeddings(prepared), options)
    calls: list[int] = []
    decode = model.mask_decoder.confident_masks

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args[2].shape[1])
        return decode(*args, **kwargs)

    model.mask_decoder.confident_masks = counted  # type: ignore[method-assign]
    generator = Sam2AutomaticMaskGenerator(model, processor, **settings(options, level))
    start = clock(options)
    found = generator(random_image())
    assert isinstance(found, MaskProposals)
    taken = since(start, options)
    return {
        "decoder calls": len(calls),
        "points": sum(calls),
        "masks": len(found),
        "covered": covered(found.masks),
    } | taken


def theirs(options: argparse.Namespace) -> dict[str, Any]:
    model, transformers = their_model(options), load_reference()
    import torchvision

    torchvision.ops.boxes.nms = box_nms
    processor = transformers.Sam2ImageProcessor()
    prepared = processor(images=random_image(), return_tensors="pt")["pixel_values"].to(options.device)
    level = threshold(model, model.get_image_embeddings(prepared), options)
    calls: list[int] = []
    model.mask_decoder.register_forward_hook(
        lambda module, args, kwargs, out: calls.append(kwargs["sparse_prompt_embeddings"].shape[1]), with_kwargs=True
    )
    generate = transformers.pipeline("mask-generation", model=model, image_processor=processor, device=options.device)
    image = Image.fromarray(random_image())
    start = clock(options)
    found = generate(image, **settings(options, level))
    taken, masks = since(start, options), [torch.as_tensor(mask) for mask in found["masks"]]
    return {"decoder calls": len(calls), "points": sum(calls), "masks": len(masks), "covered": covered(masks)} | taken


def covered(masks: Iterable[Tensor]) -> int:
    """Return the number of pixels of all masks, to check that both agree."""
    return sum(int(mask.sum()) for mask in masks)


def encoder(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """Encode one image."""
    pixels = torch.randn(1, 3, IMAGE, IMAGE, device=options.device, dtype=getattr(torch, options.dtype))
    return repeated(options, lambda: model.get_image_embeddings(pixels))


def prompts(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """Decode many prompts of one encoded image in one call."""
    torch.manual_seed(1)
    kind = getattr(torch, options.dtype)
    sizes = ((32, 256), (64, 128), (256, 64))
    embeddings = [torch.randn(1, c, n, n, device=options.device, dtype=kind) for c, n in sizes]
    points = torch.rand(1, options.prompts, 1, 2, device=options.device) * IMAGE
    labels = torch.ones(1, options.prompts, 1, dtype=torch.long, device=options.device)
    found = repeated(options, lambda: model(input_points=points, input_labels=labels, image_embeddings=embeddings))
    return {"prompts": options.prompts} | found


def repeated(options: argparse.Namespace, run: Callable[[], Any]) -> dict[str, Any]:
    """Return the minimum of several repetitions, after one warmup."""
    taken = []
    with torch.no_grad():
        for _ in range(options.repeats + 1):
            start = clock(options)
            run()
            taken.append(since(start, options))
    return {name: min(one[name] for one in taken[1:]) for name in taken[0]}


def print_fill_holes() -> None:
    """Print the time to fill the holes of 64 masks of 1024², next to labelling them with scipy."""
    random = np.random.default_rng(0)
    small = torch.from_numpy(random.standard_normal((64, 1, 32, 32))).float()
    masks = F.interpolate(small, size=(IMAGE, IMAGE), mode="bicubic")[:, 0] > 0
    start = time.perf_counter()
    fill_holes(masks, 200)
    mine = time.perf_counter() - start
    line = f"fill_holes of 64 masks of 1024²: {mine:.2f} s, {mine / 64 * 1e3:.1f} ms each"
    try:
        from scipy import ndimage
    except ImportError:
        print(line)
        return
    start = time.perf_counter()
    for mask in masks.numpy():
        ndimage.label(~mask, np.ones((3, 3)))
    print(f"{line}  (scipy, labelling only: {time.perf_counter() - start:.2f} s)")


def clock(options: argparse.Namespace) -> tuple[float, float]:
    if options.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float], options: argparse.Namespace) -> dict[str, float]:
    now = clock(options)
    return {"seconds": now[0] - start[0], "CPU seconds": now[1] - start[1]}


def peak(options: argparse.Namespace) -> float:
    """Return the peak memory in MiB, of the process or on the GPU."""
    if options.device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run one measurement; memory counts above that of the model."""
    model = (our_model if options.only.startswith("our") else their_model)(options)
    base = peak(options)
    what = options.only.split()[1]
    if what != "masks":
        found = (prompts if what == "prompts" else encoder)(options, model)
    else:
        del model
        found = ours(options) if options.only == "our masks" else theirs(options)
    return found | {"peak MiB above the model": peak(options) - base}


def measure_in_new_process(options: argparse.Namespace, only: str) -> dict[str, Any]:
    """Run one measurement in a new process."""
    names = [name for name in vars(options) if name != "only"]
    found = run_in_new_process(__file__, f"--only={only}", *as_arguments(options, names))
    if "error" in found:
        raise SystemExit(found["error"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="tiny")
    parser.add_argument("--side", type=int, default=12, help="points along a side of the grid; usually 32")
    parser.add_argument("--batch", type=int, default=64, help="points a batch")
    parser.add_argument("--keep", type=float, default=0.3, help="share of masks that pass the IoU filter")
    parser.add_argument("--prompts", type=int, default=64, help="prompts in one call")
    parser.add_argument("--repeats", type=int, default=2, help="repetitions in a process; the minimum counts")
    parser.add_argument("--rounds", type=int, default=1, help="processes for each measurement, alternating")
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
    titles = {"masks": f"automatic masks, grid {options.side}²", "encoder": "encoder", "prompts": "prompts in one call"}
    for what, title in titles.items():
        rounds = [
            tuple(measure_in_new_process(options, f"{whose} {what}") for whose in ("their", "our"))
            for _ in range(options.rounds)
        ]
        print(title)
        for name, value in rounds[0][1].items():
            if isinstance(value, int):
                print(f"  {name:26} reference {rounds[0][0][name]:>9}   ours {value:>9}")
            else:
                reference, mine = (statistics.median(each[side][name] for each in rounds) for side in (0, 1))
                ratio = f"{mine / max(reference, 1e-9):.2f} × the reference"
                print(f"  {name:26} reference {reference:>9.2f}   ours {mine:>9.2f}   {ratio}", flush=True)
    print_fill_holes()


if __name__ == "__main__":
    main()
