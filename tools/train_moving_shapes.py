"""Train a very small SAM 2 for videos on drawn shapes in motion: the checkpoint of tests/data/moving-shapes.

    python tools/train_moving_shapes.py --out tests/data/moving-shapes --minutes 5

The shapes of a clip start apart, cross each other and part. Training reads windows of the clips at random places; one
place in four is left out, for evaluation. The objects start from their masks in the first frame. Weights are stored in
float16, which takes less than 1 MB. The last line printed is the mean IoU (J) of all frames after the first, at places
that were left out.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian import Sam2VideoConfig, Sam2VideoModel
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession, TrackingOptions
from vitruvian.training.clips import ClipObjective, PromptSimulation
from vitruvian.training.synthetic.moving_shapes import Clip, draw_clip

SIDE = 64
LENGTH = 8
_CANVAS = 80  # side of the clips, of which windows are read
_SEEDS = (2, 3)  # of the clips
_PROMPTS = PromptSimulation(mask=1.0, box=0.0, corrected_frames=0)


def draw_window(number: int, left: int, top: int, noise: torch.Generator) -> Clip:
    """Return the window of clip `number` at a place from 0 to 16, with new noise."""
    clip = draw_clip(torch.Generator().manual_seed(_SEEDS[number]), size_hw=(_CANVAS, _CANVAS), length=LENGTH)
    window = (..., slice(top, top + SIDE), slice(left, left + SIDE))
    frames = clip.frames[window]
    return Clip((frames + 0.02 * torch.randn(frames.shape, generator=noise)).clamp(0, 1), clip.masks[window])


def is_left_out(left: int, top: int) -> bool:
    """Tell whether a place is for evaluation only."""
    return (left + 2 * top) % 4 == 0


def build_config(side: int = SIDE) -> Sam2VideoConfig:
    """Return a video model of less than 500,000 parameters."""
    channels, hidden = 48, 96
    return Sam2VideoConfig.from_dict(
        {
            "image_size": side,
            "vision_config": {
                "backbone_config": {
                    "model_type": "sam2_hiera_det_model",
                    "hidden_size": 16,
                    "image_size": [side, side],
                    "window_positional_embedding_background_size": [4, 4],
                    "blocks_per_stage": [1, 1, 2, 1],
                    "embed_dim_per_stage": [16, 32, 48, 64],
                    "num_attention_heads_per_stage": [1, 1, 2, 2],
                    "window_size_per_stage": [8, 4, 4, 2],
                    "global_attention_blocks": [3],
                },
                "backbone_channel_list": [64, 48, 32, 16],
                "backbone_feature_sizes": [[side // 4] * 2, [side // 8] * 2, [side // 16] * 2],
                "fpn_hidden_size": channels,
            },
            "prompt_encoder_config": {"hidden_size": channels, "image_size": side, "patch_size": 16},
            "mask_decoder_config": {
                "hidden_size": channels,
                "mlp_dim": hidden,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 32,
                "dynamic_multimask_via_stability": False,
            },
            # Of several masks only the best is trained: with few objects they would be found without a prompt.
            "multimask_output_in_sam": False,
            "memory_attention_hidden_size": channels,
            "memory_attention_num_layers": 2,
            "memory_attention_feed_forward_hidden_size": hidden,
            "memory_attention_rope_feat_sizes": [side // 16, side // 16],
            "memory_attention_dropout": 0.0,
            "memory_attention_rope_dropout": 0.0,
            "memory_encoder_hidden_size": channels,
            "memory_encoder_output_channels": 24,
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
    return (frames - 0.5) / 0.25


@torch.inference_mode()
def follow(model: Sam2VideoModel, clip: Clip) -> Tensor:
    """Follow all objects of a clip from their masks in the first frame; return the IoU of each [T, O]."""
    side = clip.frames.shape[-1]
    session = Sam2VideoInferenceSession(
        None, side, side, options=TrackingOptions(independent_objects=True, keep_history=False)
    )
    for number, mask in enumerate(clip.masks[0]):
        session.add_mask_inputs(session.obj_id_to_idx(number), 0, mask[None, None])
    session.mark_new_inputs(list(session.obj_ids), 0)
    rows = []
    for frame, truth in zip(normalized(clip.frames), clip.masks, strict=True):
        logits: Any = model(session, frame=frame).pred_masks
        large = torch.nn.functional.interpolate(logits, size=truth.shape[1:], mode="bilinear", align_corners=False)
        found = large[:, 0] > 0
        union = (found | truth).flatten(1).sum(1).clamp(min=1)
        rows.append((found & truth).flatten(1).sum(1) / union)
    return torch.stack(rows)


def evaluate(model: Sam2VideoModel, count: int = 8) -> Tensor:
    """Return the IoU at places that were not trained on [count, T, O]."""
    model.eval()
    generator = torch.Generator().manual_seed(10**6)
    places = [
        (left, top) for left in range(0, _CANVAS - SIDE, 3) for top in range(_CANVAS - SIDE) if is_left_out(left, top)
    ]
    chosen = torch.randperm(len(places), generator=generator)[:count].tolist()
    return torch.stack([follow(model, draw_window(n % 2, *places[place], generator)) for n, place in enumerate(chosen)])


def train(minutes: float, *, seed: int = 0) -> Sam2VideoModel:
    """Train for about so many minutes."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Sam2VideoModel(build_config()).train()
    initialize(model)
    objective = ClipObjective(model, _PROMPTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)
    start, step = time.perf_counter(), 0
    while (elapsed := (time.perf_counter() - start) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:  # warmup, then half a cosine
            group["lr"] = 1e-3 * min(1, (step + 1) / 20) * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * elapsed)))
        left, top = torch.randint(_CANVAS - SIDE, (2,), generator=generator).tolist()
        if is_left_out(left, top):
            continue
        clip = draw_window(step % len(_SEEDS), left, top, generator)
        length = 2 + min(LENGTH - 2, int(elapsed * 12))  # longer and longer clips in the first half of the time
        loss = objective(normalized(clip.frames[:length]), clip.masks[:length], generator)
        optimizer.zero_grad()
        (loss.total / length).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 25 == 0:
            dice = loss.terms["dice"].item() / (length - 1)
            print(f"step {step}, {elapsed:.0%}, {length} frames: Dice loss {dice:.3f}", flush=True)
    return model


def main() -> None:
    """Train, save and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.minutes, seed=options.seed).half().save_pretrained(options.out)
    found = evaluate(Sam2VideoModel.from_pretrained(options.out, dtype=torch.float32))[:, 1:]
    print(f"J: mean {found.mean():.3f}, worst clip {found.mean((1, 2)).min():.3f}")


if __name__ == "__main__":
    main()
