"""Training and evaluation of Sapiens2, and the synthetic people that it is trained on.

    TrainConfig ─▶ loop.train: task_models, datasets, objectives, optimizer, ema, checkpoints, log, evaluation

| where is decided | file |
|---|---|
| which settings a run has | `config` |
| which losses a task trains with, and their weights | `objectives`; the losses are in `vitruvian.losses` |
| what a model starts from, and how it is saved for use | `task_models` |
| weight decay, AdamW or Muon, the learning rate of each layer | `optimizer`; `muon` |
| how the learning rate changes over a run | `learning_rate` |
| how the random numbers of a run are seeded | `seeds` |
| what a step does; when to log, evaluate, save and stop | `loop` |
| what a checkpoint holds, which are kept, how a run resumes | `checkpoints` |
| how a dataset on disk is read | `datasets.folder`; its files are defined in `synthetic.dataset` |
| how ground truth becomes labels | `datasets.labels` |
| how images are augmented | `datasets.augmentation`, and `datasets.compose` for rendered people |
| how people are posed, dressed, lit and rendered | `synthetic`: `posing`, `clothing`, `lighting`, `render` |
| how a score is computed | `evaluation`, a file for each kind of metric |
| which metrics a task is evaluated with | `evaluation.evaluate` |
"""
