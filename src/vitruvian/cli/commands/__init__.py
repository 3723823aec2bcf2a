"""The commands: those of tasks as dataclasses in `tasks` and `track`, the others as functions, one module each."""
