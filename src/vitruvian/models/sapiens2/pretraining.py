"""Pretraining: masked reconstruction, and self-distillation from a teacher.

student(view, mask) -> reconstructions [B, N, p·p·3], projections [B, K]
teacher(other view) -> projections [B, K], an exponential moving average of the student without gradients
"""

from __future__ import annotations

import copy
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.losses.pretraining import TeacherCenter, ema_update, masked_reconstruction_loss, self_distillation_loss
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.modeling import Sapiens2Model, Sapiens2PreTrainedModel
from vitruvian.models.sapiens2.outputs import Sapiens2PreTrainingOutput
from vitruvian.outputs import OutputKwargs


class Sapiens2ForPreTraining(Sapiens2PreTrainedModel):
    """The encoder with a linear decoder of patches and a projection onto prototypes.

    The configuration needs `use_mask_token=True` and square patches.
    """

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__(config)
        down, across = config.patch_hw
        if not config.use_mask_token or down != across:
            raise InputError("Sapiens2ForPreTraining: expected use_mask_token=True and square patches.")
        self.model = Sapiens2Model(config)
        self.reconstruction_head = nn.Linear(config.hidden_size, down * across * config.num_channels)
        self.projection_head = _ProjectionHead(
            config.hidden_size, config.projection_hidden_size, config.projection_bottleneck_size, config.num_prototypes
        )
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        teacher_logits: Tensor | None = None,
        center: Tensor | None = None,
        *,
        student_temp: float = 0.1,
        teacher_temp: float = 0.04,
        distillation_weight: float = 1.0,
        **kwargs: Unpack[OutputKwargs],
    ) -> Sapiens2PreTrainingOutput:
        """Reconstruct patches and project the class token.

        Args:
            pixel_values: Prepared images [B, 3, H, W].
            bool_masked_pos: Patches to hide, [B, N]; the loss reconstructs these.
            teacher_logits: The teacher's projections [B, K] of another view of the same images.
            center: Subtracted from them [K] (see `TeacherCenter`).
            student_temp: Temperature of the student's distribution.
            teacher_temp: Temperature of the teacher's distribution.
            distillation_weight: Weight of the self-distillation beside the reconstruction.
            kwargs: See `OutputKwargs`.
        """
        flags = self.output_flags(**kwargs)
        encoded = self.model(pixel_values, bool_masked_pos, **flags.for_inner())
        patches = encoded.last_hidden_state[:, 1 + self.config.num_register_tokens :]  # [B, N, C]
        output = Sapiens2PreTrainingOutput(
            reconstructions=self.reconstruction_head(patches),  # [B, N, p·p·3]
            projections=self.projection_head(encoded.pooler_output),  # [B, K]
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        terms: dict[str, Tensor] = {}
        if bool_masked_pos is not None and output.reconstructions is not None:
            terms["reconstruction"] = masked_reconstruction_loss(
                output.reconstructions, pixel_values, bool_masked_pos, self.config.patch_hw[0]
            )
        if teacher_logits is not None and output.projections is not None:
            terms["distillation"] = distillation_weight * self_distillation_loss(
                output.projections, teacher_logits, center, student_temp, teacher_temp
            )
        if terms:
            output.loss, output.loss_terms = torch.stack(list(terms.values())).sum(), terms
        return self.format_output(output, flags.return_dict)


class _ProjectionHead(nn.Module):
    """Three linear layers to a unit vector, compared with unit prototypes."""

    def __init__(self, channels: int, hidden: int, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(channels, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, bottleneck)]
        )
        self.prototypes = nn.Linear(bottleneck, prototypes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C] to cosines [B, K]."""
        for layer in self.layers[:-1]:
            x = F.gelu(layer(x))
        x = F.normalize(self.layers[-1](x), dim=-1)
        return F.linear(x, F.normalize(self.prototypes.weight, dim=-1))


class SelfDistillation(nn.Module):
    """A student, its teacher and the center of the teacher's scores; a call returns the output with the loss.

    Args:
        student: The model to train.
        momentum: Momentum of the teacher.
        center_momentum: Momentum of the center.
    """

    def __init__(
        self, student: Sapiens2ForPreTraining, *, momentum: float = 0.996, center_momentum: float = 0.9
    ) -> None:
        super().__init__()
        self.student = student
        self.teacher = copy.deepcopy(student).eval().requires_grad_(False)
        self.center = TeacherCenter(student.projection_head.prototypes.out_features, momentum=center_momentum)
        self.momentum = momentum

    def forward(
        self, view: Tensor, other_view: Tensor, bool_masked_pos: Tensor, **options: Any
    ) -> Sapiens2PreTrainingOutput:
        """Return the output of the student on a masked `view` [B, 3, H, W], with the teacher on `other_view`."""
        with torch.no_grad():
            logits = self.teacher(other_view).projections
        output: Sapiens2PreTrainingOutput = self.student(
            view, bool_masked_pos, teacher_logits=logits, center=self.center.value.clone(), **options
        )
        if self.training:
            self.center.update(logits)
        return output

    def train(self, mode: bool = True) -> SelfDistillation:
        """Set the mode of the student; the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def step(self) -> None:
        """Update the teacher; call it after each optimizer step."""
        ema_update(self.teacher, self.student, self.momentum)
