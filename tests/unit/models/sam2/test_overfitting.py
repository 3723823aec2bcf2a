"""A tiny SAM 2 trained from nothing on two images: a click gives the object that was clicked, in every way in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from tests.families.sam2 import SIDE, tiny
from tests.helpers.shared_folder import SHARED, needs_shared
from vitruvian.models.sam2.automatic_masks import MaskProposals, Sam2AutomaticMaskGenerator
from vitruvian.models.sam2.image_session import Sam2Session
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2ImageProcessor, Sam2Processor


@dataclass
class Scene:
    """A image and the masks of its objects [P, H, W]."""

    image: Image.Image
    masks: np.ndarray


@dataclass
class Toy:
    model: Sam2Model
    processor: Sam2Processor
    scenes: list[Scene]
    losses: list[float]


def drawn() -> list[Scene]:
    """Two images with a disc and a block each, in other colors and at other places."""
    y, x = np.mgrid[0:80, 0:96]
    scenes = []
    for place, colors in (((26, 30), ((220, 60, 40), (40, 200, 90))), ((66, 28), ((240, 220, 60), (60, 80, 230)))):
        disc = (x - place[0]) ** 2 + (y - place[1]) ** 2 < 18**2
        block = (abs(x - (92 - place[0])) < 17) & (abs(y - 52) < 20) & ~disc
        pixels = np.full((80, 96, 3), 60, np.uint8)
        pixels[disc], pixels[block] = colors
        scenes.append(Scene(Image.fromarray(pixels), np.stack([disc, block])))
    return scenes


def photographed() -> list[Scene]:
    """Two photographs with their two largest objects."""
    folder = SHARED / "photos" / "coco"
    table = json.loads((folder / "instances.json").read_text())
    scenes = []
    for number in (36, 165):
        entry = next(image for image in table["images"] if image["id"] == number)
        own = [a for a in table["annotations"] if a["image_id"] == number and not a["iscrowd"]]
        masks = []
        for annotation in sorted(own, key=lambda a: -a["area"])[:2]:
            canvas = Image.new("1", (entry["width"], entry["height"]))
            for polygon in annotation["segmentation"]:
                ImageDraw.Draw(canvas).polygon(polygon, fill=1)
            masks.append(np.array(canvas))
        scenes.append(Scene(Image.open(folder / entry["file_name"]).convert("RGB"), np.stack(masks)))
    return scenes


def train(scenes: list[Scene], *, steps: int, rate: float, clicks: int = 4) -> Toy:
    """Click at random pixels of every object and learn its mask, as one of three and as the only one in turn."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    config = tiny()
    config.initializer_range = 0.2  # fit for a few dozen channels; 0.02 is for hundreds
    model = Sam2Model(config).train()
    size = {"height": SIDE, "width": SIDE}
    images = Sam2ImageProcessor(size=size, mask_size={"height": SIDE // 4, "width": SIDE // 4})
    processor = Sam2Processor(images)
    inputs = processor(
        images=[scene.image for scene in scenes],
        segmentation_maps=[scene.masks.astype(np.uint8).repeat(clicks, axis=0) for scene in scenes],
        return_tensors="pt",
    )
    sizes = [tuple(size) for size in inputs["original_sizes"].tolist()]
    places = [[np.argwhere(mask) for mask in scene.masks] for scene in scenes]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    losses = []
    for step in range(steps):
        points = [[[place[::-1].tolist()] for own in scene for place in random.choice(own, clicks)] for scene in places]
        loss = model(**inputs, **processor.prompts(sizes, points), multimask_output=step % 2 == 0).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return Toy(model.eval(), processor, scenes, losses)


@pytest.fixture(scope="module")
def toy() -> Toy:
    return train(drawn(), steps=150, rate=2e-3)


def overlap(a: Any, b: Any) -> float:
    a, b = np.asarray(a, bool), np.asarray(b, bool)
    return float((a & b).sum() / max(1, (a | b).sum()))


def inner_point(mask: np.ndarray) -> list[int]:
    """A pixel well inside a mask."""
    places = np.argwhere(mask)
    return places[np.abs(places - places.mean(axis=0)).sum(axis=1).argmin()][::-1].tolist()


def hits(toy: Toy, least: float) -> list[bool]:
    """Click at eight pixels of each object that no other has: did that object come, and no other?"""
    random, found = np.random.default_rng(1), []
    for scene in toy.scenes:
        for number, mask in enumerate(scene.masks):
            other = scene.masks[1 - number]
            points = [[place[::-1].tolist()] for place in random.choice(np.argwhere(mask & ~other), 8)]
            inputs = toy.processor(images=scene.image, input_points=[points], return_tensors="pt")
            with torch.no_grad():
                out = toy.model(**inputs)
            masks = toy.processor.post_process_masks(out.pred_masks, inputs["original_sizes"])[0]
            for three, scores in zip(masks, out.iou_scores[0], strict=True):
                best = three[scores.argmax()]
                assert best.shape == mask.shape
                found.append(overlap(best, mask) > least > overlap(best, other))
            assert (out.object_score_logits > 0).all()
    return found


def test_a_click_gives_the_object(toy: Toy) -> None:
    # A single click can still miss, so the last few steps are looked at together.
    assert np.median(toy.losses[-10:]) < 0.1 * toy.losses[0]
    assert np.mean(hits(toy, least=0.7)) > 0.9


@needs_shared
def test_a_click_on_a_photograph_gives_the_object() -> None:
    assert np.mean(hits(train(photographed(), steps=240, rate=3e-3), least=0.6)) > 0.6


def test_predicted_quality_is_close_to_the_true_one(toy: Toy) -> None:
    scene = toy.scenes[0]
    session = Sam2Session(toy.model, toy.processor).set_image(scene.image)
    found = session.click(*inner_point(scene.masks[0]))
    assert abs(found.scores.item() - overlap(found.masks[0, 0], scene.masks[0])) < 0.2


def test_automatic_masks_find_all_objects(toy: Toy) -> None:
    generator = Sam2AutomaticMaskGenerator(
        toy.model, toy.processor, points_per_crop=6, points_per_batch=8, pred_iou_thresh=0.6, stability_score_thresh=0.5
    )
    for scene, found in zip(toy.scenes, generator([scene.image for scene in toy.scenes]), strict=True):
        assert isinstance(found, MaskProposals)
        for mask in scene.masks:
            best = max(range(len(found)), key=lambda i: overlap(found.masks[i], mask))
            assert overlap(found.masks[best], mask) > 0.7


def test_interactive_session_segments_two_objects(toy: Toy) -> None:
    scene = toy.scenes[1]
    session = Sam2Session(toy.model, toy.processor).set_image(scene.image)
    session.click(*inner_point(scene.masks[0]))
    session.next_object()
    session.click(*inner_point(scene.masks[1]))
    assert [round(overlap(a, b)) for a, b in zip(session.masks, scene.masks, strict=True)] == [1, 1]
