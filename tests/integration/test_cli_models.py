"""The command line as a stranger runs it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitruvian
from tests.shared import SHARED, needs_shared
from vitruvian.models.sapiens2.configuration import VARIANTS, Sapiens2Config
from vitruvian.models.sapiens2.convert import infer_config


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("vitruvian")), *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=120
    )


def test_help_and_version() -> None:
    assert "models" in run("--help").stdout
    assert vitruvian.__version__ in run("--version").stdout
    assert "Example" in run("models", "convert", "--help").stdout


@needs_shared
@pytest.mark.parametrize("name", ["pretrain", "pretrain-4k", "pose", "seg", "normal", "albedo", "pointmap"])
def test_original_file_becomes_a_folder(name: str, tmp_path: Path) -> None:
    folder = SHARED / "golden" / "original" / f"original-{name}"
    done = run("models", "convert", folder / "original.safetensors", tmp_path / "out", "--image-size", "64x48")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "preprocessor_config.json").is_file()
    model = vitruvian.AutoModel.from_pretrained(tmp_path / "out")
    io = load_file(folder / "io.safetensors")
    with torch.inference_mode():
        output = model(io["in.pixel_values"])
    for key, want in io.items():
        if key.startswith("out."):
            got = output[key.removeprefix("out.")]
            assert (got - want).abs().max() / (1 + want.abs().max()) < 1e-4


@needs_shared
def test_wrong_size_for_the_scale_branch_is_noticed(tmp_path: Path) -> None:
    source = SHARED / "golden" / "original" / "original-pointmap" / "original.safetensors"
    done = run("models", "convert", source, tmp_path / "out")
    assert done.returncode == 2
    assert "scale branch" in done.stderr


def test_bad_files_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    save_file({"something.else": torch.zeros(2)}, tmp_path / "other.safetensors")
    for words in (
        ("models", "convert", tmp_path / "missing.pt", tmp_path / "out"),
        ("models", "convert", tmp_path / "other.safetensors", tmp_path / "out"),
        ("models", "convert", tmp_path / "other.safetensors", tmp_path / "out", "--family", "sam9"),
    ):
        done = run(*words)
        assert done.returncode == 2
        assert done.stderr.startswith("Error: ")
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("task", ["pretrain", "pose", "seg", "normal", "pointmap", "albedo"])
def test_architecture_is_read_off_the_shapes(name: str, task: str) -> None:
    """Write each published model's shapes in the original naming, and read its configuration back."""
    config = Sapiens2Config.variant(name, task=task)
    found, kind = infer_config(original_shapes(config, task))
    assert kind == task
    assert same_model(found, config)


def same_model(one: Sapiens2Config, other: Sapiens2Config) -> bool:
    with torch.device("meta"):
        a, b = vitruvian.Sapiens2Model(one), vitruvian.Sapiens2Model(other)
    shapes = [{name: tuple(value.shape) for name, value in model.state_dict().items()} for model in (a, b)]
    return shapes[0] == shapes[1] and one.head_config == other.head_config and one.id2label == other.id2label


def original_shapes(config: Sapiens2Config, task: str) -> dict[str, tuple[int, ...]]:
    C, D, F = config.hidden_size, config.hidden_size // config.num_attention_heads, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, C),
        "storage_tokens": (1, 8, C),
        "patch_embed.projection.weight": (C, 3, 16, 16),
        "ln1.weight": (C,),
    }
    for layer, heads in enumerate(config.num_key_value_heads_per_layer or []):
        shapes |= {
            f"blocks.{layer}.ln1.weight": (C,),
            f"blocks.{layer}.attn.q_norm.weight": (D,),
            f"blocks.{layer}.attn.wk.weight": (heads * D, C),
            f"blocks.{layer}.ffn.w3.weight": (C, F),
        }
    if config.use_tokenizer:
        shapes |= {"tokenizer.w_cls": (1, 1, C), "tokenizer.local_pos_embed": (1, 17, C)}
        shapes |= {f"tokenizer.blocks.{n}.ln1.weight": (C,) for n in range(config.num_tokenizer_layers)}
    if task == "pretrain":
        return shapes
    shapes = {f"backbone.{name}": shape for name, shape in shapes.items()}
    head = config.head_config
    assert head is not None
    before = C
    for n, (after, k) in enumerate(
        zip(head.upsample_out_channels or [], head.upsample_kernel_sizes or [], strict=True)
    ):
        if head.use_pixel_shuffle:
            shapes[f"decode_head.upsample_blocks.{n}.0.weight"] = (4 * after, before, k, k)
        else:
            shapes[f"decode_head.deconv_layers.{3 * n}.weight"] = (before, after, k, k)
        before = after
    for n, (after, k) in enumerate(zip(head.conv_out_channels or [], head.conv_kernel_sizes or [], strict=True)):
        shapes[f"decode_head.conv_layers.{3 * n}.weight"] = (after, before, k, k)
        if head.norm == "rms":
            shapes[f"decode_head.conv_layers.{3 * n + 1}.norm.weight"] = (after,)
        before = after
    shapes[f"decode_head.conv_{task}.weight"] = (config.num_labels, before, 1, 1)
    before = C
    for n, after in enumerate(head.scale_conv_out_channels or []):
        shapes[f"decode_head.scale_conv_layers.{3 * n}.weight"] = (after, before, 1, 1)
        before = after
    if head.scale_final_hidden_sizes:
        first, second = head.scale_final_hidden_sizes
        shapes |= {
            "decode_head.scale_final_layer.1.weight": (first, head.scale_final_input_size or 0),
            "decode_head.scale_final_layer.3.weight": (second, first),
        }
    return shapes
