"""Detection of people with Mask2Former and MaskFormer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.families.mask2former import tiny as tiny_mask2former
from tests.families.maskformer import tiny as tiny_maskformer
from vitruvian.errors import InputError
from vitruvian.models.mask2former.modeling import Mask2FormerForUniversalSegmentation
from vitruvian.models.mask2former.processing import Mask2FormerImageProcessor
from vitruvian.models.mask_classification.outputs import QueryLogits
from vitruvian.models.maskformer.modeling import MaskFormerForInstanceSegmentation
from vitruvian.models.maskformer.processing import MaskFormerImageProcessor
from vitruvian.pipelines.people import open_detector
from vitruvian.pipelines.people.segmentation_detector import SegmentationDetector


def detector_of(**options: Any) -> SegmentationDetector:
    torch.manual_seed(0)
    config = tiny_mask2former(id2label={0: "cat", 1: "person", 2: "sky"}, num_labels=3)
    processor = Mask2FormerImageProcessor(size={"shortest_edge": 64, "longest_edge": 128})
    return SegmentationDetector(Mask2FormerForUniversalSegmentation(config).eval(), processor, **options)


def queries(masks: NDArray[np.bool_], labels: list[int]) -> QueryLogits:
    """Sure queries with these masks [Q, h, w] and labels; 3 is no object."""
    classes = torch.nn.functional.one_hot(torch.tensor(labels), 4).float() * 8
    return QueryLogits(classes[None], torch.from_numpy(np.where(masks, 8.0, -8.0))[None].float())


class TestSegmenter:
    def test_boxes_of_people_only_without_specks(self) -> None:
        masks = np.zeros((5, 16, 24), np.bool_)
        masks[0, 2:12, 3:8] = True  # a person, with a speck far away
        masks[0, 15, 23] = True
        masks[1, 4:10, 12:20] = True  # a cat
        masks[2, 3:12, 3:8] = True  # the first person again
        masks[3, 0:8, 12:16] = True  # another person
        masks[4, 0:8, 0:8] = True  # no object
        pixel_mask = torch.ones(1, 64, 96)
        given = queries(masks, [1, 0, 1, 1, 3])
        given.classes[0, 2] *= 0.6
        people = detector_of(name="tiny")._people_of(given, pixel_mask, (128, 192))
        order = np.argsort(people.boxes_xyxy[:, 0])
        np.testing.assert_allclose(people.boxes_xyxy[order], [[24, 16, 64, 96], [96, 0, 128, 64]], atol=4)
        assert people.detector == "tiny"
        assert (people.scores > 0.9).all()

    def test_the_score_is_the_probability_of_a_person_among_all(self) -> None:
        logits = torch.tensor([[1.0, 2.0, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0]])
        two = detector_of()._person_logits(logits).softmax(-1)
        torch.testing.assert_close(two[:, 0], logits.softmax(-1)[:, 1])
        torch.testing.assert_close(two.sum(-1), torch.ones(2))

    def test_padding_is_left_out(self) -> None:
        masks = np.zeros((1, 16, 32), np.bool_)
        masks[0, 4:12, 8:16] = True
        pixel_mask = torch.zeros(1, 64, 128)
        pixel_mask[:, :, :64] = 1  # the right half is padding
        people = detector_of()._people_of(queries(masks, [1]), pixel_mask, (64, 64))
        np.testing.assert_allclose(people.boxes_xyxy, [[32, 16, 64, 48]], atol=2)

    def test_large_images_are_looked_at_in_a_megapixel(self) -> None:
        masks = np.zeros((1, 16, 16), np.bool_)
        masks[0, 4:12, 4:8] = True
        people = detector_of()._people_of(queries(masks, [1]), torch.ones(1, 64, 64), (4096, 4096))
        np.testing.assert_allclose(people.boxes_xyxy, [[1024, 1024, 2048, 3072]], atol=140)

    @pytest.mark.parametrize("family", ["mask2former", "maskformer"])
    def test_a_checkpoint_runs_from_pixels_to_boxes(self, tmp_path: Path, family: str) -> None:
        torch.manual_seed(1)
        model: Any
        if family == "mask2former":
            model = Mask2FormerForUniversalSegmentation(
                tiny_mask2former(id2label={0: "Person", 1: "b", 2: "c"}, num_labels=3)
            )
            Mask2FormerImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}).save_pretrained(tmp_path)
        else:
            model = MaskFormerForInstanceSegmentation(
                tiny_maskformer(id2label={0: "Person", 1: "b", 2: "c"}, num_labels=3)
            )
            MaskFormerImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}).save_pretrained(tmp_path)
        model.save_pretrained(tmp_path)
        detector = open_detector(str(tmp_path), device="cpu", threshold=0.05)
        assert isinstance(detector, SegmentationDetector)
        image = np.random.default_rng(0).integers(0, 256, (50, 90, 3), dtype=np.uint8)
        people = detector.detect(image)
        assert len(people) > 0  # untrained, at so low a threshold, it sees someone
        assert (people.boxes_xyxy >= 0).all()
        assert (people.boxes_xyxy <= [90, 50, 90, 50]).all()

    def test_a_model_without_people_is_refused(self) -> None:
        model = Mask2FormerForUniversalSegmentation(tiny_mask2former(id2label={0: "cat", 1: "dog"}, num_labels=2))
        with pytest.raises(InputError, match="label person"):
            SegmentationDetector(model, Mask2FormerImageProcessor())
