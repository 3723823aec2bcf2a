"""Write the tables of docs/speed.md and benchmarks/results/README.md from the measurements in results/*.json.

    python benchmarks/tables.py            # after a change of the data
    python benchmarks/tables.py --check    # writes nothing; the exit code is 1 if a page is out of date

In a page a table is between `<!-- table NAME -->` and `<!-- end -->`. Prints the names of those that changed.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGES = (HERE.parent / "docs" / "speed.md", HERE / "results" / "README.md")
ABLATIONS = {"ablation": "h200.json", "ablation_cpu": "cpu.json"}  # tables and their files in results/ablation
TABLE = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]


def load(folder: Path = HERE / "results") -> dict[str, Row]:
    """Return the measurements by file name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


# ------------------------------------------------------------------------------------------------------------- values


def share(row: Row, of: str = "reference") -> float:
    """Return our time over that of the "reference", "compiled" or "bfloat16"."""
    return float(row["ours"]["median"] / row[of]["median"])


def is_met(row: Row) -> bool:
    """Return whether a row meets its goal: a share of the reference's time."""
    return share(row) <= float(row["goal"])


def goals(row: Row) -> list[tuple[str, float]]:
    """Return the goals of a row, with what their times are shares of."""
    named = (("reference", "goal"), ("compiled", "compiled_goal"))
    return [(of, float(row[goal])) for of, goal in named if goal in row]


def share_text(row: Row) -> str:
    """Format a share with two digits, or three if two would hide that the goal is missed."""
    value = share(row)
    hidden = "goal" in row and (round(value, 2) <= row["goal"]) != is_met(row)
    return f"{value:.3f}" if hidden else f"{value:.2f}"


def number(value: float) -> str:
    """Format with three significant digits, or all before the decimal point."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def compiled_text(row: Row) -> str:
    """Format the share of the compiled reference's time, and whether it meets its goal."""
    value, goal = share(row, "compiled"), row.get("compiled_goal")
    return f"{value:.2f}" + ("" if goal is None else f" ({goal:g} {'met' if value <= goal else 'missed'})")


def timing(found: Row) -> str:
    """Format a median, with minimum and maximum if there were several samples."""
    text = number(found["median"])
    return f"{text} ({number(found['low'])}–{number(found['high'])})" if "low" in found else text


def subject(row: Row, run: Row) -> str:
    """Return the model of a row, and its batch if batches differ in the run."""
    several = any(other["batch"] > 1 for other in run["rows"])
    return f"{row['name']}, batch {row['batch']}" if several else str(row["name"])


def fastest_reference(row: Row) -> float:
    """Return the minimum of the reference's medians, of this run and of another day."""
    return float(min(row[name]["median"] for name in ("reference", "elsewhere") if name in row))


def rate(row: Row, run: Row) -> str:
    """Format the achieved TFLOP/s and their share of the ceiling."""
    value = row["tflop"] / row["ours"]["median"] * 1e3
    return f"{value:.0f} ({value / row.get('ceiling', run['ceiling']):.0%})"


# ------------------------------------------------------------------------------------------------------------- tables


def grid(titles: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table without empty columns."""
    filled = [index for index in range(len(titles)) if any(row[index] for row in rows)]
    header, *lines = ("| " + " | ".join(row[index] for index in filled) + " |" for row in (titles, *rows))
    return "\n".join((header, "|" + "---|" * len(filled), *lines))


def columns(run: Row) -> dict[str, Callable[[Row], str]]:
    """Return the possible columns of a table of times: titles, and how each is formatted."""
    unit = run["unit"]
    return {
        "model": lambda row: subject(row, run),
        f"vitruvian, {unit}": lambda row: timing(row["ours"]),
        f"Transformers, {unit}": lambda row: timing(row["reference"]) + (" ¹" if "reference_elsewhere" in row else ""),
        "relative time": lambda row: f"**{share_text(row)}**",
        "target": lambda row: f"{row['goal']} {'met' if is_met(row) else 'missed'}",
        "relative to `torch.compile` ¹": compiled_text,
        "relative to the faster run ²": lambda row: (
            row["elsewhere"] and f"{row['ours']['median'] / fastest_reference(row):.2f}"
        ),
        f"without `optimize()`, {unit}": lambda row: timing(row["plain"]),
        "memory, GiB": lambda row: " / ".join(f"{used:.2f}" for used in row["memory_gib"].values()),
        "error vs. float32, %": lambda row: " / ".join(f"{100 * gap:.1f}" for gap in row["off_float32"].values()),
        "TFLOP/s (of peak)": lambda row: rate(row, run),
    }


def cells(run: Row, titles: list[str]) -> list[list[str]]:
    """Return the cells of a run's rows; empty if not measured."""

    def cell(row: Row, title: str) -> str:
        try:
            return columns(run)[title](row)
        except KeyError:
            return ""

    return [[cell(row, title) for title in titles] for row in run["rows"]]


def times_table(run: Row, *also: str) -> str:
    """Return a table of times next to the reference's."""
    titles = [*list(columns(run))[:7], *also]
    return grid(titles, cells(run, titles))


def details_table(*runs: Row) -> str:
    """Return a table of the other measurements of these runs."""
    titles = list(columns(runs[0]))
    titles = [titles[0], *titles[7:]]
    return grid(titles, [row for run in runs for row in cells(run, titles)])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ablation_table(rows: list[Row]) -> str:
    """Return what each switch of `benchmarks/ablation.py` saves: a row for each model, a column for each switch."""
    models = list(dict.fromkeys((row["model"], row["batch"], row["prompts"]) for row in rows))
    by_switch: dict[str, dict[tuple[str, int, int], Row]] = {}
    for row in rows:
        by_switch.setdefault(row["off"], {})[row["model"], row["batch"], row["prompts"]] = row
    base = by_switch.pop("nothing")

    def saved(switch: str, model: tuple[str, int, int]) -> str:
        row = by_switch[switch].get(model)
        if row is None:
            return ""
        names = [name for name in ("milliseconds", "memory") if row[name] is not None]
        shares = (f"{1 - base[model][name] / row[name]:.0%}" for name in names)
        return " · ".join(shares).replace("-0%", "0%").replace("-", "−")

    def title(model: tuple[str, int, int]) -> str:
        name, batch, prompts = model
        return f"{name}, {_count(prompts, 'prompt') if prompts else f'batch {batch}'}"

    lines = [[title(model), *(saved(switch, model) for switch in by_switch)] for model in models]
    title_line = "Time saved · memory saved:" if rows[0]["memory"] is not None else "Time saved:"
    return f"{title_line}\n\n" + grid(["model", *by_switch], lines)


def read_ablation(name: str) -> list[Row]:
    """Return the rows of a file that `benchmarks/ablation.py` wrote."""
    rows: list[Row] = json.loads((HERE / "results" / "ablation" / name).read_text(encoding="utf-8"))["rows"]
    return rows


def missed(data: dict[str, Row]) -> str:
    """Return a table of missed goals, the worst first."""
    rows = []
    for file, where in (("h200", "H200"), ("cpu", "CPU")):
        for run in data[file]["runs"].values():
            for row in run["rows"]:
                for of, goal in goals(row):
                    if share(row, of) > goal:
                        wanted = f"{number(goal * row[of]['median'])} {run['unit']}"
                        took = f"{number(row['ours']['median'])} {run['unit']}"
                        cells = [subject(row, run), where, f"{share(row, of):.3f}", f"{goal:g}", took, wanted]
                        rows.append((share(row, of) / goal, cells))
    rows.sort(key=lambda row: -row[0])
    return grid(["model", "device", "relative time", "target", "time", "time for the target"], [row for _, row in rows])


def fp8_table(run: Row) -> str:
    """Return a table of times in fp8 and bfloat16."""
    rows = [
        [subject(row, run), timing(row["ours"]), timing(row["bfloat16"]), f"{share(row, 'bfloat16'):.2f}"]
        for row in run["rows"]
    ]
    return grid(["model", "fp8, ms", "bfloat16, ms", "relative time"], rows)


def errors(row: Row) -> str:
    """Format the errors of a task with rounded weights."""
    return "; ".join(one["text"].format(f"{one['value']:.2g}") for one in row["lost"])


def fp8_errors_table(run: Row) -> str:
    """Return a table of the errors of fp8."""
    return grid(["task", "mean error of fp8"], [[row["task"], errors(row)] for row in run["rows"]])


def int8_table(run: Row) -> str:
    """Return a table of shares of the reference's time, and the errors of int8."""
    rows = []
    for row in run["rows"]:
        name = row["task"] + (" ³" if "reference_is" in row else "")
        rows.append([name, *(f"{row['share'][kind]:.2f}" for kind in ("float32", "int8")), errors(row)])
    return grid(["task", "relative time, float32", "relative time, int8", "mean error of int8"], rows)


def jobs_table(*named: tuple[str, Row]) -> str:
    """Return a table for each end-to-end benchmark: one row for each value."""
    found = []
    for where, run in named:
        rows = []
        for row in run["rows"]:
            target = ""
            if "least" in row:
                target = f"{row['least']:g}{row['unit']} {'met' if row['value'] >= row['least'] else 'missed'}"
            rows.append([row["what"], f"{row['value']:g}".replace("-", "−") + row["unit"], target])
        found.append(f"{run['job']} ({where}):\n\n" + grid(["metric", "measured", "target"], rows))
    return "\n\n".join(found)


def sources(data: Row) -> str:
    """Return when and how each run of a file was measured."""
    found = []
    for name, run in data["runs"].items():
        text = f"{run.get('machine', data['machine'])}; {run['date']}. {run.get('how', run.get('job'))}"
        command = f"\n\n```sh\n{run['command']}\n```" if run["command"] else ""
        found.append(f"### {name}\n\n{textwrap.fill(text, 120)}{command}")
    return "\n\n".join(found)


def tables(data: dict[str, Row]) -> dict[str, str]:
    """Return all tables of both pages, by name."""
    gpu, cpu = data["h200"], data["cpu"]
    on_gpu, on_cpu = gpu["runs"], cpu["runs"]
    return {
        "sapiens2": times_table(on_gpu["sapiens2"]),
        "masks": times_table(on_gpu["masks"]),
        **{name: ablation_table(read_ablation(file)) for name, file in ABLATIONS.items()},
        "beside": details_table(on_gpu["sapiens2"], on_gpu["masks"]),
        "missed": missed(data),
        "fp8": fp8_table(on_gpu["fp8"]),
        "fp8_errors": fp8_errors_table(on_cpu["fp8_emulated"]),
        "pose": times_table(on_cpu["pose"]),
        "sam2": times_table(on_cpu["sam2"], "memory, GiB"),
        "int8": int8_table(on_cpu["int8"]),
        "jobs": jobs_table(("H200", on_gpu["end_to_end"]), ("CPU", on_cpu["folder"]), ("CPU", on_cpu["clip"])),
        "gpu_sources": sources(gpu),
        "cpu_sources": sources(cpu),
    }


def replace_tables(page: str, found: dict[str, str]) -> str:
    """Return the page with its tables replaced."""
    return TABLE.sub(lambda match: f"{match[1]}\n{found[match[2]]}\n\n{match[4]}", page)


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    found = tables(load())
    changed = []
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = replace_tables(before, found)
        old, new = ({match[2]: match[3] for match in TABLE.finditer(page)} for page in (before, after))
        changed += [name for name in new if new[name] != old[name]]
        if not options.check:
            path.write_text(after, encoding="utf-8")
    print("changed:", ", ".join(changed) or "nothing")
    return int(options.check and bool(changed))


if __name__ == "__main__":
    raise SystemExit(main())
