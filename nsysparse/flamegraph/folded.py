"""Folded stacks: one line a path, labels between semicolons, and the weight behind a space."""

from __future__ import annotations

import polars as pl

from nsysparse.flamegraph.difference import Difference
from nsysparse.flamegraph.flame import Flame
from nsysparse.stacks.chains import Lists


def to_folded(flame: Flame, weight: str) -> str:
    """One weight as folded stacks, sorted; paths without any of it are left out.

    Args:
        flame: The call paths.
        weight: Key of the weight.
    """
    values = flame.values[:, flame.column(weight)]
    lines = pl.DataFrame({"path": path_texts(flame.paths, flame.labels["text"]), "value": values})
    lines = lines.filter(pl.col("value") > 0).group_by("path").agg(pl.col("value").sum()).sort("path")
    return "".join(line + "\n" for line in lines.select(pl.format("{} {}", "path", "value"))["path"].to_list())


def difference_to_folded(difference: Difference, weight: str) -> str:
    """Both recordings in one file: the path, then the first one's and the second one's exact weight.

    The weights are not divided by requests or seconds: tools that read this form compare integers.
    """
    column = difference.column(weight)
    lines = pl.DataFrame(
        {
            "path": path_texts(difference.paths, difference.labels["text"]),
            "base": difference.base_values[:, column],
            "new": difference.new_values[:, column],
        }
    )
    lines = lines.filter((pl.col("base") > 0) | (pl.col("new") > 0)).group_by("path").agg(pl.col("base", "new").sum())
    texts = lines.sort("path").select(pl.format("{} {} {}", "path", "base", "new"))
    return "".join(line + "\n" for line in texts.to_series().to_list())


def path_texts(paths: Lists, texts: pl.Series) -> pl.Series:
    """Each path as one text; a semicolon or line break in a label would end it and becomes a colon or space."""
    clean = texts.str.replace_all(";", ":", literal=True).str.replace_all(r"\s", " ")
    rows = pl.DataFrame({"path": paths.owner(), "label": clean.gather(paths.value)})
    joined = rows.group_by("path", maintain_order=True).agg(pl.col("label").str.join(";"))
    whole = pl.DataFrame({"path": range(len(paths))}, schema={"path": pl.Int64})
    return whole.join(joined, on="path", how="left", maintain_order="left")["label"].fill_null("(root)")
