"""Automatic masks: SAM 2 is prompted with a grid of points, and good masks without duplicates are kept.

    image ─▶ crops (the whole, then 4, 16, …) ─ encode each once ─▶ batches of points ─▶ 3 masks per point, 256²
          ─▶ predicted IoU ─▶ stability ─▶ not cut by the crop ─▶ NMS ─▶ resize
          ─▶ fill holes, remove islands ─▶ MaskProposals

Filters work on small masks; only the remaining ones are resized to the image. At most `_STORED_BYTES` of candidates are
stored, so memory depends on the batch of points and not on their number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitruvian.errors import check_names
from vitruvian.images.boxes import mask_boxes
from vitruvian.images.nms import box_nms, mask_nms
from vitruvian.images.rle import Rle, decode_rles, encode_rles
from vitruvian.images.types import SizeHW
from vitruvian.models.sam2.crops import CropXYXY, overlapping_crops, point_grid, touches_crop_edge
from vitruvian.models.sam2.mask_cleanup import fill_holes_and_remove_islands
from vitruvian.models.sam2.mask_decoder import stability_score
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.options import AutomaticMaskOptions
from vitruvian.models.sam2.processing import Sam2Processor
from vitruvian.ops.interpolate import bilinear
from vitruvian.processor import ImageInput, as_pixels

_STORED_BYTES = 256 << 20  # candidates beyond this are reduced by NMS before the next batch
_RESIZED_PIXELS = 1 << 24  # pixels of resized masks to work on at a time
_MASK_NMS_SIDE = 256  # side of the masks that `mask_nms_thresh` compares


@dataclass(frozen=True)
class MaskProposals:
    """The N masks of an image, best first; coordinates are in pixels of the image.

    Attributes:
        size_hw: Height and width of the image.
        scores: Predicted IoU [N].
        stability_scores: IoU between a higher and a lower threshold [N].
        boxes_xyxy: Tight boxes, right and bottom edges exclusive [N, 4].
        points_xy: The point that prompted each mask [N, 2].
        crops_xyxy: The crop that each mask comes from [N, 4].
        pixels: The masks [N, H, W], bool, or None where run lengths are stored.
        stored_rles: Their run lengths in COCO format, or None where pixels are stored.
    """

    size_hw: SizeHW
    scores: Tensor
    stability_scores: Tensor
    boxes_xyxy: Tensor
    points_xy: Tensor
    crops_xyxy: Tensor
    pixels: Tensor | None = None
    stored_rles: list[Rle] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def masks(self) -> Tensor:
        """The masks [N, H, W], bool."""
        if self.pixels is not None:
            return self.pixels
        return decode_rles(self.stored_rles) if self.stored_rles else torch.zeros(0, *self.size_hw, dtype=torch.bool)

    @property
    def rles(self) -> list[Rle]:
        """The masks as run lengths in COCO format."""
        if self.stored_rles is not None:
            return self.stored_rles
        return encode_rles(self.masks) if len(self) else []


class _Candidates(NamedTuple):
    """N masks that passed the filters: small logits [N, h, w], and for each [N], [N, 4] or [N, 2]."""

    logits: Tensor
    scores: Tensor
    stability: Tensor
    boxes_xyxy: Tensor
    points_xy: Tensor
    crops_xyxy: Tensor

    def select(self, which: Tensor | slice) -> _Candidates:
        return _Candidates(*(field[which] for field in self))


class Sam2AutomaticMaskGenerator:
    """Finds masks of everything in images.

    Args:
        model: The model; it stays on its device and in its data type.
        processor: Prepares images for it.
        options: Fields of `AutomaticMaskOptions`.
    """

    def __init__(self, model: Sam2Model, processor: Sam2Processor, **options: object) -> None:
        self.model, self.processor = model, processor
        self.options = _replace_options(AutomaticMaskOptions(), options)

    def __call__(self, images: ImageInput, **options: object) -> MaskProposals | list[MaskProposals]:
        """Find the masks of one image, or of each in a list; keywords override options for this call."""
        replaced = _replace_options(self.options, options)
        proposals = [self.generate(pixels, replaced) for pixels in as_pixels(images)]
        return proposals if isinstance(images, (list, tuple)) else proposals[0]

    @torch.no_grad()
    def generate(self, pixels: Tensor, options: AutomaticMaskOptions) -> MaskProposals:
        """Find the masks of one image [3, H, W]."""
        size_hw = (pixels.shape[-2], pixels.shape[-1])
        stored: list[_Candidates] = []
        for layer, crop in overlapping_crops(size_hw, options.crops_n_layers, options.crop_overlap_ratio):
            side = max(1, options.points_per_crop // options.crop_n_points_downscale_factor**layer)
            for batch in self._candidates(pixels, crop, point_grid(side), options):
                stored.append(batch)
                if sum(part.logits.nbytes for part in stored) > _STORED_BYTES:
                    stored = [_non_maximum_suppression(stored, options)]
        return _finish(_non_maximum_suppression(stored, options), size_hw, options)

    def _candidates(
        self, pixels: Tensor, crop: CropXYXY, grid: Tensor, options: AutomaticMaskOptions
    ) -> Iterator[_Candidates]:
        """Encode one crop and prompt it with points [N, 2] in [0, 1]², a batch at a time."""
        x1, y1, x2, y2 = crop
        device, size_hw = self.model.device, (pixels.shape[-2], pixels.shape[-1])
        prepared = self.processor.image_processor.prepare_image(pixels[:, y1:y2, x1:x2])[None]
        embeddings = self.model.get_image_embeddings(prepared.to(device))
        height, width = self.model.prompt_encoder.image_hw
        prompts = (grid * torch.tensor((width, height))).to(device)  # [N, 2], pixels of the model input
        points = (grid * torch.tensor((x2 - x1, y2 - y1)) + torch.tensor((x1, y1))).to(device)  # [N, 2], of the image
        step = options.points_per_batch or len(grid)
        for start in range(0, len(grid), step):
            batch = prompts[None, start : start + step, None]  # [1, P, 1, 2]
            masks, scores, index = self.model.confident_masks(batch, embeddings, min_iou=options.pred_iou_thresh)
            yield _filter(masks, scores, points[start : start + step][index], crop, size_hw, options)


def _filter(
    logits: Tensor,
    scores: Tensor,
    points_xy: Tensor,
    crop: CropXYXY,
    size_hw: SizeHW,
    options: AutomaticMaskOptions,
) -> _Candidates:
    """Keep of masks [N, h, w] with scores [N] and points [N, 2] those that are stable, not empty and not cut."""
    stability = stability_score(logits, options.stability_score_offset, options.mask_threshold)  # [N]
    small = mask_boxes(logits > options.mask_threshold)  # [N, 4], pixels of the small masks
    x1, y1, x2, y2 = crop
    scale = torch.tensor(((x2 - x1) / logits.shape[-1], (y2 - y1) / logits.shape[-2]), device=logits.device).tile(2)
    boxes = small * scale + torch.tensor((x1, y1, x1, y1), device=logits.device)  # [N, 4], pixels of the image
    keep = (stability > options.stability_score_thresh) & (small[:, 2] > small[:, 0])
    keep &= ~touches_crop_edge(boxes, crop, size_hw)
    crops = torch.tensor(crop, device=logits.device).expand(len(boxes), -1)
    # Half precision suffices for logits that are interpolated once and compared with a threshold.
    return _Candidates(logits.half(), scores, stability, boxes, points_xy, crops).select(keep)


def _non_maximum_suppression(parts: list[_Candidates], options: AutomaticMaskOptions) -> _Candidates:
    """Join candidates and drop those that overlap a better one, by boxes and, on request, by masks; best first."""
    joined = _Candidates(*(torch.cat(fields) for fields in zip(*parts, strict=True)))
    joined = joined.select(box_nms(joined.boxes_xyxy, joined.scores, options.crops_nms_thresh))
    if options.mask_nms_thresh is None or len(joined.scores) < 2:
        return joined
    width, height = joined.crops_xyxy.amax(dim=0)[2:].tolist()  # the first crop is the whole image
    scale = min(1.0, _MASK_NMS_SIDE / max(width, height))
    small_hw = (max(1, round(height * scale)), max(1, round(width * scale)))
    masks = _paste(joined, small_hw, scale, options.mask_threshold)
    return joined.select(mask_nms(masks, joined.scores, options.mask_nms_thresh))


def _paste(candidates: _Candidates, size_hw: SizeHW, scale: float, threshold: float) -> Tensor:
    """Resize masks and paste them into images of `size_hw`, the original scaled by `scale`: bool [N, H, W]."""
    out = torch.zeros(len(candidates.scores), *size_hw, dtype=torch.bool, device=candidates.logits.device)
    crops, index = torch.unique(candidates.crops_xyxy, dim=0, return_inverse=True)
    for number, crop in enumerate(crops.tolist()):
        x1, y1, x2, y2 = (round(edge * scale) for edge in crop)
        x2, y2 = min(max(x2, x1 + 1), size_hw[1]), min(max(y2, y1 + 1), size_hw[0])
        logits = candidates.logits[index == number, None].float()  # [n, 1, h, w]
        logits = bilinear(logits, (y2 - y1, x2 - x1))
        out[index == number, y1:y2, x1:x2] = logits[:, 0] > threshold
    return out


def _finish(candidates: _Candidates, size_hw: SizeHW, options: AutomaticMaskOptions) -> MaskProposals:
    """Resize masks to the image, fill holes, remove islands and compute boxes; candidates are best first."""
    step = max(1, _RESIZED_PIXELS // (size_hw[0] * size_hw[1]))
    pixels, rles = [torch.zeros(0, *size_hw, dtype=torch.bool)], []
    boxes, nonempty_chunks = [torch.zeros(0, 4, dtype=torch.long)], [candidates.select(slice(0, 0))]
    for start in range(0, len(candidates.scores), step):
        chunk = candidates.select(slice(start, start + step))
        masks = _paste(chunk, size_hw, 1.0, options.mask_threshold)  # [n, H, W]
        masks = fill_holes_and_remove_islands(masks, options.max_hole_area, options.max_sprinkle_area)
        nonempty = masks.flatten(1).any(dim=-1)
        masks = masks[nonempty]
        nonempty_chunks.append(chunk.select(nonempty))
        boxes.append(mask_boxes(masks).cpu())
        if options.output_rle_mask:
            rles += encode_rles(masks) if len(masks) else []
        else:
            pixels.append(masks.cpu())
    _, scores, stability, _, points, crops = (torch.cat(fields).cpu() for fields in zip(*nonempty_chunks, strict=True))
    return MaskProposals(
        size_hw=size_hw,
        scores=scores,
        stability_scores=stability,
        boxes_xyxy=torch.cat(boxes),
        points_xy=points,
        crops_xyxy=crops,
        pixels=None if options.output_rle_mask else torch.cat(pixels),
        stored_rles=rles if options.output_rle_mask else None,
    )


def _replace_options(options: AutomaticMaskOptions, changes: dict[str, object]) -> AutomaticMaskOptions:
    """Return options with some of them replaced; raise `InputError` for unknown names."""
    check_names("options", changes, [field.name for field in dataclasses.fields(options)])
    return dataclasses.replace(options, **changes)  # type: ignore[arg-type]
