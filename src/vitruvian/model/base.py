"""`Model`: an `nn.Module` that opens, saves and shares checkpoints in the layout of the Hub.

from_pretrained(name): config.json -> build on the meta device -> match names -> assign weights -> new heads -> eval()
"""

from __future__ import annotations

import copy
import inspect
import tempfile
import types
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, Unpack, runtime_checkable

import torch
from torch import Tensor, nn

from vitruvian.config import Config, checked_dtype
from vitruvian.cuda.graphs import GraphCache
from vitruvian.devices import (
    Device,
    DType,
    add_device_hooks,
    check_one_device,
    checked_device,
    choose_devices,
    choose_dtype,
    default_device,
    with_resident_modules,
)
from vitruvian.errors import ConfigError, InputError, NewWeightsWarning, VitruvianWarning, WeightsError, near_matches
from vitruvian.hub import CONFIG_FILE, HubOptions, pin_revision, split_hub_options, upload, weight_file
from vitruvian.layers.init import no_init_weights
from vitruvian.model.adapters import AdapterMixin
from vitruvian.model.loading import check_quantization, compute_buffers, fill_model, quantize
from vitruvian.model.transformers_api import TransformersMixin
from vitruvian.ops.attention import check_implementation
from vitruvian.ops.dispatch import is_tensor_subclass
from vitruvian.outputs import ModelOutput, OutputFlags, OutputKwargs
from vitruvian.weights import (
    SAVED_FILES,
    KeyMatch,
    KeyRenames,
    StateDict,
    WeightFiles,
    WeightNames,
    apply_renames,
    describe_mismatch,
    join_names,
    match_keys,
    matches_any,
    open_weights,
    save_weights,
)

OutputT = TypeVar("OutputT", bound=ModelOutput)
R = TypeVar("R")


@runtime_checkable
class _HasOptimizeWeights(Protocol):
    """A part of a model that joins or transforms its weights for `Model.optimize`."""

    def optimize_weights(self) -> None: ...


class Model(AdapterMixin, TransformersMixin):
    """Base of all models. Subclasses set the class variables, build in `__init__` and call `post_init()` last.

    Attributes:
        optimized: Whether `optimize` was called.
        graphs: CUDA graphs of captured calls; None unless `optimize` enabled them.
    """

    config_class: ClassVar[type[Config]]
    base_model_prefix: ClassVar[str] = ""
    main_input_name: ClassVar[str] = "pixel_values"
    no_split_modules: ClassVar[tuple[str, ...]] = ()  # classes whose instances are not split over devices
    # Parts to keep on one device: their parameters or methods are used without calls of `forward`, which move inputs.
    resident_modules: ClassVar[tuple[str, ...]] = ()
    renamed_keys: ClassVar[KeyRenames] = ()  # regular expressions of names in files -> names here
    saved_keys: ClassVar[KeyRenames] = ()  # the same for saving: names here -> names in files
    ignored_keys: ClassVar[tuple[str, ...]] = ()  # regular expressions of names in files that are not read
    optional_keys: ClassVar[tuple[str, ...]] = ()  # regular expressions of names here that files may leave out
    captures_forward: ClassVar[bool] = True  # whether `optimize` captures `forward` as a whole in a CUDA graph

    def __init__(self, config: Config) -> None:
        super().__init__()
        if not isinstance(config, self.config_class):
            raise ConfigError(
                f"{type(self).__name__}: expected a {self.config_class.__name__}, got {type(config).__name__}."
            )
        config.validate()  # fields may have changed since the constructor
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
        if self.config.extra.pop("gradient_checkpointing", False):
            self.gradient_checkpointing_enable()

    def init_weights(self) -> None:
        """Initialize all weights, and compute the buffers that are never saved, on their present device."""
        for module in self.modules():
            self.init_module(module)
        compute_buffers(self, {"": self.device})

    def init_module(self, module: nn.Module) -> None:
        """Initialize the parameters of `module` itself, without its children. Subclasses override it."""

    # ------------------------------------------------------------------ loading

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        dtype: DType = None,
        torch_dtype: DType = None,
        device: Device = None,
        attn_implementation: str | dict[str, str] | None = None,
    ) -> Self:
        """Build a model with new weights in training mode, directly on its device and in its data type.

        Args:
            config: The configuration.
            dtype: Data type of the weights; float32 by default. `torch_dtype` is the older spelling.
            device: Device of the weights; by default that of new tensors, which is the CPU outside of a `torch.device`
                context.
            attn_implementation: As in `from_pretrained`.
        """
        with no_init_weights():
            model = cls(config)
        if (chosen := torch_dtype if dtype is None else dtype) is not None:
            model.to(checked_dtype(chosen))
        model.to_empty(device=default_device() if device is None else checked_device(device))
        model.init_weights()
        if attn_implementation is not None:
            model.set_attn_implementation(attn_implementation)
        return model

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path | None,
        *,
        config: Config | str | Path | None = None,
        dtype: DType = None,
        torch_dtype: DType = None,
        device: Device = None,
        device_map: str | torch.device | int | dict[str, Any] | None = None,
        max_memory: dict[int | str, int | str] | None = None,
        ignore_mismatched_sizes: bool = False,
        attn_implementation: str | dict[str, str] | None = None,
        use_safetensors: bool | None = None,
        variant: str | None = None,
        state_dict: Mapping[str, Tensor] | None = None,
        key_mapping: Mapping[str, str] | None = None,
        strict: bool = False,
        output_loading_info: bool = False,
        check_finite: bool = True,
        quantization_config: Any = None,
        **keywords: Any,
    ) -> Self:
        """Open a checkpoint and return the model in evaluation mode.

        Args:
            pretrained_model_name_or_path: A folder, a single weight file, or a Hub name such as
                ``facebook/sapiens2-pose-0.4b``.
            config: Configuration, or where to read it, instead of that of the checkpoint.
            dtype: Data type of the weights; by default the checkpoint's. `torch_dtype` is the older spelling.
            device: Device of the whole model; by default that of new tensors, which is the CPU outside of a
                `torch.device` context.
            device_map: ``"auto"`` for the best device (several, by accelerate, if one is too small), a device, or a
                table of module name → device.
            max_memory: Memory of each device that ``device_map="auto"`` may use, as accelerate takes it.
            ignore_mismatched_sizes: Initialize a new head if that of the checkpoint has another size. A `num_labels`
                other than that of the checkpoint implies it.
            attn_implementation: ``"sdpa"``, ``"eager"``, ``"flash_attention_2"`` or ``"flash_attention_3"``; or a table
                of these for the parts in `Config.sub_configs`, with an empty name for the rest.
            use_safetensors: Require (or refuse) safetensors files; by default they are preferred.
            variant: Part of the names of weight files: ``"fp16"`` opens ``model.fp16.safetensors``.
            state_dict: Weights to use instead of those of files. The name may then be None, with a `config`.
            key_mapping: Regular expressions of names in the files → replacements.
            strict: Raise `WeightsError` where weights are missing or unexpected, rather than warn.
            output_loading_info: Return a pair: the model, and a dict with the sets `missing_keys`, `unexpected_keys`
                and `mismatched_keys`.
            check_finite: Raise on weights with NaN or infinite values.
            quantization_config: A `TorchAoConfig` of transformers: how torchao quantizes the linear layers.
            keywords: Options of the Hub such as `revision` and `token` (see `HubOptions`), fields of the
                configuration to change, such as `num_labels`, and further arguments of the constructor.
                `low_cpu_mem_usage` and `trust_remote_code` have no effect: weights are always read one at a time, and
                no code of a checkpoint runs.
        """
        keywords = _checked_keywords(keywords)
        if quantization_config is not None:
            check_quantization(quantization_config)
        hub_options, overrides = split_hub_options(keywords)
        arguments = {name: overrides.pop(name) for name in _constructor_arguments(cls) if name in overrides}
        location = "state_dict" if pretrained_model_name_or_path is None else pretrained_model_name_or_path
        if pretrained_model_name_or_path is not None:
            options = pin_revision(location, hub_options)
        elif state_dict is None or not isinstance(config, Config):
            raise InputError("pretrained_model_name_or_path: expected a name, or a config and a state_dict.")
        else:
            options = hub_options
        source = str(location)
        settings, new_labels = cls.read_config(location, config, options if config is None else hub_options, overrides)
        if attn_implementation is not None:
            settings.attn_implementation = attn_implementation
        if state_dict is None:
            files = cls.open_files(location, options, use_safetensors=use_safetensors, variant=variant)
        else:
            files = WeightFiles((StateDict(state_dict),))
        files = cls.adapt_files(files)

        with no_init_weights():
            model = cls(settings, **arguments)
        wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        renames = [*cls.renamed_keys, *(key_mapping or {}).items()]
        match = match_keys(
            wanted, files.shapes, prefix=cls.base_model_prefix, renames=renames, ignored=cls.ignored_keys
        )
        cls.check_keys(match, source, new_head=ignore_mismatched_sizes or new_labels, strict=strict)
        weight_dtype = choose_dtype(torch_dtype if dtype is None else dtype, settings.dtype, files)
        devices = choose_devices(
            model, device, device_map, weight_dtype, no_split_modules=cls.no_split_modules, max_memory=max_memory
        )
        devices = with_resident_modules(devices, cls.resident_modules)
        init = model.init_module
        fill_model(model, files, match, weight_dtype, devices, source=source, finite=check_finite, init_module=init)
        settings.name_or_path, settings.dtype = source, weight_dtype
        if quantization_config is not None:
            quantize(model, quantization_config)
        add_device_hooks(model, devices, cls.no_split_modules)
        return (model, match.loading_info()) if output_loading_info else model  # type: ignore[return-value]

    @classmethod
    def open_files(
        cls, source: str | Path, options: HubOptions, *, use_safetensors: bool | None, variant: str | None
    ) -> WeightFiles:
        """Open the weights of a checkpoint. Subclasses with other file formats override it."""
        return open_weights(source, options, use_safetensors=use_safetensors, variant=variant)

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
    def check_keys(cls, match: KeyMatch, source: str, *, new_head: bool, strict: bool) -> None:
        """Raise `WeightsError` if shapes do not match or, if `strict`, missing or unexpected; else warn about those.

        A new head, and the head of a model whose checkpoint has none, may be missing in any case.
        """
        prefix = f"{cls.base_model_prefix}."
        absent = [name for name in match.missing if not matches_any(name, cls.optional_keys)]
        missing = absent
        unexpected, mismatched = match.unexpected, match.mismatched
        if match.added_prefix:  # a checkpoint of the base model, which has no head
            missing = [name for name in missing if name.startswith(prefix)]
        if new_head:
            mismatched = []
            if not match.dropped_prefix:
                missing = [name for name in missing if name.startswith(prefix)]
                unexpected = [name for name in unexpected if name.startswith(prefix)]
        if mismatched or (strict and (missing or unexpected)):
            hint = (
                "Pass ignore_mismatched_sizes=True to start with a new head."
                if mismatched
                else f"Is this a checkpoint for {cls.__name__}?"
            )
            raise WeightsError(
                f"{source}: its weights do not fit {cls.__name__}.\n"
                f"  {describe_mismatch(missing, unexpected, mismatched)}\n{hint}"
            )
        if unexpected:
            warnings.warn(
                f"{cls.__name__}: {len(unexpected)} weights in {source} are not used: {join_names(unexpected)}.",
                VitruvianWarning,
                stacklevel=3,
            )
        new = absent + [name for name, _, _ in match.mismatched]
        if new:
            close = near_matches(new[0], unexpected)
            warnings.warn(
                f"{cls.__name__}: {len(new)} weights are not in {source} and are newly initialized: {join_names(new)}."
                f"{close} Train the model before you use its predictions.",
                NewWeightsWarning,
                stacklevel=3,
            )

    # ------------------------------------------------------------------ saving

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        is_main_process: bool = True,
        state_dict: Mapping[str, Tensor] | None = None,
        save_function: Callable[[dict[str, Tensor], Path], object] | None = None,
        max_shard_size: int | str = "5GB",
        safe_serialization: bool = True,
        variant: str | None = None,
        push_to_hub: bool = False,
        **push: Any,
    ) -> list[Path]:
        """Write `config.json` and weight files that transformers reads too; return what was written.

        Of a model with adapters, only the active adapter is written, in the files of peft.

        Args:
            save_directory: Folder to write into, created if needed. Weights of an earlier save are replaced.
            is_main_process: False writes nothing, for all but one of several processes.
            state_dict: Weights to write instead of those of the model, such as those that accelerate gathers.
            save_function: Writes one file without `safe_serialization`, such as `accelerate.Accelerator.save`.
            max_shard_size: Size above which weights are split into several files, such as ``"5GB"`` or ``"500MiB"``.
            safe_serialization: Write safetensors files rather than ``pytorch_model.bin``.
            variant: Part of the names of weight files: ``"fp16"`` writes ``model.fp16.safetensors``.
            push_to_hub: Upload the files too.
            push: With `push_to_hub`: `repo_id` (the folder's name by default) and the keywords of `push_to_hub`.
        """
        if push and not push_to_hub:
            raise InputError(f"save_pretrained: got {', '.join(push)}, which only push_to_hub=True uses.")
        if not is_main_process:
            return []
        if state_dict is None and self._has_tensor_subclass_weights():
            raise InputError(
                "save_pretrained: expected plain weights, got quantized or distributed ones. Save the model before it "
                "is quantized, or pass a state_dict."
            )
        folder = Path(save_directory).expanduser()
        if self.active_adapters():
            written = self.save_adapter(folder, state_dict)
        else:
            self.config.architectures = [type(self).__name__]
            self.config.dtype = self.dtype
            written = self.config.save_pretrained(folder)
            state = self.state_dict() if state_dict is None else state_dict
            written += save_weights(
                {apply_renames(name, self.saved_keys): tensor for name, tensor in state.items()},
                folder,
                max_shard_size=max_shard_size,
                names=WeightNames(safe=safe_serialization, variant=variant),
                save_function=save_function,
            )
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

    # ------------------------------------------------------------------ properties

    @property
    def device(self) -> torch.device:
        """Device of the first parameter that is not offloaded (see `device_map`)."""
        loaded = next((parameter for parameter in self.parameters() if not parameter.is_meta), None)
        return (next(self.parameters()) if loaded is None else loaded).device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the first floating-point parameter."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    @property
    def base_model(self) -> Model:
        """The model without its head; the model itself where it has none."""
        base = getattr(self, self.base_model_prefix, None)
        return base if isinstance(base, Model) else self

    # ------------------------------------------------------------------ attention, and optimization of inference

    def set_attn_implementation(self, attn_implementation: str | dict[str, str]) -> None:
        """Select the implementation of attention: ``"sdpa"``, ``"eager"`` or an installed flash attention.

        Flash attention takes no masks and no position biases: attention that has them, as in Swin, runs "sdpa".
        A table selects it for the parts that `Config.sub_configs` names, and under an empty name for the rest.
        """
        chosen = attn_implementation if isinstance(attn_implementation, dict) else {"": attn_implementation}
        for name in chosen.values():
            check_implementation(name)
        self.config.attn_implementation = attn_implementation
        _set_attention(self, "sdpa")

    def optimize(self, *, cuda_graphs: bool = True, fp8: bool = False) -> Self:
        """Speed up inference at the cost of some memory; returns the model itself. Results differ only by rounding.

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
        if fp8 and self.active_adapters():
            raise InputError("optimize: fp8 does not include adapters. Merge them with peft first, or leave fp8 out.")
        if fp8 and self._has_tensor_subclass_weights():
            raise InputError("optimize: fp8 needs plain weights, got quantized or distributed ones. Leave fp8 out.")
        if fp8 and (obstacle := self.fp8_obstacle()):
            raise InputError(f"optimize: fp8 needs {obstacle}. Leave fp8 out.")
        self.fp8 = fp8
        if not self._has_tensor_subclass_weights():
            self.optimize_weights()
        self.optimized = True
        self.graphs = self.new_graph_cache() if cuda_graphs else None
        # On the instance, so that models without graphs, such as a model inside another, call `forward` directly.
        self.__dict__.pop("forward", None)
        if cuda_graphs and self.captures_forward:
            self.forward = self._captured_forward
        return self

    def optimize_weights(self) -> None:
        """Join or transform weights for `optimize`: call `optimize_weights` of the parts that have it."""
        for module in self.modules():
            if not isinstance(module, Model) and isinstance(module, _HasOptimizeWeights):
                module.optimize_weights()

    def new_graph_cache(self) -> GraphCache:
        """Return an empty cache of CUDA graphs for `optimize`. Subclasses override it."""
        return GraphCache()

    def _has_tensor_subclass_weights(self) -> bool:
        """Return whether weights are quantized by torchao, or distributed."""
        return any(map(is_tensor_subclass, self.parameters()))

    def fp8_obstacle(self) -> str | None:
        """Return what ``optimize(fp8=True)`` needs and this model lacks; None if it can run.

        Subclasses that support fp8 override it.
        """
        return f"a Sapiens2 model, got {type(self).__name__}"

    def _reoptimize(self) -> None:
        """Repeat `optimize` after weights changed, if it was called. CUDA graphs are captured again."""
        if self.optimized:
            self.optimize(cuda_graphs=self.graphs is not None, fp8=self.fp8 and self.fp8_obstacle() is None)

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

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load weights, also under the names of transformers, and repeat `optimize`, if it was called."""
        own = self.state_dict()
        state = {name: own[name] for name in own if matches_any(name, self.optional_keys)}
        for name, value in state_dict.items():
            known = name if name in own else apply_renames(name, self.renamed_keys)
            if known in own or not matches_any(known, self.ignored_keys):
                state[known] = value
        result = super().load_state_dict(state, *args, **kwargs)
        self._reoptimize()
        return result

    # ------------------------------------------------------------------ flags and outputs of `forward`

    def output_flags(self, **options: Unpack[OutputKwargs]) -> OutputFlags:
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


_UNSUPPORTED = {
    "offload_folder": "Weights on disk are not supported: use a smaller variant, or several devices.",
    "proxies": "Set the environment variable HTTPS_PROXY instead.",
}


def _checked_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of `from_pretrained` without those that have no effect here; raise for unsupported ones."""
    for name, hint in _UNSUPPORTED.items():
        if keywords.get(name) is not None:
            raise InputError(subject=name, expected="none", got=repr(keywords[name]), hint=hint)
    if not keywords.get("weights_only", True):
        raise InputError(
            subject="weights_only", expected="True", got="False", hint="A file that needs more could run any code."
        )
    dropped = {*_UNSUPPORTED, "weights_only", "low_cpu_mem_usage", "trust_remote_code"}
    return {name: value for name, value in keywords.items() if name not in dropped}


def _constructor_arguments(cls: type[Model]) -> list[str]:
    """Return the names of arguments of a model's constructor beside the configuration."""
    return list(inspect.signature(cls.__init__).parameters)[2:]


def _set_attention(module: nn.Module, implementation: str) -> None:
    """Set the implementation of all attentions in a module to that of the configuration of the part they are in."""
    config = getattr(module, "config", None)
    if isinstance(config, Config):
        implementation = config._attn_implementation or implementation
    if hasattr(module, "attn_implementation"):
        setattr(module, "attn_implementation", implementation)  # noqa: B010
    for child in module.children():
        _set_attention(child, implementation)
