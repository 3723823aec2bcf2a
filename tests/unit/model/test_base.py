import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.families import mask2former
from tests.families.sam2 import clicks
from tests.families.sam2 import tiny as tiny_sam2
from tests.helpers.tiny_models import DECONVOLUTION, SHUFFLE, TASKS, pixels, tiny_config, tiny_task
from vitruvian import (
    CheckpointError,
    ConfigError,
    InputError,
    Mask2FormerForUniversalSegmentation,
    MissingExtraError,
    Model,
    NewWeightsWarning,
    Sam2Model,
    Sapiens2Backbone,
    Sapiens2Config,
    Sapiens2ForPoseEstimation,
    Sapiens2ForPreTraining,
    Sapiens2Model,
    VitruvianWarning,
    WeightsError,
    devices,
)
from vitruvian.config import Config, config_dataclass


@pytest.fixture(scope="module")
def pose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pose")
    tiny_task("pose").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare")
    torch.manual_seed(3)
    Sapiens2Model(tiny_config()).save_pretrained(folder)
    return folder


def assert_same(one: nn.Module, other: nn.Module) -> None:
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, tensor in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def rewrite(folder: Path, into: Path, change: Any) -> Path:
    """Copy a checkpoint, with its tensors changed."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    into.mkdir(exist_ok=True)
    save_file(tensors, into / "model.safetensors")
    (into / "config.json").write_bytes((folder / "config.json").read_bytes())
    return into


class TestOpening:
    @pytest.mark.parametrize("task", TASKS)
    def test_folder(self, tmp_path: Path, task: str) -> None:
        model = tiny_task(task)
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path)
        assert_same(model, again)
        assert not again.training
        assert again.config == model.config
        assert again.config.name_or_path == str(tmp_path)
        images = pixels()
        with torch.no_grad():
            assert torch.equal(again(images)[0], model(images)[0])

    def test_single_file(self, pose: Path, tmp_path: Path) -> None:
        file = pose / "model.safetensors"
        assert_same(tiny_task(), Sapiens2ForPoseEstimation.from_pretrained(file))
        alone = tmp_path / "weights.safetensors"
        alone.write_bytes(file.read_bytes())
        with pytest.raises(
            ConfigError, match=r"expected config\.json beside the weight file, found none\. Put it there"
        ):
            Sapiens2ForPoseEstimation.from_pretrained(alone)
        assert_same(tiny_task(), Sapiens2ForPoseEstimation.from_pretrained(alone, config=pose))
        assert_same(
            tiny_task(), Sapiens2ForPoseEstimation.from_pretrained(str(alone), config=str(pose / "config.json"))
        )
        assert_same(tiny_task(), Sapiens2ForPoseEstimation.from_pretrained(alone, config=tiny_task().config))

    def test_torch_file(self, tmp_path: Path) -> None:
        model = tiny_task()
        torch.save({"state_dict": model.state_dict()}, tmp_path / "last.pth")
        model.config.save_pretrained(tmp_path)
        assert_same(model, Sapiens2ForPoseEstimation.from_pretrained(tmp_path / "last.pth"))

    def test_shards(self, tmp_path: Path) -> None:
        model = tiny_task()
        assert len(model.save_pretrained(tmp_path, max_shard_size="50kB")) > 4
        assert_same(model, Sapiens2ForPoseEstimation.from_pretrained(tmp_path))

    def test_names_of_the_original_release(self, pose: Path, tmp_path: Path) -> None:
        def rename(tensors: dict[str, torch.Tensor]) -> None:
            for layer in range(4):
                old, new = f"model.model.layer.{layer}.mlp.", f"backbone.blocks.{layer}.ffn.w12."
                for kind in ("weight", "bias"):
                    halves = [tensors.pop(f"{old}{part}.{kind}") for part in ("gate_proj", "up_proj")]
                    tensors[new + kind] = torch.cat(halves)
                    down = tensors.pop(f"{old}down_proj.{kind}")
                    tensors[f"backbone.blocks.{layer}.ffn.w3.{kind}"] = down

        folder = rewrite(pose, tmp_path, rename)
        assert_same(tiny_task(), Sapiens2ForPoseEstimation.from_pretrained(folder))

    def test_no_such_place(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no such file or folder"):
            Sapiens2Model.from_pretrained(tmp_path / "none")
        with pytest.raises(CheckpointError, match="no such file or folder"):
            Sapiens2Model.from_pretrained(Path("owner/name"))  # a path is never a Hub name
        with pytest.raises(CheckpointError, match=r"expected a file config\.json"):
            Sapiens2Model.from_pretrained(tmp_path)
        tiny_config().save_pretrained(tmp_path)
        with pytest.raises(CheckpointError, match=r"expected weights .* found none"):
            Sapiens2Model.from_pretrained(tmp_path)

    def test_configuration_of_another_family(self, pose: Path, tmp_path: Path) -> None:
        values = json.loads((pose / "config.json").read_text()) | {"model_type": "swin"}
        (tmp_path / "config.json").write_text(json.dumps(values))
        with pytest.raises(ConfigError, match="expected model_type 'sapiens2', got 'swin'"):
            Sapiens2Model.from_pretrained(tmp_path)

        @config_dataclass
        class Other(Config):
            model_type = "other"

        with pytest.raises(ConfigError, match="Sapiens2Model: expected a Sapiens2Config, got Other"):
            Sapiens2Model.from_pretrained(pose, config=Other())
        with pytest.raises(ConfigError, match="Sapiens2Model: expected a Sapiens2Config, got Other"):
            Sapiens2Model(Other())  # type: ignore[arg-type]

    def test_given_configuration_is_not_changed(self, pose: Path) -> None:
        config = Sapiens2Config.from_pretrained(pose)
        before = copy.deepcopy(config.__dict__)
        model = Sapiens2ForPoseEstimation.from_pretrained(pose, config=config, dtype="bfloat16")
        assert config.__dict__ == before
        assert model.config is not config

    def test_overrides(self, pose: Path) -> None:
        model = Sapiens2ForPoseEstimation.from_pretrained(pose, drop_path_rate=0.5, output_hidden_states=True)
        assert model.config.drop_path_rate == 0.5
        assert model(pixels(1)).hidden_states is not None
        with pytest.raises(ConfigError, match=r"the name of a field, got 'num_lables'\. Did you mean num_labels"):
            Sapiens2ForPoseEstimation.from_pretrained(pose, num_lables=3)
        config = Sapiens2Config.from_pretrained(pose, attn_implementation="eager")
        model = Sapiens2ForPoseEstimation.from_pretrained(pose, config=config, drop_path_rate=0.5)
        assert model.config.attn_implementation == "eager"

    def test_subfolder(self, pose: Path) -> None:
        assert_same(tiny_task(), Sapiens2ForPoseEstimation.from_pretrained(pose.parent, subfolder=pose.name))


class TestWeightsInUse:
    def test_parameters_train_and_the_file_stays(self, pose: Path) -> None:
        before = (pose / "model.safetensors").read_bytes()
        model = Sapiens2ForPoseEstimation.from_pretrained(pose)
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())
        model(pixels()).heatmaps.square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        assert (pose / "model.safetensors").read_bytes() == before
        with pytest.raises(AssertionError):
            assert_same(model, tiny_task())

    def test_frozen_parameters_stay_frozen(self, tmp_path: Path) -> None:
        class Frozen(Sapiens2Model):
            def __init__(self, config: Sapiens2Config) -> None:
                super().__init__(config)
                self.embeddings.requires_grad_(False)

        Frozen(tiny_config()).save_pretrained(tmp_path)
        model = Frozen.from_pretrained(tmp_path)
        assert not any(parameter.requires_grad for parameter in model.embeddings.parameters())
        assert all(parameter.requires_grad for parameter in model.norm.parameters())
        rewrite(tmp_path, tmp_path, lambda tensors: tensors.pop("embeddings.cls_token"))
        with pytest.warns(NewWeightsWarning):
            model = Frozen.from_pretrained(tmp_path, ignore_mismatched_sizes=True)
        assert not any(parameter.requires_grad for parameter in model.embeddings.parameters())

    def test_buffers_that_are_never_saved_are_computed(self, tmp_path: Path) -> None:
        model = Sized(tiny_config())
        model.save_pretrained(tmp_path)
        for made in (
            Sized.from_pretrained(tmp_path),
            Sized.from_config(tiny_config()),
            Sized.from_pretrained(tmp_path, device_map={"": "cpu"}),
        ):
            assert torch.equal(made.table.steps, torch.arange(4.0))
            assert made.table.count.item() == 5
            assert made.table.absent is None
        assert "table.steps" not in load_file(tmp_path / "model.safetensors")

    def test_saved_buffers_that_a_file_lacks_start_fresh(
        self, tmp_path: Path, recwarn: pytest.WarningsRecorder
    ) -> None:
        Sized(tiny_config()).save_pretrained(tmp_path)
        rewrite(tmp_path, tmp_path, lambda tensors: tensors.pop("table.count"))
        with pytest.raises(WeightsError, match=r"1 missing: table\.count"):
            Sized.from_pretrained(tmp_path, strict=True)
        warnings.simplefilter("ignore", NewWeightsWarning)
        assert Sized.from_pretrained(tmp_path, ignore_mismatched_sizes=True).table.count.item() == 5


class Table(nn.Module):
    """A part with buffers of every kind."""

    steps: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("steps", torch.arange(4.0), persistent=False)
        self.register_buffer("absent", None, persistent=False)
        self.register_buffer("count", torch.tensor(5))

    def reset_buffers(self) -> None:
        self.steps = torch.arange(4.0)


class Sized(Model):
    """A model of its own."""

    config_class = Sapiens2Config

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__(config)
        self.table = Table()
        self.post_init()

    def init_module(self, module: nn.Module) -> None:
        if isinstance(module, Table):
            nn.init.ones_(module.weight)
            module.count.fill_(5)


class TestTypes:
    @pytest.mark.parametrize("requested", [torch.bfloat16, "bfloat16", "torch.bfloat16"])
    @pytest.mark.parametrize("keyword", ["dtype", "torch_dtype"])
    def test_requested(self, pose: Path, requested: Any, keyword: str) -> None:
        model = Sapiens2ForPoseEstimation.from_pretrained(pose, **{keyword: requested})
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert (model.dtype, model.config.dtype) == (torch.bfloat16, torch.bfloat16)
        want = tiny_task().to(torch.bfloat16)
        assert_same(want, model)

    @pytest.mark.parametrize("requested", [None, "auto"])
    def test_left_to_the_checkpoint(self, tmp_path: Path, requested: str | None) -> None:
        tiny_task().to(torch.float16).save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float16"
        assert Sapiens2ForPoseEstimation.from_pretrained(tmp_path, dtype=requested).dtype == torch.float16
        values = json.loads((tmp_path / "config.json").read_text())
        del values["dtype"]
        (tmp_path / "config.json").write_text(json.dumps(values))
        assert Sapiens2ForPoseEstimation.from_pretrained(tmp_path, dtype=requested).dtype == torch.float16
        (tmp_path / "config.json").write_text(json.dumps(values | {"torch_dtype": "bfloat16"}))
        assert Sapiens2ForPoseEstimation.from_pretrained(tmp_path, dtype=requested).dtype == torch.bfloat16

    def test_whole_numbers_keep_their_type(self, tmp_path: Path) -> None:
        Sized(tiny_config()).save_pretrained(tmp_path)
        model = Sized.from_pretrained(tmp_path, dtype="float16")
        assert (model.table.weight.dtype, model.table.count.dtype) == (torch.float16, torch.int64)

    @pytest.mark.parametrize("requested", ["float31", "int8", torch.int8, "nn", ""])
    def test_what_is_no_floating_point_type(self, pose: Path, requested: Any) -> None:
        with pytest.raises(InputError, match="dtype: expected a floating-point type such as 'float32' or 'bfloat16'"):
            Sapiens2ForPoseEstimation.from_pretrained(pose, dtype=requested)


class TestDevices:
    @pytest.mark.parametrize(
        "where",
        [
            {"device": "cpu"},
            {"device": torch.device("cpu")},
            {"device_map": "auto"},
            {"device_map": "cpu"},
            {"device_map": torch.device("cpu")},
            {"device_map": {"": "cpu"}},
            {"device_map": {"model": "cpu", "decode_head": "cpu"}},
            {
                "device_map": {
                    "model.embeddings": "cpu",
                    "model.model": "cpu",
                    "model.norm": "cpu",
                    "decode_head": "cpu",
                }
            },
            {"device_map": {"": "cpu", "decode_head.predictor.weight": "cpu"}},
        ],
        ids=str,
    )
    def test_places(self, pose: Path, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        model = Sapiens2ForPoseEstimation.from_pretrained(pose, **where)
        assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
        assert_same(tiny_task(), model)
        assert model.device == torch.device("cpu")

    def test_parts_go_where_the_table_says(self, pose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dispatched: list[dict[str, Any]] = []
        accelerate = pytest.importorskip("accelerate")
        monkeypatch.setattr(accelerate, "dispatch_model", lambda model, device_map, **_: dispatched.append(device_map))
        table = {"": "cpu", "decode_head": "meta", "decode_head.predictor": "cpu"}
        model = Sapiens2ForPoseEstimation.from_pretrained(pose, device_map=table)
        meta = {name for name, tensor in model.state_dict().items() if tensor.is_meta}
        assert meta == {
            name for name in model.state_dict() if name.startswith("decode_head.") and "predictor" not in name
        }
        assert dispatched == [table]

    def test_fresh_heads_go_where_the_table_says(self, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        accelerate = pytest.importorskip("accelerate")
        monkeypatch.setattr(accelerate, "dispatch_model", lambda model, **_: None)
        with pytest.warns(NewWeightsWarning):
            model = Sapiens2ForPoseEstimation.from_pretrained(
                bare, head_config=DECONVOLUTION, device_map={"model": "cpu", "decode_head": "meta"}
            )
        assert all(tensor.is_meta for tensor in model.decode_head.parameters())

    def test_parts_that_wait_elsewhere(self) -> None:
        model = tiny_task("pose")
        model.model.embeddings.to("meta")
        assert model.device == torch.device("cpu")  # where pictures go
        with pytest.raises(InputError, match="optimize: expected a model on one device, got one on cpu, meta"):
            model.optimize()
        assert model.to("meta").device == torch.device("meta")

    def test_residents_stay_on_the_first_accelerator(self) -> None:
        cpu, first, second = torch.device("cpu"), torch.device("cuda", 1), torch.device("cuda", 0)
        table = {"encoder": first, "encoder.late": second, "decoder.a": cpu, "decoder.b": second, "decoders": cpu}
        got = devices.with_resident_modules(table, ("decoder",))
        assert got == {"encoder": first, "encoder.late": second, "decoders": cpu, "decoder": first}
        assert devices.with_resident_modules(table, ()) == table
        for alone in ({"": cpu}, {"": first}, {"": cpu, "decoder": cpu}):
            assert devices.with_resident_modules(alone, ("decoder",)) == alone

    def test_several_devices_need_accelerate(self, pose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "accelerate", None)
        with pytest.raises(MissingExtraError, match=r"needs the package accelerate.*vitruvian\[train\]"):
            Sapiens2ForPoseEstimation.from_pretrained(pose, device_map={"": "cpu", "decode_head": "meta"})

    @pytest.mark.parametrize("where", ["cuda", "cuda:1", 0, 1, torch.device("cuda")])
    @pytest.mark.parametrize("keyword", ["device", "device_map"])
    def test_no_cuda(self, pose: Path, where: Any, keyword: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(InputError, match=r"CUDA is not available on this machine, got .* Use cpu"):
            Sapiens2ForPoseEstimation.from_pretrained(pose, **{keyword: where})

    def test_too_few_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert devices.checked_device(1) == torch.device("cuda:1")
        assert devices.checked_device("cuda") == torch.device("cuda")
        with pytest.raises(InputError, match="only cuda:0 to cuda:1 are available, got 'cuda:2'"):
            devices.checked_device("cuda:2")

    def test_no_metal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        with pytest.raises(InputError, match="Metal is not available on this machine"):
            devices.checked_device("mps")

    @pytest.mark.parametrize("where", ["gpu", "balanced", 1.5, [0]])
    def test_what_is_no_device(self, pose: Path, where: Any) -> None:
        with pytest.raises(InputError, match="device: expected a name such as 'cuda', 'mps' or 'cpu', got"):
            Sapiens2ForPoseEstimation.from_pretrained(pose, device_map=where)

    def test_impossible_tables(self, pose: Path) -> None:
        with pytest.raises(InputError, match=r"device_map: no entry covers decode_head\.\S+\. Add one, or an entry ''"):
            Sapiens2ForPoseEstimation.from_pretrained(pose, device_map={"model": "cpu"})
        with pytest.raises(
            InputError,
            match=r"device_map: expected the name of a part of the model, got 'decode_haed'\. Did you mean decode_head",
        ):
            Sapiens2ForPoseEstimation.from_pretrained(pose, device_map={"": "cpu", "decode_haed": "cpu"})
        with pytest.raises(InputError, match="device and device_map: expected one of them, got both"):
            Sapiens2ForPoseEstimation.from_pretrained(pose, device="cpu", device_map="auto")

    def test_automatic_choice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = tiny_task()
        need = model.num_parameters() * 4
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert devices.choose_devices(model, None, "auto", torch.float32) == {"": torch.device("mps")}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (need * 2, need * 2))
        assert devices.choose_devices(model, None, "auto", torch.float32) == {"": torch.device("cuda", 3)}
        accelerate = pytest.importorskip("accelerate")
        requested: list[Any] = []

        def infer(
            model: nn.Module, max_memory: Any, no_split_module_classes: list[str], dtype: torch.dtype
        ) -> dict[str, Any]:
            requested.append((max_memory, no_split_module_classes, dtype))
            return {"model": 0, "decode_head": "cpu"}

        monkeypatch.setattr(accelerate, "infer_auto_device_map", infer)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (need // 2, need * 2))
        table = devices.choose_devices(model, None, "auto", torch.float32, no_split_modules=("Layer",))
        assert table == {"model": torch.device("cuda:0"), "decode_head": torch.device("cpu")}
        devices.choose_devices(model, None, "auto", torch.float32, max_memory={0: "1GB"})
        assert requested == [(None, ["Layer"], torch.float32), ({0: "1GB"}, [], torch.float32)]
        monkeypatch.setattr(accelerate, "infer_auto_device_map", lambda *_, **__: {"": "disk"})
        with pytest.raises(InputError, match="is too large"):
            devices.choose_devices(model, None, "auto", torch.float32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnCuda:
    @pytest.mark.parametrize(
        "where", [{"device": "cuda"}, {"device": 0}, {"device_map": "auto"}, {"device_map": {"": 0}}], ids=str
    )
    def test_whole_model(self, pose: Path, where: dict[str, Any]) -> None:
        model = Sapiens2ForPoseEstimation.from_pretrained(pose, **where)
        assert {tensor.device.type for tensor in model.state_dict().values()} == {"cuda"}
        found = model(pixels().cuda()).heatmaps.cpu()
        torch.testing.assert_close(found, tiny_task()(pixels()).heatmaps, atol=1e-3, rtol=1e-3)

    @pytest.mark.parametrize("table", [{"model": 0, "decode_head": "cpu"}, {"": "cuda:0", "model.embeddings": "cpu"}])
    def test_spread_over_devices(self, pose: Path, table: dict[str, Any]) -> None:
        pytest.importorskip("accelerate")
        model = Sapiens2ForPoseEstimation.from_pretrained(pose, device_map=table)
        found = model(pixels().cuda()).heatmaps.cpu()
        torch.testing.assert_close(found, tiny_task()(pixels()).heatmaps, atol=1e-3, rtol=1e-3)

    def test_small_parts_stay_together(self, tmp_path: Path) -> None:
        pytest.importorskip("accelerate")
        torch.manual_seed(0)
        whole = Sam2Model(tiny_sam2()).eval()
        whole.save_pretrained(tmp_path)
        table = {"": 0, "mask_decoder.transformer": "cpu", "prompt_encoder": "cpu", "vision_encoder.backbone": "cpu"}
        model = Sam2Model.from_pretrained(tmp_path, device_map=table)
        given = clicks(2, torch.Generator().manual_seed(1))
        found = model(**{name: value.cuda() for name, value in given.items()})
        torch.testing.assert_close(found.pred_masks.cpu(), whole(**given).pred_masks, atol=1e-3, rtol=1e-3)
        assert {value.device.type for value in model.mask_decoder.parameters()} == {"cuda"}
        assert all(value.is_meta for value in model.vision_encoder.backbone.parameters())

    def test_fresh_head_and_fresh_model(self, bare: Path, tmp_path: Path) -> None:
        with pytest.warns(NewWeightsWarning):
            model = Sapiens2ForPoseEstimation.from_pretrained(bare, head_config=DECONVOLUTION, device="cuda")
        assert {tensor.device.type for tensor in model.state_dict().values()} == {"cuda"}
        assert Sized.from_config(tiny_config(), device="cuda").table.steps.is_cuda
        model.save_pretrained(tmp_path)
        assert_same(model.cpu(), Sapiens2ForPoseEstimation.from_pretrained(tmp_path))


class TestOtherHeads:
    @pytest.mark.parametrize("task", TASKS)
    def test_bare_model_and_backbone_open_a_task_checkpoint(self, tmp_path: Path, task: str) -> None:
        model = tiny_task(task)
        model.save_pretrained(tmp_path)
        for cls in (Sapiens2Model, Sapiens2Backbone):
            assert_same(model.model, cls.from_pretrained(tmp_path))

    def test_bare_model_and_backbone_open_each_other(self, bare: Path, tmp_path: Path) -> None:
        backbone = Sapiens2Backbone.from_pretrained(bare, out_features=["stem", "stage2"])
        assert [tuple(m.shape) for m in backbone(pixels(1)).feature_maps] == [(1, 32, 3, 2)] * 2
        backbone.save_pretrained(tmp_path)
        assert_same(backbone, Sapiens2Model.from_pretrained(tmp_path))
        assert Sapiens2Backbone.from_pretrained(tmp_path).out_features == ["stem", "stage2"]
        assert Sapiens2Backbone.from_pretrained(tmp_path, out_indices=[4]).out_features == ["stage4"]

    @pytest.mark.parametrize("task", TASKS)
    def test_task_opens_a_bare_checkpoint_and_says_so(self, bare: Path, task: str) -> None:
        cls, labels, head = TASKS[task]
        with pytest.warns(
            NewWeightsWarning, match=rf"{cls.__name__}: \d+ weights are not in .* newly initialized: decode_head"
        ) as caught:
            model = cls.from_pretrained(bare, num_labels=labels, head_config=head)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert_same(Sapiens2Model.from_pretrained(bare), model.model)
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
        assert not any(tensor.is_meta for tensor in model.state_dict().values())
        assert model.decode_head.predictor.weight.std() > 0
        assert torch.isfinite(model(pixels(1))[0]).all()

    def test_fresh_heads_follow_the_seed(self, bare: Path) -> None:
        made = []
        for _ in range(2):
            torch.manual_seed(5)
            with pytest.warns(NewWeightsWarning):
                made.append(Sapiens2ForPoseEstimation.from_pretrained(bare, head_config=DECONVOLUTION))
        assert_same(*made)

    def test_fresh_heads_start_with_the_spread_of_the_reference(self, bare: Path) -> None:
        """Kaiming over the outgoing side: √(2 / outputs) for 1×1 convolutions."""
        with pytest.warns(NewWeightsWarning):
            opened = Sapiens2ForPoseEstimation.from_pretrained(bare, head_config=DECONVOLUTION)
        for model in (tiny_task(), opened):
            for block in model.decode_head.conv_layers:
                weight = block.convolution.weight
                assert weight.std().item() == pytest.approx((2 / weight.shape[0]) ** 0.5, rel=0.2)

    def test_task_without_a_head_configuration(self, bare: Path) -> None:
        with pytest.raises(ConfigError, match=r"Sapiens2Config\.head_config: expected a Sapiens2HeadConfig"):
            Sapiens2ForPoseEstimation.from_pretrained(bare)

    @pytest.mark.parametrize(
        "options",
        [
            {"num_labels": 7},
            {"num_labels": 7, "ignore_mismatched_sizes": True},
            {"id2label": {i: f"k{i}" for i in range(7)}},
        ],
        ids=str,
    )
    def test_another_number_of_labels_starts_a_new_predictor(self, pose: Path, options: dict[str, Any]) -> None:
        with pytest.warns(
            NewWeightsWarning, match=r"2 weights .*: decode_head\.predictor\.bias, decode_head\.predictor\.weight"
        ):
            model = Sapiens2ForPoseEstimation.from_pretrained(pose, **options)
        assert model(pixels(1)).heatmaps.shape[1] == model.num_labels == model.config.num_labels == 7
        assert len(model.config.label2id or {}) == 7
        old, new = tiny_task().state_dict(), model.state_dict()
        assert all(torch.equal(old[name], new[name]) for name in old if "predictor" not in name)
        if "id2label" in options:
            assert model.config.label2id == {f"k{i}": i for i in range(7)}

    def test_the_same_number_of_labels_changes_nothing(self, pose: Path) -> None:
        names = {i: f"k{i}" for i in range(5)}
        for options in ({"num_labels": 5}, {"id2label": names}, {"ignore_mismatched_sizes": True}):
            model = Sapiens2ForPoseEstimation.from_pretrained(pose, **options)  # type: ignore[arg-type]
            assert_same(tiny_task(), model)
        assert Sapiens2ForPoseEstimation.from_pretrained(pose, id2label=names).config.id2label == names

    def test_a_configuration_that_does_not_fit(self, pose: Path) -> None:
        config = Sapiens2Config.from_pretrained(pose, num_labels=7)
        with pytest.raises(WeightsError, match=r"2 of another shape: .*\nPass ignore_mismatched_sizes=True") as caught:
            Sapiens2ForPoseEstimation.from_pretrained(pose, config=config)
        assert "decode_head.predictor.weight [5, 12, 1, 1] in the file, [7, 12, 1, 1] in the model" in str(caught.value)
        with pytest.warns(NewWeightsWarning):
            Sapiens2ForPoseEstimation.from_pretrained(pose, config=config, ignore_mismatched_sizes=True)

    def test_another_kind_of_head(self, pose: Path) -> None:
        with pytest.raises(WeightsError, match="unexpected"):
            TASKS["normal"][0].from_pretrained(pose, head_config=SHUFFLE)
        with pytest.warns(NewWeightsWarning):
            model = TASKS["normal"][0].from_pretrained(pose, head_config=SHUFFLE, num_labels=3)
        assert_same(tiny_task().model, model.model)

    def test_pretraining_opens_a_bare_checkpoint(self, bare: Path) -> None:
        with pytest.warns(NewWeightsWarning) as caught:
            model = Sapiens2ForPreTraining.from_pretrained(bare, use_mask_token=True)
        assert "mask_token" not in str(caught[0].message)
        assert torch.equal(model.model.embeddings.mask_token, torch.zeros(1, 1, 32))
        assert_same(Sapiens2Model.from_pretrained(bare, use_mask_token=True), model.model)

    def test_mask_token_that_the_model_has_no_use_for(self, tmp_path: Path) -> None:
        Sapiens2Model(tiny_config(use_mask_token=True)).save_pretrained(tmp_path)
        with pytest.raises(WeightsError, match=r"1 unexpected: embeddings\.mask_token"):
            Sapiens2Model.from_pretrained(tmp_path, use_mask_token=False, strict=True)


class TestKeywordsOfTransformers:
    def test_loading_info(self, pose: Path, bare: Path) -> None:
        model, info = Sapiens2ForPoseEstimation.from_pretrained(pose, output_loading_info=True)  # type: ignore[misc]
        assert type(model) is Sapiens2ForPoseEstimation
        assert info == {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}
        with pytest.warns(NewWeightsWarning):
            _, info = Sapiens2ForPoseEstimation.from_pretrained(  # type: ignore[misc]
                bare, head_config=DECONVOLUTION, output_loading_info=True
            )
        assert {name.split(".")[0] for name in info["missing_keys"]} == {"decode_head"}

    def test_weights_in_memory(self, pose: Path) -> None:
        model = tiny_task()
        again = Sapiens2ForPoseEstimation.from_pretrained(None, config=model.config, state_dict=model.state_dict())
        assert_same(model, again)
        moved = {name: value + 1 for name, value in model.state_dict().items()}
        other = Sapiens2ForPoseEstimation.from_pretrained(pose, state_dict=moved)
        assert torch.equal(other.model.norm.weight, model.model.norm.weight + 1)
        with pytest.raises(InputError, match="a config and a state_dict"):
            Sapiens2ForPoseEstimation.from_pretrained(None)

    def test_key_mapping(self, pose: Path, tmp_path: Path) -> None:
        folder = rewrite(pose, tmp_path, lambda tensors: tensors.update(_renamed(tensors)))
        found = Sapiens2ForPoseEstimation.from_pretrained(folder, key_mapping={r"^trunk\.": "model."}, strict=True)
        assert_same(tiny_task(), found)

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"variant": "fp16"}, "model.fp16.safetensors"),
            ({"safe_serialization": False}, "pytorch_model.bin"),
            ({"safe_serialization": False, "variant": "fp16"}, "pytorch_model.fp16.bin"),
            ({"variant": "fp16", "max_shard_size": "20KB"}, "model.safetensors.index.fp16.json"),
        ],
    )
    def test_names_of_files(self, options: dict[str, Any], name: str, tmp_path: Path) -> None:
        model = tiny_task()
        assert tmp_path / name in model.save_pretrained(tmp_path, **options)
        found = Sapiens2ForPoseEstimation.from_pretrained(tmp_path, variant=options.get("variant"), strict=True)
        assert_same(model, found)

    def test_saving_as_accelerate_does(self, tmp_path: Path) -> None:
        model = tiny_task()
        assert model.save_pretrained(tmp_path, is_main_process=False) == []
        assert not any(tmp_path.iterdir())
        calls = []

        def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
            calls.append(len(tensors))
            torch.save(tensors, path)

        state = {name: value + 1 for name, value in model.state_dict().items()}
        model.save_pretrained(tmp_path, state_dict=state, save_function=save, safe_serialization=False)
        assert calls == [len(state)]
        found = Sapiens2ForPoseEstimation.from_pretrained(tmp_path)
        assert torch.equal(found.model.norm.weight, model.model.norm.weight + 1)

    def test_keywords_without_effect_and_unsupported_ones(self, pose: Path) -> None:
        Sapiens2ForPoseEstimation.from_pretrained(
            pose, low_cpu_mem_usage=True, trust_remote_code=False, weights_only=True, proxies=None
        )
        for name, value in (("proxies", {"https": "x"}), ("offload_folder", "x"), ("weights_only", False)):
            with pytest.raises(InputError, match=name):
                Sapiens2ForPoseEstimation.from_pretrained(pose, **{name: value})

    def test_embeddings_and_base(self) -> None:
        model = tiny_task()
        assert model.base_model is model.model
        assert model.model.base_model is model.model
        assert model.get_input_embeddings() is model.model.embeddings.patch_embeddings
        model.requires_grad_(False)
        model.enable_input_require_grads()
        assert model(pixels(1)).heatmaps.requires_grad
        model.disable_input_require_grads()
        assert not model(pixels(1)).heatmaps.requires_grad
        other = torch.nn.Conv2d(3, 32, 16, stride=16)
        model.set_input_embeddings(other)
        assert model.get_input_embeddings() is other
        assert model.get_output_embeddings() is None
        assert not model.can_generate()

    def test_sizes(self) -> None:
        model = tiny_task()
        assert model.get_memory_footprint() >= 4 * model.num_parameters()
        assert model.num_parameters(exclude_embeddings=True) == model.num_parameters()  # no tables here
        model.requires_grad_(False)
        assert model.num_parameters(only_trainable=True) == 0

    def test_gradient_checkpointing_by_configuration_and_keywords(self) -> None:
        config = tiny_config(head_config=DECONVOLUTION, num_labels=5)
        config.gradient_checkpointing = True
        model = Sapiens2ForPoseEstimation(config)
        assert model.is_gradient_checkpointing
        assert "gradient_checkpointing" not in config.to_dict()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        model.train()
        model(pixels(1)).heatmaps.sum().backward()
        assert model.model.norm.weight.grad is not None
        model.gradient_checkpointing_disable()
        assert not model.is_gradient_checkpointing
        model.gradient_checkpointing_enable(every_n_layers=3)
        assert [layer.gradient_checkpointing for layer in model._checkpointed_layers()] == [True, False, False, True]
        with pytest.raises(InputError, match="offload: expected False"):
            model.gradient_checkpointing_enable(offload=True)

    def test_devices_of_a_context(self, pose: Path) -> None:
        with torch.device("meta"):
            assert Sapiens2Model.from_config(tiny_config()).device.type == "meta"
            with pytest.raises(RuntimeError, match=r"got torch.device\('meta'\) around it"):
                Sapiens2ForPoseEstimation.from_pretrained(pose)
            assert Sapiens2ForPoseEstimation.from_pretrained(pose, device="cpu").device.type == "cpu"

    def test_attention_of_parts(self) -> None:
        model = Mask2FormerForUniversalSegmentation(mask2former.tiny())
        model.set_attn_implementation({"backbone_config": "eager"})
        assert model.config._attn_implementation == "sdpa"
        assert model.config.backbone_config._attn_implementation == "eager"
        inner = model.model.pixel_level_module.encoder.swin.encoder.layers[0].blocks[0].attention
        assert inner.attn_implementation == "eager"
        with pytest.raises(ConfigError, match="head_config"):
            model.set_attn_implementation({"head_config": "eager"})
        model.set_attn_implementation("sdpa")
        assert inner.attn_implementation == "sdpa"


def _renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Move the weights of the encoder to another prefix."""
    names = [name for name in tensors if name.startswith("model.")]
    return {name.replace("model.", "trunk.", 1): tensors.pop(name) for name in names}


class TestDamage:
    def test_missing_and_unexpected_weights_are_named(self, pose: Path, tmp_path: Path) -> None:
        def misspell(tensors: dict[str, torch.Tensor]) -> None:
            tensors["model.norm.wieght"] = tensors.pop("model.norm.weight")

        folder = rewrite(pose, tmp_path, misspell)
        with pytest.raises(WeightsError) as caught:
            Sapiens2ForPoseEstimation.from_pretrained(folder, strict=True)
        text = str(caught.value)
        assert "its weights do not fit Sapiens2ForPoseEstimation" in text
        assert "1 missing: model.norm.weight. Did you mean model.norm.wieght?" in text
        assert "1 unexpected: model.norm.wieght." in text
        assert "Is this a checkpoint for Sapiens2ForPoseEstimation?" in text
        with pytest.warns(VitruvianWarning) as warned:
            Sapiens2ForPoseEstimation.from_pretrained(folder)
        unused, new = (str(warning.message) for warning in warned)
        assert "1 weights" in unused
        assert "are not used: model.norm.wieght" in unused
        assert "newly initialized: model.norm.weight. Did you mean model.norm.wieght?" in new
        assert all(warning.filename == __file__ for warning in warned)

    def test_a_new_head_does_not_excuse_a_damaged_encoder(self, pose: Path, tmp_path: Path) -> None:
        folder = rewrite(pose, tmp_path, lambda tensors: tensors.pop("model.norm.weight"))
        for options in ({"num_labels": 7}, {"ignore_mismatched_sizes": True}):
            with pytest.raises(WeightsError, match=r"1 missing: model\.norm\.weight"):
                Sapiens2ForPoseEstimation.from_pretrained(folder, strict=True, **options)  # type: ignore[arg-type]

    def test_half_a_bare_checkpoint(self, bare: Path, tmp_path: Path) -> None:
        folder = rewrite(bare, tmp_path, lambda tensors: tensors.pop("model.layer.2.norm1.weight"))
        with pytest.raises(WeightsError, match=r"1 missing: model\.model\.layer\.2\.norm1\.weight"):
            Sapiens2ForPoseEstimation.from_pretrained(folder, head_config=DECONVOLUTION, strict=True)

    def test_wrong_shape(self, pose: Path, tmp_path: Path) -> None:
        folder = rewrite(pose, tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))
        with pytest.raises(WeightsError, match=r"model\.norm\.weight \[31\] in the file, \[32\] in the model"):
            Sapiens2ForPoseEstimation.from_pretrained(folder)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite(self, pose: Path, tmp_path: Path, value: float) -> None:
        folder = rewrite(pose, tmp_path, lambda tensors: tensors["model.norm.weight"].fill_(value))
        with pytest.raises(WeightsError, match=r"the weight model\.norm\.weight has NaN or infinite values"):
            Sapiens2ForPoseEstimation.from_pretrained(folder)
        model = Sapiens2ForPoseEstimation.from_pretrained(folder, check_finite=False)
        assert not torch.isfinite(model.model.norm.weight).any()

    def test_truncated_file_and_bad_json(self, pose: Path, tmp_path: Path) -> None:
        folder = rewrite(pose, tmp_path, lambda tensors: None)
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
        with pytest.raises(CheckpointError, match=r"model\.safetensors: expected a readable weight file"):
            Sapiens2ForPoseEstimation.from_pretrained(folder)
        (folder / "config.json").write_text("{")
        with pytest.raises(CheckpointError, match=r"config\.json: expected JSON"):
            Sapiens2ForPoseEstimation.from_pretrained(folder)

    def test_one_error_kind_catches_all(self, tmp_path: Path) -> None:
        assert issubclass(WeightsError, CheckpointError)
        assert issubclass(CheckpointError, OSError)


class TestSaving:
    def test_what_is_written(self, tmp_path: Path) -> None:
        model = tiny_task()
        written = model.save_pretrained(tmp_path / "a")
        assert [path.name for path in written] == ["config.json", "model.safetensors"]
        values = json.loads((tmp_path / "a" / "config.json").read_text())
        assert values["architectures"] == ["Sapiens2ForPoseEstimation"]
        assert (values["model_type"], values["dtype"]) == ("sapiens2", "float32")
        assert load_file(tmp_path / "a" / "model.safetensors").keys() == model.state_dict().keys()

    def test_into_the_folder_it_came_from(self, tmp_path: Path) -> None:
        tiny_task().save_pretrained(tmp_path)
        model = Sapiens2ForPoseEstimation.from_pretrained(tmp_path)
        with torch.no_grad():
            model.model.norm.weight.add_(1)
        model.save_pretrained(tmp_path, max_shard_size="50kB")
        again = Sapiens2ForPoseEstimation.from_pretrained(tmp_path)
        assert_same(model, again)
        assert not (tmp_path / "model.safetensors").exists()
        again.save_pretrained(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
        assert_same(model, Sapiens2ForPoseEstimation.from_pretrained(tmp_path))

    def test_unknown_keys_of_the_configuration_survive(self, pose: Path, tmp_path: Path) -> None:
        folder = rewrite(pose, tmp_path / "in", lambda tensors: None)
        values = json.loads((folder / "config.json").read_text()) | {"transformers_version": "5.0", "mine": {"a": 1}}
        (folder / "config.json").write_text(json.dumps(values))
        Sapiens2ForPoseEstimation.from_pretrained(folder).save_pretrained(tmp_path / "out")
        assert json.loads((tmp_path / "out" / "config.json").read_text()).items() >= values.items()

    def test_into_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(InputError, match="expected a folder to save into, got a file"):
            tiny_task().save_pretrained(tmp_path / "file")

    def test_keywords_that_mean_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="got max_shard, which only push_to_hub=True uses"):
            tiny_task().save_pretrained(tmp_path, max_shard="1GB")
        assert not list(tmp_path.iterdir())

    def test_a_disk_that_fills_up_leaves_the_old_weights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = tiny_task()
        model.save_pretrained(tmp_path)

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with torch.no_grad():
            model.model.norm.weight.add_(1)
        replace = os.replace
        monkeypatch.setattr(
            os, "replace", lambda old, new: full() if str(new).endswith("safetensors") else replace(old, new)
        )
        with pytest.raises(InputError, match="No space left"):
            model.save_pretrained(tmp_path)
        monkeypatch.undo()
        assert_same(tiny_task(), Sapiens2ForPoseEstimation.from_pretrained(tmp_path))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


class TestFromConfig:
    def test_fresh_model(self) -> None:
        torch.manual_seed(0)
        model = Sapiens2Model.from_config(tiny_config())
        assert model.training
        assert not any(tensor.is_meta for tensor in model.state_dict().values())
        assert torch.equal(model.norm.weight, torch.ones(32))
        assert 0.015 < model.embeddings.patch_embeddings.weight.std() < 0.025

    def test_options(self) -> None:
        model = Sapiens2Model.from_config(tiny_config(), dtype="bfloat16", device="cpu", attn_implementation="eager")
        assert (model.dtype, model.config.attn_implementation) == (torch.bfloat16, "eager")
        assert Sapiens2Model.from_config(tiny_config(), dtype=torch.float16).dtype == torch.float16
        with pytest.raises(InputError, match="dtype: expected"):
            Sapiens2Model.from_config(tiny_config(), dtype="int8")

    def test_buffers_lie_beside_the_weights(self) -> None:
        assert Sized.from_config(tiny_config(), device="meta").table.steps.is_meta

    def test_same_values_as_the_constructor(self) -> None:
        torch.manual_seed(0)
        built = Sized(tiny_config())
        assert_same(built, Sized.from_config(tiny_config()))


class TestModel:
    def test_counts(self) -> None:
        model = tiny_task()
        total = sum(parameter.numel() for parameter in model.parameters())
        assert model.num_parameters() == total
        model.decode_head.requires_grad_(False)
        left = total - sum(parameter.numel() for parameter in model.decode_head.parameters())
        assert model.num_parameters(only_trainable=True) == left

    def test_attention_choice_reaches_every_layer(self, pose: Path) -> None:
        model = Sapiens2ForPoseEstimation.from_pretrained(pose, attn_implementation="eager")
        layers = [module for module in model.modules() if hasattr(module, "attn_implementation")]
        assert len(layers) == 4
        assert {layer.attn_implementation for layer in layers} == {"eager"}
        eager = model(pixels(1)).heatmaps
        model.set_attn_implementation("sdpa")
        assert {layer.attn_implementation for layer in layers} == {"sdpa"}
        torch.testing.assert_close(model(pixels(1)).heatmaps, eager, atol=1e-6, rtol=1e-5)
        assert "attn_implementation" not in model.config.to_dict()

    def test_attention_that_is_not_there(self, pose: Path) -> None:
        with pytest.raises(InputError, match="attn_implementation: expected one of sdpa, eager"):
            Sapiens2ForPoseEstimation.from_pretrained(pose, attn_implementation="fast")
        with pytest.raises(InputError, match="'flash_attention_3' needs the package flash_attn_interface"):
            tiny_task().set_attn_implementation("flash_attention_3")

    def test_gradient_checkpointing_gives_the_same_gradients(self) -> None:
        model = tiny_task(pos_embed_rescale=None).train()
        images = pixels()
        found = []
        for switch in (model.gradient_checkpointing_enable, model.gradient_checkpointing_disable):
            switch()
            model.zero_grad()
            model(images).heatmaps.square().mean().backward()
            found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        assert not model.is_gradient_checkpointing
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)
        model.gradient_checkpointing_enable()
        assert model.is_gradient_checkpointing
        with pytest.raises(InputError, match="has no layers that can be checkpointed"):
            Sized(tiny_config()).gradient_checkpointing_enable()
