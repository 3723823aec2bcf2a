"""Where the shared material lies, for the tests that can use it; they skip where it is absent."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder is not beside this checkout")
