"""A checkpoint's name → its files here.

A name is a folder, a single weight file, a repository on the Hub, or "builtin": the small model inside this package.

Downloads go through huggingface_hub, so its cache, tokens, mirrors and offline switches (`HF_HOME`, `HF_TOKEN`,
`HF_ENDPOINT`, `HF_HUB_OFFLINE`) work as people know them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitruvian.errors import CheckpointError

CONFIG_FILE = "config.json"
WEIGHT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth")
FILE_ENDINGS = (*WEIGHT_ENDINGS, ".json")
BUILTIN = "builtin"
BUILTIN_FOLDER = Path(__file__).parent / "builtin"


@dataclass(frozen=True)
class HubOptions:
    """How to look a checkpoint up: the keywords that all `from_pretrained` methods share."""

    revision: str | None = None
    cache_dir: str | Path | None = None
    token: str | bool | None = None
    local_files_only: bool = False
    force_download: bool = False
    subfolder: str = ""


def require_file(source: str | Path, name: str, options: HubOptions) -> Path:
    """Return the path of a file that the checkpoint must have."""
    path = find_file(source, name, options)
    if path is None:
        held = ", ".join(sorted(p.name for p in local_folder(source).iterdir())[:8]) if is_local(source) else ""
        seen = f" The folder holds: {held}." if held else ""
        raise CheckpointError(f"{source}: expected a file {name}, found none.{seen} Is this a checkpoint of ours?")
    return path


def find_file(source: str | Path, name: str, options: HubOptions) -> Path | None:
    """Return the path of a checkpoint's file, downloaded if need be, or None where the checkpoint lacks it."""
    if is_local(source):
        path = local_folder(source) / options.subfolder / name
        return path if path.is_file() else None
    return download(str(source), name, options)


def names_builtin(source: str | Path) -> bool:
    """Tell whether a name is that of the model inside the package; a folder of that name is ``"./builtin"``."""
    return isinstance(source, str) and source == BUILTIN


def has_builtin() -> bool:
    """Tell whether this installation has a model inside."""
    return (BUILTIN_FOLDER / CONFIG_FILE).is_file()


def local_path(source: str | Path) -> Path:
    """Return the path that a name stands for if it is one, whether or not there is anything."""
    if not names_builtin(source):
        return Path(source).expanduser()
    if not has_builtin():
        raise CheckpointError(
            "builtin: expected the model inside the package, but this installation has none. Install vitruvian from a "
            "wheel, or name a checkpoint such as facebook/sapiens2-pose-0.4b."
        )
    return BUILTIN_FOLDER


def is_local(source: str | Path) -> bool:
    """Tell whether a name is a folder or file here, refusing paths that do not exist."""
    path = local_path(source)
    if path.exists():
        return True
    text = str(source)
    named_here = isinstance(source, Path) or text.startswith((".", "~", "/")) or text.endswith(FILE_ENDINGS)
    if named_here or text.count("/") != 1 or "\\" in text:
        raise CheckpointError(
            f"{source}: no such file or folder, and not a Hub name of the form owner/name. Check the spelling."
        )
    return False


def local_folder(source: str | Path) -> Path:
    """Return the folder of a local checkpoint, given that folder or a weight file in it."""
    path = local_path(source)
    return path.parent if path.is_file() else path


def weight_file(source: str | Path) -> Path | None:
    """Return `source` itself where it names a single weight file; a file of another kind is refused."""
    path = local_path(source)
    if not path.is_file():
        return None
    if path.suffix not in WEIGHT_ENDINGS:
        raise CheckpointError(f"{path}: expected a weight file ({', '.join(WEIGHT_ENDINGS)}) or a folder, got neither.")
    return path


def json_file(source: str | Path) -> Path | None:
    """Return `source` itself where it names a single JSON file."""
    path = local_path(source)
    return path if path.is_file() and path.suffix == ".json" else None


def pinned(source: str | Path, options: HubOptions, *, by: str = CONFIG_FILE) -> HubOptions:
    """Fix the commit that a Hub name stands for now, with the file that is needed first.

    All files of one opening then belong together, and the network is asked for each at most once.
    """
    path = None if is_local(source) else download(str(source), by, options)
    commits = re.findall(r"[/\\]snapshots[/\\]([0-9a-f]{40})(?=[/\\])", str(path))
    return dataclasses.replace(options, revision=commits[-1]) if commits else options


def download(repository: str, name: str, options: HubOptions) -> Path | None:
    """Fetch one file of a Hub repository through the cache; None where the repository lacks it."""
    from huggingface_hub import errors as hub
    from huggingface_hub import hf_hub_download

    is_commit = re.fullmatch(r"[0-9a-f]{40}", options.revision or "")
    if is_commit and not options.force_download and known_absent(repository, name, options, trust_snapshot=False):
        return None  # a commit never changes
    try:
        return Path(
            hf_hub_download(
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
        )
    except hub.LocalEntryNotFoundError as error:
        switched_off = options.local_files_only or offline()
        if known_absent(repository, name, options, trust_snapshot=switched_off):
            return None
        if switched_off:
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
    except hub.GatedRepoError as error:
        raise CheckpointError(
            f"{repository}: access is gated. Accept its licence on the Hub, then run `hf auth login` or set HF_TOKEN."
        ) from error
    except hub.RevisionNotFoundError as error:
        raise CheckpointError(
            f"{repository}: has no revision {options.revision!r}. Check the branch, tag or commit."
        ) from error
    except (hub.RepositoryNotFoundError, hub.HFValidationError) as error:
        raise CheckpointError(
            f"{repository}: no such repository on the Hub, or it is private. Check the name, or set HF_TOKEN."
        ) from error
    except Exception as error:  # what a broken connection raises depends on huggingface_hub's HTTP library
        raise CheckpointError(f"{repository}: downloading {name} failed ({error}). Try again.") from error


def known_absent(repository: str, name: str, options: HubOptions, *, trust_snapshot: bool) -> bool:
    """Tell whether the cache can vouch that a repository does not have a file.

    The cache remembers files that were asked for in vain. With `trust_snapshot`, a checkpoint whose config.json was
    downloaded is taken as complete too: what it lacks here, it lacks there.
    """
    from huggingface_hub import try_to_load_from_cache

    place = None if options.cache_dir is None else str(options.cache_dir)

    def look(file_name: str) -> object:
        full = f"{options.subfolder}/{file_name}" if options.subfolder else file_name
        return try_to_load_from_cache(repository, full, cache_dir=place, revision=options.revision)

    found = look(name)  # a path, None where the cache never saw the file, or a mark for "does not exist"
    if found is not None:
        return not isinstance(found, str)
    return trust_snapshot and isinstance(look(CONFIG_FILE), str)


def offline() -> bool:
    """Tell whether the environment switches the network off for huggingface_hub."""
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
    """Put files of one folder into a Hub repository (made if needed) in one commit; return the commit's address.

    Args:
        files: What to upload, all from one folder.
        repo_id: The repository, owner/name.
        replaces: Patterns of files to remove from the repository unless they are uploaded now.
        private: Whether a repository that is made is private.
        token: Access token of the Hub.
        revision: Branch to commit to (made if needed).
        commit_message: Title of the commit.
        create_pr: Open a pull request rather than commit.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token, library_name="vitruvian")
    try:
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
    except Exception as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{repo_id}: uploading failed ({reason}). Check the name, and log in with `hf auth login` or set HF_TOKEN."
        ) from error
    return str(done.pr_url or done)
