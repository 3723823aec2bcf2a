"""`vitruvian models`: list, info, licenses, download and convert."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitruvian
import vitruvian.cli as cli
from tests.helpers.hub_server import HubServer, Repository
from tests.helpers.shared_folder import SHARED, needs_shared
from tests.integration.cli_case import process
from vitruvian.cli import app
from vitruvian.cli.known_checkpoints import _SAPIENS2_SIZES, LICENSES, known_checkpoints
from vitruvian.models.sapiens2.configuration import VARIANTS, Sapiens2Config
from vitruvian.models.sapiens2.convert import infer_config
from vitruvian.models.sapiens2.multitask import HEAD_CLASSES
from vitruvian.tasks import PIPELINE_TASKS, TASKS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("workspace")


def test_list_of_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["models", "list", "--task", "matte"]) == 0
    text = capsys.readouterr().out
    assert "facebook/sapiens2-matting-1b" in text
    assert "1.54 B" in text
    assert "sapiens2-pose" not in text
    assert cli.run(["models", "list", "--json"]) == 0
    builtin, *rows = json.loads(capsys.readouterr().out)["checkpoints"]
    assert len(rows) == len({row["name"] for row in rows}) == len(list(known_checkpoints()))
    commands = {command for row in rows for command in row["commands"]}
    assert commands == set(PIPELINE_TASKS) - {"albedo"}  # none is published
    assert (builtin["name"], builtin["license"]) == ("builtin", "Apache-2.0")
    assert {"pose", "albedo"} <= set(builtin["commands"])
    assert 20e6 < builtin["cached_bytes"] < 25e6
    assert cli.run(["models", "list", "--task", "segment"]) == 0
    assert "builtin" not in capsys.readouterr().out


def test_listed_parameter_counts_are_those_of_the_models() -> None:
    for task, sizes in _SAPIENS2_SIZES.items():
        for variant in sizes if task != "pretrain" else ():
            config = vitruvian.Sapiens2Config.variant(variant, task=task)
            with torch.device("meta"):
                model = HEAD_CLASSES[task](config)
            assert round(model.num_parameters() / 1e6) == sizes[variant], (task, variant)


def test_every_task_is_a_command() -> None:
    assert {*app.COMMANDS[app.PEOPLE], *app.COMMANDS[app.ANYTHING]} == set(PIPELINE_TASKS)
    for task in (TASKS[name] for name in PIPELINE_TASKS):
        assert set(task.default_image_formats) <= set(task.image_formats())
        assert set(task.default_video_formats) <= set(task.save_formats())


def test_licenses_are_those_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["models", "licenses"]) == 0
    captured = capsys.readouterr().out
    path = ROOT / "docs" / "weight-licenses.md"
    page = " ".join(path.read_text(encoding="utf-8").split()).replace("`", "")
    for license in LICENSES.values():
        assert license.text in captured
        assert license.names in page
        assert license.text.rstrip(".").lower() in page.lower()


def test_info_of_the_builtin_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["models", "info", "builtin", "--json"]) == 0
    details = json.loads(capsys.readouterr().out)
    assert set(details["commands"]) == {"pose", "parts", "normals", "pointmap", "matte", "albedo", "embed"}
    assert details["license"] == "Apache-2.0"
    assert details["parameters"] == 23_215_628  # the shared encoder once
    assert details["size_bytes"] < 25e6


def test_info_of_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["models", "info", "facebook/sapiens2-seg-0.4b", "--json"]) == 0
    details = json.loads(capsys.readouterr().out)
    model = vitruvian.AutoModel.from_pretrained("facebook/sapiens2-seg-0.4b")
    assert details["class"] == "Sapiens2ForSemanticSegmentation"
    assert details["commands"] == ["parts", "embed"]
    assert details["parameters"] == model.num_parameters()
    assert details["dtype"] == "float32"
    assert details["size_bytes"] == (Path("facebook/sapiens2-seg-0.4b") / "model.safetensors").stat().st_size
    assert details["config"]["hidden_size"] == 32
    assert cli.run(["models", "info", "facebook/sam2.1-hiera-large"]) == 0
    captured = capsys.readouterr().out
    assert "Sam2Model" in captured
    assert "segment, masks" in captured


def test_download(tmp_path: Path) -> None:
    """Against a Hub on this machine; its address is read when huggingface_hub is imported, hence a process."""
    hub = HubServer()
    files = {path.name: path.read_bytes() for path in Path("facebook/sapiens2-pose-0.4b").iterdir()}
    hub.repositories["me/pose"] = Repository(branches={"main": files | {"pytorch_model.bin": b"the same again"}})
    env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    running = process("models", "download", "me/pose", "me/none", env=env)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 2
    folder = Path(out.decode().strip())
    assert {path.name for path in folder.iterdir()} == set(files)
    assert (folder / "config.json").read_bytes() == files["config.json"]
    captured = err.decode().splitlines()[-1]
    assert captured.startswith("Error: me/none: no such repository on the Hub")


# ------------------------------------------------------------------------------------------------ convert


def run(*words: str | Path) -> int:
    return cli.run([str(word) for word in words])


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in ((["--help"], "models"), (["models", "convert", "--help"], "Example")):
        assert run(*words) == 0
        assert text in capsys.readouterr().out


def test_the_installed_command(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("vitruvian"))]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=120, check=True)
    assert vitruvian.__version__ in done.stdout
    words = ["models", "convert", str(tmp_path / "missing.pt"), str(tmp_path / "out")]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


@needs_shared
@pytest.mark.parametrize("name", ["pretrain", "pretrain-4k", "pose", "seg", "normal", "albedo", "pointmap"])
def test_original_checkpoint_is_converted(name: str, tmp_path: Path) -> None:
    folder = SHARED / "golden" / "original" / f"original-{name}"
    assert run("models", "convert", folder / "original.safetensors", tmp_path / "out", "--image-size", "64x48") == 0
    assert (tmp_path / "out" / "preprocessor_config.json").is_file()
    model = vitruvian.AutoModel.from_pretrained(tmp_path / "out")
    io = load_file(folder / "io.safetensors")
    with torch.inference_mode():
        output = model(io["in.pixel_values"])
    wanted = {key.removeprefix("out."): want for key, want in io.items() if key.startswith("out.")}
    assert wanted
    for key, want in wanted.items():
        assert (output[key] - want).abs().max() / (1 + want.abs().max()) < 1e-4, key


@needs_shared
def test_image_size_that_does_not_fit_the_scale_branch_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = SHARED / "golden" / "original" / "original-pointmap" / "original.safetensors"
    assert run("models", "convert", source, tmp_path / "out") == 2
    assert "scale branch" in capsys.readouterr().err


def test_files_that_cannot_be_converted_are_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"something.else": torch.zeros(2)}, tmp_path / "other.safetensors")
    for words in (
        ("models", "convert", tmp_path / "missing.pt", tmp_path / "out"),
        ("models", "convert", tmp_path / "other.safetensors", tmp_path / "out"),
        ("models", "convert", tmp_path / "other.safetensors", tmp_path / "out", "--family", "sam9"),
    ):
        assert run(*words) == 2
        error = capsys.readouterr().err
        assert error.startswith("Error: ")
        assert "Traceback" not in error
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("task", ["pretrain", "pose", "seg", "normal", "pointmap", "albedo"])
def test_configuration_is_inferred_from_the_shapes_of_weights(name: str, task: str) -> None:
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
