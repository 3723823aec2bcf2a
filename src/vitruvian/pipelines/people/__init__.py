"""Detectors of people, and which people a task processes."""

from __future__ import annotations

from vitruvian.pipelines.people.detectors import (
    PeopleDetector,
    SourceDetector,
    detect_people,
    open_detector,
    people_from_boxes,
)

__all__ = ["PeopleDetector", "SourceDetector", "detect_people", "open_detector", "people_from_boxes"]
