from __future__ import annotations

import json
from typing import Any

import pytest

from vitruvian.errors import ConfigError, InputError
from vitruvian.models.sapiens2.configuration import CHECKPOINT_HEADS, VARIANTS, Sapiens2Config, Sapiens2HeadConfig


def test_defaults_follow_the_published_model() -> None:
    config = Sapiens2Config()
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (1024, 24, 16)
    assert config.use_gated_mlp
    assert config.num_register_tokens == 8
    assert config.num_key_value_heads_per_layer == [16] * 8 + [8] * 8 + [16] * 8
    assert config.out_features == ["stage24"]
    assert config.out_indices == [24]


def test_twelve_layers_are_all_full() -> None:
    assert Sapiens2Config.variant("0.1b").num_key_value_heads_per_layer == [12] * 12


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("task", CHECKPOINT_HEADS)
def test_every_variant_survives_json(name: str, task: str) -> None:
    config = Sapiens2Config.variant(name, task=task)
    again = Sapiens2Config.from_dict(json.loads(config.to_json_string()))
    assert again == config
    assert again.head_config == config.head_config
    assert again.image_hw == ((4096, 3072) if name == "1b-4k" else (1024, 768))
    assert again.grid_hw(again.image_hw) == (64, 48)


def test_variant_of_pose_knows_the_body() -> None:
    config = Sapiens2Config.variant("0.4b", task="pose")
    assert config.num_labels == 308
    assert config.id2label is not None
    assert config.id2label[0] == "nose"
    assert config.flip_pairs is not None
    assert [1, 2] in config.flip_pairs
    assert Sapiens2Config.variant("0.4b", task="seg").label2id == {
        name: index for index, name in Sapiens2Config.variant("5b", task="seg").id2label.items()
    }


def test_variant_takes_overrides_and_explains_wrong_names() -> None:
    assert Sapiens2Config.variant("0.4b", image_size=[512, 384]).image_hw == (512, 384)
    with pytest.raises(InputError, match=r"0\.4b"):
        Sapiens2Config.variant("0.4")
    with pytest.raises(InputError, match="normal"):
        Sapiens2Config.variant("0.4b", task="normals")


def test_scale_branch_size_follows_from_the_image() -> None:
    head = Sapiens2Config.variant("0.4b", task="pointmap").head_config
    assert head is not None
    assert head.scale_final_input_size == 8 * 6 * 128


@pytest.mark.parametrize("change", [{"scale_final_hidden_sizes": [8, -1]}, {"scale_final_input_size": 0}])
def test_sizes_of_the_scale_branch_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Sapiens2HeadConfig(**({"scale_conv_out_channels": [8], "scale_final_hidden_sizes": [8]} | change))


def test_kernel_sizes_are_filled_in() -> None:
    head = Sapiens2HeadConfig(upsample_out_channels=[8, 8], conv_out_channels=[4])
    assert head.upsample_kernel_sizes == [4, 4]
    assert head.conv_kernel_sizes == [1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 100}, "hidden_size"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"drop_path_rate": 1.0}, "drop_path_rate"),
        ({"image_size": [1, 2, 3]}, "image_size"),
        ({"num_key_value_attention_heads": 5}, "num_key_value_heads_per_layer"),
        ({"num_key_value_heads_per_layer": [1]}, "num_key_value_heads_per_layer"),
        ({"out_features": ["stage99"]}, "stage99"),
        ({"out_indices": [99]}, "out_indices"),
        ({"out_indices": [1], "out_features": ["stage2"]}, "out_features"),
        ({"head_config": {"upsample_out_channels": [8], "upsample_kernel_sizes": [4, 4]}}, "upsample_kernel_sizes"),
        ({"head_config": {"scale_conv_out_channels": [8]}}, "scale"),
        ({"head_config": {"norm": "batch"}}, "norm"),
        ({"hiden_size": 32}, "hidden_size"),
        ({"num_labels": -1}, "num_labels"),
    ],
)
def test_impossible_values_name_the_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sapiens2Config(**fields).validate()  # type: ignore[arg-type]  # as a model that is built from it does


def test_negative_stage_indices() -> None:
    config = Sapiens2Config(out_indices=[0, -1])
    assert config.out_features == ["stem", "stage24"]


def test_fields_of_our_own_stay_out_of_plain_files() -> None:
    written = Sapiens2Config().to_dict()
    assert "use_tokenizer" not in written
    assert Sapiens2Config(use_tokenizer=True).to_dict()["use_tokenizer"] is True
