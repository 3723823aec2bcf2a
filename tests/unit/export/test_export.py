"""ONNX files and what runs them: results and calls as those of the torch model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.families.sapiens2 import tiny
from tests.helpers.tiny_checkpoints import save_mask2former, save_sam2
from tests.unit.export.tiny_pose import build, pixels
from vitruvian.auto import AutoModel
from vitruvian.errors import CheckpointError, InputError
from vitruvian.export import OnnxModel, OpenVinoModel, compare_outputs, example_inputs, export_onnx
from vitruvian.export import onnx_export as onnx_export
from vitruvian.export.onnx_export import _subpixel_convolutions, _SubPixelConvolution
from vitruvian.export.runtime import Signature, _unflatten_outputs, flatten_outputs
from vitruvian.models.sapiens2.modeling import Sapiens2ForPoseEstimation, Sapiens2Model
from vitruvian.models.sapiens2.outputs import Sapiens2PoseEstimatorOutput

ENGINES = {"onnx": ("onnxruntime", OnnxModel), "openvino": ("openvino", OpenVinoModel)}


@pytest.mark.parametrize("engine", ENGINES)
def test_results_and_calls_are_those_of_the_model(engine: str, folder: Path) -> None:
    package, kind = ENGINES[engine]
    pytest.importorskip(package)
    model, exported = build(), kind.from_pretrained(folder, threads=1)
    pairs = torch.tensor([[0, 1], [3, 4]])
    for batch in (1, 3):
        with torch.inference_mode():
            want, turned = model(pixels(batch)), model(pixels(batch), flip_pairs=pairs)
        got = exported(pixels(batch), return_dict=True, output_hidden_states=False)
        assert type(got) is Sapiens2PoseEstimatorOutput
        assert compare_outputs(got, want)["heatmaps"] < 1e-5
        assert compare_outputs(exported(pixel_values=pixels(batch), flip_pairs=pairs), turned)["heatmaps"] < 1e-5
    assert isinstance(exported(pixels(), return_dict=False), tuple)
    assert exported.eval().model_class is Sapiens2ForPoseEstimation
    assert (exported.device, exported.dtype) == (torch.device("cpu"), torch.float32)
    assert exported.config.num_labels == 5


def test_wrong_calls_say_what_was_exported(folder: Path) -> None:
    exported = OnnxModel(folder, threads=1)
    for inputs, words in (
        ({}, "expected a tensor"),
        ({"pixel_values": torch.zeros(1, 3, 32, 32)}, "shape"),
        ({"pixel_values": pixels(), "labels": torch.zeros(1)}, "exported with pixel_values alone"),
        ({"pixel_values": pixels(), "output_hidden_states": True}, "exported with pixel_values alone"),
        ({"pixel_values": pixels(), "pixel_mask": torch.zeros(1, 64, 48)}, "exported with pixel_values alone"),
    ):
        with pytest.raises(InputError, match=words):
            exported(**inputs)
    exported(pixels(), pixel_mask=torch.ones(1, 64, 48))
    with pytest.raises(InputError, match="2 inputs"):
        exported(pixels(), pixels())


def test_file_is_compared_with_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    with torch.no_grad():
        model.decode_head.predictor.bias.add_(1)
    example = example_inputs(model)
    with pytest.raises(InputError, match="differs from torch: heatmaps"):
        onnx_export._check_file(model, example, {}, folder)


def test_export_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(InputError, match="float32 on the CPU"):
        export_onnx(build().to(torch.bfloat16), tmp_path)
    with pytest.raises(InputError, match="expected a folder"):
        export_onnx(build(), tmp_path / "model.onnx")


def test_folders_that_are_no_export(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no export\.json"):
        OnnxModel(tmp_path)
    values = json.loads((folder / "export.json").read_text())
    for changed, words in (
        ({"inputs": values["inputs"]}, "description of an exported model"),
        (values | {"more": 1}, "description of an exported model"),
        (values | {"output": "os:system"}, "output class"),
        (values | {"output": "vitruvian.errors:InputError"}, "output class"),
        (values | {"output": "vitruvian.nothing:Output"}, "output class"),
    ):
        (tmp_path / "export.json").write_text(json.dumps(changed))
        (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
        with pytest.raises(CheckpointError, match=words):
            OnnxModel(tmp_path)
    (tmp_path / "export.json").write_text(json.dumps(values))
    for kind in (OnnxModel, OpenVinoModel):
        if kind is OpenVinoModel:
            pytest.importorskip("openvino")
        with pytest.raises(CheckpointError, match=r"model\.onnx"):
            kind(tmp_path)


def test_no_other_module_is_imported_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match="output class"):
        Signature("A", "planted:Output", {}, []).output_class()


def test_example_inputs_follow_the_configuration() -> None:
    assert example_inputs(Sapiens2Model(tiny()))["pixel_values"].shape == (1, 3, 64, 48)
    assert example_inputs(Sapiens2Model(tiny()), size_hw=(32, 16), batch=2)["pixel_values"].shape == (2, 3, 32, 16)


@pytest.mark.parametrize(
    ("save", "name", "size_hw"),
    [
        (save_sam2, "facebook/sam2.1-hiera-large", None),
        (save_mask2former, "facebook/mask2former-swin-small-coco-instance", (64, 96)),
    ],
)
def test_other_families(
    save: Callable[[Path], None], name: str, size_hw: tuple[int, int] | None, tmp_path: Path
) -> None:
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    save(tmp_path)
    model = AutoModel.from_pretrained(tmp_path / name).eval()
    export_onnx(model, tmp_path / "export", inputs=example_inputs(model, size_hw=size_hw, batch=2), check=False)
    inputs = example_inputs(model, size_hw=size_hw, batch=3)
    with torch.inference_mode():
        want = model(**inputs)
    assert max(compare_outputs(OnnxModel(tmp_path / "export")(**inputs), want).values()) < 1e-3


def test_names_of_nested_outputs() -> None:
    a, b, c = torch.zeros(1), torch.ones(1), torch.ones(2)
    nested = {"maps": (a, b), "logits": c, "auxiliary": ({"masks": a}, {"masks": b})}
    flat = dict(flatten_outputs(nested))
    assert list(flat) == ["maps.0", "maps.1", "logits", "auxiliary.0.masks", "auxiliary.1.masks"]
    assert _unflatten_outputs(flat) == nested


@pytest.mark.parametrize("bias", [True, False])
def test_transposed_convolution_as_a_plain_one(bias: bool) -> None:
    torch.manual_seed(0)
    conv, x = nn.ConvTranspose2d(6, 5, 4, 2, 1, bias=bias), torch.randn(2, 6, 5, 7)
    torch.testing.assert_close(_SubPixelConvolution(conv)(x), conv(x))
    other = nn.ConvTranspose2d(6, 5, 2, 2)
    model = nn.Sequential(conv, nn.Sequential(other))
    with _subpixel_convolutions(model):
        assert isinstance(model[0], _SubPixelConvolution)
        assert model[1][0] is other
    assert model[0] is conv


def test_signature_survives_its_file(tmp_path: Path) -> None:
    signature = Signature("A", "vitruvian.outputs:ModelOutput", {"x": [1, 2]}, ["y"], True, "int8")
    signature.write(tmp_path)
    assert Signature.read(tmp_path) == signature
