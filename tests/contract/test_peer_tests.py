"""`make peer-tests` counts what it says: imports are replaced by ours, and a test passes only if all of it does."""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "peer_tests.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("peer_tests", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_tests"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["peer_tests"]


def test_imports_come_from_vitruvian_where_it_has_the_name(tool):
    imports = tool.Imports()
    text = "if torch:\n    from transformers import (\n        Sam2Model, SwinNotHere, set_seed\n    )\nx = 1\n"
    assert imports.rewrite(text) == (
        "if torch:\n"
        "    from vitruvian import Sam2Model as Sam2Model\n"
        "    from peer_names import SwinNotHere as SwinNotHere\n"
        "    from transformers import set_seed as set_seed\n"
        "x = 1\n"
    )
    assert imports.missing == {"SwinNotHere"}


def test_private_names_are_adapted_and_listed(tool):
    imports = tool.Imports()
    assert imports.rewrite("from transformers.utils import ModelOutput as M, logging") == (
        "from vitruvian import ModelOutput as M\nfrom transformers.utils import logging as logging"
    )
    assert imports.private == {"transformers.utils.ModelOutput": "vitruvian.ModelOutput"}


def test_a_failed_subtest_or_teardown_fails_the_test_and_skips_do_not_pass(tool):
    def report(test, outcome, phase="call", **more):
        return {"id": test, "outcome": outcome, "phase": phase, **more}

    tests, collected = tool.outcomes(
        {
            "status": 1,
            "records": [
                {"collected": ["a", "b", "c", "d"]},
                report("a", "failed", error="ValueError: 1\nmore", subtest=True),
                report("a", "passed"),
                report("b", "passed"),
                report("b", "failed", "teardown", error="OSError: 2"),
                report("c", "skipped", subtest=True),
                report("c", "passed"),
                report("d", "skipped", error="Skipped: no GPU"),
            ],
        }
    )
    assert collected == {"a", "b", "c", "d"}
    assert {test: (outcome.status, outcome.error) for test, outcome in tests.items()} == {
        "a": ("failed", "ValueError: 1"),
        "b": ("failed", "OSError: 2"),
        "c": ("passed", ""),
        "d": ("skipped", "skipped: no GPU"),
    }


def test_errors_that_differ_in_classes_numbers_and_paths_are_one_group(tool):
    first = "OSError: Sam2Config: /tmp/tmpab12/x.json is 3 bytes, loss 1.5e-3 at 0x7f00 of [2, 4]. Did you mean a?"
    second = "OSError: SwinConfig: /tmp/tmpcd34/x.json is 12 bytes, loss 0.25 at 0x7f11 of [1, 8]."
    assert tool.error_group(first) == tool.error_group(second)
    assert tool.error_group(first).startswith("OSError: *Config: …/x.json is # bytes")
    assert "Swin" in tool.error_group("NotImplementedError: vitruvian has no SwinForImageClassification")


def test_the_table_counts_passes_and_failures_that_differ_in_the_text_of_an_error(tool):
    passed, other = tool.Outcome("passed"), tool.Outcome("failed", "AssertionError: 1 != 2")
    text = tool.Outcome("failed", 'AssertionError: "not supported" does not match "expected one of a, b, got c"')
    table = tool.count_table(("family",), [(("swin",), passed), (("swin",), text), (("sam2",), other)])
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert cells[0] == ["family", "reference passes", "ours passes", "%", "other error text"]
    assert cells[2:] == [["swin", "2", "1", "50.0", "1"], ["sam2", "1", "0", "0.0", ""], ["all", "3", "1", "33.3", "1"]]
