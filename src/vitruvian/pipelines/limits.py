"""Limits of option values. Imports nothing heavy, so that the command line can check them first."""

from __future__ import annotations

MAX_TILE_OVERLAP = 0.75  # share of a tile's side that it has in common with the next
MIN_TILE_SIDE = 2  # pixels
