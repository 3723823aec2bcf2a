"""LitServe around the reference's pose model, for serve.py; in a module that processes of LitServe can import."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

import litserve  # noqa: E402
import torch  # noqa: E402
from common.reference import load_reference  # noqa: E402
from PIL import Image  # noqa: E402


class PoseApi(litserve.LitAPI):  # type: ignore[misc,name-defined]
    """Poses of whole images: Pillow decodes, the processor and model of transformers do the rest, in batches."""

    def __init__(self, checkpoint: Path, **options: Any) -> None:
        super().__init__(**options)
        self.checkpoint = checkpoint

    def setup(self, device: str) -> None:
        from vitruvian.bench.workloads import reference_config

        transformers = load_reference()
        self.dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        values = json.loads((self.checkpoint / "config.json").read_text())
        config = transformers.Sapiens2Config.from_dict(reference_config(values))
        cls = transformers.Sapiens2ForPoseEstimation
        self.model = cls.from_pretrained(self.checkpoint, config=config, dtype=self.dtype).eval().to(device)
        height, width = values["image_size"]
        self.processor = transformers.Sapiens2ImageProcessor(size={"height": height, "width": width})
        self.on = device

    def decode_request(self, request) -> Image.Image:  # type: ignore[no-untyped-def]  # an annotation is a schema
        return Image.open(io.BytesIO(request["image"].file.read())).convert("RGB")

    def batch(self, inputs: list[Image.Image]) -> list[Image.Image]:
        return inputs

    @torch.inference_mode()
    def predict(self, images: list[Image.Image]) -> list[Any]:
        boxes = [[[0, 0, *image.size]] for image in images]
        inputs = self.processor(images, boxes=boxes, return_tensors="pt").to(self.on, self.dtype)
        people = self.processor.post_process_pose_estimation(self.model(**inputs), boxes=boxes)
        return [{name: value.float().cpu().tolist() for name, value in one[0].items()} for one in people]

    def unbatch(self, outputs: list[Any]) -> list[Any]:
        return outputs
