"""Keep a function out of compiled graphs without importing the compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function run as it is, also inside of a compiled model.

    So does `torch.compiler.disable`, but whoever decorates with it imports the compiler: more than a second for each
    program that opens a model, most of which never compile it. Here it is asked for while a model is compiled.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            outside: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
            return outside(*args, **kwargs)
        return function(*args, **kwargs)

    return call
