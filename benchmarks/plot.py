"""Plot the measurements: our time as a share of the reference's, or times over batch, size, prompts and people.

    python benchmarks/plot.py docs/images/speed.png                        # bars, from benchmarks/results/*.json
    python benchmarks/plot.py docs/images/curves.png --curves benchmarks/results/curves/h200.json
    python benchmarks/plot.py curves.png --curves results/results.json     # what benchmarks/gpu.py --curves wrote

Bars: gray is the reference, color is ours, a tick is the goal, a dot our share if the reference was faster on another
day. Curves: one panel for each variable (batch, size, prompts, people), a line for each model, dashed for the
reference. The image is opaque, for dark pages. Its metadata has a digest of the plotted values, which a test compares
with the data. Prints the size of the file.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from PIL import Image
from PIL.PngImagePlugin import PngInfo

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from tables import fastest_reference, is_met, load, number, share, subject  # noqa: E402

mpl.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402
from matplotlib.ticker import LogLocator  # noqa: E402

PAPER, INK, FAINT, REFERENCE = "#fbfbf9", "#20242a", "#6b7280", "#dcdfe4"
OURS, MISSED = "#1f7a6d", "#c2611f"
LINES = ("#1f7a6d", "#c2611f", "#3b5bab", "#a23b72", "#7a6a1f", "#555555")
# Panels of bars: file, run, title.
PANELS = (
    ("h200", "sapiens2", "Sapiens2 on an H200, bfloat16, 1024×768"),
    ("h200", "masks", "SAM 2, Mask2Former and MaskFormer on an H200, bfloat16, batch 1"),
    ("cpu", "pose", "Sapiens2 on two cores of a CPU, 1024×768"),
    ("cpu", "sam2", "SAM 2 on two cores of a CPU, float32"),
)
STYLE: Any = {
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": FAINT,
    "ytick.color": INK,
    "axes.edgecolor": FAINT,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def bars(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values of all bars, by panel."""
    found = []
    for file, name, title in PANELS:
        run = data[file]["runs"][name]
        for row in run["rows"]:
            times = f"{number(row['ours']['median'])} of {number(row['reference']['median'])} {run['unit']}"
            goal = row.get("goal")
            bar = {
                "panel": title,
                "label": subject(row, run).removeprefix("Sapiens2 ").removeprefix("SAM 2 " if name == "sam2" else ""),
                "share": share(row),
                "text": times + ("*" if "reference_elsewhere" in row else ""),
                "goal": goal,
                "missed": goal is not None and not is_met(row),
                "quickest": row["ours"]["median"] / fastest_reference(row)
                if fastest_reference(row) < row["reference"]["median"]
                else None,
            }
            found.append(bar)
    return found


def digest(drawn: Any) -> str:
    """Return a digest of plotted values."""
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


def draw_bars(drawn: list[dict[str, Any]], out: Path) -> None:
    """Draw a panel for each table; the length of a bar is our share of the reference's time."""
    panels: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for bar in drawn:
        panels[bar["panel"]].append(bar)
    heights = [len(rows) + 0.9 for rows in panels.values()]
    size = (8.6, 0.27 * sum(heights) + 1.1)
    figure, axes = plt.subplots(len(panels), 1, figsize=size, height_ratios=heights, sharex=True)
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        axis.set_title(title, loc="left", fontsize=9.5, fontweight="bold")
        for index, bar in enumerate(rows):
            axis.barh(index, 1, height=0.62, color=REFERENCE)
            axis.barh(index, bar["share"], height=0.62, color=MISSED if bar["missed"] else OURS)
            if bar["goal"] is not None:
                axis.plot([bar["goal"]] * 2, [index - 0.42, index + 0.42], color=INK, linewidth=1.6)
            if bar["quickest"] is not None:
                axis.plot(bar["quickest"], index, "o", color=PAPER, markeredgecolor=INK, markersize=4.5)
            axis.text(1.015, index, bar["text"], va="center", fontsize=8.5)
        axis.set_yticks(range(len(rows)), [bar["label"] for bar in rows])
        axis.set_xlim(0, 1)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.tick_params(length=0)
        axis.spines[["left", "bottom"]].set_visible(False)
    axes[-1].set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "time of Transformers"])
    marks: list[Any] = [Rectangle((0, 0), 1, 1, color=color) for color in (OURS, MISSED, REFERENCE)]
    marks.append(Line2D([], [], color=INK, linewidth=0, marker="|", markersize=10, markeredgewidth=1.6))
    marks.append(Line2D([], [], color=PAPER, markeredgecolor=INK, marker="o", markersize=4.5, linewidth=0))
    names = [
        "vitruvian",
        "vitruvian, target missed",
        "Transformers",
        "target",
        "relative to a faster run of Transformers",
    ]
    figure.legend(marks, names, loc="upper center", ncols=5, frameon=False, fontsize=8.5, columnspacing=1.4)
    if any(bar["text"].endswith("*") for bar in drawn):
        figure.text(0.01, 0.012, "* Transformers timed on another day", ha="left", fontsize=7.5, color=FAINT)
    figure.subplots_adjust(left=0.21, right=0.83, top=0.905, bottom=0.05, hspace=0.4)
    save(figure, out, drawn)


VARIABLES: dict[str, Callable[[dict[str, Any]], float]] = {
    "batch": lambda cell: cell["batch"],
    "megapixels": lambda cell: round(cell["size_hw"][0] * cell["size_hw"][1] / 1e6, 2),
    "prompts": lambda cell: cell["prompts"],
}


def lines(cells: list[dict[str, Any]]) -> dict[str, dict[str, list[tuple[float, ...]]]]:
    """Return points (x, milliseconds, and the reference's if known) by variable, then by model and fixed values."""
    found: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    timed = [cell for cell in cells if "optimized" in cell["times"]]
    for variable in VARIABLES:
        for model in dict.fromkeys(f"{cell['model']} {cell['dtype']}" for cell in timed):
            groups: dict[tuple[float, ...], dict[float, tuple[float, ...]]] = defaultdict(dict)
            for cell in timed:
                if f"{cell['model']} {cell['dtype']}" == model:
                    x = VARIABLES[variable](cell)
                    times = (cell["times"].get(name) for name in ("optimized", "reference"))
                    fixed = tuple(take(cell) for other, take in VARIABLES.items() if other != variable)
                    groups[fixed][x] = (x, *(time["median"] for time in times if time))
            fixed = representative(groups, [other for other in VARIABLES if other != variable])
            if len(groups[fixed]) > 1:
                values = zip((other for other in VARIABLES if other != variable), fixed, strict=True)
                label = ", ".join([model, *(f"{other} {value:g}" for other, value in values if value)])
                found.setdefault(variable, {})[label] = [groups[fixed][key] for key in sorted(groups[fixed])]
    return found


def representative(groups: dict[tuple[float, ...], Any], names: list[str]) -> tuple[float, ...]:
    """Return the group to draw: of those with most points the smallest batch, and the median size and prompts."""
    most = max(len(points) for points in groups.values())
    keys = [key for key, points in groups.items() if len(points) == most]
    for index, name in enumerate(names):
        values = sorted({key[index] for key in keys})
        wanted = values[0] if name == "batch" else values[len(values) // 2]
        keys = [key for key in keys if key[index] == wanted]
    return keys[0]


def curves(written: dict[str, Any]) -> dict[str, dict[str, list[tuple[float, ...]]]]:
    """Return the lines of all panels."""
    drawn = lines(written["cells"])
    for row in written.get("people", ()):
        times = (row["times"][way]["median"] for way in ("optimized", "reference") if way in row["times"])
        panel = drawn.setdefault("people in an image", {})
        panel.setdefault(f"{row['model']} {row['dtype']}", []).append((row["people"], *times))
    return drawn


def draw_curves(written: dict[str, Any], out: Path) -> None:
    """Draw a panel for each variable, with logarithmic axes."""
    drawn = curves(written)
    if not drawn:
        raise SystemExit("--curves: expected cells of which batch, size or prompts vary. Run gpu.py with --curves.")
    across = min(2, len(drawn))
    down = -(-len(drawn) // across)
    figure, axes = plt.subplots(down, across, figsize=(4.5 * across, 3.7 * down), squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.set_axis_off()
    models = list(dict.fromkeys(label.partition(",")[0] for panel in drawn.values() for label in panel))
    for axis, (variable, panel) in zip(axes.flat, drawn.items(), strict=False):
        for label, points in panel.items():
            color = LINES[models.index(label.partition(",")[0]) % len(LINES)]
            axis.plot([p[0] for p in points], [p[1] for p in points], "o-", color=color, markersize=4, label=label)
            theirs = [p for p in points if len(p) > 2]
            axis.plot([p[0] for p in theirs], [p[2] for p in theirs], "o--", color=color, markersize=3, alpha=0.6)
        axis.set(xscale="log", yscale="log", xlabel=variable, ylabel="milliseconds")
        ticks = sorted({p[0] for points in panel.values() for p in points})
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.grid(visible=True, color=REFERENCE, linewidth=0.6)
        axis.legend(frameon=False, fontsize=7.5, loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.suptitle(f"{written['machine']}; dashed: Transformers", fontsize=9, color=FAINT)
    figure.tight_layout()
    save(figure, out, drawn)


def save(figure: Any, out: Path, drawn: Any) -> None:
    """Write an image with few colors, for a small file, and the digest of its values."""
    if out.suffix != ".png":
        figure.savefig(out, metadata={"Description": digest(drawn)})
    else:
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=150)
        notes = PngInfo()
        notes.add_text("Description", digest(drawn))
        Image.open(buffer).convert("RGB").quantize(64).save(out, pnginfo=notes, optimize=True)
    plt.close(figure)


def main() -> None:
    """Draw one image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="image to write: .png or .svg")
    parser.add_argument("--curves", type=Path, metavar="RESULTS", help="results.json of benchmarks/gpu.py --curves")
    options = parser.parse_args()
    with mpl.rc_context(STYLE):
        if options.curves is not None:
            draw_curves(json.loads(options.curves.read_text(encoding="utf-8")), options.out)
        else:
            draw_bars(bars(load()), options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
