"""Building an asset pack: arguments, and the scenery of the assets folder."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from recipes.build_people_assets import build_asset_pack
from recipes.build_people_assets.assets import read_scenery

from tests.helpers.shared_folder import SHARED, needs_shared
from vitruvian.errors import InputError, MissingExtraError
from vitruvian.training.synthetic.asset_pack import _read_scenery


def test_build_asset_pack_with_invalid_arguments(tmp_path: Path):
    with pytest.raises(InputError, match="identities > components"):
        build_asset_pack(None, tmp_path / "x.npz", identities=10, components=10)


def test_build_asset_pack_without_anny_raises(tmp_path: Path):
    try:
        import anny  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match="anny"):
            build_asset_pack(None, tmp_path / "x.npz")
    else:
        pytest.skip("anny is installed here")


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    (tmp_path / "hdri").mkdir()
    (tmp_path / "backgrounds").mkdir()
    light = np.random.default_rng(0).random((2, 64, 128, 3)).astype(np.float16)
    np.savez(tmp_path / "hdri" / "env_64x128.npz", names=np.array(["a", "b"]), rgb=light)
    image = Image.new("RGB", (512, 384), (200, 30, 30))
    image.paste((30, 30, 200), (384, 0, 512, 384))
    image.save(tmp_path / "backgrounds" / "one.jpg")
    return tmp_path


def test_scenery_is_read_back_from_a_pack(assets: Path) -> None:
    arrays = read_scenery(assets)
    assert all(key.startswith("scenery/") for key in arrays)
    scenery = _read_scenery(arrays)
    with np.load(assets / "hdri" / "env_64x128.npz") as archive:
        assert torch.equal(scenery.environments, torch.from_numpy(archive["rgb"].astype(np.float32)))
    first, last = scenery.backgrounds.float()
    assert (first[:, :, 0].mean(), last[:, :, 2].mean()) > (150, 50)
    assert first[:, -1].mean(dim=0).argmax() == 0  # the beginning ends before the blue part
    assert last[:, -1].mean(dim=0).argmax() == 2


def test_scenery_of_a_wrong_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="people-assets"):
        read_scenery(tmp_path)
    empty = _read_scenery({})
    assert len(empty.environments) == len(empty.backgrounds) == 0


@needs_shared
def test_scenery_of_the_shared_assets_is_small() -> None:
    arrays = read_scenery(SHARED / "people-assets")
    assert sum(array.nbytes for array in arrays.values()) < 3_000_000
    scenery = _read_scenery(arrays)
    assert scenery.environments.shape == (18, 64, 128, 3)
    assert len(scenery.backgrounds) == 66
