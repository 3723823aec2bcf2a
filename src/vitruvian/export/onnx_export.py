"""Transposed convolutions as plain ones, for which engines have quicker kernels, and int8 ones at all.

Of kernel 4, stride 2 and padding 1: each of the four phases of the result is a 2×2 convolution, and all four read the
same windows of the padded map, so that one convolution gives four times the channels. Shuffled into a grid of twice
the size they are the result with one pixel too many on each side.

Models as ONNX files: names of inputs and outputs as in the model's call, any batch size, checked after writing.
"""

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

from vitruvian.errors import InputError
from vitruvian.export.runtime import ONNX_FILE, Signature, flatten, need
from vitruvian.model import Model


class SubPixel(nn.Module):
    """A transposed convolution of kernel 4, stride 2 and padding 1."""

    def __init__(self, convolution: nn.ConvTranspose2d) -> None:
        super().__init__()
        order = torch.tensor([[2, 0], [3, 1]])
        taps = convolution.weight.detach()[:, :, order][:, :, :, :, order]  # [C, C', 2, 2, 2, 2]
        self.weight = nn.Parameter(taps.permute(1, 2, 4, 0, 3, 5).flatten(0, 2))  # [C'·4, C, 2, 2]
        bias: Tensor | None = convolution.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().repeat_interleave(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, h, w] to [B, C', 2h, 2w]."""
        x = F.conv2d(x, self.weight, self.bias, padding=1)  # [B, C'·4, h + 1, w + 1]
        return F.pixel_shuffle(x, 2)[:, :, 1:-1, 1:-1]


def fits(module: nn.Module) -> bool:
    """Tell whether a module is a transposed convolution of the form that `SubPixel` takes."""
    return (
        isinstance(module, nn.ConvTranspose2d)
        and (module.kernel_size, module.stride, module.padding) == ((4, 4), (2, 2), (1, 1))
        and (tuple(module.output_padding), tuple(module.dilation), module.groups) == ((0, 0), (1, 1), 1)
    )


@contextlib.contextmanager
def subpixel_convolutions(model: nn.Module) -> Iterator[None]:
    """Run a model's transposed convolutions as plain ones for a while."""
    swapped = [
        (owner, name, child) for owner in model.modules() for name, child in owner.named_children() if fits(child)
    ]
    try:
        for owner, name, child in swapped:
            if isinstance(child, nn.ConvTranspose2d):
                setattr(owner, name, SubPixel(child))
        yield
    finally:
        for owner, name, child in swapped:
            setattr(owner, name, child)


OPSET = 20


LARGE = 1 << 30  # bytes of weights above which they go into a file of their own; ONNX ends at 2 GiB


SINGLE = ("sam2", "sam2_video")  # model types that are exported for one picture


TOLERANCE = 1e-3  # largest difference from torch, over the largest value


def export_onnx(
    model: Model,
    folder: str | Path,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    options: Mapping[str, Any] | None = None,
    size_hw: tuple[int, int] | None = None,
    opset: int = OPSET,
    check: bool = True,
) -> Path:
    """Write a model as ONNX, with its configuration, and return the path of the file.

    The size of pictures and the number of prompts are those of the example; the batch may have any size when it runs.
    SAM 2 is the exception: how it groups prompts depends on the batch, so it is exported for one picture. A model that
    `optimize` changed is exported as it was before.

    Args:
        model: The model, in float32 on the CPU.
        folder: Folder to write into, made if needed.
        inputs: An example of its inputs by name; by default those of `example_inputs`. The batch of all must be the
            same; its size does not matter.
        options: Further arguments of the call that are to stay as they are, such as ``{"multimask_output": False}``.
        size_hw: Size of pictures in the default example.
        opset: Version of the ONNX operators.
        check: Run the file with ONNX Runtime and compare with torch; raises `InputError` where they differ.
    """
    for package in ("onnx", "onnxscript", *(("onnxruntime",) if check else ())):
        need(package, "ONNX export")
    if model.dtype != torch.float32 or model.device.type != "cpu":
        raise InputError(
            f"export_onnx: expected a model in float32 on the CPU, got {model.dtype} on {model.device}. "
            "Call model.float().cpu() first."
        )
    place = Path(folder).expanduser()
    if place.is_file() or place.suffix == ".onnx":
        raise InputError(f"export_onnx: expected a folder to write {ONNX_FILE} into, got {place}.")
    example = dict(inputs) if inputs is not None else example_inputs(model, size_hw=size_hw)
    place.mkdir(parents=True, exist_ok=True)
    was_training = model.training
    model.eval()
    try:
        signature = write_file(model, example, options or {}, place / ONNX_FILE, opset)
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(place)
        signature.write(place)
        if check:
            check_file(model, example, options or {}, place)
    finally:
        model.train(was_training)
    return place / ONNX_FILE


def example_inputs(model: Model, *, size_hw: tuple[int, int] | None = None, batch: int = 1) -> dict[str, Tensor]:
    """Return inputs that a model takes: noise for pictures, and for SAM 2 one point in the middle.

    Args:
        model: The model.
        size_hw: Size of the pictures; by default the one in the configuration, and 512×512 where it has none.
        batch: Number of pictures.
    """
    config: Any = model.config
    if size_hw is None:
        stated = getattr(config, "prompt_encoder_config", config)  # of SAM 2: where prompts are is said in its pixels
        size_hw = sides(getattr(stated, "image_size", None))
    noise = torch.randn(batch, 3, *size_hw, generator=torch.Generator().manual_seed(0))
    found = {"pixel_values": noise}
    if config.model_type in SINGLE:
        middle = torch.tensor([size_hw[1] / 2, size_hw[0] / 2])
        found["input_points"] = middle.expand(batch, 1, 1, 2).contiguous()
        found["input_labels"] = torch.ones(batch, 1, 1, dtype=torch.int64)
    return found


def sides(size: Any) -> tuple[int, int]:
    """Read a side, a pair or nothing."""
    if size is None:
        return 512, 512
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


class Traced(nn.Module):
    """A model whose inputs come by position and whose outputs leave as a flat tuple; it notes their names."""

    def __init__(self, model: Model, inputs: list[str], options: Mapping[str, Any], notes: dict[str, str]) -> None:
        super().__init__()
        self.model, self.inputs, self.options = model, inputs, dict(options)
        self.note = notes.update  # a dict of its own would be put back after tracing

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the model."""
        output = self.model(**dict(zip(self.inputs, tensors, strict=True)), **self.options, return_dict=True)
        found = dict(flatten(output))
        self.note({name: f"{type(output).__module__}:{type(output).__qualname__}" for name in found})
        # A tensor that leaves twice must be two for the exporter.
        return tuple(value.clone() for value in found.values())


def write_file(
    model: Model, example: Mapping[str, Tensor], options: Mapping[str, Any], path: Path, opset: int
) -> Signature:
    """Write the ONNX file of a model."""
    # A batch of one would be taken as a constant.
    pair = tuple(tensor[:1].expand(2, *tensor.shape[1:]).contiguous() for tensor in example.values())
    notes: dict[str, str] = {}
    single = model.config.model_type in SINGLE
    if single:
        pair = tuple(tensor[:1] for tensor in pair)
    traced = Traced(model, list(example), options, notes)
    batch = torch.export.Dim("batch", min=1, max=4096)
    with subpixel_convolutions(model), quiet(), torch.no_grad():
        program = torch.onnx.export(
            traced,
            pair,
            dynamo=True,
            opset_version=opset,
            input_names=list(example),
            dynamic_shapes=None if single else {"tensors": tuple({0: batch} for _ in pair)},
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export: expected a program, got None")
    for value, name in zip(program.model.graph.outputs, notes, strict=True):
        value.name = name
    size = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    program.save(path, external_data=size > LARGE)
    shapes = {name: list(tensor.shape) for name, tensor in example.items()}
    return Signature(type(model).__name__, next(iter(notes.values())), shapes, list(notes), single)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's progress and hints off the screen."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_file(model: Model, example: Mapping[str, Any], options: Mapping[str, Any], folder: Path) -> None:
    """Raise `InputError` unless the file gives what torch gives."""
    from vitruvian.export.comparison import compare_outputs
    from vitruvian.export.runtime import OnnxModel

    given: dict[str, Any] = dict(example)
    with torch.inference_mode():
        want = model(**given, **options, return_dict=True)
    found = compare_outputs(OnnxModel(folder)(**given), want)
    far = {name: distance for name, distance in found.items() if not distance <= TOLERANCE}
    if far:
        listed = ", ".join(f"{name} by {distance:.2g}" for name, distance in far.items())
        raise InputError(
            f"{folder}: the ONNX file differs from torch: {listed} of the largest value. Another opset may help."
        )
