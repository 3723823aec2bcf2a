"""A long 1080p video through the command line: memory, frames, frame rate and sound.

    python benchmarks/long_video.py [--seconds 180 --rate 24 --size 1080x1920 --task normals --frames FOLDER]

The video repeats the images in FOLDER (resized), or random ones. The model is small and has random weights, since the
video is what is measured. Slow: three minutes of 1080p take many.

Prints the seconds and frames per second, memory over time, and the numbers of frames, records and audio packets and the
frame rate before and after. The exit code is 1 if any of them changes, or if memory grows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from common.measure import MemorySampler, describe_memory, run_in_new_process
from common.random_inputs import TASKS, save_checkpoint, small_sapiens2, smooth_image
from numpy.typing import NDArray
from PIL import Image

from vitruvian.bench.timing import describe_machine

INPUT_HW = (256, 192)


def frames_to_repeat(folder: Path | None, size_hw: tuple[int, int]) -> list[NDArray[np.uint8]]:
    """Return the images of a folder, or moving random colors."""
    if folder is not None:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".png"))
        return [np.asarray(Image.open(path).convert("RGB").resize((size_hw[1], size_hw[0]))) for path in paths]
    smooth = smooth_image(size_hw, np.random.default_rng(0))
    return [np.roll(smooth, 8 * number, 1) for number in range(24)]


def write_video(path: Path, images: list[NDArray[np.uint8]], count: int, rate: Fraction) -> None:
    """Write H.264 with AAC sound."""
    hertz = 44_100
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=rate, options={"crf": "23", "preset": "ultrafast"})
        video.height, video.width = images[0].shape[:2]
        video.pix_fmt = "yuv420p"
        sound = container.add_stream("aac", rate=hertz, layout="mono")
        frames = [av.VideoFrame.from_ndarray(image).reformat(format="yuv420p") for image in images]
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


def video_facts(path: Path) -> tuple[int, Fraction, list[bytes]]:
    """Return the number of frames, the frame rate and the audio packets."""
    with av.open(str(path)) as container:
        rate = container.streams.video[0].average_rate
        count = sum(1 for packet in container.demux(container.streams.video[0]) if packet.size)
    with av.open(str(path)) as container:
        sound = container.streams.audio
        packets = [bytes(packet) for packet in container.demux(sound[0]) if packet.size] if sound else []
    return count, rate, packets


def run_one(task: str, video: str, model: str, out: str) -> dict[str, Any]:
    """Run the command in this process."""
    from vitruvian.cli import run

    printed = io.StringIO()
    with MemorySampler(0.05) as memory, contextlib.redirect_stdout(printed):
        arguments = [task, video, "--model", model, "--out", out, "--save", "json,mp4", "--json", "--quiet"]
        code = run([*arguments, "--detect", "whole"])
    return {"code": code, "summary": json.loads(printed.getvalue().splitlines()[-1])} | memory.to_dict()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--rate", type=Fraction, default=Fraction(24))
    parser.add_argument("--size", default="1080x1920", help="height x width")
    parser.add_argument("--task", default="normals", choices=TASKS)
    parser.add_argument("--frames", type=Path, help="folder of images to repeat")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(*options.one)))
        return 0
    height, width = (int(side) for side in options.size.split("x"))
    count = int(options.seconds * options.rate)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_video(root / "clip.mp4", frames_to_repeat(options.frames, (height, width)), count, options.rate)
        save_checkpoint(small_sapiens2(options.task, INPUT_HW), root / "model")
        paths = [str(root / part) for part in ("clip.mp4", "model", "out")]
        found = run_in_new_process(__file__, "--one", options.task, *paths)
        if "error" in found:
            raise SystemExit(found["error"])
        source, written = video_facts(root / "clip.mp4"), video_facts(root / "out" / f"clip_{options.task}.mp4")
        records = (root / "out" / f"clip_{options.task}.jsonl").read_text().count("\n")
    print(describe_machine(torch.device("cpu")))
    print(f"{count} frames of {width}×{height} in {found['seconds']:.0f} s, {count / found['seconds']:.1f} a second")
    line, constant = describe_memory(found)
    print(line)
    same_sound = "identical" if source[2] == written[2] and written[2] else "NOT identical"
    print(f"frames {source[0]} → {written[0]}, records {records}; rate {source[1]} → {written[1]}; ", end="")
    print(f"sound: {len(source[2])} packets, {same_sound}")
    complete = found["code"] == 0 and source == written and records == count
    print("complete" if complete else f"NOT complete: {found['summary']}")
    return 0 if complete and constant else 1


if __name__ == "__main__":
    raise SystemExit(main())
