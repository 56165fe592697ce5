"""The file and the export: damage, filters, texts that had to be repaired."""

from __future__ import annotations

from nsysparse import units
from nsysparse.integrity.check import Check, Status
from nsysparse.source import Trace

META_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
# What `nsys export` was told to leave out, by the keys that exports record.
FILTERS = {"EXPORT_PARAM_TABLES_TO_EXPORT": "tables", "EXPORT_PARAM_TIMES_TO_EXPORT": "times"}


def check_file(trace: Trace) -> Check:
    """Header, length and the files beside it (a damaged file is refused before this)."""
    remarks = trace.backend.remarks
    interrupted = [r for r in remarks if "journal" in r]
    status = Status.SUSPECT if interrupted else Status.NOTE if remarks else Status.OK
    text = "; ".join(remarks) or "header and length are sound"
    return Check("file", "File", status, f"{text[0].upper()}{text[1:]}.", {"remarks": list(remarks)})


def check_export(trace: Trace) -> Check:
    """Whether the export was filtered."""
    meta = trace.metadata(*META_TABLES)
    if not meta:
        return Check("export", "Export", Status.UNKNOWN, "This release does not say what was exported.", {})
    filtered = [what for key, what in FILTERS.items() if meta.get(key, "").strip() not in {"", "None"}]
    if filtered:
        text = f"The export was filtered by {' and '.join(filtered)}: totals are of a part of the recording."
        return Check("export", "Export", Status.INCOMPLETE, text, {"filtered_by": filtered})
    return Check("export", "Export", Status.OK, "The export is not filtered.", {"filtered_by": []})


def check_texts(trace: Trace) -> Check:
    """Texts that were not valid UTF-8."""
    repaired = dict(sorted(trace.backend.notes.repaired_texts.items()))
    if repaired:
        text = f"{units.count(sum(repaired.values()))} texts were not UTF-8 and were repaired; no number is touched."
        return Check("texts", "Texts", Status.NOTE, text, {"repaired": repaired})
    return Check("texts", "Texts", Status.OK, "All texts that were read are valid UTF-8.", {"repaired": {}})
