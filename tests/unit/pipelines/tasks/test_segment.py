"""SAM 2 from prompts and of everything; semantic, instance and panoptic maps; features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.pipelines import NEEDS, opened, sample_image
from vitruvian import Sam2Session
from vitruvian.errors import InputError
from vitruvian.images.data_format import pixels_of
from vitruvian.images.rle import decode_rles
from vitruvian.pipelines.tasks.panoptic import _areas_and_boxes

SHOWN = sample_image(5, (50, 70))


class TestPrompts:
    @pytest.mark.parametrize(
        "prompt",
        [
            {"points": [[20, 30]], "labels": [1]},
            {"points": [[20, 30], [40, 10]], "labels": [1, 0]},
            {"boxes": [[5, 6, 40, 45]]},
            {"boxes": [[5, 6, 40, 45], [10, 2, 60, 30]]},
            {"points": [[[20, 30]], [[50, 40]]], "labels": [[1], [1]], "boxes": [[5, 6, 40, 45], [10, 2, 60, 49]]},
            {"masks": np.eye(32, dtype=np.float32)[None]},
        ],
        ids=["point", "points", "box", "boxes", "both", "mask"],
    )
    def test_results_are_those_of_a_session(self, prompt: dict[str, Any]) -> None:
        pipe = opened("segment", points=None)
        session = Sam2Session(pipe.model, pipe.processor).set_image(SHOWN)
        alone = set(prompt) == {"points", "labels"} and len(prompt["points"]) == 1
        asked = dict(prompt)
        if "points" in asked and np.ndim(asked["points"]) == 2:
            asked |= {"points": [asked["points"]], "labels": [asked["labels"]]}
        wanted = session.predict(**asked, multimask=alone).best()
        result = pipe(SHOWN, **prompt)
        assert result.kind == "segment"
        masks = decode_rles(result.rles).numpy() if len(result.rles) else np.zeros((0, 50, 70), bool)
        np.testing.assert_array_equal(masks, wanted.masks[:, 0].numpy())
        np.testing.assert_allclose(result.scores, wanted.scores[:, 0].numpy(), atol=1e-5)
        for mask, box in zip(masks, result.boxes_xyxy, strict=True):
            rows, columns = np.nonzero(mask)
            if len(rows):
                assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]

    def test_flat_lists_are_one_object(self) -> None:
        pipe = opened("segment", points=None)
        one = pipe(SHOWN, points=[20, 30])
        for points, labels in ([[20, 30]], None), ([[[20, 30]]], [[1]]), (np.array([[20, 30]]), np.array([1])):
            again = pipe(SHOWN, points=points, labels=labels)
            np.testing.assert_array_equal(again.scores, one.scores)
        assert len(pipe(SHOWN, boxes=[5, 6, 40, 45]).scores) == 1

    def test_three_masks(self) -> None:
        pipe = opened("segment")
        assert len(pipe(SHOWN, best=False).scores) == 3
        assert len(pipe(SHOWN, best=False, multimask=False).scores) == 1

    def test_more_objects_than_one_batch(self) -> None:
        pipe = opened("segment", points=None)
        boxes = [[x, 5, x + 20, 40] for x in range(40)] * 2
        result = pipe(SHOWN, boxes=boxes)
        np.testing.assert_allclose(result.scores[70], pipe(SHOWN, boxes=boxes[70]).scores[0], atol=1e-5)
        assert len(result.scores) == 80
        mask = np.eye(32, dtype=np.float32)  # for all objects
        result = pipe(SHOWN, boxes=boxes, masks=mask)
        alone = pipe(SHOWN, boxes=boxes[70], masks=mask)
        np.testing.assert_allclose(result.scores[70], alone.scores[0], atol=1e-5)

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            ({}, "prompts: expected points, boxes or masks"),
            ({"labels": [1], "masks": np.eye(8)}, "labels: expected points with them, got none"),
            ({"points": [[500, 20]]}, "points: expected x in 0…70 and y in 0…50"),
            ({"points": [1, 2, 3]}, "points: expected 2 numbers"),
            ({"points": [1, 2], "labels": [7]}, "labels: expected 1 .*, got 7"),
            ({"points": [1, 2], "labels": [1, 0]}, "labels: expected one label for each point"),
            ({"points": [1, 2], "labels": []}, "labels: expected at least one prompt"),
            ({"boxes": [30, 5, 20, 35]}, "boxes: expected x1 < x2"),
            ({"boxes": [90, 5, 99, 35]}, "boxes: expected a box that meets"),
            ({"boxes": [1, 2, 3]}, "boxes: expected 4 numbers"),
            (
                {"points": [1, 2], "boxes": [[5, 6, 40, 45], [10, 2, 60, 30]]},
                "prompts: expected as many objects in each, got 1 in points and 2 in boxes",
            ),
            ({"masks": np.ones(8)}, r"masks: expected \[h, w\] or \[P, h, w\], got \[8\]"),
            ({"masks": np.ones((1, 1, 8, 8))}, r"masks: expected .*, got \[1, 1, 8, 8\]"),
            ({"masks": np.ones((0, 8, 8))}, r"masks: expected .*, got \[0, 8, 8\]"),
            ({"points": [1, 2], "masks": np.ones((2, 8, 8))}, "masks: expected one mask, or one for each of 1 objects"),
        ],
    )
    def test_errors_name_the_options(self, prompt: dict[str, Any], message: str) -> None:
        pipe = opened("segment", points=None)
        with pytest.raises(InputError, match=f"^{message}") as caught:
            pipe(SHOWN, **prompt)
        assert "input_" not in str(caught.value)


class TestMasks:
    def test_a_call_and_run_return_the_same(self) -> None:
        pipe = opened("masks")
        found, again = pipe(SHOWN), pipe.run(SHOWN)
        assert (type(found), found.kind) == (type(again), "masks")
        np.testing.assert_array_equal(found.masks, again.masks)
        fewer = list(pipe([SHOWN] * 2, points_per_crop=1))
        assert [len(one) for one in fewer] == [len(pipe.run(SHOWN, points_per_crop=1))] * 2

    def test_masks_are_those_of_the_generator(self) -> None:
        pipe = opened("masks")
        known, found = pipe.generator.generate(pixels_of(SHOWN), pipe.options), pipe(SHOWN)
        np.testing.assert_array_equal(decode_rles(found.rles).numpy(), torch.stack(list(known.masks)).numpy())
        np.testing.assert_array_equal(found.scores, known.scores.float().numpy())

    def test_names_of_transformers(self) -> None:
        found = opened("masks")(SHOWN, output_bboxes_mask=True, output_rle_mask=True)
        assert len(found["masks"]) == len(found["scores"]) == len(found["rle_mask"]) == len(found) > 0
        assert found["masks"][0].shape == (50, 70)
        np.testing.assert_array_equal(found[-1], found["masks"][-1])
        np.testing.assert_array_equal(found["bounding_boxes"], found.boxes_xyxy)
        with pytest.raises(KeyError, match="expected one of masks, scores"):
            found["labels"]

    def test_points_per_batch_are_reduced_when_memory_runs_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pipe = opened("masks")
        wanted = pipe.run(SHOWN)
        asked: list[int] = []
        generate = pipe.generator.generate

        def tight(pixels: torch.Tensor, options: Any) -> Any:
            asked.append(options.points_per_batch)
            if options.points_per_batch > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return generate(pixels, options)

        monkeypatch.setattr(pipe.generator, "generate", tight)
        result = pipe.run(SHOWN, points_per_batch=9)
        assert asked == [9, 4, 2]
        np.testing.assert_allclose(np.sort(result.scores), np.sort(wanted.scores), atol=1e-5)

    def test_batches_are_made_of_points(self) -> None:
        with pytest.raises(InputError, match="points_per_batch"):
            opened("masks").run(SHOWN, batch_size=4)


class TestQueries:
    def outputs(self, pipe: Any) -> tuple[Any, Any]:
        inputs = pipe.processor(SHOWN, return_tensors="pt")
        with torch.inference_mode():
            return pipe.model(**inputs), inputs["pixel_mask"]

    def test_semantic(self) -> None:
        pipe = opened("semantic")
        out, mask = self.outputs(pipe)
        (wanted,) = pipe.processor.post_process_semantic_segmentation(out, target_sizes=[(50, 70)], pixel_mask=mask)
        result = pipe(SHOWN)
        np.testing.assert_array_equal(result.labels, wanted.numpy())
        assert result.id2label == {0: "sky", 1: "person", 2: "dog"}

    def test_instance(self) -> None:
        pipe = opened("instances")
        out, mask = self.outputs(pipe)
        (wanted,) = pipe.processor.post_process_instance_segmentation(
            out, target_sizes=[(50, 70)], pixel_mask=mask, threshold=0.0, return_binary_maps=True
        )
        result = pipe(SHOWN)
        assert len(result.scores) == len(wanted["segments_info"]) > 0
        np.testing.assert_array_equal(decode_rles(result.rles).numpy(), wanted["segmentation"].numpy())
        names = {0: "sky", 1: "person", 2: "dog"}
        assert result.label_names == tuple(names[info["label_id"]] for info in wanted["segments_info"])
        assert len(pipe(SHOWN, threshold=1.0).scores) == 0

    def test_panoptic(self) -> None:
        pipe = opened("panoptic")
        out, mask = self.outputs(pipe)
        (wanted,) = pipe.processor.post_process_panoptic_segmentation(
            out, target_sizes=[(50, 70)], pixel_mask=mask, **NEEDS["panoptic"]
        )
        result = pipe(SHOWN)
        np.testing.assert_array_equal(result.segmentation, wanted["segmentation"].numpy())
        assert sum(segment.area for segment in result.segments) == (result.segmentation > 0).sum()

    def test_areas_and_boxes_of_segments(self) -> None:
        ids = np.zeros((9, 12), np.int32)
        ids[2:5, 3:7] = 4
        ids[8, 11] = 1
        assert _areas_and_boxes(ids) == {4: (12, (3.0, 2.0, 7.0, 5.0)), 1: (1, (11.0, 8.0, 12.0, 9.0))}
        assert _areas_and_boxes(np.zeros((2, 2), np.int32)) == {}


def test_features() -> None:
    pipe = opened("embed")
    with torch.inference_mode():
        out = pipe.model(**pipe.processor(SHOWN, return_tensors="pt"))
    result = pipe(SHOWN)
    np.testing.assert_allclose(result.cls, out.pooler_output[0].numpy(), atol=1e-5)
    patches = out.last_hidden_state[0, 1 + pipe.model.config.num_register_tokens :]
    np.testing.assert_allclose(result.patches.reshape(-1, 32), patches.numpy(), atol=1e-5)
    assert result.patches.shape == (3, 2, 32)
