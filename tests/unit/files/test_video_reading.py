"""Videos read frame by frame."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.unit.files.clips import SIZE, av, make_clip, shade
from vitruvian.errors import ImageError, InputError, MissingExtraError
from vitruvian.files.video import VideoReader, VideoWriter
from vitruvian.limits import use_limits


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 frames that brighten, with a keyframe every 12."""
    path = tmp_path_factory.mktemp("clips") / "a.mp4"
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=Fraction(30000, 1001), options={"crf": "10", "g": "12", "bf": "2"})
        video.height, video.width = SIZE
        video.pix_fmt = "yuv420p"
        for index in range(60):
            frame = av.VideoFrame.from_ndarray(shade(index * 4))
            frame.pts = index
            container.mux(video.encode(frame))
        container.mux(video.encode())
    return path


def test_what_is_known_of_a_clip(clip: Path) -> None:
    reader = VideoReader(clip)
    assert reader.rate == Fraction(30000, 1001)
    assert (reader.size_hw, reader.count, reader.has_sound, reader.rotation) == (SIZE, 60, False, 0)
    assert reader.duration == pytest.approx(60 * 1001 / 30000)
    assert len(list(reader)) == 60


def test_frames_in_order_with_their_times(clip: Path) -> None:
    reader = VideoReader(clip)
    frames = list(reader)
    assert [index for index, _, _ in frames] == list(range(60))
    np.testing.assert_allclose([time for _, time, _ in frames], np.arange(60) * 1001 / 30000, atol=1e-9)
    for index, _, image in frames:
        assert image.dtype == np.uint8
        assert image.shape == (*SIZE, 3)
        assert abs(image.mean() - index * 4) < 2
    assert len(list(reader)) == 60, "a reader can be read again"
    assert reader.damaged == 0


@pytest.mark.parametrize("start", [1, 11, 12, 13, 37, 59])
def test_a_start_in_the_middle_is_exact(clip: Path, start: int) -> None:
    reader = VideoReader(clip)
    assert reader._seek(start) is not None, "this clip can be sought"
    frames = list(reader.frames(start))
    assert [index for index, _, _ in frames] == list(range(start, 60))
    assert frames[0][1] == pytest.approx(start * 1001 / 30000)
    assert abs(frames[0][2].mean() - start * 4) < 2


def test_a_start_after_the_end_or_before_the_beginning(clip: Path) -> None:
    assert list(VideoReader(clip).frames(60)) == []
    with pytest.raises(InputError, match="at least 0, got -1"):
        next(VideoReader(clip).frames(-1))


def test_a_start_where_seeking_does_not_help(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = VideoReader(clip)
    monkeypatch.setattr(reader, "_seek", lambda start: None)
    frames = list(reader.frames(37))
    assert [index for index, _, _ in frames] == list(range(37, 60))
    assert abs(frames[0][2].mean() - 37 * 4) < 2


@pytest.mark.parametrize(("degrees", "corner"), [(0, (0, 0)), (90, (1, 0)), (180, (1, 1)), (-90, (0, 1))])
def test_rotation(tmp_path: Path, degrees: int, corner: tuple[int, int]) -> None:
    image = shade(0)
    image[: SIZE[0] // 2, : SIZE[1] // 2] = 255  # white at the top left
    path = make_clip(tmp_path / "a.mp4", [image] * 3, rotation=degrees)
    reader = VideoReader(path)
    assert reader.size_hw == (SIZE if degrees % 180 == 0 else SIZE[::-1])
    for _, _, actual in reader:
        assert actual.shape == (*reader.size_hw, 3)
        quarters = actual.mean(-1).reshape(2, reader.size_hw[0] // 2, 2, reader.size_hw[1] // 2).mean((1, 3))
        assert np.unravel_index(quarters.argmax(), (2, 2)) == corner
        assert actual.flags.c_contiguous


def test_times_start_at_zero_where_the_clip_does_not(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mkv", [shade(i * 20) for i in range(5)], start=50)
    reader = VideoReader(path)
    np.testing.assert_allclose([time for _, time, _ in reader], np.arange(5) / 25, atol=1e-3)
    assert [index for index, _, _ in reader.frames(3)] == [3, 4]


@pytest.mark.parametrize("tall", [False, True])
def test_untagged_colors_are_read_as_players_do(tmp_path: Path, tall: bool) -> None:
    size = (720, 64) if tall else (96, 64)
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=25, options={"crf": "1"})
        video.height, video.width = size
        video.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.broadcast_to(np.array([200, 30, 40], np.uint8), (*size, 3)).copy())
        frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709" if tall else "ITU601")
        frame.pts, frame.colorspace = 0, 2  # without saying which
        container.mux(video.encode(frame))
        container.mux(video.encode())
    _, _, image = next(iter(VideoReader(path)))
    np.testing.assert_allclose(image.reshape(-1, 3).mean(0), [200, 30, 40], atol=4)


class TestWhatIsNoVideo:
    @pytest.mark.parametrize("data", [b"", b"no video " * 50])
    def test_other_files(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "a.mp4").write_bytes(data)
        with pytest.raises(ImageError, match=r"a\.mp4: expected a video, got"):
            VideoReader(tmp_path / "a.mp4")

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match="file not found"):
            VideoReader(tmp_path / "a.mp4")

    def test_sound_alone(self, tmp_path: Path) -> None:
        from tests.unit.files.clips import tone

        with av.open(str(tmp_path / "a.wav"), "w") as container:
            audio = container.add_stream("pcm_s16le", rate=44_100, layout="stereo")
            container.mux(audio.encode(tone(0.2)))
        with pytest.raises(ImageError, match="a file without a video track"):
            VideoReader(tmp_path / "a.wav")

    def test_without_pyav(self, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "av", None)
        with pytest.raises(MissingExtraError, match=r'video files.*"vitruvian\[video\]"'):
            VideoReader(clip)


def test_damaged_packets_are_left_out_and_counted(clip: Path, tmp_path: Path) -> None:
    data = bytearray(clip.read_bytes())
    with av.open(str(clip)) as container:
        middle = [packet.pos for packet in container.demux(video=0) if packet.size][20]
    data[middle + 4 : middle + 12] = b"\xff" * 8
    (tmp_path / "a.mp4").write_bytes(data)
    reader = VideoReader(tmp_path / "a.mp4")
    frames = list(reader)
    assert 0 < len(frames) <= 60
    assert len(frames) + reader.damaged >= 60
    assert reader.damaged > 0
    assert frames[-1][1] == pytest.approx(59 * 1001 / 30000), "later frames keep their times"


def test_a_clip_that_breaks_off(tmp_path: Path) -> None:
    whole = make_clip(tmp_path / "whole.mkv", [shade(i * 4) for i in range(60)])
    data = whole.read_bytes()
    (tmp_path / "a.mkv").write_bytes(data[: len(data) // 2])
    actual = [(time, image.mean()) for _, time, image in VideoReader(tmp_path / "a.mkv")]
    assert 0 < len(actual) < 60
    np.testing.assert_allclose([mean for _, mean in actual], [time * 25 * 4 for time, _ in actual], atol=2)


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4", "a.mov", "a.avi"])
@pytest.mark.parametrize("start", [0, 2])
def test_the_end_of_a_file_is_checked(name: str, start: int, tmp_path: Path) -> None:
    path = tmp_path / name
    with av.open(str(path), "w", options={"movflags": "+faststart"} if name in ("a.mp4", "a.mov") else {}) as out:
        stream = out.add_stream("libx264", rate=25, options={"g": "10"})
        stream.height, stream.width = SIZE
        for index in range(60):
            noise = np.random.default_rng(index).integers(0, 255, (*SIZE, 3), dtype=np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(noise)))
        out.mux(stream.encode())
    reader = VideoReader(path)
    assert len(list(reader.frames(start))) == 60 - start
    reader.check_end()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    reader = VideoReader(path)
    count = start + len(list(reader.frames(start)))
    with pytest.raises(ImageError, match=rf"breaks off after frame {count} of 60\. Get the complete file"):
        reader.check_end()


# ---------------------------------------------------------------------------------------------- hostile files


def png_clip(path: Path, *, declared: int) -> Path:
    """Write a QuickTime file with PNG frames of 64 × 64 pixels whose headers declare another width and height."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("png", rate=25)
        video.height = video.width = 64
        video.pix_fmt = "rgb24"
        for index in range(12):
            container.mux(video.encode(av.VideoFrame.from_ndarray(shade(index, (64, 64)))))
        container.mux(video.encode())
    content = bytearray(path.read_bytes())
    frame = -1
    while (frame := content.find(b"IHDR", frame + 1)) >= 0:
        content[frame + 4 : frame + 12] = struct.pack(">II", declared, declared)
    entry = content.find(b"png ", content.find(b"stsd"))
    content[entry + 28 : entry + 32] = struct.pack(">HH", declared, declared)
    path.write_bytes(content)
    return path


def test_frames_that_are_too_large_are_refused_before_they_are_allocated(tmp_path: Path) -> None:
    path = png_clip(tmp_path / "bomb.mov", declared=16_000)  # 2.9 kB; a frame has 768 MB
    code = f"""
import resource
from vitruvian.errors import ImageError
from vitruvian.files.video import VideoReader
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    VideoReader({str(path)!r})
except ImageError as error:
    assert "frame_pixels" in str(error), error
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200_000  # kB


def test_the_limit_of_frames(clip: Path) -> None:
    with use_limits(frame_pixels=SIZE[0] * SIZE[1]):
        assert len(list(VideoReader(clip))) == 60
    with (
        use_limits(frame_pixels=SIZE[0] * SIZE[1] - 1),
        pytest.raises(ImageError, match=r"a\.mp4: expected at most 3,071 pixels, got 3,072\. .* frame_pixels"),
    ):
        VideoReader(clip)


@pytest.mark.parametrize("name", ["12:30.mp4", "concat:a|b.mp4", "100%.mp4", "file:a.mp4"])
def test_names_that_look_like_protocols(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(clip.read_bytes())
    assert len(list(VideoReader(name))) == 60
    with VideoWriter(f"out-{name}", 25, SIZE) as writer, VideoWriter(name, 25, SIZE) as again:
        writer.write(shade(9))
        again.write(shade(9))
    assert len(list(VideoReader(name))) == len(list(VideoReader(f"out-{name}"))) == 1


def test_no_file_causes_a_request(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        path = Path(f"http:/{address}/a.mp4")
        path.parent.mkdir(parents=True)
        path.write_bytes(clip.read_bytes())
        assert len(list(VideoReader(path))) == 60
        playlist = Path("playlist.mp4")
        playlist.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://{address}/a.ts\n#EXT-X-ENDLIST\n")
        with pytest.raises(ImageError):
            VideoReader(playlist)
        with pytest.raises(TimeoutError):
            server.accept()
