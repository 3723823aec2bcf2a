"""The pack that tests of training share."""

import pytest

from tests.unit.training.tiny_runs import tube_people
from vitruvian.training.synthetic.pack import Pack


@pytest.fixture(scope="session")
def pack() -> Pack:
    return tube_people(0)
