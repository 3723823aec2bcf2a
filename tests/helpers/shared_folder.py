"""The folder of shared data beside the checkout; tests that need it are skipped without it."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder is not beside this checkout")
