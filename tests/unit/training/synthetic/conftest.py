"""Fixtures of the tests of synthetic people."""

import pytest

from vitruvian.training.synthetic.pack import Pack
from vitruvian.training.synthetic.procedural_pack import procedural_pack


@pytest.fixture(scope="session")
def pack() -> Pack:
    return procedural_pack(0)
