import json
import os
import pickle
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitruvian import CheckpointError, InputError, WeightsError, weights
from vitruvian.hub import HubOptions
from vitruvian.weights import (
    SafetensorsFile,
    WeightFiles,
    _byte_count,
    _open_file,
    _split_into_shards,
    check_finite,
    describe_mismatch,
    match_keys,
    open_weights,
    save_weights,
)

HERE = HubOptions()


def state(count: int = 6) -> dict[str, torch.Tensor]:
    """Tensors of 400 bytes each."""
    return {f"layer.{i}.weight": torch.full((10, 10), float(i)) for i in range(count)}


def read(files: WeightFiles) -> dict[str, torch.Tensor]:
    return dict(files.tensors())


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name


class TestSaving:
    def test_one_file(self, tmp_path: Path) -> None:
        written = save_weights(state(), tmp_path)
        assert [path.name for path in written] == ["model.safetensors"]
        assert_same(load_file(written[0]), state())
        assert_same(read(open_weights(tmp_path, HERE)), state())

    def test_shards_with_an_index(self, tmp_path: Path) -> None:
        written = save_weights(state(), tmp_path, max_shard_size=1000)
        names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
        assert [path.name for path in written] == [*names, "model.safetensors.index.json"]
        index = json.loads(written[-1].read_text())
        assert index["metadata"]["total_size"] == 2400
        assert index["weight_map"] == {name: names[i // 2] for i, name in enumerate(state())}
        assert_same(read(open_weights(tmp_path, HERE)), state())

    def test_a_tensor_larger_than_a_shard_gets_its_own(self) -> None:
        sizes = {"a": torch.zeros(10), "big": torch.zeros(100), "b": torch.zeros(10), "c": torch.zeros(10)}
        assert _split_into_shards(sizes, 100) == [["a"], ["big"], ["b", "c"]]
        assert _split_into_shards({}, 100) == [[]]

    @pytest.mark.parametrize(("first", "then"), [("5GB", 1000), (1000, "5GB"), (500, 1000)])
    def test_a_new_save_removes_what_the_old_one_left(self, tmp_path: Path, first: Any, then: Any) -> None:
        (tmp_path / "model-notes.safetensors").write_text("mine")
        (tmp_path / "optimizer.pt").write_text("mine")
        save_weights({"old": torch.zeros(600)} | state(), tmp_path, max_shard_size=first)
        written = save_weights(state(), tmp_path, max_shard_size=then)
        kept = {path.name for path in tmp_path.iterdir()} - {"model-notes.safetensors", "optimizer.pt"}
        assert kept == {path.name for path in written}
        assert_same(read(open_weights(tmp_path, HERE)), state())

    def test_a_failing_write_leaves_the_old_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save_weights(state(), tmp_path)

        def half(tensors: Any, path: Path, **_: Any) -> None:
            Path(path).write_bytes(b"half")
            raise OSError("disk full")

        monkeypatch.setattr(weights, "save_file", half)
        with pytest.raises(OSError, match="disk full"):
            save_weights({"x": torch.zeros(1)}, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
        assert_same(read(open_weights(tmp_path, HERE)), state())

    def test_files_carry_the_usual_permissions(self, tmp_path: Path) -> None:
        old = os.umask(0o027)
        try:
            (path,) = save_weights(state(), tmp_path)
        finally:
            os.umask(old)
        assert path.stat().st_mode & 0o777 == 0o640

    def test_layout_dtype_and_views_do_not_matter(self, tmp_path: Path) -> None:
        whole = torch.arange(12.0).reshape(3, 4)
        tensors = {
            "turned": whole.t(),
            "top": whole[:1],
            "bottom": whole[1:],
            "count": torch.tensor(3),
            "half": torch.ones(2, dtype=torch.bfloat16),
            "flag": torch.tensor([True]),
            "empty": torch.zeros(0, 3),
        }
        save_weights(tensors, tmp_path)
        assert_same(read(open_weights(tmp_path, HERE)), tensors)

    @pytest.mark.parametrize(
        ("text", "bytes_"),
        [("5GB", 5 * 10**9), ("500MiB", 500 * 2**20), ("1.5 kb", 1500), ("7", 7), ("2TiB", 2 * 2**40), (12, 12)],
    )
    def test_sizes_in_words(self, text: str | int, bytes_: int) -> None:
        assert _byte_count(text) == bytes_

    @pytest.mark.parametrize("text", ["", "big", "5XB", "-1GB"])
    def test_sizes_that_are_none(self, text: str) -> None:
        with pytest.raises(InputError, match="max_shard_size: expected a size such as '5GB'"):
            _byte_count(text)


class TestReading:
    def test_shapes_come_from_headers(self, tmp_path: Path) -> None:
        save_weights(state(3), tmp_path, max_shard_size=400)
        assert open_weights(tmp_path, HERE).shapes == dict.fromkeys(state(3), (10, 10))

    @pytest.mark.parametrize("name", ["model.safetensors", "odd name.safetensors"])
    def test_a_single_file_by_any_name(self, tmp_path: Path, name: str) -> None:
        save_file(state(), tmp_path / name)
        assert_same(read(open_weights(tmp_path / name, HERE)), state())
        assert_same(read(open_weights(str(tmp_path / name), HERE)), state())
        assert_same(read(open_weights(tmp_path, HERE)), state())

    @pytest.mark.parametrize("old_format", [False, True])
    @pytest.mark.parametrize("ending", ["bin", "pt", "pth"])
    def test_torch_files(self, tmp_path: Path, ending: str, old_format: bool) -> None:
        path = tmp_path / f"w.{ending}"
        torch.save(state(), path, _use_new_zipfile_serialization=not old_format)
        assert_same(read(open_weights(path, HERE)), state())

    @pytest.mark.parametrize("key", ["state_dict", "model", "module", "model_state_dict"])
    def test_training_checkpoints_hold_the_weights_under_a_key(self, tmp_path: Path, key: str) -> None:
        torch.save({"epoch": 3, key: state() | {"step": 3}}, tmp_path / "w.pth")
        assert_same(read(open_weights(tmp_path / "w.pth", HERE)), state())

    def test_folder_of_torch_files(self, tmp_path: Path) -> None:
        torch.save(state(2), tmp_path / "pytorch_model.bin")
        assert_same(read(open_weights(tmp_path, HERE)), state(2))
        (tmp_path / "pytorch_model.bin").rename(tmp_path / "a.bin")
        table = {"weight_map": dict.fromkeys(state(2), "a.bin")}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(table))
        assert_same(read(open_weights(tmp_path, HERE)), state(2))

    def test_safetensors_are_preferred_and_can_be_required(self, tmp_path: Path) -> None:
        torch.save(state(1), tmp_path / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match=r"expected weights \(model\.safetensors or .*\), found none"):
            open_weights(tmp_path, HERE, use_safetensors=True)
        with pytest.raises(CheckpointError, match="use_safetensors=True rules this file out"):
            open_weights(tmp_path / "pytorch_model.bin", HERE, use_safetensors=True)
        save_file(state(2), tmp_path / "model.safetensors")
        assert len(open_weights(tmp_path, HERE).shapes) == 2
        assert len(open_weights(tmp_path, HERE, use_safetensors=False).shapes) == 1

    def test_subfolder(self, tmp_path: Path) -> None:
        save_weights(state(), tmp_path / "deep")
        assert_same(read(open_weights(tmp_path, HubOptions(subfolder="deep"))), state())

    def test_tensors_stay_whole_when_the_file_is_replaced(self, tmp_path: Path) -> None:
        save_weights(state(), tmp_path)
        held = read(open_weights(tmp_path, HERE))
        save_weights({name: tensor + 1 for name, tensor in state().items()}, tmp_path)
        assert_same(held, state())

    def test_writing_into_a_tensor_leaves_the_file_alone(self, tmp_path: Path) -> None:
        save_weights(state(), tmp_path)
        for _, tensor in open_weights(tmp_path, HERE).tensors():
            tensor.add_(1)
        assert_same(load_file(tmp_path / "model.safetensors"), state())

    def test_large_files_are_read_in_windows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save_weights(state(), tmp_path)
        opened = []
        real = weights.safe_open

        def counted(*args: Any, **kwargs: Any) -> Any:
            opened.append(args)
            return real(*args, **kwargs)

        monkeypatch.setattr(weights, "_CHUNK_BYTES", 1000)
        reader = SafetensorsFile(tmp_path / "model.safetensors")
        monkeypatch.setattr(weights, "safe_open", counted)
        assert_same(dict(reader.tensors()), state())
        assert len(opened) == 2  # three tensors of 400 bytes fill a window

    def test_renames_split_and_drop(self, tmp_path: Path) -> None:
        save_weights({"w12": torch.arange(8.0).reshape(4, 2), "junk": torch.ones(1), "b": torch.ones(3)}, tmp_path)
        names = {"w12": ("gate", "up"), "junk": (), "b": ("bias",)}
        files = WeightFiles(open_weights(tmp_path, HERE).readers, renames=names.__getitem__)
        assert files.shapes == {"gate": (2, 2), "up": (2, 2), "bias": (3,)}
        found = read(files)
        assert found["up"].tolist() == [[4, 5], [6, 7]]
        assert found.keys() == files.shapes.keys()

    def test_what_does_not_split_evenly(self, tmp_path: Path) -> None:
        for tensor in (torch.ones(5, 2), torch.tensor(1.0)):
            save_weights({"w12": tensor}, tmp_path)
            files = WeightFiles(open_weights(tmp_path, HERE).readers, renames=lambda _: ("gate", "up"))
            with pytest.raises(WeightsError, match="w12: expected a first dimension that splits into 2"):
                _ = files.shapes


class Bomb:
    """Asks the reader to make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


class TestDamage:
    @pytest.mark.parametrize("keep", [0, 4, 100, 2000, -1])
    def test_truncated_safetensors(self, tmp_path: Path, keep: int) -> None:
        (path,) = save_weights(state(), tmp_path)
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(CheckpointError, match=r"model\.safetensors: expected a readable weight file.*download it"):
            open_weights(tmp_path, HERE)

    @pytest.mark.parametrize("old_format", [False, True])
    @pytest.mark.parametrize("keep", [0, 10, 900])
    def test_truncated_torch_file(self, tmp_path: Path, keep: int, old_format: bool) -> None:
        path = tmp_path / "w.bin"
        torch.save(state(), path, _use_new_zipfile_serialization=not old_format)
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(CheckpointError, match=r"w\.bin: expected a readable weight file, but \w+"):
            open_weights(path, HERE)

    @pytest.mark.parametrize("old_format", [False, True])
    @pytest.mark.parametrize("where", ["beside", "inside"])
    def test_code_is_refused_and_not_run(self, tmp_path: Path, where: str, old_format: bool) -> None:
        bomb, path = Bomb(tmp_path / "boom"), tmp_path / "w.bin"
        content = {"state_dict": state(), "bomb": bomb} if where == "beside" else state() | {"bomb": bomb}
        torch.save(content, path, _use_new_zipfile_serialization=not old_format)
        with pytest.raises(CheckpointError, match=r"contains pickled objects \(\S*mkdir") as caught:
            open_weights(path, HERE)
        assert "weights_only" not in str(caught.value)
        assert not (tmp_path / "boom").exists()

    def test_other_objects_are_refused_by_name(self, tmp_path: Path) -> None:
        torch.save({"model": state(), "args": Namespace(lr=1)}, tmp_path / "w.pth")
        with pytest.raises(CheckpointError, match=r"pickled objects \(argparse\.Namespace\)"):
            open_weights(tmp_path / "w.pth", HERE)

    @pytest.mark.parametrize("ending", ["bin", "safetensors"])
    def test_pointer_of_git_lfs(self, tmp_path: Path, ending: str) -> None:
        path = tmp_path / f"w.{ending}"
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        with pytest.raises(CheckpointError, match=r"pointer of Git LFS\. Fetch them with: git lfs pull"):
            open_weights(path, HERE)

    @pytest.mark.parametrize("content", [torch.ones(3), [torch.ones(1)], {"a": 1}, {}])
    def test_torch_files_without_named_tensors(self, tmp_path: Path, content: Any) -> None:
        torch.save(content, tmp_path / "w.pt")
        with pytest.raises(WeightsError, match=r"w\.pt: expected tensors by name, got"):
            _open_file(tmp_path / "w.pt")

    def test_a_pickle_that_is_not_of_torch(self, tmp_path: Path) -> None:
        (tmp_path / "w.pt").write_bytes(pickle.dumps({"a": 1}, protocol=2))
        with pytest.raises(CheckpointError, match=r"w\.pt: expected"):
            _open_file(tmp_path / "w.pt")

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"expected weights \(.*pytorch_model\.bin.*\), found none"):
            open_weights(tmp_path, HERE)

    def test_a_choice_of_loose_files_is_not_guessed(self, tmp_path: Path) -> None:
        save_file(state(), tmp_path / "a.safetensors")
        save_file(state(), tmp_path / "b.safetensors")
        with pytest.raises(CheckpointError, match="found none"):
            open_weights(tmp_path, HERE)

    def test_a_file_of_another_kind(self, tmp_path: Path) -> None:
        save_weights(state(), tmp_path)  # must not be taken instead
        (tmp_path / "epoch3.ckpt").write_text("x")
        with pytest.raises(CheckpointError, match=r"epoch3\.ckpt: expected a weight file \(\.safetensors"):
            open_weights(tmp_path / "epoch3.ckpt", HERE)

    def test_missing_shard(self, tmp_path: Path) -> None:
        save_weights(state(), tmp_path, max_shard_size=1000)
        (tmp_path / "model-00002-of-00003.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"the shard model-00002-of-00003\.safetensors is missing"):
            open_weights(tmp_path, HERE)

    @pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "./model.bin"])
    def test_index_that_leaves_its_folder(self, tmp_path: Path, name: str) -> None:
        folder = tmp_path / "inside"
        folder.mkdir()
        save_file(state(), tmp_path / "model.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(CheckpointError, match=r"names a file outside its folder .*Do not use this checkpoint"):
            open_weights(folder, HERE)

    @pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "[]", "{"])
    def test_bad_index(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"index\.json: expected"):
            open_weights(tmp_path, HERE)


class TestFinite:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
    def test_bad_values_are_found(self, value: float, dtype: torch.dtype) -> None:
        tensor = torch.ones(3, 5, dtype=dtype)
        check_finite("w", tensor, "here")
        tensor[1, 2] = value
        with pytest.raises(WeightsError, match=r"here: the weight w has NaN or infinite values.*check_finite=False"):
            check_finite("w", tensor, "here")

    def test_small_floats(self) -> None:
        tensor = torch.ones(4).to(torch.float8_e5m2)
        check_finite("w", tensor, "here")
        with pytest.raises(WeightsError):
            check_finite("w", torch.tensor([float("nan")]).to(torch.float8_e5m2), "here")

    def test_what_has_no_such_values(self) -> None:
        check_finite("w", torch.ones(2, dtype=torch.int64), "here")
        check_finite("w", torch.zeros(0), "here")


class TestMatching:
    WANTED = {"model.a": (2,), "model.b": (3,), "head.c": (4,)}

    def test_same_names(self) -> None:
        plan = match_keys(self.WANTED, self.WANTED, prefix="model")
        assert plan.pairs == {name: name for name in self.WANTED}
        assert (plan.missing, plan.unexpected, plan.mismatched) == ([], [], [])
        assert (plan.added_prefix, plan.dropped_prefix) == (False, False)

    def test_bare_file_into_a_model_with_a_head(self) -> None:
        plan = match_keys(self.WANTED, {"a": (2,), "b": (3,)}, prefix="model")
        assert plan.pairs == {"a": "model.a", "b": "model.b"}
        assert (plan.missing, plan.unexpected, plan.added_prefix) == (["head.c"], [], True)

    def test_file_with_a_head_into_a_bare_model(self) -> None:
        plan = match_keys({"a": (2,), "b": (3,)}, self.WANTED, prefix="model")
        assert plan.pairs == {"model.a": "a", "model.b": "b"}
        assert (plan.missing, plan.unexpected, plan.dropped_prefix) == ([], [], True)

    def test_a_bare_model_with_a_part_named_like_the_prefix(self) -> None:
        wanted = {"embeddings": (1,), "model.layer.0": (2,), "model.layer.1": (2,), "norm": (1,)}
        assert match_keys(wanted, wanted, prefix="model").pairs == {name: name for name in wanted}
        plan = match_keys(wanted, {f"model.{name}": shape for name, shape in wanted.items()}, prefix="model")
        assert plan.pairs == {f"model.{name}": name for name in wanted}

    def test_renames_and_ignored(self) -> None:
        plan = match_keys(
            {"new.weight": (1,), "keep": (1,)},
            {"old.gamma": (1,), "keep": (1,), "x.periods": (9,)},
            renames=[(r"^old\.", "new."), (r"\.gamma$", ".weight")],
            ignored=[r"\.periods$"],
        )
        assert plan.pairs == {"old.gamma": "new.weight", "keep": "keep"}
        assert plan.unexpected == []

    def test_shapes_that_differ(self) -> None:
        plan = match_keys(self.WANTED, self.WANTED | {"head.c": (5,)}, prefix="model")
        assert plan.mismatched == [("head.c", (5,), (4,))]
        assert "head.c" not in plan.missing
        assert "head.c" not in plan.pairs

    def test_description_counts_names_and_suggests(self) -> None:
        text = describe_mismatch(
            ["norm.weight"] + [f"layer.{i}" for i in range(9)], ["norm.wieght"], [("head", (5, 1), (4, 1))]
        )
        assert "10 missing: norm.weight, layer.0" in text
        assert "and 4 more" in text
        assert "Did you mean norm.wieght?" in text
        assert "1 unexpected: norm.wieght." in text
        assert "1 of another shape: head [5, 1] in the file, [4, 1] in the model." in text


def test_memory_of_converted_weights_is_given_back(tmp_path: Path) -> None:
    save_file({f"w{i}": torch.zeros(1024, 1024) for i in range(24)}, tmp_path / "w.safetensors")  # 96 MiB
    code = """
import sys, torch
from pathlib import Path
from vitruvian import weights
weights._CHUNK_BYTES = 8 * 2**20
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
reader = weights.SafetensorsFile(Path(sys.argv[1]))
torch.zeros(8).to(torch.bfloat16)
before = peak()
kept = {name: tensor.to(torch.bfloat16) for name, tensor in reader.tensors()}
print(peak() - before)
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "w.safetensors")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 80  # 48 MiB of results and a window, not the 144 MiB of both
