import numpy as np
import torch

from vitruvian.tensor_cache import WeightCache, cached_tensors, keep_alive


def test_builds_once_for_the_same_arguments() -> None:
    made: list[tuple[int, int]] = []

    @cached_tensors
    def table(size: int, *, step: int = 1) -> torch.Tensor:
        """Docs."""
        made.append((size, step))
        return torch.arange(0, size, step)

    assert table(3) is table(3)
    assert table(3, step=2) is not table(3)
    assert made == [(3, 1), (3, 2)]
    assert (table.__name__, table.__doc__) == ("table", "Docs.")


def test_what_inference_built_can_train() -> None:
    @cached_tensors
    def weights(size: int) -> torch.Tensor:
        return torch.ones(size)

    with torch.inference_mode():
        found = weights(3)
    assert not found.is_inference()
    (found * torch.ones(3, requires_grad=True)).sum().backward()


def test_compiled_code_builds_its_own() -> None:
    @cached_tensors
    def table(size: int) -> torch.Tensor:
        return torch.arange(float(size))

    held = table(3)
    held.fill_(7)  # what is kept differs from what is built now
    add = torch.compile(lambda x: x + table(3), backend="eager", fullgraph=True)
    assert torch.equal(add(torch.zeros(3)), torch.arange(3.0))
    assert table(3) is held


def test_forgets_the_oldest() -> None:
    made = []

    def build(size: int) -> int:
        made.append(size)
        return size

    table = cached_tensors(build, maxsize=2)
    for size in (1, 2, 3, 3, 1):
        table(size)
    assert made == [1, 2, 3, 1]


def test_what_is_given_can_be_held_longer_than_it_is_remembered() -> None:
    @cached_tensors
    def numbers(count: int) -> list[int]:
        return list(range(count))

    first = numbers(3)
    with keep_alive() as held:
        assert numbers(3) is first
        numbers(4)
    assert held == [[0, 1, 2], [0, 1, 2, 3]]
    assert held[0] is first
    numbers(5)
    assert len(held) == 2


def test_values_of_weights_follow_changes_and_replacement() -> None:
    memory = np.ones(3, np.float32)
    cache: WeightCache[float] = WeightCache()

    def total(weight: torch.Tensor) -> float:
        return cache.get([weight], lambda: float(weight.sum()))

    weight = torch.from_numpy(memory)
    assert total(weight) == 3
    memory[:] = 2  # which torch does not see
    assert total(weight) == 3
    assert total(torch.from_numpy(memory)) == 6  # another tensor in the same memory
    weight.add_(1)
    assert total(weight) == 9
