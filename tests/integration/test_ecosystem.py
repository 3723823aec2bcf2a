"""Models and processors inside the libraries around transformers: its Trainer and pipelines, peft, accelerate.

Models are tiny. The tests do not need torchvision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import nn
from transformers import Trainer, TrainingArguments

import vitruvian
from tests.families import mask2former, maskformer, sam2, sapiens2
from tests.families.case import FamilyCase
from vitruvian.training.transformers_trainer import SaveConfigMixin

pytestmark = pytest.mark.reference

_LABELED = {
    case.name: case for family in (sapiens2, sam2, maskformer, mask2former) for case in family.CASES if case.labels
}
CASES = [_LABELED[name] for name in ("sapiens2-pose", "sam2-clicks", "maskformer-instance", "mask2former-universal")]
each_family = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


class ConfigTrainer(SaveConfigMixin, Trainer):
    pass


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Four examples of a case."""

    def __init__(self, case: FamilyCase) -> None:
        random = torch.Generator().manual_seed(0)
        assert case.labels is not None
        self.rows = [case.inputs(1, random) | case.labels(1, random) for _ in range(4)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Join batches of one example."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: torch.cat(column) if isinstance(column[0], torch.Tensor) else [item for items in column for item in items]
        for name, column in columns.items()
    }


def new_model(case: FamilyCase, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return case.cls(case.config())


def trainer(case: FamilyCase, model: Any, folder: Path, *, steps: int = 2, **options: Any) -> ConfigTrainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=1,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        remove_unused_columns=False,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    return ConfigTrainer(
        model=model, args=arguments, train_dataset=Rows(case), eval_dataset=Rows(case), data_collator=collate
    )


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# ------------------------------------------------------------------------------------------------------- Trainer


@each_family
def test_trainer_trains_saves_and_resumes(case: FamilyCase, tmp_path: Path) -> None:
    whole = new_model(case)
    before = weights(whole)
    trainer(case, whole, tmp_path / "whole", steps=3).train()
    assert any(not torch.equal(value, before[name]) for name, value in whole.state_dict().items())
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    assert json.loads((checkpoint / "config.json").read_text())["architectures"] == [case.cls.__name__]

    resumed = new_model(case, seed=1)
    again = trainer(case, resumed, tmp_path / "resumed", steps=3)
    assert again.train(resume_from_checkpoint=str(checkpoint)).global_step == 3
    for name, value in resumed.state_dict().items():
        torch.testing.assert_close(value, whole.state_dict()[name], atol=1e-5, rtol=1e-4)
    assert np.isfinite(again.evaluate()["eval_loss"])

    again.save_model(str(tmp_path / "final"))
    opened = case.cls.from_pretrained(tmp_path / "final")
    for name, value in opened.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])


def test_trainer_with_gradient_checkpointing_and_processor(tmp_path: Path) -> None:
    case = CASES[0]
    run = trainer(
        case,
        new_model(case),
        tmp_path,
        steps=1,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )
    run.processing_class = vitruvian.Sapiens2ImageProcessor(size={"height": 64, "width": 48})
    run.train()
    opened = vitruvian.AutoImageProcessor.from_pretrained(tmp_path / "checkpoint-1")
    assert opened.size == {"height": 64, "width": 48}


# ---------------------------------------------------------------------------------------------------------- peft


def linear_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module) is nn.Linear]


@each_family
def test_lora_reaches_every_linear_layer(case: FamilyCase) -> None:
    """An adapter gives what its merged weights give: no layer is computed from its own weight alone."""
    peft = pytest.importorskip("peft")
    model = new_model(case).eval()
    lora = peft.LoraConfig(target_modules=linear_names(model), r=2, init_lora_weights=False)
    wrapped = peft.get_peft_model(model, lora)
    inputs = case.inputs(2, torch.Generator().manual_seed(0)) | case.options
    with torch.no_grad():
        found = wrapped(**inputs)[case.output]
        model.optimize(cuda_graphs=False)
        optimized = wrapped(**inputs)[case.output]
        merged = wrapped.merge_and_unload()(**inputs)[case.output]
    torch.testing.assert_close(found, merged, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(optimized, merged, atol=1e-3, rtol=1e-3)


# As they are written for transformers: ends of names, and a regular expression of whole names.
TARGETS: dict[str, tuple[list[str], str]] = {
    "sapiens2-pose": (["q_proj", "v_proj"], r"model\.model\.layer\.\d+\.mlp\.(gate|down)_proj"),
    "sam2-clicks": (["qkv", "q_proj"], r"mask_decoder\.transformer\.layers\.\d+\.\w+\.(k|o)_proj"),
    "maskformer-instance": (["query", "value", "o_proj"], r".*transformer_module\.decoder\.layers\.\d+\.mlp\.fc[12]"),
    "mask2former-universal": (["q_proj", "v_proj"], r".*encoder\.swin\.encoder\.layers\.\d+\.blocks\.\d+\.mlp\.fc[12]"),
}


@each_family
@pytest.mark.parametrize("kind", [0, 1], ids=["ends", "expression"])
def test_target_modules_written_for_transformers(case: FamilyCase, kind: int) -> None:
    """An adapter is on the same layers as in transformers."""
    peft = pytest.importorskip("peft")
    ours = new_model(case)
    cls = getattr(transformers, case.cls.__name__)
    theirs = cls(cls.config_class.from_dict(ours.config.to_dict()))
    found, wanted = (
        peft.get_peft_model(model, peft.LoraConfig(target_modules=TARGETS[case.name][kind], r=2))
        for model in (ours, theirs)
    )
    assert set(found.targeted_module_names) == set(wanted.targeted_module_names)
    assert peft.get_peft_model_state_dict(found).keys() == peft.get_peft_model_state_dict(wanted).keys()


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
def test_lora_with_trainer(case: FamilyCase, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    names = linear_names(new_model(case))[::8]
    wrapped = peft.get_peft_model(new_model(case), peft.LoraConfig(target_modules=names, r=2))
    before = weights(wrapped)
    trainer(case, wrapped, tmp_path, steps=2).train()
    changed = {name for name, value in wrapped.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all("lora_" in name or "running_" in name or "num_batches" in name for name in changed)
    opened = peft.PeftModel.from_pretrained(new_model(case), str(tmp_path / "checkpoint-2"))
    for name, value in peft.get_peft_model_state_dict(opened).items():
        assert torch.equal(value, peft.get_peft_model_state_dict(wrapped)[name])
    resumed = peft.get_peft_model(new_model(case), peft.LoraConfig(target_modules=names, r=2))
    run = trainer(case, resumed, tmp_path / "resumed", steps=3)
    assert run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2")).global_step == 3


def test_adapters_of_a_model(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    case = CASES[0]
    inputs = case.inputs(1, torch.Generator().manual_seed(0))

    def output(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return model.eval()(**inputs)[case.output]

    model = new_model(case)
    plain = output(model)
    assert model.active_adapters() == []
    model.add_adapter(peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False))
    assert model.active_adapters() == ["default"]
    assert {name.rsplit(".", 3)[1] for name, p in model.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}
    adapted = output(model)
    assert not torch.allclose(adapted, plain, atol=1e-3)
    model.disable_adapters()
    assert torch.equal(output(model), plain)
    model.enable_adapters()
    assert torch.equal(output(model), adapted)

    assert {path.name for path in model.save_pretrained(tmp_path)} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    other = new_model(case)
    other.load_adapter(tmp_path)
    torch.testing.assert_close(output(other), adapted)
    opened = peft.PeftModel.from_pretrained(new_model(case), str(tmp_path)).eval()
    torch.testing.assert_close(output(opened), adapted)

    other.add_adapter(peft.LoraConfig(target_modules=["k_proj"], r=2, init_lora_weights=False), "second")
    assert other.active_adapters() == ["second"]
    other.set_adapter("default")
    torch.testing.assert_close(output(other), adapted)
    with pytest.raises(vitruvian.InputError, match="adapter_name: expected a new name, got 'second'"):
        other.add_adapter(peft.LoraConfig(target_modules=["k_proj"]), "second")
    with pytest.raises(vitruvian.InputError, match="expected one of default, second, got third"):
        other.set_adapter("third")
    with pytest.raises(vitruvian.InputError, match="fp8 does not include adapters"):
        other.optimize(fp8=True)
    other.delete_adapter("second")
    assert list(other.peft_config) == ["default"]


# ---------------------------------------------------------------------------------------------------- accelerate


def test_saving_in_the_manner_of_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    case, accelerator = CASES[3], accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(new_model(case))
    unwrapped = accelerator.unwrap_model(model)
    state = accelerator.get_state_dict(model)
    gathered = {name: value + 1 if value.is_floating_point() else value for name, value in state.items()}
    written = []

    def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
        written.append(path)
        accelerator.save(tensors, path)

    options = {"save_function": save, "state_dict": gathered}
    unwrapped.save_pretrained(tmp_path / "other", is_main_process=False, **options)
    assert not (tmp_path / "other").exists()
    for safe in (True, False):
        folder = tmp_path / str(safe)
        unwrapped.save_pretrained(
            folder, is_main_process=accelerator.is_main_process, safe_serialization=safe, **options
        )
        assert (folder / ("model.safetensors" if safe else "pytorch_model.bin")).exists()
        assert len(written) == (0 if safe else 1)
        opened = case.cls.from_pretrained(folder)
        for name, value in opened.state_dict().items():
            if "empty_weight" not in name:  # follows from the configuration
                assert torch.equal(value, gathered[name]), name


# ----------------------------------------------------------------------------------------------------- pipelines


@pytest.fixture
def image() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8))


@pytest.mark.parametrize("case", CASES[2:], ids=lambda case: case.name)
def test_image_segmentation_pipeline(case: FamilyCase, image: Image.Image) -> None:
    processors = {"maskformer-instance": vitruvian.MaskFormerImageProcessor}
    processor = processors.get(case.name, vitruvian.Mask2FormerImageProcessor)
    pipe = transformers.pipeline(
        "image-segmentation", model=new_model(case).eval(), image_processor=processor(size={"shortest_edge": 64})
    )
    for subtask in ("panoptic", "instance", "semantic"):
        for found in pipe(image, subtask=subtask, threshold=0.0, mask_threshold=0.0, overlap_mask_area_threshold=0.0):
            assert found["mask"].size == image.size
            assert found["label"].startswith("LABEL_")
    assert pipe(image, subtask="semantic")
    assert len(pipe([image, image], subtask="semantic")) == 2


def test_semantic_pipeline_of_sapiens2(image: Image.Image) -> None:
    case = _LABELED["sapiens2-seg"]
    processor = vitruvian.Sapiens2ImageProcessor(size={"height": 64, "width": 48})
    pipe = transformers.pipeline("image-segmentation", model=new_model(case).eval(), image_processor=processor)
    assert {found["mask"].size for found in pipe(image)} == {image.size}


@pytest.mark.parametrize("layers", [0, 1])
def test_mask_generation_pipeline(layers: int, image: Image.Image) -> None:
    model = new_model(CASES[1]).eval()
    pipe = transformers.pipeline(
        "mask-generation", model=model, image_processor=vitruvian.Sam2ImageProcessor(size=64), points_per_batch=16
    )
    found = pipe(image, points_per_crop=4, crops_n_layers=layers, pred_iou_thresh=0.0, stability_score_thresh=0.0)
    assert len(found["masks"]) == len(found["scores"]) > 0
    assert all(mask.shape == (60, 90) for mask in found["masks"])


@pytest.mark.parametrize(("name", "task"), [("image-segmentation", "panoptic"), ("mask-generation", "masks")])
def test_names_of_tasks_in_transformers(name: str, task: str, tmp_path: Path) -> None:
    case = {"panoptic": CASES[3], "masks": CASES[1]}[task]
    processor: Any = {"panoptic": vitruvian.Mask2FormerImageProcessor(), "masks": vitruvian.Sam2Processor()}[task]
    new_model(case).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    assert vitruvian.pipeline(name, tmp_path).task == task


# -------------------------------------------------------------------------------------------------- quantization


@each_family
def test_quantization_by_torchao(case: FamilyCase, tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = new_model(case).eval()
    model.save_pretrained(tmp_path)
    names = linear_names(model)
    config = transformers.TorchAoConfig(quantization.Int8WeightOnlyConfig(), modules_to_not_convert=[names[0]])
    quantized = case.cls.from_pretrained(tmp_path, quantization_config=config)
    kinds = {name: type(quantized.get_submodule(name).weight).__name__ for name in names}
    assert kinds.pop(names[0]) == "Parameter"
    assert set(kinds.values()) == {"Int8Tensor"}

    inputs = case.inputs(1, torch.Generator().manual_seed(0)) | case.options
    with torch.no_grad():
        want, found = model(**inputs)[case.output], quantized(**inputs)[case.output]
        optimized = quantized.optimize(cuda_graphs=False)(**inputs)[case.output]
    assert not torch.equal(found, want)
    assert (found - want).norm() < 0.2 * want.norm()  # single values differ more where masks are thresholded
    torch.testing.assert_close(optimized, found)
    with pytest.raises(vitruvian.InputError, match="Save the model before it is quantized"):
        quantized.save_pretrained(tmp_path)
    with pytest.raises(vitruvian.InputError, match="fp8 needs plain weights"):
        quantized.optimize(fp8=True)


def test_other_quantizations_are_errors(tmp_path: Path) -> None:
    new_model(CASES[0]).save_pretrained(tmp_path)
    load = CASES[0].cls.from_pretrained
    other = SimpleNamespace(quant_method="bitsandbytes", load_in_8bit=True)
    with pytest.raises(vitruvian.InputError, match=r"got a configuration of bitsandbytes\. Other libraries"):
        load(tmp_path, quantization_config=other)
    with pytest.raises(vitruvian.InputError, match="quantization_config: expected a TorchAoConfig, got 'int8'"):
        load(tmp_path, quantization_config="int8")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide what Trainer logs."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)
