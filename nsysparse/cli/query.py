"""``nsysparse query``: shipped queries and the user's own SQL on any export."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from nsysparse.cli.options import completed, force_option
from nsysparse.cli.tables import format_option, result_option, show_frame
from nsysparse.errors import UsageError


def _names() -> Iterable[str]:
    from nsysparse.queries import load_queries

    return sorted(load_queries())


@click.command()
@click.argument("trace", type=click.Path(readable=False, path_type=Path), required=False)
@click.argument("name", required=False, shell_complete=completed(_names))
@click.option("--sql", help="Run this statement instead; the canonical tables are views (see --tables).")
@click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the query; repeatable.",
)
@click.option("--tables", is_flag=True, help="List the canonical tables and their columns.")
@click.option("--raw", is_flag=True, help="Print plain ns and bytes in tables.")
@format_option
@result_option
@force_option
def command(
    trace: Path | None,
    name: str | None,
    sql: str | None,
    params: tuple[str, ...],
    tables: bool,
    raw: bool,
    form: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Run a query on TRACE.

    Without a NAME, list the queries that are shipped. Every release of nsys looks the same to them: they run on views
    with canonical columns, and so does --sql. The trace is opened read-only.

    \b
    Examples:
      nsysparse query
      nsysparse query trace.sqlite kernels/by_name -p top=5
      nsysparse query trace.sqlite --sql 'SELECT count(*) FROM kernels' --format csv
    """
    if tables:
        _list_tables()
        return
    from nsysparse.queries import load_queries, run_query, run_sql

    queries = load_queries()
    if trace is None or (name is None and sql is None):
        _list_queries(queries)
        return
    if name is not None and sql is not None:
        raise UsageError("both a query's name and --sql were given", "give one of them")
    if name is not None and name not in queries:
        raise UsageError(f"no query '{name}'", f"the queries: {', '.join(queries)}")
    values = _parameters(params)
    from nsysparse.source import open_trace

    with open_trace(trace) as opened:
        frame = run_sql(opened, sql) if sql is not None else run_query(opened, queries[name or ""], values)
    show_frame(frame, form, output, force, raw, recording=trace)


def _parameters(params: tuple[str, ...]) -> dict[str, str]:
    values = {}
    for text in params:
        name, sign, value = text.partition("=")
        if not sign:
            raise UsageError(f"cannot read the parameter '{text}'", "write it as -p name=value")
        values[name.strip()] = value
    return values


def _list_queries(queries: dict) -> None:  # type: ignore[type-arg]
    for query in queries.values():
        click.echo(f"{query.name}\n    {query.title}")
        for parameter in query.parameters:
            click.echo(f"    -p {parameter.name}={parameter.default}  {parameter.meaning}")
        for column in query.columns:
            click.echo(f"      {column.name:<14} {column.type:<5} {column.meaning}")
        for note in query.notes:
            click.echo(f"    Note: {note}")


def _list_tables() -> None:
    from nsysparse import schema

    for table in schema.TABLES.values():
        click.echo(f"{table.name}: {table.meaning} ({', '.join(table.sources)})")
        for column in table.columns:
            click.echo(f"    {column.name:<22} {column.kind:<5} {column.meaning}")
            if column.text:
                click.echo(f"    {column.text:<22} text  the text behind {column.name}")
