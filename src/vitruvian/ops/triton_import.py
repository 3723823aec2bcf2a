"""`triton`, and `triton.language` as `tl`: what a module with kernels imports. None where Triton is not installed."""

from typing import TYPE_CHECKING

from vitruvian.ops.dispatch import HAS_TRITON

if HAS_TRITON or TYPE_CHECKING:
    import triton
    import triton.language as tl
else:
    triton = tl = None

__all__ = ["tl", "triton"]
