"""A JPEG file decoded by simplejpeg and by Pillow, alone and beside a thread that keeps the interpreter busy.

    python benchmarks/jpeg_decoding.py [--size 1080x1920 --rounds 60]

Both decode to the array that pipelines read. Prints the median of each in milliseconds, and whether the pixels agree.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

import numpy as np  # noqa: E402
from common.random_inputs import add_noise, smooth_image  # noqa: E402
from PIL import Image  # noqa: E402

from vitruvian.images.jpeg import decode_jpeg  # noqa: E402
from vitruvian.images.upright_rgb import to_array  # noqa: E402


def with_simplejpeg(data: bytes) -> np.ndarray:
    stream = io.BytesIO(data)
    pixels = decode_jpeg(Image.open(stream), stream)
    if pixels is None:
        raise SystemExit('simplejpeg is not installed: pip install "vitruvian[jpeg]"')
    return pixels


def with_pillow(data: bytes) -> np.ndarray:
    return to_array(Image.open(io.BytesIO(data)))


def median_ms(call: Callable[[], object], rounds: int) -> float:
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1080x1920", help="height x width")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    height, width = (int(side) for side in options.size.split("x"))
    generator, stream = np.random.default_rng(0), io.BytesIO()
    image = add_noise(smooth_image((height, width), generator), 6, generator)
    Image.fromarray(image).save(stream, "JPEG", quality=90)
    data = stream.getvalue()
    print(
        f"{options.size}, {len(data):,} bytes; same pixels: {np.array_equal(with_simplejpeg(data), with_pillow(data))}"
    )
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            sum(range(100))

    for busy in (False, True):
        thread = threading.Thread(target=keep_busy)
        if busy:
            thread.start()
        for name, decode in (("simplejpeg", with_simplejpeg), ("Pillow", with_pillow)):
            found = median_ms(lambda decode=decode: decode(data), options.rounds)  # type: ignore[misc]
            print(f"{name:10} {'beside a busy thread' if busy else 'alone':20} {found:6.1f} ms", flush=True)
    stop.set()


if __name__ == "__main__":
    main()
