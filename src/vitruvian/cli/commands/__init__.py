"""The commands, one module each: a `TaskCommand` for tasks, a function for the others."""
