"""Models from configurations, and checkpoints from models."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.hub_server import HubClient, HubServer
from tests.unit.training.tiny_runs import ENCODER, HEADS, SIZE_HW, TASKS, model_table
from vitruvian import AutoImageProcessor, AutoModelForPoseEstimation, Sapiens2Config, Sapiens2Model, Sapiens2MultiTask
from vitruvian.errors import CheckpointError, ConfigError
from vitruvian.training.config import ModelConfig
from vitruvian.training.task_models import _head_fields, build_model, head_strides, open_models, run_tasks, save_models


def part(*tasks: str, **changes: Any) -> ModelConfig:
    return ModelConfig(**model_table(*tasks, **changes))


def test_every_task_over_one_encoder():
    model = build_model(part(*TASKS))
    pixels = torch.randn(2, 3, *SIZE_HW)
    outputs = run_tasks(model, pixels, tasks=TASKS)
    assert list(outputs) == list(TASKS)
    assert outputs["pose"].heatmaps.shape == (2, 308, 16, 12)
    assert outputs["parts"].logits.shape == (2, 29, *SIZE_HW)
    assert outputs["pointmap"].scales.shape == (2, 1)
    assert outputs["people"].logits.shape == (2, 1, 8, 6)
    assert model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    full = dict.fromkeys(("parts", "normals", "pointmap", "matte", "albedo"), 1)
    assert head_strides(model) == {"pose": 4, "people": 8} | full
    fine = build_model(part("people", heads={"people": {"upsample_out_channels": [8, 8]}}))
    assert head_strides(fine) == {"people": 4}
    large = build_model(part("parts", heads={"parts": {"upsample_out_channels": [8] * 5}}))
    with pytest.raises(ConfigError, match="expected at most 4 blocks"):
        head_strides(large)


def test_heads_are_the_published_ones_with_changes():
    plain = _head_fields(part("normals", heads={}), "normals", None)
    assert plain["upsample_out_channels"] == [768, 512, 256, 128]
    changed = _head_fields(part("normals"), "normals", None)
    assert changed["upsample_out_channels"] == HEADS["normals"]["upsample_out_channels"]
    model = build_model(part("normals"))
    head = model.task_model("normal").config.head_config
    assert head is not None
    assert head.upsample_kernel_sizes == [3] * 4  # as the published head's
    assert head.use_pixel_shuffle
    with pytest.raises(ConfigError, match="the name of a field, got 'channels'"):
        build_model(part("normals", heads={"normals": {"channels": 3}}))
    with pytest.raises(ConfigError, match="Did you mean hidden_size"):
        build_model(part("normals", encoder={"hidden_sise": 3}))


def test_gradient_checkpointing_and_recipes():
    model = build_model(part("pose", gradient_checkpointing=True))
    assert model.encoder.is_gradient_checkpointing
    assert model.task_model("pose").config.use_loss_recipe
    assert not build_model(part("pose", loss_recipe=False)).task_model("pose").config.use_loss_recipe


def test_starting_from_an_encoder(tmp_path: Path):
    torch.manual_seed(3)
    fields = ENCODER | {"image_size": list(SIZE_HW)}
    encoder = Sapiens2Model(Sapiens2Config(**fields))
    encoder.save_pretrained(tmp_path)
    model = build_model(part("pose", "parts", pretrained=str(tmp_path), encoder={}))
    for name, value in encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], value)
        assert torch.equal(model.task_model("seg").model.state_dict()[name], value)


def test_starting_from_a_task(tmp_path: Path):
    first = build_model(part("pose"))
    save_models(first, tmp_path)
    again = build_model(part("pose", "parts", pretrained=str(tmp_path), encoder={}, heads={"parts": HEADS["parts"]}))
    for name, value in first.task_model("pose").state_dict().items():
        assert torch.equal(again.task_model("pose").state_dict()[name], value)
    other = build_model(part("pose", pretrained=str(tmp_path), encoder={}, heads={"pose": {"conv_out_channels": [6]}}))
    assert torch.equal(other.encoder.norm.weight, first.encoder.norm.weight)
    assert other.task_model("pose").decode_head.predictor.weight.shape[1] == 6


def test_starting_from_a_checkpoint_on_the_hub(tmp_path: Path):
    first = build_model(part("pose"))
    save_models(first, tmp_path / "checkpoint")
    server = HubServer()
    server.add("me/pose", tmp_path / "checkpoint")
    client = HubClient(server.address, tmp_path / "home")
    try:
        weights = client.run(f"""
from vitruvian.training.config import ModelConfig
from vitruvian.training.task_models import build_model
settings = ModelConfig(tasks=["pose"], pretrained="me/pose", image_size={list(SIZE_HW)})
result = {{name: float(value.double().sum()) for name, value in build_model(settings).weights().items()}}
""")
    finally:
        client.close()
        server.close()
    assert weights == {name: float(value.double().sum()) for name, value in first.weights().items()}


def test_one_task_is_saved_as_an_ordinary_checkpoint(tmp_path: Path):
    model = build_model(part("pose")).eval()
    assert save_models(model, tmp_path) == [tmp_path]
    opened = AutoModelForPoseEstimation.from_pretrained(tmp_path)
    pixels = torch.randn(1, 3, *SIZE_HW)
    assert torch.equal(opened(pixels).heatmaps, model(pixels)["pose"].heatmaps)
    assert AutoImageProcessor.from_pretrained(tmp_path).size_hw == SIZE_HW
    assert list(open_models(tmp_path)) == ["pose"]


def test_several_tasks_are_saved_apart(tmp_path: Path):
    model = build_model(part(*TASKS)).eval()
    save_models(model, tmp_path / "model", pad=True)
    opened = open_models(tmp_path)  # the folder of a run
    assert list(opened) == list(TASKS)
    pixels = torch.randn(1, 3, *SIZE_HW)
    with torch.no_grad():
        ours = run_tasks(model, pixels, tasks=TASKS)
        for task, one in opened.items():
            # Opened weights are views of the mapped file at any offset, and matrix products add in another order for
            # memory that is not aligned to 64 bytes: without copies, pointmap scales differ in the last bits.
            for parameter in one.parameters():
                parameter.data = parameter.data.clone()
            for name, value in one(pixels).items():
                assert torch.equal(value, ours[task][name]), (task, name)
    assert AutoImageProcessor.from_pretrained(tmp_path / "model" / "normals").do_pad


def test_folders_without_a_task(tmp_path: Path):
    with pytest.raises(CheckpointError, match="got neither"):
        open_models(tmp_path)
    Sapiens2Model(Sapiens2Config(**ENCODER)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="expected a Sapiens2 checkpoint of a task, got Sapiens2Model"):
        open_models(tmp_path)


def test_starting_from_all_heads_of_an_earlier_run(tmp_path: Path):
    first = build_model(part("normals", "parts"))
    save_models(first, tmp_path / "run" / "model")
    again = build_model(part("normals", "parts", "matte", pretrained=str(tmp_path / "run")))
    weights, before = again.weights(), first.weights()
    assert all(torch.equal(weights[name], value) for name, value in before.items())
    assert any(name.startswith("tasks.matting.") for name in weights)


def test_starting_from_the_builtin_model():
    stored = Sapiens2MultiTask.from_pretrained("builtin", tasks=["pose", "albedo"]).weights()
    start = ModelConfig(tasks=["pose", "albedo"], pretrained="builtin", image_size=[256, 192])
    same = build_model(start).weights()
    assert same.keys() == stored.keys()
    assert all(torch.equal(value, stored[name]) for name, value in same.items())
    small = {"albedo": {"conv_out_channels": [8]}}
    model = build_model(ModelConfig(tasks=["pose", "albedo"], pretrained="builtin", image_size=[256, 192], heads=small))
    assert model.training
    assert model.config.image_hw == (256, 192)
    changed = {name.split(".")[1] for name, value in model.weights().items() if not equal(value, stored.get(name))}
    assert changed == {"albedo"}  # another configuration, so initialized at random


def equal(first: torch.Tensor, second: torch.Tensor | None) -> bool:
    return second is not None and first.shape == second.shape and torch.equal(first, second)
