import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch

from tests.helpers.shared_folder import SHARED, needs_shared
from tests.helpers.tiny_models import DECONVOLUTION, tiny_config
from vitruvian import (
    AutoConfig,
    CheckpointError,
    Config,
    ConfigError,
    InputError,
    Mask2FormerConfig,
    Sapiens2Config,
    Sapiens2HeadConfig,
    Sapiens2ImageProcessor,
    SwinConfig,
    use_limits,
)
from vitruvian.config import ConfigBase, bounded, config_dataclass, nested
from vitruvian.filesystem.json_files import read_json_object


@config_dataclass
class Lamp(ConfigBase):
    watts: int = 5
    glow: float = 1.0
    name: str | None = None
    colours: list[str] | None = None
    size: tuple[int, int] = (1, 2)
    kinds: tuple[str, ...] = ()
    levels: dict[str, int] | None = None
    mode: Literal["on", "off"] = "on"
    switched: bool = False


@config_dataclass
class Room(Config):
    model_type = "room"

    attribute_map: ClassVar[dict[str, str]] = {"num_doors": "doors"}

    lamp: Lamp | None = None
    doors: int = bounded(1, ge=1, lt=9)

    def __post_init__(self) -> None:
        self.lamp = nested(self.lamp, Lamp)
        super().__post_init__()


class TestFields:
    def test_constructor_takes_keywords_with_defaults(self) -> None:
        assert Lamp().watts == 5
        assert Lamp(watts=7).watts == 7

    def test_unknown_name_is_refused_with_near_matches(self) -> None:
        with pytest.raises(ConfigError, match=r"Lamp: expected the name of a field, got 'wats'\. Did you mean watts"):
            Lamp(wats=7)

    def test_positional_values_are_refused(self) -> None:
        with pytest.raises(TypeError):
            Lamp(7)  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("field", "value", "wanted"),
        [
            ("watts", "5", "int"),
            ("watts", 5.0, "int"),
            ("watts", True, "int"),
            ("watts", None, "int"),
            ("glow", "bright", "float"),
            ("glow", False, "float"),
            ("name", 3, r"str \| None"),
            ("colours", "red", r"list\[str\] \| None"),
            ("colours", ["red", 3], r"list\[str\] \| None"),
            ("size", [1, 2, 3], r"tuple\[int, int\]"),
            ("size", 4, r"tuple\[int, int\]"),
            ("kinds", ["a", 1], r"tuple\[str, \.\.\.\]"),
            ("levels", {"a": "b"}, r"dict\[str, int\] \| None"),
            ("levels", {1: 1}, r"dict\[str, int\] \| None"),
            ("mode", "dim", r"Literal\['on', 'off'\]"),
            ("switched", 1, "bool"),
        ],
    )
    def test_wrong_type_names_field_expectation_and_value(self, field: str, value: Any, wanted: str) -> None:
        with pytest.raises(ConfigError, match=rf"Lamp\.{field}: expected {wanted}, got {re.escape(repr(value))}\."):
            Lamp(**{field: value})

    def test_json_kinds_are_accepted(self) -> None:
        lamp = Lamp(glow=2, size=[3, 4], kinds=["a"], colours=("red",), levels={"a": 1}, mode="off")  # type: ignore[arg-type]
        assert (lamp.glow, lamp.size, lamp.mode) == (2, [3, 4], "off")

    @pytest.mark.parametrize("doors", [0, 9])
    def test_value_outside_the_range_is_refused(self, doors: int) -> None:
        with pytest.raises(ConfigError, match=rf"Room\.doors: expected at least 1 and below 9, got {doors}"):
            Room(doors=doors)

    def test_aliases_of_fields(self) -> None:
        room = Room(num_doors=2)
        assert (room.doors, room.num_doors) == (2, 2)
        room.num_doors = 3
        assert room.doors == 3
        assert Room.from_dict({"num_doors": 4}).to_dict()["doors"] == 4
        assert Room.from_dict({"num_doors": 4, "doors": 5}).doors == 5  # files of other writers have both
        assert "num_doors" not in room.to_dict()

    def test_mutable_defaults_are_not_shared(self) -> None:
        one, other = Lamp(), Lamp()
        one.extra["x"] = 1
        assert other.extra == {}


class TestJson:
    def test_round_trip_keeps_unknown_keys(self) -> None:
        values = {"watts": 9, "maker": "acme", "nested": {"a": [1, None]}}
        lamp = Lamp.from_dict(values)
        assert lamp.extra == {"maker": "acme", "nested": {"a": [1, None]}}
        assert lamp.to_dict().items() >= values.items()
        assert Lamp.from_dict(lamp.to_dict()) == lamp

    def test_unknown_keys_read_as_attributes(self) -> None:
        assert Lamp.from_dict({"maker": "acme"}).maker == "acme"
        with pytest.raises(AttributeError, match=r"Lamp has no field 'wats'\. Did you mean watts"):
            _ = Lamp().wats
        assert not hasattr(Lamp(), "maker")

    def test_from_dict_does_not_change_its_input(self) -> None:
        values = {"model_type": "room", "torch_dtype": "float16", "lamp": {"watts": 3}}
        before = copy.deepcopy(values)
        Room.from_dict(values)
        assert values == before

    def test_nested_settings_round_trip_and_check(self) -> None:
        room = Room.from_dict({"lamp": {"watts": 3, "maker": "acme"}})
        assert room.lamp is not None
        assert room.lamp.watts == 3
        assert room.to_dict()["lamp"]["maker"] == "acme"
        with pytest.raises(ConfigError, match=r"Lamp\.watts"):
            Room.from_dict({"lamp": {"watts": "x"}})
        with pytest.raises(ConfigError, match=r"Room\.lamp: expected"):
            Room(lamp=3)  # type: ignore[arg-type]

    def test_overrides_must_be_known(self) -> None:
        assert Lamp.from_dict({"watts": 9}, watts=1).watts == 1
        with pytest.raises(ConfigError, match="the name of a field, got 'wats'"):
            Lamp.from_dict({"wats": 9}, wats=1)

    def test_json_text_is_sorted_and_ends_with_a_newline(self) -> None:
        text = Lamp().to_json_string()
        assert text.endswith("}\n")
        assert list(json.loads(text)) == sorted(json.loads(text))

    def test_equality_copies_pickles_and_repr(self) -> None:
        room = Room(lamp=Lamp(watts=3), num_labels=3)
        assert copy.deepcopy(room) == room
        assert pickle.loads(pickle.dumps(room)) == room
        assert room != Room()
        assert room != Lamp()
        assert repr(room).startswith("Room {")
        twin = copy.deepcopy(room)
        twin.num_labels = 5
        assert (room.num_labels, len(room.id2label or {})) == (3, 3)


class TestLabels:
    def test_default_is_two_neutral_labels(self) -> None:
        assert Room().id2label == {0: "LABEL_0", 1: "LABEL_1"}
        assert Room().num_labels == 2

    def test_number_follows_names(self) -> None:
        room = Room(id2label={"0": "wall", "1": "floor", "2": "door"})  # type: ignore[dict-item]
        assert room.num_labels == 3
        assert room.id2label == {0: "wall", 1: "floor", 2: "door"}
        assert room.label2id == {"wall": 0, "floor": 1, "door": 2}

    def test_number_replaces_names_that_do_not_fit(self) -> None:
        values = Room(id2label={0: "wall", 1: "floor"}).to_dict()
        assert Room.from_dict(values, num_labels=2).id2label == {0: "wall", 1: "floor"}
        assert Room.from_dict(values, num_labels=3).label2id == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}

    def test_new_names_replace_the_files_other_tables(self) -> None:
        values = Room(id2label={0: "wall", 1: "floor"}).to_dict()
        room = Room.from_dict(values, id2label={0: "a", 1: "b", 2: "c"})
        assert (room.num_labels, room.label2id) == (3, {"a": 0, "b": 1, "c": 2})

    def test_given_label2id_is_kept(self) -> None:
        assert Room(id2label={0: "a"}, label2id={"a": 0, "alias": 0}).label2id == {"a": 0, "alias": 0}

    def test_assignment_keeps_tables_together(self) -> None:
        room = Room()
        room.num_labels = 4
        assert len(room.id2label or {}) == len(room.label2id or {}) == 4
        room.id2label = {"0": "x"}  # type: ignore[dict-item]
        assert (room.num_labels, room.id2label, room.label2id) == (1, {0: "x"}, {"x": 0})
        room.label2id = {"x": 0, "y": 0}
        assert room.label2id == {"x": 0, "y": 0}

    def test_impossible_labels(self) -> None:
        with pytest.raises(ConfigError, match=r"Room\.num_labels: expected at least 1, got -1"):
            Room(num_labels=-1)
        with pytest.raises(ConfigError, match=r"Room\.num_labels: expected at least 1, got 0"):
            Room().num_labels = 0
        with pytest.raises(ConfigError, match=r"Room\.id2label: expected class numbers as keys, got \['wall'\]"):
            Room(id2label={"wall": 0})  # type: ignore[dict-item]
        with pytest.raises(ConfigError, match=r"Room\.id2label: expected"):
            Room(id2label=["wall"])  # type: ignore[arg-type]

    def test_json_keeps_numbers_as_text(self) -> None:
        assert json.loads(Room().to_json_string())["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}


class TestUnknownKeywords:
    def test_are_kept_and_written_back(self, tmp_path: Path) -> None:
        room = Room(doors=2, chunk_size_feed_forward=3)
        room.tie_word_embeddings = False
        assert room.chunk_size_feed_forward == 3
        room.save_pretrained(tmp_path)
        again = Room.from_pretrained(tmp_path)
        assert again.extra["chunk_size_feed_forward"] == 3
        assert again.tie_word_embeddings is False
        assert again == room == Room(**room.to_dict())

    def test_near_a_field_are_typing_errors(self) -> None:
        with pytest.raises(ConfigError, match=r"the name of a field, got 'num_lables'\. Did you mean num_labels"):
            Room(num_lables=3)

    def test_of_an_override_are_refused_or_returned(self, tmp_path: Path) -> None:
        Room().save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match="the name of a field, got 'windows'"):
            Room.from_pretrained(tmp_path, windows=3)
        room, unused = Room.from_pretrained(  # type: ignore[misc]
            tmp_path, windows=3, doors=2, return_unused_kwargs=True
        )
        assert (room.doors, unused) == (2, {"windows": 3})
        values, others = Room.get_config_dict(tmp_path, windows=3, revision="main")
        assert (values["doors"], others) == (1, {"windows": 3})


@config_dataclass
class House(Config):
    model_type = "house"

    sub_configs: ClassVar[dict[str, type[ConfigBase]]] = {"room": Room}

    room: Room = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.room = nested(self.room or {}, Room)
        super().__post_init__()


class TestMethodsOfTransformers:
    def test_difference_to_the_defaults(self) -> None:
        assert Room().to_diff_dict() == {"model_type": "room"}
        assert Room(doors=2, num_labels=1).to_diff_dict().keys() == {"model_type", "doors", "id2label", "label2id"}
        assert json.loads(Room(doors=2).to_json_string(use_diff=True)) == {"model_type": "room", "doors": 2}

    def test_json_files_and_updates(self, tmp_path: Path) -> None:
        room = Room()
        room.update({"num_doors": 3, "sofa": True})
        room.to_json_file(tmp_path / "room.json")
        again = Room.from_json_file(tmp_path / "room.json")
        assert again == room
        assert (again.doors, again.sofa) == (3, True)
        assert {"doors", "sofa", "num_labels"} <= set(room)
        assert room.get_text_config() is room

    def test_part_from_the_file_of_the_whole(self, tmp_path: Path) -> None:
        House(room=Room(doors=4)).save_pretrained(tmp_path)
        assert Room.from_pretrained(tmp_path).doors == 4

    def test_attention_of_parts(self) -> None:
        house = House(attn_implementation="eager")
        assert house._attn_implementation == house.room._attn_implementation == "eager"
        house._attn_implementation = {"": "sdpa"}
        assert (house.attn_implementation, house.room.attn_implementation) == ("sdpa", "eager")
        assert House(attn_implementation={"room": "eager"}).room.attn_implementation == "eager"
        with pytest.raises(ConfigError, match="one of room, got 'roof'"):
            house.attn_implementation = {"roof": "eager"}


class TestConfig:
    def test_wrong_family_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"Room: expected model_type 'room', got 'sapiens2'.*AutoConfig"):
            Room.from_dict({"model_type": "sapiens2"})

    def test_dtype_in_every_spelling(self) -> None:
        assert Room.from_dict({"torch_dtype": "float16"}).dtype == torch.float16
        assert Room.from_dict({"torch_dtype": "float16", "dtype": "bfloat16"}).dtype == torch.bfloat16
        assert Room(dtype=torch.bfloat16).to_dict()["dtype"] == "bfloat16"
        assert "torch_dtype" not in Room.from_dict({"torch_dtype": "float16"}).to_dict()

    def test_defaults_of_calls_are_written_only_when_changed(self) -> None:
        assert "return_dict" not in Room().to_dict()
        assert Room.from_dict(Room(return_dict=False, output_attentions=True).to_dict()).use_return_dict is False
        assert Room(output_attentions=True).to_dict()["output_attentions"] is True

    def test_what_belongs_to_one_run_is_not_saved(self) -> None:
        room = Room(attn_implementation="eager", name_or_path="x")
        assert not {"attn_implementation", "name_or_path", "num_labels", "extra", "_ready"} & set(room.to_dict())

    def test_foreign_attention_key_is_read(self) -> None:
        assert Room.from_dict({"_attn_implementation": "eager"}).attn_implementation == "eager"


class TestFiles:
    def test_save_and_read(self, tmp_path: Path) -> None:
        config = tiny_config(num_labels=3)
        assert config.save_pretrained(tmp_path / "a" / "b") == [tmp_path / "a" / "b" / "config.json"]
        assert Sapiens2Config.from_pretrained(tmp_path / "a" / "b") == config
        assert Sapiens2Config.from_pretrained(str(tmp_path / "a"), subfolder="b") == config
        assert Sapiens2Config.from_pretrained(tmp_path / "a" / "b", hidden_size=64).hidden_size == 64

    def test_a_json_file_of_any_name(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "mine.json").write_text(tiny_config().to_json_string())
        assert Sapiens2Config.from_pretrained(tmp_path / "mine.json").hidden_size == 32
        assert Sapiens2Config.from_pretrained(str(tmp_path / "config.json")).hidden_size == 1024

    def test_missing_file_and_folder(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("hi")
        with pytest.raises(CheckpointError, match=r"expected a file config\.json, found none\. .*has: notes\.txt"):
            Sapiens2Config.from_pretrained(tmp_path)
        with pytest.raises(CheckpointError, match="no such file or folder"):
            Sapiens2Config.from_pretrained(tmp_path / "none")
        with pytest.raises(OSError, match="no such file or folder"):  # the built-in kind catches it too
            Sapiens2Config.from_pretrained(str(tmp_path / "none.json"))

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"{", "expected JSON, but"),
            (b"", "expected JSON, but"),
            (b"\xff\xfe{}", "expected JSON, but"),
            (b"[1, 2]", "expected a JSON object, got list"),
            (b"null", "expected a JSON object, got NoneType"),
        ],
    )
    def test_bad_json_names_the_file(self, tmp_path: Path, content: bytes, why: str) -> None:
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"config\.json: {why}"):
            Sapiens2Config.from_pretrained(tmp_path)
        with pytest.raises(CheckpointError, match=rf"config\.json: {why}"):
            AutoConfig.from_pretrained(tmp_path)
        with pytest.raises(CheckpointError, match=rf"config\.json: {why}"):
            read_json_object(tmp_path / "config.json")

    def test_saving_into_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(InputError, match="expected a folder to save into, got a file"):
            tiny_config().save_pretrained(tmp_path / "file")

    def test_a_failing_write_leaves_the_old_file(self, tmp_path: Path) -> None:
        config = tiny_config()
        config.save_pretrained(tmp_path)
        old = (tmp_path / "config.json").read_bytes()
        config.extra["bad"] = object()
        with pytest.raises(TypeError):
            config.save_pretrained(tmp_path)
        assert (tmp_path / "config.json").read_bytes() == old
        assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


class TestSapiens2Config:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("hidden_size", 0),
            ("hidden_size", 30),
            ("num_hidden_layers", 0),
            ("image_size", [1, 2, 3]),
            ("patch_size", 0),
            ("num_key_value_heads_per_layer", [2, 2]),
            ("num_key_value_heads_per_layer", [2, 2, 2, 3]),
        ],
    )
    def test_impossible_values_name_the_field(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=rf"Sapiens2Config\.{field}: expected"):
            tiny_config(**{field: value}).validate()

    def test_stages_given_one_way_replace_the_files_other_way(self, tmp_path: Path) -> None:
        tiny_config(out_features=["stage4"]).save_pretrained(tmp_path)
        assert Sapiens2Config.from_pretrained(tmp_path, out_indices=[1, 2]).out_features == ["stage1", "stage2"]
        assert Sapiens2Config.from_pretrained(tmp_path, out_features=["stem"]).out_indices == [0]

    def test_head_as_table_or_object(self) -> None:
        from_table = tiny_config(head_config=DECONVOLUTION)
        assert isinstance(from_table.head_config, Sapiens2HeadConfig)
        assert from_table == tiny_config(head_config=Sapiens2HeadConfig(**DECONVOLUTION))

    @needs_shared
    @pytest.mark.parametrize("case", ["model", "pose", "normal", "pointmap", "matting", "backbone-norm0"])
    def test_stored_configs_survive_reading_and_writing(self, case: str) -> None:
        path = SHARED / "golden" / "cases" / f"sapiens2-{case}" / "config.json"
        stored = json.loads(path.read_text())
        written = json.loads(Sapiens2Config.from_pretrained(path.parent).to_json_string())
        assert {key: written.get(key) for key in stored} == stored


class TestLimits:
    @pytest.mark.parametrize(
        ("cls", "name", "value"),
        [
            (Sapiens2Config, "num_labels", 10**9),
            (Sapiens2Config, "num_hidden_layers", 10**6),
            (Sapiens2Config, "hidden_size", 10**9),
            (Sapiens2Config, "image_size", [10**9, 10**9]),
            (Sapiens2Config, "head_config", {"conv_out_channels": [10**9]}),
            (Sapiens2HeadConfig, "upsample_out_channels", [10**9]),
            (Mask2FormerConfig, "num_queries", 10**6),
            (Mask2FormerConfig, "decoder_layers", 10**6),
            (SwinConfig, "depths", [2, 10**6]),
            (Sapiens2ImageProcessor, "size", {"height": 10**9, "width": 10**9}),
            (Sapiens2ImageProcessor, "size", {"height": 60_000, "width": 60_000}),
        ],
    )
    def test_sizes_are_checked_before_anything_is_built(self, cls: type[ConfigBase], name: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=rf"{cls.__name__}\.{name}: expected at most .* raise the limit"):
            cls.from_dict({name: value})

    def test_labels_that_are_set_later(self) -> None:
        config = Config(num_labels=3)
        with pytest.raises(ConfigError, match=r"num_labels: expected at most 100,000 labels, got 1,000,000,000\."):
            config.num_labels = 10**9
        assert len(config.id2label or {}) == 3

    def test_the_limits_can_be_raised(self) -> None:
        with use_limits(config_labels=200_000):
            assert Config(num_labels=150_000).num_labels == 150_000
