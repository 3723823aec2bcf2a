"""Steps of video models that are captured as CUDA graphs: replayed without the code around them, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tests.families.sam2 import SIDE, video_fields
from vitruvian.cuda.graphs import GraphCache, _CapturedCall
from vitruvian.models.sam2.configuration import Sam2VideoConfig
from vitruvian.models.sam2.options import Sam2SessionOptions
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession

OPTIONS = Sam2SessionOptions(
    keep_history=False, corrections_as_conditioning=True, objects_start_at_prompt=True, independent_objects=True
)


class TracedGraph:
    """Stands in for a CUDA graph: the recorded operations of a call, which read and write the same tensors again."""

    def __init__(self, function: Callable[..., object], leaves: list[object], structure: pytree.TreeSpec) -> None:
        self.inputs = [leaf.clone() for leaf in leaves if isinstance(leaf, Tensor)]
        numbers = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def flat(*tensors: Tensor) -> list[Any]:
            filled = list(leaves)
            for number, tensor in zip(numbers, tensors, strict=True):
                filled[number] = tensor
            args, kwargs = pytree.tree_unflatten(filled, structure)
            outputs, self.structure = pytree.tree_flatten(function(*args, **kwargs))
            return outputs

        self._graph = make_fx(flat)(*self.inputs)
        self.outputs = [torch.empty_like(value) for value in self._graph(*self.inputs)]

    def replay(self) -> None:
        for output, value in zip(self.outputs, self._graph(*self.inputs), strict=True):
            output.copy_(value)


class TracePool:
    def capture(
        self, function: Callable[..., object], leaves: list[object], structure: pytree.TreeSpec
    ) -> _CapturedCall:
        graph = TracedGraph(function, leaves, structure)
        return _CapturedCall(graph.inputs, graph, graph.outputs, graph.structure, [])  # type: ignore[arg-type]


class TraceCache(GraphCache):
    def accepts(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        return self.accepts_batch(tensors[0]) and (len(tensors) > 1 or tensors[0].ndim < 4)  # not the image encoder


def build() -> Sam2VideoModel:
    torch.manual_seed(0)
    fields = video_fields() | {"num_maskmem": 2, "max_object_pointers_in_encoder": 3}
    model = Sam2VideoModel(Sam2VideoConfig.from_dict(fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * max(1, parameter[0].numel()) ** -0.5)
        model.mask_decoder.pred_obj_score_head.proj_out.bias.add_(1.0)
    return model


def click(session: Sam2VideoInferenceSession, obj_id: int, frame: int, x: float, y: float) -> None:
    points = {"point_coords": torch.tensor([[[[x, y]]]]), "point_labels": torch.ones(1, 1, 1, dtype=torch.int64)}
    session.add_point_inputs(session.obj_id_to_idx(obj_id), frame, points)
    session.mark_new_inputs([obj_id], frame)


@torch.no_grad()
def follow(model: Sam2VideoModel) -> list[Tensor]:
    """Masks of a video with an object added and one corrected on the way."""
    session = Sam2VideoInferenceSession(None, SIDE, SIDE, options=OPTIONS)
    frames = torch.randn(11, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    found = []
    for number, frame in enumerate(frames):
        if number in (0, 8):
            click(session, 1, number, 20.0 + number, 30.0)
        if number == 1:
            click(session, 2, number, 44.0, 50.0)
        found.append(model(session, frame=frame).pred_masks)
    return found


def test_replayed_steps_give_the_same_masks() -> None:
    model = build()
    want = follow(model)
    model.graphs = cache = TraceCache(max_graphs=64, calls_before=1)
    cache._pool = TracePool()  # type: ignore[assignment]
    got = follow(model)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    names = {str(key[0]).rpartition(".")[2] for key in cache.captured}
    assert names == {"_attend_to_memories", "_decode_objects", "_encode_memory"}
    # Shapes stay the same from the third frame of the second object to the correction.
    assert sum(cache.replays.values()) >= 10


def test_shapes_that_come_once_are_not_captured() -> None:
    cache = TraceCache(max_graphs=64, calls_before=1)
    cache._pool = TracePool()  # type: ignore[assignment]
    for size in (1, 2, 3, 2):
        cache(torch.sin, (torch.ones(size),), {})
    assert len(cache.captured) == 1
    assert cache.replays == {2: 1}
