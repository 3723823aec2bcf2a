"""Export to ONNX and int8, and runtimes that run exported models like the torch models.

    model ─▶ export_onnx ─▶ folder ─▶ OnnxModel or OpenVinoModel ─▶ outputs as from the model
                               └─▶ quantize_int8 ─▶ folder ─▶ OpenVinoModel
    folder ─▶ exported_pipeline ─▶ results as from a pipeline

Needs the extra ``export``: ``pip install "vitruvian[export]"``.
"""

from vitruvian.export.comparison import compare_outputs
from vitruvian.export.int8 import quantize_int8
from vitruvian.export.onnx_export import example_inputs, export_onnx
from vitruvian.export.runtime import ExportedModel, OnnxModel, OpenVinoModel, exported_pipeline

__all__ = [
    "ExportedModel",
    "OnnxModel",
    "OpenVinoModel",
    "compare_outputs",
    "example_inputs",
    "export_onnx",
    "exported_pipeline",
    "quantize_int8",
]
