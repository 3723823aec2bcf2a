"""Keep a function out of compiled graphs without importing the compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function run as it is, also inside of a compiled model.

    So does `torch.compiler.disable`, but whoever decorates with it imports the compiler with all its tables: more than
    a second for each program that opens a model, most of which never compile it.
    """
    outside = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return outside(*args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)

    return call
