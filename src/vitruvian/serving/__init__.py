"""The HTTP service of `vitruvian serve`.

    request ─▶ auth, limits ─▶ options, upload ─▶ `ModelQueue` of the task ─▶ pipelines' engine ─▶ encoded answer
                               stored image ─────▶ mask decoder (a click)                       (by Accept)
                               job ──────────────▶ SQLite, a folder ─▶ `vitruvian TASK` in a process of its own

| module | holds |
|---|---|
| `settings` | what the server is started with, and its limits |
| `errors` | errors → status and JSON |
| `auth` | API keys |
| `options` | the options of each task over HTTP |
| `schemas` | JSON schemas of results, made from their `to_dict` |
| `content` | which kind of file answers a request |
| `metrics` | counters for Prometheus |
| `batching` | the queue of a model: images of concurrent requests share batches |
| `uploads` | request bodies, within the limits |
| `images` | uploaded images and their SAM 2 embeddings |
| `jobs` | videos and folders: stored, resumable, in processes of their own |
| `app` | the routes |
"""
