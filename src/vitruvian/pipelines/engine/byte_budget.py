"""`ByteBudget`: how much memory the decoded images of a run may take."""

from __future__ import annotations

import threading
from collections.abc import Callable

from vitruvian.limits import get_limits


class ByteBudget:
    """The bytes of the images in flight, at most `Limits.decoded_bytes`. Thread-safe.

    The oldest image never waits, or nothing would be released. Others wait until enough is free, and are served in
    order; one that is larger than the whole budget waits until it is alone.

    Args:
        on_wait: Called when an image has to wait.
    """

    def __init__(self, on_wait: Callable[[], object] = lambda: None) -> None:
        self._on_wait = on_wait
        self._changed = threading.Condition()
        self._bytes: dict[int, int] = {}  # by the index of the image
        self._waiting: set[int] = set()
        self._oldest = 0
        self._closed = False

    def reserve(self, index: int, size: int) -> None:
        """Wait until `size` bytes are free for image `index`."""
        with self._changed:
            self._waiting.add(index)
            if not self._fits(index, size):
                self._on_wait()
            self._changed.wait_for(lambda: self._fits(index, size))
            self._waiting.remove(index)
            if self._closed:
                raise RuntimeError("the run was stopped")
            self._bytes[index] = size
            self._changed.notify_all()

    @property
    def exhausted(self) -> bool:
        """Whether images wait."""
        return bool(self._waiting)

    def _fits(self, index: int, size: int) -> bool:
        if self._closed or index == self._oldest:
            return True
        free = get_limits().decoded_bytes - sum(self._bytes.values())
        return index == min(self._waiting) and (size <= free or not self._bytes)

    def resize(self, index: int, size: int) -> None:
        """Record what an image takes now, without waiting."""
        with self._changed:
            self._bytes[index] = size
            self._changed.notify_all()

    def release(self, index: int) -> None:
        """Release the bytes of the oldest image."""
        with self._changed:
            self._bytes.pop(index, None)
            self._oldest = index + 1
            self._changed.notify_all()

    def close(self) -> None:
        """End the waiting of all threads; they raise."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
