"""Every position an image can come from, and every wrong thing a person can pass instead."""

import base64
import contextlib
import io
import os
import sys
import threading
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.unit.images.samples import encode, exif_bytes, photo, photo_array
from vitruvian.errors import ImageError, InputError
from vitruvian.images import download as download_module
from vitruvian.images import load_image, load_images
from vitruvian.images.download import download, redacted_url
from vitruvian.limits import use_limits

PNG = encode(photo())


def assert_is_photo(image):
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image), photo_array())


def message(source, **options):
    """The one line that refuses `source`."""
    with pytest.raises(ImageError) as caught:
        load_image(source, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def image_path(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(PNG)
    return path


# ---------------------------------------------------------------- local sources


@pytest.mark.parametrize("convert", [str, Path, Image.open])
def test_paths_and_lazy_images(image_path, convert):
    assert_is_photo(load_image(convert(image_path)))


def test_open_file(image_path):
    with open(image_path, "rb") as stream:
        assert_is_photo(load_image(stream))


@pytest.mark.parametrize("convert", [bytes, bytearray, memoryview, io.BytesIO])
def test_bytes_and_buffers(convert):
    assert_is_photo(load_image(convert(PNG)))


def test_home_folder_is_expanded(image_path, monkeypatch):
    monkeypatch.setenv("HOME", str(image_path.parent))
    assert_is_photo(load_image("~/image.png"))


def test_name_says_nothing_about_the_format(tmp_path):
    for name in ("png.jpg", "no_extension", "ünïcode name.tif"):
        (tmp_path / name).write_bytes(PNG)
        assert_is_photo(load_image(tmp_path / name))


def test_file_object_is_read_from_its_start_and_left_open():
    stream = io.BytesIO()
    photo().save(stream, "PNG")
    assert_is_photo(load_image(stream))
    assert not stream.closed


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes have no name here")
def test_pipes_without_seek():
    reader, writer = os.pipe()
    with open(writer, "wb") as sink:
        sink.write(PNG)
    assert_is_photo(load_image(f"/dev/fd/{reader}"))
    os.close(reader)


def test_the_callers_image_is_not_changed():
    source = Image.open(io.BytesIO(encode(photo().convert("RGBA"), exif=exif_bytes(6))))
    loaded = load_image(source)
    assert (source.mode, source.size, loaded.size) == ("RGBA", (20, 24), (24, 20))
    plain = photo()
    load_image(plain).putpixel((0, 0), (9, 9, 9))
    assert_is_photo(plain)


@pytest.mark.parametrize("encoded", [base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes])
def test_base64_text(encoded):
    assert_is_photo(load_image(encoded(PNG).decode()))
    assert_is_photo(load_image(encoded(PNG).decode().rstrip("=\n")))


def test_data_addresses():
    text = base64.b64encode(PNG).decode()
    assert_is_photo(load_image(f"data:image/png;base64,{text}"))
    assert_is_photo(load_image(f" DATA:;BASE64,{text}"))
    percent = "".join(f"%{byte:02x}" for byte in PNG)
    assert_is_photo(load_image(f"data:image/png,{percent}"))


def test_a_file_beats_base64(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = base64.b64encode(encode(Image.new("L", (1, 1)), "GIF")).decode().replace("/", "_").rstrip("=")[:200]
    Path(name).write_bytes(PNG)
    assert_is_photo(load_image(name))


def test_lists_keep_their_nesting(image_path):
    nested = load_images([[image_path, PNG], [photo()], torch.from_numpy(photo_array())])
    assert [len(nested), len(nested[0]), len(nested[1])] == [3, 2, 1]
    for image in (*nested[0], *nested[1], nested[2], load_images(PNG)):
        assert_is_photo(image)
    batch = np.stack([photo_array(), photo_array()])
    for image in load_images(batch):
        assert_is_photo(image)
    assert load_images([]) == []


def test_lists_pass_options_on():
    clear = Image.new("RGBA", (1, 1))
    assert load_images([[clear]], background=(1, 2, 3))[0][0].getpixel((0, 0)) == (1, 2, 3)
    with pytest.raises(ImageError, match="at most 3 pixels"):
        load_images([photo()], max_pixels=3)


# ---------------------------------------------------------------- wrong sources


def test_missing_file_names_its_neighbors(image_path):
    text = message(image_path.with_name("imag.png"))
    assert "file not found" in text
    assert "Did you mean image.png?" in text
    assert "its folder does not exist" in message(image_path.parent / "nowhere" / "image.png")


def test_folder_empty_file_and_empty_string(tmp_path):
    (tmp_path / "empty.jpg").write_bytes(b"")
    assert "got a folder" in message(tmp_path)
    assert "got an empty file (0 bytes)" in message(tmp_path / "empty.jpg")
    assert "got an empty file (0 bytes)" in message(b"")
    assert "got an empty string" in message("")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission(image_path):
    image_path.chmod(0)
    assert "got Permission denied" in message(image_path)


def test_impossible_paths():
    assert "got" in message("a\0b")
    assert "got" in message("x." * 5000)


@pytest.mark.parametrize("source", [None, 3, {"path": "x"}, object()])
def test_unknown_types_are_named(source):
    assert f"got {type(source).__name__}" in message(source)


def test_list_points_to_load_images():
    assert "use load_images" in message([PNG])


def test_text_mode_and_closed_files(tmp_path):
    (tmp_path / "image.txt").write_text("some text")
    with open(tmp_path / "image.txt") as stream:
        assert 'Open it with mode "rb"' in message(stream)
    stream = io.BytesIO(PNG)
    stream.close()
    assert "expected a readable file object" in message(stream)


@pytest.mark.parametrize("address", ["s3://bucket/a.png", "ftp://host/a.png", "file:///tmp/a.png"])
def test_other_addresses_are_refused_by_scheme(address):
    assert f"got a {address.split(':')[0]} URL" in message(address)


def test_broken_data_addresses():
    assert "expected a comma" in message("data:image/png;base64")
    assert "expected base64 text" in message("data:image/png;base64,!!!")
    assert "got an SVG drawing" in message("data:image/svg+xml,%3Csvg%20xmlns='x'/%3E")


def test_text_that_is_base64_but_no_picture_is_a_missing_file():
    assert "file not found" in message(base64.b64encode(b"this is not an image at all").decode())


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"Dear all, this is a text file.\n" * 50, "a text file"),
        ("Größe und Fläche".encode(), "a text file"),
        ("\ufeffDear all".encode("utf-16"), "a text file"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "an HTML page"),
        (b"\n  <HTML lang=en>", "an HTML page"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "an SVG drawing"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"),
        (b"%PDF-1.7 ...", "a PDF document"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "a PostScript drawing"),
        (b"PK\x03\x04" + bytes(40), "a ZIP archive"),
        (b"\x1f\x8b\x08" + bytes(40), "a gzip archive"),
        (b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00mp42isom" + bytes(40), "a video"),
        (b"RIFF\x00\x00\x00\x00AVI LIST" + bytes(40), "an AVI video"),
        (b"\x1aE\xdf\xa3" + bytes(40), "a Matroska"),
        (b"\x93NUMPY" + bytes(40), "a NumPy array file"),
        (b"\x76\x2f\x31\x01" + bytes(40), "an OpenEXR image"),
        (b"\xfa\xce\xfa\xce\x80\x81" + bytes(40), "bytes of an unknown format (they start with fa ce"),
        (b"\x89PNG\r\n\x1a\n", "a damaged or unsupported PNG file"),
        (PNG[:40], "a damaged or unsupported PNG file"),
        (PNG[:16] + b"\x00\x00\x00\x00" + PNG[20:], "a damaged or unsupported PNG file"),
        (encode(photo(), "JPEG")[:20], "a damaged or unsupported JPEG file"),
        (encode(photo(), "WEBP")[:30], "a damaged or unsupported WEBP file"),
        (encode(photo(), "TIFF")[:12], "a damaged or unsupported TIFF file"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", "a damaged or unsupported HEIF file"),
    ],
)
def test_files_that_are_no_picture_say_what_they_are(content, what, tmp_path):
    path = tmp_path / "holiday.jpg"
    path.write_bytes(content)
    text = message(path)
    assert text.startswith(f"{path}: expected an image, got {what}")
    assert text.split(". ", 1)[1]  # what to do next


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "BMP", "GIF", "TIFF"])
def test_truncated_images(file_format):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), file_format)
    text = message(data[: int(len(data) * 0.6)])
    assert f"a truncated {file_format} file" in text or f"unsupported {file_format} file" in text
    assert "Copy or download it again" in text


def test_truncated_pil_image():
    data = encode(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)))
    assert "got a truncated" in message(Image.open(io.BytesIO(data[:6000])))


def test_damaged_pixels():
    data = bytearray(encode(photo(64, 64), "JPEG"))
    tables = data.index(b"\xff\xc4")
    data[tables + 5 : tables + 21] = b"\xff" * 16
    assert "a JPEG file with damaged pixel data" in message(bytes(data))


# ---------------------------------------------------------------- size limits


def bomb(width=30000, height=30000):
    """The header of a huge PNG, valid up to its first pixel."""
    small = bytearray(encode(Image.new("1", (8, 8))))
    small[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    small[29:33] = zlib.crc32(bytes(small[12:29])).to_bytes(4, "big")
    return bytes(small)


def test_bombs_are_refused_before_decoding():
    assert "30000×30000 = 900,000,000" in message(bomb())
    assert "expected at most 479 pixels, got 20×24 = 480" in message(PNG, max_pixels=479)
    assert "at most 479" in message(photo(), max_pixels=479)
    assert "at most 479" in message(photo_array(), max_pixels=479)
    assert_is_photo(load_image(PNG, max_pixels=480))


def test_lazy_pil_image_is_measured_before_decoding():
    source = Image.open(io.BytesIO(bomb(10000, 8000)))
    assert "80,000,000" in message(source, max_pixels=79_999_999)


def test_limits_are_ours_and_leave_pillow_alone(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for file_format in ("PNG", "JPEG", "BMP"):
            assert load_image(encode(photo(), file_format)).size == (20, 24)  # over twice Pillow's limit
    assert Image.MAX_IMAGE_PIXELS == 100


def test_pillows_own_limit_inside_a_plugin_is_explained(monkeypatch):
    def refuse(stream, name):
        raise Image.DecompressionBombError("too many")

    Image.preinit()
    monkeypatch.setitem(Image.OPEN, "PNG", (refuse, Image.OPEN["PNG"][1]))
    assert "raise that limit" in message(PNG)


def test_pillows_own_limit_while_decoding_is_explained(monkeypatch):
    source = photo()
    monkeypatch.setattr(source, "load", lambda: (_ for _ in ()).throw(Image.DecompressionBombWarning("too many")))
    assert "expected an image within PIL.Image.MAX_IMAGE_PIXELS" in message(source)


def test_threads_with_different_limits():
    def attempt(limit):
        try:
            return load_image(PNG, max_pixels=limit).size
        except ImageError:
            return None

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, [479, 480] * 40))
    assert results == [None, (20, 24)] * 40


# ---------------------------------------------------------------- HEIC


def test_heic_is_read_upright():
    pillow_heif = pytest.importorskip("pillow_heif")
    registered = "HEIF" in Image.OPEN
    stored = Image.fromarray(np.ascontiguousarray(photo_array(64, 48).transpose(1, 0, 2)[::-1]))
    stream = io.BytesIO()
    pillow_heif.from_pillow(stored).save(stream, quality=-1, chroma=444, exif=exif_bytes(6))
    loaded = load_image(stream.getvalue())
    assert loaded.size == (48, 64)
    assert np.abs(np.asarray(loaded).astype(int) - photo_array(64, 48)).mean() < 3
    assert ("HEIF" in Image.OPEN) == registered  # nothing was registered behind the caller's back
    assert "at most 56 pixels in HEIF" in message(stream.getvalue(), max_pixels=100)  # its decoder takes more memory


def test_heic_without_its_reader_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    text = message(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(40))
    assert text.endswith('Install its reader with: pip install "vitruvian[heif]"')


# ---------------------------------------------------------------- addresses


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        kind = self.path.split("?")[0]
        if kind == "/old.png":
            self.send_response(302)
            self.send_header("Location", "/image.png")
            self.end_headers()
        elif kind in ("/to-ftp.png", "/to-file.png", "/to-itself.png", "/to-local.png"):
            locations = {
                "/to-ftp.png": "ftp://127.0.0.1/image.png",
                "/to-file.png": "file:///etc/hostname",
                "/to-itself.png": "/to-itself.png",
                "/to-local.png": f"http://localhost:{self.server.server_port}/image.png",
            }
            self.send_response(302)
            self.send_header("Location", locations[kind])
            self.end_headers()
        elif kind == "/trickle.png":  # a byte at a time, each well within the timeout
            self.send_response(200)
            self.end_headers()
            self.trickle(PNG)
        elif kind == "/trickle-header.png":
            self.trickle(b"HTTP/1.1 200 OK\r\nServer: slow\r\n" * 100)
        elif kind == "/login.png":
            known = "Basic " + base64.b64encode(b"me:p@ss").decode()
            self.answer(PNG) if self.headers.get("Authorization") == known else self.send_error(401)
        elif kind == "/missing.png":
            self.send_error(404)
        elif kind == "/short.png":
            self.answer(PNG, length=len(PNG) + 100)
        elif kind == "/huge.png":
            self.answer(b"", length=10**12)
        elif kind == "/endless.png":
            self.answer(bytes(5000), length=None)
        elif kind == "/slow.png":
            time.sleep(1.0)
        elif kind == "/stalls.png":
            self.answer(PNG[:50], length=len(PNG), wait=1.0)
        elif kind == "/page.jpg":
            self.answer(b"<html>sign in</html>")
        elif kind == "/nothing.jpg":
            self.answer(b"")
        elif kind in ("/image.png", "/two%20words%20%C3%A9.png"):
            self.answer(PNG)
        else:
            self.send_error(500, f"unexpected {kind}")

    def answer(self, body, length=-1, wait=0.0):
        self.send_response(200)
        if length is not None:
            self.send_header("Content-Length", str(len(body) if length < 0 else length))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        time.sleep(wait)

    def trickle(self, content):
        with contextlib.suppress(OSError):  # until the client has enough
            for byte in content:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.1)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.mark.parametrize("name", ["image.png", "old.png", "image.png?size=a b", "two words é.png"])
def test_pictures_behind_addresses(server, name):
    assert_is_photo(load_image(f"{server}/{name}"))


def test_http_status_is_reported(server):
    text = message(f"{server}/missing.png")
    assert text.startswith(f"{server}/missing.png: expected an image, got HTTP status 404 Not Found")


def test_addresses_that_lead_to_something_else(server):
    assert "got an HTML page" in message(f"{server}/page.jpg")
    assert "got an empty file" in message(f"{server}/nothing.jpg")


def test_broken_downloads(server):
    assert f"got only {len(PNG)} of {len(PNG) + 100} bytes" in message(f"{server}/short.png")
    assert "expected at most 536,870,912 bytes, got 1,000,000,000,000" in message(f"{server}/huge.png")


def test_body_is_bounded_where_no_length_is_announced(server, monkeypatch):
    monkeypatch.setattr("vitruvian.limits._CHUNK_BYTES", 1000)
    with use_limits(download_bytes=2000), pytest.raises(ImageError, match="at most 2,000 bytes"):
        download(f"{server}/endless.png", timeout=5)
    with use_limits(download_bytes=5000):
        assert len(download(f"{server}/endless.png", timeout=5)) == 5000


@pytest.mark.parametrize("name", ["endless.png", "huge.png"])
def test_a_caller_may_allow_fewer_bytes(server, name):
    with pytest.raises(ImageError, match="at most 2,000 bytes") as caught:
        download(f"{server}/{name}", timeout=5, max_bytes=2000)
    assert caught.value.limit == "download_bytes"
    with use_limits(download_bytes=1000), pytest.raises(ImageError, match="at most 1,000 bytes"):
        download(f"{server}/{name}", timeout=5, max_bytes=2000)


@pytest.mark.parametrize("name", ["slow.png", "stalls.png"])
def test_silent_servers_time_out(server, name):
    assert "got no answer (timeout 0.2 s)" in message(f"{server}/{name}", timeout=0.2)


def test_unreachable_and_malformed_addresses(server):
    port = int(server.rsplit(":", 1)[1])
    assert "Check the URL and the network connection" in message(f"http://127.0.0.1:{port}1/x.png")
    for address in ("http://", "https://:x/", "http://[half/x.png"):
        assert "Check the URL" in message(address)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeout_is_checked(server, timeout):
    with pytest.raises(InputError, match="timeout: expected a positive number"):
        load_image(f"{server}/image.png", timeout=timeout)


def test_no_timeout_is_allowed(server):
    assert_is_photo(load_image(f"{server}/image.png", timeout=None))


@pytest.mark.parametrize("name", ["trickle.png", "trickle-header.png"])
def test_the_deadline_is_for_the_whole_download(server, name):
    with use_limits(download_seconds=1):
        assert "expected a download of at most 1 seconds, got a slower one" in message(f"{server}/{name}")
    for _ in range(100):
        if not any(thread.name == "vitruvian-download" for thread in threading.enumerate()):
            return
        time.sleep(0.05)
    pytest.fail("the thread of the download is still there")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("to-ftp.png", "got a redirect to a ftp URL"),
        ("to-file.png", "got a redirect to a file URL"),
        ("to-itself.png", "got more than 10 redirects"),
    ],
)
def test_redirects_that_are_refused(server, name, why):
    assert why in message(f"{server}/{name}")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"])
def test_private_addresses_are_refused_where_asked(server, host):
    port = server.rsplit(":", 1)[1]
    with pytest.raises(ImageError, match="got a host whose address is not public"):
        download(f"http://{host}:{port}/image.png", timeout=5, allow_private=False)


def test_the_address_is_checked_after_redirects(server, monkeypatch):
    is_public = download_module._is_public
    checked = []

    def first_is_public(address):
        checked.append(address)
        return len(checked) == 1 or is_public(address)

    monkeypatch.setattr(download_module, "_is_public", first_is_public)
    with pytest.raises(ImageError, match="got a host whose address is not public"):
        download(f"{server}/to-local.png", timeout=5, allow_private=False)
    assert len(checked) >= 2
    assert download(f"{server}/to-local.png", timeout=5) == PNG


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("224.0.0.1", False), ("0.0.0.0", False), ("::1", False),
        ("fe80::1%eth0", False), ("fd00::1", False), ("::ffff:10.0.0.1", False), ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False), ("64:ff9b::808:808", True), ("::127.0.0.1", False),
        ("fec0::1", False), ("64:ff9b:1::7f00:1", False), ("2002:7f00:1::", False),
    ],
)  # fmt: skip
def test_public_addresses(address, public):
    assert download_module._is_public(address) == public


def test_user_names_and_passwords_are_sent_and_not_shown(server):
    url = server.replace("//", "//me:p%40ss@")
    assert_is_photo(load_image(f"{url}/login.png"))
    text = message(f"{url}/missing.png?signature=secret#part")
    assert text.startswith(f"{server}/missing.png#sha256-")
    assert not any(word in text for word in ("me:", "p%40ss", "p@ss", "secret", "signature"))


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://host/a.png", "https://host/a.png"),
        ("https://me:secret@host:8080/a.png", "https://host:8080/a.png"),
        ("https://host/a.png?key=1", "https://host/a.png#sha256-a0c87a5fe45161ad"),
        ("https://me:secret@host/a.png?key=1", "https://host/a.png#sha256-a0c87a5fe45161ad"),
        ("https://[half/?key=secret", "https://…"),
        ("ftp://me:secret@host/a.png", "ftp://host/a.png"),
    ],
)
def test_redacted_urls(url, public):
    assert redacted_url(url) == public


def test_other_schemes_do_not_show_passwords():
    assert "secret" not in message("ftp://me:secret@host/a.png?key=secret")


def test_streams_and_data_urls_are_bounded():
    with use_limits(file_bytes=100):
        assert "data: URL: expected at most 100 bytes" in message("data:image/png;base64," + "A" * 200)
        assert "file object: expected at most 100 bytes" in message(io.BytesIO(bytes(101)))


@pytest.mark.parametrize("file_format", ["TGA", "ICO", "PCX", "DDS", "SGI", "ICNS"])
def test_formats_that_are_not_listed_are_refused(file_format):
    assert "Save it as PNG or JPEG first" in message(encode(photo(), file_format))


def test_pixels_are_limited_by_default():
    with use_limits(image_pixels=479):
        assert "expected at most 479 pixels, got 20×24 = 480" in message(PNG)
        assert_is_photo(load_image(PNG, max_pixels=480))
