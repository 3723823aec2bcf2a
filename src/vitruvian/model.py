"""`Model`: an `nn.Module` that opens, saves and shares checkpoints in the layout of the Hub.

from_pretrained(name): config.json ─▶ build on the meta device ─▶ pair names ─▶ assign weights ─▶ fresh heads ─▶ eval()
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.devices import (
    check_one_device,
    checked_device,
    checked_dtype,
    choose_devices,
    choose_dtype,
    place_of,
    spread,
    with_residents,
)
from vitruvian.errors import ConfigError, InputError, NewWeightsWarning, WeightsError
from vitruvian.graphs import GraphCache
from vitruvian.hub import CONFIG_FILE, HubOptions, pinned, upload, weight_file
from vitruvian.layers.init import no_init_weights
from vitruvian.ops.attention import check_implementation
from vitruvian.outputs import ModelOutput
from vitruvian.weights import (
    SAVED_FILES,
    KeyPlan,
    WeightFiles,
    check_finite,
    describe_mismatch,
    match_keys,
    open_weights,
    save_weights,
    some,
)

OutputT = TypeVar("OutputT", bound=ModelOutput)


class Model(nn.Module):
    """Base of all models. Subclasses set the class variables, build in `__init__` and call `start()` last."""

    config_class: ClassVar[type[Config]]
    base_model_prefix: ClassVar[str] = ""
    main_input_name: ClassVar[str] = "pixel_values"
    no_split_modules: ClassVar[tuple[str, ...]] = ()  # classes that lie on one device each
    resident_modules: ClassVar[tuple[str, ...]] = ()  # parts that lie on one device together: used without being called
    renamed_keys: ClassVar[tuple[tuple[str, str], ...]] = ()
    ignored_keys: ClassVar[tuple[str, ...]] = ()
    optional_keys: ClassVar[tuple[str, ...]] = ()

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

    def start(self) -> None:
        """Finish construction: fill parameters with their starting values and choose the attention kernel."""
        if not any(parameter.is_meta for parameter in self.parameters()):
            for module in self.modules():
                self.init_module(module)
        self.set_attn_implementation(self.config.attn_implementation or "sdpa")

    def init_module(self, module: nn.Module) -> None:
        """Fill the parameters that `module` itself owns with starting values. Families override it."""

    # ------------------------------------------------------------------ opening and saving

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        dtype: torch.dtype | str | None = None,
        device: str | torch.device | int | None = None,
        attn_implementation: str | None = None,
    ) -> Self:
        """Build a model with fresh weights in training mode, straight on its device and in its data type.

        Args:
            config: The configuration.
            dtype: Data type of the weights; float32 by default.
            device: Where to put them; the CPU by default.
            attn_implementation: As in `from_pretrained`.
        """
        with no_init_weights():
            model = cls(config)
        if dtype is not None:
            model.to(checked_dtype(dtype))
        place = checked_device("cpu" if device is None else device)
        model.to_empty(device=place)
        for module in model.modules():
            model.init_module(module)
            refill_buffers(module, lambda _: place)
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
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
        subfolder: str = "",
        **config_overrides: Any,
    ) -> Self:
        """Open a checkpoint and return the model in evaluation mode.

        Args:
            pretrained_model_name_or_path: A folder, a single weight file, or a Hub name such as
                ``facebook/sapiens2-pose-0.4b``.
            config: Configuration to use instead of the checkpoint's own, or where to read it.
            dtype: Data type of the weights; by default the checkpoint's. `torch_dtype` is the older spelling.
            device: Device to put the whole model on.
            device_map: ``"auto"`` for the best device here (spread over several by accelerate where one is too
                small), a device, or a table of module name → device.
            ignore_mismatched_sizes: Start a fresh head where the checkpoint's does not fit. Giving a `num_labels`
                that differs from the checkpoint's implies it.
            attn_implementation: ``"sdpa"``, ``"eager"``, ``"flash_attention_2"`` or ``"flash_attention_3"``.
            use_safetensors: Insist on (or refuse) safetensors files; by default they are preferred.
            check_finite: Refuse weights with NaN or infinite values.
            revision: Branch, tag or commit on the Hub.
            cache_dir: Where downloads are kept.
            token: Access token of the Hub.
            local_files_only: Do not use the network.
            force_download: Download again what is in the cache.
            subfolder: Folder inside the checkpoint.
            config_overrides: Fields of the configuration to change, such as `num_labels`.
        """
        given = HubOptions(revision, cache_dir, token, local_files_only, force_download, subfolder)
        options = pinned(pretrained_model_name_or_path, given)
        source = str(pretrained_model_name_or_path)
        settings, new_labels = cls.read_config(
            pretrained_model_name_or_path, config, options if config is None else given, config_overrides
        )
        if attn_implementation is not None:
            settings.attn_implementation = attn_implementation
        files = cls.adapt(cls.open_files(pretrained_model_name_or_path, options, use_safetensors=use_safetensors))

        with no_init_weights():
            model = cls(settings)
        wanted = {name: tuple(tensor.shape) for name, tensor in model.hub_tensors().items()}
        plan = match_keys(
            wanted, files.shapes, prefix=cls.base_model_prefix, renames=cls.renamed_keys, ignored=cls.ignored_keys
        )
        fresh = cls.accept(plan, source, new_head=ignore_mismatched_sizes or new_labels)
        kind = choose_dtype(torch_dtype if dtype is None else dtype, settings.dtype, files)
        places = choose_devices(model, device, device_map, kind, keep_whole=cls.no_split_modules)
        places = with_residents(places, cls.resident_modules)
        loaded = model.assign(files, plan, kind, places, source if check_finite else None)
        model.fill(set(wanted) - loaded, kind, places)
        if fresh:
            warnings.warn(
                f"{cls.__name__}: {len(fresh)} weights are not in {source} and start fresh: {some(fresh)}. "
                "Train the model before you trust what it says.",
                NewWeightsWarning,
                stacklevel=2,
            )
        settings.name_or_path, settings.dtype = source, str(kind).removeprefix("torch.")
        model.eval()
        spread(model, places, cls.no_split_modules)
        return model

    @classmethod
    def open_files(cls, source: str | Path, options: HubOptions, *, use_safetensors: bool | None) -> WeightFiles:
        """Open a checkpoint's weights. Families with files of their own form override it."""
        return open_weights(source, options, use_safetensors=use_safetensors)

    @classmethod
    def adapt(cls, files: WeightFiles) -> WeightFiles:
        """Translate files in another layout than the modules'. Families whose Hub files need it override it."""
        return files

    @classmethod
    def read_config(
        cls, source: str | Path, config: Config | str | Path | None, options: HubOptions, overrides: dict[str, Any]
    ) -> tuple[Any, bool]:
        """Return the configuration to build with, and whether the caller asked for another number of labels."""
        if isinstance(config, Config):
            read = copy.deepcopy(config)  # what loading writes into it is no concern of the caller's
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
    def accept(cls, plan: KeyPlan, source: str, *, new_head: bool) -> list[str]:
        """Raise `WeightsError` unless the plan is good enough; return the names that will start fresh."""
        inside = f"{cls.base_model_prefix}."
        optional = [name for name in plan.missing if any(pattern in name for pattern in cls.optional_keys)]
        missing = [name for name in plan.missing if name not in optional]
        unexpected, mismatched = plan.unexpected, plan.mismatched
        if plan.added_prefix:  # a bare model's file: the head cannot be in it
            missing = [name for name in missing if name.startswith(inside)]
        if new_head:
            mismatched = []
            if not plan.dropped_prefix:
                missing = [name for name in missing if name.startswith(inside)]
                unexpected = [name for name in unexpected if name.startswith(inside)]
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
        taken = [name for name in plan.missing if name not in optional]
        return taken + [name for name, _, _ in plan.mismatched]

    def assign(
        self,
        files: WeightFiles,
        plan: KeyPlan,
        dtype: torch.dtype,
        places: dict[str, torch.device],
        check: str | None,
    ) -> set[str]:
        """Put the files' tensors in the place of meta ones; return the names that were filled."""
        for file_name, tensor in files.tensors():
            name = plan.pairs.get(file_name)
            if name is None:
                continue
            if check is not None:
                check_finite(name, tensor, check)
            kind = dtype if tensor.is_floating_point() else tensor.dtype
            self.place(name, tensor.to(device=place_of(name, places), dtype=kind))
        return set(plan.pairs.values())

    def place(self, name: str, tensor: Tensor) -> None:
        """Store a tensor under its name on the Hub. Models that keep weights in another form override it."""
        path, _, leaf = name.rpartition(".")
        owner = self.get_submodule(path)
        if leaf in owner._parameters:
            blank = owner._parameters[leaf]
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=blank is not None and blank.requires_grad)
        else:
            owner._buffers[leaf] = tensor

    def fill(self, names: set[str], dtype: torch.dtype, places: dict[str, torch.device]) -> None:
        """Give starting values to weights that no file held, and compute the buffers that are never saved."""
        for path, module in self.named_modules():
            lead = f"{path}." if path else ""

            def where(leaf: str, lead: str = lead) -> torch.device:
                return place_of(lead + leaf, places)

            own = {leaf: lead + leaf in names for leaf, value in module._parameters.items() if value is not None}
            own |= {leaf: lead + leaf in names for leaf in saved_buffers(module)}
            if any(own.values()):
                fill_module(self, module, own, dtype, where)
            refill_buffers(module, where)

    def hub_tensors(self) -> dict[str, Tensor]:
        """Parameters and saved buffers under their names on the Hub."""
        return self.state_dict()

    def save_pretrained(
        self, save_directory: str | Path, *, max_shard_size: int | str = "5GB", push_to_hub: bool = False, **push: Any
    ) -> list[Path]:
        """Write `config.json` and safetensors files that transformers reads too; return what was written.

        Args:
            save_directory: Folder to write into, made if needed. Weights that an earlier save left there are replaced.
            max_shard_size: Size above which weights are split into several files, such as ``"5GB"`` or ``"500MiB"``.
            push_to_hub: Upload what was written too.
            push: With `push_to_hub`: `repo_id` (the folder's name by default) and the keywords of `push_to_hub`.
        """
        if push and not push_to_hub:
            raise InputError(f"save_pretrained: got {', '.join(push)}, which is used with push_to_hub=True alone.")
        folder = Path(save_directory).expanduser()
        self.config.architectures = [type(self).__name__]
        self.config.dtype = str(self.dtype).removeprefix("torch.")
        written = self.config.save_pretrained(folder)
        written += save_weights(self.hub_tensors(), folder, max_shard_size=max_shard_size)
        if push_to_hub:
            upload(written, push.pop("repo_id", folder.resolve().name), replaces=SAVED_FILES, **push)
        return written

    def push_to_hub(self, repo_id: str, *, max_shard_size: int | str = "5GB", **options: Any) -> str:
        """Save to a Hub repository (made if needed) in one commit and return its address.

        Further keywords: `private`, `token`, `revision`, `commit_message`, `create_pr`.
        """
        with tempfile.TemporaryDirectory() as folder:
            return upload(
                self.save_pretrained(folder, max_shard_size=max_shard_size), repo_id, replaces=SAVED_FILES, **options
            )

    # ------------------------------------------------------------------ what models can tell and be told

    @property
    def device(self) -> torch.device:
        """Device of the first parameter, of those that are not waiting elsewhere to be used (see `device_map`)."""
        here = next((parameter for parameter in self.parameters() if not parameter.is_meta), None)
        return (next(self.parameters()) if here is None else here).device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the first floating-point parameter."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def num_parameters(self, *, only_trainable: bool = False) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad or not only_trainable)

    def set_attn_implementation(self, attn_implementation: str) -> None:
        """Choose how attention is computed: ``"sdpa"``, ``"eager"`` or a flash attention that is installed."""
        check_implementation(attn_implementation)
        self.config.attn_implementation = attn_implementation
        for module in self.modules():
            if hasattr(module, "attn_implementation"):
                setattr(module, "attn_implementation", attn_implementation)  # noqa: B010

    def optimize(self, *, cuda_graphs: bool = True, fp8: bool = False) -> Self:
        """Make inference quick, with results that stay the same; returns the model itself.

        Weights are joined and laid out for fused kernels (names in checkpoints do not change), and on a CUDA device
        calls with small batches are recorded as graphs. Training, gradients and outputs of single layers take the
        plain way as before. Call it after loading and moving the model.

        Args:
            cuda_graphs: Record calls with small batches on a CUDA device.
            fp8: Multiply the large matrices of a Sapiens2 encoder in 8-bit floating point, weights with a scale for
                each output channel and tokens with one each. Results are then a little off, and the 8-bit weights are
                held beside the others. Needs bfloat16 and a GPU of the Hopper generation or newer.
        """
        check_one_device(self, "optimize")
        if fp8 and (hindrance := self.fp8_hindrance()):
            raise InputError(f"optimize: fp8 needs {hindrance}. Leave fp8 out.")
        for module in self.modules():
            if isinstance(module, Model):
                module.fp8 = fp8
        self.fuse()
        self.optimized = True
        self.graphs = GraphCache() if cuda_graphs else None
        return self

    def fuse(self) -> None:
        """Join and lay out weights for inference; families with a quicker way to run override it."""

    def fp8_hindrance(self) -> str:
        """Return what is missing for ``optimize(fp8=True)``, or nothing; families that have such a way override it."""
        return f"a Sapiens2 model, got {type(self).__name__}"

    def optimize_anew(self) -> None:
        """Make anew what `optimize` made of the weights, with its options where they still apply."""
        self.optimize(cuda_graphs=self.graphs is not None, fp8=self.fp8 and not self.fp8_hindrance())

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.optimized:  # moved or cast: joint weights are made anew, recordings are void
            self.optimize_anew()
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, through a recorded graph where `optimize` allows it."""
        return self.recorded(super().__call__, *args, **kwargs)

    def recorded(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the model, through a recorded graph where `optimize` allows it."""
        if self.graphs is not None and not self.training and self.graphs.takes(args, kwargs):
            return self.graphs(function, args, kwargs)
        return function(*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and inference; what `optimize` made of the weights is made anew after training."""
        ends = self.training and not mode
        super().train(mode)
        if ends and self.optimized:
            self.optimize_anew()
        return self

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Take over weights; what `optimize` made of the old ones is made anew."""
        result = super().load_state_dict(*args, **kwargs)
        if self.optimized:
            self.optimize_anew()
        return result

    def gradient_checkpointing_enable(self) -> None:
        """Trade compute for memory in training: layers are run again in the backward pass."""
        self._set_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        """Keep all activations in training."""
        self._set_checkpointing(False)

    def _set_checkpointing(self, on: bool) -> None:
        holders = [module for module in self.modules() if hasattr(module, "gradient_checkpointing")]
        if not holders:
            raise InputError(f"{type(self).__name__}: has no layers that can be checkpointed.")
        for module in holders:
            setattr(module, "gradient_checkpointing", on)  # noqa: B010

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether layers are run again in the backward pass."""
        return any(getattr(module, "gradient_checkpointing", False) for module in self.modules())

    def flag(self, name: str, value: bool | None) -> bool:
        """Return a call's switch, or the configuration's where the call leaves it open."""
        return bool(getattr(self.config, name) if value is None else value)

    def give(self, output: OutputT, return_dict: bool | None) -> OutputT:
        """Return `output` as it is or, where asked, as a tuple."""
        return output if self.flag("return_dict", return_dict) else output.to_tuple()  # type: ignore[return-value]


def saved_buffers(module: nn.Module) -> Iterator[str]:
    """Names of a module's own buffers that are part of its state dict."""
    return (leaf for leaf in module._buffers if leaf not in module._non_persistent_buffers_set)


def fill_module(
    model: Model,
    module: nn.Module,
    own: dict[str, bool],
    dtype: torch.dtype,
    where: Callable[[str], torch.device],
) -> None:
    """Fill the own weights of `module` that are marked True with starting values, keeping the others."""
    kept: dict[str, Any] = {}
    for leaf, is_new in own.items():
        value: Tensor = getattr(module, leaf)
        if not is_new:
            kept[leaf] = value
        kind = dtype if value.is_floating_point() else value.dtype
        blank = torch.empty(value.shape, dtype=kind, device=where(leaf))
        set_own(module, leaf, blank)
    model.init_module(module)
    for leaf, value in kept.items():
        set_own(module, leaf, value)


def set_own(module: nn.Module, leaf: str, value: Tensor) -> None:
    """Replace a parameter or buffer that a module itself owns."""
    old = module._parameters.get(leaf)
    if old is not None:
        module._parameters[leaf] = nn.Parameter(value, requires_grad=old.requires_grad)
    else:
        module._buffers[leaf] = value


def refill_buffers(module: nn.Module, where: Callable[[str], torch.device]) -> None:
    """Compute a module's never-saved buffers again after it was built on the meta device, and put them in place."""
    if module._non_persistent_buffers_set:
        reset: Callable[[], None] = module.reset_buffers  # type: ignore[assignment]
        reset()
        for leaf in module._non_persistent_buffers_set:
            buffer = module._buffers[leaf]
            module._buffers[leaf] = None if buffer is None else buffer.to(where(leaf))
