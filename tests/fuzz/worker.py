"""A process of `make fuzz`: fuzzes one target and prints a line of JSON for each input."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import torch

from tests.fuzz.fuzzer import fuzz
from tests.fuzz.run import OUT


def main() -> None:
    """Fuzz until killed."""
    target, folder, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # decoders print to standard output
    for number, outcome in enumerate(fuzz(target, folder, seed)):
        if outcome.kind == "exception":
            copy = OUT / f"{target}-{seed}-{number}"
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / outcome.path, copy)
            (copy / "traceback.txt").write_text(outcome.detail, encoding="utf-8")
        print(json.dumps({"kind": outcome.kind}), file=out, flush=True)


if __name__ == "__main__":
    main()
