"""Draw the losses of training runs from their logs: `python recipes/curve.py docs/images/builtin-curve.png LOG …`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

TERMS = ("pose_peaks", "parts", "normals", "pointmap", "matte", "albedo", "people")
OLD_NAMES = {"seg": "parts", "normal": "normals", "matting": "matte"}  # in the logs of the built-in model


def main() -> None:
    """Draw one panel for each task, runs one after the other."""
    out, *logs = map(Path, sys.argv[1:])
    figure, panels = plt.subplots(1, len(TERMS), figsize=(2.1 * len(TERMS), 2.3), constrained_layout=True)
    before = 0
    for number, log in enumerate(logs):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        lines = [
            {OLD_NAMES.get(name, name): value for name, value in line.items()}
            for line in lines
            if line.get("kind", "train") == "train"
        ]
        for panel, term in zip(panels, TERMS, strict=True):
            steps = [before + line["step"] for line in lines if term in line]
            panel.plot(steps, [line[term] for line in lines if term in line], color=f"C{number}", label=log.stem)
            panel.set_title(term, fontsize=9)
            panel.set_ylim(bottom=0)
            panel.tick_params(labelsize=7)
            panel.set_xlabel("step", fontsize=7)
        before += lines[-1]["step"]
    panels[0].legend(fontsize=7, frameon=False)
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
