"""The training loop, on accelerate: one process or several, CPU or GPU, in bfloat16 or float32.

    batches.batch(n) ──▶ objective(batch, generator) ──▶ loss ──▶ gradients ──▶ clip ──▶ optimizer ──▶ EMA
                                                                    └ not finite: the step is skipped and counted

    RUN/train.json, metrics.jsonl, tensorboard/, checkpoints/step-…/ (to resume from), model/ (to use)

A step is a function of the weights, the seed and its number, so that an interrupted run ends with the same weights.
On CUDA no step synchronizes the device: values are read when they are logged.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitruvian.errors import InputError, import_extra
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.training.checkpoints import TrainingState, find_checkpoint, load_checkpoint, save_checkpoint, save_scores
from vitruvian.training.config import TrainConfig, differences, write_config
from vitruvian.training.datasets.folder import FolderBatches, PeopleFolder
from vitruvian.training.datasets.stream import SyntheticStream
from vitruvian.training.ema import ExponentialMovingAverage
from vitruvian.training.evaluation.evaluate import Evaluate, make_validation
from vitruvian.training.learning_rate import learning_rate_factor, set_learning_rate
from vitruvian.training.log import RunLog
from vitruvian.training.objectives import make_objective
from vitruvian.training.optimizer import build_optimizer, named_weights
from vitruvian.training.seeds import RandomStream, derive_seed, seed_step
from vitruvian.training.synthetic.asset_pack import load_pack, training_split
from vitruvian.training.synthetic.procedural_pack import procedural_pack
from vitruvian.training.task_models import build_model, compile_parts, save_models


class Batches(Protocol):
    """A source of batches, numbered over all steps, accumulated batches and processes."""

    def batch(self, number: int, /) -> object:
        """Return what the objective takes."""


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a run."""

    folder: Path
    steps: int  # completed, earlier ones included
    loss: float  # mean since the last line of the log; NaN where no step was taken
    scores: dict[str, float]  # of the last evaluation
    skipped: int  # steps whose gradients were not finite
    interrupted: bool
    checkpoint: Path | None


def train(
    config: TrainConfig,
    *,
    objective: nn.Module | None = None,
    batches: Batches | None = None,
    evaluate: Evaluate | None = None,
) -> TrainResult:
    """Train a configuration; with checkpoint.resume "auto" a run in the same folder is resumed.

    Args:
        config: The run.
        objective: A module with `model` inside that returns the loss and its terms by name for (batch, generator); by
            default the tasks of `config.model`.
        batches: Where batches come from; by default the set `data.folder` or the people of `data.stream`.
        evaluate: Returns scores of the model after a number of steps; by default on the set `data.validation`.
    """
    accelerator = _open_accelerator(config)
    folder = Path(config.out).expanduser()
    if folder.is_file():
        raise InputError(f"{folder}: expected a folder for the run, got a file. Choose another path.")
    checkpoint = find_checkpoint(folder, config.checkpoint.resume)
    seed_step(config.seed, -1)
    objective = objective or make_objective(config, build_model(config.model))
    objective.to(accelerator.device).train()
    with contextlib.ExitStack() as stack:
        if evaluate is None and config.data.validation is not None:
            evaluate = make_validation(config, accelerator.device)
        run = _Run(config, folder, accelerator, objective, evaluate)
        notes = [] if checkpoint is None else run.resume(checkpoint)
        run.batches = batches or _open_batches(
            config, device=accelerator.device, processes=accelerator.num_processes, stack=stack
        )
        if accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            write_config(config, folder)
        run.log = stack.enter_context(
            RunLog(
                folder,
                steps=config.steps,
                start=run.state.step,
                console=config.log.console,
                tensorboard=config.log.tensorboard,
                active=accelerator.is_main_process,
            )
        )
        for note in notes:
            run.log.note(note)
        return run.run()


class _Run:
    """The state of a run."""

    log: RunLog
    batches: Batches

    def __init__(
        self, config: TrainConfig, folder: Path, accelerator: Any, objective: nn.Module, evaluate: Evaluate | None
    ) -> None:
        self.config, self.folder, self.accelerator = config, folder, accelerator
        self.objective, self.evaluate = objective, evaluate
        self.optimizer = build_optimizer(objective, config.optimizer)
        self.parameters = [parameter for _, parameter in named_weights(self.optimizer)]
        decay, warmup = config.ema.decay, config.ema.warmup
        self.ema = ExponentialMovingAverage(objective, decay=decay, warmup=warmup) if decay else None
        self.state = TrainingState()
        self.saved: Path | None = None
        if config.model.compile:
            compile_parts(self.model, heads=config.model.compile is True)
        self.prepared: Any = accelerator.prepare(objective)
        device = accelerator.device
        self.consecutive_nonfinite = torch.zeros((), device=device)  # steps in a row that were skipped
        self.skipped = torch.zeros((), device=device)
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}  # how often each was added up: tasks may take turns
        self.steps_since_log, self.images_since_log, self.last_log_time = 0, 0, time.perf_counter()
        self.loss = math.nan

    @property
    def model(self) -> nn.Module:
        """The model inside the objective."""
        inner = getattr(self.objective, "model", None)
        return inner if isinstance(inner, nn.Module) else self.objective

    def resume(self, checkpoint: Path) -> list[str]:
        """Resume from a checkpoint; return notes about it."""
        self.state, before = load_checkpoint(checkpoint, model=self.objective, optimizer=self.optimizer, ema=self.ema)
        self.consecutive_nonfinite.fill_(self.state.consecutive_nonfinite)
        self.skipped.fill_(self.state.skipped)
        self.saved = checkpoint
        changed = differences(TrainConfig.from_dict(before).to_dict(), self.config.to_dict())
        return [f"resuming from {checkpoint.name}", *(f"changed since then: {line}" for line in changed)]

    def run(self) -> TrainResult:
        """Run the remaining steps."""
        config = self.config
        interrupted = False
        self.last_log_time = time.perf_counter()
        with _stop_signal() as stopped:
            for step in range(self.state.step, config.steps):
                self.train_step(step)
                self.state.step = done = step + 1
                self.log.advance(done)
                last = done == config.steps
                if done % config.log.every == 0 or last:
                    self.log_means(done)
                if self.should_stop(stopped, done):
                    interrupted = not last
                saves = done % config.checkpoint.every == 0 or last or interrupted
                if saves:
                    self.save(models=config.checkpoint.models or last or interrupted)
                if interrupted:
                    self.log.note(f"stopped after {done} of {config.steps} steps; run it again to resume")
                    break
                if done % config.evaluation.every == 0 or last:
                    self.run_evaluation(done)
                    if saves and self.accelerator.is_main_process and self.saved is not None:
                        save_scores(self.saved, self.state.scores)
        self.read_counts()
        return TrainResult(
            folder=self.folder,
            steps=self.state.step,
            loss=self.loss,
            scores=self.state.scores,
            skipped=self.state.skipped,
            interrupted=interrupted,
            checkpoint=self.saved,
        )

    def train_step(self, step: int) -> None:
        """Run forward and backward passes of the batches of a step, and update the weights."""
        config, accelerator = self.config, self.accelerator
        process, processes = accelerator.process_index, accelerator.num_processes
        set_learning_rate(
            self.optimizer, config.optimizer.lr * learning_rate_factor(step, config.schedule, steps=config.steps)
        )
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(config.accumulation):
            number = (step * config.accumulation + part) * processes + process
            batch = self.batches.batch(number)
            generator = torch.Generator().manual_seed(derive_seed(config.seed, RandomStream.OBJECTIVE, number))
            seed_step(config.seed, number)
            last = part == config.accumulation - 1
            with contextlib.nullcontext() if last else accelerator.no_sync(self.prepared):
                with torch.autocast(
                    accelerator.device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16"
                ):
                    loss, terms = self.prepared(batch, generator)
                accelerator.backward(loss / config.accumulation)
            self.accumulate({"loss": loss, **terms}, batch)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, config.optimizer.clip or math.inf)
        finite = _update_weights(self.optimizer, norm)
        self.consecutive_nonfinite = torch.where(finite, 0.0, self.consecutive_nonfinite + 1)
        self.skipped = self.skipped + torch.where(finite, 0.0, 1.0)
        self.accumulate({"gradient_norm": norm}, None)
        self.steps_since_log += 1
        if self.ema is not None:
            self.ema.update(self.objective)

    def accumulate(self, values: Mapping[str, Tensor], batch: object) -> None:
        """Add values to the sums since the last line of the log, without synchronization."""
        for name, value in values.items():
            value = value.detach().float()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + 1
        views = batch.values() if isinstance(batch, Mapping) else (batch,)
        self.images_since_log += sum(len(images) for images in views if isinstance(images, Sized))

    def log_means(self, step: int) -> None:
        """Log the means since the last line; raise where gradients have not been finite for many steps."""
        names = list(self.sums)
        local_means = torch.stack([self.sums[name] / self.counts[name] for name in names])  # [terms]
        means = dict(zip(names, self.accelerator.reduce(local_means, reduction="mean").tolist(), strict=True))
        self.read_counts()
        seconds = time.perf_counter() - self.last_log_time
        self.state.seconds += seconds
        self.loss = means["loss"]
        values = means | {
            "lr": max(float(group["lr"]) for group in self.optimizer.param_groups),
            "steps/s": self.steps_since_log / seconds,
            "skipped": float(self.state.skipped),
        }
        if self.images_since_log:
            values["images/s"] = self.images_since_log * self.accelerator.num_processes / seconds
        self.log.train(step, values)
        self.sums, self.counts = {}, {}
        self.steps_since_log, self.images_since_log, self.last_log_time = 0, 0, time.perf_counter()
        if self.state.consecutive_nonfinite >= self.config.max_nonfinite_steps:
            raise InputError(
                f"training: none of the last {self.state.consecutive_nonfinite} steps had finite gradients. "
                "Lower optimizer.lr, warm up for longer (schedule.warmup), or look for bad labels; the last good "
                f"weights are in {self.saved or 'no checkpoint yet'}."
            )

    def read_counts(self) -> None:
        """Copy the counts of skipped steps from the device."""
        in_a_row, skipped = torch.stack([self.consecutive_nonfinite, self.skipped]).tolist()
        self.state.consecutive_nonfinite, self.state.skipped = int(in_a_row), int(skipped)

    def save(self, *, models: bool) -> None:
        """Write a checkpoint and, with `models`, the models to use."""
        self.read_counts()
        if self.accelerator.is_main_process:
            self.saved = save_checkpoint(
                self.folder,
                model=self.objective,
                optimizer=self.optimizer,
                ema=self.ema,
                state=self.state,
                config=self.config.to_dict(),
                keep=self.config.checkpoint.keep,
            )
            if models and isinstance(self.model, Sapiens2MultiTask):
                with self.ema_weights():
                    save_models(self.model, self.folder / "model", pad=self.config.data.view == "image")
        self.accelerator.wait_for_everyone()

    def run_evaluation(self, step: int) -> None:
        """Evaluate the EMA weights; the time for it counts for no step."""
        if self.evaluate is None:
            return
        start = time.perf_counter()
        if self.accelerator.is_main_process:
            self.objective.eval()
            with self.ema_weights(), torch.no_grad():
                self.state.scores = dict(self.evaluate(self.model, step))
            self.objective.train()
            self.log.evaluation(step, self.state.scores)
        self.accelerator.wait_for_everyone()
        self.last_log_time += time.perf_counter() - start

    def ema_weights(self) -> contextlib.AbstractContextManager[None]:
        """Replace the weights by their EMA within the context, if there is one."""
        return contextlib.nullcontext() if self.ema is None else self.ema.applied(self.objective)

    def should_stop(self, stopped: threading.Event, step: int) -> bool:
        """Return whether a signal asked to stop; several processes agree on it when they log."""
        if self.accelerator.num_processes == 1:
            return stopped.is_set()
        if step % self.config.log.every:
            return False
        flag = torch.tensor(float(stopped.is_set()), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, reduction="sum") > 0)


def _update_weights(optimizer: torch.optim.AdamW, norm: Tensor) -> Tensor:
    """Update the weights unless the gradient norm is not finite; return whether it is, a bool tensor []."""
    finite = norm.isfinite()
    if optimizer.defaults.get("fused"):
        # The fused kernel skips the update where `found_inf` is 1, without synchronization.
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif bool(finite):
        optimizer.step()
    return finite


@contextlib.contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGINT or SIGTERM sets; a second signal raises KeyboardInterrupt."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open_batches(
    config: TrainConfig, *, device: torch.device, processes: int, stack: contextlib.ExitStack
) -> FolderBatches | SyntheticStream:
    """Open the batches of a configuration; `stack` closes them."""
    data = config.data
    if data.stream.pack is not None:
        procedural = data.stream.pack == "procedural"
        pack = procedural_pack(config.seed) if procedural else load_pack(Path(data.stream.pack).expanduser())
        return SyntheticStream(training_split(pack), config, device=device)
    if data.folder is None:
        raise InputError(
            "data.folder: expected a dataset to train on, got none. Write one with: vitruvian synthesize --count 1000 "
            "--out FOLDER; or name a pack in data.stream.pack."
        )
    height, width = config.model.image_size
    people = PeopleFolder(data.folder, size_hw=(height, width), tasks=config.model.tasks, view=data.view)
    batches = FolderBatches(people, config, device=device, processes=processes)
    return stack.enter_context(contextlib.closing(batches))


def _open_accelerator(config: TrainConfig) -> Any:
    """Create an accelerator. Its mixed precision is off: it would copy large outputs."""
    accelerate = import_extra("accelerate", "train", "training")
    return accelerate.Accelerator(cpu=config.device == "cpu", mixed_precision="no")
