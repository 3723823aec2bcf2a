"""Checkpoints travel both ways between vitruvian and transformers: weights, configurations, unknown keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitruvian
from tests.helpers.tiny_models import TASKS, pixels, tiny_config, tiny_task
from vitruvian import AutoConfig, AutoModel, NewWeightsWarning, Sapiens2Backbone, Sapiens2Config, Sapiens2Model

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

SHARED_TASKS = [task for task in TASKS if task != "albedo"]  # transformers has no albedo
NAMES = ["Sapiens2Model", "Sapiens2Backbone", *(TASKS[task][0].__name__ for task in SHARED_TASKS)]
EMPTY: dict[str, set[Any]] = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set()}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def ours(name: str) -> Any:
    """A model of ours with random weights."""
    torch.manual_seed(4)
    if name in ("Sapiens2Model", "Sapiens2Backbone"):
        model: Any = getattr(vitruvian, name)(tiny_config(out_features=["stage1", "stage4"]))
    else:
        model = tiny_task(next(task for task in SHARED_TASKS if TASKS[task][0].__name__ == name))
    with torch.no_grad():
        for parameter in model.parameters():  # also what starts as zero or one
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def theirs(name: str, folder: Path) -> Any:
    """Open a checkpoint with transformers, which must find every weight and no other."""
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert {key: set(info[key]) for key in EMPTY} == EMPTY
    assert not info["error_msgs"]
    return model.eval()


def save_theirs(name: str, folder: Path, **options: Any) -> Any:
    """Write the checkpoint that transformers writes for a model it built itself, and return that model.

    Its names are those of the original release. A model that it opened from a file in our naming keeps that.
    """
    model = ours(name)
    model.config.save_pretrained(folder)
    reference = getattr(transformers, name)(transformers.Sapiens2Config.from_pretrained(folder)).eval()
    found = reference.load_state_dict(model.state_dict(), strict=False)
    assert not found.unexpected_keys
    assert all(key.endswith("inv_freq") for key in found.missing_keys)
    reference.save_pretrained(folder, **options)
    return reference


def tensors(output: Any) -> list[torch.Tensor]:
    """All tensors of an output, in order."""
    found = []
    for value in output.values():
        found += list(value) if isinstance(value, tuple) else [value]
    return found


def assert_close(one: Any, other: Any) -> None:
    assert list(one.keys()) == list(other.keys())
    for got, want in zip(tensors(one), tensors(other), strict=True):
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("shard", ["5GB", "60kB"])
@pytest.mark.parametrize("name", NAMES)
def test_what_we_save_they_load(name: str, shard: str, tmp_path: Path) -> None:
    model = ours(name)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    with torch.no_grad():
        assert_close(theirs(name, tmp_path)(pixels()), model(pixels()))


@pytest.mark.parametrize("shard", ["5GB", "60kB"])
@pytest.mark.parametrize("name", NAMES)
def test_what_they_save_we_load(name: str, shard: str, tmp_path: Path) -> None:
    reference = save_theirs(name, tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard != "5GB")
    found = AutoModel.from_pretrained(tmp_path)
    assert type(found).__name__ == name
    for key, tensor in ours(name).state_dict().items():
        assert torch.equal(found.state_dict()[key], tensor), key
    with torch.no_grad():
        assert_close(found(pixels()), reference(pixels()))


@pytest.mark.parametrize("task", SHARED_TASKS)
def test_their_task_checkpoint_opens_as_bare_model_and_backbone(task: str, tmp_path: Path) -> None:
    name = TASKS[task][0].__name__
    save_theirs(name, tmp_path)
    want = ours(name).model.state_dict()
    for cls in (Sapiens2Model, Sapiens2Backbone):
        found = cls.from_pretrained(tmp_path).state_dict()
        assert found.keys() == want.keys()
        assert all(torch.equal(found[key], want[key]) for key in want)


@pytest.mark.parametrize("task", SHARED_TASKS)
def test_their_bare_checkpoint_opens_with_a_fresh_head(task: str, tmp_path: Path) -> None:
    save_theirs("Sapiens2Model", tmp_path)
    cls, labels, head = TASKS[task]
    with pytest.warns(NewWeightsWarning, match="newly initialized: decode_head"):
        model = cls.from_pretrained(tmp_path, num_labels=labels, head_config=head)
    want = ours("Sapiens2Model").state_dict()
    assert all(torch.equal(model.model.state_dict()[key], want[key]) for key in want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_types_travel(dtype: str, tmp_path: Path) -> None:
    name = "Sapiens2ForPoseEstimation"
    ours(name).to(getattr(torch, dtype)).save_pretrained(tmp_path / "ours")
    reference = theirs(name, tmp_path / "ours")
    assert reference.dtype == getattr(torch, dtype)
    reference.save_pretrained(tmp_path / "theirs")
    assert AutoModel.from_pretrained(tmp_path / "theirs").dtype == getattr(torch, dtype)


def test_mask_token_travels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Sapiens2Model(tiny_config(use_mask_token=True)).eval()
    with torch.no_grad():
        model.embeddings.mask_token.normal_()
    model.save_pretrained(tmp_path / "ours")
    reference = theirs("Sapiens2Model", tmp_path / "ours")
    reference.save_pretrained(tmp_path / "theirs")
    again = AutoModel.from_pretrained(tmp_path / "theirs")
    assert torch.equal(again.embeddings.mask_token, model.embeddings.mask_token)
    hidden = torch.tensor([[True, False, True, False, True, False]])
    with torch.no_grad():
        assert_close(again(pixels(1), hidden), reference(pixels(1), bool_masked_pos=hidden))


class TestConfigs:
    @pytest.mark.parametrize("name", NAMES)
    def test_ours_to_theirs_and_back(self, name: str, tmp_path: Path) -> None:
        config = ours(name).config
        config.save_pretrained(tmp_path / "ours")
        reference = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
        assert type(reference).__name__ == "Sapiens2Config"
        reference.save_pretrained(tmp_path / "theirs")
        back = AutoConfig.from_pretrained(tmp_path / "theirs")
        ignored = {"transformers_version", "architectures", "dtype"}
        if config.head_config is None:  # transformers writes a head without layers instead
            ignored.add("head_config")
        want = {key: value for key, value in config.to_dict().items() if key not in ignored}
        assert {key: back.to_dict().get(key) for key in want} == want

    def test_every_field_of_theirs_has_our_default(self) -> None:
        reference, mine = transformers.Sapiens2Config(), Sapiens2Config()
        values = json.loads(reference.to_json_string(use_diff=False))
        fields = Sapiens2Config.__dataclass_fields__  # type: ignore[attr-defined]
        common = [key for key in values if key in fields and key not in ("head_config", "attn_implementation")]
        assert len(common) > 35
        assert {key: mine.to_dict().get(key) for key in common if key in mine.to_dict()} == {
            key: values[key] for key in common if key in mine.to_dict()
        }

    def test_labels_travel(self, tmp_path: Path) -> None:
        names = {0: "nose", 1: "left eye", 2: "right eye"}
        tiny_config(id2label=names).save_pretrained(tmp_path)
        reference = transformers.Sapiens2Config.from_pretrained(tmp_path)
        assert (reference.id2label, reference.num_labels) == (names, 3)
        assert reference.label2id == {name: index for index, name in names.items()}

    def test_unknown_keys_survive_both_readers(self, tmp_path: Path) -> None:
        values = json.loads(tiny_config().to_json_string()) | {"mine": {"a": [1, None]}, "note": "x"}
        (tmp_path / "config.json").write_text(json.dumps(values))
        transformers.Sapiens2Config.from_pretrained(tmp_path).save_pretrained(tmp_path / "theirs")
        Sapiens2Config.from_pretrained(tmp_path / "theirs").save_pretrained(tmp_path / "ours")
        found = json.loads((tmp_path / "ours" / "config.json").read_text())
        assert (found["mine"], found["note"]) == ({"a": [1, None]}, "x")
        assert found["transformers_version"] == transformers.__version__
        reference = transformers.Sapiens2Config.from_pretrained(tmp_path / "ours")
        assert reference.mine == {"a": [1, None]}


@pytest.mark.parametrize("name", NAMES)
def test_both_namings_of_their_files(name: str, tmp_path: Path) -> None:
    reference = save_theirs(name, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert any("blocks.0.attn.wq" in key for key in saved)
    state = {key: tensor.contiguous() for key, tensor in reference.state_dict().items() if "inv_freq" not in key}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = AutoModel.from_pretrained(tmp_path)
    assert all(torch.equal(found.state_dict()[key], tensor) for key, tensor in ours(name).state_dict().items())
