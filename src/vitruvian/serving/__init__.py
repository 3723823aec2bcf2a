"""The HTTP service of `vitruvian serve`.

request ─▶ auth, limits ─▶ options, upload ─▶ `ModelQueue` of the task ─▶ pipelines' engine ─▶ encoded answer
                           stored image ─────▶ mask decoder (a click)                       (by Accept)
                           job ──────────────▶ SQLite, a folder ─▶ `vitruvian TASK` in a process of its own
"""
