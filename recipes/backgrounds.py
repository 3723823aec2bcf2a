"""Backgrounds for rendered people: images without people from Debian packages.

    apt-get download gnome-backgrounds lomiri-wallpapers-16.04 lomiri-wallpapers-20.04 mate-backgrounds \
        plasma-workspace-wallpapers sway-backgrounds ukui-wallpapers ufoai-textures \
        scratch gcompris-qt-data opencv-doc palapeli-data tuxpaint-stamps-default
    for file in *.deb; do dpkg-deb -x "$file" unpacked; done
    python recipes/backgrounds.py unpacked backgrounds
    python -m recipes.build_people_assets people-assets people-pack.npz --backgrounds backgrounds

Most are photographs of places, animals and objects, then wallpapers, surfaces, and collages of objects on either.
Images that show people are excluded by name.
"""

from __future__ import annotations

import argparse
import io
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

SIDE, LONGEST = 320, 480
WALLPAPERS, SURFACES, COLLAGES = 110, 70, 220
IMAGE_SUFFIXES = (".jpg", ".png", ".webp", ".gif")
PLACES = ("scratch/Media/Backgrounds", "opencv-doc/examples/data", "palapeli/collection")  # folders of photographs
STAMPS = "tuxpaint/stamps"  # objects without a background
NOT_STAMPS = ("symbols", "people", "cartoon", "seasonal")
SURFACE_KINDS = (
    "buildings", "misc", "nature", "streets", "furniture", "vehicles", "shop", "material", "doors", "trak", "base",
    "tech",
)  # fmt: skip
# Prefixes of names: people, hands, drawn faces, diagrams and text.
EXCLUDED = (
    "babyshapes", "hangman", "digital_electricity", "explore_world_music", "louis-braille", "details-002", "left",
    "right", "messi", "pca_test", "text_", "Blender", "HappyFish", "LinuxLogo", "WindowsLogo", "aero", "ellipses",
    "blox", "stars", "mural", "berkeley-mural", "pool", "playing-field", "explore_monuments-028",
    "explore_monuments-031", "explore_monuments-034", "explore_monuments-038", "categorization-085",
    "categorization-093", "licenseplate", "basketball1", "basketball2", "football-field", "imageText",
)  # fmt: skip


def qt_resource_images(bundle: Path) -> Iterator[Image.Image]:
    """Yield the images in a bundle of Qt resources; each is preceded by its length, four bytes, big-endian."""
    data = bundle.read_bytes()
    for mark in (b"\xff\xd8\xff", b"RIFF", b"\x89PNG\r\n"):
        at = data.find(mark)
        while at >= 0:
            length = int.from_bytes(data[at - 4 : at], "big")
            image = read_image(io.BytesIO(data[at : at + length])) if 2000 < length < 4_000_000 else None
            if image is not None and min(image.size) >= 200:
                yield image
            at = data.find(mark, at + (length if image is not None else 3))


def read_image(source: Path | io.BytesIO) -> Image.Image | None:
    """Read an image; None if it is none or has transparency."""
    try:
        with Image.open(source) as image:
            return image.convert("RGB") if image.mode in ("RGB", "L", "P") else None
    except OSError:
        return None


def has_contrast(image: Image.Image, least: int = 30) -> bool:
    """Tell whether the brightness varies by at least `least`."""
    low, high = image.convert("L").resize((32, 32)).getextrema()
    return bool(high - low >= least)


def photographs(root: Path) -> Iterator[Image.Image]:
    """Yield photographs of places, animals and objects, their short side 320 pixels."""
    found = [
        (f"{bundle.stem}-{i:03d}", p)
        for bundle in sorted(root.rglob("*.rcc"))
        for i, p in enumerate(qt_resource_images(bundle))
    ]
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() in IMAGE_SUFFIXES and any(place in str(path) for place in PLACES):
            image = read_image(path)
            found += [(path.name, image)] if image is not None else []
    for name, image in found:
        if name.startswith(EXCLUDED) or min(image.size) < 180 or not has_contrast(image, 25):
            continue
        ratio = SIDE / min(image.size)
        image = image.resize((round(image.width * ratio), round(image.height * ratio)), Image.Resampling.LANCZOS)
        left, top = max(0, image.width - LONGEST) // 2, max(0, image.height - LONGEST) // 2
        yield image.crop((left, top, image.width - left, image.height - top))


def wallpapers(root: Path, rng: random.Random) -> Iterator[Image.Image]:
    """Yield square crops of several sizes, eight from each wallpaper."""
    for path in sorted(root.rglob("*")):
        large = path.suffix.lower() in IMAGE_SUFFIXES and path.stat().st_size > 60_000
        if not large or any(place in str(path) for place in (*PLACES, STAMPS)):
            continue
        image = read_image(path)
        if image is None or min(image.size) < 400:
            continue
        image.thumbnail((2600, 2600), Image.Resampling.LANCZOS)
        for _ in range(8):
            side = min(round(max(SIDE, min(image.size) * rng.choice((1, 0.8, 0.6, 0.45, 0.3)))), *image.size)
            x, y = rng.randint(0, image.width - side), rng.randint(0, image.height - side)
            square = image.crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            if has_contrast(square):
                yield square


def surfaces(root: Path, rng: random.Random) -> Iterator[Image.Image]:
    """Yield textures of walls, doors and ground of a game."""
    for archive in sorted(root.rglob("*.pk3")):
        with zipfile.ZipFile(archive) as bundle:
            names = [
                name
                for name in bundle.namelist()
                if name.startswith(tuple(f"textures/tex_{k}/" for k in SURFACE_KINDS))
            ]
            names = [name for name in names if not Path(name).stem.endswith(("_nm", "_sm", "_gm", "_rm"))]
            for name in rng.sample(names, len(names)):
                image = read_image(io.BytesIO(bundle.read(name)))
                if image is None or min(image.size) < 128 or max(image.size) > 2 * min(image.size):
                    continue
                if has_contrast(image):
                    yield image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def collage(ground: Image.Image, stamps: list[Path], rng: random.Random) -> Image.Image:
    """Paste a few objects onto a square crop."""
    x = rng.randint(0, ground.width - SIDE)
    out = ground.crop((x, 0, x + SIDE, SIDE))
    for _ in range(rng.randint(2, 6)):
        with Image.open(rng.choice(stamps)) as image:
            stamp = image.convert("RGBA")
        stamp.thumbnail((rng.randint(60, 260),) * 2, Image.Resampling.LANCZOS)
        if rng.random() < 0.5:
            stamp = stamp.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if rng.random() < 0.3:
            stamp = stamp.rotate(rng.uniform(-30, 30), expand=True, resample=Image.Resampling.BICUBIC)
        out.paste(stamp, (rng.randint(-60, 280), rng.randint(-60, 280)), stamp)
    return out


def main() -> None:
    """Write the images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, help="folder into which the packages were unpacked")
    parser.add_argument("out", type=Path, help="folder for the images")
    options = parser.parse_args()
    Image.MAX_IMAGE_PIXELS = 200_000_000
    rng = random.Random(7)
    options.out.mkdir(parents=True, exist_ok=True)
    real = list(photographs(options.packages))
    crops_of_wallpapers, walls = list(wallpapers(options.packages, rng)), list(surfaces(options.packages, rng))
    stamps = [
        path
        for path in sorted(options.packages.rglob("*.png"))
        if STAMPS in str(path) and path.stat().st_size > 25_000 and not any(word in str(path) for word in NOT_STAMPS)
    ]
    if not (real and crops_of_wallpapers and walls and stamps):
        raise SystemExit(f"{options.packages}: expected the unpacked packages, found too little of them.")
    grounds = (real, crops_of_wallpapers, walls)
    clutter = [collage(rng.choice(rng.choice(grounds)), stamps, rng) for _ in range(COLLAGES)]
    kinds = {
        "photograph": real,
        "wallpaper": rng.sample(crops_of_wallpapers, min(WALLPAPERS, len(crops_of_wallpapers))),
        "surface": rng.sample(walls, min(SURFACES, len(walls))),
        "collage": clutter,
    }
    for kind, images in kinds.items():
        for number, image in enumerate(images):
            image.save(options.out / f"{kind}-{number:04d}.jpg", quality=90)


if __name__ == "__main__":
    main()
