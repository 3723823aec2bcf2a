"""`Model`: an `nn.Module` that opens, saves and shares checkpoints in the layout of the Hub.

from_pretrained(name): config.json -> build on the meta device -> match names -> assign weights -> new heads -> eval()
"""

from __future__ import annotations

import copy
import tempfile
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, Unpack

import torch
from torch import Tensor, nn

from vitruvian.config import Config, split_hub_options
from vitruvian.devices import (
    add_device_hooks,
    check_one_device,
    checked_device,
    checked_dtype,
    choose_devices,
    choose_dtype,
    device_for,
    with_resident_modules,
)
from vitruvian.errors import ConfigError, InputError, NewWeightsWarning, WeightsError
from vitruvian.hub import CONFIG_FILE, HubOptions, pinned, upload, weight_file
from vitruvian.layers.init import no_init_weights
from vitruvian.ops.attention import check_implementation
from vitruvian.ops.cuda_graphs import GraphCache
from vitruvian.outputs import ModelOutput, OutputFlags, OutputOptions
from vitruvian.weights import (
    SAVED_FILES,
    KeyPlan,
    WeightFiles,
    check_finite,
    check_floating,
    describe_mismatch,
    match_keys,
    open_weights,
    save_weights,
    some,
)

OutputT = TypeVar("OutputT", bound=ModelOutput)
R = TypeVar("R")


class Model(nn.Module):
    """Base of all models. Subclasses set the class variables, build in `__init__` and call `post_init()` last.

    Attributes:
        optimized: Whether `optimize` was called.
        graphs: CUDA graphs of captured calls; None unless `optimize` enabled them.
    """

    config_class: ClassVar[type[Config]]
    base_model_prefix: ClassVar[str] = ""
    main_input_name: ClassVar[str] = "pixel_values"
    no_split_modules: ClassVar[tuple[str, ...]] = ()  # classes whose instances are not split over devices
    resident_modules: ClassVar[tuple[str, ...]] = ()  # modules on one device together, used without being called
    renamed_keys: ClassVar[tuple[tuple[str, str], ...]] = ()
    ignored_keys: ClassVar[tuple[str, ...]] = ()
    optional_keys: ClassVar[tuple[str, ...]] = ()
    captures_forward: ClassVar[bool] = True  # whether `optimize` captures `forward` as a whole in a CUDA graph

    def __init__(self, config: Config) -> None:
        super().__init__()
        if not isinstance(config, self.config_class):
            raise ConfigError(
                f"{type(self).__name__}: expected a {self.config_class.__name__}, got {type(config).__name__}."
            )
        self.config = config
        self.optimized = False
        self.fp8 = False
        self.graphs: GraphCache | None = None

    def post_init(self) -> None:
        """Finish construction: initialize weights and select the attention implementation."""
        if not any(parameter.is_meta for parameter in self.parameters()):
            for module in self.modules():
                self.init_module(module)
        self.set_attn_implementation(self.config.attn_implementation or "sdpa")

    def init_module(self, module: nn.Module) -> None:
        """Initialize the parameters of `module` itself, without its children. Subclasses override it."""

    # ------------------------------------------------------------------ loading and saving

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        dtype: torch.dtype | str | None = None,
        device: str | torch.device | int | None = None,
        attn_implementation: str | None = None,
    ) -> Self:
        """Build a model with new weights in training mode, directly on its device and in its data type.

        Args:
            config: The configuration.
            dtype: Data type of the weights; float32 by default.
            device: Device of the weights; the CPU by default.
            attn_implementation: As in `from_pretrained`.
        """
        with no_init_weights():
            model = cls(config)
        if dtype is not None:
            model.to(checked_dtype(dtype))
        target = checked_device("cpu" if device is None else device)
        model.to_empty(device=target)
        for module in model.modules():
            model.init_module(module)
            reset_buffers(module, lambda _: target)
        if attn_implementation is not None:
            model.set_attn_implementation(attn_implementation)
        return model

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        config: Config | str | Path | None = None,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device: str | torch.device | int | None = None,
        device_map: str | torch.device | int | dict[str, Any] | None = None,
        ignore_mismatched_sizes: bool = False,
        attn_implementation: str | None = None,
        use_safetensors: bool | None = None,
        check_finite: bool = True,
        **keywords: Any,
    ) -> Self:
        """Open a checkpoint and return the model in evaluation mode.

        Args:
            pretrained_model_name_or_path: A folder, a single weight file, or a Hub name such as
                ``facebook/sapiens2-pose-0.4b``.
            config: Configuration, or where to read it, instead of that of the checkpoint.
            dtype: Data type of the weights; by default the checkpoint's. `torch_dtype` is the older spelling.
            device: Device of the whole model.
            device_map: ``"auto"`` for the best device (several, by accelerate, if one is too small), a device, or a
                table of module name → device.
            ignore_mismatched_sizes: Initialize a new head if that of the checkpoint has another size. A `num_labels`
                other than that of the checkpoint implies it.
            attn_implementation: ``"sdpa"``, ``"eager"``, ``"flash_attention_2"`` or ``"flash_attention_3"``.
            use_safetensors: Require (or refuse) safetensors files; by default they are preferred.
            check_finite: Raise on weights with NaN or infinite values.
            keywords: Options of the Hub such as `revision` and `token` (see `HubOptions`), and fields of the
                configuration to change, such as `num_labels`.
        """
        hub_options, overrides = split_hub_options(keywords)
        options = pinned(pretrained_model_name_or_path, hub_options)
        source = str(pretrained_model_name_or_path)
        settings, new_labels = cls.read_config(
            pretrained_model_name_or_path, config, options if config is None else hub_options, overrides
        )
        if attn_implementation is not None:
            settings.attn_implementation = attn_implementation
        files = cls.adapt_files(cls.open_files(pretrained_model_name_or_path, options, use_safetensors=use_safetensors))

        with no_init_weights():
            model = cls(settings)
        wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        plan = match_keys(
            wanted, files.shapes, prefix=cls.base_model_prefix, renames=cls.renamed_keys, ignored=cls.ignored_keys
        )
        new = cls.check_plan(plan, source, new_head=ignore_mismatched_sizes or new_labels)
        weight_dtype = choose_dtype(torch_dtype if dtype is None else dtype, settings.dtype, files)
        devices = choose_devices(model, device, device_map, weight_dtype, keep_whole=cls.no_split_modules)
        devices = with_resident_modules(devices, cls.resident_modules)
        loaded = model._assign_weights(files, plan, weight_dtype, devices, source, finite=check_finite)
        model._init_missing(set(wanted) - loaded, weight_dtype, devices)
        if new:
            warnings.warn(
                f"{cls.__name__}: {len(new)} weights are not in {source} and are newly initialized: {some(new)}. "
                "Train the model before you use its predictions.",
                NewWeightsWarning,
                stacklevel=2,
            )
        settings.name_or_path, settings.dtype = source, str(weight_dtype).removeprefix("torch.")
        model.eval()
        add_device_hooks(model, devices, cls.no_split_modules)
        return model

    @classmethod
    def open_files(cls, source: str | Path, options: HubOptions, *, use_safetensors: bool | None) -> WeightFiles:
        """Open the weights of a checkpoint. Subclasses with other file formats override it."""
        return open_weights(source, options, use_safetensors=use_safetensors)

    @classmethod
    def adapt_files(cls, files: WeightFiles) -> WeightFiles:
        """Rename or split the weights of files with other names than the modules. Subclasses override it."""
        return files

    @classmethod
    def read_config(
        cls, source: str | Path, config: Config | str | Path | None, options: HubOptions, overrides: dict[str, Any]
    ) -> tuple[Any, bool]:
        """Return the configuration of the model, and whether `overrides` change the number of labels."""
        if isinstance(config, Config):
            read = copy.deepcopy(config)  # loading writes into it
        else:
            if config is None and weight_file(source) is not None:
                beside = Path(source).expanduser().parent / CONFIG_FILE
                if not beside.is_file():
                    raise ConfigError(
                        f"{source}: expected {CONFIG_FILE} beside the weight file, found none. Put it there, or pass "
                        "a config."
                    )
            read = cls.config_class.from_pretrained(config or source, **options.__dict__)
        if not overrides:
            return read, False
        changed = cls.config_class.from_dict(read.to_dict(), **overrides)
        changed.attn_implementation = changed.attn_implementation or read.attn_implementation
        return changed, changed.num_labels != read.num_labels

    @classmethod
    def check_plan(cls, plan: KeyPlan, source: str, *, new_head: bool) -> list[str]:
        """Raise `WeightsError` if weights are missing, unexpected or misshapen; return the names to initialize."""
        prefix = f"{cls.base_model_prefix}."
        optional = [name for name in plan.missing if any(pattern in name for pattern in cls.optional_keys)]
        new = missing = [name for name in plan.missing if name not in optional]
        unexpected, mismatched = plan.unexpected, plan.mismatched
        if plan.added_prefix:  # a checkpoint of the base model, which has no head
            missing = [name for name in missing if name.startswith(prefix)]
        if new_head:
            mismatched = []
            if not plan.dropped_prefix:
                missing = [name for name in missing if name.startswith(prefix)]
                unexpected = [name for name in unexpected if name.startswith(prefix)]
        if missing or unexpected or mismatched:
            hint = (
                "Pass ignore_mismatched_sizes=True to start with a new head."
                if mismatched and not new_head
                else f"Is this a checkpoint for {cls.__name__}?"
            )
            raise WeightsError(
                f"{source}: its weights do not fit {cls.__name__}.\n"
                f"  {describe_mismatch(missing, unexpected, mismatched)}\n{hint}"
            )
        return new + [name for name, _, _ in plan.mismatched]

    def _assign_weights(
        self,
        files: WeightFiles,
        plan: KeyPlan,
        dtype: torch.dtype,
        devices: dict[str, torch.device],
        source: str,
        *,
        finite: bool,
    ) -> set[str]:
        """Replace meta tensors by those of files; return their names. With `finite`, others are an error."""
        for file_name, tensor in files.tensors():
            name = plan.pairs.get(file_name)
            if name is None:
                continue
            if finite:
                check_finite(name, tensor, source)
            path, _, leaf = name.rpartition(".")
            module = self.get_submodule(path)
            if getattr(module, leaf).is_floating_point():
                check_floating(name, tensor, source)
            target_dtype = dtype if tensor.is_floating_point() else tensor.dtype
            _set_tensor(module, leaf, tensor.to(device=device_for(name, devices), dtype=target_dtype))
        return set(plan.pairs.values())

    def _init_missing(self, names: set[str], dtype: torch.dtype, devices: dict[str, torch.device]) -> None:
        """Initialize weights that no file has, and compute the buffers that are never saved."""
        for path, module in self.named_modules():
            prefix = f"{path}." if path else ""

            def device_of(leaf: str, prefix: str = prefix) -> torch.device:
                return device_for(prefix + leaf, devices)

            leaves = [leaf for leaf, value in module._parameters.items() if value is not None]
            leaves += [leaf for leaf in module._buffers if leaf not in module._non_persistent_buffers_set]
            if any(prefix + leaf in names for leaf in leaves):
                loaded: dict[str, Tensor] = {}
                for leaf in leaves:
                    value: Tensor = getattr(module, leaf)
                    if prefix + leaf not in names:
                        loaded[leaf] = value
                    target_dtype = dtype if value.is_floating_point() else value.dtype
                    _set_tensor(module, leaf, torch.empty(value.shape, dtype=target_dtype, device=device_of(leaf)))
                self.init_module(module)  # initializes all weights of the module
                for leaf, value in loaded.items():
                    _set_tensor(module, leaf, value)
            reset_buffers(module, device_of)

    def save_pretrained(
        self, save_directory: str | Path, *, max_shard_size: int | str = "5GB", push_to_hub: bool = False, **push: Any
    ) -> list[Path]:
        """Write `config.json` and safetensors files that transformers reads too; return what was written.

        Args:
            save_directory: Folder to write into, created if needed. Weights of an earlier save are replaced.
            max_shard_size: Size above which weights are split into several files, such as ``"5GB"`` or ``"500MiB"``.
            push_to_hub: Upload the files too.
            push: With `push_to_hub`: `repo_id` (the folder's name by default) and the keywords of `push_to_hub`.
        """
        if push and not push_to_hub:
            raise InputError(f"save_pretrained: got {', '.join(push)}, which only push_to_hub=True uses.")
        folder = Path(save_directory).expanduser()
        self.config.architectures = [type(self).__name__]
        self.config.dtype = str(self.dtype).removeprefix("torch.")
        written = self.config.save_pretrained(folder)
        written += save_weights(self.state_dict(), folder, max_shard_size=max_shard_size)
        if push_to_hub:
            upload(written, push.pop("repo_id", folder.resolve().name), replaces=SAVED_FILES, **push)
        return written

    def push_to_hub(self, repo_id: str, *, max_shard_size: int | str = "5GB", **options: Any) -> str:
        """Save to a Hub repository (created if needed) in one commit and return its URL.

        Further keywords: `private`, `token`, `revision`, `commit_message`, `create_pr`.
        """
        with tempfile.TemporaryDirectory() as folder:
            return upload(
                self.save_pretrained(folder, max_shard_size=max_shard_size), repo_id, replaces=SAVED_FILES, **options
            )

    # ------------------------------------------------------------------ properties and options

    @property
    def device(self) -> torch.device:
        """Device of the first parameter that is not offloaded (see `device_map`)."""
        loaded = next((parameter for parameter in self.parameters() if not parameter.is_meta), None)
        return (next(self.parameters()) if loaded is None else loaded).device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the first floating-point parameter."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def num_parameters(self, *, only_trainable: bool = False) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad or not only_trainable)

    def set_attn_implementation(self, attn_implementation: str) -> None:
        """Select the implementation of attention: ``"sdpa"``, ``"eager"`` or an installed flash attention."""
        check_implementation(attn_implementation)
        self.config.attn_implementation = attn_implementation
        for module in self.modules():
            if hasattr(module, "attn_implementation"):
                setattr(module, "attn_implementation", attn_implementation)  # noqa: B010

    def optimize(self, *, cuda_graphs: bool = True, fp8: bool = False) -> Self:
        """Speed up inference at the cost of some memory; returns the model itself. Results stay the same.

        Joins weights that read the same input (checkpoints keep their names), allows Winograd convolutions, and on a
        CUDA device captures calls with small batches as CUDA graphs. Training and gradients work as before. Call it
        after loading and moving the model; moving, training or loading it again repeats what depends on weights.

        Args:
            cuda_graphs: Capture calls with small batches on a CUDA device.
            fp8: Multiply the large matrices of a Sapiens2 encoder in 8-bit floating point, with a scale for each output
                channel of the weights and for each token. Results change slightly, and the 8-bit weights take memory
                beside the others. Needs bfloat16 and a GPU of the Hopper generation or newer.
        """
        check_one_device(self, "optimize")
        if fp8 and (missing := self.missing_for_fp8()):
            raise InputError(f"optimize: fp8 needs {missing}. Leave fp8 out.")
        self.fp8 = fp8
        self.prepare_for_inference()
        self.optimized = True
        self.graphs = GraphCache() if cuda_graphs else None
        # On the instance, so that models without graphs, such as a model inside another, call `forward` directly.
        self.__dict__.pop("forward", None)
        if cuda_graphs and self.captures_forward:
            self.forward = self._captured_forward
        return self

    def prepare_for_inference(self) -> None:
        """Join or transform weights for `optimize`. Subclasses override it."""

    def missing_for_fp8(self) -> str:
        """Return what ``optimize(fp8=True)`` lacks, or an empty string. Subclasses that support fp8 override it."""
        return f"a Sapiens2 model, got {type(self).__name__}"

    def _reoptimize(self) -> None:
        """Repeat `optimize` after weights changed, if it was called. CUDA graphs are captured again."""
        if self.optimized:
            self.optimize(cuda_graphs=self.graphs is not None, fp8=self.fp8 and not self.missing_for_fp8())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._reoptimize()
        return self

    def _captured_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the `forward` of the class, as a CUDA graph if the call can be captured."""
        return self.run_captured(types.MethodType(type(self).forward, self), *args, **kwargs)

    def run_captured(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Call a function of the model, as a CUDA graph if `optimize` allows it."""
        if self.graphs is not None and not self.training and self.graphs.accepts(args, kwargs):
            return self.graphs(function, args, kwargs)
        return function(*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and inference. The end of training repeats `optimize`, if it was called."""
        ends = self.training and not mode
        super().train(mode)
        if ends:
            self._reoptimize()
        return self

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights, and repeat `optimize`, if it was called."""
        result = super().load_state_dict(*args, **kwargs)
        self._reoptimize()
        return result

    def gradient_checkpointing_enable(self) -> None:
        """Recompute layers in the backward pass of training, to save memory."""
        self._set_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        """Store all activations in training."""
        self._set_checkpointing(False)

    def _set_checkpointing(self, on: bool) -> None:
        holders = [module for module in self.modules() if hasattr(module, "gradient_checkpointing")]
        if not holders:
            raise InputError(f"{type(self).__name__}: has no layers that can be checkpointed.")
        for module in holders:
            setattr(module, "gradient_checkpointing", on)  # noqa: B010

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether layers are recomputed in the backward pass."""
        return any(getattr(module, "gradient_checkpointing", False) for module in self.modules())

    def output_flags(self, **options: Unpack[OutputOptions]) -> OutputFlags:
        """Return the flags of a call, with those of the configuration where the call leaves them out."""
        return OutputFlags(
            hidden_states=self.resolve_flag("output_hidden_states", options.get("output_hidden_states")),
            attentions=self.resolve_flag("output_attentions", options.get("output_attentions")),
            return_dict=self.resolve_flag("return_dict", options.get("return_dict")),
        )

    def resolve_flag(self, name: str, value: bool | None) -> bool:
        """Return the flag of a call, or that of the configuration if the call leaves it out."""
        return bool(getattr(self.config, name) if value is None else value)

    def format_output(self, output: OutputT, return_dict: bool | None) -> OutputT:
        """Return `output`, or a tuple if `return_dict` (by default that of the configuration) is False."""
        flag = self.resolve_flag("return_dict", return_dict)
        return output if flag else output.to_tuple()  # type: ignore[return-value]


def reset_buffers(module: nn.Module, device_of: Callable[[str], torch.device]) -> None:
    """Compute the never-saved buffers of a module after it was built on the meta device."""
    if module._non_persistent_buffers_set:
        reset: Callable[[], None] = module.reset_buffers  # type: ignore[assignment]
        reset()
        for leaf in module._non_persistent_buffers_set:
            buffer = module._buffers[leaf]
            module._buffers[leaf] = None if buffer is None else buffer.to(device_of(leaf))


def _set_tensor(module: nn.Module, leaf: str, value: Tensor) -> None:
    """Replace a parameter or buffer of a module."""
    old = module._parameters.get(leaf)
    if old is not None:
        module._parameters[leaf] = nn.Parameter(value, requires_grad=old.requires_grad)
    else:
        module._buffers[leaf] = value
