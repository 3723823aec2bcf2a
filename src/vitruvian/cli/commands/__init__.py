"""The commands: those of tasks as dataclasses in `tasks`, the others as functions, one module each."""
