"""The command line is of one piece: an option means the same wherever it is, and names complete."""

from __future__ import annotations

from collections import defaultdict

import click
import pytest
from click.shell_completion import ShellComplete

from nsysparse.cli import cli
from nsysparse.cli.options import WINDOWS
from nsysparse.queries import load_queries
from nsysparse.rules import load_rules
from nsysparse.stats import find_reports, find_rules


def commands(command=cli, name=(), context=None):
    """(name, command) of every command, also below groups."""
    context = context or click.Context(cli, info_name="nsysparse")
    if not isinstance(command, click.Group):
        yield " ".join(name), command
        return
    for below in command.list_commands(context):
        yield from commands(command.get_command(context, below), (*name, below), context)


COMMANDS = dict(commands())


def uses(option):
    """(command, option) for every command that takes it."""
    return [
        (name, parameter)
        for name, command in COMMANDS.items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and option in parameter.opts
    ]


@pytest.mark.parametrize("option", ["--force", "--cache", "--device", "--debug", "--after", "--marks", "--census"])
def test_these_options_are_the_same_to_the_letter(option):
    found = uses(option)
    assert len(found) >= (0 if option == "--debug" else 2)
    assert len({(o.help, o.metavar, o.multiple, o.is_flag, o.type.name, str(o.default)) for _, o in found}) <= 1


def test_a_window_is_written_the_same_everywhere():
    found = dict(uses("--window"))
    assert set(found) == {"analyze", "flamegraph", "export", "scrub", "stats"}
    for option in found.values():
        meaning, _, rest = option.help.partition(": ")
        assert meaning in {"What shares are shares of", "Only what overlaps this window"}
        assert rest.startswith(f"{WINDOWS}. [default: ")
        assert (option.metavar, option.type.name) == ("WINDOW", "text")
    assert set(found) - {"scrub"} == {name for name, _ in uses("--device")}  # a copy is of all devices


def test_results_go_where_o_says():
    found = dict(uses("--output"))
    assert set(found) == {"analyze", "query", "flamegraph", "export", "scrub", "stats"}
    for option in found.values():
        assert option.opts == ["-o", "--output"]
        assert option.metavar == "PATH"
        assert isinstance(option.type, click.Path)
        assert option.help.startswith("Write to this ")
    assert set(found) <= {name for name, _ in uses("--force")}  # whatever writes can be told to replace


def test_top_and_format_look_alike():
    for _, option in uses("--top"):
        assert option.help.startswith("Show the first N rows")
        assert (option.metavar, option.type.min) == ("N", 1)
    for name, option in uses("--format"):
        assert isinstance(option.type, click.Choice), name
        assert option.metavar is None
    tables = {name: tuple(o.type.choices) for name, o in uses("--format") if name in {"query", "stats"}}
    assert set(tables.values()) == {("table", "csv", "json", "parquet")}


def test_no_short_option_has_two_meanings():
    long_names = defaultdict(set)
    for command in COMMANDS.values():
        for parameter in command.params:
            shorts = [o for o in parameter.opts if len(o) == 2 and o.startswith("-")]
            for short in shorts:
                long_names[short].add(parameter.name)
    assert all(len(names) == 1 for names in long_names.values()), long_names


def test_every_option_is_explained():
    silent = [
        (name, p.name)
        for name, command in COMMANDS.items()
        for p in command.params
        if isinstance(p, click.Option) and not p.help and not p.hidden
    ]
    assert silent == []


def completions(*words):
    shell = ShellComplete(cli, {}, "nsysparse", "_NSYSPARSE_COMPLETE")
    return {item.value for item in shell.get_completions(list(words[:-1]), words[-1])}


def test_names_complete_in_the_shell():
    assert {"stats", "scrub"} <= completions("s")
    assert completions("stats", "trace.sqlite", "cuda_") >= {n for n in find_reports() if n.startswith("cuda_")}
    assert completions("stats", "trace.sqlite", "--rule", "gpu_") == {n for n in find_rules() if n.startswith("gpu_")}
    assert completions("query", "trace.sqlite", "kernels/") == {n for n in load_queries() if n.startswith("kernels/")}
    assert completions("rules", "pageable") == {r.ID for r in load_rules() if r.ID.startswith("pageable")}
    assert "--window" in completions("stats", "--w")
