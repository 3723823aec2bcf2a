"""Small things that code written for transformers relies on, compared with transformers."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest
import torch

import vitruvian
from tests.families import mask2former, maskformer, sam2, sapiens2, swin
from tests.families.case import FamilyCase

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

CASES = {case.name: case for family in (sapiens2, sam2, maskformer, mask2former, swin) for case in family.CASES}
BACKBONES = [
    CASES[name] for name in ("sapiens2-backbone", "swin-backbone", "maskformer-swin-backbone", "resnet-backbone")
]


def theirs(ours: Any) -> Any:
    """The model of transformers with our weights, on the same implementation of attention."""
    cls = getattr(transformers, type(ours).__name__)
    config = cls.config_class.from_dict(ours.config.to_dict())
    config._attn_implementation = "eager"
    model = cls(config)
    model.load_state_dict(ours.state_dict(), strict=False)
    return model.eval()


def test_outputs_are_built_from_the_same_positional_arguments() -> None:
    classes = [
        getattr(transformers, case.cls.__name__) for case in CASES.values() if case.cls.__name__ in dir(transformers)
    ]
    modules = [transformers.modeling_outputs, *(sys.modules[cls.__module__] for cls in classes)]
    compared = []
    for name in vitruvian.__all__:
        theirs = next(
            (getattr(module, name) for module in modules if name.endswith("Output") and hasattr(module, name)), None
        )
        if theirs is None or not dataclasses.is_dataclass(theirs):
            continue
        fields, their_fields = (
            [field.name for field in dataclasses.fields(cls)] for cls in (getattr(vitruvian, name), theirs)
        )
        own = fields[:1] == ["loss"] != their_fields[:1]  # of SAM 2, which transformers does not train
        assert fields[own : own + len(their_fields)] == their_fields, name
        assert not any(field.kw_only for field in dataclasses.fields(getattr(vitruvian, name))), name
        compared.append(name)
    assert {"SemanticSegmenterOutput", "Sapiens2PoseEstimatorOutput", "SwinImageClassifierOutput"} <= set(compared)


@pytest.mark.parametrize("case", BACKBONES, ids=lambda case: case.name)
def test_stages_that_are_chosen_after_the_configuration_was_built(case: FamilyCase) -> None:
    config = case.config()
    config.out_indices = [1, 2]
    model = case.cls(config).eval()
    other = theirs(model)
    pixels = case.inputs(1, torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, want = model(**pixels).feature_maps, other(**pixels).feature_maps
    assert config.out_features == other.config.out_features
    assert model.channels == other.channels
    assert len(found) == len(want) == 2
    for one, two in zip(found, want, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    assert model.stage_names == other.stage_names
    assert list(model.num_features) == list(other.num_features)
    assert model.out_feature_channels == dict(other.out_feature_channels)
    config.out_features = None
    with torch.no_grad():
        assert len(case.cls(config).eval()(**pixels).feature_maps) == 1


@pytest.mark.parametrize("name", ["sapiens2", "sam2-vision", "maskformer", "mask2former", "swin"])
def test_gradients_of_hidden_states_and_attentions(name: str) -> None:
    case = CASES[name]
    model = case.cls(case.config()).train()
    model.set_attn_implementation("eager")
    inputs = case.inputs(1, torch.Generator().manual_seed(0)) | case.options
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    fields = [key for key in output if key.endswith(("hidden_states", "attentions"))]
    states = [state for key in fields for state in output[key] if isinstance(state, torch.Tensor)]
    assert len(states) > 2
    for state in states:
        state.retain_grad()
    used = [output[key] for key in output if key not in fields]
    sum(part.float().square().sum() for part in used if isinstance(part, torch.Tensor)).backward()
    first = next(state for key in fields if "hidden_states" in key for state in output[key])
    assert first.grad is not None
    assert first.grad.abs().sum() > 0


def test_swin_of_maskformer() -> None:
    fields = swin.swin_fields()
    ours = vitruvian.MaskFormerSwinModel(vitruvian.MaskFormerSwinConfig(**fields)).eval()
    other = theirs(ours)
    pixels = torch.randn(1, 3, 52, 75, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, want = (model(pixels, output_hidden_states=True) for model in (ours, other))
    torch.testing.assert_close(found.last_hidden_state, want.last_hidden_state, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.pooler_output, want.pooler_output, atol=1e-4, rtol=1e-4)
    assert len(found.hidden_states) == len(want.hidden_states)


@pytest.mark.parametrize(
    ("auto", "name"),
    [
        ("AutoModelForImageClassification", "swin"),
        ("AutoModelForMaskedImageModeling", "swin"),
        ("AutoBackbone", "swin-backbone"),
        ("AutoModelForInstanceSegmentation", "maskformer"),
        ("AutoModelForUniversalSegmentation", "mask2former"),
        ("AutoModelForMaskGeneration", "sam2-clicks"),
        ("AutoModelForSemanticSegmentation", "sapiens2-seg"),
        ("AutoModel", "sam2-clicks"),
    ],
)
def test_auto_classes_choose_the_same_classes(auto: str, name: str) -> None:
    config = CASES[name].config()
    found = getattr(vitruvian, auto).from_config(config)
    cls = getattr(transformers, type(config).__name__)
    want = getattr(transformers, auto).from_config(cls.from_dict(config.to_dict()))
    assert type(found).__name__ == type(want).__name__


@pytest.mark.parametrize("cls", ["Sapiens2", "MaskFormer", "Mask2Former"])
def test_steps_of_processors_that_are_none_are_off(cls: str) -> None:
    processor = getattr(vitruvian, f"{cls}ImageProcessor")(do_resize=None, do_rescale=None, do_normalize=None)
    image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    pixels = processor(image, return_tensors="pt")["pixel_values"]
    assert torch.equal(pixels[0].float(), torch.from_numpy(image).permute(2, 0, 1).float())
    assert processor.to_dict()["do_resize"] is None


def test_unknown_arguments_of_forward_that_are_none() -> None:
    case = CASES["swin"]
    model = case.cls(case.config()).eval()
    pixels = case.inputs(1, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model(**pixels, extra=None)[0], model(**pixels)[0])
