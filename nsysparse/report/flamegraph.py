"""The flame graph, and the difference of two, as one self-contained page: it works offline and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import jinja2
import numpy as np
import polars as pl
from markupsafe import Markup

from nsysparse import units
from nsysparse._version import __version__
from nsysparse.data import data_folder
from nsysparse.flamegraph.difference import Difference
from nsysparse.flamegraph.flame import LEVELS, Flame
from nsysparse.flamegraph.tables import table_copy_paths, table_waiting_paths
from nsysparse.flamegraph.tree import Tree, build_tree, prune
from nsysparse.intervals import Times
from nsysparse.report.pathtables import show_changes, show_copy_paths, show_coverage, show_shares, show_waiting_paths
from nsysparse.report.text import clipped, visible
from nsysparse.stacks.chains import Lists

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


def render_page(flame: Flame, shares: pl.DataFrame, max_nodes: int = MAX_NODES) -> str:
    """The page of one recording.

    Args:
        flame: Its call paths.
        shares: See :func:`nsysparse.accounting.samples.share_samples`.
        max_nodes: Frames that the page holds at most; the smallest beyond count for the frame above them.
    """
    tree, lost, notes = small_enough(flame.paths, flame.values, max_nodes)
    if not any(n for kind, n in flame.stacks.items() if kind != "stacks of OS runtime calls"):
        notes.append(HOW_TO_RECORD)
    if flame.absent:
        notes.append(f"Nothing in this window has any of: {', '.join(flame.absent)}.")
    data = {
        **_tree_data(tree, lost, flame.labels),
        "weights": [{"key": w.key, "title": w.title, "unit": w.unit, "meaning": w.meaning} for w in flame.weights],
        "window_ns": flame.window_ns,
        "sides": [{"name": flame.name}],
        "scale": [1],
        "per": "",
        "own": {w.key: [_sparse(tree.own[:, i])] for i, w in enumerate(flame.weights)},
    }
    tables = (
        show_copy_paths(table_copy_paths(flame)),
        show_waiting_paths(table_waiting_paths(flame)),
        show_shares(shares),
        show_coverage(flame.coverage),
    )
    return _fill(
        title=flame.name,
        facts=_facts(flame),
        data=data if flame.weights else None,
        legend=LEGEND,
        notes=notes,
        tables=[t for t in tables if t.rows],
        sources=flame.name,
    )


def render_difference(difference: Difference, max_nodes: int = MAX_NODES) -> str:
    """The page of two recordings; frames are as wide as the larger of the two, so that what vanished still shows."""
    base, new = difference.base, difference.new
    scale = (1 / difference.base_number, 1 / difference.new_number)
    values = np.hstack((difference.base_values, difference.new_values))
    tree, lost, notes = small_enough(difference.paths, values, max_nodes)
    n = len(difference.weights)
    data = {
        **_tree_data(tree, lost, difference.labels),
        "weights": [{"key": w.key, "title": w.title, "unit": w.unit, "meaning": w.meaning} for w in difference.weights],
        "window_ns": 0,
        "sides": [{"name": name} for name in _told_apart(base.name, new.name)],
        "scale": list(scale),
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
    names = _told_apart(base.name, new.name)
    facts = [(names[0], _window(base)), (names[1], _window(new))]
    return _fill(
        title=f"{base.name} → {new.name}",
        facts=facts,
        data=data if difference.weights else None,
        legend=CHANGES,
        notes=notes,
        tables=[t for t in show_changes(difference, names) if t.rows],
        sources=f"{base.name} and {new.name}",
    )


def _told_apart(base: str, new: str) -> tuple[str, str]:
    return (base, new) if base != new else (f"{base} (first)", f"{new} (second)")


def small_enough(paths: Lists, values: Times, max_nodes: int) -> tuple[Tree, list[int], list[str]]:
    """The tree that a page can hold, how many frames each of its frames lost, and what must be said about that."""
    whole = build_tree(paths, values)
    tree, _, lost = prune(whole, max_nodes)
    if len(tree) == len(whole):
        return tree, lost.tolist(), []
    said = (
        f"This page holds the {units.count(len(tree) - 1)} largest of {units.count(len(whole) - 1)} frames; the weight"
        " of the others counts for the frame above them. The folded, speedscope and JSON formats hold all."
    )
    return tree, lost.tolist(), [said]


def _tree_data(tree: Tree, lost: list[int], labels: pl.DataFrame) -> dict[str, Any]:
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
        "nodes": {"parent": tree.parent.tolist(), "label": [0, *code.ravel().tolist()], "lost": lost},
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


def _fill(*, data: dict[str, Any] | None, **context: Any) -> str:
    """Fill the template; everything from the trace is escaped, the script and the style are allowed by their hash."""
    folder = data_folder("templates")
    script = (folder / "assets" / "flamegraph.js").read_text("utf-8")
    style = (folder / "assets" / "flamegraph.css").read_text("utf-8")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none';"
        f" script-src '{_digest(script)}'; style-src '{_digest(style)}'"
    )
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.from_string((folder / "flamegraph.html").read_text("utf-8"))
    return template.render(
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        data=Markup(_inert(data)) if data else "",
        drawn=data is not None,
        nothing=NOTHING,
        version=__version__,
        **context,
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _inert(data: dict[str, Any]) -> str:
    """JSON that cannot end its script element, whatever the recording is called."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
