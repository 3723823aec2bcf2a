"""Run the tests of transformers, the reference, on our classes: `make peer-tests PEER=path/to/transformers`.

1. The tests of our model families, and the mixins they use, are copied from the checkout to a temporary folder.
2. They run offline as they are, which tells which of them the reference passes on this machine.
3. In a second copy, imports of names that vitruvian exports are rewritten to come from vitruvian, and those tests
   run again.
4. The counts are printed by family, category and subject. The failures, grouped by error, are written to a Markdown
   and a JSON file.

The copies are deleted at the end: nothing of the reference stays in this repository. Slow tests, and tests that need
the network or a GPU, are skipped by the reference's own markers. Results of the reference are cached in the output
folder for each family; they are measured again when the checkout or the environment changes.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import vitruvian

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = ("sapiens2", "sam2", "sam2_video", "mask2former", "maskformer", "swin")
CLASS_PREFIXES = ("Sapiens2", "Sam2", "Mask2Former", "MaskFormer", "Swin")
TIMEOUT_S = 300

# Names that are private in transformers, or part of its class hierarchy: (module, name) -> their counterpart here.
# Names of a family's own modules need no row: they come from vitruvian where it exports them.
PRIVATE_NAMES = {
    ("transformers", "PreTrainedConfig"): "vitruvian.Config",
    ("transformers", "PreTrainedModel"): "vitruvian.Model",
    ("transformers", "MODEL_MAPPING"): "peer_names.MODEL_MAPPING",
    ("transformers.modeling_outputs", "SemanticSegmenterOutput"): "vitruvian.SemanticSegmenterOutput",
    ("transformers.models.auto.image_processing_auto", "IMAGE_PROCESSOR_MAPPING"): "peer_names.IMAGE_PROCESSOR_MAPPING",
    ("transformers.models.auto.video_processing_auto", "VIDEO_PROCESSOR_MAPPING"): "peer_names.VIDEO_PROCESSOR_MAPPING",
    (
        "transformers.models.auto.image_processing_auto",
        "get_image_processor_class_from_name",
    ): "peer_names.get_image_processor_class_from_name",
    (
        "transformers.processing_utils",
        "MODALITY_TO_AUTOPROCESSOR_MAPPING",
    ): "peer_names.MODALITY_TO_AUTOPROCESSOR_MAPPING",
    (
        "transformers.modeling_layers",
        "GradientCheckpointingLayer",
    ): "vitruvian.layers.gradient_checkpointing.CheckpointedLayer",
    ("transformers.utils", "ModelOutput"): "vitruvian.ModelOutput",
    ("transformers.backbone_utils", "BackboneType"): "vitruvian.layers.backbone.BackboneType",
} | {
    (
        f"transformers.models.{family}.image_processing_{family}",
        "binary_mask_to_rle",
    ): "vitruvian.models.mask_classification.transformers_results.binary_mask_to_rle"
    for family in ("mask2former", "maskformer")
}

# The first pattern that a test's name matches is its subject.
SUBJECTS = {
    "features of other modalities": r"get_(text|image|video|audio)_features",  # methods that no model here has
    "post-processing": r"post_process|rle",
    "export and compile": r"export|onnx|compile",
    "attention implementations": r"sdpa|attn|attention_dynamically|flash|flex",
    "training": r"(?<!pre)train|grad|loss|peft|problem_types",
    "saving and loading": r"save|load|pretrained|safetensors|keys|json|from_dict|initialized",
    "initial weights": r"init_|resize_embeddings",
    "devices and precision": r"offload|parallel|device|fp16|bf16|fp32|dtype|buffer",
    "configuration": r"config|attributes|embeddings|backbone_stage|channels|prefix|is_small|name|properties|default",
    "preprocessing": r"call|processor|backends|size_divisor|kwargs",
    "outputs": r"output|hidden|attention|batching|determinism|signature|model|backbone|for_",
}


@dataclass
class Outcome:
    """What one test did: `passed`, `failed`, `skipped` or `not run`, with the last line of its traceback."""

    status: str
    error: str = ""
    seconds: float = 0.0


@dataclass
class Imports:
    """Which names the rewriting replaced: name -> module it comes from now."""

    replaced: dict[str, str] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    def source(self, module: str, name: str) -> tuple[str, str]:
        """Return (module, name) from which a test imports what it asks `module` for."""
        of_family = module.startswith(tuple(f"transformers.models.{family}" for family in FAMILIES))
        if (module == "transformers" or of_family) and name in vitruvian.__all__:
            (self.private if of_family else self.replaced)[f"{module}.{name}"] = "vitruvian"
            return "vitruvian", name
        if (module, name) in PRIVATE_NAMES:
            target = PRIVATE_NAMES[module, name]
            self.private[f"{module}.{name}"] = target
            return tuple(target.rsplit(".", 1))  # type: ignore[return-value]
        if of_family or (module == "transformers" and name.startswith(CLASS_PREFIXES)):
            self.missing.add(name)
            return "peer_names", name
        return module, name

    def rewrite(self, text: str) -> str:
        """Return a test file's text with its imports from transformers replaced by ours."""
        lines = text.split("\n")
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and not node.level]
        for node in sorted(nodes, key=lambda node: node.lineno, reverse=True):
            if node.module is None or node.module.split(".")[0] != "transformers":
                continue
            names = defaultdict(list)
            for alias in node.names:
                module, name = self.source(node.module, alias.name)
                names[module].append(f"{name} as {alias.asname or alias.name}")
            indent = " " * node.col_offset
            lines[node.lineno - 1 : node.end_lineno] = [
                f"{indent}from {module} import {', '.join(imported)}" for module, imported in names.items()
            ]
        return "\n".join(lines)


def copy_tests(peer: Path, target: Path) -> Path:
    """Copy what the tests of our families need from the checkout; link to its source code."""

    def other_models(folder: str, names: list[str]) -> list[str]:
        skipped = ["__pycache__"]
        if Path(folder) == peer / "tests" / "models":
            skipped += [name for name in names if name not in (*FAMILIES, "__init__.py")]
        return skipped

    target.mkdir()
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(peer / name, target)
    for name in ("tests", "utils"):
        shutil.copytree(peer / name, target / name, ignore=other_models)
    (target / "src").symlink_to(peer / "src", target_is_directory=True)
    return target


def run_tests(folder: Path, family: str, log: Path, *, select: list[str] | None, keyword: str | None) -> dict:
    """Run a family's tests in that copy; return the records of `peer_plugin` and the exit status."""
    results, selection = folder / "results.jsonl", folder / "select.json"
    results.unlink(missing_ok=True)
    search_path = [ROOT / "tools", ROOT / "benchmarks", ROOT / "src", (folder / "src").resolve()]
    environment = {
        **os.environ,
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "PEER_RESULTS": str(results),
        # Some tests start pytest again in a process of their own: options in the environment reach it too.
        "PYTEST_ADDOPTS": f"-p peer_plugin -o addopts= -o log_cli=0 -p no:cacheprovider --timeout={TIMEOUT_S}",
        "PYTHONPATH": os.pathsep.join(map(str, search_path)),
        "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode"),
    }
    if select is not None:
        selection.write_text(json.dumps(select))
        environment["PEER_SELECT"] = str(selection)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"tests/models/{family}"]
    if keyword:
        command += ["-k", keyword]
    with log.open("w") as output:
        status = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output).returncode
    lines = results.read_text().splitlines() if results.exists() else []
    return {"status": status, "records": [json.loads(line) for line in lines]}


def outcomes(run: dict) -> tuple[dict[str, Outcome], set[str]]:
    """Return the outcome of each test of a run, and the ids of all tests that it collected."""
    tests: dict[str, Outcome] = {}
    collected: set[str] = set()
    for record in run["records"]:
        if "collected" in record:
            collected |= set(record["collected"])
            continue
        test = tests.setdefault(record["id"], Outcome("not run", f"pytest ended with exit status {run['status']}"))
        test.seconds += record.get("seconds", 0.0)
        if record["outcome"] == "failed":
            if test.status != "failed":
                test.status, test.error = "failed", last_line(record["error"])
        elif test.status != "failed" and not record.get("subtest"):
            if record["outcome"] == "skipped":
                test.status, test.error = "skipped", "skipped: " + record.get("error", "").removeprefix("Skipped: ")
            elif record["phase"] == "call":
                test.status, test.error = "passed", ""
    return tests, collected


def last_line(error: str) -> str:
    """Return the line of an error that names it: `Type: message`, without details on further lines."""
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    return lines[0] if lines else "no message"


def error_group(error: str) -> str:
    """Return an error with what differs from test to test (class names, numbers, addresses, paths) left out."""
    error = error.split(" Did you mean ")[0]
    if "vitruvian has no" not in error:
        error = re.sub(rf"\b({'|'.join(CLASS_PREFIXES)})\w+", class_kind, error)
    error = re.sub(r"/\S*/(\S+)", r"…/\1", error)
    error = re.sub(r"0x[0-9a-f]+", "0x…", error)
    error = re.sub(r"\btmp\w+", "tmp…", error)
    error = re.sub(r"-?\d+\.\d+(e[-+]?\d+)?", "#", error)
    return re.sub(r"(?<![\w#])\d+\b", "#", error)[:200]


def class_kind(match: re.Match[str]) -> str:
    """Return `*Config` for `Sam2Config`, `*Model` for every model class, and so on."""
    return next((f"*{kind}" for kind in ("Config", "ImageProcessor", "Processor") if match[0].endswith(kind)), "*Model")


def category(test: str) -> str:
    """Return `modeling`, `image processing` or `processing`, from the name of the test's file."""
    return next(c for c in ("modeling", "image processing", "processing") if f"/test_{c.replace(' ', '_')}_" in test)


def subject(test: str) -> str:
    """Return the row of `SUBJECTS` for that test."""
    name = test.rsplit("::", 1)[-1].removeprefix("test_")
    return next((subject for subject, pattern in SUBJECTS.items() if re.search(pattern, name)), "other")


def family_of(test: str) -> str:
    """Return the family in a test's path."""
    return test.split("/")[2]


def differs_in_text(outcome: Outcome) -> bool:
    """Return whether a test failed only because an error of the right type has another text than the reference's."""
    return re.match(r'AssertionError: ".*" does not match "', outcome.error) is not None


def count_table(columns: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], Outcome]]) -> list[str]:
    """Return a Markdown table: for each key, how many tests the reference passes and how many of them ours pass.

    The last column counts those failures that `differs_in_text`.
    """
    reference, ours, texts = Counter(), Counter(), Counter()
    total = ("all", *[""] * (len(columns) - 1))
    for row, outcome in rows:
        for key in (row, total):
            reference[key] += 1
            ours[key] += outcome.status == "passed"
            texts[key] += differs_in_text(outcome)
    reference[total] = reference.pop(total, 0)  # the last row
    cells = [(*columns, "reference passes", "ours passes", "%", "other error text")]
    cells += [
        (*key, str(n), str(ours[key]), f"{100 * ours[key] / max(n, 1):.1f}", str(texts[key] or ""))
        for key, n in reference.items()
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = len(columns)

    def line(row: tuple[str, ...]) -> str:
        padded = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = [("-" * w if i < left else "-" * (w - 1) + ":") for i, w in enumerate(widths)]
    return [line(cells[0]), line(tuple(rule)), *map(line, cells[1:])]


def checkout_version(peer: Path) -> str:
    """Return the version of the transformers checkout; raise if it is none, or not the one of this environment."""
    module = peer / "src" / "transformers" / "__init__.py"
    match = re.search(r'^__version__ = "(.+)"', module.read_text(), re.MULTILINE) if module.exists() else None
    if match is None or not (peer / "tests" / "models").is_dir():
        raise SystemExit(f"PEER: expected a checkout of transformers with src/ and tests/, got {peer}.")
    if match[1] != version("transformers"):
        raise SystemExit(
            f"PEER: expected transformers {version('transformers')}, as in this environment, got {match[1]}. "
            "Remove .venv-peer and run `make peer-tests` again: it is built from the checkout."
        )
    return match[1]


def digest(folder: Path, family: str, release: str) -> str:
    """Return a hash of what the reference's results depend on: the tests, and the versions of the environment."""
    versions = [release, sys.version, version("torch"), version("torchvision"), version("pytest")]
    files = [*folder.glob("tests/*.py"), *folder.glob(f"tests/models/{family}/*.py")]
    return hashlib.sha256(" ".join(versions).encode() + b"".join(f.read_bytes() for f in sorted(files))).hexdigest()


def reference_run(folder: Path, family: str, release: str, out: Path) -> dict:
    """Return the run of a family's tests with the reference's classes, from the cache if it is still valid."""
    cache, key = out / f"reference-{family}.json", digest(folder, family, release)
    if cache.exists() and (cached := json.loads(cache.read_text()))["key"] == key:
        return cached
    run = {"key": key, **run_tests(folder, family, out / f"reference-{family}.log", select=None, keyword=None)}
    cache.write_text(json.dumps(run))
    return run


def write_report(
    out: Path, title: str, passed: list[str], ours: dict[str, Outcome], imports: Imports, seconds: float
) -> list[str]:
    """Write `report.md` and `failures.json`; return the tables."""
    by_subject = sorted(passed, key=lambda test: (category(test), subject(test)))
    tables = [
        title,
        "",
        *count_table(("family", "category"), (((family_of(t), category(t)), ours[t]) for t in passed)),
        "",
        *count_table(("category", "subject"), (((category(t), subject(t)), ours[t]) for t in by_subject)),
    ]
    groups = defaultdict(list)
    for test in passed:
        if ours[test].status != "passed":
            groups[error_group(ours[test].error)].append(test)
    failures = [
        {"error": error, "count": len(tests), "tests": {test: ours[test].error for test in tests}}
        for error, tests in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
    report = [*tables, "", f"Time of our run: {seconds:.0f} s.", "", "## Failures by error", ""]
    for failure in failures:
        report += [f"- **{failure['count']}** `{failure['error']}`"]
        report += [f"  - {test}" for test in failure["tests"]]
    report += ["", "## Names", "", "Private flags of model classes (`_supports_sdpa`, …) are copied where missing.", ""]
    report += ["Private names that were adapted:", ""]
    report += [f"- `{name}` → `{target}`" for name, target in sorted(imports.private.items())]
    report += ["", "Names that vitruvian does not have:", ""]
    report += [f"- `{name}`" for name in sorted(imports.missing)]
    report += ["", "Public names that come from vitruvian:", ""]
    report += [f"- `{name}`" for name in sorted(imports.replaced)]
    (out / "report.md").write_text("\n".join(report) + "\n")
    (out / "failures.json").write_text(json.dumps(failures, indent=1) + "\n")
    return tables


def main() -> None:
    """Parse arguments, run both sides, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("peer", type=Path, help="a checkout of transformers: its src/ and tests/")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"some of {', '.join(FAMILIES)}; default: all")
    parser.add_argument("-k", dest="keyword", help="run only our tests that match this expression, as in pytest")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "peer-tests", help="where reports and logs go")
    args = parser.parse_args()
    if unknown := set(args.families) - set(FAMILIES):
        parser.error(f"families: expected some of {', '.join(FAMILIES)}, got {', '.join(sorted(unknown))}.")
    families = [family for family in FAMILIES if family in (args.families or FAMILIES)]
    peer, out = args.peer.resolve(), args.out.resolve()
    release = checkout_version(peer)
    out.mkdir(parents=True, exist_ok=True)

    passed: list[str] = []
    ours: dict[str, Outcome] = {}
    imports, ours_seconds = Imports(), 0.0
    with tempfile.TemporaryDirectory(prefix="peer-tests-") as temporary:
        theirs = copy_tests(peer, Path(temporary, "theirs"))
        rewritten = copy_tests(peer, Path(temporary, "ours"))
        for file in rewritten.joinpath("tests").rglob("*.py"):
            file.write_text(imports.rewrite(file.read_text()))
        with rewritten.joinpath("conftest.py").open("a") as conftest:
            conftest.write("import peer_names\n")
        for family in families:
            tests, collected = outcomes(reference_run(theirs, family, release, out))
            expected = sorted(test for test, outcome in tests.items() if outcome.status == "passed")
            counts = Counter(tests[test].status if test in tests else "not run" for test in collected)
            print(f"{family}: reference: {dict(counts)}", flush=True)
            start = time.monotonic()
            run = run_tests(rewritten, family, out / f"ours-{family}.log", select=expected, keyword=args.keyword)
            ours_seconds += time.monotonic() - start
            tests, collected = outcomes(run)
            if args.keyword:
                expected = [test for test in expected if test in collected]
            broken = {test: outcome.error for test, outcome in tests.items() if "::" not in test}  # files
            for test in expected:
                error = broken.get(test.split("::")[0], f"not run: pytest ended with exit status {run['status']}")
                ours[test] = tests.get(test, Outcome("not run", error))
            counts = Counter(ours[test].status for test in expected)
            print(f"{family}: ours: {dict(counts)} in {time.monotonic() - start:.0f} s", flush=True)
            passed += expected

    title = f"vitruvian {vitruvian.__version__} on the tests of transformers {release}"
    print("\n" + "\n".join(write_report(out, title, passed, ours, imports, ours_seconds)))
    print(f"\nFailures by error: {out / 'report.md'} and {out / 'failures.json'}; logs beside them.")


if __name__ == "__main__":
    main()
