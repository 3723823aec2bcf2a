"""`Sapiens2ImageProcessor`: pictures (and boxes, maps, keypoints) → model inputs; model outputs → results in pixels."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.config import settings
from vitruvian.errors import InputError, VitruvianWarning
from vitruvian.images import (
    center_on_canvas,
    crop_boxes,
    crop_params,
    fit_inside_hw,
    resample_mode,
    resize,
)
from vitruvian.images.argmax import resized_argmax
from vitruvian.models.sapiens2.decoding import decode_heatmaps, draw_heatmaps
from vitruvian.models.sapiens2.inputs import (
    as_map_list,
    crop_labels,
    read_background,
    read_boxes,
    read_keypoints,
    read_map,
    reduce_labels,
)
from vitruvian.models.sapiens2.maps import cut_padding, stretch
from vitruvian.models.sapiens2.silhouette import fill_boxes, places_in_crops
from vitruvian.ops.crop import Floats
from vitruvian.outputs import BatchFeature
from vitruvian.processor import (
    ImageInput,
    ImageProcessor,
    as_list,
    as_pixels,
    check_count,
    height_width,
    size_list,
    size_table,
)

NEAREST = 0


@settings
class Sapiens2ImageProcessor(ImageProcessor):
    """Prepare pictures for Sapiens2, and decode what its models give.

    Args:
        do_resize: Whether to resize.
        size: Size of the model's input, by default 1024×768 (height × width).
        resample: Filter: 2 bilinear (the default), 3 bicubic, 0 nearest. Shrinking is antialiased.
        do_pad: Keep the aspect ratio and centre the picture on black (for normals, albedo and pointmaps).
        do_center_crop: Whether to cut `crop_size` out of the middle after resizing.
        crop_size: Size of that cut.
        do_reduce_labels: Whether label 0 of segmentation maps means "ignore" and the others count from 1.
        keypoint_heatmap_downscale_factor: How much smaller than the input heatmap targets are.
        keypoint_heatmap_sigma: Width of the Gaussians in heatmap targets, in heatmap pixels.
        label_resample: Filter for segmentation maps. None takes `resample`, as the reference does, which blends labels
            at borders into classes that are not there; 0 (nearest) keeps them whole: use that for training.
    """

    size: dict[str, int] = dataclasses.field(default_factory=lambda: {"height": 1024, "width": 768})
    do_pad: bool = False
    do_center_crop: bool = False
    crop_size: dict[str, int] = dataclasses.field(default_factory=lambda: {"height": 224, "width": 224})
    do_reduce_labels: bool = False
    keypoint_heatmap_downscale_factor: int = 4
    keypoint_heatmap_sigma: float = 6.0
    label_resample: int | None = None

    def __post_init__(self) -> None:
        self.crop_size = size_table(self.crop_size)
        super().__post_init__()

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width of the model's input."""
        return height_width(self.size, "Sapiens2ImageProcessor.size")

    # ------------------------------------------------------------------ pictures in

    def preprocess(
        self,
        images: ImageInput,
        segmentation_maps: ImageInput | None = None,
        boxes: Any = None,
        keypoints: Any = None,
        *,
        do_resize: bool | None = None,
        size: Any = None,
        resample: int | None = None,
        do_pad: bool | None = None,
        do_center_crop: bool | None = None,
        crop_size: Any = None,
        do_rescale: bool | None = None,
        rescale_factor: float | None = None,
        do_normalize: bool | None = None,
        image_mean: float | list[float] | None = None,
        image_std: float | list[float] | None = None,
        do_convert_rgb: bool | None = None,
        do_reduce_labels: bool | None = None,
        keypoint_heatmap_downscale_factor: int | None = None,
        keypoint_heatmap_sigma: float | None = None,
        label_resample: int | None = None,
        input_data_format: str | None = None,
        device: str | torch.device | None = None,
        return_tensors: str | None = None,
    ) -> BatchFeature:
        """Prepare pictures, whole or cut around people.

        Args:
            images: A picture or a list: PIL, numpy, torch, paths or URLs; values from 0 to 255 (for 0 to 1 pass
                `do_rescale=False`).
            segmentation_maps: Class of each pixel, one map a picture; gives `labels` [B, H, W].
            boxes: For each picture a list of boxes (x, y, width, height) in its pixels: each person is cut out and
                fills the input. The crops of all pictures follow one another.
            keypoints: For each picture, for each box, keypoints (x, y, visibility) in its pixels; gives `labels`
                [N, J, H/4, W/4] and `label_weights` [N, J] for training.
            do_resize: This and the following override the processor's own options for one call.
            size: Size of the model's input.
            resample: Filter for pictures.
            do_pad: Keep the aspect ratio.
            do_center_crop: Cut the middle out.
            crop_size: Size of that cut.
            do_rescale: Multiply by `rescale_factor`.
            rescale_factor: By default 1/255.
            do_normalize: Subtract the mean and divide by the standard deviation.
            image_mean: Mean of each channel.
            image_std: Standard deviation of each channel.
            do_convert_rgb: Whether pictures of other modes become RGB (PIL pictures always do).
            do_reduce_labels: Count labels from 1, with 0 as "ignore".
            keypoint_heatmap_downscale_factor: How much smaller than the input heatmap targets are.
            keypoint_heatmap_sigma: Width of their Gaussians.
            label_resample: Filter for segmentation maps.
            input_data_format: ``"channels_first"`` or ``"channels_last"`` where the shape of an array leaves it open.
            device: Device to work on.
            return_tensors: ``"pt"`` or ``"np"`` to stack the batch; by default lists.
        """
        used = self.with_options(
            do_resize=do_resize,
            size=size,
            resample=resample,
            do_pad=do_pad,
            do_center_crop=do_center_crop,
            crop_size=crop_size,
            do_rescale=do_rescale,
            rescale_factor=rescale_factor,
            do_normalize=do_normalize,
            image_mean=image_mean,
            image_std=image_std,
            do_convert_rgb=do_convert_rgb,
            do_reduce_labels=do_reduce_labels,
            keypoint_heatmap_downscale_factor=keypoint_heatmap_downscale_factor,
            keypoint_heatmap_sigma=keypoint_heatmap_sigma,
            label_resample=label_resample,
        )
        if segmentation_maps is not None and keypoints is not None:
            raise InputError(
                "segmentation_maps and keypoints: expected one of them, got both. Train one task at a time."
            )
        if keypoints is not None and boxes is None:
            raise InputError("keypoints: need boxes, which say where each person's crop lies. Pass boxes=… too.")
        pictures = as_pixels(images, input_data_format=input_data_format, device=device)
        people = None if boxes is None else read_boxes(boxes, len(pictures))
        data: dict[str, Any] = {"pixel_values": used.prepare_pictures(pictures, people)}
        if people is not None and return_tensors is None:
            data["pixel_values"] = list(data["pixel_values"])
        if segmentation_maps is not None:
            data["labels"] = used.prepare_maps(segmentation_maps, [p.shape for p in pictures], people, device)
        if keypoints is not None and people is not None:
            data["labels"], data["label_weights"] = used.draw_targets(keypoints, people, device)
        return BatchFeature(data, return_tensors)

    def prepare_pictures(
        self,
        pictures: list[Tensor],
        people: Sequence[Tensor | Floats] | None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> list[Tensor] | Tensor:
        """Crop or resize images [3, H, W], then rescale and normalize them: float32 [3, h, w] each, crops stacked.

        Crops have the data type `dtype`. Nothing here synchronizes the device.
        """
        if people is not None:
            options: dict[str, Any] = {} if self.do_center_crop else {"dtype": dtype, **self.constants}
            crops = [
                crop_boxes(picture, boxes, self.size_hw, **options)
                for picture, boxes in zip(pictures, people, strict=True)
            ]
            joined = crops[0] if len(crops) == 1 else torch.cat(crops)  # [N, 3, h, w]
            return self.finish_pixels(self.center_cut(joined)).to(dtype) if self.do_center_crop else joined
        mode = resample_mode(self.resample)
        return [self.finish_pixels(self.center_cut(self.fit(picture, mode))) for picture in pictures]

    def fit(self, pixels: Tensor, mode: Any) -> Tensor:
        """Resize [C, H, W] to the input size, with black bars where the aspect ratio is kept."""
        if not self.do_resize:
            return pixels
        if not self.do_pad:
            return resize(pixels, self.size_hw, mode=mode)
        inner = fit_inside_hw((pixels.shape[-2], pixels.shape[-1]), self.size_hw)
        return center_on_canvas(resize(pixels, inner, mode=mode), self.size_hw)

    def center_cut(self, pixels: Tensor) -> Tensor:
        """Cut the middle out of [..., C, H, W] where the options say so."""
        if not self.do_center_crop:
            return pixels
        return center_on_canvas(pixels, height_width(self.crop_size, "Sapiens2ImageProcessor.crop_size"))

    def prepare_maps(
        self, maps: ImageInput, shapes: list[Any], people: list[Tensor] | None, device: str | torch.device | None
    ) -> list[Tensor]:
        """Bring segmentation maps to the input size: a list of int64 [h, w]."""
        read = [read_map(one, device) for one in as_map_list(maps)]
        check_count("segmentation_maps", read, len(shapes))
        for one, shape in zip(read, shapes, strict=True):
            if one.shape[-2:] != shape[-2:]:
                raise InputError(
                    f"segmentation_maps: expected the size of the picture, {list(shape[-2:])}, "
                    f"got {list(one.shape[-2:])}."
                )
        if self.do_reduce_labels:
            read = [reduce_labels(one) for one in read]
        filter_number = self.resample if self.label_resample is None else self.label_resample
        if filter_number != NEAREST and (self.do_resize or people is not None):
            warnings.warn(
                "segmentation_maps: labels are resampled like pictures, which makes up classes at borders. "
                "Pass label_resample=0 (nearest) unless you need the reference's numbers.",
                VitruvianWarning,
                stacklevel=3,
            )
        if people is not None:
            crops = [
                crop_labels(one, boxes, self.size_hw)
                if filter_number == NEAREST
                else crop_boxes(one, boxes, self.size_hw)
                for one, boxes in zip(read, people, strict=True)
            ]
            return [row[0].long() for crop in crops for row in self.center_cut(crop)]
        mode = resample_mode(filter_number)
        return [self.center_cut(self.fit(one, mode))[0].long() for one in read]

    def draw_targets(
        self, keypoints: Any, people: list[Tensor], device: str | torch.device | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Draw heatmap targets of all people: lists of [J, h, w] and [J]."""
        check_count("keypoints", keypoints, len(people))
        factor, (height, width) = self.keypoint_heatmap_downscale_factor, self.size_hw
        target_hw = (height // factor, width // factor)
        last = torch.tensor([target_hw[1] - 1, target_hw[0] - 1], dtype=torch.float32, device=device)
        targets: list[Tensor] = []
        weights: list[Tensor] = []
        for points, boxes in zip(keypoints, people, strict=True):
            if len(points) != len(boxes):
                raise InputError(f"keypoints: expected one list for each of the {len(boxes)} boxes, got {len(points)}.")
            if not len(boxes):
                continue
            known = read_keypoints(points, device)  # [n, J, 3]
            center, extent = crop_params(boxes.to(known.device), self.size_hw)
            xy = ((known[..., :2] - center[:, None]) / extent[:, None] + 0.5) * last  # [n, J, 2]
            maps, weight = draw_heatmaps(xy, known[..., 2] > 0, size_hw=target_hw, sigma=self.keypoint_heatmap_sigma)
            targets += list(maps)
            weights += list(weight)
        return targets, weights

    # ------------------------------------------------------------------ results out

    def post_process_pose_estimation(
        self,
        outputs: Any,
        boxes: Any,
        outputs_flipped: Any = None,
        kernel_size: int = 11,
        threshold: float | None = None,
        source_sizes: Any = None,
        target_sizes: Any = None,
    ) -> list[list[dict[str, Tensor]]]:
        """Turn heatmaps into keypoints in the pixels of the pictures.

        Args:
            outputs: What `Sapiens2ForPoseEstimation` gave for the crops of all boxes, in order.
            boxes: The boxes that were given to `preprocess`.
            outputs_flipped: What it gave for the mirrored crops, called with `flip_pairs`; averaged in.
            kernel_size: Size of the Gaussian that smooths heatmaps before refinement.
            threshold: Leave out keypoints whose score is not above this.
            source_sizes: (height, width) of each picture; needed with `target_sizes`.
            target_sizes: (height, width) to give coordinates in instead.

        Returns:
            For each picture a list of people: dicts of `keypoints` [J, 2] (x, y), `scores` [J], `labels` [J] (indices
            of the keypoints) and `bbox` [4] (x1, y1, x2, y2).
        """
        people = read_boxes(boxes, len(boxes))
        sources = size_list("source_sizes", source_sizes, len(people))
        targets = size_list("target_sizes", target_sizes, len(people))
        if targets is not None and sources is None:
            raise InputError("target_sizes: need source_sizes to scale from. Pass both.")
        heatmaps = outputs.heatmaps
        if outputs_flipped is not None:
            heatmaps = (heatmaps + outputs_flipped.heatmaps) / 2
        count = sum(len(found) for found in people)
        if len(heatmaps) != count:
            raise InputError(f"boxes: expected one for each of the {len(heatmaps)} heatmaps, got {count}.")
        if not count:
            return [[] for _ in people]
        all_boxes = torch.cat(people).to(heatmaps.device)  # [N, 4]
        xy, scores = decode_heatmaps(heatmaps, kernel_size=kernel_size)  # [N, J, 2], [N, J]
        center, extent = crop_params(all_boxes, self.size_hw)
        last = torch.tensor([heatmaps.shape[-1] - 1, heatmaps.shape[-2] - 1], device=xy.device)
        xy = (xy / last - 0.5) * extent[:, None] + center[:, None]  # [N, J, 2]
        corners = torch.cat((all_boxes[:, :2], all_boxes[:, :2] + all_boxes[:, 2:]), dim=1)  # [N, 4]
        if sources is not None and targets is not None:
            factors = [
                [t[1] / s[1], t[0] / s[0]] for s, t, own in zip(sources, targets, people, strict=True) for _ in own
            ]
            factor = torch.tensor(factors, device=xy.device)  # [N, 2]
            xy, corners = xy * factor[:, None], corners * factor.repeat(1, 2)
        numbers = torch.arange(xy.shape[1], device=xy.device)
        results: list[list[dict[str, Tensor]]] = []
        row = 0
        for own in people:
            results.append([])
            for _ in own:
                keep = slice(None) if threshold is None else scores[row] > threshold
                results[-1].append(
                    {
                        "keypoints": xy[row][keep],
                        "scores": scores[row][keep],
                        "labels": numbers[keep],
                        "bbox": corners[row],
                    }
                )
                row += 1
        return results

    def post_process_semantic_segmentation(
        self,
        outputs: Any,
        target_sizes: Any = None,
        return_segmentation_scores: bool = False,
        *,
        boxes: Any = None,
    ) -> list[Any]:
        """Turn logits into class maps, int64 [H, W] each.

        Args:
            outputs: What `Sapiens2ForSemanticSegmentation` gave.
            target_sizes: (height, width) of each result; by default the size of the logits.
            return_segmentation_scores: Return dicts of `segmentation` [H, W] and `segmentation_scores` [K, H, W].
            boxes: The boxes that people were cut out by, as they were given to the processor, where these are as tight
                as annotations: silhouettes then fill them. For small models, which are timid; loose boxes do harm.
        """
        logits = outputs.logits
        if boxes is not None:
            rows = torch.cat(read_boxes(boxes, len(boxes)))  # [N, 4]
            check_count("boxes", rows, len(logits))
            logits = fill_boxes(logits, places_in_crops(rows, self.size_hw))
        sizes = size_list("target_sizes", target_sizes, len(logits))
        if not return_segmentation_scores:
            sizes = sizes or [tuple(logits.shape[-2:])] * len(logits)
            return [resized_argmax(one, size) for one, size in zip(logits, sizes, strict=True)]
        scores = list(logits)
        if sizes is not None:
            scores = [stretch(one, size) for one, size in zip(logits, sizes, strict=True)]
        return [BatchFeature({"segmentation": s.argmax(0), "segmentation_scores": s}) for s in scores]

    def post_process_normal_estimation(
        self, outputs: Any, source_sizes: Any = None, target_sizes: Any = None, do_remove_padding: bool | None = None
    ) -> list[dict[str, Tensor]]:
        """Turn raw normals into unit vectors, `normals` [3, H, W], without padding and at the size asked for.

        Args:
            outputs: What `Sapiens2ForNormalEstimation` gave.
            source_sizes: (height, width) of each picture before preprocessing: removes the padding and resizes back.
            target_sizes: (height, width) of each result instead.
            do_remove_padding: Whether to cut the padding off; by default where `source_sizes` are given.
        """
        unit = F.normalize(outputs.normals.float(), dim=1, eps=1e-8)
        maps = self.restore(unit, source_sizes, target_sizes, do_remove_padding)
        return [{"normals": one} for one in maps]

    def post_process_pointmap_estimation(
        self, outputs: Any, source_sizes: Any = None, target_sizes: Any = None, do_remove_padding: bool | None = None
    ) -> list[dict[str, Tensor]]:
        """Turn points of the canonical camera into metric ones, `pointmap` [3, H, W], where the model gives scales.

        Args:
            outputs: What `Sapiens2ForPointmapEstimation` gave.
            source_sizes: (height, width) of each picture before preprocessing: removes the padding and resizes back.
            target_sizes: (height, width) of each result instead.
            do_remove_padding: Whether to cut the padding off; by default where `source_sizes` are given.
        """
        points = outputs.pointmaps
        if outputs.scales is not None:
            points = points / outputs.scales[:, :, None, None]
        return [{"pointmap": one} for one in self.restore(points, source_sizes, target_sizes, do_remove_padding)]

    def post_process_albedo_estimation(
        self, outputs: Any, source_sizes: Any = None, target_sizes: Any = None, do_remove_padding: bool | None = None
    ) -> list[dict[str, Tensor]]:
        """Turn raw albedo into RGB in [0, 1], `albedo` [3, H, W], without padding and at the size asked for.

        Args:
            outputs: What `Sapiens2ForAlbedoEstimation` gave.
            source_sizes: (height, width) of each picture before preprocessing: removes the padding and resizes back.
            target_sizes: (height, width) of each result instead.
            do_remove_padding: Whether to cut the padding off; by default where `source_sizes` are given.
        """
        maps = self.restore(outputs.albedos.clamp(0, 1), source_sizes, target_sizes, do_remove_padding)
        return [{"albedo": one} for one in maps]

    def post_process_image_matting(
        self, outputs: Any, target_sizes: Any = None, backgrounds: ImageInput | None = None
    ) -> list[dict[str, Tensor | None]]:
        """Turn mattes into results at the size asked for, and composite them.

        Args:
            outputs: What `Sapiens2ForImageMatting` gave.
            target_sizes: (height, width) of each result; by default the size of the mattes.
            backgrounds: A picture for all, or one for each: PIL, numpy or torch, or a colour as a [3, 1, 1] tensor;
                integers count from 0 to their type's maximum, floating-point values from 0 to 1.

        Returns:
            Dicts of `alpha` [1, H, W], premultiplied `foreground` [3, H, W], and `composite`, uint8 [3, H, W] or None:
            foreground + (1 − alpha) · background.
        """
        mattes = torch.cat((outputs.foregrounds, outputs.alphas), dim=1)  # [B, 4, H, W]
        sizes = size_list("target_sizes", target_sizes, len(mattes))
        behind = None if backgrounds is None else [read_background(b) for b in as_list(backgrounds)]
        if behind is not None and len(behind) == 1:
            behind = behind * len(mattes)
        check_count("backgrounds", behind, len(mattes))
        results: list[dict[str, Tensor | None]] = []
        for index, matte in enumerate(mattes):
            if sizes is not None:
                matte = stretch(matte, sizes[index]).clamp(0, 1)
            foreground, alpha = matte[:3], matte[3:]
            composite = None
            if behind is not None:
                size_hw = (matte.shape[-2], matte.shape[-1])
                back = stretch(behind[index].to(matte), size_hw)  # [3, H, W]
                mixed = (foreground + (1 - alpha) * back).clamp(0, 1)
                composite = (mixed * (256 - 1e-3)).to(torch.uint8)  # [3, H, W]
            results.append({"foreground": foreground, "alpha": alpha, "composite": composite})
        return results

    def restore(
        self, maps: Tensor, source_sizes: Any, target_sizes: Any, do_remove_padding: bool | None
    ) -> list[Tensor]:
        """Cut the padding off maps [B, C, H, W] and bring each to its size."""
        sources = size_list("source_sizes", source_sizes, len(maps))
        targets = size_list("target_sizes", target_sizes, len(maps)) or sources
        cut = sources is not None if do_remove_padding is None else do_remove_padding
        if cut and sources is None:
            raise InputError("do_remove_padding: needs source_sizes to know where the padding lies. Pass them.")
        results = []
        for index, one in enumerate(maps):
            if cut and sources is not None:
                one = cut_padding(one, sources[index], self.size_hw)
            results.append(one if targets is None else stretch(one, targets[index]))
        return results
