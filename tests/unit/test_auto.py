import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitruvian
from tests.families import mask2former, maskformer
from tests.families.swin import resnet_fields, swin_fields
from tests.helpers.tiny_models import DECONVOLUTION, TASKS, pixels, tiny_config, tiny_task
from vitruvian import (
    AutoBackbone,
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForMaskGeneration,
    AutoModelForPoseEstimation,
    AutoModelForPreTraining,
    AutoModelForSemanticSegmentation,
    AutoProcessor,
    CheckpointError,
    Config,
    ConfigError,
    InputError,
    Mask2FormerForUniversalSegmentation,
    MaskFormerForInstanceSegmentation,
    MaskFormerSwinBackbone,
    MaskFormerSwinConfig,
    Model,
    NewWeightsWarning,
    ResNetBackbone,
    ResNetConfig,
    Sapiens2Backbone,
    Sapiens2Config,
    Sapiens2ForPoseEstimation,
    Sapiens2ForPreTraining,
    Sapiens2ImageProcessor,
    Sapiens2Model,
    SwinBackbone,
    SwinConfig,
    auto,
)
from vitruvian.config import config_dataclass

AUTO = {
    "pose": "AutoModelForPoseEstimation",
    "semantic": "AutoModelForSemanticSegmentation",
    "normal": "AutoModelForNormalEstimation",
    "pointmap": "AutoModelForPointmapEstimation",
    "matting": "AutoModelForImageMatting",
    "albedo": "AutoModelForAlbedoEstimation",
}


@pytest.fixture(scope="module")
def pose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pose")
    tiny_task("pose").save_pretrained(folder)
    Sapiens2ImageProcessor(do_pad=True).save_pretrained(folder)
    return folder


def edit(folder: Path, into: Path, **values: Any) -> Path:
    """Copy a checkpoint with another configuration."""
    for path in folder.iterdir():
        (into / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | values
    (into / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return into


PROCESSORS = ("image-processor", "processor", "video-processor")


class TestTable:
    def test_every_entry_is_a_class_with_its_family_behind_it(self) -> None:
        for model_type, family in auto.CLASS_NAMES.items():
            assert "config" in family, model_type
            assert {"model", "backbone"} & set(family), model_type
            config_class = auto.find_class(family["config"])
            assert config_class.model_type == model_type
            for task, name in family.items():
                found = auto.find_class(name)
                if task not in ("config", *PROCESSORS):
                    assert issubclass(config_class, found.config_class) or issubclass(found.config_class, config_class)

    def test_every_task_has_an_auto_class(self) -> None:
        served = {cls.task for cls in auto.AutoTaskModel.__subclasses__()}
        served |= {"config", *PROCESSORS}
        assert {task for family in auto.CLASS_NAMES.values() for task in family} <= served


class TestModels:
    @pytest.mark.parametrize("task", TASKS)
    def test_task_classes(self, task: str, tmp_path: Path) -> None:
        model = tiny_task(task)
        model.save_pretrained(tmp_path)
        for found in (getattr(vitruvian, AUTO[task]).from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)):
            assert type(found) is TASKS[task][0]
            assert torch.equal(found(pixels(1))[0], model(pixels(1))[0])

    def test_class_that_a_checkpoint_was_saved_from(self) -> None:
        for named, want in (
            (["Sapiens2Backbone"], Sapiens2Backbone),
            (["SomethingNew", "Sapiens2ForPoseEstimation"], Sapiens2ForPoseEstimation),
            (["SomethingNew"], Sapiens2Model),
            (None, Sapiens2Model),
        ):
            values = {"model_type": "sapiens2", "architectures": named}
            assert auto.saved_class(values, "here") is AutoModel.find_model_class(values, "here") is want

    def test_backbone(self, pose: Path) -> None:
        found = AutoBackbone.from_pretrained(pose, out_indices=[0, 3])
        assert type(found) is Sapiens2Backbone
        assert (found.out_features, found.channels) == (["stem", "stage3"], [32, 32])

    def test_pretraining(self, tmp_path: Path) -> None:
        Sapiens2Model(tiny_config(use_mask_token=True)).save_pretrained(tmp_path)
        with pytest.warns(NewWeightsWarning):
            assert type(AutoModelForPreTraining.from_pretrained(tmp_path)) is Sapiens2ForPreTraining

    def test_keywords_reach_the_model(self, pose: Path) -> None:
        model = AutoModelForPoseEstimation.from_pretrained(
            pose, dtype="bfloat16", attn_implementation="eager", device_map="cpu", output_hidden_states=True
        )
        assert (model.dtype, model.config.attn_implementation) == (torch.bfloat16, "eager")
        assert model.config.output_hidden_states
        with pytest.warns(NewWeightsWarning):
            assert AutoModelForPoseEstimation.from_pretrained(pose, num_labels=9).num_labels == 9
        with pytest.raises(ConfigError, match="the name of a field, got 'trust_remote'"):
            AutoModel.from_pretrained(pose, trust_remote=True)

    def test_given_configuration(self, pose: Path, tmp_path: Path) -> None:
        config = Sapiens2Config.from_pretrained(pose)
        assert type(AutoModel.from_pretrained(pose, config=config)) is Sapiens2ForPoseEstimation
        alone = tmp_path / "w.safetensors"
        alone.write_bytes((pose / "model.safetensors").read_bytes())
        for given in (config, pose, str(pose)):
            assert type(AutoModel.from_pretrained(alone, config=given)) is Sapiens2ForPoseEstimation
            assert type(AutoModelForPoseEstimation.from_pretrained(alone, config=given)) is Sapiens2ForPoseEstimation

    def test_single_file(self, pose: Path) -> None:
        assert type(AutoModel.from_pretrained(pose / "model.safetensors")) is Sapiens2ForPoseEstimation

    def test_from_config(self) -> None:
        config = tiny_config(head_config=DECONVOLUTION, num_labels=5)
        model = AutoModelForPoseEstimation.from_config(config, dtype=torch.bfloat16)
        assert (type(model), model.dtype) == (Sapiens2ForPoseEstimation, torch.bfloat16)
        assert type(AutoModel.from_config(config)) is Sapiens2Model

    def test_a_task_that_the_family_lacks(self, pose: Path) -> None:
        with pytest.raises(
            InputError, match=r"AutoModelForMaskGeneration: has no class for model_type 'sapiens2'"
        ) as caught:
            AutoModelForMaskGeneration.from_pretrained(pose)
        assert "opens with AutoModel, AutoBackbone" in str(caught.value)
        assert "AutoModelForPoseEstimation" in str(caught.value)


class TestMaskFamilies:
    @pytest.mark.parametrize(
        ("tiny", "whole", "autos"),
        [
            (maskformer.tiny, MaskFormerForInstanceSegmentation, ("Image", "Instance", "Universal")),
            (mask2former.tiny, Mask2FormerForUniversalSegmentation, ("Image", "Instance", "Universal")),
        ],
    )
    def test_segmentation(self, tiny: Any, whole: Any, autos: tuple[str, ...], tmp_path: Path) -> None:
        whole(tiny()).save_pretrained(tmp_path)
        for task in autos:
            assert type(getattr(vitruvian, f"AutoModelFor{task}Segmentation").from_pretrained(tmp_path)) is whole
        for bare in (AutoModel.from_pretrained(tmp_path), AutoModel.from_config(tiny())):
            assert type(bare).__name__ in ("MaskFormerModel", "Mask2FormerModel")
        # Their queries are no class map: what opens for semantic segmentation has `logits` [B, K, h, w].
        with pytest.raises(InputError, match="AutoModelForUniversalSegmentation"):
            AutoModelForSemanticSegmentation.from_pretrained(tmp_path)

    @pytest.mark.parametrize(
        ("config", "whole"),
        [
            (SwinConfig(**swin_fields()), SwinBackbone),
            (MaskFormerSwinConfig(**swin_fields()), MaskFormerSwinBackbone),
            (ResNetConfig(**resnet_fields()), ResNetBackbone),
        ],
    )
    def test_backbones(self, config: Any, whole: Any, tmp_path: Path) -> None:
        whole(config).save_pretrained(tmp_path)
        found = AutoBackbone.from_pretrained(tmp_path, out_indices=[1, 3])
        assert type(found) is whole
        assert found.out_features == ["stage1", "stage3"]
        assert len(found(torch.zeros(1, 3, 64, 64)).feature_maps) == 2
        assert type(AutoBackbone.from_config(config)) is whole

    def test_what_is_a_backbone_only(self, tmp_path: Path) -> None:
        ResNetBackbone(ResNetConfig(**resnet_fields())).save_pretrained(tmp_path)
        with pytest.raises(InputError, match=r"'resnet'\. This checkpoint opens with AutoBackbone\."):
            AutoModel.from_pretrained(tmp_path)


@config_dataclass
class OwnConfig(Config):
    model_type = "own"


class OwnModel(Model):
    config_class = OwnConfig

    def __init__(self, config: OwnConfig) -> None:
        super().__init__(config)
        self.layer = torch.nn.Linear(2, 2)
        self.post_init()


def test_registered_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "CLASS_NAMES", {name: dict(family) for name, family in auto.CLASS_NAMES.items()})
    monkeypatch.setattr(auto, "_registered", {})
    AutoConfig.register("own", OwnConfig)
    AutoModel.register(OwnConfig, OwnModel)
    OwnModel(OwnConfig()).save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is OwnConfig
    assert type(AutoModel.from_pretrained(tmp_path)) is OwnModel
    with pytest.raises(InputError, match="exist_ok=True"):
        AutoModel.register(Sapiens2Config, OwnModel)
    with pytest.raises(InputError, match="model_type"):
        AutoConfig.register("other", OwnConfig)


class TestConfigs:
    def test_read(self, pose: Path) -> None:
        config = AutoConfig.from_pretrained(pose)
        assert isinstance(config, Sapiens2Config)
        assert config.num_labels == 5
        changed = AutoConfig.from_pretrained(pose, num_labels=7, drop_path_rate=0.5)
        assert (changed.num_labels, changed.drop_path_rate) == (7, 0.5)
        renamed = AutoConfig.from_pretrained(pose, id2label={0: "a"})
        assert (renamed.num_labels, renamed.label2id) == (1, {"a": 0})

    def test_for_model(self) -> None:
        assert AutoConfig.for_model("sapiens2", hidden_size=512).hidden_size == 512

    def test_unknown_model_type(self, pose: Path, tmp_path: Path) -> None:
        for named in ("sapiens3", None, ..., ["sapiens2"], 3):
            folder = edit(pose, tmp_path, model_type=named)
            for cls in (AutoConfig, AutoModel, AutoModelForPoseEstimation):
                with pytest.raises(ConfigError, match=r"expected a model_type among .*sapiens2.*, got"):
                    cls.from_pretrained(folder)
        with pytest.raises(ConfigError, match=r"got 'sapiens3'\. Did you mean sapiens2\?"):
            AutoConfig.for_model("sapiens3")

    def test_missing(self, tmp_path: Path) -> None:
        for cls in (AutoConfig, AutoModel, AutoBackbone):
            with pytest.raises(CheckpointError, match=r"expected config\.json, found none"):
                cls.from_pretrained(tmp_path)

    def test_a_file_of_any_name(self, pose: Path, tmp_path: Path) -> None:
        (tmp_path / "mine.json").write_bytes((pose / "config.json").read_bytes())
        assert AutoConfig.from_pretrained(tmp_path / "mine.json").num_labels == 5


class TestProcessors:
    @pytest.mark.parametrize("cls", [AutoImageProcessor, AutoProcessor])
    def test_by_its_own_file(self, cls: Any, tmp_path: Path) -> None:
        Sapiens2ImageProcessor(do_pad=True).save_pretrained(tmp_path)
        found = cls.from_pretrained(tmp_path)
        assert type(found) is Sapiens2ImageProcessor
        assert found.do_pad is True
        assert cls.from_pretrained(tmp_path, do_pad=False).do_pad is False

    @pytest.mark.parametrize(
        "name", ["Sapiens2ImageProcessorFast", "Sapiens2ImageProcessorPil", "Sapiens2FeatureExtractor"]
    )
    def test_older_names(self, name: str, tmp_path: Path) -> None:
        key = "feature_extractor_type" if "Feature" in name else "image_processor_type"
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({key: name, "do_pad": True}))
        assert AutoImageProcessor.from_pretrained(tmp_path).do_pad is True

    @pytest.mark.parametrize("cls", [AutoImageProcessor, AutoProcessor])
    def test_by_the_model(self, cls: Any, pose: Path, tmp_path: Path) -> None:
        folder = edit(pose, tmp_path)
        (folder / "preprocessor_config.json").write_text("{}")
        assert type(cls.from_pretrained(folder)) is Sapiens2ImageProcessor

    def test_missing(self, pose: Path, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="expected the files of a known processor, found none"):
            AutoImageProcessor.from_pretrained(tmp_path)
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "OtherProcessor"}))
        with pytest.raises(CheckpointError, match="expected the files of a known processor, found OtherProcessor"):
            AutoImageProcessor.from_pretrained(tmp_path)
        folder = edit(pose, tmp_path)
        (folder / "preprocessor_config.json").unlink()
        with pytest.raises(CheckpointError, match=r"expected a file preprocessor_config\.json"):
            AutoImageProcessor.from_pretrained(folder)

    def test_bad_json(self, tmp_path: Path) -> None:
        (tmp_path / "preprocessor_config.json").write_text("{")
        with pytest.raises(CheckpointError, match="expected JSON"):
            AutoImageProcessor.from_pretrained(tmp_path)

    def test_registered_classes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(auto, "CLASS_NAMES", {name: dict(family) for name, family in auto.CLASS_NAMES.items()})
        monkeypatch.setattr(auto, "_registered", {})

        @config_dataclass
        class OtherConfig(Config):
            model_type = "other"

        @config_dataclass
        class OtherImageProcessor(Sapiens2ImageProcessor):
            pass

        OtherConfig().save_pretrained(tmp_path)
        OtherImageProcessor(do_pad=True).save_pretrained(tmp_path)
        with pytest.raises(CheckpointError, match="expected the files of a known processor"):
            AutoImageProcessor.from_pretrained(tmp_path)
        AutoImageProcessor.register(OtherConfig, fast_image_processor_class=OtherImageProcessor)
        assert type(AutoImageProcessor.from_pretrained(tmp_path)) is OtherImageProcessor
        assert type(AutoProcessor.from_pretrained(tmp_path)) is OtherImageProcessor
        AutoProcessor.register(OtherConfig, Sapiens2ImageProcessor)
        assert type(AutoProcessor.from_pretrained(tmp_path)) is Sapiens2ImageProcessor
        with pytest.raises(InputError, match="exist_ok=True"):
            AutoProcessor.register(OtherConfig, OtherImageProcessor)
        AutoProcessor.register(OtherConfig, OtherImageProcessor, exist_ok=True)
        AutoImageProcessor.register(OtherConfig, image_processor_classes={"pil": Sapiens2ImageProcessor}, exist_ok=True)
        assert type(AutoProcessor.from_pretrained(tmp_path)) is OtherImageProcessor
        with pytest.raises(InputError, match="image_processor_classes: expected at least one class"):
            AutoImageProcessor.register(OtherConfig)
