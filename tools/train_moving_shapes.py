"""Train a small SAM 2 for videos on drawn shapes in motion: the checkpoint of tests/data/moving-shapes.

    python tools/train_moving_shapes.py --out tests/data/moving-shapes --minutes 8

Every step draws new clips: shapes, colors, textures, paths and crossings. Two of the three shapes of a clip are
tracked, from masks, boxes or clicks in the first frame. Weights are stored in float16, about 2 MB, every minute and at
the end. Lines with J show the mean IoU of all frames after the first on clips that are never trained on, from masks,
boxes and one click for each object; the last lines also for shapes of colors that no background has.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian import (
    Sam2ImageProcessor,
    Sam2VideoConfig,
    Sam2VideoModel,
    Sam2VideoProcessor,
    Sam2VideoVideoProcessor,
)
from vitruvian.images.boxes import mask_boxes
from vitruvian.models.sam2.video_session import Sam2SessionOptions, Sam2VideoInferenceSession
from vitruvian.training.clips import ClipObjective, PromptSimulation
from vitruvian.training.synthetic.moving_shapes import Clips, draw_clips

LENGTH = 8
_LENGTHS = ((0.2, 2), (0.35, 3), (0.5, 4), (0.75, 6), (1.0, LENGTH))  # of clips, until so much of the time has passed
_MEAN, _STD = 0.5, 0.25  # of pixels
_DRAWN, _TRACKED = 3, 2  # shapes of a clip
_VIVID = (0.6, 0.9)  # saturation of shapes that do not look like the background
_TEST_SEED = 10**6  # of the clips for evaluation, far from seeds of training
# Half of the steps track from the first prompts only, the others get further clicks.
_PROMPTS = (
    PromptSimulation(mask=0.3, box=0.35, corrected_frames=0),
    PromptSimulation(mask=0.3, box=0.35, corrected_frames=2, clicks=2),
)


def build_config(side: int) -> Sam2VideoConfig:
    """Return a video model of about 900,000 parameters."""
    channels, hidden = 64, 128
    return Sam2VideoConfig.from_dict(
        {
            "image_size": side,
            "vision_config": {
                "backbone_config": {
                    "model_type": "sam2_hiera_det_model",
                    "hidden_size": 24,
                    "image_size": [side, side],
                    "window_positional_embedding_background_size": [4, 4],
                    "blocks_per_stage": [1, 1, 2, 1],
                    "embed_dim_per_stage": [24, 48, 80, 112],
                    "num_attention_heads_per_stage": [1, 1, 2, 2],
                    "window_size_per_stage": [8, 4, 4, 4],
                    "global_attention_blocks": [3],
                },
                "backbone_channel_list": [112, 80, 48, 24],
                "backbone_feature_sizes": [[side // 4] * 2, [side // 8] * 2, [side // 16] * 2],
                "fpn_hidden_size": channels,
            },
            "prompt_encoder_config": {"hidden_size": channels, "image_size": side, "patch_size": 16},
            "mask_decoder_config": {
                "hidden_size": channels,
                "mlp_dim": hidden,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 64,
                "dynamic_multimask_via_stability": False,
            },
            "multimask_output_in_sam": False,  # a click on a shape has one meaning
            "memory_attention_hidden_size": channels,
            "memory_attention_num_layers": 2,
            "memory_attention_feed_forward_hidden_size": hidden,
            "memory_attention_rope_feat_sizes": [side // 16, side // 16],
            "memory_attention_dropout": 0.0,
            "memory_attention_rope_dropout": 0.0,
            "memory_encoder_hidden_size": channels,
            "memory_encoder_output_channels": 32,
            "mask_downsampler_embed_dim": channels,
            "memory_fuser_embed_dim": channels,
            "memory_fuser_intermediate_dim": hidden,
            "memory_fuser_num_layers": 1,
            "memory_fuser_layer_scale_init_value": 1.0,
            "num_maskmem": 4,
            "max_object_pointers_in_encoder": 4,
        }
    )


@torch.no_grad()
def initialize(model: Sam2VideoModel) -> None:
    """Draw weights from which so small a model learns in minutes."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):  # by width: 0.02, as in SAM 2, is for much wider layers
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
        elif isinstance(module, nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=module.weight.shape[0] ** -0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
    for name, module in model.named_modules():
        query, key = (getattr(module, part, None) for part in ("q_proj", "k_proj"))
        if not isinstance(query, nn.Linear) or not isinstance(key, nn.Linear):
            continue
        if query.weight.shape == key.weight.shape:  # tokens attend to what has their position
            key.weight.copy_(query.weight)
        if "cross_attn_image" in name and name.startswith("memory_attention"):  # cells attend to memories near them
            query.bias.fill_(1.0)
            key.bias.fill_(1.0)
    # Memories show masks more than the frame, and the frame attends to them strongly.
    model.memory_encoder.mask_downsampler.final_conv.weight.mul_(2)
    for layer in model.memory_attention.layers:
        layer.cross_attn_image.o_proj.weight.mul_(2)


def normalized(frames: Tensor) -> Tensor:
    """Return frames of 0 to 1 as the model reads them."""
    return (frames - _MEAN) / _STD


def draw_tracked(generator: torch.Generator, *, count: int, side: int, **options: Any) -> Clips:
    """Draw clips with the masks of the shapes that are tracked; the others distract."""
    clips = draw_clips(generator, count=count, size_hw=(side, side), length=LENGTH, objects=_DRAWN, **options)
    chosen = torch.rand(_DRAWN, generator=generator, device=generator.device).argsort()[:_TRACKED]
    return clips._replace(masks=clips.masks[:, :, chosen])


@torch.inference_mode()
def follow(
    model: Sam2VideoModel, frames: Tensor, masks: Tensor, *, points: Tensor | None = None, labels: Sequence[int] = (1,)
) -> Tensor:
    """Follow the objects of a clip from their masks in the first frame, or from points; return the IoU [T, O].

    Args:
        model: The model.
        frames: RGB values from 0 to 1 [T, 3, H, W].
        masks: True masks [T, O, H, W].
        points: x and y of the points of each object [O, N, 2].
        labels: What the N points are: 1 for a click, 2 and 3 for the corners of a box.
    """
    places: Any = dict.fromkeys(("inference_device", "inference_state_device", "video_storage_device"), frames.device)
    options = Sam2SessionOptions(independent_objects=True, keep_history=False)
    session = Sam2VideoInferenceSession(None, *frames.shape[2:], **places, options=options)
    for number, mask in enumerate(masks[0]):
        index = session.obj_id_to_idx(number)
        if points is None:
            session.add_mask_inputs(index, 0, mask[None, None])
        else:
            kinds = torch.tensor(labels, device=frames.device)
            prompt = {"point_coords": points[None, None, number], "point_labels": kinds[None, None]}
            session.add_point_inputs(index, 0, prompt)
    session.mark_new_inputs(list(session.obj_ids), 0)
    rows = []
    for frame, truth in zip(normalized(frames), masks, strict=True):
        logits: Any = model(session, frame=frame).pred_masks
        large = nn.functional.interpolate(logits, size=truth.shape[1:], mode="bilinear", align_corners=False)
        found = large[:, 0] > 0
        both, either = ((found & truth).flatten(1).sum(1), (found | truth).flatten(1).sum(1))
        rows.append(torch.where(either > 0, both / either.clamp(min=1), 1.0))
    return torch.stack(rows)


def central_points(masks: Tensor) -> Tensor:
    """Return the pixel of each mask [O, H, W] that is nearest to its center: x and y [O, 2]."""
    rows = []
    for mask in masks:
        places = mask.nonzero().flip(1) + 0.5  # [N, 2]
        rows.append(places[(places - places.mean(0)).norm(dim=1).argmin()])
    return torch.stack(rows)


def evaluate(model: Sam2VideoModel, *, count: int, **options: Any) -> dict[str, Tensor]:
    """Return the IoU from the second frame on, on clips that are never trained on: kind of prompt -> [B, T - 1, O]."""
    was_training = model.training
    model.eval()
    generator = torch.Generator().manual_seed(_TEST_SEED)
    clips = Clips(
        *(
            part.to(model.device)
            for part in draw_tracked(generator, count=count, side=model.config.image_size, **options)
        )
    )
    found: dict[str, Tensor] = {}
    for kind in ("mask", "box", "click"):
        rows = []
        for frames, masks in zip(*clips, strict=True):
            prompts: dict[str, Any] = {}
            if kind == "box":
                prompts = {"points": mask_boxes(masks[0]).unflatten(1, (2, 2)).to(frames), "labels": (2, 3)}
            elif kind == "click":
                prompts = {"points": central_points(masks[0])[:, None]}
            rows.append(follow(model, frames, masks, **prompts)[1:])
        found[kind] = torch.stack(rows)
    model.train(was_training)
    return found


def report(model: Sam2VideoModel, *, count: int, **options: Any) -> str:
    """Evaluate a model; return a line."""
    parts = [
        f"from a {kind} {j.mean():.3f}, worst clip {j.mean((1, 2)).min():.3f}, last frame {j[:, -1].mean():.3f}"
        for kind, j in evaluate(model, count=count, **options).items()
    ]
    return "J " + "; ".join(parts)


def save(model: Sam2VideoModel, folder: Path) -> None:
    """Write the checkpoint in float16, with its processor."""
    copy.deepcopy(model).half().save_pretrained(folder)
    side = model.config.image_size
    shared: Any = {"size": {"height": side, "width": side}, "image_mean": [_MEAN] * 3, "image_std": [_STD] * 3}
    shared["mask_size"] = {"height": side // 4, "width": side // 4}
    processor = Sam2VideoProcessor(Sam2ImageProcessor(**shared), Sam2VideoVideoProcessor(**shared), target_size=side)
    processor.save_pretrained(folder)


def train(model: Sam2VideoModel, options: argparse.Namespace) -> None:
    """Train for about so many minutes; write a checkpoint every minute."""
    generator = torch.Generator(model.device).manual_seed(options.seed)
    objectives = [ClipObjective(model, prompts) for prompts in _PROMPTS]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)
    start, step, next_save = time.perf_counter(), 0, 60.0
    while (elapsed := (seconds := time.perf_counter() - start) / (60 * options.minutes)) < 1:
        for group in optimizer.param_groups:  # warmup, then half a cosine
            group["lr"] = (
                options.lr * min(1, (step + 1) / 100) * (0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * elapsed)))
            )
        length = next(length for until, length in _LENGTHS if elapsed < until)
        first = int(torch.randint(LENGTH - length + 1, ()))
        clips = draw_tracked(generator, count=options.batch, side=options.side)
        frames, masks = (part[:, first : first + length] for part in clips)
        visible = masks[:, 0].flatten(2).any(2).all(1)  # [B]
        loss = objectives[step % 2](normalized(frames[visible]), masks[visible], generator)
        optimizer.zero_grad()
        (loss.total / length).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % options.log_every == 0:
            dice = loss.terms["dice"].item() / length
            print(f"step {step}, {seconds:.0f} s, {length} frames: Dice loss {dice:.3f}", flush=True)
        if seconds > next_save:
            save(model, options.out)
            print(f"step {step}: {report(model, count=8)}", flush=True)
            next_save = time.perf_counter() - start + 60
    save(model, options.out)


def build_model(options: argparse.Namespace) -> Sam2VideoModel:
    """Return a new model, or the one to continue."""
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    if options.start_from:
        model = Sam2VideoModel.from_pretrained(options.start_from, dtype=torch.float32)
    else:
        model = Sam2VideoModel(build_config(options.side))
        initialize(model)
    print(f"{sum(one.numel() for one in model.parameters()):,} parameters on {options.device}", flush=True)
    return model.to(options.device).train()


def main() -> None:
    """Train, save and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="clips of a step; by default 48 on a GPU, 4 on the CPU")
    parser.add_argument("--side", type=int, default=128, help="height and width of frames")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=50, help="steps between lines")
    parser.add_argument("--start-from", type=Path, help="folder of a checkpoint to continue")
    parser.add_argument("--evaluate", action="store_true", help="only evaluate the checkpoint in the folder --out")
    options = parser.parse_args()
    options.batch = options.batch or (4 if options.device == "cpu" else 48)
    if not options.evaluate:
        train(build_model(options), options)
    saved = Sam2VideoModel.from_pretrained(options.out, dtype=torch.float32).to(options.device)
    print(f"all shapes: {report(saved, count=32)}")
    print(f"vivid shapes: {report(saved, count=32, saturation=_VIVID)}")


if __name__ == "__main__":
    main()
