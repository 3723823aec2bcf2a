"""What options of pipelines may be: light, so that the command line refuses what lies outside before any work."""

from __future__ import annotations

MOST_OVERLAP = 0.75  # share of a tile's side that it may have in common with the next
LEAST_TILE = 2  # pixels of a tile's side
