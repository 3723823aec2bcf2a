"""PTX of kernels for a Hopper GPU, which needs no GPU: some faults show only there. Runs with TRITON_INTERPRET=0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitruvian.ops.dispatch import HAS_TRITON, IS_INTERPRETED

pytestmark = pytest.mark.skipif(not HAS_TRITON or IS_INTERPRETED, reason="no Triton, or only its interpreter")


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
    signature = (
        usual | {name: kind for name, kind in types.items() if name in names} | dict.fromkeys(constants, "constexpr")
    )
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


@pytest.mark.parametrize("has_branch", [True, False])
def test_rms_norm_writes_the_sum_only_with_a_branch(has_branch: bool) -> None:
    from vitruvian.ops import rms_norm

    sizes = {"channels": 1024, "padded": 1024, "eps": 1e-6, "has_scale": True, "has_branch": has_branch}
    code = compiled(rms_norm._rms_norm_kernel, sizes, {}, 4)
    assert code.count("st.global") == (2 if has_branch else 1)
    assert "st.global.v4.b32" in code
    assert ".local" not in code


def test_rope_writes_vectors() -> None:
    from vitruvian.ops import rope

    sizes = {"heads": 16, "half": 32, "padded_half": 32, "eps": 1e-6, "scale": 0.18, "has_norm": True, "block_rows": 64}
    types = {"cos_ptr": "*fp32", "sin_ptr": "*fp32"}
    code = compiled(rope._rms_norm_rope_kernel, sizes | {"row_stride": 2048}, types, 4)
    assert "st.global.v4.b32" in code
    assert ".local" not in code


def test_unshifted_attention_uses_tensor_cores() -> None:
    from vitruvian.ops import unshifted_attention as op

    sizes = {"heads": 16, "groups": 2, "head_dim": 64, "padded_dim": 64}
    sizes |= {"block_rows": 128, "block_columns": 64, "stages": 3}
    strides = {f"{name}_token": 64 for name in "qkvo"}
    assert "wgmma.mma_async" in compiled(op._unshifted_attention_kernel, sizes | strides, {}, 8)


@pytest.mark.parametrize("taps", [2, 3])
def test_winograd_transforms(taps: int) -> None:
    from vitruvian.ops import winograd

    sizes = {"taps": taps, "block_tiles": 2, "block_channels": 128}
    statistics = dict.fromkeys(("mean_ptr", "inv_std_ptr", "square_ptr", "count_ptr", "bias_ptr"), "*fp32")
    half = {"x_ptr": "*fp16", "out_ptr": "*fp16", "products_ptr": "*fp16"}
    code = compiled(winograd._transform_input_kernel, sizes | {"has_norm": True, "limit": 0.0}, statistics | half, 4)
    assert "st.global" in code
    more = {"upsample_factor": 2, "lead": 3 - taps, "has_bias": True, "span": 16}
    assert "st.global" in compiled(winograd._transform_output_kernel, sizes | more, statistics | half, 4)
