import copy
import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.helpers.tiny_models import pixels, tiny_task
from vitruvian import BatchFeature, InputError, ModelOutput
from vitruvian.outputs import _to_numpy, map_tensors


@dataclass
class Sight(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None
    states: tuple[Tensor, ...] | None = None


def sight() -> Sight:
    return Sight(logits=torch.ones(2), states=(torch.zeros(1), torch.ones(1)))


class TestModelOutput:
    def test_attribute_key_and_place_name_the_same_tensor(self) -> None:
        out = sight()
        assert out.logits is out["logits"] is out[0]
        assert out.states is out["states"] is out[1] is out[-1]
        assert out[:1] == (out.logits,)

    def test_unset_fields_are_left_out(self) -> None:
        out = sight()
        assert list(out.keys()) == list(out) == ["logits", "states"]
        assert len(out) == 2
        assert "loss" not in out
        assert "logits" in out
        assert out.to_tuple() == tuple(out.values())
        assert [name for name, _ in out.items()] == ["logits", "states"]
        assert dict(out) == {"logits": out.logits, "states": out.states}
        assert {**out} == dict(out)

    def test_reading_what_is_not_there(self) -> None:
        out = sight()
        with pytest.raises(KeyError, match=r"loss.*not among \['logits', 'states'\]"):
            out["loss"]
        with pytest.raises(KeyError):
            out["other"]
        with pytest.raises(IndexError):
            out[2]
        assert out.get("loss", 3) == 3
        assert out.get("other") is None
        assert out.get("keys") is None
        assert out.get("logits") is out.logits

    def test_setting_a_field_by_key(self) -> None:
        out = sight()
        out["loss"] = torch.tensor(1.0)
        assert out.loss is out[0]
        out["more"] = 3
        assert (out.more, list(out)[-1]) == (3, "more")  # type: ignore[attr-defined]

    def test_methods_of_a_dict(self) -> None:
        out = sight()
        assert isinstance(out, dict)
        logits = out.logits
        out.update(loss=torch.tensor(1.0))
        again = out.copy()
        assert list(again) == ["loss", "logits", "states"]
        assert out.pop("logits") is logits
        assert out.logits is None
        assert out.pop("logits", 3) == 3
        with pytest.raises(KeyError):
            out.pop("logits")
        del out["loss"]
        assert (list(out), len(out), out.loss) == (["states"], 1, None)
        assert again.logits is logits
        assert list(copy.deepcopy(again)) == list(pickle.loads(pickle.dumps(again))) == list(again)

    def test_is_a_mapping_for_wrappers(self) -> None:
        assert isinstance(sight(), Mapping)

    def test_rebuilt_from_a_dict_as_accelerate_does(self) -> None:
        out = sight()
        again = type(out)(dict(out.items()))  # type: ignore[arg-type]
        assert again.loss is None
        assert again.logits is out.logits
        assert again.states is out.states

    def test_accelerate_converts_in_place(self) -> None:
        operations = pytest.importorskip("accelerate.utils.operations")
        out = Sight(logits=torch.ones(2, dtype=torch.bfloat16), states=(torch.zeros(1, dtype=torch.bfloat16),))
        found = operations.convert_to_fp32(out)
        assert type(found) is Sight
        assert found.logits.dtype == found.states[0].dtype == torch.float32
        assert found.loss is None

    def test_pytree_round_trip(self) -> None:
        out = sight()
        leaves, spec = pytree.tree_flatten(out)
        assert len(leaves) == 3
        again = pytree.tree_unflatten([leaf + 1 for leaf in leaves], spec)
        assert type(again) is Sight
        assert again.loss is None
        assert torch.equal(again.states[1], torch.full((1,), 2.0))
        assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec

    def test_a_class_may_be_defined_again_in_a_notebook(self) -> None:
        made = [dataclasses.make_dataclass("Again", [("x", Any, None)], bases=(ModelOutput,)) for _ in range(2)]
        assert pytree.tree_map(lambda leaf: leaf + 1, made[1](x=1)).x == 2

    def test_copies_and_pickles(self) -> None:
        out = sight()
        assert torch.equal(pickle.loads(pickle.dumps(out)).logits, out.logits)
        assert copy.deepcopy(out).states is not out.states
        assert dataclasses.replace(out, logits=None).keys() == ["states"]

    def test_models_give_tuples_when_asked(self) -> None:
        model, images = tiny_task(), pixels(1)
        out = model(images, output_hidden_states=True)
        plain = model(images, output_hidden_states=True, return_dict=False)
        assert isinstance(plain, tuple)
        assert len(plain) == len(out) == 2
        assert torch.equal(plain[0], out.heatmaps)
        model.config.return_dict = False
        assert isinstance(model(images), tuple)
        assert isinstance(model(images, return_dict=True), ModelOutput)

    def test_functional_transforms_look_inside(self) -> None:
        model, images = tiny_task(attn_implementation="eager"), pixels(2)
        found = torch.func.vmap(lambda image: model(image[None], output_hidden_states=False))(images)
        assert found.heatmaps.shape[:2] == (2, 1)


class TestBatchFeature:
    def test_items_are_attributes(self) -> None:
        batch = BatchFeature({"pixel_values": torch.ones(1)})
        assert batch.pixel_values is batch["pixel_values"]
        assert batch.data == {"pixel_values": batch.pixel_values}
        assert {**batch}.keys() == {"pixel_values"}
        with pytest.raises(AttributeError, match=r"no item 'labels'; it has \['pixel_values'\]"):
            _ = batch.labels
        assert not hasattr(batch, "labels")
        assert len(BatchFeature()) == 0

    def test_conversion_on_request(self) -> None:
        batch = BatchFeature({"a": [torch.ones(2), torch.ones(2)]})
        assert batch.convert_to_tensors() is batch
        assert isinstance(batch.a, list)
        assert batch.convert_to_tensors("pt").a.shape == (2, 2)
        assert isinstance(batch.convert_to_tensors("np").a, np.ndarray)
        with pytest.raises(InputError, match="return_tensors: expected 'pt', 'np' or None, got 'tf'"):
            batch.convert_to_tensors("tf")

    def test_stacks_as_asked(self) -> None:
        rows = [torch.ones(2, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)]
        stacked = BatchFeature({"a": rows, "sizes": [(1, 2), (3, 4)], "one": torch.ones(3)}, "pt")
        assert stacked.a.shape == (2, 2)
        assert stacked.a.dtype == torch.uint8
        assert torch.equal(stacked.sizes, torch.tensor([[1, 2], [3, 4]]))
        assert stacked.one.shape == (3,)
        arrays = BatchFeature({"a": rows, "one": torch.ones(3), "half": torch.ones(1, dtype=torch.bfloat16)}, "np")
        assert all(isinstance(value, np.ndarray) for value in arrays.values())
        assert arrays.half.dtype == np.float32
        assert BatchFeature({"a": [np.ones(2), np.ones(2)]}, "pt").a.shape == (2, 2)
        assert BatchFeature({"a": rows}).a is rows
        assert BatchFeature({"a": []}, "pt").a == []

    def test_what_cannot_be_stacked(self) -> None:
        with pytest.raises(InputError, match=r"pixel_values: expected items of one shape.*\(2,\), \(3,\)"):
            BatchFeature({"pixel_values": [torch.ones(2), torch.ones(3)]}, "pt")
        with pytest.raises(InputError, match="pixel_values: expected items of one shape"):
            BatchFeature({"pixel_values": [np.ones(2), np.ones(3)]}, "np")
        with pytest.raises(InputError, match="boxes: expected numbers in nested lists of one shape"):
            BatchFeature({"boxes": [[1, 2], [3]]}, "pt")
        with pytest.raises(InputError, match="names: expected numbers"):
            BatchFeature({"names": ["a", "b"]}, "pt")

    @pytest.mark.parametrize("kind", ["tf", "jax", ""])
    def test_unknown_tensor_type(self, kind: str) -> None:
        with pytest.raises(InputError, match="return_tensors: expected 'pt', 'np' or None"):
            BatchFeature({"a": torch.ones(1)}, kind)

    def test_to_changes_floating_point_tensors_alone(self) -> None:
        batch = BatchFeature(
            {
                "pixel_values": torch.ones(2),
                "labels": torch.ones(2, dtype=torch.int64),
                "maps": [torch.ones(1), (torch.ones(1), {"x": torch.ones(1)})],
                "sizes": [(1, 2)],
            }
        )
        assert batch.to(torch.float16) is batch
        assert batch.pixel_values.dtype == torch.float16
        assert batch.labels.dtype == torch.int64
        assert batch.maps[1][1]["x"].dtype == torch.float16
        assert batch.sizes == [(1, 2)]
        assert batch.to(dtype=torch.float64).pixel_values.dtype == torch.float64

    def test_to_moves_everything(self) -> None:
        for call in (("meta",), (torch.device("meta"),), ("meta", torch.float16)):
            batch = BatchFeature({"a": torch.ones(1), "b": [torch.ones(1, dtype=torch.int64)]}).to(*call)
            assert batch.a.is_meta
            assert batch.b[0].is_meta
            assert batch.a.dtype == (torch.float16 if len(call) == 2 else torch.float32)
        moved = BatchFeature({"a": torch.ones(1)}).to(device="meta", dtype=torch.float16, non_blocking=True)
        assert (moved.a.is_meta, moved.a.dtype) == (True, torch.float16)

    def test_copies_and_pickles(self) -> None:
        batch = BatchFeature({"a": torch.ones(1)})
        for other in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
            assert type(other) is BatchFeature
            assert torch.equal(other.a, batch.a)


class _Named(NamedTuple):
    values: torch.Tensor
    ids: list[int]


def test_map_tensors_keeps_containers() -> None:
    found = map_tensors(lambda t: t + 1, {"a": [torch.zeros(1)], "b": (torch.zeros(1), "x", None)})
    assert found == {"a": [torch.ones(1)], "b": (torch.ones(1), "x", None)}


def test_map_tensors_keeps_named_tuples() -> None:
    found = map_tensors(lambda t: t + 1, [_Named(torch.zeros(1), [3])])
    assert found == [_Named(torch.ones(1), [3])]
    assert type(found[0]) is _Named


def test_as_numpy_goes_into_lists_and_leaves_the_rest() -> None:
    found = _to_numpy([torch.ones(2, requires_grad=True), [torch.zeros(1)], "x"])
    assert isinstance(found[0], np.ndarray)
    assert isinstance(found[1][0], np.ndarray)
    assert found[2] == "x"
