"""Pictures without people, to stand behind those that training draws: cut out of Debian's packages.

    apt-get download gnome-backgrounds lomiri-wallpapers-16.04 lomiri-wallpapers-20.04 mate-backgrounds \
        plasma-workspace-wallpapers sway-backgrounds ukui-wallpapers ufoai-textures \
        scratch gcompris-qt-data opencv-doc palapeli-data tuxpaint-stamps-default
    for file in *.deb; do dpkg-deb -x "$file" unpacked; done
    python recipes/backgrounds.py unpacked backgrounds
    python -m vitruvian.training.synthetic.build_pack people-assets people-pack.npz --backgrounds backgrounds

Photographs of places, animals and things count most; wallpapers and surfaces fill up, and things pasted onto either
make clutter. What shows people was left out by hand.
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
PICTURES = (".jpg", ".png", ".webp", ".gif")
PLACES = ("scratch/Media/Backgrounds", "opencv-doc/examples/data", "palapeli/collection")  # folders of photographs
STAMPS = "tuxpaint/stamps"  # things without a background
NOT_STAMPS = ("symbols", "people", "cartoon", "seasonal")
SURFACE_KINDS = (
    "buildings", "misc", "nature", "streets", "furniture", "vehicles", "shop", "material", "doors", "trak", "base",
    "tech",
)  # fmt: skip
# Beginnings of names: people, hands, drawn faces, diagrams and text.
LEFT_OUT = (
    "babyshapes", "hangman", "digital_electricity", "explore_world_music", "louis-braille", "details-002", "left",
    "right", "messi", "pca_test", "text_", "Blender", "HappyFish", "LinuxLogo", "WindowsLogo", "aero", "ellipses",
    "blox", "stars", "mural", "berkeley-mural", "pool", "playing-field", "explore_monuments-028",
    "explore_monuments-031", "explore_monuments-034", "explore_monuments-038", "categorization-085",
    "categorization-093", "licenseplate", "basketball1", "basketball2", "football-field", "imageText",
)  # fmt: skip


def embedded(bundle: Path) -> Iterator[Image.Image]:
    """Pictures inside a bundle of Qt resources: each has its length in front, four bytes, the highest first."""
    data = bundle.read_bytes()
    for mark in (b"\xff\xd8\xff", b"RIFF", b"\x89PNG\r\n"):
        at = data.find(mark)
        while at >= 0:
            length = int.from_bytes(data[at - 4 : at], "big")
            picture = opened(io.BytesIO(data[at : at + length])) if 2000 < length < 4_000_000 else None
            if picture is not None and min(picture.size) >= 200:
                yield picture
            at = data.find(mark, at + (length if picture is not None else 3))


def opened(source: Path | io.BytesIO) -> Image.Image | None:
    """A picture without transparency, or None where there is none."""
    try:
        with Image.open(source) as picture:
            return picture.convert("RGB") if picture.mode in ("RGB", "L", "P") else None
    except OSError:
        return None


def varied(picture: Image.Image, least: int = 30) -> bool:
    """Tell whether there is more to see than one shade."""
    low, high = picture.convert("L").resize((32, 32)).getextrema()
    return bool(high - low >= least)


def photographs(root: Path) -> Iterator[Image.Image]:
    """Photographs of places, animals and things, their short side 320 pixels."""
    found = [
        (f"{bundle.stem}-{i:03d}", p) for bundle in sorted(root.rglob("*.rcc")) for i, p in enumerate(embedded(bundle))
    ]
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() in PICTURES and any(place in str(path) for place in PLACES):
            picture = opened(path)
            found += [(path.name, picture)] if picture is not None else []
    for name, picture in found:
        if name.startswith(LEFT_OUT) or min(picture.size) < 180 or not varied(picture, 25):
            continue
        ratio = SIDE / min(picture.size)
        picture = picture.resize(
            (round(picture.width * ratio), round(picture.height * ratio)), Image.Resampling.LANCZOS
        )
        left, top = max(0, picture.width - LONGEST) // 2, max(0, picture.height - LONGEST) // 2
        yield picture.crop((left, top, picture.width - left, picture.height - top))


def wallpapers(root: Path, chance: random.Random) -> Iterator[Image.Image]:
    """Squares of several sizes out of wallpapers, eight from each."""
    for path in sorted(root.rglob("*")):
        large = path.suffix.lower() in PICTURES and path.stat().st_size > 60_000
        if not large or any(place in str(path) for place in (*PLACES, STAMPS)):
            continue
        picture = opened(path)
        if picture is None or min(picture.size) < 400:
            continue
        picture.thumbnail((2600, 2600), Image.Resampling.LANCZOS)
        for _ in range(8):
            side = min(round(max(SIDE, min(picture.size) * chance.choice((1, 0.8, 0.6, 0.45, 0.3)))), *picture.size)
            x, y = chance.randint(0, picture.width - side), chance.randint(0, picture.height - side)
            square = picture.crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            if varied(square):
                yield square


def surfaces(root: Path, chance: random.Random) -> Iterator[Image.Image]:
    """Walls, doors, ground and the like from the textures of a game."""
    for archive in sorted(root.rglob("*.pk3")):
        with zipfile.ZipFile(archive) as bundle:
            names = [
                name
                for name in bundle.namelist()
                if name.startswith(tuple(f"textures/tex_{k}/" for k in SURFACE_KINDS))
            ]
            names = [name for name in names if not Path(name).stem.endswith(("_nm", "_sm", "_gm", "_rm"))]
            for name in chance.sample(names, len(names)):
                picture = opened(io.BytesIO(bundle.read(name)))
                if picture is None or min(picture.size) < 128 or max(picture.size) > 2 * min(picture.size):
                    continue
                if varied(picture):
                    yield picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def collage(ground: Image.Image, stamps: list[Path], chance: random.Random) -> Image.Image:
    """Paste a few things onto a square of a picture."""
    x = chance.randint(0, ground.width - SIDE)
    out = ground.crop((x, 0, x + SIDE, SIDE))
    for _ in range(chance.randint(2, 6)):
        with Image.open(chance.choice(stamps)) as picture:
            thing = picture.convert("RGBA")
        thing.thumbnail((chance.randint(60, 260),) * 2, Image.Resampling.LANCZOS)
        if chance.random() < 0.5:
            thing = thing.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if chance.random() < 0.3:
            thing = thing.rotate(chance.uniform(-30, 30), expand=True, resample=Image.Resampling.BICUBIC)
        out.paste(thing, (chance.randint(-60, 280), chance.randint(-60, 280)), thing)
    return out


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, help="folder into which the packages were unpacked")
    parser.add_argument("out", type=Path, help="folder for the pictures")
    options = parser.parse_args()
    Image.MAX_IMAGE_PIXELS = 200_000_000
    chance = random.Random(7)
    options.out.mkdir(parents=True, exist_ok=True)
    real = list(photographs(options.packages))
    papers, walls = list(wallpapers(options.packages, chance)), list(surfaces(options.packages, chance))
    stamps = [
        path
        for path in sorted(options.packages.rglob("*.png"))
        if STAMPS in str(path) and path.stat().st_size > 25_000 and not any(word in str(path) for word in NOT_STAMPS)
    ]
    if not (real and papers and walls and stamps):
        raise SystemExit(f"{options.packages}: expected the unpacked packages, found too little of them.")
    grounds = (real, papers, walls)
    clutter = [collage(chance.choice(chance.choice(grounds)), stamps, chance) for _ in range(COLLAGES)]
    kinds = {
        "photograph": real,
        "wallpaper": chance.sample(papers, min(WALLPAPERS, len(papers))),
        "surface": chance.sample(walls, min(SURFACES, len(walls))),
        "collage": clutter,
    }
    for kind, pictures in kinds.items():
        for number, picture in enumerate(pictures):
            picture.save(options.out / f"{kind}-{number:04d}.jpg", quality=90)


if __name__ == "__main__":
    main()
