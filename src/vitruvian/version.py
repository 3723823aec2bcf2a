"""The version, in the one place that packaging and `vitruvian.__version__` read."""

__version__ = "0.1.0"
