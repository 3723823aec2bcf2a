"""Cutting meshes: clean borders, no cracks, nothing lost."""

import numpy as np
from recipes.build_people_assets.mesh import clip_mesh, split_classes


def grid(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A unit square of 2 n² triangles: points [m, 3], faces, uv."""
    y, x = np.meshgrid(np.linspace(0, 1, n + 1), np.linspace(0, 1, n + 1), indexing="ij")
    points = np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], 1).astype(np.float32)
    a = (np.arange(n)[:, None] * (n + 1) + np.arange(n)).ravel()
    faces = np.concatenate([np.stack([a, a + 1, a + n + 2], 1), np.stack([a, a + n + 2, a + n + 1], 1)])
    return points, faces, points[:, :2][faces]


def cut_arrays(*args: np.ndarray) -> tuple[np.ndarray, ...]:
    mesh = clip_mesh(*args)
    return mesh.ids, mesh.weights, mesh.faces, mesh.uv, mesh.source


def split_arrays(*args: np.ndarray, fixed: np.ndarray) -> tuple[np.ndarray, ...]:
    mesh, kind = split_classes(*args, fixed=fixed)
    return mesh.ids, mesh.weights, mesh.faces, mesh.uv, mesh.source, kind


def placed(points: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (points[ids] * weights[..., None]).sum(1)


def areas(points: np.ndarray, faces: np.ndarray) -> np.ndarray:
    a, b, c = (points[faces[:, k]] for k in range(3))
    return np.cross(b - a, c - a)[:, 2] / 2


def inner_edges_are_shared(points: np.ndarray, faces: np.ndarray) -> bool:
    """Each edge inside the square belongs to two triangles."""
    edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), 1)
    unique, count = np.unique(edges, axis=0, return_counts=True)
    middle = points[unique].mean(1)
    inside = ((middle[:, :2] > 1e-6) & (middle[:, :2] < 1 - 1e-6)).all(1)
    return bool((count[inside] == 2).all())


def test_clip_mesh_keeps_the_positive_side():
    points, faces, uv = grid(5)
    ids, weights, cut, cut_uv, source = cut_arrays(faces, uv, 0.37 - points[:, 0])
    new = placed(points, ids, weights)
    assert np.isclose(areas(new, cut).sum(), 0.37, atol=1e-5)
    assert (areas(new, cut) > 0).all()  # the way round is kept
    assert new[np.unique(cut), 0].max() <= 0.37 + 1e-6
    assert np.allclose(cut_uv, new[cut][..., :2], atol=1e-6)
    assert len(source) == len(cut)
    assert source.max() < len(faces)


def test_clip_mesh_shares_vertices_on_edges():
    points, faces, uv = grid(4)
    ids, weights, cut, _, _ = cut_arrays(faces, uv, points[:, 1] - 0.3)
    new = placed(points, ids, weights)
    used = np.unique(cut)
    assert len(np.unique(new[used].round(6), axis=0)) == len(used)


def test_clip_mesh_with_several_fields():
    points, faces, uv = grid(3)
    x, y, _ = points.T
    ids, weights, cut, cut_uv, _ = cut_arrays(faces, uv, np.stack([0.41 - x, y - 0.52]))
    new = placed(points, ids, weights)
    assert np.isclose(areas(new, cut).sum(), 0.41 * 0.48, atol=1e-5)
    assert np.allclose(weights.sum(1), 1, atol=1e-6)
    assert np.allclose(cut_uv, new[cut][..., :2], atol=1e-6)
    assert np.isclose(new[np.unique(cut)], [0.41, 0.52, 0], atol=1e-6).all(1).any()
    used = np.unique(cut)
    assert len(np.unique(new[used].round(6), axis=0)) == len(used)
    band, _, strip, _, _ = cut_arrays(faces, uv, np.stack([x - 0.4, 0.43 - x]))
    assert len(band) > len(points)
    assert len(strip) > 0


def test_split_classes_at_the_border_of_two():
    points, faces, uv = grid(5)
    scores = np.stack([0.43 - points[:, 0], points[:, 0] - 0.43], 1)
    ids, weights, cut, cut_uv, _, kind = split_arrays(faces, uv, scores, fixed=np.full(len(faces), -1))
    new = placed(points, ids, weights)
    size = areas(new, cut)
    assert np.isclose(size[kind == 0].sum(), 0.43, atol=1e-5)
    assert np.isclose(size[kind == 1].sum(), 0.57, atol=1e-5)
    assert inner_edges_are_shared(new, cut)
    assert np.allclose(cut_uv, new[cut][..., :2], atol=1e-6)


def test_split_three_classes_without_cracks():
    points, faces, uv = grid(7)
    scores = -np.stack([np.hypot(*(points[:, :2] - spot).T) for spot in ((0.2, 0.2), (0.8, 0.3), (0.5, 0.9))], 1)
    ids, weights, cut, _, _, kind = split_arrays(faces, uv, scores, fixed=np.full(len(faces), -1))
    new = placed(points, ids, weights)
    assert (areas(new, cut) > 0).all()
    assert np.isclose(areas(new, cut).sum(), 1.0, atol=1e-5)
    assert set(kind.tolist()) == {0, 1, 2}
    assert inner_edges_are_shared(new, cut)


def test_split_classes_keeps_fixed_faces():
    points, faces, uv = grid(3)
    scores = np.stack([0.5 - points[:, 0], points[:, 0] - 0.5], 1)
    ids, _, cut, _, _, kind = split_arrays(faces, uv, scores, fixed=np.full(len(faces), 7))
    assert len(ids) == len(points)
    assert np.array_equal(cut, faces)
    assert (kind == 7).all()
