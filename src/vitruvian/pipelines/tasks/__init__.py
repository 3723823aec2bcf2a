"""The pipeline of each task; `vitruvian.tasks` is the table of them."""
