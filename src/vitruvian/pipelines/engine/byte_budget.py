"""`ByteBudget`: how much memory the decoded images of a run may take."""

from __future__ import annotations

import threading

from vitruvian.limits import get_limits


class ByteBudget:
    """The bytes of the images in flight, at most `Limits.decoded_bytes`. Thread-safe.

    An image waits until the others leave enough, so one that is larger than the whole budget waits until it is alone.
    Images that wait are served in order. The oldest image in flight does not wait: results are in order, and so the
    others are released after it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bytes: dict[int, int] = {}  # by the index of the image
        self._waiting: set[int] = set()
        self._oldest = 0
        self._closed = False

    def reserve(self, index: int, size: int) -> None:
        """Wait until `size` bytes are free for image `index`."""
        with self._changed:
            self._waiting.add(index)
            self._changed.wait_for(lambda: self._fits(index, size))
            self._waiting.remove(index)
            if self._closed:
                raise RuntimeError("the run was stopped")
            self._bytes[index] = size
            self._changed.notify_all()

    def _fits(self, index: int, size: int) -> bool:
        if self._closed or index == self._oldest or not self._bytes:
            return True
        others = sum(self._bytes.values()) - self._bytes.get(index, 0)
        return index == min(self._waiting) and others + size <= get_limits().decoded_bytes

    def resize(self, index: int, size: int) -> None:
        """Record what an image takes now, without waiting."""
        with self._changed:
            self._bytes[index] = size
            self._changed.notify_all()

    def release(self, index: int) -> None:
        """Free the bytes of the oldest image, which leaves the run."""
        with self._changed:
            self._bytes.pop(index, None)
            self._oldest = index + 1
            self._changed.notify_all()

    def close(self) -> None:
        """End the waiting of all threads; they raise."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
