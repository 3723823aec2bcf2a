"""State of trackers and filters as named arrays, to resume a video."""

from __future__ import annotations

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


def prefixed(prefix: str, state: State) -> State:
    """Return a state with a prefix before the names of its entries."""
    return {prefix + name: value for name, value in state.items()}


def substate(prefix: str, state: State) -> State:
    """Return the entries whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
