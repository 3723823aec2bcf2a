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


def test_drawing_keeps_to_the_matrix_instructions_of_a_warp() -> None:
    """Those of four warps made accesses outside of shared memory."""
    from vitruvian.kernels import draw_triton

    sizes = {"channels": 256, "middle": 64, "small": 32, "kinds": 3, "slots": draw_triton.SLOTS}
    code = compiled(draw_triton._draw, sizes | {"rows": draw_triton.ROWS, "eps": 1e-6}, {}, draw_triton.WARPS)
    assert "mma.sync" in code
    assert "wgmma" not in code


@pytest.mark.parametrize("shares", [False, True])
def test_attention_of_groups_of_warps(shares: bool) -> None:
    import triton

    if not triton.__version__.startswith("3.6."):
        pytest.skip("another Triton")
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.experimental.gluon.language import NVMMASharedLayout

    from vitruvian.kernels import attention_hopper

    tile = f"tensordesc<bf16[1, 1, 64, 64],{NVMMASharedLayout(128, 16, rank=4)!r}>"
    sizes = {"heads": 16, "groups": 2, "head_dim": 64, "rows": 64, "columns": 64, "stages": 4, "parts": 3}
    sizes |= {"registers": attention_hopper.REGISTERS[3], "polynomials": 1, "unrolled": False, "shares": shares}
    types = dict.fromkeys(("q_desc", "k_desc", "v_desc"), tile)
    code = compiled(attention_hopper._attend, sizes, types, 4, GluonASTSource)
    assert "wgmma.mma_async" in code
    assert code.count("wgmma.wait_group.sync.aligned 1") == 3  # scores are waited for, and values go on
    assert "st.global.v4" in code


def test_cropping_and_decoding_keep_to_registers() -> None:
    """Each is one launch of many programs, which hide each other's waiting only where many fit on a chip."""
    from vitruvian.kernels import crop_triton, peaks_triton

    floats = dict.fromkeys(("f0", "f1", "f2", "s0", "s1", "s2"), "fp32")
    types = {"pixels_ptr": "*u8", "places_ptr": "*fp32", **floats}
    sizes = {"rows": crop_triton.ROWS, "columns": crop_triton.COLUMNS}
    cropped = compiled(crop_triton._crop, sizes, types, crop_triton.WARPS)
    types = {"out_ptr": "*fp32", **{f"g{number}": "fp32" for number in range(6)}}
    found = compiled(peaks_triton._find, {"chunk": peaks_triton.CHUNK, "columns": 256}, types, 4)
    for code in (cropped, found):
        assert ".local" not in code
        assert "ld.global" in code


def test_last_rows_of_gated_products() -> None:
    """Half tiles for the last rows: both groups of warps have their 64 rows, and nothing leaves the registers."""
    import triton

    if not triton.__version__.startswith("3.6."):
        pytest.skip("another Triton")
    from vitruvian.kernels import gated_linear_triton as module

    rows, columns, depth, rest = module.ROWS, module.COLUMNS, module.DEPTH, module.REST_ROWS
    sizes = {"rows": rows, "columns": columns, "depth": depth, "group": 16, "programs": 132, "has_bias": True}
    tiles = {"x": (rows, depth), "w": (columns, depth), "out": (rows, columns // 2)}
    tiles |= {"x_rest": (rest, depth), "out_rest": (rest, columns // 2)}
    types = {f"{name}_desc": f"tensordesc<bf16[{high}, {wide}]>" for name, (high, wide) in tiles.items()}
    code = compiled(module._gated, sizes | {"rest": rest}, types, 8)
    assert "wgmma.mma_async.sync.aligned.m64n256k16" in code
    assert "wgmma.mma_async.sync.aligned.m64n128k16" in code
    assert ".local" not in code
    none = {"rest": 0, "x_rest_desc": None, "out_rest_desc": None}
    assert "m64n128k16" not in compiled(module._gated, sizes | none, types, 8)


def test_lean_norms_write_whole_lines() -> None:
    from vitruvian.kernels import fused_triton, lean_norm_triton

    types = dict.fromkeys(("mean_ptr", "spread_ptr"), "*fp32")
    sizes = {"rows": 32, "width": 128, "has_bias": True, "channels": 3072, "pixels": 3072}
    code = compiled(lean_norm_triton._apply_shuffled, sizes, types, 4)
    assert "st.global.v2.b32" in code or "st.global.v4.b32" in code
    assert "st.global.b16" not in code
    filled = compiled(fused_triton._fill_planes, {"block": 8192, "pixels": 49152}, {}, 4)
    assert "st.global.v4.b32" in filled
