"""Measuring speed: what is timed, compared and written. No test looks at how long anything takes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import Tensor, nn
from typer.testing import CliRunner

from tests.families.maskformer import tiny
from vitruvian import cli
from vitruvian.bench import workloads
from vitruvian.bench.timing import Timing, count_flops, relative_difference, time_interleaved
from vitruvian.bench.workloads import (
    BenchmarkModel,
    Measurement,
    Workload,
    benchmark_model,
    benchmark_names,
    markdown_table,
    measure,
    random_model,
    reference_config,
)
from vitruvian.cli.commands.bench import bench
from vitruvian.errors import InputError
from vitruvian.models.maskformer.modeling import MaskFormerForInstanceSegmentation

CPU = torch.device("cpu")
WORKLOAD = Workload(1, (64, 96), 0, torch.float32, CPU)


def small(name: str = "small") -> BenchmarkModel:
    """A tiny MaskFormer."""
    return BenchmarkModel(
        name,
        lambda workload: random_model(MaskFormerForInstanceSegmentation, tiny(), workload),
        lambda model, inputs: model(**inputs).masks_queries_logits,
        size_hw=(64, 96),
    )


def test_calls_take_turns() -> None:
    order: list[str] = []
    found = time_interleaved({n: lambda n=n: order.append(n) for n in "ab"}, device=CPU, seconds=0.01, rounds=4)
    assert set(found) == {"a", "b"}
    assert found["a"].count == found["b"].count >= 3
    timed = "".join(order)
    assert timed.index("b") > timed.index("a")
    assert "ab" in timed[-found["a"].count * 20 :]
    assert found["a"].low <= found["a"].median <= found["a"].high


def test_timing_is_a_median() -> None:
    assert Timing.of([3.0, 1.0, 100.0]) == Timing(3.0, 1.0, 100.0, 3)


@pytest.mark.parametrize(
    ("got", "want", "largest"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.2], [1.0, 2.0], 0.1),
        ([1.0, float("nan")], [1.0, 2.0], float("inf")),
    ],
)
def test_difference(got: list[float], want: list[float], largest: float) -> None:
    same = torch.ones(3)
    found = relative_difference((same, torch.tensor(got)), (same, torch.tensor(want)))
    assert found[0] == pytest.approx(largest)


def test_flops_of_a_product() -> None:
    linear = nn.Linear(8, 16, bias=False)
    assert count_flops(lambda: linear(torch.ones(4, 8))) == 2 * 4 * 8 * 16
    q, k, v = torch.ones(2, 4, 5, 8), torch.ones(2, 2, 7, 8), torch.ones(2, 2, 7, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert count_flops(lambda: attend(q, k, v, enable_gqa=True)) == 2 * (2 * 4) * 5 * 7 * (8 + 8)


@pytest.mark.parametrize("reference", [False, True])
def test_measure(reference: bool) -> None:
    if reference:
        pytest.importorskip("transformers")
    variants = {"plain", "reference"} if reference else {"plain"}
    cell = measure(small(), WORKLOAD, seconds=0.0, variants=variants | {"float32"}, ceiling=1.0)
    assert set(cell.times) == variants | {"optimized"}
    assert cell.tflop > 0
    assert json.loads(json.dumps(cell.to_dict()))["model"] == "small"
    if reference:
        assert cell.difference is not None
        assert cell.difference[0] < 1e-4
        assert cell.to_float32["optimized"][0] < 1e-4
        assert cell.ratio is not None
    else:
        assert cell.ratio is None


def test_table_has_the_compiled_reference_where_it_was_timed() -> None:
    cell = Measurement(
        "x", 1, (4, 4), 0, "float32", times={"optimized": Timing.of([2.0]), "reference": Timing.of([8.0])}
    )
    assert "compiled" not in workloads.markdown_table([cell])
    cell.note = "well"
    compiled = dataclasses.replace(cell, times=cell.times | {"compiled": Timing.of([4.0])}, note="")
    lines = workloads.markdown_table([cell, compiled]).splitlines()
    assert "| compiled ms | ratio |" in lines[0]
    assert len({line.count("|") for line in lines}) == 1
    assert "0.50 ×" in lines[-1]


def test_a_reference_that_fails_in_a_type_runs_in_float32() -> None:
    class Fussy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise RuntimeError("expected scalar type Float but found BFloat16")
            return x

    cell = Measurement("x", 1, (1, 1), 0, "bfloat16")
    inputs = {"x": torch.ones(2, dtype=torch.bfloat16)}
    one = BenchmarkModel("x", lambda workload: None, lambda m, i: m(**i), (1, 1))  # type: ignore[arg-type, return-value]
    _, inputs = workloads._reference_that_runs(one, Fussy(), inputs, cell)
    assert inputs["x"].dtype == torch.float32
    assert "float32" in cell.note


def test_missing_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "has_reference", lambda: False)
    with pytest.raises(InputError, match="transformers"):
        measure(small(), WORKLOAD)


def test_table() -> None:
    fast, slow = Timing(1.0, 0.9, 1.2, 5), Timing(4.0, 3.9, 4.2, 5)
    cell = Measurement(
        "m", 2, (64, 96), 3, "float32", {"optimized": fast, "reference": slow}, (1e-3, 1e-4), {}, 0.5, 1000.0,
        {"optimized": 2**30}, "a note",
    )  # fmt: skip
    failed = Measurement("n", 1, (1, 1), 0, "float32")
    lines = markdown_table([cell, failed]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| 0.25 × |" in lines[2]
    assert "64×96, 3 prompts" in lines[2]
    assert "500.00 (50%)" in lines[2]
    assert "a note" in lines[3]
    assert "failed" in lines[4]


def test_every_name_is_a_model() -> None:
    for name in benchmark_names():
        assert benchmark_model(name).name == ("builtin-pose" if name == "builtin" else name)
    with pytest.raises(InputError, match="mask2former-swin-small"):
        benchmark_model("mask2former-swin-smal")


def test_keys_the_reference_refuses() -> None:
    inputs = {"a": 1, "stage_names": [], "inner": {"stage_names": [], "b": 2}, "vitruvian_version": "1"}
    assert reference_config(inputs) == {"a": 1, "inner": {"b": 2}}


def test_decoder_inputs() -> None:
    found = benchmark_model("sam2-tiny-decoder").inputs(Workload(2, (64, 128), 5, torch.float32, CPU))
    assert found["input_points"].shape == (2, 5, 1, 2)
    assert [tuple(level.shape) for level in found["image_embeddings"]] == [
        (2, 32, 16, 32),
        (2, 64, 8, 16),
        (2, 256, 4, 8),
    ]


class TestCommand:
    """`vitruvian bench`."""

    def run(self, *words: str) -> Any:
        app = typer.Typer()
        app.command()(bench)
        return CliRunner().invoke(app, list(words))

    def test_lists_what_there_is(self) -> None:
        result = self.run("--list")
        assert result.exit_code == 0
        assert result.stdout.split() == benchmark_names()

    def test_measures_a_curve(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(workloads, "benchmark_model", small)
        path = tmp_path / "found.json"
        words = ["--model", "x", "--batch", "1", "--batch", "2", "--size", "64x64", "--no-reference"]
        result = self.run(*words, "--device", "cpu", "--seconds", "0", "--json", str(path))
        assert result.exit_code == 0, result.output
        found = json.loads(path.read_text(encoding="utf-8"))
        assert [cell["batch"] for cell in found["cells"]] == [1, 2]
        assert result.stdout.count("64×64") == 2

    @pytest.mark.parametrize(
        ("words", "message"),
        [(["--model", "nonsense"], "--model"), (["--dtype", "int3"], "--dtype"), (["--size", "12"], "--size")],
    )
    def test_bad_words(self, words: list[str], message: str) -> None:
        result = self.run("--device", "cpu", "--no-reference", *words)
        assert isinstance(result.exception, InputError)
        assert message in str(result.exception)


def test_the_builtin_model_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"--model": "builtin", "--size": "64x48", "--seconds": "0", "--device": "cpu"}
    assert cli.run(["bench", "--no-reference", *(word for pair in options.items() for word in pair)]) == 0
    captured = capsys.readouterr()
    assert "| builtin-pose | 1 | 64×48 | float32 |" in captured.out
    steps = ["measuring the machine"]
    steps += [f"1 of 1: builtin-pose, batch 1, 64×48, float32, {step}" for step in ("building the model", "timing")]
    assert [step for step in steps if step not in captured.err] == []
