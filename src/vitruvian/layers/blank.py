"""Models without values, to be filled from files: shapes on the meta device, and nothing drawn for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = {nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_}


@contextmanager
def blank() -> Iterator[None]:
    """Build modules on the meta device without their starting values.

    torch would draw numbers that nobody sees. For some of them on that device it even imports its compiler, which
    takes longer than to open most checkpoints.
    """
    with torch.device("meta"), NothingDrawn():
        yield


class NothingDrawn(TorchFunctionMode):
    """Leaves tensors as they are where random numbers would fill them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or return the tensor that it would draw."""
        given = kwargs or {}
        if func in DRAWS:
            return args[0] if args else given["tensor"]
        return func(*args, **given)
