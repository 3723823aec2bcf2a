"""Read and write weight files: safetensors (single or sharded), and `.bin`/`.pth` with `weights_only=True`.

    open_weights(name) ─▶ WeightFiles (names, shapes, lazily read tensors) ─▶ match_keys(model, files) ─▶ KeyMatch

Tensors of safetensors files are memory-mapped.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitruvian.errors import CheckpointError, InputError, WeightsError, near_matches
from vitruvian.filesystem.atomic import atomic_write, write_text
from vitruvian.filesystem.json_files import read_json_object
from vitruvian.hub import HubOptions, find_file, is_local, local_folder, weight_file

SAVED_FILES = (  # what `save_weights` writes
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model-?????-of-?????.bin",
    "pytorch_model.bin.index.json",
)
KeyRenames = tuple[tuple[str, str], ...]  # regular expressions of weight names, and their replacements

_MAX_NAMES = 6  # names that a message lists
_CHUNK_BYTES = 64 * 1024**2
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class WeightNames:
    """Names of the weight files of a checkpoint.

    Attributes:
        safe: Whether they are safetensors files, rather than files of `torch.save`.
        variant: Inserted before the ending: ``model.fp16.safetensors``.
    """

    safe: bool = True
    variant: str | None = None

    def file(self, part: str = "") -> str:
        """Return the name of a file, or of a part of it such as ``"-00001-of-00002"``."""
        stem, ending = ("model", "safetensors") if self.safe else ("pytorch_model", "bin")
        return ".".join(filter(None, (stem + part, self.variant, ending)))

    @property
    def index(self) -> str:
        """Name of the table of parts: ``model.safetensors.index.json``, ``model.safetensors.index.fp16.json``."""
        plain = WeightNames(self.safe).file()
        return ".".join(filter(None, (plain, "index", self.variant, "json")))


class _Reader(Protocol):
    """One file of tensors."""

    shapes: dict[str, tuple[int, ...]]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors."""
        ...


@dataclass(frozen=True)
class WeightFiles:
    """Tensors by name in one or more files, read lazily.

    `renames` maps the name of a tensor to new names: with several, the tensor is split evenly along its first
    dimension; with none, it is left out.
    """

    readers: tuple[_Reader, ...]
    renames: Callable[[str], tuple[str, ...]] | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, from the files' headers."""
        shapes = {name: shape for reader in self.readers for name, shape in reader.shapes.items()}
        if self.renames is None:
            return shapes
        split: dict[str, tuple[int, ...]] = {}
        for name, shape in shapes.items():
            new_names = self.renames(name)
            if len(new_names) > 1:
                _check_split(name, shape, len(new_names))
                shape = (shape[0] // len(new_names), *shape[1:])
            split |= dict.fromkeys(new_names, shape)
        return split

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors, with one open file at a time."""
        for reader in self.readers:
            for name, tensor in reader.tensors():
                names = (name,) if self.renames is None else self.renames(name)
                yield from zip(names, split_evenly(name, tensor, len(names)) if names else (), strict=True)


class StateDict:
    """Tensors in memory, read as a file of weights is."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state = state
        self.shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors."""
        yield from self.state.items()


class SafetensorsFile:
    """One safetensors file, read as tensors by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, framework="pt") as file:
                self.shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise damaged_file_error(path, str(error)) from error

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield memory-mapped tensors.

        The file is opened again every `_CHUNK_BYTES` bytes: closing it frees the memory of tensors that the caller has
        converted or moved.
        """
        names = list(reversed(self.shapes))
        while names:
            budget = _CHUNK_BYTES
            with safe_open(self.path, framework="pt") as file:
                while names and budget > 0:
                    name = names.pop()
                    tensor = file.get_tensor(name)
                    budget -= tensor.nbytes
                    yield name, tensor
                    del tensor


def _load_torch_file(path: Path) -> Any:
    """Read a `.bin`, `.pt` or `.pth` file, memory-mapped where possible: tensors and plain containers, no code."""
    try:
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            if _fits_records(path, loaded):
                return loaded
        except RuntimeError as error:
            if "mmap" not in str(error):  # torch's older format
                raise
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        if wanted is None:
            raise damaged_file_error(path, "it has no tensors that torch can read") from error
        raise CheckpointError(
            f"{path}: the file contains pickled objects ({wanted[1]}) that could execute code. Use safetensors, or "
            "convert the file yourself if you trust it."
        ) from error
    except Exception as error:
        raise damaged_file_error(path, str(error) or type(error).__name__) from error


def _fits_records(path: Path, loaded: object) -> bool:
    """Return whether memory-mapped storages are as large as their records in the file, which torch does not check."""
    with zipfile.ZipFile(path) as archive:
        records = [record for record in archive.infolist() if "/data/" in record.filename and record.file_size]
    storages = {storage.data_ptr(): storage.nbytes() for storage in _storages_in(loaded) if storage.nbytes()}
    sizes = [record.file_size for record in sorted(records, key=lambda record: record.header_offset)]
    stored = all(record.compress_type == zipfile.ZIP_STORED for record in records)
    return stored and sizes == [storages[address] for address in sorted(storages)]


def _storages_in(loaded: object) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of all tensors in nested containers."""
    if isinstance(loaded, Tensor):
        yield loaded.untyped_storage()
    elif isinstance(loaded, Mapping | list | tuple):
        for item in loaded.values() if isinstance(loaded, Mapping) else loaded:
            yield from _storages_in(item)


def damaged_file_error(path: Path, reason: str) -> CheckpointError:
    """Return the error for a weight file that cannot be read."""
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            return CheckpointError(f"{path}: expected weights, got a pointer of Git LFS. Fetch them with: git lfs pull")
    first_line = reason.split("\n", 1)[0].rstrip(".")
    return CheckpointError(
        f"{path}: expected a readable weight file, but {first_line} ({path.stat().st_size:,} bytes). "
        "The file may be cut off or of another format: download it again."
    )


def _find_state_dict(loaded: object, path: Path) -> dict[str, Tensor]:
    """Return the state dict of a torch file: the whole, or the value of a usual key."""
    if isinstance(loaded, Mapping):
        if loaded and all(isinstance(value, Tensor) for value in loaded.values()):
            return _named(loaded, path)
        for key in ("state_dict", "model", "module", "model_state_dict"):
            inner = loaded.get(key)
            if isinstance(inner, Mapping):
                tensors = {name: value for name, value in inner.items() if isinstance(value, Tensor)}
                if tensors:
                    return _named(tensors, path)
    raise WeightsError(f"{path}: expected tensors by name, got {type(loaded).__name__}. Is this a checkpoint?")


def _named(tensors: Mapping[Any, Tensor], path: Path) -> dict[str, Tensor]:
    """Return a state dict whose keys are text."""
    for name in tensors:
        if not isinstance(name, str):
            raise WeightsError(f"{path}: expected names of tensors, got the key {name!r}. Is this a checkpoint?")
    return dict(tensors)


def _open_file(path: Path) -> SafetensorsFile | StateDict:
    """Open one weight file by its suffix."""
    if path.suffix == ".safetensors":
        return SafetensorsFile(path)
    return StateDict(_find_state_dict(_load_torch_file(path), path))


def open_weights(
    source: str | Path, options: HubOptions, *, use_safetensors: bool | None = None, variant: str | None = None
) -> WeightFiles:
    """Open the weights of a checkpoint: a single file, a folder or a Hub repository, sharded or not."""
    single = weight_file(source)
    if single is not None:
        if use_safetensors is not None and use_safetensors != (single.suffix == ".safetensors"):
            raise CheckpointError(f"{single}: use_safetensors={use_safetensors} rules this file out. Drop it.")
        return WeightFiles((_open_file(single),))
    kinds = [WeightNames(safe, variant) for safe in (True, False) if use_safetensors in (None, safe)]
    names = [name for kind in kinds for name in (kind.file(), kind.index)]
    for name in names:
        path = find_file(source, name, options)
        if path is None:
            continue
        if not name.endswith(".json"):
            return WeightFiles((_open_file(path),))
        return WeightFiles(tuple(_open_file(shard) for shard in _shard_paths(source, path, options)))
    if is_local(source) and variant is None:
        unnamed = sorted((local_folder(source) / options.subfolder).glob("*.safetensors"))
        if len(unnamed) == 1 and use_safetensors is not False:
            return WeightFiles((_open_file(unnamed[0]),))
    raise CheckpointError(f"{source}: expected weights ({' or '.join(names)}), found none. Is the download complete?")


def read_original_weights(path: str | Path, example: str) -> dict[str, Tensor]:
    """Read a weight file of an original release; `example` is a name of such a file for the error message."""
    file = weight_file(path)
    if file is None:
        raise CheckpointError(f"{path}: expected a checkpoint file such as {example}. Check the path.")
    tensors = dict(_open_file(file).tensors())
    for name, tensor in tensors.items():
        check_finite(name, tensor, str(path))
    return tensors


def _shard_paths(source: str | Path, index: Path, options: HubOptions) -> list[Path]:
    """Return the files of an index, which must exist."""
    table = read_json_object(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise CheckpointError(f"{index}: expected a weight_map of file names, found none. Download the index again.")
    paths = []
    for name in sorted(set(table.values())):
        if Path(name).name != name:
            raise CheckpointError(f"{index}: names a file outside its folder ({name!r}). Do not use this checkpoint.")
        path = find_file(source, name, options)
        if path is None:
            raise CheckpointError(f"{source}: the shard {name} is missing. Download it, or the whole checkpoint again.")
        paths.append(path)
    return paths


@dataclass(frozen=True)
class KeyMatch:
    """The mapping from tensors of files to parameters of a model."""

    pairs: dict[str, str]  # name in the file -> name in the model
    missing: list[str]  # in the model, not in the file
    unexpected: list[str]  # in the file, not in the model
    mismatched: list[tuple[str, tuple[int, ...], tuple[int, ...]]]  # name in the model, shape in the file, in the model
    added_prefix: bool  # the file has a base model, the model has a head
    dropped_prefix: bool  # the file has a model with a head, the model is the base model
    ignored: frozenset[str] = frozenset()  # in the file, renamed, and not read

    def loading_info(self) -> dict[str, Any]:
        """Return the sets of names that `from_pretrained` returns with `output_loading_info`."""
        return {
            "missing_keys": set(self.missing) - self.ignored,
            "unexpected_keys": set(self.unexpected),
            "mismatched_keys": set(self.mismatched),
            "error_msgs": [],
        }


def match_keys(
    wanted: Mapping[str, tuple[int, ...]],
    available: Mapping[str, tuple[int, ...]],
    *,
    prefix: str = "",
    renames: Iterable[tuple[str, str]] = (),
    ignored: Iterable[str] = (),
) -> KeyMatch:
    """Match names in files to names in a model.

    Args:
        wanted: Name → shape of the model's parameters and saved buffers.
        available: Name → shape of the files' tensors.
        prefix: Attribute of the base model in a model with a head, so that each opens the files of the other.
        renames: Pairs of a regular expression and its replacement, for names of other checkpoints.
        ignored: Regular expressions of names in files to ignore.
    """
    renames, ignored = list(renames), list(ignored)
    names = {file_name: apply_renames(file_name, renames) for file_name in available}
    skipped = frozenset(name for name in names.values() if matches_any(name, ignored))
    names = {file_name: name for file_name, name in names.items() if name not in skipped}
    candidates = {"": names}
    if prefix:
        prefix += "."
        candidates["added"] = {file_name: prefix + name for file_name, name in names.items()}
        candidates["dropped"] = {f: name.removeprefix(prefix) for f, name in names.items() if name.startswith(prefix)}
    change = max(candidates, key=lambda candidate: sum(name in wanted for name in candidates[candidate].values()))
    pairs, unexpected, mismatched = {}, [], []
    for file_name, name in candidates[change].items():
        if name not in wanted:
            unexpected.append(file_name)
        elif tuple(available[file_name]) != tuple(wanted[name]):
            mismatched.append((name, tuple(available[file_name]), tuple(wanted[name])))
        else:
            pairs[file_name] = name
    matched = set(pairs.values()) | {name for name, _, _ in mismatched}
    missing = [name for name in wanted if name not in matched]
    return KeyMatch(pairs, missing, unexpected, mismatched, change == "added", change == "dropped", skipped)


def apply_renames(name: str, renames: Iterable[tuple[str, str]]) -> str:
    """Apply every rename to a name, in order."""
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether any of these regular expressions is found in a name."""
    return any(re.search(pattern, name) for pattern in patterns)


def describe_mismatch(
    missing: list[str], unexpected: list[str], mismatched: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
) -> str:
    """Describe a mismatch with a few names of each kind, and near matches for missing ones."""
    lines = []
    if missing:
        lines.append(f"{len(missing)} missing: {join_names(missing)}.{near_matches(missing[0], unexpected)}")
    if unexpected:
        lines.append(f"{len(unexpected)} unexpected: {join_names(unexpected)}.")
    if mismatched:
        shapes = join_names(
            [f"{name} {list(got)} in the file, {list(want)} in the model" for name, got, want in mismatched]
        )
        lines.append(f"{len(mismatched)} of another shape: {shapes}.")
    return "\n  ".join(lines)


def join_names(names: list[str]) -> str:
    """Join the first names, and count the rest."""
    rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + rest


def check_finite(name: str, tensor: Tensor, source: str) -> None:
    """Raise `WeightsError` for a tensor with NaN or infinite values."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    # The extremes propagate NaN and infinity, in one pass without a copy.
    extremes = torch.stack(torch.aminmax(tensor if tensor.dtype.itemsize > 1 else tensor.float()))
    if not torch.isfinite(extremes).all():
        raise WeightsError(
            f"{source}: the weight {name} has NaN or infinite values. The file is damaged or its training diverged; "
            "use another one, or pass check_finite=False to load it anyway."
        )


def check_floating(name: str, tensor: Tensor, source: str) -> None:
    """Raise `WeightsError` for a tensor of integers, booleans or complex numbers."""
    if not tensor.is_floating_point():
        raise WeightsError(
            f"{source}: expected floating-point numbers in {name}, got {str(tensor.dtype).removeprefix('torch.')}. "
            "Is this a quantized checkpoint? Use one with floating-point weights."
        )


def check_state_dict(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str) -> None:
    """Raise `WeightsError` unless names, shapes and kinds of numbers are those of a model's state dict."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    match = match_keys({name: tuple(tensor.shape) for name, tensor in wanted.items()}, shapes)
    if match.missing or match.unexpected or match.mismatched:
        problem = describe_mismatch(match.missing, match.unexpected, match.mismatched)
        raise WeightsError(f"{source}: its weights do not fit the model.\n  {problem}\nIs it a whole checkpoint?")
    for name, tensor in state.items():
        if wanted[name].is_floating_point():
            check_floating(name, tensor, source)


def split_evenly(name: str, tensor: Tensor, count: int) -> Sequence[Tensor]:
    """Split a tensor into `count` parts of one size along its first dimension, or raise `WeightsError`."""
    if count == 1:
        return (tensor,)
    _check_split(name, tensor.shape, count)
    return tensor.chunk(count)


def _check_split(name: str, shape: Sequence[int], count: int) -> None:
    """Raise `WeightsError` unless the first dimension of a shape is a multiple of `count`, and not 0."""
    if not shape or not shape[0] or shape[0] % count:
        raise WeightsError(
            f"{name}: expected a first dimension that splits into {count}, got {list(shape)}. "
            "Is this a whole checkpoint?"
        )


def save_weights(
    state: Mapping[str, Tensor],
    folder: Path,
    *,
    max_shard_size: int | str = "5GB",
    names: WeightNames = WeightNames(),
    save_function: Callable[[dict[str, Tensor], Path], object] | None = None,
) -> list[Path]:
    """Write tensors as one file, or as shards with an index, each atomically.

    `save_function` writes a file that is not safetensors, in place of `torch.save`.
    """
    shards = _split_into_shards(state, _byte_count(max_shard_size))
    count = len(shards)
    files = [names.file("" if count == 1 else f"-{number:05d}-of-{count:05d}") for number in range(1, count + 1)]
    save = _save_safetensors if names.safe else save_function or torch.save
    written = []
    for name, keys in zip(files, shards, strict=True):
        # One shard at a time limits the copies from another device.
        part = {key: unshared(state[key].detach().to("cpu")) for key in keys}
        with atomic_write(folder / name) as temporary:
            save(part, temporary)
        written.append(folder / name)
    index = folder / names.index
    if count > 1:
        total = sum(tensor.nbytes for tensor in state.values())
        table = {key: name for name, keys in zip(files, shards, strict=True) for key in keys}
        write_text(index, json.dumps({"metadata": {"total_size": total}, "weight_map": table}, indent=2) + "\n")
        written.append(index)
    for stale in {path for pattern in SAVED_FILES for path in folder.glob(pattern)} - set(written):
        stale.unlink()
    return written


def _save_safetensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write one safetensors file."""
    save_file(tensors, path, metadata={"format": "pt"})


def unshared(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor that shares no memory."""
    shares = tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.clone(memory_format=torch.contiguous_format) if shares else tensor.contiguous()


def _split_into_shards(state: Mapping[str, Tensor], limit: int) -> list[list[str]]:
    """Group names in order into shards of at most `limit` bytes, or of one larger tensor."""
    shards: list[list[str]] = [[]]
    budget = limit
    for name, tensor in state.items():
        size = tensor.nbytes
        if size > budget and shards[-1]:
            shards.append([])
            budget = limit
        shards[-1].append(name)
        budget -= size
    return shards


def _byte_count(size: int | str) -> int:
    """Read a size such as ``"5GB"`` or ``"500MiB"``."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", size, re.IGNORECASE)
    if not match:
        raise InputError(f"max_shard_size: expected a size such as '5GB' or '500MiB', got {size!r}.")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))
