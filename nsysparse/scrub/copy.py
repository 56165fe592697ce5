"""Copies a recording table by table, through the policy."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from nsysparse.errors import UsageError
from nsysparse.scrub import policy
from nsysparse.scrub.payloads import clean_payload, read_layouts
from nsysparse.scrub.texts import Cleaner
from nsysparse.scrub.window import condition
from nsysparse.source import Trace
from nsysparse.source.columns import quoted

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9 ]*(\(\d+(,\d+)?\))?")
# Tables whose threads and processes are the program's.
_PROGRAM = {
    "globalTid": ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API", "COMPOSITE_EVENTS"),
    "globalPid": tuple(f"CUPTI_ACTIVITY_KIND_{k}" for k in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")),
}
FILTERED = "(filtered)"  # in place of what an export was filtered by
_NAMES = re.compile(r"(?i)(host|user|logname|device_display)")  # keys whose values are hosts and users
_NO_NAMES = {"root", "user", "localhost", "none", "true", "false", "unknown", "local"}


@dataclass(frozen=True)
class Options:
    """What the user chose.

    Attributes:
        keep: Classes that are not removed, and tables that are copied as they are.
        drop: Tables that are left out.
        hashed: Kinds of names that become hashes: keys of :data:`nsysparse.scrub.texts.HASHED`.
        key: Key of the hashes; by default one made for this copy and forgotten.
        window: Start and end, ns: only events that overlap it.
    """

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    key: str = ""
    window: tuple[int, int] | None = None


@dataclass
class _Job:
    """One copy: the connection has the original as ``source``, the copy as ``main``."""

    connection: sqlite3.Connection
    columns: dict[str, list[tuple[str, str, bool, int]]]
    options: Options
    cleaner: Cleaner
    removed: Counter[str] = field(default_factory=Counter)
    strings: dict[int, set[str]] = field(default_factory=dict)


def scrub(trace: Trace, target: Path, options: Options | None = None) -> dict[str, int]:
    """Write a copy that is fit to share.

    Args:
        trace: The recording; the copy is a SQLite export whatever it is.
        target: An empty file.
        options: What else to keep or to remove.

    Returns:
        How many rows or texts of each class were removed; 0 for classes with none.

    Raises:
        UsageError: The recording holds a table that no rule knows, or an option names what is not there.
    """
    options = options or Options()
    tables = _choose(trace, options)
    key = options.key.encode() or secrets.token_bytes(16)
    copy = f"file:{quote(str(target.resolve()))}"
    with closing(sqlite3.connect(copy, uri=True, isolation_level=None)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("PRAGMA journal_mode = OFF")  # the copy is renamed into place only when it is whole
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("ATTACH ? AS source", (trace.backend.uri,))
        columns = {t: _columns(connection, t) for t in tables}
        cleaner = Cleaner(_names(connection, trace), options.hashed, key, options.keep)
        job = _Job(connection, columns, options, cleaner)
        _copy_all(job, trace)
        return {name: job.removed[name] + cleaner.removed[name] for name in policy.CLASSES}


def _choose(trace: Trace, options: Options) -> list[str]:
    """The tables to copy; refuses what nobody knows."""
    present = set(trace.tables)
    missing = [n for n in (*options.keep, *options.drop) if n not in present and n not in policy.CLASSES]
    if missing:
        raise UsageError(
            f"no table or class '{missing[0]}' in this recording", f"the classes are: {', '.join(policy.CLASSES)}"
        )
    unknown = sorted(
        t
        for t in present - set(options.keep) - set(options.drop) - set(policy.LEFT_OUT)
        if not policy.KNOWN.fullmatch(t)
    )
    if unknown:
        raise UsageError(
            f"no rule for {'these tables' if len(unknown) > 1 else 'this table'}: {', '.join(unknown)}",
            "leave them out with --drop TABLE, or copy them as they are with --keep TABLE",
        )
    left = {t for t, what in policy.LEFT_OUT.items() if t not in options.keep and what not in options.keep}
    return sorted(present - set(options.drop) - left)


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, str, bool, int]]:
    """Name, type, not-null and place in the primary key of each column."""
    rows = connection.execute(f"PRAGMA source.table_info({quoted(table)})").fetchall()
    return [(r[1], r[2] if _TYPE.fullmatch(r[2] or "") else "", bool(r[3]), r[5]) for r in rows]


def _names(connection: sqlite3.Connection, trace: Trace) -> set[str]:
    """Hosts and users that the recording names: they are taken out of every text."""
    found = set()
    for table in ("TARGET_INFO_SYSTEM_ENV", policy.META_CAPTURE, *policy.META_EXPORT):
        if {"name", "value"} <= set(trace.tables.get(table, ())):
            rows = connection.execute(f"SELECT name, CAST(value AS TEXT) FROM source.{table}")
            found |= {v for n, v in rows if n and v and _NAMES.search(str(n)) and "/" not in v and len(v) <= 64}
    return {v for v in found if v.lower() not in _NO_NAMES and not v.isdigit()}


def _copy_all(job: _Job, trace: Trace) -> None:
    for table, what in policy.LEFT_OUT.items():
        if table in trace.tables and table not in job.columns and table not in job.options.drop:
            job.removed[what] += trace.backend.row_count(table)
    program = _program(job)
    _define(job)
    for table in job.columns:
        if table != policy.STRING_TABLE:
            _copy(job, table, program)
    if policy.STRING_TABLE in job.columns:
        _copy_strings(job)


def _program(job: _Job) -> set[int]:
    """Process ids of the program: those that did anything that was traced."""
    found: set[int] = set()
    for column, tables in _PROGRAM.items():
        for table in tables:
            if column in (c[0] for c in job.columns.get(table, ())):
                query = f"SELECT DISTINCT ({column} >> 24) & 16777215 FROM source.{table} WHERE {column} IS NOT NULL"
                found |= {int(r[0]) for r in job.connection.execute(query)}
    return found


def _define(job: _Job) -> None:
    """The functions that the statements of the copy use; they return NULL for what stays as it is."""

    def changed(make: Callable[[str], str]) -> Callable[[bytes | None], str | None]:
        def function(raw: bytes | None) -> str | None:
            text = (raw or b"").decode("utf-8", "replace")
            made = make(text)
            return None if made == text else made

        return function

    def cleaned(kind: str) -> Callable[[str], str]:
        return lambda text: job.cleaner.text(kind, text)

    kinds = (
        *(policy.NVTX, policy.KERNEL, policy.FUNCTION, policy.MODULE, policy.THREAD, policy.PROCESS, policy.JSON),
        policy.PLAIN,
    )
    for kind in kinds:
        job.connection.create_function(_function(kind), 1, changed(cleaned(kind)), deterministic=True)
    for (table, column), form in policy.FORMS.items():
        job.connection.create_function(_function(f"{table}.{column}"), 1, changed(job.cleaner.of_form(form)))
    job.connection.create_function(_function(policy.UUID), 1, changed(job.cleaner.uuid))
    job.connection.create_function(_function(policy.MESSAGE), 1, changed(job.cleaner.message))
    layouts = {} if "NVTX_PAYLOAD_SCHEMAS" not in job.columns else read_layouts(job.connection)

    def payload(raw: object) -> bytes | None:
        made, strings = clean_payload(raw, layouts) if isinstance(raw, bytes) else (None, set())
        job.removed["payloads"] += made != raw
        for number in strings:
            job.strings.setdefault(number, set()).add(policy.MODULE)
        return made

    job.connection.create_function(_function(policy.PAYLOAD), 1, payload)


def _function(kind: str) -> str:
    return f"clean_{kind.replace(' ', '_').replace('.', '_')}"


def _copy(job: _Job, table: str, program: set[int]) -> None:
    columns = job.columns[table]
    _create(job, table)
    where = [c for c in (_rows(job, table, program), condition(job.columns, table, job.options.window)) if c]
    clause = f" WHERE {' AND '.join(where)}" if where else ""
    order = "" if _has_no_rowid(job.connection, table) else " ORDER BY rowid"
    values = ", ".join(_values(job, table))
    job.connection.execute(
        f"INSERT INTO main.{quoted(table)} SELECT {values} FROM source.{quoted(table)}{clause}{order}"
    )
    for name, *_ in columns:
        kind = policy.reference(table, name)
        if kind is not None:
            for (number,) in job.connection.execute(
                f"SELECT DISTINCT {quoted(name)} FROM main.{quoted(table)} WHERE typeof({quoted(name)}) = 'integer'"
            ):
                job.strings.setdefault(number, set()).add(kind)


def _create(job: _Job, table: str) -> None:
    columns = job.columns[table]
    keys = [c for c, *_, place in sorted(columns, key=lambda c: c[3]) if place]
    body = [f"{quoted(c)} {kind}{' NOT NULL' if needed else ''}" for c, kind, needed, _ in columns]
    if keys:
        body.append(f"PRIMARY KEY ({', '.join(quoted(k) for k in keys)})")
    job.connection.execute(f"CREATE TABLE main.{quoted(table)} ({', '.join(body)})")


def _values(job: _Job, table: str) -> list[str]:
    """The expressions that make the columns of the copy."""
    columns = job.columns[table]
    if table in job.options.keep:
        return [quoted(c) for c, *_ in columns]
    strays = _strays(job, table)
    return [
        _treated(job, table, column, needed) or _number(job, column, kind, needed, strays.get(column, 0))
        for column, kind, needed, _ in columns
    ]


def _treated(job: _Job, table: str, column: str, needed: bool) -> str:
    """The expression where a rule knows the column, else ""."""
    name, treatment = quoted(column), policy.text(table, column)
    is_json = policy.JSON in {treatment, policy.reference(table, column)}
    if is_json and "payloads" not in job.options.keep:
        job.removed["payloads"] += _count(job, table, f"{name} IS NOT NULL")
        return "''" if needed else "NULL"
    if (table, column) in policy.IDENTIFYING_NUMBERS and "uuids" not in job.options.keep:
        job.removed["uuids"] += _count(job, table, f"{name} IS NOT NULL")
        return "0" if needed else "NULL"
    if table in policy.META_EXPORT and column == "value":
        used = "name LIKE 'EXPORT_PARAM_T%_TO_EXPORT' AND trim(value) NOT IN ('', 'None')"
        return f"CASE WHEN {used} THEN '{FILTERED}' ELSE value END"
    if treatment == policy.PAYLOAD:
        return name if "payloads" in job.options.keep else f"{_function(treatment)}({name})"
    if treatment is None:
        return ""
    kind = f"{table}.{column}" if treatment == policy.FORM else treatment
    return f"coalesce({_function(kind)}(CAST({name} AS BLOB)), {name})"


def _number(job: _Job, column: str, kind: str, needed: bool, strays: int) -> str:
    """The expression for a column of numbers, or of texts that no rule knows."""
    name = quoted(column)
    if not strays or "texts" in job.options.keep:
        return name
    job.removed["texts"] += strays
    if kind.upper() in {"TEXT", "BLOB", ""}:
        return "''" if needed else "NULL"
    return f"CASE WHEN typeof({name}) IN ('integer', 'real') THEN {name} ELSE {'0' if needed else 'NULL'} END"


def _strays(job: _Job, table: str) -> dict[str, int]:
    """How many texts each column without a rule holds. Texts sort after numbers, so one pass of max() finds them."""
    names = [c for c, *_ in job.columns[table] if policy.text(table, c) is None]
    if not names:
        return {}
    greatest = ", ".join(f"typeof(max({quoted(n)}))" for n in names)
    kinds = job.connection.execute(f"SELECT {greatest} FROM source.{quoted(table)}").fetchone()
    return {
        n: _count(job, table, f"typeof({quoted(n)}) IN ('text', 'blob') AND length({quoted(n)}) > 0")
        if kind in {"text", "blob"}
        else 0
        for n, kind in zip(names, kinds, strict=True)
    }


def _count(job: _Job, table: str, condition: str) -> int:
    return int(job.connection.execute(f"SELECT count(*) FROM source.{quoted(table)} WHERE {condition}").fetchone()[0])


def _has_no_rowid(connection: sqlite3.Connection, table: str) -> bool:
    try:
        connection.execute(f"SELECT rowid FROM source.{quoted(table)} LIMIT 1")
    except sqlite3.OperationalError:
        return True
    return False


def _rows(job: _Job, table: str, program: set[int]) -> str:
    """The rows of a table to keep; counts those that are not."""
    keep = ""
    what = ""
    listed = ", ".join(str(p) for p in sorted(program)) or "NULL"
    if table == policy.PROCESSES and "pid" in (c[0] for c in job.columns[table]):
        keep, what = f"pid IN ({listed})", "processes"
    elif table == policy.THREADS:
        keep, what = f"((globalTid >> 24) & 16777215) IN ({listed})", "threads"
    elif table == policy.TARGET_PROCESS:
        keep, what = f"processId IN ({listed})", "processes"
    elif table in policy.META_EXPORT:
        keep, what = _meta(job, table, policy.EXPORT_FACTS, policy.EXPORT_VALUE), "export"
    elif table == policy.META_CAPTURE:
        keep, what = _meta(job, table, policy.CAPTURE_FACTS, policy.CAPTURE_VALUE), "capture"
    if not what or what in job.options.keep or table in job.options.keep:
        return ""
    job.removed[what] += _count(job, table, f"NOT coalesce({keep}, 0)")
    return keep


def _meta(job: _Job, table: str, keys: re.Pattern[str], values: re.Pattern[str]) -> str:
    """Row numbers of the facts that may stay."""
    good = []
    query = f"SELECT rowid, CAST(name AS TEXT), CAST(value AS TEXT) FROM source.{quoted(table)}"
    for row, name, value in job.connection.execute(query):
        filtered = bool(policy.EXPORT_FILTERS.fullmatch(name or ""))
        fits = bool(keys.fullmatch(name or "") and values.fullmatch(value or ""))
        if fits or filtered:
            good.append(row)
    return f"rowid IN ({', '.join(map(str, good)) or 'NULL'})"


def _copy_strings(job: _Job) -> None:
    """The strings that something kept refers to, cleaned as what they are."""
    _create(job, policy.STRING_TABLE)
    insert = f"INSERT INTO main.{policy.STRING_TABLE} (id, value) VALUES (?, ?)"
    kept: list[tuple[int, object]] = []
    keep_all = "strings" in job.options.keep
    for number, raw in job.connection.execute(
        f"SELECT id, CAST(value AS BLOB) FROM source.{policy.STRING_TABLE} ORDER BY rowid"
    ):
        kinds = job.strings.get(number, set())
        if not kinds and not keep_all:
            job.removed["strings"] += 1
            continue
        text = (raw or b"").decode("utf-8", "replace")
        made = text
        for kind in sorted(kinds or {policy.MODULE}):
            made = job.cleaner.text(kind, made)
        kept.append((number, raw if made == text else made))
    job.connection.execute("BEGIN")
    job.connection.executemany(insert.replace("VALUES (?, ?)", "VALUES (?, CAST(? AS TEXT))"), kept)
    job.connection.execute("COMMIT")
