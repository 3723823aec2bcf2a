"""Find people, run every Sapiens2 task on them and write one sheet: the whole path, from file to results in pixels.

    python examples/demo.py [photo.jpg] [--out out/demo]                    the small model inside the package
    python examples/demo.py --model-prefix facebook/sapiens2 --size 0.4b    large ones, on the whole picture

Where the package has no model inside and no checkpoint is named, models start from random weights: the sheet then shows
the path, not the skill.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitruvian
from vitruvian.hub import BUILTIN, has_builtin
from vitruvian.human import PART_COLOURS
from vitruvian.pipelines.demo import run_demo

HERE = Path(__file__).resolve().parent
TASKS = {
    "pose": "Sapiens2ForPoseEstimation",
    "seg": "Sapiens2ForSemanticSegmentation",
    "normal": "Sapiens2ForNormalEstimation",
    "pointmap": "Sapiens2ForPointmapEstimation",
    "matting": "Sapiens2ForImageMatting",
    "albedo": "Sapiens2ForAlbedoEstimation",
}
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_attention_heads": 1,
    "intermediate_size": 128,
    "image_size": [256, 192],
    "num_first_full_attention_layers": 1,
    "num_last_full_attention_layers": 1,
}


def small_head(task: str) -> dict[str, object]:
    """A thin head of the task's kind."""
    if task in ("pose", "seg"):
        return {"upsample_out_channels": [32] * (2 if task == "pose" else 4), "conv_out_channels": [16]}
    scale = {"scale_conv_out_channels": [8], "scale_final_hidden_sizes": [8, 8]} if task == "pointmap" else {}
    return {
        "upsample_out_channels": [32, 16, 16, 8],
        "upsample_kernel_sizes": [3] * 4,
        "use_pixel_shuffle": True,
        "conv_out_channels": [8],
        "conv_kernel_sizes": [3],
        "norm": "rms" if task == "albedo" else "instance",
    } | scale


def open_model(task: str, prefix: str | None, size: str) -> vitruvian.Model:
    """Open a checkpoint, or build a small model with random weights."""
    cls = getattr(vitruvian, TASKS[task])
    if prefix is not None:
        return cls.from_pretrained(f"{prefix}-{task}-{size}", device_map="auto")
    torch.manual_seed(0)
    config = vitruvian.Sapiens2Config.variant("0.1b", task=task, **SMALL, head_config=small_head(task))
    return cls.from_config(config).eval()


def picture_of(task: str, output: Any, processor: Any, size: tuple[int, int], boxes: Any) -> np.ndarray:
    """Turn a task's output into something to look at: uint8 [H, W, 3]."""
    if task == "pose":
        person = processor.post_process_pose_estimation(output, boxes=boxes)[0][0]
        canvas = np.zeros((*size, 3), np.uint8)
        for (x, y), score in zip(person["keypoints"].tolist(), person["scores"].tolist(), strict=True):
            column, row = round(x), round(y)
            if 2 <= row < size[0] - 2 and 2 <= column < size[1] - 2:
                canvas[row - 2 : row + 3, column - 2 : column + 3] = (255, int(255 * min(max(score, 0), 1)), 64)
        return canvas
    if task == "seg":
        return np.asarray(PART_COLOURS, np.uint8)[
            processor.post_process_semantic_segmentation(output, [size])[0].numpy()
        ]
    if task == "normal":
        normals = processor.post_process_normal_estimation(output, [size])[0]["normals"]
        return ((normals.permute(1, 2, 0).numpy() + 1) * 127.5).astype(np.uint8)
    if task == "pointmap":
        depth = processor.post_process_pointmap_estimation(output, [size])[0]["pointmap"][2].numpy()
        low, high = np.quantile(depth, [0.01, 0.99])
        shade = (255 * (1 - np.clip((depth - low) / (high - low + 1e-6), 0, 1))).astype(np.uint8)
        return np.repeat(shade[..., None], 3, axis=2)
    if task == "matting":
        green = torch.tensor([0, 177, 64], dtype=torch.uint8).view(3, 1, 1)
        return processor.post_process_image_matting(output, [size], green)[0]["composite"].permute(1, 2, 0).numpy()
    albedo = processor.post_process_albedo_estimation(output, [size])[0]["albedo"]
    return (albedo.permute(1, 2, 0).numpy() * 255).astype(np.uint8)


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", help="a picture of people; by default those that ship with the package")
    parser.add_argument("--model", help="a folder packed like the model inside the package, which is the default")
    parser.add_argument("--model-prefix", help="for example facebook/sapiens2: one large checkpoint a task")
    parser.add_argument("--size", default="0.4b", help="variant of the checkpoints")
    parser.add_argument("--out", default="out/demo", type=Path)
    options = parser.parse_args()
    if options.model_prefix is None and (options.model is not None or has_builtin()):
        report = run_demo(options.image, options.out, model=options.model or BUILTIN, progress=print)
        print(f"All of it: {report.sheet} ({report.seconds:.1f} s)")
    else:
        run_tasks(options)


def run_tasks(options: argparse.Namespace) -> None:
    """Run every task with a model of its own on the whole picture."""
    image = vitruvian.load_image(options.image or HERE / "astronaut.jpg")
    size = (image.height, image.width)
    boxes = [[[0.0, 0.0, float(image.width), float(image.height)]]]
    options.out.mkdir(parents=True, exist_ok=True)
    if options.model_prefix is None:
        print("No checkpoint given: the models below have random weights and show the path, not the skill.")
        warnings.simplefilter("ignore")
    sheet = [np.asarray(image)]
    for task in TASKS:
        start = time.perf_counter()
        model = open_model(task, options.model_prefix, options.size)
        pads = task in ("normal", "pointmap", "albedo")
        height, width = model.config.image_hw
        processor = vitruvian.Sapiens2ImageProcessor(size={"height": height, "width": width}, do_pad=pads)
        inputs = processor(image, boxes=boxes if task == "pose" else None, return_tensors="pt").to(model.device)
        with torch.inference_mode():
            output = model(**inputs)
        drawn = picture_of(task, output, processor, size, boxes)
        Image.fromarray(drawn).save(options.out / f"{task}.png")
        sheet.append(drawn)
        print(f"{task:9s} {time.perf_counter() - start:5.2f} s  {options.out / task}.png")
    Image.fromarray(np.concatenate(sheet, axis=1)).save(options.out / "sheet.png")
    print(f"All of it: {options.out / 'sheet.png'}")


if __name__ == "__main__":
    main()
