"""The flame graph, and the difference of two, as one self-contained page: it works offline and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import polars as pl
from markupsafe import Markup

from nsysparse import units
from nsysparse._version import __version__
from nsysparse.accounting.callpaths import Weight
from nsysparse.data import data_folder
from nsysparse.flamegraph.difference import Difference
from nsysparse.flamegraph.flame import LEVELS, Flame
from nsysparse.flamegraph.tables import table_copy_paths, table_os_paths, table_waiting_paths
from nsysparse.flamegraph.tree import Tree, build_tree
from nsysparse.intervals import Times
from nsysparse.report.kept import KeptTemplates
from nsysparse.report.pathtables import (
    show_changes,
    show_copy_paths,
    show_coverage,
    show_os_paths,
    show_shares,
    show_totals,
    show_waiting_paths,
)
from nsysparse.report.text import clipped, visible
from nsysparse.stacks.chains import Lists

SCRIPT, STYLES = "flame.js", ("flame.css",)
MAX_CHARACTERS = 400  # of a label; a C++ name can have thousands
MAX_NODES = 250_000  # of a page: some 10 MB, which a browser redraws in well under a second
LEVEL_TITLES = ("process", "thread", "NVTX", "Python", "native", "API", "device", "operation")
LEGEND = (
    ("htod", "copy to the device"),
    ("dtoh", "copy to the host"),
    ("other-copy", "other copies"),
    ("copy-call", "copy call"),
    ("sync", "synchronize"),
    ("kernel", "kernel"),
    ("memset", "memset"),
    ("call", "other CUDA call"),
    ("native", "native code"),
    ("python", "Python"),
    ("nvtx", "NVTX range"),
    ("process", "process, thread"),
    ("small hatched", "frames narrower than a pixel, drawn as one"),
)
CHANGES = (
    ("grew", "▲ grew"),
    ("shrank", "▼ shrank"),
    ("same", "= the same"),
    ("grew hatched", "new: only in the second recording"),
    ("shrank hatched", "gone: only in the first recording"),
)
HOW_TO_RECORD = (
    "No call stacks were recorded. Those of CUDA calls: nsys profile --cudabacktrace=all. Of the program:"
    " --sample=process-tree. Of Python: --python-backtrace=cuda and --python-sampling=true, exported with"
    " --include-blobs=true."
)
NOTHING = "Nothing in this window has a weight: no GPU work, no waiting call and no sample."


@dataclass(frozen=True)
class FlameView:
    """A flame graph as a template shows it.

    Attributes:
        data: What its script reads, as JSON; empty where there is nothing to draw.
        legend: Class and meaning of each colour.
        notes: What must be said beside it.
    """

    data: Markup
    legend: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def drawn(self) -> bool:
        """Whether there is a picture."""
        return bool(self.data)


def view_flame(flame: Flame, max_nodes: int = MAX_NODES) -> FlameView:
    """One recording's flame graph.

    Args:
        flame: Its call paths.
        max_nodes: Frames that the page holds at most; the smallest beyond count for the frame above them.
    """
    tree, notes = small_enough(flame.paths, flame.values, max_nodes)
    if flame.unreadable:
        notes.append(
            f"{units.count(flame.unreadable)} Python stacks are in a form that cannot be read and are left out."
        )
    if not flame.says_who_asked:
        notes.append(HOW_TO_RECORD)
    if not flame.weights:
        return FlameView(Markup(), LEGEND, (NOTHING, *notes))
    if flame.absent:
        notes.append(f"Nothing in this window has any of: {', '.join(flame.absent)}.")
    data = {
        **_tree_data(tree, flame.labels),
        "weights": _weights(flame.weights),
        "window_ns": flame.window_ns,
        "sides": [{"name": _fit(flame.name)}],
        "scale": [1],
        "per": "",
        "own": {w.key: [_sparse(tree.own[:, i])] for i, w in enumerate(flame.weights)},
    }
    return FlameView(Markup(_inert(data)), LEGEND, tuple(notes))


def view_difference(difference: Difference, max_nodes: int = MAX_NODES) -> FlameView:
    """Two recordings' flame graph; frames are as wide as the larger of the two, so that what vanished still shows."""
    values = np.hstack((difference.base_values, difference.new_values))
    tree, notes = small_enough(difference.paths, values, max_nodes)
    if not difference.weights:
        return FlameView(Markup(), CHANGES, (NOTHING, *notes))
    n = len(difference.weights)
    data = {
        **_tree_data(tree, difference.labels),
        "weights": _weights(difference.weights),
        "window_ns": 0,
        "sides": [{"name": _fit(name)} for name in _told_apart(difference)],
        "scale": [1 / difference.base_number, 1 / difference.new_number],
        "per": f" a {difference.per}",
        "own": {
            w.key: [_sparse(tree.own[:, i]), _sparse(tree.own[:, n + i])] for i, w in enumerate(difference.weights)
        },
    }
    notes.append(
        f"Weights are per {difference.per}{' of the window' if difference.per == 'second' else ''}. A frame is as wide"
        " as the larger of its two weights. Frames are matched by name: addresses, module versions and lines are not"
        " compared."
    )
    return FlameView(Markup(_inert(data)), CHANGES, tuple(notes))


def _weights(weights: tuple[Weight, ...]) -> list[dict[str, str]]:
    return [{"key": w.key, "title": w.title, "unit": w.unit, "meaning": w.meaning} for w in weights]


def render_page(flame: Flame, shares: pl.DataFrame, max_nodes: int = MAX_NODES) -> str:
    """The page of one recording.

    Args:
        flame: Its call paths.
        shares: See :func:`nsysparse.accounting.samples.share_samples`.
        max_nodes: See :func:`view_flame`.
    """
    tables = (
        show_copy_paths(table_copy_paths(flame)),
        show_waiting_paths(table_waiting_paths(flame)),
        show_os_paths(table_os_paths(flame)),
        show_shares(shares),
        show_coverage(flame.coverage),
    )
    return _fill(
        title=flame.name,
        facts=_facts(flame),
        flame=view_flame(flame, max_nodes),
        tables=[t for t in tables if t.rows],
        sources=flame.name,
    )


def render_difference(difference: Difference, max_nodes: int = MAX_NODES) -> str:
    """The page of two recordings; see :func:`view_difference`."""
    base, new = difference.base, difference.new
    names = _told_apart(difference)
    return _fill(
        title=f"{base.name} → {new.name}",
        facts=[(names[0], _window(base)), (names[1], _window(new))],
        flame=view_difference(difference, max_nodes),
        tables=[t for t in (show_totals(difference, names), *show_changes(difference, names)) if t.rows],
        sources=f"{base.name} and {new.name}",
    )


def _told_apart(difference: Difference) -> tuple[str, str]:
    base, new = difference.base.name, difference.new.name
    return (base, new) if base != new else (f"{base} (first)", f"{new} (second)")


def small_enough(paths: Lists, values: Times, max_nodes: int) -> tuple[Tree, list[str]]:
    """The tree that a page can hold, and what must be said about the frames that it lost."""
    tree = build_tree(paths, values, max_nodes)
    shown, lost = len(tree) - 1, int(tree.lost.sum())
    if not lost:
        return tree, []
    said = (
        f"This page holds the {units.count(shown)} largest of {units.count(shown + lost)} frames; the weight"
        " of the others counts for the frame above them. The folded, speedscope and JSON formats hold all."
    )
    return tree, [said]


def _tree_data(tree: Tree, labels: pl.DataFrame) -> dict[str, Any]:
    """Nodes and the labels that they use, numbered anew."""
    used, code = np.unique(tree.label[1:], return_inverse=True)
    shown = labels[used]
    return {
        "levels": list(LEVELS),
        "level_titles": list(LEVEL_TITLES),
        "labels": {
            "text": [_fit(text) for text in shown["text"].to_list()],
            "level": shown["level"].to_list(),
            "colour": shown["colour"].to_list(),
            "detail": ["\n".join(map(_fit, text.split("\n"))) for text in shown["detail"].to_list()],
        },
        "nodes": {"parent": tree.parent.tolist(), "label": [0, *code.ravel().tolist()], "lost": tree.lost.tolist()},
    }


def _fit(text: str) -> str:
    """A label that a page can hold, with nothing in it that acts on the reader's eyes."""
    return visible(clipped(text, MAX_CHARACTERS))


def _sparse(values: Times) -> dict[str, list[int]]:
    """The nodes with any of a weight, and how much."""
    node = np.flatnonzero(values)
    return {"node": node.tolist(), "value": values[node].tolist()}


def _facts(flame: Flame) -> list[tuple[str, str]]:
    facts = [("window", _window(flame))]
    if flame.requests:
        facts.append(("requests", units.count(flame.requests)))
    for kind in ("copies", "kernels", "synchronizations"):
        row = flame.coverage.filter((pl.col("kind") == kind) & (pl.col("stack") == "any"))
        if row.height:
            shares = (units.percent(row["operations_ratio"][0]), units.percent(row["time_ratio"][0]))
            facts.append((f"{kind} with a stack", f"{shares[0]} ({shares[1]} of their time)"))
    return facts


def _window(flame: Flame) -> str:
    return f"{units.duration(flame.window[1] - flame.window[0])}, {flame.basis}"


def _fill(**context: Any) -> str:
    """Fill the template; what is from the trace is escaped, the script and the style are allowed by their hash."""
    folder = data_folder("templates")
    script = asset(folder, SCRIPT)
    style = "\n".join(asset(folder, name) for name in (*STYLES, "flamegraph.css"))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none';"
        f" script-src '{_digest(script)}'; style-src '{_digest(style)}'"
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        bytecode_cache=KeptTemplates(),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    return environment.get_template("flamegraph.html").render(
        policy=policy, style=Markup(style), script=Markup(script), version=__version__, **context
    )


def asset(folder: Path, name: str) -> str:
    """A script or style sheet."""
    return (folder / "assets" / name).read_text(encoding="utf-8").replace("\r\n", "\n").strip()


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _inert(data: dict[str, Any]) -> str:
    """JSON that cannot end its script element, whatever the recording is called."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
