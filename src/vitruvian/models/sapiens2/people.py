"""Finding people in whole pictures, with a Sapiens2 encoder and a small head. A task of ours.

pixel_values [B, 3, H, W] ─▶ encoder ─▶ map [B, C, h, w] ─▶ head ─▶ middles [B, 1, g, g'], sides [B, 4, g, g'] ─▶ boxes
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.nms import box_nms
from vitruvian.losses.people import PeopleTarget, people_loss
from vitruvian.models.sapiens2.modeling import Sapiens2TaskModel
from vitruvian.outputs import BaseModelOutputWithPooling, ModelOutput

CHANNELS = 5  # one for middles, four for sides


@dataclass
class Sapiens2PeopleDetectorOutput(ModelOutput):
    """`logits` [B, 1, g, g'] of people's middles, and `sides` [B, 4, g, g']: distances to left, top, right, bottom.

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

    packed_task = "people"

    def forward(
        self,
        pixel_values: Tensor,
        labels: PeopleTarget | None = None,
        *,
        encoded: BaseModelOutputWithPooling | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2PeopleDetectorOutput:
        """Find people.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: What `vitruvian.losses.people.draw_people` draws for the grid of this head.
            encoded: What `self.model` returned for these pictures, where several tasks share one encoder.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        if self.config.num_labels != CHANNELS:
            raise InputError(
                f"Sapiens2Config.num_labels: expected {CHANNELS} for finding people, got {self.config.num_labels}."
            )
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions, encoded)
        found = self.decode_head(features)  # [B, 5, g, g']
        # A side grows linearly with what the head says where it is large, and cannot be negative.
        output = Sapiens2PeopleDetectorOutput(
            logits=found[:, :1],
            sides=8 * F.softplus(found[:, 1:].float()).to(found.dtype),
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        if labels is not None and output.logits is not None and output.sides is not None:
            terms = people_loss(output.logits, output.sides, labels)
            output.loss, output.loss_terms = terms.total, terms.terms
        return self.format_output(output, return_dict)


@torch.no_grad()
def decode_people(
    logits: Tensor, sides: Tensor, *, size_hw: tuple[int, int], threshold: float = 0.3, overlap: float = 0.55
) -> list[tuple[Tensor, Tensor]]:
    """Turn maps into boxes, best first: for each picture boxes x1, y1, x2, y2 [n, 4] and scores [n].

    Args:
        logits: Middles [B, 1, g, g'].
        sides: Distances to the sides in cells [B, 4, g, g'].
        size_hw: Height and width of the pictures that the boxes are for; they are cut at its borders.
        threshold: Least score.
        overlap: Of two boxes with a larger IoU only the better one stays.
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
    found = []
    for picture in range(len(logits)):
        chosen = (scores[picture, 0] >= threshold) & (scores[picture, 0] == highest[picture, 0])  # [g, g']
        some, score = boxes[picture][chosen], scores[picture, 0][chosen]
        kept = box_nms(some, score, overlap)
        found.append((some[kept], score[kept]))
    return found
