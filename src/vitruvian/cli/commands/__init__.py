"""The commands: dataclasses for tasks, in `image_tasks` and `track`; functions for the others, one module each."""
