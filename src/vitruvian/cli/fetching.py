"""Checkpoints from the Hub into its cache."""

from __future__ import annotations

from pathlib import Path

from vitruvian.errors import CheckpointError, InputError
from vitruvian.hub import offline

NEEDED = ("*.json", "*.safetensors")
OLDER = ("*.bin", "*.pth")


def fetch(name: str, *, revision: str | None = None, quiet: bool = False) -> Path:
    """Download a checkpoint with progress on standard error, and return its folder in the cache."""
    from huggingface_hub import HfApi, snapshot_download, utils
    from huggingface_hub import errors as hub

    if name.count("/") != 1 or Path(name).exists():
        raise InputError(f"{name}: expected a name on the Hub such as facebook/sapiens2-pose-0.4b.")
    if offline():
        raise CheckpointError(f"{name}: the network is switched off (HF_HUB_OFFLINE). Switch it on to download.")
    if quiet:
        utils.disable_progress_bars()  # type: ignore[attr-defined]
    try:
        files = HfApi(library_name="vitruvian").list_repo_files(name, revision=revision)
        # Many repositories hold the weights twice; the older form is taken where there is no other.
        safe = any(file.endswith(".safetensors") for file in files)
        patterns = list(NEEDED if safe else (*NEEDED, *OLDER))
        folder = snapshot_download(name, revision=revision, allow_patterns=patterns, library_name="vitruvian")
    except hub.GatedRepoError as error:
        raise CheckpointError(
            f"{name}: access is gated. Accept its licence on the Hub, then run `hf auth login`."
        ) from error
    except hub.RevisionNotFoundError as error:
        raise CheckpointError(f"{name}: has no revision {revision!r}. Check the branch, tag or commit.") from error
    except (hub.RepositoryNotFoundError, hub.HFValidationError) as error:
        raise CheckpointError(
            f"{name}: no such repository on the Hub, or it is private. Check the name, or run `hf auth login`."
        ) from error
    except Exception as error:  # what a broken connection raises depends on huggingface_hub's HTTP library
        reason = " ".join(str(error).split())[:160]
        raise CheckpointError(f"{name}: downloading failed ({reason}). Check the connection and try again.") from error
    return Path(folder)
