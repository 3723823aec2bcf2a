"""Models of several tasks in one folder: what packing keeps, and every way to open it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitruvian
from tests.helpers.tiny_models import SIZE_HW, pixels, tiny_config, tiny_task
from tests.helpers.tiny_multitask import HEADS, install, tiny_multitask
from vitruvian import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForPoseEstimation,
    AutoProcessor,
    CheckpointError,
    InputError,
    NewWeightsWarning,
    Sapiens2Backbone,
    Sapiens2Config,
    Sapiens2ForPoseEstimation,
    Sapiens2ImageProcessor,
    Sapiens2Model,
    WeightsError,
    auto,
    hub,
)
from vitruvian.hub import HubOptions
from vitruvian.models.sapiens2.multitask import HEAD_CLASSES, Sapiens2MultiTask, save_multitask
from vitruvian.models.sapiens2.multitask_checkpoint import (
    _Int8File,
    _kernel_axes,
    _quantize,
    local_heads,
    read_heads,
)

AUTO = {
    "pose": "AutoModelForPoseEstimation",
    "seg": "AutoModelForSemanticSegmentation",
    "normal": "AutoModelForNormalEstimation",
    "pointmap": "AutoModelForPointmapEstimation",
    "matting": "AutoModelForImageMatting",
    "albedo": "AutoModelForAlbedoEstimation",
    "people": "AutoModelForPeopleDetection",
}


@pytest.fixture(scope="module")
def model() -> Sapiens2MultiTask:
    return tiny_multitask()


@pytest.fixture(scope="module")
def packed(model: Sapiens2MultiTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    save_multitask(model, folder)
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("asked the Hub")

    monkeypatch.setattr(hub, "_download", refuse)


def near(one: torch.Tensor, other: torch.Tensor, share: float = 0.1) -> bool:
    """Whether two tensors differ by no more than rounding weights to int8 explains."""
    return bool((one - other).square().mean() < share**2 * other.square().mean().clamp_min(1e-6))


class TestRounding:
    def test_a_channel_is_off_by_half_a_step_at_most(self) -> None:
        weight = torch.randn(6, 5, 3, 3, generator=torch.Generator().manual_seed(0))
        weight *= torch.logspace(-3, 2, 6)[:, None, None, None]
        codes, steps = _quantize(weight, axis=0)
        assert codes.dtype == torch.int8
        assert (steps.dtype, steps.shape) == (torch.float16, (6, 1, 1, 1))
        assert codes.abs().amax() <= 127
        error = (codes.float() * steps.float() - weight).abs().flatten(1).amax(1)
        assert (error <= weight.abs().flatten(1).amax(1) * 0.02).all()

    def test_steps_are_better_than_those_of_the_largest_weight(self) -> None:
        weight = torch.randn(8, 400, generator=torch.Generator().manual_seed(1)) ** 3  # a few weights are large
        codes, steps = _quantize(weight, axis=0)
        error = (codes.float() * steps.float() - weight).square().sum(1)
        plain = (weight.abs().amax(1, keepdim=True) / 127).half().float()
        usual = ((weight / plain).round().clamp(-127, 127) * plain - weight).square().sum(1)
        assert (error <= usual * 1.0001).all()
        assert error.sum() < 0.999 * usual.sum()

    def test_transposed_kernels_have_their_channels_second(self) -> None:
        weight = torch.randn(4, 3, 2, 2) * torch.tensor([1e-2, 1.0, 1e2])[:, None, None]
        codes, steps = _quantize(weight, axis=1)
        assert steps.shape == (1, 3, 1, 1)
        error = ((codes.float() * steps.float() - weight) / weight.abs().amax((0, 2, 3), keepdim=True)).abs()
        assert error.max() < 0.02

    def test_zero_channels_stay_zero(self) -> None:
        codes, steps = _quantize(torch.zeros(2, 3), axis=0)
        assert not codes.any()
        assert steps.isfinite().all()

    def test_axes_follow_the_kind_of_layer(self) -> None:
        parts = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.ConvTranspose2d(2, 3, 2), "c": nn.LayerNorm(3)})
        assert _kernel_axes(parts) == {"a.weight": 0, "b.weight": 1}


class TestFiles:
    def test_what_lies_in_the_folder(self, packed: Path, model: Sapiens2MultiTask) -> None:
        names = {path.name for path in packed.iterdir()}
        heads = {f"{task}.{ending}" for task in HEADS for ending in ("json", "safetensors")}
        assert names == heads | {"config.json", "preprocessor_config.json", "encoder.safetensors"}
        held = load_file(packed / "encoder.safetensors")
        for name, value in held.items():
            wanted = torch.int8 if name in _kernel_axes(model.encoder) else torch.float16
            assert value.dtype == wanted, name
        assert not any(name.startswith("model.") for name in load_file(packed / "pose.safetensors"))

    def test_a_quarter_of_the_bytes(self, packed: Path, model: Sapiens2MultiTask) -> None:
        whole = sum(value.numel() * 4 for value in model.weights().values())
        held = sum(
            value.numel() * value.element_size()
            for path in packed.glob("*.safetensors")
            for value in load_file(path).values()
        )
        assert held < 0.31 * whole  # tiny layers have many scales

    def test_scales_of_another_shape(self, tmp_path: Path) -> None:
        save_file({"a": torch.ones(2, 3, dtype=torch.int8), "a:scale": torch.ones(2)}, tmp_path / "w.safetensors")
        with pytest.raises(CheckpointError, match="a has scales of the shape"):
            list(_Int8File(tmp_path / "w.safetensors").tensors())

    def test_reader_gives_names_shapes_and_values(self, packed: Path, model: Sapiens2MultiTask) -> None:
        reader = _Int8File(packed / "encoder.safetensors", prefix="x.")
        state = model.encoder.state_dict()
        assert reader.shapes == {f"x.{name}": tuple(value.shape) for name, value in state.items()}
        for name, value in reader.tensors():
            assert near(value.float(), state[name.removeprefix("x.")], 0.02), name

    def test_packing_again_replaces(self, tmp_path: Path) -> None:
        save_multitask(tiny_multitask("pose"), tmp_path)
        save_multitask(tiny_multitask("seg"), tmp_path)
        assert local_heads(tmp_path) == ("seg",)

    def test_weights_that_cannot_be_kept(self, tmp_path: Path) -> None:
        broken = tiny_multitask("pose")
        save_multitask(broken, tmp_path)
        with torch.no_grad():
            broken.encoder.norm.weight[0] = torch.inf
        with pytest.raises(InputError, match=r"norm\.weight: expected finite"):
            save_multitask(broken, tmp_path)
        assert not (tmp_path / "config.json").exists()  # not taken for a whole one
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="got a file"):
            save_multitask(tiny_multitask("pose"), tmp_path / "file")

    def test_processor(self, packed: Path, tmp_path: Path) -> None:
        for opened in (AutoImageProcessor.from_pretrained(packed), AutoProcessor.from_pretrained(packed)):
            assert type(opened) is Sapiens2ImageProcessor
            assert opened.size_hw == SIZE_HW
            assert opened.image_mean == [0.485, 0.456, 0.406]
            assert not opened.do_pad
        save_multitask(tiny_multitask("seg"), tmp_path, processor=Sapiens2ImageProcessor(do_pad=True))
        assert AutoImageProcessor.from_pretrained(tmp_path).do_pad


class TestOpening:
    @pytest.mark.parametrize("task", HEADS)
    def test_every_task_by_its_class_and_by_auto(self, task: str, packed: Path, model: Sapiens2MultiTask) -> None:
        wanted = model.task_model(task)
        with torch.inference_mode():
            want = wanted(pixels(), return_dict=True)
            for cls in (HEAD_CLASSES[task], getattr(auto, AUTO[task])):
                opened = cls.from_pretrained(packed)
                assert type(opened) is HEAD_CLASSES[task]
                assert opened.dtype == torch.float32
                assert not opened.training
                assert opened.config.num_labels == wanted.config.num_labels
                got = opened(pixels(), return_dict=True)
                for name, value in want.items():
                    if isinstance(value, torch.Tensor):
                        assert near(got[name], value), name

    @pytest.mark.parametrize(("cls", "opener"), [(Sapiens2Model, AutoModel), (Sapiens2Backbone, None)])
    def test_the_encoder_alone(self, cls: Any, opener: Any, packed: Path, model: Sapiens2MultiTask) -> None:
        for opened in (cls.from_pretrained(packed), *([] if opener is None else [opener.from_pretrained(packed)])):
            assert type(opened) is cls
            assert near(opened.norm.weight, model.encoder.norm.weight)
        with torch.inference_mode():
            got, want = (
                one(pixels(), return_dict=True) for one in (Sapiens2Model.from_pretrained(packed), model.encoder)
            )
        assert near(got.last_hidden_state, want.last_hidden_state)

    def test_all_at_once(self, packed: Path, model: Sapiens2MultiTask) -> None:
        opened = Sapiens2MultiTask.from_pretrained(packed)
        assert list(opened.tasks) == list(HEADS)
        assert all(opened.task_model(task).model is opened.encoder for task in HEADS)
        assert not opened.training
        single = Sapiens2ForPoseEstimation.from_pretrained(packed)
        with torch.inference_mode():
            together: Any = opened(pixels())
            assert torch.equal(together["pose"].heatmaps, single(pixels()).heatmaps)
            assert near(together["seg"].logits, model(pixels(), tasks=["seg"])["seg"].logits)
        some = Sapiens2MultiTask.from_pretrained(packed, tasks=["people"], dtype="bfloat16")
        assert list(some.tasks) == ["people"]
        assert {value.dtype for value in some.weights().values()} == {torch.bfloat16}

    def test_labels_of_its_own(self, tmp_path: Path) -> None:
        own = tiny_config(head_config=HEADS["pose"], id2label={0: "nose", 1: "tail"}, flip_pairs=[])
        save_multitask(Sapiens2MultiTask(tiny_config(), {"pose": own}), tmp_path)
        assert Sapiens2ForPoseEstimation.from_pretrained(tmp_path).config.id2label == {0: "nose", 1: "tail"}
        opened = Sapiens2MultiTask.from_pretrained(tmp_path).task_model("pose")
        assert opened.config.id2label == {0: "nose", 1: "tail"}

    def test_dtype_and_a_new_head(self, packed: Path) -> None:
        assert Sapiens2ForPoseEstimation.from_pretrained(packed, dtype=torch.float16).dtype == torch.float16
        with pytest.warns(NewWeightsWarning, match="decode_head"):
            fresh = Sapiens2ForPoseEstimation.from_pretrained(packed, num_labels=3)
        assert fresh(pixels(1)).heatmaps.shape[1] == 3

    def test_what_was_opened_saves_as_an_ordinary_checkpoint(self, packed: Path, tmp_path: Path) -> None:
        opened = Sapiens2Model.from_pretrained(packed)
        opened.save_pretrained(tmp_path)
        assert "packed" not in json.loads((tmp_path / "config.json").read_text())
        again = AutoModel.from_pretrained(tmp_path)
        assert all(torch.equal(a, b) for a, b in zip(opened.parameters(), again.parameters(), strict=True))
        assert "packed" not in AutoConfig.from_pretrained(packed).to_dict()

    def test_tasks_of_a_folder(self, packed: Path, tmp_path: Path) -> None:
        assert local_heads(packed) == tuple(HEADS)
        tiny_task("pose").save_pretrained(tmp_path)
        assert local_heads(tmp_path) == ()
        assert read_heads(tmp_path / "model.safetensors", HubOptions()) is None
        assert local_heads("facebook/sapiens2-pose-0.4b") == ()  # and asks nobody


class TestBuiltin:
    def test_by_name(self, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hub, "BUILTIN_FOLDER", packed)
        assert Sapiens2ForPoseEstimation.from_pretrained("builtin").config.name_or_path == "builtin"
        assert type(AutoModel.from_pretrained("builtin")) is Sapiens2Model
        assert AutoImageProcessor.from_pretrained("builtin").size_hw == SIZE_HW
        assert isinstance(AutoConfig.from_pretrained("builtin"), Sapiens2Config)
        assert list(Sapiens2MultiTask.from_pretrained("builtin").tasks) == list(HEADS)

    def test_a_folder_of_that_name_is_another_thing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        tiny_task("pose").save_pretrained("builtin")
        for name in ("./builtin", Path("builtin")):
            found = AutoModelForPoseEstimation.from_pretrained(name)
            assert found.num_parameters() == tiny_task("pose").num_parameters()

    def test_a_task_that_it_lacks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install(tmp_path, monkeypatch, "pose", "seg")
        with pytest.raises(CheckpointError, match=r"builtin: expected a model for normal, got one for pose, seg"):
            vitruvian.AutoModelForNormalEstimation.from_pretrained("builtin")
        with pytest.raises(CheckpointError, match="expected a model for normal"):
            Sapiens2MultiTask.from_pretrained("builtin", tasks=["normal"])


class TestDamage:
    @pytest.fixture
    def copy(self, packed: Path, tmp_path: Path) -> Path:
        for path in packed.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        return tmp_path

    def test_a_file_is_gone(self, copy: Path) -> None:
        (copy / "pose.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"expected a file pose\.safetensors"):
            Sapiens2ForPoseEstimation.from_pretrained(copy)

    def test_a_file_is_cut_off(self, copy: Path) -> None:
        (copy / "encoder.safetensors").write_bytes((copy / "encoder.safetensors").read_bytes()[:100])
        with pytest.raises(CheckpointError, match="readable weight file"):
            Sapiens2Model.from_pretrained(copy)

    def test_a_weight_is_gone(self, copy: Path) -> None:
        held = load_file(copy / "pose.safetensors")
        held.pop("decode_head.predictor.bias")
        save_file(held, copy / "pose.safetensors")
        with pytest.raises(WeightsError, match=r"decode_head\.predictor\.bias"):
            Sapiens2ForPoseEstimation.from_pretrained(copy, strict=True)
        with pytest.raises(WeightsError, match=r"tasks\.pose\.decode_head\.predictor\.bias"):
            Sapiens2MultiTask.from_pretrained(copy)

    def test_another_version(self, copy: Path) -> None:
        table = json.loads((copy / "config.json").read_text())
        table["packed"]["version"] = 2
        (copy / "config.json").write_text(json.dumps(table))
        with pytest.raises(CheckpointError, match="multi-task checkpoint of version 1"):
            Sapiens2Model.from_pretrained(copy)

    def test_a_checkpoint_of_one_task(self, tmp_path: Path) -> None:
        tiny_task("pose").save_pretrained(tmp_path)
        with pytest.raises(CheckpointError, match="expected a model of several tasks"):
            Sapiens2MultiTask.from_pretrained(tmp_path)
