"""Time and memory of models."""
