"""Memory attention: the features of a frame attend to the memories of the objects that are tracked.

    features [1, M, C] + 0.1 · sine positions ─▶ layers: self-attention ─ cross-attention to memory ─ MLP ─▶ [O, M, C]
    memory of O objects [O, T·M + N, C'] : T frames of M cells, then N tokens of object pointers

All objects share the features of the frame until they attend to their memories in the first layer. Queries and keys
have rotary positions in the grid of cells, the same in every frame of the memory; pointers are not rotated.
"""

from __future__ import annotations

from torch import Tensor, nn, unflatten
from torch.nn import functional as F

from vitruvian.images.types import SizeHW
from vitruvian.layers.mlp import activation
from vitruvian.layers.sine_positions import sine_positions
from vitruvian.models.sam2.configuration import Sam2VideoConfig
from vitruvian.models.sam2.layers import per_object
from vitruvian.ops.attention import attention
from vitruvian.ops.axial_key_attention import axial_key_attention
from vitruvian.ops.layer_norm import add_layer_norm, layer_norm_of_sum
from vitruvian.ops.rope import RopeTables, axial_rope_tables, rotate_pairs

_POSITION_SCALE = 0.1  # of the sine positions that are added to the features


class MemoryAttention(nn.Module):
    """Pre-norm layers that condition the features of a frame on memories."""

    def __init__(self, config: Sam2VideoConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MemoryAttentionLayer(config) for _ in range(config.memory_attention_num_layers))
        self.layer_norm = nn.LayerNorm(config.memory_attention_hidden_size)
        self.theta = float(config.rope_parameters["rope_theta"])
        self.head_dim = config.memory_attention_hidden_size // (
            config.memory_attention_num_attention_heads * config.memory_attention_downsample_rate
        )

    def forward(self, features: Tensor, memory: Tensor, positions: Tensor, *, pointer_tokens: int) -> Tensor:
        """Condition the features of a frame on the memories of O objects: [O, C, h, w].

        Args:
            features: Features of the frame [1, C, h, w], or of the frames of B clips, each with O / B objects.
            memory: Memories of whole frames, then tokens of object pointers [O, T·M + N, C'].
            positions: Positions of the memories [O | 1, T·M + N, C'].
            pointer_tokens: N, the number of tokens of object pointers.
        """
        grid_hw = (features.shape[2], features.shape[3])
        x = features.flatten(2).transpose(1, 2)  # [B, M, C]
        x = x + _POSITION_SCALE * sine_positions(grid_hw, x.shape[2], x.dtype, x.device)
        keys = memory + positions  # [O, T·M + N, C']
        rotation = axial_rope_tables(grid_hw, self.head_dim, self.theta, x.device)
        branch: Tensor | None = None
        for layer in self.layers:
            x, branch = layer(x, branch, keys, memory, rotation, grid_hw, pointer_tokens)
        if branch is not None:
            x = layer_norm_of_sum(x, branch, self.layer_norm)
        return unflatten(x.transpose(1, 2), 2, grid_hw)  # [O, C, h, w]


class MemoryAttentionLayer(nn.Module):
    """Self-attention, cross-attention to the memory and a feed-forward layer, each after a layer norm."""

    def __init__(self, config: Sam2VideoConfig) -> None:
        super().__init__()
        channels, hidden = config.memory_attention_hidden_size, config.memory_attention_feed_forward_hidden_size
        self.self_attn = RotaryAttention(config, channels)
        self.cross_attn_image = RotaryAttention(config, config.memory_encoder_output_channels)
        self.linear1 = nn.Linear(channels, hidden)
        self.linear2 = nn.Linear(hidden, channels)
        self.layer_norm1 = nn.LayerNorm(channels)
        self.layer_norm2 = nn.LayerNorm(channels)
        self.layer_norm3 = nn.LayerNorm(channels)
        self.act = activation(config.memory_attention_feed_forward_hidden_act)
        self.dropout = config.memory_attention_dropout

    def forward(
        self,
        x: Tensor,
        branch: Tensor | None,
        keys: Tensor,
        memory: Tensor,
        rotation: RopeTables,
        grid_hw: SizeHW,
        pointer_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        """Map x + branch [O | B, M, C] to a sum of two [O, M, C]."""
        x, normed = add_layer_norm(x, branch, self.layer_norm1)
        attended = self.self_attn(normed, normed, normed, rotation, grid_hw)
        x, normed = add_layer_norm(x, self._dropout(attended), self.layer_norm2)
        attended = self.cross_attn_image(normed, keys, memory, rotation, grid_hw, pointer_tokens)  # [O, M, C]
        x, normed = add_layer_norm(per_object(x, len(attended)), self._dropout(attended), self.layer_norm3)
        hidden = self._dropout(self.act(self.linear1(normed)))
        return x, self._dropout(self.linear2(hidden))

    def _dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, training=True) if self.training and self.dropout else x


class RotaryAttention(nn.Module):
    """Attention whose queries and keys have rotary positions in a grid."""

    attn_implementation = "sdpa"

    def __init__(self, config: Sam2VideoConfig, source_channels: int) -> None:
        super().__init__()
        channels = config.memory_attention_hidden_size
        inner = channels // config.memory_attention_downsample_rate
        self.heads = config.memory_attention_num_attention_heads
        self.dropout = config.memory_attention_rope_dropout
        self.q_proj = nn.Linear(channels, inner)
        self.k_proj = nn.Linear(source_channels, inner)
        self.v_proj = nn.Linear(source_channels, inner)
        self.o_proj = nn.Linear(inner, channels)

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        rotation: RopeTables,
        grid_hw: SizeHW,
        pointer_tokens: int = 0,
    ) -> Tensor:
        """Attend from [O | B, M, C] to keys and values [O, T·M + N, C'], the last N of which are not rotated."""
        q = per_object(rotate_pairs(self.q_proj(x), rotation, heads=self.heads), len(keys))  # [O, A, M, D]
        if self.heads == 1 and not self.training and values.shape[2] < q.shape[3]:
            # The projection of values to more channels commutes with attention.
            mean = axial_key_attention(
                q[:, 0],
                keys,
                values,
                self.k_proj,
                rotation,
                grid_hw=grid_hw,
                plain_tokens=pointer_tokens,
                implementation=self.attn_implementation,
            )  # [O, M, C']
            attended: Tensor = self.o_proj(self.v_proj(mean))
            return attended
        k = rotate_pairs(self.k_proj(keys), rotation, heads=self.heads, plain_tokens=pointer_tokens)
        v = unflatten(self.v_proj(values), 2, (self.heads, -1)).transpose(1, 2)  # [O, A, T·M + N, D]
        out, _ = attention(
            q, k, v, implementation=self.attn_implementation, dropout=self.dropout if self.training else 0.0
        )
        projected: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))  # [O, M, C]
        return projected
