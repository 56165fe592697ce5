"""Each rule's page, made of its docstring and its thresholds: for the command line and the documentation."""

from __future__ import annotations

from types import ModuleType

from nsysparse.rules.settings import Threshold

PARTS = (
    "What it means",
    "Why it costs",
    "What to do",
    "When to accept it",
    "When it may be wrong",
)


def title(rule: ModuleType) -> str:
    """The rule's name for people: the first line of its docstring, without the full stop."""
    return (rule.__doc__ or "").strip().split("\n", 1)[0].rstrip(".")


def parts(rule: ModuleType) -> dict[str, str]:
    """The page's parts by heading, each one paragraph.

    Raises:
        ValueError: A part is missing or out of order.
    """
    paragraphs = [" ".join(p.split()) for p in (rule.__doc__ or "").split("\n\n")[1:] if p.strip()]
    found = dict(p.partition(": ")[::2] for p in paragraphs)
    if tuple(found) != PARTS:
        raise ValueError(f"the page of {rule.ID} has the parts {tuple(found)}")
    return found


def value(threshold: Threshold) -> str:
    """A threshold's default with its unit, exact."""
    unit = {"ratio": "", "number": ""}.get(threshold.unit, f" {threshold.unit}")
    return f"{threshold.value:,.10g}{unit}"


def markdown(rule: ModuleType) -> str:
    """The page in Markdown, without its heading."""
    lines = []
    for heading, text in parts(rule).items():
        lines += [f"**{heading}.** {text[0].upper()}{text[1:]}", ""]
    lines += ["| threshold | default | why |", "|---|---:|---|"]
    lines += [f"| `{rule.ID}.{name}` | {value(t)} | {t.why} |" for name, t in rule.THRESHOLDS.items()]
    return "\n".join(lines) + "\n"


def document(rules: list[ModuleType]) -> str:
    """All pages: docs/rules.md."""
    lines = [
        "# The rules",
        "",
        "Made from the rules' own text by `python docs/make_rules.py`; edit the docstrings in `nsysparse/rules/`.",
        "",
        "A finding's severity follows what could at most be won of the window's wall time or of request latency. Its"
        " bound is",
        "an upper bound: time without a kernel in which the feeding thread was held, or a submitted kernel was held"
        " up. Each",
        "instant without a kernel is given to one finding only (`own_ns`); what is left is shown as unexplained.",
        "",
        "Change a threshold with `--set rule.threshold=value`, or in `[tool.nsysparse]` of `nsysparse.toml` or",
        "`pyproject.toml`.",
        "",
        "| rule | title |",
        "|---|---|",
        *(f"| [`{r.ID}`](#{r.ID}) | {title(r)} |" for r in rules),
        "",
    ]
    for rule in rules:
        lines += [f'<a id="{rule.ID}"></a>', "", f"## {title(rule)}", "", f"`{rule.ID}`", "", markdown(rule)]
    return "\n".join(lines).rstrip("\n") + "\n"
