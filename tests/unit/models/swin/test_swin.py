from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.families.swin import ALL_STAGES, swin_fields
from vitruvian.errors import ConfigError, InputError, WeightsError
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.resnet.modeling import ResNetBackbone
from vitruvian.models.swin.configuration import MaskFormerSwinConfig, SwinConfig
from vitruvian.models.swin.encoder import RelativePositionBias, SwinLayer, relative_position_index
from vitruvian.models.swin.modeling import MaskFormerSwinBackbone, SwinBackbone, SwinModel


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depths": [2, 2], "num_heads": [1, 2, 4]}, "one number of heads a stage"),
        ({"num_heads": [3, 6, 12, 24], "embed_dim": 16}, "divisors"),
        ({"window_size": 0}, "window_size"),
        ({"drop_path_rate": 1.0}, "drop_path_rate"),
        ({"hidden_act": "gelue"}, "gelu"),
        ({"image_size": [1, 2, 3]}, "image_size"),
        ({"out_features": ["stage5"]}, "stage5"),
        ({"depth": [1]}, "depths"),
    ],
)
def test_impossible_configurations(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SwinModel(SwinConfig(**fields))


def test_stages_can_be_changed_in_either_spelling(tmp_path: Path) -> None:
    config = SwinConfig(out_features=ALL_STAGES)
    assert config.out_indices == [1, 2, 3, 4]
    config.save_pretrained(tmp_path)
    assert SwinConfig.from_pretrained(tmp_path, out_indices=[2]).out_features == ["stage2"]
    assert SwinConfig.from_pretrained(tmp_path, out_features=["stem"]).out_indices == [0]
    assert SwinConfig.from_pretrained(tmp_path).out_features == ALL_STAGES
    config.set_stages(out_indices=[-1])
    assert config.out_features == ["stage4"]


def test_images_of_another_kind() -> None:
    model = SwinModel(SwinConfig(**swin_fields()))
    with pytest.raises(InputError, match=r"\[B, 3, H, W\]"):
        model(torch.zeros(1, 1, 64, 64))
    with pytest.raises(InputError, match="use_mask_token"):
        model(torch.zeros(1, 3, 64, 64), bool_masked_pos=torch.zeros(1, 256))
    positioned = SwinModel(SwinConfig(**swin_fields(use_absolute_embeddings=True)))
    positioned(torch.zeros(1, 3, 64, 64))
    with pytest.raises(InputError, match="interpolate_pos_encoding"):
        positioned(torch.zeros(1, 3, 64, 96))
    with pytest.raises(InputError, match=r"\[B, 3, H, W\]"):
        ResNetBackbone(ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1]))(torch.zeros(3, 32, 32))


def test_shifted_windows_let_neighbors_talk() -> None:
    torch.manual_seed(0)
    config = SwinConfig(**swin_fields(depths=[2], num_heads=[2], window_size=4))
    model = SwinModel(config).eval()
    with torch.no_grad():
        model.embeddings.patch_embeddings.projection.weight.mul_(10)
        pixels = torch.randn(1, 3, 64, 64)
        before = model(pixels)[0].unflatten(1, (16, 16))
        pixels[..., :4, :4] += 1  # the token at (0, 0)
        moved = (model(pixels)[0].unflatten(1, (16, 16)) - before).abs().sum(-1)[0] > 0
    # The first layer spreads it over its window, the second over the windows that this one touches after the shift;
    # what entered from the far side of the picture must not notice.
    assert moved[:6, :6].all()
    assert not moved[6:].any()
    assert not moved[:, 6:].any()


def test_backbone_opens_a_classifier(tmp_path: Path) -> None:
    config = SwinConfig(**swin_fields(out_features=ALL_STAGES))
    bare = SwinModel(config)
    bare.save_pretrained(tmp_path)
    tensors = {f"swin.{name}": value for name, value in load_file(tmp_path / "model.safetensors").items()}
    tensors |= {"classifier.weight": torch.zeros(2, 128), "classifier.bias": torch.zeros(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    backbone = SwinBackbone.from_pretrained(tmp_path)
    assert torch.equal(
        backbone.swin.encoder.layers[1].downsample.norm.weight, bare.encoder.layers[1].downsample.norm.weight
    )
    assert torch.equal(backbone.hidden_states_norms["stage1"].weight, torch.ones(16))
    again = SwinModel.from_pretrained(tmp_path)
    assert torch.equal(again.layernorm.weight, bare.layernorm.weight)


def test_position_bias_depends_on_the_relative_position_alone() -> None:
    module = RelativePositionBias(window=3, heads=2)
    module.init_parameters()
    table = module.relative_position_bias_table.data.normal_()
    bias = module.position_bias()
    assert bias.shape == (2, 9, 9)
    assert torch.equal(bias[:, 0, 0], bias[:, 8, 8])
    assert torch.equal(bias[:, 0, 4], bias[:, 4, 8])  # one down and one right
    assert not torch.equal(bias[:, 0, 4], bias[:, 4, 0])
    assert torch.equal(bias[:, 0, 8], table[0])  # two up and two left
    assert relative_position_index(3).unique().numel() == 25


def test_files_without_index_buffers_open(tmp_path: Path) -> None:
    model = SwinModel(SwinConfig(**swin_fields()))
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors_left = {name: value for name, value in tensors.items() if not name.endswith("relative_position_index")}
    assert len(tensors_left) == len(tensors) - 6
    save_file(tensors_left, tmp_path / "model.safetensors")
    pixels = torch.randn(1, 3, 52, 75)
    with torch.no_grad():
        assert torch.equal(SwinModel.from_pretrained(tmp_path)(pixels)[0], model.eval()(pixels)[0])
    del tensors_left["encoder.layers.0.blocks.0.attention.self.query.weight"]
    save_file(tensors_left, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"q_proj\.weight"):
        SwinModel.from_pretrained(tmp_path, strict=True)


def test_drop_path_grows_over_the_layers_and_drops_whole_branches() -> None:
    model = SwinModel(SwinConfig(**swin_fields(drop_path_rate=0.5)))
    rates = [module.drop_path.rate for module in model.modules() if isinstance(module, SwinLayer)]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    torch.manual_seed(0)
    pixels = torch.randn(8, 3, 32, 32)
    training = model.train()(pixels)[0]
    assert not torch.equal(training, model(pixels)[0])
    assert torch.equal(model.eval()(pixels)[0], model(pixels)[0])


def test_the_stem_has_no_norm_in_maskformer_files() -> None:
    with pytest.raises(ConfigError, match="stem"):
        MaskFormerSwinBackbone(MaskFormerSwinConfig(**swin_fields(out_features=["stem", "stage1"])))


@pytest.mark.parametrize("cls", [SwinBackbone, MaskFormerSwinBackbone])
def test_backbone_states_and_weights_on_demand(cls: Any) -> None:
    model = cls(cls.config_class(**swin_fields(out_features=["stage2"]))).eval()
    pixels = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        plain = model(pixels)
        full = model(pixels, output_hidden_states=True, output_attentions=True)
    assert plain.keys() == ["feature_maps"]
    torch.testing.assert_close(plain.feature_maps, full.feature_maps)
    stem, *stages = full.hidden_states
    if cls is SwinBackbone:
        shapes = [tuple(state.shape[1:]) for state in (stem, *stages)]
        assert shapes == [(16, 16, 24), (16, 16, 24), (32, 8, 12), (64, 4, 6), (128, 2, 3)]
    else:  # tokens before and after each layer
        assert [len(states) for states in stages] == [2 * depth for depth in model.config.depths]
        assert {tuple(state.shape) for state in stages[1]} == {(1, 96, 32)}
        assert stages[0][0] is stem
        assert stages[0][1] is stages[0][2]
    assert [weights.shape[1] for weights in full.attentions] == [1, 2, 2, 4]
    assert model.strides_hw == [(8, 8)]


def test_an_optimized_model_caches_position_biases_until_weights_change() -> None:
    torch.manual_seed(0)
    model, other = (SwinBackbone(SwinConfig(**swin_fields())).eval() for _ in range(2))
    with torch.no_grad():
        for parameter in (*model.parameters(), *other.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.2)
    pixels = torch.randn(1, 3, 52, 75)
    with torch.no_grad():
        want, other_want = model(pixels).feature_maps[0], other(pixels).feature_maps[0]
        model.optimize()
        bias = next(m for m in model.modules() if isinstance(m, RelativePositionBias))
        assert bias.position_bias() is bias.position_bias()
        torch.testing.assert_close(model(pixels).feature_maps[0], want)
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model(pixels).feature_maps[0], other_want)
        half = model.bfloat16()(pixels.bfloat16()).feature_maps[0]
        assert (half.float() - other_want).norm() < 0.1 * other_want.norm()
    model.float().train()(pixels).feature_maps[0].sum().backward()
    assert bias.relative_position_bias_table.grad.abs().sum() > 0
