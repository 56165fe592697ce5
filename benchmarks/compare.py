"""Two results of run.py side by side: ``compare.py [BEFORE.json AFTER.json]``; by default the last two."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent.parent / "out" / "bench"
Key = tuple[str, int, str]
FIGURES = (("wall_s", "wall s", 1.0), ("cpu_s", "CPU s", 1.0), ("peak_bytes", "peak GB", 1e9))


def load(path: Path) -> dict[Key, dict[str, Any]]:
    """The medians of a file by (shape, kernels, command)."""
    rows = json.loads(path.read_text("utf-8"))["recordings"]
    return {(r["shape"], r["kernels"], c["command"]): c for r in rows for c in r["commands"]}


def spread(result: dict[str, Any], figure: str) -> float:
    """Largest over smallest of the runs of a command, less one; a smaller change says nothing, and one run has none."""
    values = [r[figure] for r in result["runs"] if r["status"] == 0]
    return max(values) / min(values) - 1 if len(values) > 1 and min(values) else math.inf


def lines(before: dict[Key, dict[str, Any]], after: dict[Key, dict[str, Any]]) -> list[str]:
    """One line a command that both files have, and a last one with the medians of the changes."""
    header = f"{'shape':<11}{'kernels':>11}  {'command':<34}"
    header += "".join(f"{name:>10}{'':>10}{'change':>9}" for _, name, _ in FIGURES)
    text, changes = [header], {figure: [] for figure, *_ in FIGURES}  # type: dict[str, list[float]]
    for key in sorted(before.keys() & after.keys()):
        old, new = before[key], after[key]
        line = f"{key[0]:<11}{key[1]:>11,}  {key[2]:<34}"
        for figure, _, scale in FIGURES:
            if not old[figure] or new[figure] is None:
                line += f"{'n/a':>29}"
                continue
            change = new[figure] / old[figure] - 1
            changes[figure].append(change)
            noise = max(spread(old, figure), spread(new, figure))
            mark = " " if abs(change) > noise else "~"
            line += f"{old[figure] / scale:>10.3f}{new[figure] / scale:>10.3f}{change:>+8.0%}{mark}"
        text.append(line)
    if len(text) > 1:
        middle = "".join(f"{statistics.median(c):>+28.0%} " if c else f"{'n/a':>29}" for c in changes.values())
        text.append(f"{'median':<58}{middle}")
        text.append("~ within the spread of the runs")
    for key in sorted(before.keys() ^ after.keys()):
        text.append(f"only {'before' if key in before else 'after'}: {key[0]}, {key[1]:,} kernels, {key[2]}")
    return text


def main() -> None:
    """Read the arguments, print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files
    if not files:
        files = sorted(OUT.glob("*.json"))[-2:]
    if len(files) != 2:
        parser.error("two files are needed; make bench writes one each time")
    print(f"{files[0]}\n{files[1]}\n")
    print("\n".join(lines(load(files[0]), load(files[1]))))


if __name__ == "__main__":
    main()
