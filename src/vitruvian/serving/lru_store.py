"""`LruStore`: what clients have uploaded, for a time; the least recently used are evicted."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from vitruvian.serving.errors import not_found, too_large


@dataclass(eq=False, kw_only=True)
class StoredItem:
    """Something that was uploaded.

    Attributes:
        name: What the client calls it.
        size_hw: Height and width of the upright image or frame.
        owner: Name of the API key that it was uploaded with.
        id: Its id.
        expires: Monotonic time at which it is removed.
    """

    name: str
    size_hw: tuple[int, int]
    owner: str | None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    expires: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        raise NotImplementedError


ItemT = TypeVar("ItemT", bound=StoredItem)


class LruStore(Generic[ItemT]):
    """Stored items by id. Used by the event loop's thread only.

    Args:
        kind: What an item is, for messages.
        max_items: Number of items.
        max_bytes: Bytes of all items.
        seconds: How long an item stays after its last use.
        on_remove: Called with an item that is removed.
    """

    def __init__(
        self,
        kind: str,
        *,
        max_items: int,
        max_bytes: int,
        seconds: int,
        on_remove: Callable[[ItemT], object] = lambda _: None,
    ) -> None:
        self.kind, self._max_items, self._max_bytes, self.seconds = kind, max_items, max_bytes, seconds
        self._on_remove = on_remove
        self._items: OrderedDict[str, ItemT] = OrderedDict()  # the oldest use first

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return sum(item.nbytes for item in self._items.values())

    def add(self, item: ItemT) -> None:
        """Store an item; others are evicted for it."""
        if not self.fits(item.nbytes):
            raise too_large(self.kind, self._max_bytes, "bytes to store it", f"{item.nbytes:,}")
        self.remove_expired()
        self._items[item.id] = item
        self._touch(item)
        self.make_room(item)

    def fits(self, nbytes: int) -> bool:
        """Return whether an item of this size can be stored."""
        return nbytes <= self._max_bytes

    def make_room(self, item: ItemT) -> None:
        """Evict others for an item that was added, or has become larger."""
        others = [other for other in self._items.values() if other is not item]
        while others and (len(self._items) > self._max_items or self.nbytes > self._max_bytes):
            self._drop(others.pop(0))

    def get(self, item_id: str, owner: str | None) -> ItemT:
        """Return an item of this owner, or raise an error 404."""
        self.remove_expired()
        item = self._items.get(item_id)
        if item is None or item.owner != owner:
            hint = f"It may have expired: upload it again with POST /v1/{self.kind}s."
            raise not_found(self.kind, repr(item_id[:40]), hint)
        self._touch(item)
        return item

    def remove(self, item_id: str, owner: str | None) -> None:
        """Remove an item of this owner."""
        self._drop(self.get(item_id, owner))

    def remove_expired(self) -> None:
        """Remove items that were not used for a time."""
        now = time.monotonic()
        for item in [item for item in self._items.values() if item.expires < now]:
            self._drop(item)

    def _drop(self, item: ItemT) -> None:
        del self._items[item.id]
        self._on_remove(item)

    def _touch(self, item: ItemT) -> None:
        item.expires = time.monotonic() + self.seconds
        self._items.move_to_end(item.id)
