"""Anything that holds images opens as a source."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.pipelines import write_clip
from vitruvian.errors import ImageError, InputError
from vitruvian.pipelines.sources import Failure, Frame, open_source

HEIGHT, WIDTH = 12, 20


def image_of(value: int = 0) -> np.ndarray:
    """An image whose first pixel says which it is."""
    found = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
    found[0, 0] = value
    return found


def png(value: int = 0) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image_of(value)).save(file, format="PNG")
    return file.getvalue()


def noisy_png(value: int) -> bytes:
    """An image with noise in it, so that its file is not tiny."""
    noisy = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    noisy[0, 0] = value
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, format="PNG")
    return file.getvalue()


def frames(source: Any) -> list[Frame]:
    found = list(open_source(source))
    assert all(isinstance(one, Frame) for one in found), found
    return found  # type: ignore[return-value]


def values(source: Any) -> list[int]:
    """What the first pixel of each image says."""
    return [int(frame.image[0, 0, 0]) for frame in frames(source)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images 1 to 3, a text, a hidden file and a folder."""
    for number in (3, 1, 2):
        (tmp_path / f"frame_{number:04d}.png").write_bytes(png(number))
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "._frame_0001.png").write_bytes(b"\0\5\x16\7")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "deep.png").write_bytes(png(9))
    return tmp_path


class TestOneImage:
    @pytest.mark.parametrize(
        ("source", "name"),
        [
            (image_of(7), "array"),
            (torch.from_numpy(image_of(7)).permute(2, 0, 1), "array"),
            (Image.fromarray(image_of(7)), "PIL image"),
            (png(7), "bytes"),
            (io.BytesIO(png(7)), "bytes"),
            (Frame(image=image_of(7), name="mine"), "mine"),
        ],
        ids=["numpy", "torch", "pil", "bytes", "file object", "frame"],
    )
    def test_in_memory(self, source: Any, name: str) -> None:
        opened = open_source(source)
        assert opened.single
        assert opened.count == 1
        (frame,) = frames(opened)
        assert (frame.name, frame.image.dtype, frame.size_hw) == (name, np.uint8, (HEIGHT, WIDTH))
        assert frame.image[0, 0].tolist() == [7, 7, 7]

    @pytest.mark.parametrize("kind", [str, Path])
    def test_a_file(self, folder: Path, kind: type) -> None:
        path = folder / "frame_0002.png"
        opened = open_source(kind(path))
        (frame,) = frames(opened)
        assert opened.single
        assert (frame.path, frame.name, frame.image[0, 0, 0]) == (path, str(path), 2)

    def test_a_file_whose_name_looks_like_a_pattern(self, folder: Path) -> None:
        path = folder / "odd[1]_%d.png"
        path.write_bytes(png(5))
        assert open_source(path).single
        assert values(path) == [5]

    def test_base64(self) -> None:
        import base64

        plain = base64.b64encode(noisy_png(6)).decode()
        assert len(plain) > 255  # longer than any file's name
        for text in (plain, f"data:image/png;base64,{plain}"):
            assert open_source(text).single
            assert values(text) == [6]
            assert values([text]) == [6]

    def test_a_url_over_http(self, folder: Path) -> None:
        class Quiet(SimpleHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            good, bad, text = (f"{address}/{name}" for name in ("frame_0003.png", "gone.png", "notes.txt"))
            opened = open_source(good)
            assert opened.single
            (frame,) = frames(opened)
            assert (frame.name, frame.path, frame.image[0, 0, 0]) == (good, None, 3)
            (missing,) = open_source(bad)
            assert isinstance(missing, Failure)
            assert "404" in str(missing.error)
            assert bad in str(missing.error)
            (wrong,) = open_source(text)
            assert isinstance(wrong, Failure)
            assert "text file" in str(wrong.error)
        finally:
            server.shutdown()
            server.server_close()

    def test_a_video_s_url_is_refused(self) -> None:
        with pytest.raises(InputError, match="Download it first"):
            open_source("https://example.com/clip.mp4?x=1")

    def test_a_missing_file(self, folder: Path) -> None:
        (found,) = open_source(folder / "frame_0009.png")
        assert isinstance(found, Failure)
        assert isinstance(found.error, ImageError)
        assert "file not found" in str(found.error)

    @pytest.mark.parametrize("source", ["", None, 1.5, object()])
    def test_unsupported_sources_are_errors(self, source: Any) -> None:
        with pytest.raises(InputError, match="source"):
            open_source(source)


class TestMany:
    def test_a_folder_by_name(self, folder: Path) -> None:
        opened = open_source(folder)
        assert not opened.single
        assert opened.count == 3
        assert values(opened) == [1, 2, 3]
        assert [frame.index for frame in frames(folder)] == [0, 1, 2]

    @pytest.mark.parametrize(
        ("pattern", "wanted"), [("*.png", [1, 2, 3]), ("**/*.png", [1, 2, 3, 9]), ("*", [1, 2, 3])]
    )
    def test_a_glob(self, folder: Path, pattern: str, wanted: list[int]) -> None:
        assert sorted(values(str(folder / pattern))) == wanted

    def test_an_image_sequence_by_number(self, folder: Path) -> None:
        (folder / "frame_10000.png").write_bytes(png(100))
        (folder / "frame_5.png").write_bytes(png(55))  # too short a number for %04d
        found = frames(str(folder / "frame_%04d.png"))
        assert [frame.frame for frame in found] == [0, 1, 2, 3]  # counted, whatever their numbers
        assert [int(frame.image[0, 0, 0]) for frame in found] == [1, 2, 3, 100]

    @pytest.mark.parametrize("name", ["empty", "nothing_%d.png", "nothing*.png"])
    def test_empty_folders_and_globs(self, folder: Path, name: str) -> None:
        (folder / "empty").mkdir()
        with pytest.raises(InputError, match=r"no (file|numbered image) matches|expected"):
            open_source(str(folder / name))

    def test_a_batch(self) -> None:
        batch = np.stack([image_of(4), image_of(5)])
        assert open_source(batch).count == 2
        assert values(batch) == [4, 5]
        assert values(torch.from_numpy(batch).permute(0, 3, 1, 2)) == [4, 5]

    def test_a_list_of_mixed_sources(self, folder: Path) -> None:
        source = [image_of(8), folder, str(folder / "frame_0001.png"), [png(7)], str(folder / "nothing*.png")]
        opened = open_source(source)
        assert opened.count == 7
        found = list(opened)
        assert [int(one.image[0, 0, 0]) for one in found if isinstance(one, Frame)] == [8, 1, 2, 3, 1, 7]
        assert isinstance(found[-1], Failure)
        assert [one.index for one in found] == list(range(7))

    def test_an_empty_list(self) -> None:
        with pytest.raises(InputError, match="empty list"):
            open_source([])

    def test_a_generator_that_reuses_one_buffer(self) -> None:
        def camera() -> Iterator[np.ndarray]:
            buffer = image_of()
            for number in range(5):
                buffer[0, 0] = number
                yield buffer

        loaders = list(open_source(camera()).loaders())
        assert [int(loader.read(0).image[0, 0, 0]) for loader in loaders] == [0, 1, 2, 3, 4]  # type: ignore[union-attr]

    def test_a_bad_file_does_not_stop_the_rest(self, folder: Path) -> None:
        (folder / "frame_0002.png").write_bytes(png()[:40])
        found = list(open_source(folder))
        assert [isinstance(one, Failure) for one in found] == [False, True, False]
        assert found[1].name.endswith("frame_0002.png")


class TestVideo:
    @pytest.fixture
    def clip(self, tmp_path: Path) -> Path:
        frames = [np.full((48, 64, 3), number * 30, np.uint8) for number in range(7)]
        return write_clip(tmp_path / "clip.mp4", frames)

    def test_a_video(self, clip: Path) -> None:
        opened = open_source(clip)
        assert not opened.single
        assert opened.video is not None
        assert (opened.video.size_hw, opened.video.rate, opened.video.has_sound, opened.count) == (
            (48, 64),
            10,
            False,
            7,
        )
        found = frames(opened)
        assert [frame.frame for frame in found] == list(range(7))
        assert [frame.time for frame in found] == pytest.approx([n / 10 for n in range(7)])
        assert [round(float(frame.image.mean()) / 30) for frame in found] == list(range(7))

    def test_a_missing_video(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match="file not found"):
            open_source(tmp_path / "gone.mp4")

    @pytest.mark.parametrize("source", [97, "camera:97"])
    def test_a_missing_camera(self, source: Any) -> None:
        pytest.importorskip("av")
        opened = open_source(source)
        assert opened.live
        with pytest.raises(InputError, match="camera:97"):
            list(opened)

    def test_cameras_of_other_platforms(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("av")
        monkeypatch.setattr(sys, "platform", "win32")
        with pytest.raises(InputError, match="camera:0: expected Linux or macOS, got win32"):
            list(open_source(0))


class TestFocalLength:
    @staticmethod
    def with_exif(path: Path, tags: dict[int, Any], size: tuple[int, int] = (400, 300), turned: bool = False) -> Path:
        exif = Image.Exif()
        exif.get_ifd(0x8769).update(tags)
        if turned:
            exif[0x0112] = 6
        Image.new("RGB", size).save(path, exif=exif)
        return path

    def test_from_35mm_equivalent(self, tmp_path: Path) -> None:
        path = self.with_exif(tmp_path / "a.jpg", {0xA405: 26})
        (frame,) = frames(path)
        assert frame.exif_focal_px == pytest.approx(26 / 43.2666 * 500, rel=1e-4)
        (same,) = frames(path.read_bytes())
        assert same.exif_focal_px == frame.exif_focal_px
        (same,) = frames(Image.open(path))
        assert same.exif_focal_px == frame.exif_focal_px

    def test_of_a_rotated_image(self, tmp_path: Path) -> None:
        (frame,) = frames(self.with_exif(tmp_path / "a.jpg", {0xA405: 26}, turned=True))
        assert frame.size_hw == (400, 300)
        assert frame.exif_focal_px == pytest.approx(26 / 43.2666 * 500, rel=1e-4)

    def test_from_sensor_resolution(self, tmp_path: Path) -> None:
        # 5 mm at 4000 pixels an inch, of an image that was 800 wide and now is 400
        tags = {0x920A: 5.0, 0xA20E: 4000.0, 0xA210: 2, 0xA002: 800, 0xA003: 600}
        (frame,) = frames(self.with_exif(tmp_path / "a.jpg", tags))
        assert frame.exif_focal_px == pytest.approx(5 * 4000 / 25.4 / 2, rel=1e-4)

    @pytest.mark.parametrize("tags", [{}, {0xA405: 0}, {0x920A: 5.0}])
    def test_unknown(self, tmp_path: Path, tags: dict[int, Any]) -> None:
        (frame,) = frames(self.with_exif(tmp_path / "a.jpg", tags))
        assert frame.exif_focal_px is None
