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


def test_attention_of_groups_of_warps() -> None:
    import triton

    if not triton.__version__.startswith("3.6."):
        pytest.skip("another Triton")
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.experimental.gluon.language import NVMMASharedLayout

    from vitruvian.kernels import attention_hopper

    tile = f"tensordesc<bf16[1, 1, 64, 64],{NVMMASharedLayout(128, 16, rank=4)!r}>"
    sizes = {"heads": 16, "groups": 2, "head_dim": 64, "rows": 64, "columns": 64, "stages": 4, "parts": 3}
    sizes |= {"registers": attention_hopper.REGISTERS[3], "polynomials": 1, "unrolled": False}
    sizes |= {"q_bytes": 2, "o_bytes": 2}
    types = dict.fromkeys(("q_desc", "k_desc", "v_desc"), tile)
    code = compiled(attention_hopper._attend, sizes, types, 4, GluonASTSource)
    assert "wgmma.mma_async" in code
    assert code.count("wgmma.wait_group.sync.aligned 1") == 3  # scores are waited for, and values go on
    assert "st.global.v4" in code


def test_cropping_and_decoding_keep_to_registers() -> None:
    """Each is one launch of many programs, which hide each other's waiting only where many fit on a chip."""
    from vitruvian.kernels import peaks_triton
    from vitruvian.ops import crop

    floats = dict.fromkeys(("f0", "f1", "f2", "s0", "s1", "s2"), "fp32")
    types = {"pixels_ptr": "*u8", "positions_ptr": "*fp32", **floats}
    sizes = {"block_rows": crop._BLOCK_ROWS, "block_columns": crop._BLOCK_COLUMNS}
    cropped = compiled(crop._crop_kernel, sizes, types, crop._NUM_WARPS)
    types = {"out_ptr": "*fp32", **{f"g{number}": "fp32" for number in range(6)}}
    found = compiled(peaks_triton._find, {"chunk": peaks_triton.CHUNK, "columns": 256}, types, 4)
    for code in (cropped, found):
        assert ".local" not in code
        assert "ld.global" in code


@pytest.mark.parametrize("has_bias", [False, True])
def test_gated_products_of_groups_of_warps(has_bias: bool) -> None:
    """Both groups have matrix instructions of 256 columns, of which two are in flight, and nothing leaves registers."""
    import triton

    if not triton.__version__.startswith("3.6."):
        pytest.skip("another Triton")
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.experimental.gluon.language import NVMMASharedLayout

    from vitruvian.kernels import gated_hopper as module

    tiles = {"x": [module.ROWS, module.DEPTH], "w": [1, module.COLUMNS // 2, module.DEPTH]}
    tiles |= {"out": [module.ROWS, module.COLUMNS // 2]}
    types = {
        f"{name}_desc": f"tensordesc<bf16{tile},{NVMMASharedLayout(128, 16, rank=len(tile))!r}>"
        for name, tile in tiles.items()
    }
    code = compiled(module._gated, {"programs": 132, "has_bias": has_bias}, types, 4, GluonASTSource)
    assert code.count("wgmma.mma_async.sync.aligned.m64n256k16") == module.PARTS * module.DEPTH // 16
    assert code.count("wgmma.wait_group.sync.aligned 1") == module.PARTS
    assert ("ld.global" in code) == has_bias  # all else comes by the bulk copy engine
    assert code.count("stmatrix") == module.PARTS * module.COLUMNS // 32  # neighbours lie in one thread
    assert "st.global" not in code
    assert ".local" not in code


def test_planes_are_written_in_whole_lines() -> None:
    from vitruvian.kernels import fused_triton

    filled = compiled(fused_triton._fill_planes, {"block": 8192, "pixels": 49152}, {}, 4)
    assert "st.global.v4.b32" in filled


@pytest.mark.parametrize("has_branch", [True, False])
def test_norms_write_tokens_where_these_change(has_branch: bool) -> None:
    from vitruvian.kernels import fused_triton

    sizes = {"channels": 1024, "padded": 1024, "eps": 1e-6, "has_scale": True, "has_branch": has_branch}
    code = compiled(fused_triton._add_norm, sizes, {}, 4)
    assert code.count("st.global") == (2 if has_branch else 1)
    assert "st.global.v4.b32" in code
    assert ".local" not in code
