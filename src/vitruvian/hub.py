"""Find the files of a checkpoint: a folder, a weight file, a repository on the Hub, or "builtin", the packaged model.

Downloads use huggingface_hub with its cache, tokens, mirrors and offline mode (`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`,
`HF_HUB_OFFLINE`).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitruvian.errors import CheckpointError, one_line

CONFIG_FILE = "config.json"
WEIGHT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth")
_FILE_ENDINGS = (*WEIGHT_ENDINGS, ".json")
BUILTIN = "builtin"
BUILTIN_FOLDER = Path(__file__).parent / "builtin"


@dataclass(frozen=True)
class HubOptions:
    """The keywords that all `from_pretrained` methods share.

    Attributes:
        revision: Branch, tag or commit on the Hub.
        cache_dir: Folder of downloads.
        token: Access token of the Hub.
        local_files_only: Do not use the network.
        force_download: Download again even if cached.
        subfolder: Folder inside the checkpoint.
    """

    revision: str | None = None
    cache_dir: str | Path | None = None
    token: str | bool | None = None
    local_files_only: bool = False
    force_download: bool = False
    subfolder: str = ""


HUB_KEYWORDS = tuple(field.name for field in dataclasses.fields(HubOptions))


def split_hub_options(keywords: Mapping[str, Any]) -> tuple[HubOptions, dict[str, Any]]:
    """Split the keywords of a `from_pretrained` into options of the Hub and others."""
    hub = {name: value for name, value in keywords.items() if name in HUB_KEYWORDS}
    return HubOptions(**hub), {name: value for name, value in keywords.items() if name not in hub}


def require_file(source: str | Path, name: str, options: HubOptions) -> Path:
    """Return the path of a file that the checkpoint must have."""
    path = find_file(source, name, options)
    if path is None:
        names = ", ".join(sorted(p.name for p in local_folder(source).iterdir())[:8]) if is_local(source) else ""
        listing = f" The folder has: {names}." if names else ""
        raise CheckpointError(f"{source}: expected a file {name}, found none.{listing} Is this a checkpoint?")
    return path


def find_file(source: str | Path, name: str, options: HubOptions) -> Path | None:
    """Return the path of a checkpoint's file, downloaded if needed, or None where it does not exist."""
    if is_local(source):
        path = local_folder(source) / options.subfolder / name
        return path if os.path.isfile(path) else None  # also for names that no file can have
    return _download(str(source), name, options)


def is_builtin(source: str | Path) -> bool:
    """Return whether a name is that of the packaged model; a folder of that name is ``"./builtin"``."""
    return isinstance(source, str) and source == BUILTIN


def local_path(source: str | Path) -> Path:
    """Return the path of a name, whether or not it exists."""
    return BUILTIN_FOLDER if is_builtin(source) else Path(source).expanduser()


def is_local(source: str | Path) -> bool:
    """Return whether a name is a local folder or file; paths that do not exist are an error."""
    path = local_path(source)
    if path.exists():
        return True
    text = str(source)
    is_path = isinstance(source, Path) or text.startswith((".", "~", "/")) or text.endswith(_FILE_ENDINGS)
    if is_path or text.count("/") != 1 or "\\" in text:
        raise CheckpointError(
            f"{source}: no such file or folder, and not a Hub name of the form owner/name. Check the spelling."
        )
    return False


def local_folder(source: str | Path) -> Path:
    """Return the folder of a local checkpoint: itself, or that of a weight file."""
    path = local_path(source)
    return path.parent if path.is_file() else path


def weight_file(source: str | Path) -> Path | None:
    """Return `source` where it is a weight file; another file is an error."""
    path = local_path(source)
    if not path.is_file():
        return None
    if path.suffix not in WEIGHT_ENDINGS:
        raise CheckpointError(f"{path}: expected a weight file ({', '.join(WEIGHT_ENDINGS)}) or a folder, got neither.")
    return path


def json_file(source: str | Path) -> Path | None:
    """Return `source` where it is a JSON file."""
    path = local_path(source)
    return path if path.is_file() and path.suffix == ".json" else None


def pin_revision(source: str | Path, options: HubOptions, *, first_file: str = CONFIG_FILE) -> HubOptions:
    """Replace the revision of a Hub repository by its current commit, which the download of `first_file` reveals.

    All files are then of one commit, and each causes at most one request.
    """
    path = None if is_local(source) else _download(str(source), first_file, options)
    commits = re.findall(r"[/\\]snapshots[/\\]([0-9a-f]{40})(?=[/\\])", str(path))
    return dataclasses.replace(options, revision=commits[-1]) if commits else options


def _download(repository: str, name: str, options: HubOptions) -> Path | None:
    """Download one file of a Hub repository through the cache; None where it does not exist."""
    from huggingface_hub import errors as hub
    from huggingface_hub import hf_hub_download

    is_commit = re.fullmatch(r"[0-9a-f]{40}", options.revision or "")
    if is_commit and not options.force_download and _known_absent(repository, name, options, trust_snapshot=False):
        return None  # a commit is immutable
    with hub_errors(repository, f"downloading {name}", options.revision):
        try:
            path = hf_hub_download(
                repository,
                name,
                subfolder=options.subfolder or None,
                revision=options.revision,
                cache_dir=options.cache_dir,
                token=options.token,
                local_files_only=options.local_files_only,
                force_download=options.force_download,
                library_name="vitruvian",
            )
            return Path(path)
        except hub.LocalEntryNotFoundError as error:
            no_network = options.local_files_only or is_offline()
            if _known_absent(repository, name, options, trust_snapshot=no_network):
                return None
            if no_network:
                raise CheckpointError(
                    f"{repository}: {name} is not in the local cache and the network is switched off "
                    "(HF_HUB_OFFLINE or local_files_only). Download it once with the network on."
                ) from error
            raise CheckpointError(
                f"{repository}: cannot reach the Hub and {name} is not in the local cache. "
                "Check the connection, or give the path of a downloaded folder."
            ) from error
        except hub.EntryNotFoundError:
            return None


@contextmanager
def hub_errors(
    repository: str, action: str, revision: str | None, *, hint: str = "Check the connection and try again."
) -> Iterator[None]:
    """Raise errors of huggingface_hub as `CheckpointError`; the action is what fails, such as "downloading"."""
    from huggingface_hub import errors as hub

    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # connection errors depend on the HTTP library of huggingface_hub
        if isinstance(error, hub.GatedRepoError):
            reason = "access is gated. Accept its license on the Hub, then run `hf auth login` or set HF_TOKEN."
        elif isinstance(error, hub.RevisionNotFoundError):
            reason = f"has no revision {revision!r}. Check the branch, tag or commit."
        elif isinstance(error, (hub.RepositoryNotFoundError, hub.HFValidationError)):
            reason = "no such repository on the Hub, or it is private. Check the name, or set HF_TOKEN."
        else:
            reason = f"{action} failed ({one_line(error, limit=400)}). {hint}"
        raise CheckpointError(f"{repository}: {reason}") from error


def _known_absent(repository: str, name: str, options: HubOptions, *, trust_snapshot: bool) -> bool:
    """Return whether the cache knows that a repository does not have a file.

    The cache records requests for missing files. With `trust_snapshot`, a checkpoint with a cached config.json is
    complete: files that are not cached do not exist.
    """
    from huggingface_hub import try_to_load_from_cache

    folder = None if options.cache_dir is None else str(options.cache_dir)

    def cached(file_name: str) -> object:
        full = f"{options.subfolder}/{file_name}" if options.subfolder else file_name
        return try_to_load_from_cache(repository, full, cache_dir=folder, revision=options.revision)

    entry = cached(name)  # a path, None where the file was never requested, or a marker for "does not exist"
    if entry is not None:
        return not isinstance(entry, str)
    return trust_snapshot and isinstance(cached(CONFIG_FILE), str)


def is_offline() -> bool:
    """Return whether the environment sets huggingface_hub offline."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def upload(
    files: Sequence[Path],
    repo_id: str,
    *,
    replaces: Sequence[str] = (),
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload with vitruvian",
    create_pr: bool = False,
) -> str:
    """Upload files of one folder to a Hub repository, which is created if needed, in one commit; return its URL.

    Args:
        files: What to upload, all from one folder.
        repo_id: The repository, owner/name.
        replaces: Patterns of files to remove from the repository unless they are uploaded now.
        private: Whether a new repository is private.
        token: Access token of the Hub.
        revision: Branch to commit to, which is created if needed.
        commit_message: Title of the commit.
        create_pr: Open a pull request rather than commit.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token, library_name="vitruvian")
    hint = "Check the name, and log in with `hf auth login` or set HF_TOKEN."
    with hub_errors(repo_id, "uploading", revision, hint=hint):
        name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None and not create_pr and not revision.startswith("refs/"):
            api.create_branch(name, branch=revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=name,
            folder_path=files[0].parent,
            allow_patterns=[file.name for file in files],
            delete_patterns=list(replaces) or None,
            revision=revision,
            commit_message=commit_message,
            create_pr=create_pr,
        )
    return str(done.pr_url or done)
