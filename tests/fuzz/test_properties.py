"""Properties of names, boxes and journals, on examples that Hypothesis makes up."""

from __future__ import annotations

import csv
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vitruvian.cli.named_sources import NamedSource, find_sources
from vitruvian.cli.resume_journal import JOURNAL, Journal
from vitruvian.errors import InputError, VitruvianError
from vitruvian.filesystem.output_paths import MAX_NAME_BYTES, name_key, output_path
from vitruvian.pipelines.people.boxes_file import BoxesFile

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)

# ------------------------------------------------------------------------------------------------ names

letters = st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]) | st.sampled_from("aA _.%{}é\udce9~")
names = st.text(letters, min_size=1, max_size=260).map(lambda text: f"{text}.png")
fitting = names.filter(lambda name: len(os.fsencode(name)) <= MAX_NAME_BYTES and not name.startswith("."))


@few
@given(st.lists(fitting, min_size=1, max_size=5, unique=True), st.booleans())
def test_every_file_has_an_output_of_its_own(files: list[str], below: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(files):
            path = Path(folder, "in", str(number % 2) if below else "", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        inputs = find_sources([f"{folder}/in"], recursive=below)
        outputs = [output_path(f"{folder}/out", one.stem, "_pose.json") for one in inputs]
        assert {one.path and one.path.name for one in inputs} == set(files)
        assert len({name_key(str(path)) for path in outputs}) == len(files)
        for path in outputs:
            assert path.is_relative_to(f"{folder}/out")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(f".{path.name}.12345678.part").touch()  # the longest name that is written


# ------------------------------------------------------------------------------------------------ boxes

sides = st.floats(0.125, 1e5, width=32)
boxes = st.tuples(st.floats(-1e5, 1e5, width=32), st.floats(-1e5, 1e5, width=32), sides, sides)
stems = st.text("abcXYZ019_", min_size=1, max_size=12)


@few
@given(st.dictionaries(stems, st.lists(boxes, min_size=1, max_size=4), min_size=1, max_size=4))
def test_boxes_are_the_same_in_every_format(table: dict[str, list[tuple[float, ...]]]) -> None:
    listed = {f"{stem}.jpg": rows for stem, rows in table.items()}
    numbers = {name: number for number, name in enumerate(listed)}
    coco = {
        "images": [{"id": number, "file_name": name} for name, number in numbers.items()],
        "annotations": [{"image_id": numbers[name], "bbox": row} for name, rows in listed.items() for row in rows],
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("table.json", "coco.json", "table.csv")]
        paths[0].write_text(json.dumps(listed))
        paths[1].write_text(json.dumps(coco))
        with paths[2].open("w", newline="") as file:
            rows = [[name, *row] for name, rows in listed.items() for row in rows]
            csv.writer(file).writerows([["file", "x", "y", "w", "h"], *rows])
        image = np.zeros((8, 8, 3), np.uint8)
        for name, rows in listed.items():
            wanted = np.array([[x, y, x + w, y + h] for x, y, w, h in rows], np.float32)
            assume((wanted[:, 2:] > wanted[:, :2]).all())
            for path in paths:
                np.testing.assert_array_equal(
                    BoxesFile(path).detect_in(image, source=f"in/{name}", frame=None).boxes_xyxy, wanted
                )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
tables = (
    values
    | st.fixed_dictionaries({"annotations": st.lists(values, max_size=3), "images": values, "categories": values})
    | st.lists(st.fixed_dictionaries({"image_id": values, "bbox": values}), max_size=3)
)


@few
@given(tables)
def test_any_json_gives_boxes_or_an_error(table: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "boxes.json")
        path.write_text(json.dumps(table))
        try:
            people = BoxesFile(path).detect_in(np.zeros((8, 8, 3), np.uint8), source="a.jpg", frame=0)
        except VitruvianError:
            return
        assert np.isfinite(people.boxes_xyxy).all()


# ------------------------------------------------------------------------------------------------ journals


@dataclass(frozen=True)
class Record:
    """What the last record of a file says."""

    source: int
    version: int
    settings: str
    size: int | None = None  # None: begun, and not done


class JournalMachine(RuleBasedStateMachine):
    """Begins, writes, completes and disturbs two files from two sources; the journal's answers follow from a model."""

    sources = st.integers(0, 1)
    files = st.integers(0, 1)
    options = st.sampled_from(["s", "t"])

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.out = self.folder / "out"
        self.versions = [0, 0]
        self.records: dict[int, Record] = {}
        self.sizes: dict[int, int] = {}
        self.journal = Journal(self.out)
        for source in (0, 1):
            self.change_source(source)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def path(self, file: int) -> Path:
        return self.out / f"{file}.json"

    def source(self, number: int) -> NamedSource:
        path = self.folder / f"{number}.jpg"
        return NamedSource(identity=str(path), name=str(path), kind="image", path=path)

    @rule(source=sources)
    def change_source(self, source: int) -> None:
        self.versions[source] += 1
        (self.folder / f"{source}.jpg").write_text(f"source {source} version {self.versions[source]}")

    @rule(source=sources, file=files, option=options, size=st.integers(0, 3), complete=st.booleans())
    def run_job(self, source: int, file: int, option: str, size: int, complete: bool) -> None:
        """Run a job, or one that is killed before it records the end."""
        fingerprint = self.journal.begin(self.source(source), [self.path(file)], option)
        self.records[file] = Record(source, self.versions[source], option)
        if size:
            self.path(file).write_text("x" * size)
            self.sizes[file] = size
        if complete and file in self.sizes:
            self.journal.done(fingerprint, [self.path(file)])
            self.records[file] = replace(self.records[file], size=self.sizes[file])

    @rule(file=files, size=st.integers(1, 3))
    def edit(self, file: int, size: int) -> None:
        self.out.mkdir(exist_ok=True)
        self.path(file).write_text("y" * size)
        self.sizes[file] = size

    @rule(file=files)
    def remove(self, file: int) -> None:
        self.path(file).unlink(missing_ok=True)
        self.sizes.pop(file, None)

    @rule(garbage=st.sampled_from([b'{"version": 2, "eve', b"\x00\xff\n", b"[]\n", b'{"version": 2}\n']))
    def damage(self, garbage: bytes) -> None:
        self.out.mkdir(exist_ok=True)
        with (self.out / JOURNAL).open("ab") as file:
            file.write(garbage)

    @rule()
    def reopen(self) -> None:
        self.journal = Journal(self.out)

    @invariant()
    def answers(self) -> None:
        if not hasattr(self, "journal"):
            return
        for source, file, option in ((s, f, o) for s in (0, 1) for f in (0, 1) for o in "st"):
            try:
                status = self.journal.status(self.source(source), [self.path(file)], option)
            except InputError:
                status = "refused"
            assert status == self._expected(source, file, option)

    def _expected(self, source: int, file: int, option: str) -> str:
        if file not in self.sizes:
            return "new"
        record = self.records.get(file)
        if record is None or record.size not in (None, self.sizes[file]) or record.source != source:
            return "refused"
        if (record.version, record.settings) != (self.versions[source], option):
            return "changed"
        return "new" if record.size is None else "done"


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(few, max_examples=40, stateful_step_count=20)
