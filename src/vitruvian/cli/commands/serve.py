"""`vitruvian serve`: all tasks over HTTP."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitruvian.cli.option_groups import MODEL, Debug, DeviceOption, DtypeOption, Quiet, VerbosityGroup
from vitruvian.errors import CheckpointError, InputError, MissingExtraError
from vitruvian.tasks import PIPELINE_TASKS, TASKS, find_task

if TYPE_CHECKING:
    from vitruvian.cli.console_report import ConsoleReport
    from vitruvian.serving.settings import Settings

EXAMPLE = "vitruvian serve --model pose=facebook/sapiens2-pose-0.4b --model segment=facebook/sam2.1-hiera-tiny"
_model_option = partial(typer.Option, rich_help_panel=MODEL)
_access_option = partial(typer.Option, rich_help_panel="Access")
_limit_option = partial(typer.Option, rich_help_panel="Limits")
_cluster_option = partial(typer.Option, rich_help_panel="Cluster")
_PREFIX = "VITRUVIAN_SERVE_"
_SAM2_TASKS = ("masks", "track")  # also served by the checkpoint of segment, if it can do them


def serve(
    model: Annotated[
        list[str] | None,
        _model_option(
            "--model",
            "-m",
            help="TASK=CHECKPOINT, repeated for each task, or builtin for all tasks that it has and no other model "
            "serves. By default builtin. The checkpoint of segment also serves masks and track.",
        ),
    ] = None,
    detect: Annotated[
        str | None,
        _model_option(help="Person detector: a checkpoint or an ONNX file.", show_default="the model, or builtin"),
    ] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    batch_size: Annotated[int | None, _model_option(help="Inputs in a batch.", min=1, show_default="by device")] = None,
    host: Annotated[str, _access_option(help="Address to listen on.", envvar=f"{_PREFIX}HOST")] = "127.0.0.1",
    port: Annotated[
        int,
        _access_option(help="Port; 0 chooses a free one.", min=0, max=65535, envvar=f"{_PREFIX}PORT"),
    ] = 8000,
    api_key_file: Annotated[
        Path | None,
        _access_option(
            help="File of API keys; clients must send one of them. Required unless --host is a loopback address.",
            envvar=f"{_PREFIX}API_KEY_FILE",
        ),
    ] = None,
    add_key: Annotated[
        str | None,
        _access_option(metavar="NAME", help="Add a key to --api-key-file, print it and exit."),
    ] = None,
    allow_urls: Annotated[
        bool,
        _access_option("--allow-urls", help="Let clients send URLs of images; only public hosts are fetched."),
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        _access_option(help="Origin whose pages may call the server, such as https://example.com. Repeat for more."),
    ] = None,
    data: Annotated[
        Path | None,
        _limit_option(
            help="Folder for jobs and their results.",
            show_default="~/.local/share/vitruvian/serve",
            envvar=f"{_PREFIX}DATA",
        ),
    ] = None,
    job_workers: Annotated[int, _limit_option(help="Jobs that run at the same time.", min=1)] = 1,
    limit: Annotated[
        list[str] | None,
        _limit_option(metavar="NAME=VALUE", help="Set a limit, e.g. upload_bytes=1e8 or queue=16. Repeatable."),
    ] = None,
    ray: Annotated[
        bool,
        _cluster_option(
            "--ray", help="Run on Ray Serve, on the cluster of this machine or of RAY_ADDRESS. See docs/scale.md."
        ),
    ] = False,
    replicas: Annotated[
        str,
        _cluster_option(
            help="With --ray: replicas that answer requests; 1:8 for 1 to 8, by the number of requests that wait."
        ),
    ] = "1",
    target_requests: Annotated[
        float,
        _cluster_option(help="With --ray: open requests of each replica above which replicas are added.", min=1),
    ] = 8.0,
    gpus_per_replica: Annotated[
        float,
        _cluster_option(help="With --ray: GPUs of each replica, possibly a fraction.", min=0),
    ] = 0.0,
    print_config: Annotated[
        bool,
        _cluster_option("--print-config", help="With --ray: print the file that `serve deploy` takes, and exit."),
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Serve tasks over HTTP, with a web UI, until Ctrl-C. By default the people tasks, with the built-in model."""
    try:
        from vitruvian.serving.auth import add_key as add_new_key
        from vitruvian.serving.auth import read_keys
        from vitruvian.serving.server import run_server
        from vitruvian.serving.settings import Settings, default_data_folder, read_limits
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "serve", "vitruvian serve") from error
    from vitruvian.cli.console_report import ConsoleReport
    from vitruvian.limits import use_limits

    if add_key is not None:
        if api_key_file is None:
            raise InputError("--add-key requires --api-key-file.")
        typer.echo(add_new_key(api_key_file, add_key))
        return
    report = ConsoleReport(VerbosityGroup(quiet=quiet, debug=debug))
    changes, limits = read_limits(dict(text.partition("=")[::2] for text in limit or ()), subject="--limit")
    settings = Settings(
        models=_resolve_models(model or []),
        data=(data or default_data_folder()).expanduser().absolute(),
        host=host,
        port=port,
        keys=() if api_key_file is None else read_keys(api_key_file),
        device=device,
        dtype=dtype,
        detector=None if detect is None else _absolute(detect),
        batch_size=batch_size,
        job_workers=job_workers,
        allow_urls=allow_urls,
        cors_origins=tuple(cors_origin or ()),
        limits=limits,
        image_limits=changes,
    )
    tasks = ", ".join(settings.models)
    if ray or print_config:
        least, _, most = replicas.partition(":")
        if not (least.isdecimal() and (most or least).isdecimal()):
            raise InputError(f"--replicas: expected a number, or two such as 1:4, got {replicas!r}.")
        scaling = {"min_replicas": int(least), "max_replicas": int(most or least)}
        _serve_on_ray(settings, report, print_config, target_requests=target_requests, gpus=gpus_per_replica, **scaling)
        return
    with use_limits(**settings.process_limits()):
        run_server(
            settings, on_start=lambda address: report.say(f"Serving {tasks} at {address}; press Ctrl-C to stop.")
        )
    report.say("Stopped.")
    sys.stderr.flush()


def _serve_on_ray(settings: Settings, report: ConsoleReport, print_config: bool, **scaling: Any) -> None:
    """Run as deployments of Ray Serve until Ctrl-C, or print their configuration."""
    from vitruvian.scale.cluster import connect_to_ray, import_ray
    from vitruvian.scale.ray_serve import Scaling, import_serve, serve_config, start_on_serve

    ray, serve = import_ray(), import_serve()
    if print_config:
        import yaml

        typer.echo(yaml.safe_dump(serve_config(settings, Scaling(**scaling)), sort_keys=False), nl=False)
        return
    with connect_to_ray(ray, None) as dashboard:
        if dashboard:
            report.say(f"Ray's dashboard: http://{dashboard}")
        try:
            start_on_serve(settings, Scaling(**scaling))
            report.say(f"Serving {', '.join(settings.models)} at http://{settings.host}:{settings.port}; Ctrl-C ends.")
            signal.pause()
        except KeyboardInterrupt:
            report.say("Stopped.")
        finally:
            serve.shutdown()


def _resolve_models(texts: Sequence[str]) -> dict[str, str]:
    """Return the checkpoint of each task, in the order of the table of tasks."""
    from vitruvian.cli.checkpoints import check_model
    from vitruvian.hub import BUILTIN
    from vitruvian.models.sapiens2.multitask_checkpoint import local_heads

    models: dict[str, str] = {}
    for text in texts or [BUILTIN]:
        name, equals, checkpoint = text.partition("=")
        if equals and not Path(text).expanduser().exists():
            if not checkpoint:
                raise InputError(f"--model: expected TASK=CHECKPOINT, got {text!r}.")
            models[_task(name)] = _absolute(checkpoint)
            check_model(_absolute(checkpoint), TASKS[_task(name)])
            continue
        checkpoint = _absolute(text)
        heads = local_heads(checkpoint)
        served = [
            row.name
            for row in TASKS.values()
            if row.has_pipeline and (row.sapiens2_head in heads or row.name == "embed")
        ]
        if not heads:
            raise InputError(
                f"--model: expected TASK=CHECKPOINT, got {text!r}, which has one task. Try --model pose={text}."
            )
        models |= {task: models.get(task, checkpoint) for task in served}
    for task in _SAM2_TASKS:
        if "segment" in models and task not in models and _suits(models["segment"], task):
            models[task] = models["segment"]
    return {task: models[task] for task in TASKS if task in models}


def _task(name: str) -> str:
    task = find_task(name).name
    if task not in PIPELINE_TASKS:
        raise InputError(f"--model: expected one of {', '.join(PIPELINE_TASKS)}, got {name!r}.")
    return task


def _suits(checkpoint: str, task: str) -> bool:
    """Return whether a checkpoint can do a task."""
    from vitruvian.cli.checkpoints import check_model

    try:
        check_model(checkpoint, TASKS[task])
    except (CheckpointError, InputError):
        return False
    return True


def _absolute(checkpoint: str) -> str:
    """Return the absolute path of a checkpoint on this machine: jobs run in other folders."""
    path = Path(checkpoint).expanduser()
    return str(path.absolute()) if path.exists() else checkpoint
