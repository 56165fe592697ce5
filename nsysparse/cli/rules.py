"""``nsysparse rules``: the rules, and the page of each."""

from __future__ import annotations

import difflib
import textwrap

import click

from nsysparse.cli.options import completed
from nsysparse.errors import UsageError
from nsysparse.rules import load_rules
from nsysparse.rules._pages import parts, title, value

WIDTH = 100


@click.command(name="rules")
@click.argument("name", required=False, shell_complete=completed(lambda: [r.ID for r in load_rules()]))
def command(name: str | None) -> None:
    """List the rules, or print the page of one: what it means, why it costs, what to do, and its thresholds."""
    rules = {r.ID: r for r in load_rules()}
    if name is None:
        longest = max(map(len, rules))
        for rule_id, rule in rules.items():
            click.echo(f"{rule_id:<{longest}}  {title(rule)}")
        return
    if name not in rules:
        near = difflib.get_close_matches(name, rules, 3, 0.4) or list(rules)
        raise UsageError(f"no rule '{name}'", f"rules: {', '.join(near)}; all of them: nsysparse rules")
    rule = rules[name]
    click.echo(f"{title(rule)} ({name})")
    for heading, text in parts(rule).items():
        click.echo(f"\n{heading}")
        click.echo(_indented(text))
    click.echo("\nThresholds (change with --set, see docs/rules.md)")
    for threshold, t in rule.THRESHOLDS.items():
        click.echo(f"  {name}.{threshold} = {value(t)}")
        click.echo(_indented(t.why, "      "))


def _indented(text: str, margin: str = "  ") -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
