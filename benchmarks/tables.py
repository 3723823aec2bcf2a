"""Write the tables of docs/speed.md anew from what was measured, benchmarks/results/*.json.

    python benchmarks/tables.py            # after a change of the data
    python benchmarks/tables.py --check    # changes nothing; the exit code is 1 where the page differs

In the page a table stands between `<!-- table NAME -->` and `<!-- end -->`. Prints the names of those that changed.
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
PAGE = HERE.parent / "docs" / "speed.md"
PLACE = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]


def load(folder: Path = HERE / "results") -> dict[str, Row]:
    """What was measured: the files by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


# ------------------------------------------------------------------------------------------------------------- values


def share(row: Row, of: str = "reference") -> float:
    """Our time over another's, which is "reference", "compiled" or "bfloat16"."""
    return float(row["ours"]["median"] / row[of]["median"])


def is_met(row: Row) -> bool:
    """Tell whether a row meets its goal: a share of the reference's time."""
    return share(row) <= float(row["goal"])


def goals(row: Row) -> list[tuple[str, float]]:
    """Whose times a row's goals are shares of, and the goals."""
    named = (("reference", "goal"), ("compiled", "compiled_goal"))
    return [(of, float(row[goal])) for of, goal in named if goal in row]


def share_text(row: Row) -> str:
    """A share with two digits, or three where two would hide that a goal is missed."""
    value = share(row)
    hidden = "goal" in row and (round(value, 2) <= row["goal"]) != is_met(row)
    return f"{value:.3f}" if hidden else f"{value:.2f}"


def number(value: float) -> str:
    """Three digits that count, or all before the point."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def compiled_text(row: Row) -> str:
    """The share of the compiled reference's time, and whether that is what was wanted."""
    value, goal = share(row, "compiled"), row.get("compiled_goal")
    return f"{value:.2f}" + ("" if goal is None else f" ({goal:g} {'met' if value <= goal else 'missed'})")


def timing(found: Row) -> str:
    """A median, with the least and the most where there were several samples."""
    text = number(found["median"])
    return f"{text} ({number(found['low'])}–{number(found['high'])})" if "low" in found else text


def subject(row: Row, run: Row) -> str:
    """The model of a row, and its batch where that differs in the run."""
    several = any(other["batch"] > 1 for other in run["rows"])
    return f"{row['name']}, batch {row['batch']}" if several else str(row["name"])


def quickest(row: Row) -> float:
    """The least of the reference's medians, of this run and of another day."""
    return float(min(row[name]["median"] for name in ("reference", "elsewhere") if name in row))


def rate(row: Row, run: Row) -> str:
    """Achieved TFLOP/s and their share of the ceiling."""
    value = row["tflop"] / row["ours"]["median"] * 1e3
    return f"{value:.0f} ({value / row.get('ceiling', run['ceiling']):.0%})"


# ------------------------------------------------------------------------------------------------------------- tables


def grid(titles: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown, without the columns in which nothing stands."""
    kept = [index for index in range(len(titles)) if any(row[index] for row in rows)]
    lines = [[titles[index] for index in kept], ["---"] * len(kept), *([row[index] for index in kept] for row in rows)]
    rule = "|" + "---|" * len(kept)
    return "\n".join(rule if line[0] == "---" else "| " + " | ".join(line) + " |" for line in lines)


def columns(run: Row) -> dict[str, Callable[[Row], str]]:
    """What can be told about a row of times: titles, and how each is written."""
    unit = run["unit"]
    return {
        "model": lambda row: subject(row, run),
        f"ours, {unit}": lambda row: timing(row["ours"]),
        f"reference, {unit}": lambda row: timing(row["reference"]) + (" ¹" if "reference_elsewhere" in row else ""),
        "share": lambda row: f"**{share_text(row)}**",
        "goal": lambda row: f"{row['goal']} {'met' if is_met(row) else 'missed'}",
        "share of compiled ¹": compiled_text,
        "share of quickest ²": lambda row: row["elsewhere"] and f"{row['ours']['median'] / quickest(row):.2f}",
        f"without `optimize()`, {unit}": lambda row: timing(row["plain"]),
        "memory, GiB": lambda row: " / ".join(f"{used:.2f}" for used in row["memory_gib"].values()),
        "off float32, %": lambda row: " / ".join(f"{100 * gap:.1f}" for gap in row["off_float32"].values()),
        "TFLOP/s (of ceiling)": lambda row: rate(row, run),
    }


def cells(run: Row, titles: list[str]) -> list[list[str]]:
    """The rows of a run under these titles; empty where something was not measured."""

    def cell(row: Row, title: str) -> str:
        try:
            return columns(run)[title](row)
        except KeyError:
            return ""

    return [[cell(row, title) for title in titles] for row in run["rows"]]


def timed(run: Row, *also: str) -> str:
    """Times beside the reference's."""
    titles = [*list(columns(run))[:7], *also]
    return grid(titles, cells(run, titles))


def beside(*runs: Row) -> str:
    """What else was measured in these runs."""
    titles = list(columns(runs[0]))
    titles = [titles[0], *titles[7:]]
    return grid(titles, [row for run in runs for row in cells(run, titles)])


def missed(data: dict[str, Row]) -> str:
    """Rows that miss their goals, those furthest off first."""
    rows = []
    for file, where in (("h200", "H200"), ("cpu", "CPU")):
        for run in data[file]["runs"].values():
            for row in run["rows"]:
                for of, goal in goals(row):
                    if share(row, of) > goal:
                        wanted = f"{number(goal * row[of]['median'])} {run['unit']}"
                        took = f"{number(row['ours']['median'])} {run['unit']}"
                        told = [subject(row, run), where, of, f"{share(row, of):.3f}", f"{goal:g}", took, wanted]
                        rows.append((share(row, of) / goal, told))
    rows.sort(key=lambda row: -row[0])
    return grid(["model", "where", "against", "share", "goal", "took", "wanted"], [row for _, row in rows])


def eighth(run: Row) -> str:
    """Times in fp8 beside those in bfloat16."""
    rows = [
        [subject(row, run), timing(row["ours"]), timing(row["bfloat16"]), f"{share(row, 'bfloat16'):.2f}"]
        for row in run["rows"]
    ]
    return grid(["model", "fp8, ms", "bfloat16, ms", "share"], rows)


def costs(run: Row) -> str:
    """Shares of the reference's time, and what int8 loses."""
    rows = []
    for row in run["rows"]:
        name = row["task"] + (" ³" if "reference_is" in row else "")
        lost = ", ".join(one["text"].format(f"{one['value']:.2g}") for one in row["lost"])
        rows.append([name, *(f"{row['share'][kind]:.2f}" for kind in ("float32", "int8")), lost])
    return grid(["task", "float32, share", "int8, share", "what int8 loses"], rows)


def jobs(*named: tuple[str, Row]) -> str:
    """Whole jobs: one line for each value."""
    rows = []
    for place, run in named:
        for index, row in enumerate(run["rows"]):
            goal = ""
            if "least" in row:
                goal = f"{row['least']:g}{row['unit']} {'met' if row['value'] >= row['least'] else 'missed'}"
            first = ["", ""] if index else [run["job"], place]
            value = f"{row['value']:g}".replace("-", "−")
            rows.append([*first, row["what"], value + row["unit"], goal])
    return grid(["job", "where", "what", "measured", "goal"], rows)


def source(machine: str, run: Row) -> str:
    """Where, when and how a table was measured."""
    told = textwrap.fill(f"{machine}; {run['date']}. {run['how']}", 120)
    return f"{told}\n\n```sh\n{run['command']}\n```"


def tables(data: dict[str, Row]) -> dict[str, str]:
    """All tables of the page, by name."""
    gpu, cpu = data["h200"], data["cpu"]
    on_gpu, on_cpu = gpu["runs"], cpu["runs"]
    return {
        "sapiens2": timed(on_gpu["sapiens2"]),
        "sapiens2_source": source(gpu["machine"], on_gpu["sapiens2"]),
        "masks": timed(on_gpu["masks"]),
        "masks_source": source(gpu["machine"], on_gpu["masks"]),
        "beside": beside(on_gpu["sapiens2"], on_gpu["masks"]),
        "missed": missed(data),
        "fp8": eighth(on_gpu["fp8"]),
        "pose": timed(on_cpu["pose"]),
        "pose_source": source(on_cpu["pose"]["machine"], on_cpu["pose"]),
        "sam2": timed(on_cpu["sam2"], "memory, GiB"),
        "sam2_source": source(cpu["machine"], on_cpu["sam2"]),
        "int8": costs(on_cpu["int8"]),
        "int8_source": source(cpu["machine"], on_cpu["int8"]),
        "jobs": jobs(("H200", on_gpu["end_to_end"]), ("CPU", on_cpu["folder"]), ("CPU", on_cpu["clip"])),
    }


def renewed(page: str, found: dict[str, str]) -> str:
    """The page with these tables in their places."""
    for name in found.keys() - {match[2] for match in PLACE.finditer(page)}:
        raise SystemExit(
            f"{PAGE.name}: expected a place for the table {name!r}, found none. Add <!-- table {name} -->."
        )
    return PLACE.sub(lambda match: f"{match[1]}\n{found[match[2]]}\n\n{match[4]}", page)


def main() -> int:
    """Write the page, or tell whether it is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = renewed(before, tables(load()))
    old, new = ({match[2]: match[3] for match in PLACE.finditer(page)} for page in (before, after))
    changed = [name for name in new if new[name] != old[name]]
    print("changed:", ", ".join(changed) or "nothing")
    if not options.check:
        PAGE.write_text(after, encoding="utf-8")
    return int(options.check and bool(changed))


if __name__ == "__main__":
    raise SystemExit(main())
