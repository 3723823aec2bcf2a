"""A long 1080p clip through the command line: memory, frames, rate and sound.

    python benchmarks/clip.py [--seconds 180 --rate 24 --size 1080x1920 --task normals --frames FOLDER]

The clip is made by repeating the pictures in FOLDER (scaled), or shapes that move where there is none; the model is a
thin one with random weights, since the video is what is measured. Slow: three minutes of 1080p take many.

Prints the seconds and frames a second, the highest memory in each eighth of the time, the number of frames, records and
packets of sound and the frame rate before and after, and whether all of it is kept. The exit code is 1 where it is not,
or where memory grows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from folder import INPUT_HW, Memory, memory_line
from measure import machine
from PIL import Image


def scenes(folder: Path | None, size_hw: tuple[int, int]) -> list[np.ndarray]:
    """Some pictures to repeat."""
    if folder is not None:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".png"))
        return [np.asarray(Image.open(path).convert("RGB").resize((size_hw[1], size_hw[0]))) for path in paths]
    coarse = np.random.default_rng(0).uniform(0, 255, (9, 16, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((size_hw[1], size_hw[0]), Image.Resampling.BICUBIC))
    return [np.roll(smooth, 8 * number, 1) for number in range(24)]


def make_clip(path: Path, pictures: list[np.ndarray], count: int, rate: Fraction) -> None:
    """Write H.264 with AAC sound."""
    hertz = 44_100
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=rate, options={"crf": "23", "preset": "ultrafast"})
        video.height, video.width = pictures[0].shape[:2]
        video.pix_fmt = "yuv420p"
        sound = container.add_stream("aac", rate=hertz, layout="mono")
        frames = [av.VideoFrame.from_ndarray(picture).reformat(format="yuv420p") for picture in pictures]
        played = 0
        for number in range(count):
            frame = frames[number % len(frames)]
            frame.pts = number
            container.mux(video.encode(frame))
            upto = int((number + 1) / rate * hertz)
            wave = (np.sin(np.arange(played, upto) * 440 * 2 * np.pi / hertz) * 8000).astype(np.int16)
            block = av.AudioFrame.from_ndarray(wave[None], format="s16", layout="mono")
            block.sample_rate, block.pts = hertz, played
            container.mux(sound.encode(block))
            played = upto
        container.mux(video.encode())
        container.mux(sound.encode(None))


def save_model(folder: Path, task: str) -> None:
    """Write a thin checkpoint with random weights: the video is what is measured."""
    import torch

    import vitruvian

    torch.manual_seed(0)
    shuffle = {
        "upsample_out_channels": [8, 4],
        "upsample_kernel_sizes": [3, 3],
        "use_pixel_shuffle": True,
        "conv_out_channels": [4],
        "conv_kernel_sizes": [3],
    }
    plain = {"upsample_out_channels": [8, 8], "conv_out_channels": [8]}
    cls, labels, head = {
        "pose": ("Sapiens2ForPoseEstimation", 308, plain),
        "parts": ("Sapiens2ForSemanticSegmentation", 29, plain),
        "normals": ("Sapiens2ForNormalEstimation", 3, shuffle),
        "matte": ("Sapiens2ForImageMatting", 4, shuffle),
    }[task]
    config = vitruvian.Sapiens2Config(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_attention_heads=1,
        intermediate_size=128,
        image_size=list(INPUT_HW),
        num_labels=labels,
        head_config=head,
    )
    getattr(vitruvian, cls)(config).save_pretrained(folder)
    vitruvian.Sapiens2ImageProcessor(size={"height": INPUT_HW[0], "width": INPUT_HW[1]}).save_pretrained(folder)


def facts(path: Path) -> tuple[int, Fraction, list[bytes]]:
    """Frames, rate, and the packets of the sound."""
    with av.open(str(path)) as container:
        rate = container.streams.video[0].average_rate
        count = sum(1 for packet in container.demux(container.streams.video[0]) if packet.size)
    with av.open(str(path)) as container:
        sound = container.streams.audio
        packets = [bytes(packet) for packet in container.demux(sound[0]) if packet.size] if sound else []
    return count, rate, packets


def run_one(task: str, clip: str, model: str, out: str) -> dict[str, Any]:
    """Run the command in this process."""
    from vitruvian.cli import run

    told = io.StringIO()
    with Memory() as memory, contextlib.redirect_stdout(told):
        start = time.perf_counter()
        code = run([task, clip, "--model", model, "--out", out, "--save", "json,mp4", "--json", "--quiet"])
        seconds = time.perf_counter() - start
    return {"code": code, "seconds": seconds, "summary": json.loads(told.getvalue().splitlines()[-1])} | memory.facts()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--rate", type=Fraction, default=Fraction(24))
    parser.add_argument("--size", default="1080x1920", help="height x width")
    parser.add_argument("--task", default="normals", choices=("pose", "parts", "normals", "matte"))
    parser.add_argument("--frames", type=Path, help="folder of pictures to repeat")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(*options.one)))
        return 0
    height, width = (int(side) for side in options.size.split("x"))
    count = int(options.seconds * options.rate)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make_clip(root / "clip.mp4", scenes(options.frames, (height, width)), count, options.rate)
        save_model(root / "model", options.task)
        words = [options.task, str(root / "clip.mp4"), str(root / "model"), str(root / "out")]
        done = subprocess.run([sys.executable, __file__, "--one", *words], check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        source, made = facts(root / "clip.mp4"), facts(root / "out" / f"clip_{options.task}.mp4")
        records = (root / "out" / f"clip_{options.task}.jsonl").read_text().count("\n")
    print(machine())
    print(f"{count} frames of {width}×{height} in {found['seconds']:.0f} s, {count / found['seconds']:.1f} a second")
    line, flat = memory_line(found)
    print(line)
    print(f"frames {source[0]} → {made[0]}, records {records}; rate {source[1]} → {made[1]}; ", end="")
    print(f"sound {len(source[2])} packets, {'the same' if source[2] == made[2] and made[2] else 'NOT the same'}")
    good = found["code"] == 0 and source == made and records == count
    print("all is kept" if good else f"NOT all is kept: {found['summary']}")
    return 0 if good and flat else 1


if __name__ == "__main__":
    raise SystemExit(main())
