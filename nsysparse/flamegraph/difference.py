"""The difference of two recordings: paths matched by name, weights per request or per second of window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysparse.accounting.callpaths import WEIGHTS, Weight
from nsysparse.errors import UsageError
from nsysparse.flamegraph.flame import Flame, merge_equal
from nsysparse.intervals import Times
from nsysparse.stacks.chains import Lists

PER_REQUEST, PER_SECOND = "request", "second"


@dataclass(frozen=True)
class Difference:
    """Two recordings on one set of paths.

    Attributes:
        base, new: The recordings, made without lines so that moved code still matches.
        labels: See :class:`nsysparse.flamegraph.flame.Flame`.
        paths: Distinct paths that are in either.
        base_values, new_values: Their weights (paths x weights), exact; zeros where a path is not there.
        weights: Columns that either has.
        per: ``request`` or ``second`` of the window.
        base_number, new_number: How many of these there are in each.
    """

    base: Flame
    new: Flame
    labels: pl.DataFrame
    paths: Lists
    base_values: Times
    new_values: Times
    weights: tuple[Weight, ...]
    per: str
    base_number: float
    new_number: float

    def column(self, key: str) -> int:
        """Column of a weight."""
        return [w.key for w in self.weights].index(key)

    def totals(self) -> pl.DataFrame:
        """Both recordings as a whole: the wall time of their windows, then every weight.

        Returns:
            ``key``, ``title``, ``unit``, ``base`` and ``new`` (exact), ``per`` (what the next are per), ``base_per``,
            ``new_per``, ``change_per``, ``change_ratio`` (of the base; NULL where that is 0). Wall time is per request
            only, whatever the weights are per; where the requests are not known these columns are NULL.
        """
        walls = (self.base.window[1] - self.base.window[0], self.new.window[1] - self.new.window[0])
        known = (self.base.requests, self.new.requests)
        per_request = PER_REQUEST if all(known) else None
        rows: list[tuple[object, ...]] = [("wall_ns", "Wall time", "ns", *walls, per_request, *known)]
        numbers = (self.base_number, self.new_number)
        for i, w in enumerate(self.weights):
            sums = (int(self.base_values[:, i].sum()), int(self.new_values[:, i].sum()))
            rows.append((w.key, w.title, w.unit, *sums, self.per, *numbers))
        schema = {
            **dict.fromkeys(("key", "title", "unit"), pl.String),
            **{"base": pl.Int64, "new": pl.Int64, "per": pl.String, "n_base": pl.Float64, "n_new": pl.Float64},
        }
        change = pl.col("change_per") / pl.col("base_per")
        return (
            pl.DataFrame(rows, orient="row", schema=schema)
            .with_columns(
                pl.when(pl.col("per").is_not_null()).then(pl.col(side) / pl.col(f"n_{side}")).alias(f"{side}_per")
                for side in ("base", "new")
            )
            .with_columns(change_per=pl.col("new_per") - pl.col("base_per"))
            .with_columns(change_ratio=pl.when(pl.col("base_per") > 0).then(change))
            .drop("n_base", "n_new")
        )

    def table(self, key: str, marked: str | None = None) -> pl.DataFrame:
        """Paths with both their weights.

        Args:
            key: A weight.
            marked: Only paths with a label that holds this text.

        Returns:
            ``row`` (of ``paths``), ``path`` (labels, list), ``base`` and ``new`` (exact), ``base_per`` and ``new_per``
            (per request or second), ``change_per``; the largest change first.
        """
        rows = np.arange(len(self.paths))
        if marked is not None:
            hit = self.labels["text"].str.contains(marked, literal=True).to_numpy()
            rows = np.flatnonzero(self.paths.any(self.paths.each(hit)))
        chosen, column = self.paths.take(rows), self.column(key)
        texts = pl.DataFrame({"at": chosen.owner(), "path": self.labels["text"].gather(chosen.value)})
        table = pl.DataFrame({"at": np.arange(rows.size), "row": rows})
        return (
            table.join(texts.group_by("at").agg("path"), on="at", how="left", maintain_order="left")
            .with_columns(base=self.base_values[rows, column], new=self.new_values[rows, column])
            .with_columns(base_per=pl.col("base") / self.base_number, new_per=pl.col("new") / self.new_number)
            .with_columns(change_per=pl.col("new_per") - pl.col("base_per"))
            .filter((pl.col("base") > 0) | (pl.col("new") > 0))
            .sort(pl.col("change_per").abs(), descending=True, maintain_order=True)
            .drop("at")
        )


def compare(base: Flame, new: Flame, per: str | None = None) -> Difference:
    """Match two recordings by the names on their paths.

    Args:
        base: The one before.
        new: The one after.
        per: ``request`` or ``second``; by default requests where both know theirs.

    Raises:
        UsageError: Requests were asked for and one of the two does not know them.
    """
    known = bool(base.requests and new.requests)
    if per == PER_REQUEST and not known:
        raise UsageError(
            "not both recordings say how many requests there are",
            "give --requests N for each (base first), or --request-range, or compare --per second",
        )
    per = per or (PER_REQUEST if known else PER_SECOND)
    numbers = [
        float(f.requests) if per == PER_REQUEST and f.requests else (f.window[1] - f.window[0]) / 1e9
        for f in (base, new)
    ]
    labels, paths = _on_one_numbering(base, new)
    keys = [w.key for w in (*base.weights, *new.weights)]
    weights = tuple(w for w in WEIGHTS if w.key in keys)
    values = np.zeros((len(base.paths) + len(new.paths), 2 * len(weights)), np.int64)
    for column, weight in enumerate(weights):
        if weight in base.weights:
            values[: len(base.paths), column] = base.values[:, base.column(weight.key)]
        if weight in new.weights:
            values[len(base.paths) :, len(weights) + column] = new.values[:, new.column(weight.key)]
    paths, values = merge_equal(paths, values)
    both = (values[:, : len(weights)], values[:, len(weights) :])
    return Difference(base, new, labels, paths, *both, weights, per, *numbers)


def _on_one_numbering(base: Flame, new: Flame) -> tuple[pl.DataFrame, Lists]:
    """Labels of both, equal (level, text) once, and the paths of both one after another."""
    both = pl.concat([base.labels, new.labels]).with_columns(colour=pl.col("colour").fill_null("other"))
    labels = both.unique(["level", "text"], keep="first", maintain_order=True).with_row_index("label")
    code = both.join(labels, on=["level", "text"], how="left", maintain_order="left")["label"].cast(pl.Int64).to_numpy()
    lists = [base.paths.coded(code[: base.labels.height]), new.paths.coded(code[base.labels.height :])]
    paths = Lists.of_lengths(
        np.concatenate([part.length for part in lists]), np.concatenate([part.value for part in lists])
    )
    return labels.drop("label"), paths
