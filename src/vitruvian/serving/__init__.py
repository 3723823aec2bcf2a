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
| `media_types` | which file format answers a request |
| `metrics` | counters for Prometheus |
| `batching` | the queue of a model: images of concurrent requests share batches |
| `uploads`, `upload_folder` | request bodies, within the limits; files of jobs and videos |
| `stored_images`, `stored_videos`, `lru_store` | uploads that are kept for prompts, with their SAM 2 embeddings |
| `job_store`, `job_process`, `jobs` | videos and folders: stored, resumable, in processes of their own |
| `service` | the models, stores and jobs that routes use |
| `routes` | the paths |
| `app`, `server` | the application, and the process that serves it |
"""
