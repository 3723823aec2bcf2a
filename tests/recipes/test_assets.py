"""Reading the assets folder: small files made here, and the real folder where it is present."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from recipes.build_people_assets.assets import (
    _read_mhclo,
    _read_obj,
    encode_texture,
    read_index,
    read_pieces,
    read_table,
)
from recipes.build_people_assets.garments import join_pieces

from tests.helpers.shared_folder import SHARED
from vitruvian.errors import InputError
from vitruvian.human import PART_INDEX
from vitruvian.training.synthetic.asset_pack import Piece, fit_piece, keep_faces

FOLDER = SHARED / "people-assets"
needs_assets = pytest.mark.skipif(not FOLDER.is_dir(), reason="the assets folder is not beside this checkout")


def test_obj_polygons_become_triangles(tmp_path: Path):
    path = tmp_path / "a.obj"
    path.write_text(
        "# x\nv 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nvt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\nf 1/1 2/2 3/3 4/4\nf 1/1 2/2 4/4\n"
    )
    faces, uv, polygon = _read_obj(path)
    assert faces.tolist() == [[0, 1, 2], [0, 2, 3], [0, 1, 3]]
    assert polygon.tolist() == [0, 0, 1]
    assert uv[1].tolist() == [[0, 0], [1, 1], [0, 1]]


def test_obj_without_faces_is_an_error(tmp_path: Path):
    path = tmp_path / "a.obj"
    path.write_text("v 0 0 0\n")
    with pytest.raises(InputError, match=r"expected an \.obj file with faces"):
        _read_obj(path)


MHCLO = """name x
x_scale 0 1 4.0
y_scale 0 2 5.0
z_scale 0 3 8.0
verts 0
0 1 2 0.5 0.25 0.25 0.1 0.2 0.3
material skin.mhmat
3
delete_verts
0 - 2
"""


def test_mhclo_axes_scale_and_single_vertices(tmp_path: Path):
    path = tmp_path / "a.mhclo"
    path.write_text(MHCLO)
    binding = _read_mhclo(path)
    assert binding["ids"].tolist() == [[0, 1, 2], [3, 3, 3]]
    assert binding["weights"][1].tolist() == [1, 0, 0]
    # x right, y up, z front in decimetres -> x right, y back, z up in metres
    assert np.allclose(binding["offsets"][0], [0.01, -0.03, 0.02])
    assert np.allclose(binding["scale_base"], [0.4, 0.8, 0.5])
    assert binding["scale_ids"].tolist() == [[0, 1], [0, 3], [0, 2]]


def test_fit_piece_scales_offsets_with_the_body(tmp_path: Path):
    path = tmp_path / "a.mhclo"
    path.write_text(MHCLO)
    binding = _read_mhclo(path)
    piece = Piece(
        name="x", slot="upper", ids=binding["ids"], weights=binding["weights"], offsets=binding["offsets"],
        faces=np.zeros((1, 3), np.int64), uv=np.zeros((1, 3, 2)), face_class=np.ones(1, np.int64),
        face_part=np.zeros(1, np.int64), scale_ids=binding["scale_ids"], scale_base=binding["scale_base"],
    )  # fmt: skip
    body = np.array([[0, 0, 0], [0.8, 0, 0], [0, 0, 0.5], [0, -1.6, 0]], np.float32)
    # x and y pairs are twice as far apart as their base, z is as made
    assert np.allclose(fit_piece(piece, body)[0], [0.25 * 0.8 + 0.02, -0.06, 0.25 * 0.5 + 0.02])
    assert np.allclose(fit_piece(piece, body)[1], body[3])


def test_mhclo_without_vertices_is_an_error(tmp_path: Path):
    path = tmp_path / "a.mhclo"
    path.write_text("name x\n")
    with pytest.raises(InputError, match="expected vertex lines"):
        _read_mhclo(path)


def test_keep_faces_and_join_pieces():
    weights = np.tile(np.float32([1, 0, 0]), (4, 1))
    piece = Piece(
        name="x", slot="upper", ids=np.repeat(np.arange(4)[:, None], 3, 1), weights=weights, offsets=np.zeros((4, 3)),
        faces=np.array([[0, 1, 2], [0, 2, 3]]), uv=np.zeros((2, 3, 2)), face_class=np.array([22, 23]),
        face_part=np.array([0, 1]), hides=np.array([1]),
    )  # fmt: skip
    half = keep_faces(piece, np.array([False, True]))
    assert half.ids[:, 0].tolist() == [0, 2, 3]
    assert half.faces.tolist() == [[0, 1, 2]]
    assert half.face_class.tolist() == [23]
    both = join_pieces(half, piece)
    assert both.faces.max() == 6
    assert both.hides.tolist() == [1]


def test_encoded_textures_keep_alpha_and_color(tmp_path: Path):
    pixels = np.zeros((64, 64, 4), np.uint8)
    pixels[:, :32] = (200, 40, 40, 255)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    files = encode_texture(tmp_path / "a.png", size=32)
    alpha = np.asarray(Image.open(io.BytesIO(files["alpha"])))
    color = np.asarray(Image.open(io.BytesIO(files["rgb"])), np.int64)
    assert alpha[:, :14].min() > 250
    assert alpha[:, 18:].max() < 5
    assert np.abs(color - [200, 40, 40]).max() < 30  # also where nothing is: no dark seam
    right = encode_texture(tmp_path / "a.png", size=32, box=(0.0, 0.0, 0.5, 1.0))
    assert "alpha" not in right


def test_missing_folder_and_table_raise(tmp_path: Path):
    with pytest.raises(InputError, match=r"readable index\.json"):
        read_index(tmp_path)
    (tmp_path / "t.npz").write_text("no")
    with pytest.raises(InputError, match=r"expected an \.npz file"):
        read_table(tmp_path / "t.npz")


@needs_assets
def test_shared_assets():
    pieces = {piece.name: piece for piece in read_pieces(read_index(FOLDER))}
    assert len(pieces) == 65  # 53 assets, of which 12 outfits count twice
    shirt, trousers = pieces["male_casualsuit04/upper"], pieces["male_casualsuit04/lower"]
    assert set(shirt.face_class.tolist()) == {PART_INDEX["Upper_Clothing"]}
    assert set(trousers.face_class.tolist()) == {PART_INDEX["Lower_Clothing"]}
    assert len(shirt.hides) > 500
    assert shirt.ids.max() < 19158
    assert np.allclose(shirt.weights.sum(1), 1, atol=0.02)
    shoes = pieces["shoes01"]
    assert set(
        shoes.face_part[np.isin(shoes.face_class, [PART_INDEX["Left_Sock"], PART_INDEX["Right_Sock"]])].tolist()
    ) == {1}
    assert pieces["afro01"].textures == ("hair/afro01/afro01_procedural.png",)
