"""`Model`, the base class of all models, and what it is built from: loading, adapters, methods of transformers."""

from vitruvian.model.base import Model, OutputT

__all__ = ["Model", "OutputT"]
