"""How the built-in model and its training data were made; not part of the installed package."""
