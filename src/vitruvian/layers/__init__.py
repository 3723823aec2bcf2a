"""Building blocks of the models: modules and functions with plain keyword arguments."""
