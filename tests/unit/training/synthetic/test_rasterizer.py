"""The rasteriser against geometry that can be written down."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.training.synthetic.shapes import front_camera, sphere
from vitruvian.ops import dispatch
from vitruvian.training.synthetic.rasterizer import Cutouts, Meshes, depth_map, find_fragments, rasterize


def meshes(screen: Tensor, faces: Tensor, present: bool = True, image_index: Tensor | None = None) -> Meshes:
    shown = torch.full(faces.shape[:2], present)
    return Meshes(screen, faces, shown, torch.arange(len(screen)) if image_index is None else image_index, len(screen))


def draw(screen: Tensor, faces: Tensor, size_hw: tuple[int, int], cutouts: Cutouts | None = None) -> Tensor:
    return rasterize(meshes(screen, faces), screen, size_hw, cutouts)


def test_sphere_has_the_depth_normals_and_outline_of_a_sphere() -> None:
    radius, distance, focal, size = 1.0, 4.0, 120.0, 81
    points, faces = sphere(radius=radius, rings=96, sectors=192)
    camera = front_camera(distance=distance, focal=focal, size_hw=(size, size))
    in_camera = camera.to_camera(points[None], torch.tensor([0]))
    screen = camera.project(in_camera, torch.tensor([0]))
    ids = draw(screen, faces[None], (size, size))
    fragments = find_fragments(ids, screen, faces[None])

    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    ray = torch.stack([(x - 40) / focal, (y - 40) / focal, torch.ones(size, size)], dim=-1).double()
    # |t ray - (0, 0, distance)| = radius
    a, b = (ray**2).sum(-1), ray[..., 2] * distance
    inside = b**2 - a * (distance**2 - radius**2)
    depth = ((b - inside.clamp_min(0).sqrt()) / a).float()
    clear = (inside.abs() > 0.15) | (inside < -0.02)  # away from the outline, where the facets differ from the sphere
    assert torch.equal((ids[0] >= 0)[clear], (inside > 0)[clear])

    found = depth_map(ids, screen, faces[None], empty=0.0)[0]
    safe = inside > 0.15
    assert (found - depth)[safe].abs().max() < 2e-3

    outward = fragments.interpolate(in_camera) - torch.tensor(
        [0.0, 0.0, distance]
    )  # the normal of a sphere, from the hit itself
    on_sphere = torch.zeros(size * size, 3)
    on_sphere[fragments.sample] = outward
    expected = ray * depth[..., None] - torch.tensor([0.0, 0.0, distance])
    assert (on_sphere.view(size, size, 3) - expected)[safe].abs().max() < 5e-3


def test_nearest_face_wins_in_any_order() -> None:
    near = torch.tensor([[2.0, 2.0, 1.0], [12.0, 2.0, 1.0], [2.0, 12.0, 1.0]])
    far = near * torch.tensor([1.0, 1.0, 3.0])
    for first, second, winner in ((near, far, 0), (far, near, 1)):
        screen = torch.cat([first, second])[None]
        ids = draw(screen, torch.tensor([[[0, 1, 2], [3, 4, 5]]]), (16, 16))
        assert set(ids.unique().tolist()) == {-1, winner}


def test_intersecting_faces_swap_at_the_intersection() -> None:
    level = torch.tensor([[0.0, 0.0, 2.0], [0.0, 30.0, 2.0], [30.0, 0.0, 2.0], [30.0, 30.0, 2.0]])
    # Nearness runs straight from 1 to 1/4 over the image, so it passes 1/2 after two thirds.
    tilted = torch.tensor([[0.0, 0.0, 1.0], [0.0, 30.0, 1.0], [30.0, 0.0, 4.0], [30.0, 30.0, 4.0]])
    faces = torch.tensor([[[0, 1, 2], [1, 2, 3], [4, 5, 6], [5, 6, 7]]])
    ids = draw(torch.cat([level, tilted])[None], faces, (30, 30))[0]
    assert (ids[:, :20] >= 2).all()
    assert (ids[:, 21:] < 2).all()


def test_interpolation_is_perspective_correct() -> None:
    # A line from depth 1 to depth 3: its middle in space is seen at three quarters of the way.
    camera = front_camera(distance=0.0, focal=40.0, size_hw=(41, 41))
    points = torch.tensor([[[-0.5, -0.5, 1.0], [1.5, -1.5, 3.0], [-0.5, 0.5, 1.0], [1.5, 1.5, 3.0]]])
    screen = camera.project(points, torch.tensor([0]))
    faces = torch.tensor([[[0, 1, 2], [1, 3, 2]]])
    ids = draw(screen, faces, (41, 41))
    fragments = find_fragments(ids, screen, faces)
    share = fragments.interpolate(torch.tensor([[[0.0], [1.0], [0.0], [1.0]]]))[:, 0]
    at = torch.zeros(41 * 41)
    at[fragments.sample] = share
    row = at.view(41, 41)[20]
    assert row[20 + 10] == pytest.approx(0.5, abs=1e-4)  # x = 0.5 at depth 2 is seen 10 pixels right of the middle
    assert torch.allclose(fragments.interpolate(points)[:, 2], fragments.depth, atol=1e-5)
    assert torch.allclose(fragments.weights.sum(dim=1), torch.ones(len(fragments.face)), atol=1e-5)


def test_shared_edges_are_covered_exactly_once() -> None:
    generator = torch.Generator().manual_seed(3)
    n = 12
    y, x = torch.meshgrid(torch.arange(n).float(), torch.arange(n).float(), indexing="ij")
    jitter = torch.rand(n, n, 2, generator=generator) * 0.37
    # Whole and half pixels as well, so that edges and corners run through samples.
    jitter[::2] = (jitter[::2] * 4).round() / 4
    grid = torch.stack([x, y], dim=-1) + jitter
    screen = torch.cat([grid * 4, torch.ones(n, n, 1)], dim=-1).view(1, n * n, 3)
    a = (torch.arange(n - 1)[:, None] * n + torch.arange(n - 1)).flatten()
    faces = torch.cat([torch.stack([a, a + 1, a + n], 1), torch.stack([a + 1, a + n + 1, a + n], 1)])
    count = torch.zeros(48, 48, dtype=torch.int64)
    for face in faces:
        count += draw(screen, face[None, None], (48, 48))[0] >= 0
    assert count.max() == 1
    assert (count[6:40, 6:40] == 1).all()


def test_absent_near_degenerate_and_outside_faces_are_not_drawn() -> None:
    triangle = torch.tensor([[2.0, 2.0, 1.0], [12.0, 2.0, 1.0], [2.0, 12.0, 1.0]])
    faces = torch.tensor([[[0, 1, 2]]])
    size = (16, 16)
    assert (draw(triangle[None], faces, size) >= 0).any()
    assert (rasterize(meshes(triangle[None], faces, present=False), triangle[None], size) < 0).all()
    behind = triangle * torch.tensor([1.0, 1.0, 0.01])
    assert (draw(behind[None], faces, size) < 0).all()
    assert (draw(triangle[None], torch.tensor([[[0, 1, 1]]]), size) < 0).all()
    assert (draw(triangle[None] + 100, faces, size) < 0).all()


def test_meshes_are_drawn_in_their_own_image() -> None:
    triangle = torch.tensor([[2.0, 2.0, 1.0], [12.0, 2.0, 1.0], [2.0, 12.0, 1.0]])
    screen = torch.stack([triangle, triangle])
    faces = torch.tensor([[[0, 1, 2]], [[0, 1, 2]]])
    drawn = replace(meshes(screen, faces, image_index=torch.tensor([1, 0])), image_count=3)
    ids = rasterize(drawn, screen, (16, 16))
    assert [set(image.unique().tolist()) for image in ids] == [{-1, 1}, {-1, 0}, {-1}]


def test_alpha_test_covers_in_proportion_to_alpha() -> None:
    screen = torch.tensor([[[-1.0, -1.0, 1.0], [200.0, -1.0, 1.0], [-1.0, 200.0, 1.0]]])
    faces = torch.tensor([[[0, 1, 2]]])
    for alpha in (0, 64, 128, 255):
        cutouts = Cutouts(
            uv=torch.rand(1, 3, 2),
            base=torch.tensor([0]),
            side=torch.tensor([4]),
            texels=torch.full((16,), alpha, dtype=torch.uint8),
            samples=2,
            seed=5,
        )
        covered = (draw(screen, faces, (64, 64), cutouts) >= 0).float()
        assert covered.mean().item() == pytest.approx(alpha / 255, abs=0.01)
        # The four samples of a pixel share the alpha evenly.
        quarter = torch.nn.functional.avg_pool2d(covered, 2)
        assert (quarter - alpha / 255).abs().max() <= 0.26


def test_alpha_test_follows_the_texture() -> None:
    texels = torch.zeros(8, 8, dtype=torch.uint8)
    texels[:4, :4] = 255  # the upper left quarter of the texture is solid
    screen = torch.tensor([[[0.0, 0.0, 1.0], [64.0, 0.0, 1.0], [0.0, 64.0, 1.0], [64.0, 64.0, 1.0]]])
    faces = torch.tensor([[[0, 1, 2], [1, 3, 2]]])
    uv = torch.tensor([[[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]])
    cutouts = Cutouts(
        uv=uv, base=torch.tensor([0, 0]), side=torch.tensor([8, 8]), texels=texels.flatten(), samples=1, seed=0
    )
    covered = draw(screen, faces, (64, 64), cutouts)[0] >= 0
    assert covered[5:27, 5:27].all()
    assert not covered[:, 37:60].any()
    assert not covered[37:60].any()


@pytest.mark.skipif(not dispatch.IS_INTERPRETED, reason="needs Triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("holes", [False, True])
def test_triton_version_equals_the_torch_version(holes: bool) -> None:
    g = torch.Generator().manual_seed(0)
    P, F = 2, 120
    middle = torch.rand(P, F, 1, 3, generator=g) * torch.tensor([30.0, 22.0, 1.0]) + torch.tensor([-3.0, -3.0, 1.0])
    screen = (middle + torch.randn(P, F, 3, 3, generator=g) * torch.tensor([4.0, 4.0, 0.1])).view(P, F * 3, 3)
    screen[:, ::2, :2] = screen[:, ::2, :2].round()  # corners and edges that run through samples
    cutouts = Cutouts(
        uv=torch.randn(P * F, 3, 2, generator=g),
        base=torch.where(torch.rand(P * F, generator=g) < 0.5, 0, -1),
        side=torch.full((P * F,), 8),
        texels=torch.randint(0, 256, (64,), dtype=torch.uint8, generator=g),
        samples=2,
        seed=1,
    )
    faces = torch.arange(F * 3).view(1, F, 3).expand(P, -1, -1)
    drawn = Meshes(screen, faces, torch.rand(P, F, generator=g) < 0.9, torch.tensor([1, 0]), 2)

    def ids() -> Tensor:
        return rasterize(drawn, screen, (18, 26), cutouts if holes else None)

    want = ids()
    with dispatch.interpret_triton():
        got = ids()
    assert (want >= 0).sum() > 400, "nothing was drawn"
    assert torch.equal(got, want)
