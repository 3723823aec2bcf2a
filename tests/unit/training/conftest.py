"""The pack that tests of training share."""

import pytest

from tests.unit.training.tiny_runs import tube_people
from vitruvian.training.synthetic.asset_pack import AssetPack


@pytest.fixture(scope="session")
def pack() -> AssetPack:
    return tube_people(0)
