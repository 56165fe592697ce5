"""Reads a report back with nothing but the standard library, and builds exports that are hard to show."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

from export_builder import DEVICE, DTOH, PAGEABLE, PINNED, RELEASES, ExportBuilder, global_id
from export_scenario import standard_scenario

from nsysparse.analysis import Analysis, analyze
from nsysparse.source import open_trace

VOID = {"meta", "link", "br", "img", "input", "rect", "hr"}
RELEASE = RELEASES[-1]
HOSTILE = (
    "<script>window.pwned=1</script>",
    "\"><img src=x onerror='window.pwned=1'>",
    "{{ 7*7 }}{% raw %}{# x #}",
    "</script><script>window.pwned=1</script><!--",
    "abc\u202egnp.exe\u2066x",
    "a' onmouseover='window.pwned=1",
    "\x01\x1b[31mred\x7f",
    "&lt;b&gt;&amp;amp;",
    "datum['x'] + window.alert(1)",
)


class Page(HTMLParser):
    """A report's tables, anchors, links, scripts and text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[str, list[dict]] = {}
        self.headers: dict[str, list[tuple[str, str]]] = {}
        self.captions: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: list[tuple[dict, str]] = []
        self.style, self.policy, self.text = "", "", ""
        self.cuts: dict[str, str] = {}
        self._open: list[str] = []
        self._rows: list[list[tuple[str, str]]] | None = None
        self._cell: list[str] | None = None
        self.feed(html)
        self.close()
        self.unclosed = self._open

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.attributes += [(tag, k, v or "") for k, v in attrs]
        if tag not in VOID:
            self._open.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag == "script":
            self.scripts.append((given, ""))
        if tag == "figcaption":
            self._caption, self._cut = "", ""
        if tag == "span" and given.get("class") == "cut":
            self._open[-1] = "cut"
        if tag == "table" and "figcaption" not in self._open:
            self._rows = []
            self._heads: list[tuple[str, str]] = []
        if tag == "tr" and self._rows is not None:
            self._rows.append([])
        if tag in {"td", "th"}:
            self._cell, self._title, self._link = [], given.get("title", ""), ""
        if tag == "a" and self._cell is not None:
            self._link = given["href"]

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        opened = self._open.pop()
        assert opened == tag or (opened, tag) == ("cut", "span"), f"<{opened}> closed by </{tag}>"
        if tag in {"td", "th"}:
            text = "".join(self._cell).strip()
            if tag == "th" and "thead" in self._open:
                self._heads.append((text, self._link))
            else:
                self._rows[-1].append((text, self._title))
            self._cell = None
        if tag == "table":
            if self._heads:
                names = [h for h, _ in self._heads]
                rows = [dict(zip(names, r, strict=True)) for r in self._rows if r]
                assert len(set(names)) == len(names), f"two columns of one name: {names}"
                self.tables.setdefault(self._caption.strip(), []).append(rows)
                self.headers.setdefault(self._caption.strip(), self._heads)
                self.cuts[self._caption.strip()] = self._cut
            self._rows = None
        if tag == "figcaption":
            self.captions.append(self._caption.strip())

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, k, v or "") for k, v in attrs]

    def handle_data(self, data):
        where = self._open[-1] if self._open else ""
        if where == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
            return
        if where == "style":
            self.style += data
            return
        self.text += data
        if where == "tr" and data.strip():
            raise AssertionError(f"text outside a cell: {data!r}")
        if self._cell is not None:
            self._cell.append(data)
        elif "figcaption" in self._open:
            if "cut" in self._open:
                self._cut += data
            else:
                self._caption += data

    def unknown_decl(self, data):
        raise AssertionError(f"a declaration: {data!r}")

    @property
    def charts(self) -> list[dict]:
        """Specifications of the charts."""
        given_as = [(given, text) for given, text in self.scripts if given.get("type") == "application/json"]
        return [json.loads(text) for given, text in given_as if given.get("id") != "flame-data"]

    @property
    def executed(self) -> list[str]:
        """Scripts that would run."""
        return [text for given, text in self.scripts if given.get("type") != "application/json"]


def analysis_of_export(builder: ExportBuilder, folder: Path, **options) -> Analysis:
    """Write an export and analyze it."""
    with open_trace(builder.write(folder / "trace.sqlite")) as trace:
        return analyze(trace, **options)


def standard() -> ExportBuilder:
    """The standard scenario in an export of the newest release."""
    builder = ExportBuilder(RELEASE)
    standard_scenario(builder)
    return builder


def empty() -> ExportBuilder:
    """An export in which nothing was recorded."""
    return ExportBuilder(RELEASE)


def hostile() -> ExportBuilder:
    """An export whose every text attacks the page that shows it."""
    builder = ExportBuilder(RELEASE)
    pid = 4242
    builder.process(pid, HOSTILE[0])
    tid = global_id(pid, pid)
    builder.gpu(0, f"GPU {HOSTILE[0]}", cu_device=0)
    builder.cuda_device(pid, 0, 0)
    at = 1_000_000_000
    for i, text in enumerate(HOSTILE * 3):
        t = at + i * 1_000_000
        worker = builder.thread(pid, pid + 1 + i % len(HOSTILE), text)
        builder.push_pop(f"{text} outer", t, t + 900_000, worker)
        builder.push_pop(text, t + 1_000, t + 800_000, worker)
        builder.start_end(text, t + 2_000, t + 700_000, worker, worker)
        builder.launch(worker, (t + 3_000, t + 4_000), (t + 10_000, t + 110_000), text, demangled=f"void {text}<1>()")
        builder.memcpy(
            worker, (t + 5_000, t + 300_000), (t + 120_000, t + 290_000), 2_000_000, DTOH, DEVICE,
            PAGEABLE if i % 2 else PINNED, api=f"cudaMemcpyAsync{text}_v3020",
        )  # fmt: skip
    builder.thread(pid, pid, HOSTILE[1])
    builder.push_pop("main", at, at + 1_000, tid)
    return builder
