"""Export to ONNX: inputs and outputs named as in the model's call, any batch size, checked after writing."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.errors import InputError, import_extra
from vitruvian.export.comparison import compare_outputs
from vitruvian.export.runtime import ONNX_FILE, OnnxModel, Signature, flatten_outputs
from vitruvian.images.types import SizeHW
from vitruvian.model import Model

_OPSET = 20
_EXTERNAL_DATA_BYTES = 1 << 30  # bytes of weights above which they have their own file; ONNX is limited to 2 GiB
_SINGLE = ("sam2", "sam2_video")  # model types that are exported for one image
_TOLERANCE = 1e-3  # largest difference from torch, over the largest value
# A transposed convolution that doubles the size of its input
_UPSAMPLING = {"kernel_size": (4, 4), "stride": (2, 2), "padding": (1, 1)}
_UPSAMPLING |= {"output_padding": (0, 0), "dilation": (1, 1)}


class _SubPixelConvolution(nn.Module):
    """A transposed convolution of kernel 4, stride 2 and padding 1 as a plain one and a pixel shuffle.

    Engines have faster kernels for plain convolutions, and int8 ones. Each of the four phases of the result is a 2×2
    convolution, and all four read the same windows of the padded map: one convolution with four times the channels
    gives the result with one pixel too many on each side.
    """

    def __init__(self, convolution: nn.ConvTranspose2d) -> None:
        super().__init__()
        self.stride = self.padding = (1, 1)  # of the plain convolution
        order = torch.tensor([[2, 0], [3, 1]])
        taps = convolution.weight.detach()[:, :, order][:, :, :, :, order]  # [C, C', 2, 2, 2, 2]
        self.weight = nn.Parameter(taps.permute(1, 2, 4, 0, 3, 5).flatten(0, 2))  # [C'·4, C, 2, 2]
        bias: Tensor | None = convolution.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().repeat_interleave(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, h, w] to [B, C', 2h, 2w]."""
        x = F.conv2d(x, self.weight, self.bias, padding=self.padding)  # [B, C'·4, h + 1, w + 1]
        return F.pixel_shuffle(x, 2)[:, :, 1:-1, 1:-1]


@contextlib.contextmanager
def _subpixel_convolutions(model: nn.Module) -> Iterator[None]:
    """Replace a model's transposed convolutions by plain ones within the context."""
    replaced = [
        (owner, name, child)
        for owner in model.modules()
        for name, child in owner.named_children()
        if isinstance(child, nn.ConvTranspose2d)
        and child.groups == 1
        and all(getattr(child, key) == value for key, value in _UPSAMPLING.items())
    ]
    try:
        for owner, name, child in replaced:
            setattr(owner, name, _SubPixelConvolution(child))
        yield
    finally:
        for owner, name, child in replaced:
            setattr(owner, name, child)


def export_onnx(
    model: Model,
    folder: str | Path,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    options: Mapping[str, Any] | None = None,
    size_hw: SizeHW | None = None,
    opset: int = _OPSET,
    check: bool = True,
) -> Path:
    """Write a model as ONNX, with its configuration, and return the path of the file.

    The image size and the number of prompts are those of the example; the batch may have any size.
    SAM 2 is the exception: how it groups prompts depends on the batch, so it is exported for one image. A model that
    `optimize` changed is exported as it was before.

    Args:
        model: The model, in float32 on the CPU.
        folder: Folder to write into, created if needed.
        inputs: An example of its inputs by name; by default those of `example_inputs`. The batch of all must be the
            same; its size does not matter.
        options: Further arguments of the call, as constants, such as ``{"multimask_output": False}``.
        size_hw: Image size of the default example.
        opset: Version of the ONNX operators.
        check: Run the file with ONNX Runtime and compare with torch; raises `InputError` where they differ.
    """
    for package in ("onnx", "onnxscript", *(("onnxruntime",) if check else ())):
        import_extra(package, "export", "ONNX export")
    if model.dtype != torch.float32 or model.device.type != "cpu":
        raise InputError(
            f"export_onnx: expected a model in float32 on the CPU, got {model.dtype} on {model.device}. "
            "Call model.float().cpu() first."
        )
    out = Path(folder).expanduser()
    if out.is_file() or out.suffix == ".onnx":
        raise InputError(f"export_onnx: expected a folder to write {ONNX_FILE} into, got {out}.")
    example = dict(inputs) if inputs is not None else example_inputs(model, size_hw=size_hw)
    out.mkdir(parents=True, exist_ok=True)
    was_training = model.training
    model.eval()
    try:
        signature = _write_file(model, example, options or {}, out / ONNX_FILE, opset)
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(out)
        signature.write(out)
        if check:
            _check_file(model, example, options or {}, out)
    finally:
        model.train(was_training)
    return out / ONNX_FILE


def example_inputs(model: Model, *, size_hw: SizeHW | None = None, batch: int = 1) -> dict[str, Tensor]:
    """Return example inputs of a model: noise for images, and for SAM 2 one point in the middle.

    Args:
        model: The model.
        size_hw: Size of the images; by default the one in the configuration, and 512×512 where it has none.
        batch: Number of images.
    """
    config: Any = model.config
    if size_hw is None:
        stated = getattr(config, "prompt_encoder_config", config)  # SAM 2 prompts are in pixels of this size
        size = getattr(stated, "image_size", None) or 512
        size_hw = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    noise = torch.randn(batch, 3, *size_hw, generator=torch.Generator().manual_seed(0))
    inputs = {"pixel_values": noise}
    if config.model_type in _SINGLE:
        middle = torch.tensor([size_hw[1] / 2, size_hw[0] / 2])
        inputs["input_points"] = middle.expand(batch, 1, 1, 2).contiguous()
        inputs["input_labels"] = torch.ones(batch, 1, 1, dtype=torch.int64)
    return inputs


class _Traced(nn.Module):
    """A model with positional inputs and a flat tuple of outputs; it records their names."""

    def __init__(self, model: Model, inputs: list[str], options: Mapping[str, Any], names: dict[str, str]) -> None:
        super().__init__()
        self.model, self.inputs, self.options = model, inputs, dict(options)
        self.record = names.update  # an attribute of type dict would be restored after tracing

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the model."""
        output = self.model(**dict(zip(self.inputs, tensors, strict=True)), **self.options, return_dict=True)
        outputs = dict(flatten_outputs(output))
        self.record({name: f"{type(output).__module__}:{type(output).__qualname__}" for name in outputs})
        # The exporter needs two tensors for one that is returned twice.
        return tuple(value.clone() for value in outputs.values())


def _write_file(
    model: Model, example: Mapping[str, Tensor], options: Mapping[str, Any], path: Path, opset: int
) -> Signature:
    """Write the ONNX file of a model."""
    single = model.config.model_type in _SINGLE
    count = 1 if single else 2  # a batch of one would be taken as a constant
    batches = tuple(tensor[:1].expand(count, *tensor.shape[1:]).contiguous() for tensor in example.values())
    names: dict[str, str] = {}
    traced = _Traced(model, list(example), options, names)
    batch = torch.export.Dim("batch", min=1, max=4096)
    with _subpixel_convolutions(model), _silence(), torch.no_grad():
        program = torch.onnx.export(
            traced,
            batches,
            dynamo=True,
            opset_version=opset,
            input_names=list(example),
            dynamic_shapes=None if single else {"tensors": tuple({0: batch} for _ in batches)},
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export: expected a program, got None")
    for value, name in zip(program.model.graph.outputs, names, strict=True):
        value.name = name
    size = sum(value.nbytes for value in model.state_dict().values())
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    program.save(path, external_data=size > _EXTERNAL_DATA_BYTES)
    shapes = {name: list(tensor.shape) for name, tensor in example.items()}
    return Signature(type(model).__name__, next(iter(names.values())), shapes, list(names), single)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress the progress and hints of the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _check_file(model: Model, example: Mapping[str, Any], options: Mapping[str, Any], folder: Path) -> None:
    """Raise `InputError` unless the file gives the outputs of torch."""
    inputs: dict[str, Any] = dict(example)
    with torch.inference_mode():
        want = model(**inputs, **options, return_dict=True)
    distances = compare_outputs(OnnxModel(folder)(**inputs), want)
    far = {name: distance for name, distance in distances.items() if not distance <= _TOLERANCE}
    if far:
        listed = ", ".join(f"{name} by {distance:.2g}" for name, distance in far.items())
        raise InputError(
            f"{folder}: the ONNX file differs from torch: {listed} of the largest value. Another opset may help."
        )
