"""A small set of people and small runs, for tests of training."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from vitruvian.training.config import TrainConfig
from vitruvian.training.synthetic.dataset import DatasetOptions, write_dataset
from vitruvian.training.synthetic.procedural_pack import procedural_pack
from vitruvian.training.synthetic.render import RenderOptions

SIZE_HW = (64, 48)
TASKS = ("pose", "parts", "normals", "pointmap", "matte", "albedo", "people")
PLAIN = RenderOptions(
    size_hw=SIZE_HW, supersample=1, shadow_size=32, surroundings=2, surroundings_size=16, occluders=0.0
)
SHUFFLE = {"upsample_out_channels": [12, 8, 8, 8], "conv_out_channels": [8]}
HEADS: dict[str, dict[str, Any]] = {
    "pose": {"upsample_out_channels": [12, 8], "conv_out_channels": [8]},
    "parts": {"upsample_out_channels": [12, 8, 8, 8], "conv_out_channels": [8]},
    "normals": SHUFFLE,
    "pointmap": SHUFFLE | {"scale_conv_out_channels": [8], "scale_final_hidden_sizes": [8]},
    "matte": SHUFFLE,
    "albedo": SHUFFLE,
    "people": {"upsample_out_channels": [12], "conv_out_channels": [8]},
}
ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_attention_heads": 2,
    "num_first_full_attention_layers": 1,
    "num_last_full_attention_layers": 1,
    "intermediate_size": 48,
    "num_register_tokens": 2,
}


tube_people = functools.cache(procedural_pack)  # packs are never changed


def make_set(folder: Path, count: int = 10, *, seed: int = 0, **options: Any) -> Path:
    """Write a set of tube people and return its folder."""
    write_dataset(folder, count, seed=seed, pack=tube_people(0), options=DatasetOptions(render=PLAIN, **options))
    return folder


def model_table(*tasks: str, **changes: Any) -> dict[str, Any]:
    """The table `model` of a small run."""
    table = {"tasks": list(tasks), "image_size": list(SIZE_HW), "encoder": dict(ENCODER)}
    return table | {"heads": {task: HEADS[task] for task in tasks}} | changes


def run_table(out: Path, data: Path | None, *tasks: str, steps: int = 4, **changes: Any) -> dict[str, Any]:
    """The tables of a small run on the CPU."""
    table: dict[str, Any] = {
        "out": str(out),
        "steps": steps,
        "precision": "float32",
        "device": "cpu",
        "model": model_table(*tasks),
        "data": {"folder": None if data is None else str(data), "batch_size": 4, "workers": 0},
        "optimizer": {"lr": 3e-3},
        "schedule": {"warmup": 1},
        "log": {"every": 1, "console": False, "tensorboard": False},
    }
    for path, value in changes.items():
        inner = table
        *parts, last = path.split("__")
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return table


def small_run(out: Path, data: Path | None, *tasks: str, **changes: Any) -> TrainConfig:
    """The configuration of a small run; ``optimizer__lr=…`` changes a setting."""
    return TrainConfig.from_dict(run_table(out, data, *tasks, **changes))
