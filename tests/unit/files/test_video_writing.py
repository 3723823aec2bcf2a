"""Videos written, and read back by PyAV."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.files.clips import SIZE, av, make_clip, packets, shade
from vitruvian.errors import ImageError, InputError
from vitruvian.files.video import SequenceWriter, Sound, VideoReader, VideoWriter, _exact_rate, codec_for
from vitruvian.pipelines.video.resume_folder import _join_videos
from vitruvian.tasks import ALPHA_VIDEO_FORMATS, VIDEO_FORMATS

QUARTERS = ((200, 30, 40), (20, 180, 60), (40, 60, 220), (128, 128, 128))


def quarters(size_hw: tuple[int, int], alphas: tuple[int, ...] | None = None) -> np.ndarray:
    """An image of four colors, with four alphas."""
    height, width = size_hw
    index = (np.arange(height)[:, None] >= height // 2) * 2 + (np.arange(width) >= width // 2)
    image = np.array(QUARTERS, np.uint8)[index]
    if alphas is None:
        return image
    return np.concatenate([image, np.array(alphas, np.uint8)[index][..., None]], axis=-1)


def corners(image: np.ndarray) -> np.ndarray:
    """The middle of each quarter."""
    height, width = image.shape[:2]
    return np.stack([image[r * height // 4, c * width // 4] for r in (1, 3) for c in (1, 3)]).astype(int)


def decoded(path: Path, decoder: str | None = None, form: str = "rgb24") -> list[np.ndarray]:
    """All frames of a file, by PyAV alone."""
    with av.open(str(path)) as container:
        context = av.CodecContext.create(decoder, "r") if decoder else None
        frames = []
        for packet in container.demux(video=0):
            frames += context.decode(packet) if context else packet.decode()
        return [frame.to_ndarray(format=form) for frame in frames]


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [
        ("a.mp4", "h264", Fraction(30000, 1001)),
        ("a.mp4", "h264", Fraction(25)),
        ("a.mp4", "h264", Fraction(12, 5)),
        ("a.webm", "vp9", Fraction(25)),
        ("a.mov", "prores", Fraction(24000, 1001)),
    ],
)
def test_count_rate_size_and_colors(tmp_path: Path, name: str, codec: str, rate: Fraction) -> None:
    with VideoWriter(tmp_path / name, rate, SIZE) as writer:
        for _ in range(40):
            writer.write(quarters(SIZE))
    assert writer.count == 40
    frames = decoded(tmp_path / name)
    assert len(frames) == 40
    np.testing.assert_allclose(corners(frames[20]), QUARTERS, atol=4)
    with av.open(str(tmp_path / name)) as container:
        (video,) = container.streams
        assert video.codec_context.codec.canonical_name == codec
        assert video.average_rate == rate
        assert (video.height, video.width) == SIZE
        assert video.codec_context.colorspace == 1, "tagged as BT.709"
    reader = VideoReader(tmp_path / name)
    assert (reader.rate, reader.count) == (rate, 40)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.mov"])
def test_odd_sides(tmp_path: Path, name: str) -> None:
    with VideoWriter(tmp_path / name, 25, (49, 65)) as writer:
        writer.write(quarters((49, 65)))
    (frame,) = decoded(tmp_path / name)
    assert frame.shape == ((50, 66, 3) if name == "a.mp4" else (49, 65, 3))
    np.testing.assert_allclose(corners(frame), QUARTERS, atol=6)


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.mov"])
def test_times_of_a_variable_rate_are_kept(tmp_path: Path, name: str) -> None:
    times = [0.0, 0.04, 0.08, 0.2, 0.24, 0.5, 0.51, 1.0]
    with VideoWriter(tmp_path / name, 25, SIZE) as writer:
        for index, time in enumerate(times):
            writer.write(shade(index * 30), time)
    frames = list(VideoReader(tmp_path / name))
    np.testing.assert_allclose([time for _, time, _ in frames], times, atol=0.001 if name == "a.webm" else 1e-4)
    np.testing.assert_allclose([image.mean() for _, _, image in frames], np.arange(8) * 30, atol=4)
    assert VideoReader(tmp_path / name).duration == pytest.approx(1.04, abs=1e-3)


def test_times_that_stand_still_still_move_on(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", 25, SIZE) as writer:
        for time in (0.0, 0.0, -1.0):
            writer.write(shade(90), time)
    times = [time for _, time, _ in VideoReader(tmp_path / "a.mp4")]
    assert len(times) == 3
    assert times == sorted(set(times))


class TestAlpha:
    ALPHAS = (255, 128, 0, 64)

    @pytest.mark.parametrize(("name", "decoder"), [("a.webm", "libvpx-vp9"), ("a.mov", None)])
    @pytest.mark.parametrize("size", [SIZE, (49, 65)])
    def test_it_survives(self, tmp_path: Path, name: str, decoder: str | None, size: tuple[int, int]) -> None:
        with VideoWriter(tmp_path / name, 25, size, alpha=True) as writer:
            for _ in range(10):
                writer.write(quarters(size, self.ALPHAS))
        frames = decoded(tmp_path / name, decoder, "rgba")
        assert len(frames) == 10
        assert frames[5].shape == (*size, 4)
        actual = corners(frames[5])
        np.testing.assert_allclose(actual[:, 3], self.ALPHAS, atol=2)
        np.testing.assert_allclose(actual[:, :3], QUARTERS, atol=5)

    def test_browsers_are_told(self, tmp_path: Path) -> None:
        with VideoWriter(tmp_path / "a.webm", 25, SIZE, alpha=True) as writer:
            writer.write(quarters(SIZE, self.ALPHAS))
        with av.open(str(tmp_path / "a.webm")) as container:
            tags = {key.lower(): value for key, value in container.streams.video[0].metadata.items()}
        assert tags["alpha_mode"] == "1"

    def test_mp4_has_none(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"a\.mp4: expected \.mov, \.webm for video with alpha, got '\.mp4'"):
            VideoWriter(tmp_path / "a.mp4", 25, SIZE, alpha=True)


def copy_with_sound(clip: Path, target: Path, rate: int = 25) -> None:
    """Encode the frames of a clip again, and add its sound."""
    silent = target.with_stem("silent")
    with VideoWriter(silent, rate, SIZE) as writer:
        for _, time, image in VideoReader(clip):
            writer.write(image, time)
    _join_videos([(silent, 0.0)], target, alpha=False, sound_from=clip)


class TestSound:
    @pytest.mark.parametrize(
        ("codec", "source", "target"),
        [("aac", "a.mp4", "b.mp4"), ("aac", "a.mp4", "b.mov"), ("libmp3lame", "a.mp4", "b.mp4"),
         ("libopus", "a.mkv", "b.webm"), ("pcm_s16le", "a.mkv", "b.mov")],
    )  # fmt: skip
    def test_packets_are_copied(self, tmp_path: Path, codec: str, source: str, target: str) -> None:
        clip = make_clip(tmp_path / source, [shade(i) for i in range(50)], sound=codec)
        copy_with_sound(clip, tmp_path / target)
        # PCM has no packets of its own: containers cut it as they like.
        assert b"".join(packets(tmp_path / target, "audio")) == b"".join(packets(clip, "audio"))
        if codec != "pcm_s16le":
            assert len(packets(tmp_path / target, "audio")) == len(packets(clip, "audio"))
        reader = VideoReader(tmp_path / target)
        assert (reader.has_sound, len(list(reader))) == (True, 50)

    def test_sound_stays_with_its_images(self, tmp_path: Path) -> None:
        clip = make_clip(tmp_path / "a.mkv", [shade(i) for i in range(50)], sound="aac", start=25)
        copy_with_sound(clip, tmp_path / "b.mp4")
        before, after = times_of_sound(clip), times_of_sound(tmp_path / "b.mp4")
        # In the source the images start one second after the sound: what is heard before them is left out.
        assert 0.4 * len(before) < len(after) < 0.6 * len(before)
        assert min(after.values()) == pytest.approx(0, abs=0.1)
        for data, time in after.items():
            assert time == pytest.approx(before[data] - 1, abs=0.002)

    def test_sound_that_webm_cannot_hold_is_encoded_anew(self, tmp_path: Path) -> None:
        clip = make_clip(tmp_path / "a.mp4", [shade(i) for i in range(50)], sound="aac")
        copy_with_sound(clip, tmp_path / "b.webm")
        with av.open(str(tmp_path / "b.webm")) as container:
            audio = container.streams.audio[0]
            assert audio.codec_context.codec.canonical_name == "opus"
            frames = [frame.to_ndarray() for frame in container.decode(audio)]
        wave = np.concatenate(frames, axis=1)[0]
        assert len(wave) / 48_000 == pytest.approx(2, abs=0.05)
        spectrum = np.abs(np.fft.rfft(wave[4800:52800]))
        assert spectrum.argmax() == pytest.approx(440, abs=2), "the same tone"

    def test_sound_and_images_are_interleaved(self, tmp_path: Path) -> None:
        # Half a minute: the muxer waits ten seconds for sound, then goes on without.
        clip = make_clip(tmp_path / "a.mp4", [shade(i) for i in range(60)], rate=2, sound="aac")
        copy_with_sound(clip, tmp_path / "b.mp4", rate=2)
        with av.open(str(tmp_path / "b.mp4")) as container:
            actual = sorted((p.pos, p.stream.type, float(p.pts * p.time_base)) for p in container.demux() if p.size)
        reached = {"video": 0.0, "audio": 0.0}
        for _, kind, time in actual:  # in the order of the file
            reached[kind] = time
            assert abs(reached["video"] - reached["audio"]) < 2

    def test_a_source_without_sound(self, tmp_path: Path) -> None:
        clip = make_clip(tmp_path / "a.mp4", [shade(3)] * 3)
        copy_with_sound(clip, tmp_path / "b.mp4")
        assert not VideoReader(tmp_path / "b.mp4").has_sound

    def test_a_source_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("no")
        with av.open(str(tmp_path / "b.mp4"), "w") as output, pytest.raises(ImageError, match="a file with sound"):
            Sound.open(tmp_path / "a.txt", output)


def times_of_sound(path: Path) -> dict[bytes, float]:
    """When each packet of sound is heard, in seconds after the first image of its file says zero."""
    with av.open(str(path)) as container:
        actual = [packet for packet in container.demux(audio=0) if packet.size]
        return {bytes(packet): float(packet.pts * packet.time_base) for packet in actual}


class TestWholeOrNot:
    def test_nothing_is_left_after_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "a.mp4").write_text("old")
        with pytest.raises(RuntimeError), VideoWriter(tmp_path / "a.mp4", 25, SIZE) as writer:  # noqa: PT012
            for _ in range(80):  # the encoder holds the first ones back
                writer.write(shade(3))
            assert len(list(tmp_path.iterdir())) == 2
            raise RuntimeError
        assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]

    def test_no_images(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="at least one frame"), VideoWriter(tmp_path / "a.mp4", 25, SIZE):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_closing_twice_and_writing_after_that(self, tmp_path: Path) -> None:
        writer = VideoWriter(tmp_path / "a.mp4", 25, SIZE)
        writer.write(shade(3))
        writer.close()
        writer.close()
        writer.discard()
        assert (tmp_path / "a.mp4").exists()
        with pytest.raises(InputError, match="got a closed one"):
            writer.write(shade(3))


@pytest.mark.parametrize(
    "image", [np.zeros((48, 64, 4), np.uint8), np.zeros((48, 65, 3), np.uint8), np.zeros((48, 64, 3)), "no"]
)
def test_images_that_do_not_fit(tmp_path: Path, image: object) -> None:
    writer = VideoWriter(tmp_path / "a.mp4", 25, SIZE)
    with pytest.raises(InputError, match=r"image: expected uint8 \[48, 64, 3\], got"):
        writer.write(image)  # type: ignore[arg-type]
    writer.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rate", "exact"),
    [(25, Fraction(25)), (29.97, Fraction(30000, 1001)), (23.976, Fraction(24000, 1001)),
     (59.94, Fraction(60000, 1001)), (12.5, Fraction(25, 2)),
     (Fraction(30000, 1001), Fraction(30000, 1001)), (30.0, Fraction(30))],
)  # fmt: skip
def test_rates(rate: float, exact: Fraction) -> None:
    assert _exact_rate(rate) == exact


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_rates_that_are_none(rate: float) -> None:
    with pytest.raises(InputError, match="rate: expected frames a second above 0"):
        _exact_rate(rate)


def test_endings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected \.mov, \.mp4, \.webm for video, got '\.avi'"):
        VideoWriter(tmp_path / "a.avi", 25, SIZE)


class TestSequences:
    def test_numbered_images(self, tmp_path: Path) -> None:
        with SequenceWriter(tmp_path / "new" / "frame_%05d.png") as writer:
            for index in range(3):
                writer.write(shade(index * 50), index / 25)
        files = sorted((tmp_path / "new").iterdir())
        assert [file.name for file in files] == [f"frame_{i:05d}.png" for i in range(3)]
        assert [int(np.asarray(Image.open(file)).mean()) for file in files] == [0, 50, 100]

    def test_alpha(self, tmp_path: Path) -> None:
        image = quarters(SIZE, (255, 128, 0, 64))
        with SequenceWriter(tmp_path / "%d.webp") as writer:
            writer.write(image)
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "0.webp")), image)

    def test_names_have_one_number(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="one number such as %05d"):
            SequenceWriter(tmp_path / "%d_%d.png")


@pytest.mark.parametrize("file_format", VIDEO_FORMATS)
def test_formats_with_alpha_are_those_that_tasks_name(file_format: str) -> None:
    path = Path(f"a.{file_format}")
    if file_format in ALPHA_VIDEO_FORMATS:
        assert codec_for(path, alpha=True) != codec_for(path, alpha=False)
    else:
        with pytest.raises(InputError, match="video with alpha"):
            codec_for(path, alpha=True)
