"""Download images over http and https, within `Limits.download_bytes` and `Limits.download_seconds`.

A download runs in a thread of its own, so that the deadline covers name resolution, TLS, redirects and servers that
send a byte a second. User names, passwords, query strings and fragments of URLs do not appear in messages.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import http.client
import ipaddress
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from concurrent.futures import Future
from typing import IO, cast
from urllib.parse import SplitResult

from vitruvian.errors import ImageError, InputError, PrivateAddressError, one_line
from vitruvian.limits import get_limits, limit_hint, read_bounded

_SAFE = "%/:=&?~+!$,;'@()*[]"  # not quoted: URLs that were copied from a browser may be quoted already
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 10
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_CHECK = "Check the URL and the network connection."


def redacted_url(url: str) -> str:
    """Return a URL without user name, password, query and fragment, to be shown and stored.

    A digest in place of query and fragment tells URLs apart: ``https://host/image.png#sha256-0123456789abcdef``.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
    except ValueError:
        return f"{url.strip().partition('://')[0]}://…"
    public = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    if public.query or public.fragment:
        digest = hashlib.sha256(public.geturl().encode("utf-8", "surrogatepass")).hexdigest()
        public = public._replace(query="", fragment=f"sha256-{digest[:16]}")
    return public.geturl()


def download(url: str, *, timeout: float | None, allow_private: bool = True, max_bytes: int | None = None) -> bytes:
    """Return the body at `url`, after redirects.

    Args:
        url: An http or https URL.
        timeout: Seconds to wait for the server each time. None waits as long as the whole download may take.
        allow_private: Whether the host may have a private, loopback, link-local or otherwise not public address. If
            False, the address that is connected to is checked, also after redirects, and proxies are not used.
        max_bytes: Bytes of the body, if fewer than `Limits.download_bytes` are allowed.

    Raises:
        PrivateAddressError: The address of the host is not public, and `allow_private` is False.
        ImageError: The download fails, or is larger or slower than the limits allow.
    """
    if timeout is not None and not timeout > 0:
        raise InputError(f"timeout: expected a positive number of seconds or None, got {timeout}. Try 30.")
    seconds = get_limits().download_seconds
    transfer = _Transfer(
        url.strip(), seconds if timeout is None else timeout, allow_private=allow_private, max_bytes=max_bytes
    )
    threading.Thread(target=transfer.run, name="vitruvian-download", daemon=True).start()
    try:
        return transfer.body.result(seconds)
    except TimeoutError:
        raise ImageError(
            subject=transfer.subject,
            expected=f"a download of at most {seconds:,} seconds",
            got="a slower one",
            hint=f"Download the image first, or raise the limit download_seconds: {limit_hint('download_seconds')}.",
        ) from None
    finally:
        transfer.cancel()


class _Transfer:
    """One download. `run` fetches it in its own thread; `cancel` ends that from another."""

    def __init__(self, url: str, timeout: float, *, allow_private: bool, max_bytes: int | None) -> None:
        self._url, self._timeout, self._allow_private, self._max_bytes = url, timeout, allow_private, max_bytes
        self.subject = one_line(redacted_url(url))
        self.body: Future[bytes] = Future()
        self._socket: socket.socket | None = None
        self._cancelled = threading.Event()

    def run(self) -> None:
        """Fetch the body, or the error."""
        try:
            self.body.set_result(self._fetch())
        except ImageError as error:
            self.body.set_exception(error)
        except (http.client.HTTPException, ValueError, OSError) as error:
            reason = f"no answer (timeout {self._timeout} s)" if isinstance(error, TimeoutError) else one_line(error)
            self.body.set_exception(self._error(reason or type(error).__name__, _CHECK))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self.body.set_exception(error)

    def cancel(self) -> None:
        """Close the connection, which ends a read in `run`."""
        self._cancelled.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not that of SSLSocket, which drops its state

    def _error(self, got: str, hint: str) -> ImageError:
        return ImageError(subject=self.subject, expected="an image", got=got, hint=hint)

    def _fetch(self) -> bytes:
        """Return the body, after redirects."""
        url = self._url
        for _ in range(_MAX_REDIRECTS + 1):
            parts = urllib.parse.urlsplit(url)
            if parts.scheme not in ("http", "https"):
                raise self._error(f"a redirect to a {one_line(parts.scheme)} URL", "Use an http or https URL.")
            if not parts.hostname:
                raise self._error("a URL without a host", _CHECK)
            with contextlib.closing(self._connect(parts)) as connection:
                response = connection.getresponse()
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    return self._read(response)
                url = urllib.parse.urljoin(url, location.encode("latin-1").decode("utf-8", "replace"))
        raise self._error(f"more than {_MAX_REDIRECTS} redirects", "Use the URL that they lead to.")

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        """Return the whole body of a successful response."""
        if not 200 <= response.status < 300:
            got = f"HTTP status {response.status} {one_line(response.reason)}"
            raise self._error(got, "Check the URL, and that it needs no login.")
        length = response.headers.get("Content-Length", "")
        announced = int(length) if length.isdecimal() else 0
        limits = get_limits()
        if self._max_bytes is not None:
            limits = dataclasses.replace(limits, download_bytes=min(limits.download_bytes, self._max_bytes))
        limits.check("download_bytes", announced, subject=self.subject, error=ImageError)
        body = read_bounded(cast("IO[bytes]", response), "download_bytes", subject=self.subject, limits=limits)
        if len(body) < announced:  # a closed connection is not an error
            raise OSError(f"only {len(body):,} of {announced:,} bytes")
        return body

    def _connect(self, parts: SplitResult) -> http.client.HTTPConnection:
        """Open a connection and send the request."""
        host, secure, headers = cast("str", parts.hostname), parts.scheme == "https", _authorization(parts)
        query = f"?{parts.query}" if parts.query else ""
        target = urllib.parse.quote((parts.path or "/") + query, safe=_SAFE)
        proxy = urllib.request.getproxies().get(parts.scheme) if self._allow_private else None
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        if proxy is None or urllib.request.proxy_bypass(host):
            # without a port, http.client takes the end of an IPv6 address for one
            connection = kind(host, parts.port or kind.default_port, timeout=self._timeout)
            connection.sock = self._open_socket(host, connection.port)
            if secure:
                connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
        else:
            via = urllib.parse.urlsplit(proxy if "://" in proxy else f"//{proxy}")
            connection = kind(via.hostname or "", via.port, timeout=self._timeout)
            login = _authorization(via, "Proxy-Authorization")
            if secure:
                connection.set_tunnel(host, parts.port, login)
            else:
                target, headers = f"http://{parts.netloc.rpartition('@')[2]}{target}", headers | login
            connection.connect()
        self._socket = connection.sock
        if self._cancelled.is_set():  # before there was a connection to close
            raise OSError("cancelled")
        user_agent = {"User-Agent": "Mozilla/5.0 (compatible; vitruvian)"}
        connection.request("GET", target, headers=user_agent | headers)
        return connection

    def _open_socket(self, host: str, port: int) -> socket.socket:
        """Connect to the first address of a host that answers; addresses that are not public only if allowed."""
        problem: Exception = OSError("no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            if not self._allow_private and not _is_public(str(address[0])):
                problem = PrivateAddressError(
                    subject=self.subject,
                    expected="the URL of a public server",
                    got="a host whose address is not public",
                    hint="Download the image, and pass the file.",
                )
                continue
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(self._timeout)
            self._socket = connection
            try:
                connection.connect(address)
            except OSError as error:
                connection.close()
                problem = error
            else:
                return connection
        raise problem


def _is_public(address: str) -> bool:
    """Return whether an address, or the IPv4 address inside an IPv6 address, is reachable from the internet."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        ip = inner or ip
    odd = isinstance(ip, ipaddress.IPv6Address) and (ip.is_reserved or ip.is_site_local)  # such as ::127.0.0.1
    return ip.is_global and not ip.is_multicast and not odd


def _authorization(parts: SplitResult, header: str = "Authorization") -> dict[str, str]:
    """Return the header for the user name and password of a URL, if it has them."""
    if parts.username is None:
        return {}
    login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return {header: f"Basic {base64.b64encode(login.encode()).decode()}"}
