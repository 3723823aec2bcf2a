"""`SaveConfigMixin`: checkpoints of `transformers.Trainer` with a `config.json`."""

from __future__ import annotations

from typing import Any

from vitruvian.model import Model


class SaveConfigMixin:
    """A mixin for `transformers.Trainer` that writes `config.json` beside the weights, so that folders can be opened.

    `Trainer` by itself trains, saves weights and resumes, but writes the configurations of its own model classes only.
    Use it as ``class MyTrainer(SaveConfigMixin, transformers.Trainer): ...``.
    """

    args: Any
    model: Any

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model; `Trainer` calls it for checkpoints too."""
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]
        if self.args.should_save and isinstance(self.model, Model):
            self.model.config.architectures = [type(self.model).__name__]
            self.model.config.save_pretrained(output_dir or self.args.output_dir)
