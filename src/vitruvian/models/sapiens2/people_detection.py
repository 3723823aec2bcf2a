"""Person detection in whole images, with a Sapiens2 encoder and a small head. The reference has no such task.

pixel_values [B, 3, H, W] -> encoder -> map [B, C, h, w] -> head -> centers [B, 1, g, g'], sides [B, 4, g, g'] -> boxes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.nms import box_nms
from vitruvian.images.types import SizeHW
from vitruvian.losses.detection import PeopleTarget, people_loss
from vitruvian.models.sapiens2.modeling import ForwardOptions, Sapiens2TaskModel
from vitruvian.outputs import ModelOutput

_CHANNELS = 5  # one for centers, four for sides


@dataclass
class Sapiens2PeopleDetectorOutput(ModelOutput):
    """`logits` [B, 1, g, g'] of the centers of people, and distances to their `sides` [B, 4, g, g']: x1, y1, x2, y2.

    Distances are in cells of the grid and positive.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    sides: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None


class Sapiens2ForPeopleDetection(Sapiens2TaskModel):
    """Boxes of people."""

    checkpoint_head = "people"
    output_name = "logits"

    def forward(
        self, pixel_values: Tensor, labels: PeopleTarget | None = None, **kwargs: Unpack[ForwardOptions]
    ) -> Sapiens2PeopleDetectorOutput:
        """Detect people.

        Args:
            pixel_values: Prepared images [B, 3, H, W].
            labels: Targets of `vitruvian.losses.detection.draw_people` for the grid of this head.
            kwargs: See `ForwardOptions`.
        """
        if self.config.num_labels != _CHANNELS:
            raise InputError(
                f"Sapiens2Config.num_labels: expected {_CHANNELS} for person detection, got {self.config.num_labels}."
            )
        encoded = kwargs.pop("encoded", None) or self.model(pixel_values, **self.encoder_flags(kwargs))
        features = self.feature_map(encoded, pixel_values)
        maps = self.decode_head(features)  # [B, 5, g, g']
        logits = maps[:, :1]  # [B, 1, g, g']
        # Softplus: sides are positive, and linear in the output of the head where they are large.
        sides = 8 * F.softplus(maps[:, 1:].float()).to(maps.dtype)  # [B, 4, g, g']
        loss = None if labels is None else people_loss(logits, sides, labels)
        return self.complete_output(Sapiens2PeopleDetectorOutput(logits=logits, sides=sides), encoded, kwargs, loss)


@torch.no_grad()
def decode_people(
    logits: Tensor, sides: Tensor, *, size_hw: SizeHW, threshold: float = 0.3, overlap: float = 0.55
) -> list[tuple[Tensor, Tensor]]:
    """Decode maps to boxes, best first: for each image boxes x1, y1, x2, y2 [n, 4] and scores [n].

    Args:
        logits: Scores of centers [B, 1, g, g'].
        sides: Distances to the sides in cells [B, 4, g, g'].
        size_hw: Height and width of the images, to which boxes are clipped.
        threshold: Lowest score.
        overlap: IoU above which non-maximum suppression drops the lower-scoring box.
    """
    _, _, rows, columns = logits.shape
    H, W = size_hw
    scores = logits.float().sigmoid()  # [B, 1, g, g']
    highest = F.max_pool2d(scores, 3, stride=1, padding=1)
    x = torch.arange(columns, device=logits.device) + 0.5  # [g']
    y = torch.arange(rows, device=logits.device)[:, None] + 0.5  # [g, 1]
    left, top, right, bottom = sides.float().unbind(1)  # [B, g, g'] each
    boxes = torch.stack([x - left, y - top, x + right, y + bottom], dim=-1)  # [B, g, g', 4]
    step = torch.tensor([W / columns, H / rows] * 2, device=logits.device)
    limit = torch.tensor([W, H] * 2, device=logits.device, dtype=torch.float32)
    boxes = (boxes * step).clamp(min=torch.zeros_like(limit), max=limit)
    detections = []
    for image in range(len(logits)):
        peaks = (scores[image, 0] >= threshold) & (scores[image, 0] == highest[image, 0])  # [g, g']
        candidates, score = boxes[image][peaks], scores[image, 0][peaks]
        keep = box_nms(candidates, score, overlap)
        detections.append((candidates[keep], score[keep]))
    return detections
