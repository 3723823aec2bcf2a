"""`Sapiens2ImageProcessor`: images, boxes, label maps and keypoints -> model inputs; model outputs -> results."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.config import config_dataclass
from vitruvian.errors import InputError, VitruvianWarning, check_count
from vitruvian.images import (
    ResizeMode,
    center_on_canvas,
    crop_boxes,
    crop_windows,
    fit_inside_hw,
    image_to_tensor,
    load_image,
    resample_mode,
    resize,
)
from vitruvian.images.data_format import channels_first, in_data_format, size_of
from vitruvian.images.label_maps import read_label_maps, resized_argmax
from vitruvian.images.types import SizeHW
from vitruvian.losses.heatmap import draw_heatmaps
from vitruvian.ops.crop import Float32Array, crop_to_image_xy, image_to_crop_xy, sample_positions
from vitruvian.ops.heatmap_peaks import decode_heatmaps
from vitruvian.ops.interpolate import bilinear
from vitruvian.outputs import BatchFeature, output_field
from vitruvian.processor import (
    ImageInput,
    ImageProcessor,
    SegmentationImageOptions,
    as_list,
    as_pixels,
    height_width,
    size_list,
    size_table,
)

_NEAREST = 0


class Sapiens2ImageOptions(SegmentationImageOptions, total=False):
    """Options that a call of `Sapiens2ImageProcessor.preprocess` may override."""

    keypoint_heatmap_downscale_factor: int | None
    keypoint_heatmap_sigma: float | None
    label_resample: int | None


@config_dataclass
class Sapiens2ImageProcessor(ImageProcessor):
    """Prepare images for Sapiens2, and decode the outputs of its models.

    Args:
        do_resize: Whether to resize.
        size: Size of the model's input, by default 1024×768 (height × width).
        resample: Filter: 2 bilinear (the default), 3 bicubic, 0 nearest. Shrinking is antialiased.
        do_pad: Keep the aspect ratio and center the image on black (for normals, albedo and pointmaps).
        do_center_crop: Whether to crop the center to `crop_size` after resizing.
        crop_size: Size of that crop.
        do_reduce_labels: Whether label 0 of segmentation maps means "ignore" and the others count from 1.
        keypoint_heatmap_downscale_factor: How much smaller than the input heatmap targets are.
        keypoint_heatmap_sigma: Width of the Gaussians in heatmap targets, in heatmap pixels.
        label_resample: Filter for segmentation maps. By default `resample`, as in the reference, which blends labels at
            borders into other classes; use 0 (nearest) for training.
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
    def size_hw(self) -> SizeHW:
        """Height and width of the model's input."""
        return height_width(self.size, "Sapiens2ImageProcessor.size")

    # ------------------------------------------------------------------ preprocessing

    def preprocess(
        self,
        images: ImageInput,
        segmentation_maps: ImageInput | None = None,
        boxes: Any = None,
        keypoints: Any = None,
        *,
        data_format: str | None = None,
        input_data_format: str | None = None,
        device: str | torch.device | None = None,
        disable_grouping: bool | None = None,
        return_tensors: str | None = None,
        **options: Unpack[Sapiens2ImageOptions],
    ) -> BatchFeature:
        """Prepare whole images, or crops of people.

        Args:
            images: An image or a list: PIL, numpy, torch, paths or URLs; values from 0 to 255 (for 0 to 1 pass
                `do_rescale=False`).
            segmentation_maps: Class of each pixel, one map for each image; returns `labels` [B, H, W].
            boxes: For each image a list of boxes (x, y, width, height) in pixels: each person is cropped to the input
                size. The result has the crops of all images in order.
            keypoints: For each image, for each box, keypoints (x, y, visibility) in pixels; returns `labels`
                [N, J, H/4, W/4] and `label_weights` [N, J] for training.
            data_format: ``"channels_first"`` (the default) or ``"channels_last"``, for `pixel_values`.
            input_data_format: ``"channels_first"`` or ``"channels_last"`` if the shape of an array is ambiguous.
            device: Device of the computation.
            disable_grouping: No effect: images are resized one by one.
            return_tensors: ``"pt"`` or ``"np"`` to stack the batch; by default lists.
            options: Options of the processor for this call.
        """
        used = self.with_options(**options)
        if segmentation_maps is not None and keypoints is not None:
            raise InputError(
                "segmentation_maps and keypoints: expected one of them, got both. Train one task at a time."
            )
        if keypoints is not None and boxes is None:
            raise InputError("keypoints: expected boxes too, which define the crop of each person. Pass boxes=…")
        pixels = as_pixels(images, input_data_format=input_data_format, device=device, channels=used.channels)
        people = None if boxes is None else _read_boxes(boxes, len(pixels))
        data: dict[str, Any] = {"pixel_values": in_data_format(used.prepare_images(pixels, people), data_format)}
        if people is not None and return_tensors is None:
            data["pixel_values"] = list(data["pixel_values"])
        if segmentation_maps is not None:
            data["labels"] = used._prepare_maps(segmentation_maps, [size_of(p) for p in pixels], people, device)
        if keypoints is not None and people is not None:
            data["labels"], data["label_weights"] = used._draw_targets(keypoints, people, device)
        return BatchFeature(data, return_tensors)

    def prepare_images(
        self,
        pixels: list[Tensor],
        people: Sequence[Tensor | Float32Array] | None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> list[Tensor] | Tensor:
        """Crop or resize images [3, H, W], then rescale and normalize them: float32 [3, h, w] each, crops stacked.

        Crops have the data type `dtype`. Nothing here synchronizes the device.
        """
        if people is not None:
            options: dict[str, Any] = {} if self.do_center_crop else {"dtype": dtype, **self.normalization}
            crops = [
                crop_boxes(image, boxes, self.size_hw, **options) for image, boxes in zip(pixels, people, strict=True)
            ]
            joined = crops[0] if len(crops) == 1 else torch.cat(crops)  # [N, 3, h, w]
            return self.normalize_pixels(self._crop_center(joined)).to(dtype) if self.do_center_crop else joined
        mode = resample_mode(self.resample)
        return [self.normalize_pixels(self._crop_center(self._fit(image, mode))) for image in pixels]

    def _fit(self, pixels: Tensor, mode: ResizeMode) -> Tensor:
        """Resize [C, H, W] to the input size, with black bars if the aspect ratio is preserved."""
        if not self.do_resize:
            return pixels
        if not self.do_pad:
            return resize(pixels, self.size_hw, mode=mode)
        inner = fit_inside_hw((pixels.shape[-2], pixels.shape[-1]), self.size_hw)
        return center_on_canvas(resize(pixels, inner, mode=mode), self.size_hw)

    def _crop_center(self, pixels: Tensor) -> Tensor:
        """Crop the center of [..., C, H, W] if the options say so."""
        if not self.do_center_crop:
            return pixels
        return center_on_canvas(pixels, height_width(self.crop_size, "Sapiens2ImageProcessor.crop_size"))

    def _prepare_maps(
        self, maps: ImageInput, sizes_hw: list[SizeHW], people: list[Tensor] | None, device: str | torch.device | None
    ) -> list[Tensor]:
        """Resize segmentation maps to the input size: a list of int64 [h, w]."""
        label_maps = [
            label_map[None].to(device or label_map.device) for label_map in read_label_maps(maps, sizes_hw)
        ]  # [1, H, W] each
        if self.do_reduce_labels:
            label_maps = [_reduce_labels(label_map) for label_map in label_maps]
        filter_number = self.resample if self.label_resample is None else self.label_resample
        if filter_number != _NEAREST and (self.do_resize or people is not None):
            warnings.warn(
                "segmentation_maps: labels are resampled like images, which creates wrong classes at borders. "
                "Pass label_resample=0 (nearest) unless you need the results of the reference.",
                VitruvianWarning,
                stacklevel=3,
            )
        if people is not None:
            crops = [
                _crop_labels(label_map, boxes, self.size_hw)
                if filter_number == _NEAREST
                else crop_boxes(label_map, boxes, self.size_hw)
                for label_map, boxes in zip(label_maps, people, strict=True)
            ]
            return [row[0].long() for crop in crops for row in self._crop_center(crop)]
        mode = resample_mode(filter_number)
        if filter_number != _NEAREST:  # only uint8 can be interpolated as it is
            label_maps = [
                label_map if label_map.dtype == torch.uint8 else label_map.float() for label_map in label_maps
            ]
        return [self._crop_center(self._fit(label_map, mode))[0].round().long() for label_map in label_maps]

    def _draw_targets(
        self, keypoints: Any, people: list[Tensor], device: str | torch.device | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Draw heatmap targets of all people: lists of [J, h, w] and [J]."""
        check_count("keypoints", keypoints, len(people))
        factor, (height, width) = self.keypoint_heatmap_downscale_factor, self.size_hw
        target_hw = (height // factor, width // factor)
        targets: list[Tensor] = []
        weights: list[Tensor] = []
        for points, boxes in zip(keypoints, people, strict=True):
            if len(points) != len(boxes):
                raise InputError(f"keypoints: expected one list for each of the {len(boxes)} boxes, got {len(points)}.")
            if not len(boxes):
                continue
            known = _read_keypoints(points, device)  # [n, J, 3]
            windows = crop_windows(boxes.to(known.device), self.size_hw)
            xy = image_to_crop_xy(known[..., :2], windows, target_hw)  # [n, J, 2]
            maps, weight = draw_heatmaps(xy, known[..., 2] > 0, size_hw=target_hw, sigma=self.keypoint_heatmap_sigma)
            targets += list(maps)
            weights += list(weight)
        return targets, weights

    # ------------------------------------------------------------------ postprocessing

    def post_process_pose_estimation(
        self,
        outputs: object,
        boxes: Any,
        outputs_flipped: object = None,
        kernel_size: int = 11,
        threshold: float | None = None,
        source_sizes: object = None,
        target_sizes: object = None,
    ) -> list[list[dict[str, Tensor]]]:
        """Decode heatmaps to keypoints in image pixels.

        Args:
            outputs: Output of `Sapiens2ForPoseEstimation` for the crops of all boxes, in order.
            boxes: The boxes of `preprocess`.
            outputs_flipped: Output for the mirrored crops, with `flip_pairs`, to average with.
            kernel_size: Size of the Gaussian that smooths heatmaps before refinement.
            threshold: Drop keypoints whose score is not above this.
            source_sizes: (height, width) of each image; needed with `target_sizes`.
            target_sizes: (height, width) of the coordinates, instead of those of the image.

        Returns:
            For each image a list of people: dicts of `keypoints` [J, 2] (x, y), `scores` [J], `labels` [J] (indices
            of the keypoints) and `bbox` [4] (x1, y1, x2, y2).
        """
        people = _read_boxes(boxes, len(boxes))
        sources = size_list("source_sizes", source_sizes, len(people))
        targets = size_list("target_sizes", target_sizes, len(people))
        if targets is not None and sources is None:
            raise InputError("target_sizes: expected source_sizes too. Pass both.")
        heatmaps = output_field(outputs, "heatmaps")
        if outputs_flipped is not None:
            heatmaps = (heatmaps + output_field(outputs_flipped, "heatmaps")) / 2
        count = sum(len(found) for found in people)
        if len(heatmaps) != count:
            raise InputError(f"boxes: expected one for each of the {len(heatmaps)} heatmaps, got {count}.")
        if not count:
            return [[] for _ in people]
        all_boxes = torch.cat(people).to(heatmaps.device)  # [N, 4]
        xy, scores = decode_heatmaps(heatmaps, kernel_size=kernel_size)  # [N, J, 2], [N, J]
        xy = crop_to_image_xy(xy, crop_windows(all_boxes, self.size_hw), heatmaps.shape[-2:])  # [N, J, 2]
        corners = torch.cat((all_boxes[:, :2], all_boxes[:, :2] + all_boxes[:, 2:]), dim=1)  # [N, 4]
        if sources is not None and targets is not None:
            factors = [
                [t[1] / s[1], t[0] / s[0]] for s, t, found in zip(sources, targets, people, strict=True) for _ in found
            ]
            factor = torch.tensor(factors, device=xy.device)  # [N, 2]
            xy, corners = xy * factor[:, None], corners * factor.repeat(1, 2)
        numbers = torch.arange(xy.shape[1], device=xy.device)
        keep = [slice(None) if threshold is None else score > threshold for score in scores]
        rows = iter(
            {"keypoints": xy[n][k], "scores": scores[n][k], "labels": numbers[k], "bbox": corners[n]}
            for n, k in enumerate(keep)
        )
        return [[next(rows) for _ in boxes_of_image] for boxes_of_image in people]

    def post_process_semantic_segmentation(
        self, outputs: object, target_sizes: object = None, return_segmentation_scores: bool = False
    ) -> list[Any]:
        """Return class maps, int64 [H, W] each.

        Args:
            outputs: Output of `Sapiens2ForSemanticSegmentation`.
            target_sizes: (height, width) of each result; by default the size of the logits.
            return_segmentation_scores: Return dicts of `segmentation` [H, W] and `segmentation_scores` [K, H, W].
        """
        logits = output_field(outputs, "logits")
        sizes = size_list("target_sizes", target_sizes, len(logits))
        if not return_segmentation_scores:
            sizes = sizes or [tuple(logits.shape[-2:])] * len(logits)
            return [resized_argmax(image, size) for image, size in zip(logits, sizes, strict=True)]
        scores = list(logits)
        if sizes is not None:
            scores = [bilinear(image, size) for image, size in zip(logits, sizes, strict=True)]
        return [BatchFeature({"segmentation": s.argmax(0), "segmentation_scores": s}) for s in scores]

    def post_process_normal_estimation(
        self,
        outputs: object,
        source_sizes: object = None,
        target_sizes: object = None,
        do_remove_padding: bool | None = None,
    ) -> list[dict[str, Tensor]]:
        """Return unit vectors, `normals` [3, H, W], without padding and resized.

        Args:
            outputs: Output of `Sapiens2ForNormalEstimation`.
            source_sizes: (height, width) of each image before preprocessing: removes the padding and resizes back.
            target_sizes: (height, width) of each result instead.
            do_remove_padding: Whether to remove the padding; by default if `source_sizes` are passed.
        """
        unit = F.normalize(output_field(outputs, "normals").float(), dim=1, eps=1e-8)
        maps = self._resize_maps(unit, source_sizes, target_sizes, do_remove_padding)
        return [{"normals": resized} for resized in maps]

    def post_process_pointmap_estimation(
        self,
        outputs: object,
        source_sizes: object = None,
        target_sizes: object = None,
        do_remove_padding: bool | None = None,
    ) -> list[dict[str, Tensor]]:
        """Return points, `pointmap` [3, H, W]: metric if the model predicts scales, else of the canonical camera.

        Arguments as for `post_process_normal_estimation`, with the output of `Sapiens2ForPointmapEstimation`.
        """
        points, scales = output_field(outputs, "pointmaps"), output_field(outputs, "scales")
        if scales is not None:
            points = points / scales[:, :, None, None]
        maps = self._resize_maps(points, source_sizes, target_sizes, do_remove_padding)
        return [{"pointmap": resized} for resized in maps]

    def post_process_albedo_estimation(
        self,
        outputs: object,
        source_sizes: object = None,
        target_sizes: object = None,
        do_remove_padding: bool | None = None,
    ) -> list[dict[str, Tensor]]:
        """Return RGB in [0, 1], `albedo` [3, H, W], without padding and resized.

        Arguments as for `post_process_normal_estimation`, with the output of `Sapiens2ForAlbedoEstimation`.
        """
        maps = self._resize_maps(
            output_field(outputs, "albedos").clamp(0, 1), source_sizes, target_sizes, do_remove_padding
        )
        return [{"albedo": resized} for resized in maps]

    def post_process_image_matting(
        self, outputs: object, target_sizes: object = None, backgrounds: ImageInput | None = None
    ) -> list[dict[str, Tensor | None]]:
        """Return resized mattes, and composite them.

        Args:
            outputs: Output of `Sapiens2ForImageMatting`.
            target_sizes: (height, width) of each result; by default the size of the mattes.
            backgrounds: One image for all, or one for each: PIL, numpy or torch, or a color as a [3, 1, 1] tensor;
                integers range from 0 to the maximum of their type, floating-point values from 0 to 1.

        Returns:
            Dicts of `alpha` [1, H, W], premultiplied `foreground` [3, H, W], and `composite`, uint8 [3, H, W] or None:
            foreground + (1 − alpha) · background.
        """
        parts = output_field(outputs, "foregrounds"), output_field(outputs, "alphas")
        mattes = torch.cat(parts, dim=1)  # [B, 4, H, W]
        sizes = size_list("target_sizes", target_sizes, len(mattes))
        images = None if backgrounds is None else [_read_background(b) for b in as_list(backgrounds)]
        if images is not None and len(images) == 1:
            images = images * len(mattes)
        check_count("backgrounds", images, len(mattes))
        results: list[dict[str, Tensor | None]] = []
        for index, matte in enumerate(mattes):
            if sizes is not None:
                matte = bilinear(matte, sizes[index]).clamp(0, 1)
            foreground, alpha = matte[:3], matte[3:]
            composite = None
            if images is not None:
                size_hw = (matte.shape[-2], matte.shape[-1])
                background = bilinear(images[index].to(matte), size_hw)  # [3, H, W]
                mixed = (foreground + (1 - alpha) * background).clamp(0, 1)
                composite = (mixed * (256 - 1e-3)).to(torch.uint8)  # [3, H, W]
            results.append({"foreground": foreground, "alpha": alpha, "composite": composite})
        return results

    def _resize_maps(
        self, maps: Tensor, source_sizes: object, target_sizes: object, do_remove_padding: bool | None
    ) -> list[Tensor]:
        """Remove the padding of maps [B, C, H, W] and resize each."""
        sources = size_list("source_sizes", source_sizes, len(maps))
        targets = size_list("target_sizes", target_sizes, len(maps)) or sources
        cut = sources is not None if do_remove_padding is None else do_remove_padding
        if cut and sources is None:
            raise InputError("do_remove_padding: expected source_sizes too, which define the padding. Pass them.")
        results = []
        for index, values in enumerate(maps):
            if cut and sources is not None:
                values = crop_padding(values, sources[index], self.size_hw)
            results.append(values if targets is None else bilinear(values, targets[index]))
        return results


def crop_padding(values: Tensor, source_hw: SizeHW, size_hw: SizeHW) -> Tensor:
    """Crop the padding of a map [C, H, W] of an image of `source_hw` that was padded to `size_hw`.

    A map of another size than the input is cropped in proportion; if the borders of the image are between its pixels,
    it is resized to the input size first.
    """
    inner = fit_inside_hw(source_hw, size_hw)
    starts = [(whole - side) // 2 for side, whole in zip(inner, size_hw, strict=True)]
    borders = zip(
        (*starts, *map(sum, zip(starts, inner, strict=True))), values.shape[-2:] * 2, size_hw * 2, strict=True
    )
    if any(border * actual % whole for border, actual, whole in borders):
        values = bilinear(values, size_hw)
    spans = []
    for start, side, whole, actual in zip(starts, inner, size_hw, values.shape[-2:], strict=True):
        spans.append(slice(start * actual // whole, (start + side) * actual // whole))
    return values[:, spans[0], spans[1]]


def _read_boxes(boxes: Any, count: int) -> list[Tensor]:
    """Read boxes (x, y, width, height), a list for each of `count` images: a list of float32 [n, 4]."""
    rows = boxes.tolist() if isinstance(boxes, np.ndarray | Tensor) else list(boxes)
    check_count("boxes", rows, count)
    found = []
    for number, row in enumerate(rows):
        try:
            table = torch.as_tensor(np.asarray(row, dtype=np.float32))
        except (TypeError, ValueError) as error:
            raise _bad_boxes(number, row) from error
        if not table.numel():
            table = table.reshape(0, 4)
        if table.ndim != 2 or table.shape[1] != 4:
            raise _bad_boxes(number, row)
        found.append(table)
    return found


def _bad_boxes(number: int, row: object) -> InputError:
    """Return the error for boxes that are not lists of four numbers."""
    return InputError(
        f"boxes: expected a list of [x, y, width, height] for each image, got {row!r} for image {number}. "
        "Nest them as [[[x, y, width, height], …], …]."
    )


def _read_keypoints(points: Any, device: str | torch.device | None) -> Tensor:
    """Read the keypoints of people, (x, y) or (x, y, visibility): float32 [n, J, 3]."""
    try:
        table = torch.as_tensor(np.asarray(points, dtype=np.float32), device=device)
    except ValueError as error:
        raise InputError("keypoints: expected the same number of keypoints for each person of an image.") from error
    if table.ndim != 3 or table.shape[-1] not in (2, 3):
        raise InputError(f"keypoints: expected (x, y, visibility) for each, got the shape {list(table.shape)}.")
    if table.shape[-1] == 2:
        table = F.pad(table, (0, 1), value=1.0)  # [n, J, 3]
    return table


def _reduce_labels(labels: Tensor) -> Tensor:
    """Subtract 1 from labels: 0 becomes 255 (ignore), and 255 stays."""
    lowered = labels.long() - 1
    return torch.where((labels == 0) | (labels == 255), 255, lowered).to(labels.dtype)


def _crop_labels(labels: Tensor, boxes: Tensor, size_hw: SizeHW) -> Tensor:
    """Crop boxes of a label map [1, H, W] with nearest sampling: [n, 1, h, w], 255 (ignore) beyond the image."""
    positions = torch.from_numpy(sample_positions(boxes.numpy(), size_hw)).to(labels.device)  # [n, 1 + w + h]
    _, *axes = torch.split(positions.round().long(), [1, size_hw[1], size_hw[0]], dim=1)  # [n, w], [n, h]
    samples = []
    for index, side in zip(axes, (labels.shape[-1], labels.shape[-2]), strict=True):
        samples.append((index.clamp(0, side - 1), (index >= 0) & (index < side)))
    (x, x_inside), (y, y_inside) = samples
    found = labels[0][y[:, :, None], x[:, None, :]].long()  # [n, h, w]
    return torch.where(y_inside[:, :, None] & x_inside[:, None, :], found, 255)[:, None]


def _read_background(background: ImageInput) -> Tensor:
    """Read a background as float32 [3, H, W] from 0 to 1."""
    if isinstance(background, np.ndarray | Tensor):
        pixels = channels_first(torch.as_tensor(background))
    else:
        pixels = image_to_tensor(load_image(background))
    return pixels.float() if pixels.is_floating_point() else pixels.float() / torch.iinfo(pixels.dtype).max
