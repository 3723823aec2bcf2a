"""How fast models are: time in turns with the reference, memory, arithmetic, and how far results differ."""
