"""vitruvian sees people and everything around them.

Names are imported when they are first used, so that ``import vitruvian`` is fast and does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from vitruvian.version import __version__

# fmt: off
# module -> public names in it
_PUBLIC_NAMES: dict[str, tuple[str, ...]] = {
    "vitruvian.auto": (
        "AutoBackbone", "AutoConfig", "AutoImageProcessor", "AutoModel", "AutoModelForAlbedoEstimation",
        "AutoModelForImageClassification", "AutoModelForImageMatting", "AutoModelForImageSegmentation",
        "AutoModelForInstanceSegmentation", "AutoModelForMaskedImageModeling", "AutoModelForMaskGeneration",
        "AutoModelForNormalEstimation", "AutoModelForObjectTracking", "AutoModelForPeopleDetection",
        "AutoModelForPointmapEstimation", "AutoModelForPoseEstimation", "AutoModelForPreTraining",
        "AutoModelForSemanticSegmentation", "AutoModelForUniversalSegmentation", "AutoProcessor", "AutoVideoProcessor",
    ),
    "vitruvian.config": ("Config",),
    "vitruvian.errors": (
        "CheckpointError", "ConfigError", "ImageError", "InputError", "InputTypeError", "MissingExtraError",
        "NewWeightsWarning", "PromptError", "VitruvianError", "VitruvianWarning", "WeightsError",
    ),
    "vitruvian.images": ("load_image",),
    "vitruvian.limits": ("Limits", "get_limits", "set_limits", "use_limits"),
    "vitruvian.model": ("Model",),
    "vitruvian.models.mask2former.configuration": ("Mask2FormerConfig",),
    "vitruvian.models.mask2former.modeling": (
        "Mask2FormerForUniversalSegmentation", "Mask2FormerForUniversalSegmentationOutput", "Mask2FormerModel",
        "Mask2FormerModelOutput", "Mask2FormerPreTrainedModel",
    ),
    "vitruvian.models.mask2former.processing": (
        "Mask2FormerImageProcessor", "Mask2FormerImageProcessorFast", "Mask2FormerImageProcessorPil",
    ),
    "vitruvian.models.maskformer.configuration": ("DetrConfig", "MaskFormerConfig"),
    "vitruvian.models.maskformer.modeling": (
        "MaskFormerForInstanceSegmentation", "MaskFormerForInstanceSegmentationOutput", "MaskFormerModel",
        "MaskFormerModelOutput", "MaskFormerPreTrainedModel",
    ),
    "vitruvian.models.maskformer.processing": (
        "MaskFormerImageProcessor", "MaskFormerImageProcessorFast", "MaskFormerImageProcessorPil",
    ),
    "vitruvian.models.resnet.configuration": ("ResNetConfig",),
    "vitruvian.models.resnet.modeling": ("ResNetBackbone",),
    "vitruvian.models.sam2.automatic_masks": ("AutomaticMaskOptions", "MaskProposals", "Sam2AutomaticMaskGenerator"),
    "vitruvian.models.sam2.configuration": (
        "Sam2Config", "Sam2HieraDetConfig", "Sam2MaskDecoderConfig", "Sam2PromptEncoderConfig", "Sam2VideoConfig",
        "Sam2VideoMaskDecoderConfig", "Sam2VideoPromptEncoderConfig", "Sam2VisionConfig",
    ),
    "vitruvian.models.sam2.hiera": ("Sam2HieraDetModel", "Sam2HieraDetModelOutput", "Sam2PreTrainedModel"),
    "vitruvian.models.sam2.image_session": ("Sam2Session",),
    "vitruvian.models.sam2.modeling": ("Sam2ImageSegmentationOutput", "Sam2Model"),
    "vitruvian.models.sam2.processing": ("Sam2ImageProcessor", "Sam2ImageProcessorFast", "Sam2Processor"),
    "vitruvian.models.sam2.video_modeling": (
        "Sam2VideoModel", "Sam2VideoPreTrainedModel", "Sam2VideoSegmentationOutput",
    ),
    "vitruvian.models.sam2.video_processing": ("Sam2VideoProcessor", "Sam2VideoVideoProcessor"),
    "vitruvian.models.sam2.options": ("Sam2SessionOptions",),
    "vitruvian.models.sam2.video_session": ("Sam2VideoInferenceSession",),
    "vitruvian.models.sam2.vision_encoder": ("Sam2VisionEncoderOutput", "Sam2VisionModel"),
    "vitruvian.models.sapiens2.configuration": ("Sapiens2Config", "Sapiens2HeadConfig"),
    "vitruvian.models.sapiens2.modeling": (
        "Sapiens2Backbone", "Sapiens2ForAlbedoEstimation", "Sapiens2ForImageMatting", "Sapiens2ForNormalEstimation",
        "Sapiens2ForPointmapEstimation", "Sapiens2ForPoseEstimation", "Sapiens2ForSemanticSegmentation",
        "Sapiens2Model", "Sapiens2PreTrainedModel",
    ),
    "vitruvian.models.sapiens2.multitask": ("Sapiens2MultiTask",),
    "vitruvian.models.sapiens2.outputs": (
        "Sapiens2AlbedoEstimatorOutput", "Sapiens2BackboneOutput", "Sapiens2ImageMattingOutput",
        "Sapiens2NormalEstimatorOutput", "Sapiens2PointmapEstimatorOutput", "Sapiens2PoseEstimatorOutput",
        "Sapiens2PreTrainingOutput", "Sapiens2SemanticSegmenterOutput",
    ),
    "vitruvian.models.sapiens2.people_detection": ("Sapiens2ForPeopleDetection", "Sapiens2PeopleDetectorOutput"),
    "vitruvian.models.sapiens2.pretraining": ("Sapiens2ForPreTraining", "SelfDistillation"),
    "vitruvian.models.sapiens2.processing": ("Sapiens2ImageProcessor",),
    "vitruvian.models.swin.configuration": ("MaskFormerSwinConfig", "SwinConfig"),
    "vitruvian.models.swin.modeling": (
        "MaskFormerSwinBackbone", "MaskFormerSwinModel", "SwinBackbone", "SwinForImageClassification",
        "SwinForMaskedImageModeling", "SwinImageClassifierOutput", "SwinMaskedImageModelingOutput", "SwinModel",
        "SwinModelOutput", "SwinPreTrainedModel",
    ),
    "vitruvian.outputs": (
        "BackboneOutput", "BaseModelOutput", "BaseModelOutputWithPooling", "BatchFeature", "ModelOutput",
        "SemanticSegmenterOutput",
    ),
    "vitruvian.pipelines": ("Failure", "Results", "pipeline"),
    "vitruvian.pipelines.video.track_prompt": ("TrackPrompt",),
    "vitruvian.processor": ("ImageProcessor", "set_legacy_results"),
    "vitruvian.results": (
        "Albedo", "Embedding", "Keypoint", "Masks", "Matte", "Normals", "Panoptic", "Parts", "People", "PersonPose",
        "Pointmap", "Pose", "Result", "Segment", "Semantic", "Track",
    ),
}
# fmt: on
_MODULE_OF_NAME = {name: module for module, names in _PUBLIC_NAMES.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF_NAME)]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF_NAME:
        value = getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)
        globals()[name] = value
        return value
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    from vitruvian.errors import near_matches

    raise AttributeError(f"module 'vitruvian' has no attribute {name!r}.{near_matches(name, __all__)}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
