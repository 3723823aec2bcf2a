"""State of trackers and filters as named arrays, to resume a video."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

State = dict[str, NDArray[np.generic]]


class Stateful:
    """Stores its state as arrays: the attributes in `state_fields`, those that are `Stateful` themselves nested."""

    state_fields: ClassVar[tuple[str, ...]]

    def state(self) -> State:
        """Return the state, for `restore`."""
        state: State = {}
        for name in self.state_fields:
            value = getattr(self, name)
            if isinstance(value, Stateful):
                state |= prefixed(f"{name}.", value.state())
            elif value is not None:
                state[name] = np.array(value)
        return state

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        for name in self.state_fields:
            value = getattr(self, name)
            if isinstance(value, Stateful):
                value.restore(substate(f"{name}.", state))
            else:
                array = state.get(name)
                setattr(self, name, array.item() if array is not None and array.ndim == 0 else array)


class Snapshots:
    """States of a tracker before frames where a segment of a video may end; frames before these may fail.

    Attributes:
        every: Store the state before each frame whose number is a multiple of this; 0 for none.
    """

    def __init__(self, every: int = 0) -> None:
        self.every = every
        self._states: dict[int, State] = {}

    def store_before(self, frame: int, previous: int, state: Callable[[], State]) -> None:
        """Store the state if a multiple of `every` lies after the previous frame and not after this one."""
        if self.every and frame // self.every != previous // self.every:
            self._states[frame - frame % self.every] = state()

    def state_before(self, frame: int, state: Callable[[], State]) -> State:
        """Return the state before a frame, by default that of now, and drop older ones."""
        first = min((number for number in self._states if number >= frame), default=None)
        found = state() if first is None else self._states[first]
        self._states = {number: stored for number, stored in self._states.items() if number > frame}
        return found


def prefixed(prefix: str, state: State) -> State:
    """Return a state with a prefix before the names of its entries."""
    return {prefix + name: value for name, value in state.items()}


def substate(prefix: str, state: State) -> State:
    """Return the entries whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
