"""Exclude a function from compiled graphs without importing the compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def no_compile(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function eagerly, also when a compiled model calls it.

    The decorator `torch.compiler.disable` does the same, but imports the compiler: more than a second for each program
    that opens a model, most of which never compile it. Here it is imported only while a model is compiled.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            eager: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
            return eager(*args, **kwargs)
        return function(*args, **kwargs)

    return call
