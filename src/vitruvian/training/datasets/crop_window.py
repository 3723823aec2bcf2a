"""Axis-aligned crops of images: pixels, labels, keypoints, boxes and cameras move together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.human import FLIP_PERMUTATION, PART_FLIP_PERMUTATION
from vitruvian.images.types import SizeHW
from vitruvian.tensor_cache import constant

_ANTIALIAS_ABOVE = 4 / 3  # images that shrink by more than this are antialiased
_MIN_BOX_SIDE = 2.0  # pixels: smaller boxes in a crop do not count


@dataclass(frozen=True)
class CropWindow:
    """Crops of n images: source xy = xy · step + start, both at pixel centers, mirrored where `flipped`."""

    start_xy: Tensor  # [n, 2] source pixel of the first output pixel
    step_xy: Tensor  # [n, 2] source pixels per output pixel, positive
    flipped: Tensor  # [n] bool
    size_hw: SizeHW
    # The principal point moves to the middle: a model cannot see where in a larger image a crop lies, and pipelines
    # restore points by their depth alone. False transforms the camera exactly.
    centered: bool = True

    def source_xy(self) -> tuple[Tensor, Tensor]:
        """Return the source x of the columns [n, W] and the source y of the rows [n, H]."""
        H, W = self.size_hw
        device = self.start_xy.device
        x = torch.arange(W, device=device, dtype=torch.float32).expand(len(self.flipped), W)
        x = torch.where(self.flipped[:, None], W - 1 - x, x)
        y = torch.arange(H, device=device, dtype=torch.float32)
        return x * self.step_xy[:, :1] + self.start_xy[:, :1], y * self.step_xy[:, 1:] + self.start_xy[:, 1:]

    def sample(
        self, images: Tensor, *, mode: str = "bilinear", padding: str = "zeros", antialias: bool = False
    ) -> Tensor:
        """Crop images [n, C, h, w]: [n, C, H, W]. `antialias` takes the scale of the first and reads it on the host."""
        H, W = self.size_hw
        height, width = images.shape[-2:]
        x, y = self.source_xy()
        x, y = (2 * x + 1) / width - 1, (2 * y + 1) / height - 1
        if antialias:
            across, down = (step if step > _ANTIALIAS_ABOVE else 1.0 for step in self.step_xy[0].tolist())
            if max(across, down) > 1:
                size = (max(1, round(height / down)), max(1, round(width / across)))
                images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
        grid = torch.stack([x[:, None].expand(-1, H, W), y[:, :, None].expand(-1, H, W)], dim=-1)
        return F.grid_sample(images, grid, mode=mode, padding_mode=padding, align_corners=False)

    def sample_parts(self, parts: Tensor) -> Tensor:
        """Crop labels [n, 1, h, w]; left and right are swapped where flipped: int64 [n, 1, H, W]."""
        labels = self.sample(parts.float(), mode="nearest").long()
        swapped = constant(PART_FLIP_PERMUTATION, labels.device)[labels]
        return torch.where(self.flipped[:, None, None, None], swapped, labels)

    def sample_normals(self, normals: Tensor, *, antialias: bool = False) -> Tensor:
        """Crop normals [n, 3, h, w]; x changes its sign where flipped: unit vectors [n, 3, H, W]."""
        unit = F.normalize(self.sample(normals, antialias=antialias), dim=1, eps=1e-6)
        sign = torch.where(self.flipped, -1.0, 1.0)[:, None, None, None]
        return torch.cat([unit[:, :1] * sign, unit[:, 1:]], dim=1)

    def move_keypoints(self, keypoints: Tensor) -> Tensor:
        """Move keypoints [n, 308, 3] into the crop; those outside become unknown."""
        H, W = self.size_hw
        x, y = ((keypoints[..., :2] - self.start_xy[:, None]) / self.step_xy[:, None]).unbind(-1)
        flipped = self.flipped[:, None]
        x = torch.where(flipped, W - 1 - x, x)
        inside = (x >= -0.5) & (x <= W - 0.5) & (y >= -0.5) & (y <= H - 0.5)
        moved = torch.stack([x, y, keypoints[..., 2] * inside], dim=-1)  # [n, 308, 3]
        return torch.where(flipped[..., None], moved[:, constant(FLIP_PERMUTATION, moved.device)], moved)

    def move_boxes(self, boxes_xyxy: Tensor) -> Tensor:
        """Move boxes [n, M, 4], which end between pixels, into the crop; zero where too little is left."""
        H, W = self.size_hw
        start, step = (values.repeat(1, 2)[:, None] for values in (self.start_xy, self.step_xy))  # [n, 1, 4]
        moved = (boxes_xyxy - 0.5 - start) / step + 0.5
        left, top, right, bottom = moved.unbind(-1)
        mirrored = torch.stack([W - right, top, W - left, bottom], dim=-1)
        moved = torch.where(self.flipped[:, None, None], mirrored, moved)
        moved = moved.clamp_min(0).minimum(constant((W, H, W, H), moved.device))
        return moved * (moved[..., 2:] - moved[..., :2] >= _MIN_BOX_SIDE).all(dim=-1, keepdim=True)

    def camera(self, intrinsics: Tensor) -> Tensor:
        """Return the intrinsics [n, 3, 3] of the crops."""
        H, W = self.size_hw
        K = intrinsics.clone()
        K[:, :2, :2] = intrinsics[:, :2, :2] / self.step_xy[:, :, None]
        if self.centered:
            K[:, :2, 2] = constant(((W - 1) / 2, (H - 1) / 2), K.device)
            return K
        K[:, :2, 2] = (intrinsics[:, :2, 2] - self.start_xy) / self.step_xy
        K[:, 0, 2] = torch.where(self.flipped, W - 1 - K[:, 0, 2], K[:, 0, 2])
        K[:, 0, 1] = torch.where(self.flipped, -K[:, 0, 1], K[:, 0, 1])
        return K
