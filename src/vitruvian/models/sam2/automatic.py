"""Masks of everything in a picture: SAM 2 is asked about a grid of points, and what is good and new is kept.

    picture ─▶ crops (the whole, then 4, 16, …) ─ encode once each ─▶ batches of points ─▶ 3 masks a point, 256²
            ─▶ good? (predicted IoU) ─▶ stable? ─▶ not cut by the crop? ─▶ new? (NMS) ─▶ enlarge, clean ─▶ MaskProposals

Everything up to the last arrow happens on small masks; only those that are kept are enlarged to the picture. At most
`STORED_BYTES` of candidates are held at a time, so memory depends on the batch of points and not on their number.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.nms import box_nms, mask_boxes, mask_nms
from vitruvian.images.rle import Rle, decode_rles, encode_rles
from vitruvian.models.sam2.mask_decoder import stability_score
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2Processor, tidy
from vitruvian.processor import ImageInput, as_pixels

# Candidates beyond this are thinned out with NMS before the next batch, not only at the end.
STORED_BYTES = 256 << 20
# How many enlarged masks are worked on at a time, in pixels.
ENLARGED_PIXELS = 1 << 24
# Masks closer than this to the edge of a crop, in pixels, are taken as cut by it.
EDGE = 20.0
# Side of the small picture on which masks are compared pixel by pixel.
COMPARED_SIDE = 256
# Layers of crops: the fourth has 256 of them.
MOST_LAYERS = 4


@dataclass(frozen=True)
class AutomaticMaskOptions:
    """How masks are proposed and chosen; the names are those of the mask-generation pipeline.

    Args:
        points_per_crop: Points along each side of the grid.
        points_per_batch: Points that are decoded at a time; None for all of a crop.
        pred_iou_thresh: Predicted IoU that a mask must exceed.
        stability_score_thresh: IoU that a mask must exceed between a higher and a lower cut.
        stability_score_offset: How far these cuts lie from `mask_threshold`.
        mask_threshold: Logit above which a pixel is on the object.
        crops_n_layers: Layers of crops to look at beside the whole picture; layer n has 4ⁿ crops.
        crop_overlap_ratio: Overlap of the crops of the first layer over the picture's shorter side.
        crop_n_points_downscale_factor: In layer n the grid has fewer points a side by this factor to the n.
        crops_nms_thresh: Box IoU above which the worse of two masks is dropped.
        mask_nms_thresh: The same for the IoU of the masks themselves; None to compare boxes only.
        max_hole_area: Holes of up to this many pixels are filled.
        max_sprinkle_area: Islands of up to this many pixels are removed.
        output_rle_mask: Keep run lengths rather than pixels.
    """

    points_per_crop: int = 32
    points_per_batch: int | None = 64
    pred_iou_thresh: float = 0.88
    stability_score_thresh: float = 0.95
    stability_score_offset: float = 1.0
    mask_threshold: float = 0.0
    crops_n_layers: int = 0
    crop_overlap_ratio: float = 512 / 1500
    crop_n_points_downscale_factor: int = 1
    crops_nms_thresh: float = 0.7
    mask_nms_thresh: float | None = None
    max_hole_area: float = 0.0
    max_sprinkle_area: float = 0.0
    output_rle_mask: bool = False

    def __post_init__(self) -> None:
        least = {"points_per_crop": 1, "crop_n_points_downscale_factor": 1, "crops_n_layers": 0}
        least |= {"max_hole_area": 0, "max_sprinkle_area": 0, "stability_score_offset": 0}
        if self.points_per_batch is not None:
            least["points_per_batch"] = 1
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise InputError(f"{name}: expected at least {lowest}, got {getattr(self, name)}.")
        if self.crops_n_layers > MOST_LAYERS:
            raise InputError(
                f"crops_n_layers: expected at most {MOST_LAYERS}, got {self.crops_n_layers}: its last layer would have "
                f"{4**self.crops_n_layers} crops."
            )
        if not 0 <= self.crop_overlap_ratio < 1:
            raise InputError(f"crop_overlap_ratio: expected 0 up to 1, got {self.crop_overlap_ratio}.")


@dataclass(frozen=True)
class MaskProposals:
    """The N masks found in a picture, best first; coordinates are in its pixels.

    Attributes:
        size_hw: Height and width of the picture.
        scores: Predicted IoU [N].
        stability_scores: IoU between a higher and a lower cut [N].
        boxes_xyxy: Tight boxes, far edges outside [N, 4].
        points_xy: The point that each mask answers [N, 2].
        crops_xyxy: The crop it was found in [N, 4].
        pixels: The masks [N, H, W], bool, or None where run lengths are kept.
        runs: Their run lengths in COCO's form, or None where pixels are kept.
    """

    size_hw: tuple[int, int]
    scores: Tensor
    stability_scores: Tensor
    boxes_xyxy: Tensor
    points_xy: Tensor
    crops_xyxy: Tensor
    pixels: Tensor | None = None
    runs: list[Rle] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def masks(self) -> Tensor:
        """The masks [N, H, W], bool."""
        if self.pixels is not None:
            return self.pixels
        return decode_rles(self.runs) if self.runs else torch.zeros(0, *self.size_hw, dtype=torch.bool)

    @property
    def rles(self) -> list[Rle]:
        """The masks as run lengths in COCO's form."""
        if self.runs is not None:
            return self.runs
        return encode_rles(self.masks) if len(self) else []


@dataclass
class Candidates:
    """Masks that passed the filters: small logits [N, h, w] and what is known of each, [N] or [N, 4] or [N, 2]."""

    logits: Tensor
    scores: Tensor
    stable: Tensor
    boxes_xyxy: Tensor
    points_xy: Tensor
    crops_xyxy: Tensor

    def __getitem__(self, which: Tensor | slice) -> Self:
        return type(self)(*(getattr(self, field.name)[which] for field in dataclasses.fields(self)))

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Put candidates of several batches together."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in dataclasses.fields(cls)))


class Sam2AutomaticMaskGenerator:
    """Finds masks of everything in pictures.

    Args:
        model: The model; it stays on its device and in its data type.
        processor: Prepares pictures for it.
        options: Fields of `AutomaticMaskOptions`.
    """

    def __init__(self, model: Sam2Model, processor: Sam2Processor, **options: Any) -> None:
        self.model, self.processor = model, processor
        self.options = changed(AutomaticMaskOptions(), options)

    def __call__(self, images: ImageInput, **options: Any) -> MaskProposals | list[MaskProposals]:
        """Find the masks of one picture, or of each in a list; keywords change options for this call."""
        chosen = changed(self.options, options)
        found = [self.generate(pixels, chosen) for pixels in as_pixels(images)]
        return found if isinstance(images, (list, tuple)) else found[0]

    @torch.no_grad()
    def generate(self, pixels: Tensor, options: AutomaticMaskOptions) -> MaskProposals:
        """Find the masks of one picture [3, H, W]."""
        size_hw = (pixels.shape[-2], pixels.shape[-1])
        stored: list[Candidates] = []
        for layer, crop in crops_of(size_hw, options.crops_n_layers, options.crop_overlap_ratio):
            side = max(1, options.points_per_crop // options.crop_n_points_downscale_factor**layer)
            for batch in self.ask(pixels, crop, point_grid(side), options):
                stored.append(batch)
                if sum(part.logits.nbytes for part in stored) > STORED_BYTES:
                    stored = [best_of(Candidates.joined(stored), options)]
        return finish(best_of(Candidates.joined(stored), options), size_hw, options)

    def ask(
        self, pixels: Tensor, crop: tuple[int, int, int, int], grid: Tensor, options: AutomaticMaskOptions
    ) -> Iterator[Candidates]:
        """Encode one crop x1, y1, x2, y2 and ask about points [N, 2] in [0, 1]², a batch at a time."""
        x1, y1, x2, y2 = crop
        device, size_hw = self.model.device, (pixels.shape[-2], pixels.shape[-1])
        prepared = self.processor.image_processor.one_picture(pixels[:, y1:y2, x1:x2])[None]
        embeddings = self.model.get_image_embeddings(prepared.to(device))
        height, width = self.model.prompt_encoder.image_hw
        asked = grid * torch.tensor((width, height))  # [N, 2], pixels of the input
        places = grid * torch.tensor((x2 - x1, y2 - y1)) + torch.tensor((x1, y1))  # [N, 2], pixels of the picture
        step = options.points_per_batch or len(grid)
        for start in range(0, len(grid), step):
            points = asked[None, start : start + step, None].to(device)  # [1, P, 1, 2]
            found = self.model.confident_masks(points, embeddings, min_iou=options.pred_iou_thresh)
            asked_at = places[start : start + step].to(device)[found.prompts]  # [N, 2]
            yield filtered(found.masks, found.iou_scores, asked_at, crop, size_hw, options)


def filtered(
    logits: Tensor,
    scores: Tensor,
    points_xy: Tensor,
    crop: tuple[int, int, int, int],
    size_hw: tuple[int, int],
    options: AutomaticMaskOptions,
) -> Candidates:
    """Keep of the masks [N, h, w] with scores [N] and points [N, 2] those that are stable, not empty and not cut."""
    stable = stability_score(logits, options.stability_score_offset, options.mask_threshold)  # [N]
    small = mask_boxes(logits > options.mask_threshold)  # [N, 4], cells
    x1, y1, x2, y2 = crop
    cell = torch.tensor(((x2 - x1) / logits.shape[-1], (y2 - y1) / logits.shape[-2]), device=logits.device).tile(2)
    boxes = small * cell + torch.tensor((x1, y1, x1, y1), device=logits.device)  # [N, 4], pixels of the picture
    keep = (stable > options.stability_score_thresh) & (small[:, 2] > small[:, 0])
    keep &= ~cut_by(boxes, crop, size_hw)
    crops = torch.tensor(crop, device=logits.device).expand(len(boxes), -1)
    # Half precision is plenty for what is cut at a threshold and interpolated once.
    return Candidates(logits.half(), scores, stable, boxes, points_xy, crops)[keep]


def cut_by(boxes_xyxy: Tensor, crop: tuple[int, int, int, int], size_hw: tuple[int, int]) -> Tensor:
    """Tell which boxes [N, 4] touch an edge of their crop that is not an edge of the picture: [N]."""
    edges = torch.tensor(crop, device=boxes_xyxy.device, dtype=boxes_xyxy.dtype)
    outer = torch.tensor((0, 0, size_hw[1], size_hw[0]), device=boxes_xyxy.device, dtype=boxes_xyxy.dtype)
    at_crop, at_picture = (boxes_xyxy - edges).abs() <= EDGE, (boxes_xyxy - outer).abs() <= EDGE
    return (at_crop & ~at_picture).any(dim=-1)


def best_of(found: Candidates, options: AutomaticMaskOptions) -> Candidates:
    """Drop what overlaps something better, by boxes and then, where asked, by pixels."""
    found = found[box_nms(found.boxes_xyxy, found.scores, options.crops_nms_thresh)]
    if options.mask_nms_thresh is None or len(found.scores) < 2:
        return found
    reach = found.crops_xyxy.amax(dim=0)  # the whole picture is the first crop
    scale = min(1.0, COMPARED_SIDE / float(reach[2:].max()))
    canvas = (max(1, round(float(reach[3]) * scale)), max(1, round(float(reach[2]) * scale)))
    small = torch.cat(
        [pasted(found[i : i + 1], canvas, scale, options.mask_threshold) for i in range(len(found.scores))]
    )
    return found[mask_nms(small, found.scores, options.mask_nms_thresh)]


def pasted(found: Candidates, size_hw: tuple[int, int], scale: float, threshold: float) -> Tensor:
    """Enlarge candidates of one crop and put them where the crop lies: bool [N, H, W]."""
    x1, y1, x2, y2 = (round(edge * scale) for edge in found.crops_xyxy[0].tolist())
    x2, y2 = min(max(x2, x1 + 1), size_hw[1]), min(max(y2, y1 + 1), size_hw[0])
    large = F.interpolate(found.logits[:, None].float(), size=(y2 - y1, x2 - x1), mode="bilinear", align_corners=False)
    out = torch.zeros(len(large), *size_hw, dtype=torch.bool, device=large.device)
    out[:, y1:y2, x1:x2] = large[:, 0] > threshold
    return out


def finish(found: Candidates, size_hw: tuple[int, int], options: AutomaticMaskOptions) -> MaskProposals:
    """Enlarge the kept masks to the picture, clean them and measure their boxes."""
    step = max(1, ENLARGED_PIXELS // (size_hw[0] * size_hw[1]))
    pixels, runs, boxes, kept = [], [], [], []
    # Candidates of one crop lie at one place, so they are enlarged together.
    for crop in torch.unique(found.crops_xyxy, dim=0):
        own = (found.crops_xyxy == crop).all(dim=-1).nonzero()[:, 0]
        for start in range(0, len(own), step):
            which = own[start : start + step]
            masks = pasted(found[which], size_hw, 1.0, options.mask_threshold)  # [n, H, W]
            masks = tidy(masks, max_hole_area=options.max_hole_area, max_sprinkle_area=options.max_sprinkle_area)
            some = masks.flatten(1).any(dim=-1)
            masks = masks[some]
            kept.append(which[some])
            boxes.append(mask_boxes(masks))
            if options.output_rle_mask:
                runs += encode_rles(masks) if len(masks) else []
            else:
                pixels.append(masks.cpu())
    index = torch.cat(kept) if kept else torch.zeros(0, dtype=torch.long, device=found.scores.device)
    order = found.scores[index].argsort(descending=True, stable=True)
    index, there = index[order], order.cpu()
    blank = torch.zeros(0, *size_hw, dtype=torch.bool)
    return MaskProposals(
        size_hw=size_hw,
        scores=found.scores[index].cpu(),
        stability_scores=found.stable[index].cpu(),
        boxes_xyxy=(torch.cat(boxes)[order] if boxes else found.boxes_xyxy.new_zeros(0, 4).long()).cpu(),
        points_xy=found.points_xy[index].cpu(),
        crops_xyxy=found.crops_xyxy[index].cpu(),
        pixels=None if options.output_rle_mask else (torch.cat(pixels) if pixels else blank)[there],
        runs=[runs[i] for i in there.tolist()] if options.output_rle_mask else None,
    )


def crops_of(
    size_hw: tuple[int, int], layers: int, overlap_ratio: float
) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """Give the layer and the corners x1, y1, x2, y2 of each crop: the whole picture, then 4, 16, … that overlap."""
    height, width = size_hw
    yield 0, (0, 0, width, height)
    for layer in range(1, layers + 1):
        count = 2**layer
        overlap = int(overlap_ratio * min(height, width) * 2 / count)
        across, down = (math.ceil((overlap * (count - 1) + side) / count) for side in (width, height))
        for column, row in itertools.product(range(count), repeat=2):
            x, y = column * (across - overlap), row * (down - overlap)
            if x < width and y < height:
                yield layer, (x, y, min(x + across, width), min(y + down, height))


def point_grid(side: int) -> Tensor:
    """Centres of the cells of a `side` × `side` grid over [0, 1]², row by row: [side², 2]."""
    places = (torch.arange(side, dtype=torch.float32) + 0.5) / side
    y, x = torch.meshgrid(places, places, indexing="ij")
    return torch.stack((x, y), dim=-1).flatten(0, 1)  # [side², 2]


def changed(options: AutomaticMaskOptions, changes: dict[str, Any]) -> AutomaticMaskOptions:
    """Return options with some of them changed, refusing names that do not exist."""
    known = [field.name for field in dataclasses.fields(options)]
    wrong = [name for name in changes if name not in known]
    if wrong:
        raise InputError(f"{wrong[0]}: no such option. Options are {', '.join(known)}.")
    return dataclasses.replace(options, **changes)
