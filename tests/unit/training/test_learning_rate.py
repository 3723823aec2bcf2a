"""The schedule of the learning rate."""

import math

import pytest

from vitruvian.training.config import ScheduleConfig
from vitruvian.training.learning_rate import learning_rate_factor


@pytest.mark.parametrize(
    ("decay", "step", "expected"),
    [
        ("linear", 0, 0.1),
        ("linear", 2, 0.55),
        ("linear", 4, 1.0),
        ("linear", 9, 0.2 + 0.8 * 0.5),
        ("linear", 13, 0.2 + 0.8 * 0.1),
        ("linear", 14, 0.2),
        ("linear", 99, 0.2),
        ("cosine", 4, 1.0),
        ("cosine", 9, 0.2 + 0.8 * 0.5),
        ("cosine", 11, 0.2 + 0.8 * (1 + math.cos(0.7 * math.pi)) / 2),
        ("constant", 2, 0.55),
        ("constant", 13, 1.0),
    ],
)
def test_the_schedule_of_the_learning_rate(decay: str, step: int, expected: float):
    part = ScheduleConfig(warmup=4, warmup_start=0.1, decay=decay, final=0.2)  # type: ignore[arg-type]
    assert learning_rate_factor(step, part, steps=14) == pytest.approx(expected)


def test_learning_rate_without_warmup_and_with_hold():
    assert learning_rate_factor(0, ScheduleConfig(warmup=0), steps=10) == 1
    part = ScheduleConfig(warmup=10, hold=0.5, decay="linear")
    found = [learning_rate_factor(step, part, steps=110) for step in (10, 59, 60, 85, 110)]
    assert found == pytest.approx([1, 1, 1, 0.5, 0])
