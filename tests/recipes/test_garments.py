"""Garments and rigid accessories on a small body."""

import numpy as np
import pytest
from recipes.build_people_assets import _body_piece
from recipes.build_people_assets.anny_bodies import BodySource, shape_basis
from recipes.build_people_assets.garments import (
    DressForm,
    _band,
    _covered_vertices,
    _legs_field,
    _neckline,
    _remove_relief,
    _rigid_piece,
    _rounded_box,
    _shell,
    _skirt,
    _top_field,
    _tube,
    add_cover,
)
from recipes.build_people_assets.mesh import mesh_edges

from vitruvian.human import KEYPOINT_INDEX, PART_INDEX
from vitruvian.training.synthetic.asset_pack import fit_piece, mesh_normals
from vitruvian.training.synthetic.posing import _joint_keypoints, keypoint_rules

SPAN = ((0, 1), (0, 1), (0, 1))


@pytest.fixture(scope="module")
def form() -> DressForm:
    """A tube of radius 0.1 from z = 0 to z = 1.5, and a wider one as its skirt helper."""
    rows, sides = 31, 24
    z, angle = np.meshgrid(np.linspace(0, 1.5, rows), np.arange(sides) * 2 * np.pi / sides, indexing="ij")
    ring = np.stack([np.cos(angle), np.sin(angle)], -1)
    body = np.concatenate([0.1 * ring, z[..., None]], -1).reshape(-1, 3)
    helper = np.concatenate([0.2 * ring, z[..., None]], -1).reshape(-1, 3)
    i, j = (part.ravel() for part in np.meshgrid(np.arange(rows - 1), np.arange(sides), indexing="ij"))
    a, b, c, d = i * sides + j, i * sides + (j + 1) % sides, (i + 1) * sides + (j + 1) % sides, (i + 1) * sides + j
    faces = np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])
    vertices = np.concatenate([body, helper]).astype(np.float32)
    uv = np.stack([vertices[:, 0], vertices[:, 2]], -1)[faces]
    none = np.zeros(len(vertices), np.float32)
    at = {
        name: np.array(spot)
        for name, spot in {"neck01": (0, 0, 1.4), "root": (0, 0, 0.9), "upperleg01.L": (0, 0, 0.85)}.items()
    }
    return DressForm(
        vertices=vertices, surface=vertices, normals=mesh_normals(vertices, faces), faces=faces, uv=uv,
        skirt_faces=faces + len(body), along_arm=none - 0.05, arm=none, head=none, at=at, eye_z=1.45,
        upper_arm=0.3, whole_arm=0.55,
    )  # fmt: skip


def made(form: DressForm, field: np.ndarray, **options):
    return _shell(form, "x", "upper", field, **options)


def test_shell_ends_at_the_hem_at_its_thickness(form: DressForm):
    piece = made(form, form.vertices[:, 2] - 0.733, thickness=0.02)
    placed = fit_piece(piece, form.vertices)
    assert np.isclose(placed[:, 2].min(), 0.733, atol=1e-4)
    assert np.allclose(np.hypot(*placed[:, :2].T), 0.12, atol=0.002)
    assert set(piece.face_class.tolist()) == {PART_INDEX["Upper_Clothing"]}
    hidden = form.vertices[piece.hides, 2]
    assert hidden.min() > 0.733 + 0.03  # a margin stays visible under the hem


def test_smoothed_shell_stays_outside_the_body(form: DressForm):
    bumpy = form.vertices.copy()
    bumpy[100] *= (1.3, 1.3, 1.0)  # a nose that cloth has to pass over
    rough = DressForm(**{**vars(form), "vertices": bumpy, "surface": bumpy, "normals": mesh_normals(bumpy, form.faces)})
    piece = made(rough, bumpy[:, 2] - 0.1, thickness=0.02, smooth=8)
    own = np.linalg.norm(piece.weights - [1, 0, 0], axis=1) < 1e-6
    outwards = (piece.offsets[own] * rough.normals[piece.ids[own, 0]]).sum(1)
    assert outwards.min() > 0.4 * 0.02


def test_a_band_may_be_narrower_than_the_mesh(form: DressForm):
    piece = made(form, _band(form.vertices[:, 2] - 0.73, 0.004), thickness=0.01)
    z = fit_piece(piece, form.vertices)[:, 2]
    assert np.isclose(z.min(), 0.726, atol=1e-4)
    assert np.isclose(z.max(), 0.734, atol=1e-4)


def test_fine_relief_is_smoothed():
    x, y = (part.ravel() for part in np.meshgrid(np.linspace(0, 0.1, 41), np.linspace(0, 0.1, 41), indexing="ij"))
    bump = np.exp(-((x - 0.05) ** 2 + (y - 0.05) ** 2) / 0.005**2)
    points = np.stack([x, y, 0.01 * bump], 1)
    a = (np.arange(40)[:, None] * 41 + np.arange(40)).ravel()
    faces = np.concatenate([np.stack([a, a + 1, a + 42], 1), np.stack([a, a + 42, a + 41], 1)])
    inner = (np.abs(x - 0.05) < 0.03) & (np.abs(y - 0.05) < 0.03)
    assert _remove_relief(points, faces, inner)[:, 2].max() < 0.004
    large = points * 20
    assert np.array_equal(_remove_relief(large, faces, inner), large)


def test_hems_do_not_zigzag(form: DressForm):
    rough = 0.73 + 0.01 * np.random.default_rng(0).uniform(-1, 1, len(form.vertices))
    piece = made(form, form.vertices[:, 2] - rough, thickness=0.01)
    placed = fit_piece(piece, form.vertices)
    edges, count = mesh_edges(piece.faces)
    border = np.unique(edges[count == 1])
    hem = placed[border[placed[border, 2] < 1.0], 2]
    assert hem.std() < 0.004  # a zigzag of 6 mm went in


def test_classes_by_vertex(form: DressForm):
    side = np.where(form.vertices[:, 0] > 0, PART_INDEX["Left_Sock"], PART_INDEX["Right_Sock"]).astype(np.float32)
    piece = _shell(form, "x", "shoes", 0.3 - form.vertices[:, 2], thickness=0.01, part_class=side)
    assert set(piece.face_class.tolist()) == {PART_INDEX["Left_Sock"], PART_INDEX["Right_Sock"]}


def test_fields(form: DressForm):
    z = form.vertices[:, 2]
    trousers = _legs_field(form, waist=1.0, cuff=0.2).min(0)
    assert np.array_equal(trousers > 1e-6, (z < 1.0 - 1e-6) & (z > 0.2 + 1e-6))
    neck = _neckline(form, front=-0.1, back=0.05)
    top = _top_field(form, sleeve=0.1, hem=0.8, neck=neck).min(0)
    assert (top[z < 0.79] < 0).all()
    front, back = form.vertices[:, 1] < -0.09, form.vertices[:, 1] > 0.09
    assert neck[front & (z > 1.31)].max() < 0 < neck[back & (z < 1.44)].min()
    sleeveless = _top_field(form, sleeve=-0.06, hem=0.8, neck=neck).min(0)
    assert sleeveless.max() < 0  # along_arm is -0.05 everywhere on this trunk


def test_skirt_flares_and_opens(form: DressForm):
    closed = _skirt(form, "s", "lower", top=1.0, hem=0.4, flare=0.1)
    closed = type(closed)(**{**vars(closed), "scale_base": np.zeros(3, np.float32)})
    placed = fit_piece(closed, form.vertices)
    radius = np.hypot(*placed[:, :2].T)
    assert np.isclose(placed[:, 2].min(), 0.4, atol=1e-4)
    assert radius[placed[:, 2] < 0.42].mean() > radius[placed[:, 2] > 0.98].mean() + 0.08
    opened = _skirt(form, "s", "outer", top=1.0, hem=0.4, flare=0.0, gap=0.05)
    opened = type(opened)(**{**vars(opened), "scale_base": np.zeros(3, np.float32)})
    placed = fit_piece(opened, form.vertices)
    assert np.abs(placed[placed[:, 1] < -0.1, 0]).min() > 0.045
    assert np.abs(placed[placed[:, 1] > 0.1, 0]).min() < 0.01


# Pieces are scaled by vertices of the real body that this small one does not have.
@pytest.fixture(autouse=True)
def _small_span(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("recipes.build_people_assets.garments._TRUNK_SPAN", SPAN)


def test_covered_vertices_by_rays_along_normals(form: DressForm):
    piece = made(form, 0.8 - form.vertices[:, 2], thickness=0.02)
    placed = fit_piece(piece, form.vertices)
    covered = _covered_vertices(form, placed, piece.faces, reach=0.03)
    z = form.vertices[: len(covered), 2]
    body = np.hypot(*form.vertices[: len(covered), :2].T) < 0.15
    assert covered[body & (z < 0.78)].all()
    assert not covered[z > 0.82].any()
    assert not _covered_vertices(form, placed, piece.faces, reach=0.005).any()


def test_cover_of_a_piece(form: DressForm):
    plain = made(form, 0.8 - form.vertices[:, 2], thickness=0.02)
    piece = add_cover(form, type(plain)(**{**vars(plain), "hides": np.zeros(0, np.int64)}))
    z = form.vertices[:, 2]
    # rows are 5 cm apart: two are kept beneath the hem, and one above it still counts as covered
    assert np.isclose(z[piece.hides].max(), 0.65, atol=0.051)
    assert np.isclose(z[piece.covers].max(), 0.85, atol=0.01)
    glasses = type(piece)(**{**vars(piece), "slot": "glasses"})
    assert len(add_cover(form, glasses).hides) == 0


def test_rigid_pieces_are_bound_to_one_vertex(form: DressForm):
    points, faces = _rounded_box(np.array([0.0, 0.3, 1.0]), np.array([0.1, 0.05, 0.2]))
    bag = _rigid_piece(form, "bag", "accessory", points, faces, np.array([0, 0.1, 1.0]))
    assert set(bag.face_class.tolist()) == {PART_INDEX["Apparel"]}
    assert len(np.unique(bag.ids)) == 1
    assert np.allclose(fit_piece(bag, form.vertices), points, atol=1e-5)
    assert np.allclose(points.max(0), [0.1, 0.35, 1.2], atol=1e-3)


def test_tube_surrounds_its_path():
    angle = np.arange(20) * 2 * np.pi / 20
    path = np.stack([np.cos(angle), np.zeros(20), np.sin(angle)], 1)
    points, faces = _tube(path, 0.1, closed=True)
    assert np.allclose(np.linalg.norm(points.reshape(20, -1, 3) - path[:, None], axis=-1), 0.1)
    edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), 1)
    assert (np.unique(edges, axis=0, return_counts=True)[1] == 2).all()  # closed: a ring without ends


def source(form: DressForm, people: int) -> BodySource:
    generator = np.random.default_rng(0)
    N = len(form.vertices)
    bones = np.array([[[0, 0, 0.9], [0, 0, 1.2]], [[0, 0, 1.2], [0, 0, 1.5]]], np.float32)
    amount = generator.normal(size=(people, 2)).astype(np.float32)
    modes = generator.normal(size=(2, N, 3)).astype(np.float32) * 0.01
    bone_modes = generator.normal(size=(2, 2, 2, 3)).astype(np.float32) * 0.01
    quads = np.stack([form.faces[: len(form.faces) // 2, 0], form.faces[: len(form.faces) // 2, 1],
                      form.faces[: len(form.faces) // 2, 2], form.faces[len(form.faces) // 2 :, 2]], 1)  # fmt: skip
    return BodySource(
        template=form.vertices, template_bones=bones,
        identities=form.vertices + np.einsum("ik,kvx->ivx", amount, modes),
        identity_bones=bones + np.einsum("ik,kbex->ibex", amount, bone_modes), traits=np.zeros((people, 4), np.float32),
        bone_names=("root", "head"), bone_parents=np.array([-1, 0]), weights=np.full((N, 2), 0.5, np.float32),
        expression_names=(), expressions=np.zeros((0, N, 3), np.float32), quads=quads,
        quad_uv=np.zeros((len(quads), 4, 2), np.float32), skirt_quads=quads[:0],
    )  # fmt: skip


def test_shape_basis_rebuilds_people(form: DressForm):
    body = source(form, 30)
    shape = shape_basis(body, 2)
    coefficients = shape["identities"]
    vertices = shape["vertex_mean"] + np.einsum("ic,cvx->ivx", coefficients, shape["vertex_basis"])
    assert np.allclose(vertices, body.identities, atol=1e-4)
    bones = shape["bone_mean"] + np.einsum("ic,cbex->ibex", coefficients, shape["bone_basis"])
    assert np.allclose(bones, body.identity_bones, atol=1e-4)
    assert np.allclose(coefficients.std(0), 1, atol=0.05)


def test_body_piece_is_cut_at_the_borders_of_parts(form: DressForm, monkeypatch: pytest.MonkeyPatch):
    body = source(form, 3)
    N = len(form.vertices)
    monkeypatch.setattr("recipes.build_people_assets.BODY_VERTICES", N)
    quads = len(body.quads)
    z = form.vertices[:, 2]
    surface = {
        "face_group": np.zeros(quads, np.int64),
        "score_classes": np.array([PART_INDEX["Torso"], PART_INDEX["Face_Neck"]]),
        "vertex_scores": np.stack([1.13 - z, z - 1.13], 1), "fixed_face": np.zeros(quads, bool),
        "face_class": np.full(quads, PART_INDEX["Upper_Lip"]),
    }  # fmt: skip
    monkeypatch.setattr("recipes.build_people_assets._eye_uv", lambda template: np.zeros((len(template), 2)))
    piece = _body_piece(body, surface, None, with_tongue=True)
    placed = fit_piece(piece, form.vertices)
    low, high = (placed[piece.faces[piece.face_class == PART_INDEX[name]], 2] for name in ("Torso", "Face_Neck"))
    assert np.isclose(low.max(), 1.13, atol=1e-4)
    assert np.isclose(high.min(), 1.13, atol=1e-4)
    surface["fixed_face"][:] = True
    assert set(_body_piece(body, surface, None, with_tongue=True).face_class.tolist()) == {PART_INDEX["Upper_Lip"]}


def test_joint_keypoints():
    place = {"wrist.L": 3, "finger2-3.R": 5, "neck01": 1}
    bone, end = _joint_keypoints(place)
    assert bone[KEYPOINT_INDEX["left_wrist"]] == 3
    assert (bone[KEYPOINT_INDEX["right_forefinger4"]], end[KEYPOINT_INDEX["right_forefinger4"]]) == (5, 1)
    assert (bone[KEYPOINT_INDEX["right_forefinger3"]], end[KEYPOINT_INDEX["right_forefinger3"]]) == (5, 0)
    assert (bone >= 0).sum() == 4


def test_keypoint_rules_from_a_table(form: DressForm):
    body = source(form, 3)
    table = {
        "kind": np.zeros(308, np.uint8), "vertex_ids": np.zeros((308, 16), np.int32),
        "vertex_weights": np.zeros((308, 16), np.float32), "bone": np.full(308, "", "<U20"),
    }  # fmt: skip
    table["kind"][:3] = 1, 2, 3
    table["vertex_weights"][0, 0] = 1
    table["bone"][1:3] = "head"
    rules = keypoint_rules(body.template, body.template_bones, body.bone_names, table, surface=len(body.template))
    assert rules["keypoint_known"].sum() == 3
    assert rules["keypoint_bone"][:4].tolist() == [-1, 1, 1, -1]
    assert rules["keypoint_end"][1:3].tolist() == [0, 1]
    assert rules["keypoint_depth"][1] > rules["keypoint_depth"][0]  # a joint lies deeper than the skin
