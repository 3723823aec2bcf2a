"""What Triton makes of kernels for a Hopper chip, which needs no GPU: some faults show only there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kernels.ways import INTERPRETED

pytestmark = pytest.mark.skipif(
    INTERPRETED or importlib.util.find_spec("triton") is None, reason="no Triton, or only its interpreter"
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(kernel: Any, constants: dict[str, Any], types: dict[str, str], warps: int, source: Any = None) -> str:
    """Return the PTX of a kernel; pointers are to bfloat16, other arguments 32-bit numbers, unless `types` says so."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    usual = {name: "*bf16" if name.endswith("_ptr") else "i32" for name in names}
    signature = usual | types | dict.fromkeys(constants, "constexpr")
    given = (source or ASTSource)(
        fn=kernel,
        signature={name: signature[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")},
    )
    made = triton.compile(given, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    return str(made.asm["ptx"])


def test_mask_upscaling_keeps_to_the_matrix_instructions_of_a_warp() -> None:
    """Those of four warps made accesses outside of shared memory."""
    from vitruvian.ops import mask_upscaling as op

    sizes = {"channels": 256, "middle": 64, "small": 32, "masks": 3, "padded_masks": op._PADDED_MASKS}
    sizes |= {"block_cells": op._BLOCK_CELLS, "eps": 1e-6}
    code = compiled(op._upscale_masks_kernel, sizes, {}, op._WARPS)
    assert "mma.sync" in code
    assert "wgmma" not in code


def test_cropping_and_decoding_keep_to_registers() -> None:
    """Each is one launch of many programs, which hide each other's waiting only where many fit on a chip."""
    from vitruvian.ops import crop, heatmap_peaks

    floats = dict.fromkeys(("f0", "f1", "f2", "s0", "s1", "s2"), "fp32")
    types = {"pixels_ptr": "*u8", "positions_ptr": "*fp32", **floats}
    sizes = {"block_rows": crop._BLOCK_ROWS, "block_columns": crop._BLOCK_COLUMNS}
    cropped = compiled(crop._crop_kernel, sizes, types, crop._NUM_WARPS)
    types = {"out_ptr": "*fp32", **{f"g{number}": "fp32" for number in range(6)}}
    found = compiled(heatmap_peaks._decode_kernel, {"chunk": 2048, "columns": 256}, types, 4)
    for code in (cropped, found):
        assert ".local" not in code
        assert "ld.global" in code
