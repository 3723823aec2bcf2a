"""The training loop, on accelerate: one process or several, CPU or GPU, in bfloat16 or float32.

    batches.batch(n) ──▶ objective(batch, generator) ──▶ loss ──▶ gradients ──▶ clip ──▶ AdamW ──▶ average
                                                                    └ not finite: the step is skipped and counted

    RUN/train.json, metrics.jsonl, tensorboard/, checkpoints/step-…/ (to go on from), model/ (to use)

A step is a function of the weights, the seed and its number, so a run that was interrupted ends where it would have
ended. Nothing in a step waits for the device, on CUDA: numbers are read when they are logged.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.errors import InputError, MissingExtraError
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.training.checkpoints import RunState, find_checkpoint, load_checkpoint, save_checkpoint, seed_step
from vitruvian.training.config import TrainConfig, differences, write_config
from vitruvian.training.datasets.sources import open_batches
from vitruvian.training.ema import WeightAverage
from vitruvian.training.evaluate import Evaluate, folder_evaluation
from vitruvian.training.log import RunLog
from vitruvian.training.models import build_model, compile_parts, save_models
from vitruvian.training.objectives import make_objective
from vitruvian.training.optimizer import build_optimizer, rate, set_rate, trained
from vitruvian.training.synthetic.rng import derive_seed


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    folder: Path
    steps: int  # that are done, earlier ones included
    loss: float  # mean since the last line of the log; NaN where no step was taken
    scores: dict[str, float]  # of the last evaluation
    skipped: int  # steps whose gradients were not finite
    interrupted: bool
    checkpoint: Path | None


def train(
    config: TrainConfig,
    *,
    objective: nn.Module | None = None,
    batches: Any = None,
    evaluate: Evaluate | None = None,
) -> TrainResult:
    """Train as a configuration says; with checkpoint.resume "auto" a run in the same folder goes on.

    Args:
        config: The run.
        objective: A module with `model` inside that returns the loss and its terms by name for (batch, generator); by
            default the tasks of `config.model`.
        batches: An object whose `batch(number)` returns what the objective takes; by default the set `data.folder` or
            the people of `data.stream`.
        evaluate: Returns scores of the model after a number of steps; by default on the set `data.validation`.
    """
    accelerator = open_accelerator(config)
    folder = Path(config.out).expanduser()
    if folder.is_file():
        raise InputError(f"{folder}: expected a folder for the run, got a file. Choose another path.")
    place = find_checkpoint(folder, config.checkpoint.resume)
    seed_step(config.seed, -1)
    objective = objective or make_objective(config, build_model(config.model))
    objective.to(accelerator.device).train()
    with contextlib.ExitStack() as stack:
        if evaluate is None and config.data.validation is not None:
            evaluate = folder_evaluation(config, accelerator.device)
        run = Run(config, folder, accelerator, objective, evaluate)
        notes = [] if place is None else run.resume(place)
        run.batches = batches or open_batches(
            config,
            run.model,
            device=accelerator.device,
            processes=accelerator.num_processes,
            stack=stack,
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
        return run.go()


class Run:
    """A run on its way."""

    log: RunLog
    batches: Any

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        accelerator: Any,
        objective: nn.Module,
        evaluate: Evaluate | None,
    ) -> None:
        self.config, self.folder, self.accelerator = config, folder, accelerator
        self.objective, self.evaluate = objective, evaluate
        self.optimizer = build_optimizer(objective, config.optimizer)
        self.parameters = [parameter for _, parameter in trained(self.optimizer)]
        ema = config.ema
        self.average = WeightAverage(objective, decay=ema.decay, warmup=ema.warmup) if ema.decay else None
        self.state = RunState()
        self.saved: Path | None = None
        if config.model.compile:
            compile_parts(self.model, heads=config.model.compile is True)
        self.wrapped: Any = accelerator.prepare(objective)
        device = accelerator.device
        self.bad = torch.zeros((), device=device)  # steps in a row that were skipped
        self.skipped = torch.zeros((), device=device)
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}  # how often each was added up: tasks may take turns
        self.since, self.pictures, self.clock = 0, 0, time.perf_counter()
        self.loss = math.nan

    @property
    def model(self) -> nn.Module:
        """What is inside the objective."""
        inner = getattr(self.objective, "model", None)
        return inner if isinstance(inner, nn.Module) else self.objective

    def resume(self, place: Path) -> list[str]:
        """Go on from a checkpoint; return what there is to say about it."""
        self.state, before = load_checkpoint(
            place, model=self.objective, optimizer=self.optimizer, average=self.average
        )
        self.bad.fill_(self.state.bad_in_a_row)
        self.skipped.fill_(self.state.skipped)
        self.saved = place
        changed = differences(before, self.config.to_dict())
        return [f"going on from {place.name}", *(f"changed since then: {line}" for line in changed)]

    def go(self) -> TrainResult:
        """Take all steps that are left."""
        config = self.config
        interrupted = False
        self.clock = time.perf_counter()
        with stop_signal() as stopped:
            for step in range(self.state.step, config.steps):
                self.take_step(step)
                self.state.step = done = step + 1
                self.log.advance(done)
                last = done == config.steps
                if done % config.log.every == 0 or last:
                    self.report(done)
                if self.asked_to_stop(stopped, done):
                    interrupted = not last
                if done % config.checkpoint.every == 0 or last or interrupted:
                    self.save(models=config.checkpoint.models or last or interrupted)
                if interrupted:
                    self.log.note(f"stopped after {done} of {config.steps} steps; run it again to go on")
                    break
                if done % config.evaluation.every == 0 or last:
                    self.judge(done)
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

    def take_step(self, step: int) -> None:
        """Run the batches of a step forwards and backwards, and move the weights."""
        config, accelerator = self.config, self.accelerator
        process, processes = accelerator.process_index, accelerator.num_processes
        set_rate(self.optimizer, config.optimizer.lr * rate(step, config.schedule, steps=config.steps))
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(config.accumulation):
            number = (step * config.accumulation + part) * processes + process
            batch = self.batches.batch(number)
            generator = torch.Generator().manual_seed(derive_seed(config.seed, 2, number))
            seed_step(config.seed, number)
            last = part == config.accumulation - 1
            with contextlib.nullcontext() if last else accelerator.no_sync(self.wrapped):
                with torch.autocast(
                    accelerator.device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16"
                ):
                    loss, terms = self.wrapped(batch, generator)
                accelerator.backward(loss / config.accumulation)
            self.add_up({"loss": loss, **terms}, batch)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, config.optimizer.clip or math.inf)
        finite = move_weights(self.optimizer, norm)
        self.bad = torch.where(finite, 0.0, self.bad + 1)
        self.skipped = self.skipped + torch.where(finite, 0.0, 1.0)
        self.add_up({"gradient_norm": norm}, None)
        self.since += 1
        if self.average is not None:
            self.average.update(self.objective)

    def add_up(self, values: Mapping[str, Tensor], batch: Any) -> None:
        """Add numbers to the sums since the last line of the log, without reading them."""
        for name, value in values.items():
            value = value.detach().float()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + 1
        self.pictures += len(batch) if hasattr(batch, "__len__") else 0

    def report(self, step: int) -> None:
        """Log the means since the last line, and give up where training has broken down."""
        names = list(self.sums)
        together = torch.stack([self.sums[name] / self.counts[name] for name in names])  # [terms]
        means = dict(zip(names, self.accelerator.reduce(together, reduction="mean").tolist(), strict=True))
        self.read_counts()
        seconds = time.perf_counter() - self.clock
        self.state.seconds += seconds
        self.loss = means["loss"]
        values = means | {
            "lr": max(float(group["lr"]) for group in self.optimizer.param_groups),
            "steps/s": self.since / seconds,
            "skipped": float(self.state.skipped),
        }
        if self.pictures:
            values["pictures/s"] = self.pictures * self.accelerator.num_processes / seconds
        self.log.train(step, values)
        self.sums, self.counts, self.since, self.pictures, self.clock = {}, {}, 0, 0, time.perf_counter()
        if self.state.bad_in_a_row >= self.config.most_bad_steps:
            raise InputError(
                f"training: expected finite gradients, but none of the last {self.state.bad_in_a_row} steps had them. "
                "Lower optimizer.lr, warm up for longer (schedule.warmup), or look for bad labels; the last good "
                f"weights are in {self.saved or 'no checkpoint yet'}."
            )

    def read_counts(self) -> None:
        """Bring the counts of skipped steps from the device."""
        bad, skipped = torch.stack([self.bad, self.skipped]).tolist()
        self.state.bad_in_a_row, self.state.skipped = int(bad), int(skipped)

    def save(self, *, models: bool) -> None:
        """Write a checkpoint to go on from and, where asked, the models to use."""
        self.read_counts()
        if self.accelerator.is_main_process:
            self.saved = save_checkpoint(
                self.folder,
                model=self.objective,
                optimizer=self.optimizer,
                average=self.average,
                state=replace(self.state),
                config=self.config.to_dict(),
                keep=self.config.checkpoint.keep,
            )
            if models and isinstance(self.model, Sapiens2MultiTask):
                with self.averaged():
                    save_models(self.model, self.folder / "model", pad=self.config.data.view == "picture")
        self.accelerator.wait_for_everyone()

    def judge(self, step: int) -> None:
        """Evaluate the averaged weights."""
        if self.evaluate is None:
            return
        if self.accelerator.is_main_process:
            self.objective.eval()
            with self.averaged(), torch.no_grad():
                self.state.scores = dict(self.evaluate(self.model, step))
            self.objective.train()
            self.log.evaluation(step, self.state.scores)
        self.accelerator.wait_for_everyone()
        self.clock = time.perf_counter()

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """The average of weights in place of the weights, where there is one."""
        return contextlib.nullcontext() if self.average is None else self.average.applied(self.objective)

    def asked_to_stop(self, stopped: threading.Event, step: int) -> bool:
        """Whether somebody pressed Ctrl-C; several processes agree on it when they log."""
        if self.accelerator.num_processes == 1:
            return stopped.is_set()
        if step % self.config.log.every:
            return False
        flag = torch.tensor(float(stopped.is_set()), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, reduction="sum") > 0)


def move_weights(optimizer: torch.optim.AdamW, norm: Tensor) -> Tensor:
    """Take a step unless the norm of the gradients is not finite; return whether it was, a bool tensor []."""
    finite = norm.isfinite()
    if optimizer.defaults.get("fused"):
        # The fused kernel leaves weights, moments and count alone where `found_inf` is 1: nobody waits for the device.
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif bool(finite):
        optimizer.step()
    return finite


@contextlib.contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C or a request to end sets; a second Ctrl-C stops at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: Any) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_accelerator(config: TrainConfig) -> Any:
    """Start accelerate. Precision is ours to choose: its own way would copy large outputs."""
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise MissingExtraError("accelerate", "train", "training") from error
    return Accelerator(cpu=config.device == "cpu", mixed_precision="no")
