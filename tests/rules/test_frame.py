"""The frame around the rules: thresholds, pages, documentation, outcomes, the command."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from nsysparse.analysis import analyze
from nsysparse.cli import cli
from nsysparse.errors import UsageError
from nsysparse.findings import Failed, Finding, Quiet, Skipped
from nsysparse.outputs.json import to_dict
from nsysparse.rules import UNEXPLAINED, load_rules, settings, thresholds
from nsysparse.rules._pages import PARTS, document, parts, title
from nsysparse.source import open_trace
from rules.program import DEVICE, DTOH, PAGEABLE, US, Program, serve

ROOT = Path(__file__).parents[2]
RULES = load_rules()


def readbacks() -> Program:
    p = Program()

    def step(_: int) -> None:
        p.launch(300 * US)
        p.copy(4, DTOH, DEVICE, PAGEABLE, US)
        p.think(500 * US)

    return serve(p, 300, step)


class TestPages:
    @pytest.mark.parametrize("rule", RULES, ids=lambda r: r.ID)
    def test_each_rule_is_whole(self, rule) -> None:
        assert rule.__name__.rpartition(".")[2] == rule.ID
        assert tuple(parts(rule)) == PARTS
        assert all(len(text) > 60 for text in parts(rule).values())
        assert title(rule)
        assert rule.THRESHOLDS
        assert all(t.why.endswith(".") and t.value >= 0 for t in rule.THRESHOLDS.values())
        assert (Path(__file__).parent / f"test_{rule.ID}.py").exists()

    def test_there_are_all_fifteen(self) -> None:
        assert len(RULES) == 15

    def test_documentation_is_up_to_date(self) -> None:
        assert (ROOT / "docs" / "rules.md").read_text("utf-8") == document(RULES), "run: python docs/make_rules.py"

    def test_command_lists_and_prints(self) -> None:
        listed = CliRunner().invoke(cli, ["rules"])
        assert listed.exit_code == 0
        assert [line.split()[0] for line in listed.output.splitlines()] == [r.ID for r in RULES]
        page = CliRunner().invoke(cli, ["rules", "scalar_readback"]).output
        assert all(f"\n{heading}\n" in page for heading in PARTS)
        assert "scalar_readback.max_bytes = 64 bytes" in page
        assert max(map(len, page.splitlines())) <= 100

    def test_command_names_what_is_near(self) -> None:
        done = CliRunner().invoke(cli, ["rules", "scalar"])
        assert isinstance(done.exception, UsageError)
        assert "scalar_readback" in done.exception.hint


class TestThresholds:
    def test_pairs(self) -> None:
        assert settings.parse_pairs(["launch_bound.low=0.3", "a.b = 1e6"]) == {"launch_bound.low": 0.3, "a.b": 1e6}

    @pytest.mark.parametrize("pair", ["launch_bound.low", "launch_bound.low=", "launch_bound.low=x", "low=1", "=1", ""])
    def test_what_is_no_pair(self, pair: str) -> None:
        with pytest.raises(UsageError) as raised:
            settings.parse_pairs([pair])
        assert raised.value.hint

    def test_unknown_names_list_the_known_ones(self, tmp_path: Path) -> None:
        path = readbacks().b.write(tmp_path / "trace.sqlite")
        for name, near in (("scalar_readback.max", "scalar_readback.max_bytes"), ("nonsense.low", "launch_bound.low")):
            with pytest.raises(UsageError) as raised, open_trace(path) as trace:
                analyze(trace, options(settings={name: 1.0}))
            assert name in raised.value.message
            assert near in raised.value.hint

    @pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), True, "3"])
    def test_values_that_make_no_sense(self, value: object) -> None:
        with pytest.raises(UsageError):
            settings.resolve(thresholds(), {"launch_bound.low": value})  # type: ignore[dict-item]

    def test_a_changed_threshold_changes_the_verdict(self, tmp_path: Path) -> None:
        p = readbacks()
        before = p.finding(tmp_path, "scalar_readback")
        after = p.finding(tmp_path, "scalar_readback", settings={"scalar_readback.high": 0.9})
        assert before.severity > after.severity
        assert before.bound_ns == after.bound_ns
        silent = p.said(tmp_path, "scalar_readback", settings={"scalar_readback.floor": 0.99})
        assert isinstance(silent[0], Quiet)


def options(**values):
    from nsysparse.accounting.device import Options

    return Options(**values)


TOML = """
[project]
name = "mine"
[tool.nsysparse]
"scalar_readback.max_bytes" = 16  # a comment
[tool.nsysparse.launch_bound]
low = 0.3
high = 1
[tool.other]
low = 5
"""


class TestSettingsFile:
    @pytest.mark.parametrize("old_python", [False, True])
    @pytest.mark.parametrize("name", settings.FILES)
    def test_read(self, tmp_path: Path, name: str, old_python: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        if old_python:
            monkeypatch.setattr(settings, "importlib", SimpleNamespace(import_module=_missing))
        (tmp_path / name).write_text(TOML)
        inner = tmp_path / "a" / "b"
        inner.mkdir(parents=True)
        found = settings.find_file(inner)
        assert found == tmp_path / name
        assert settings.read_file(found) == {
            "scalar_readback.max_bytes": 16,
            "launch_bound.low": 0.3,
            "launch_bound.high": 1,
        }
        assert set(settings.read_file(found)) <= set(thresholds())

    def test_nearest_file_with_a_table_counts(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text(TOML)
        inner = tmp_path / "a"
        inner.mkdir()
        (inner / "pyproject.toml").write_text("[project]\nname = 'other'\n")
        assert settings.find_file(inner) == tmp_path / "pyproject.toml"
        (inner / "nsysparse.toml").write_text("[tool.nsysparse]\nlaunch_bound.low = 0.5\n")
        assert settings.find_file(inner) == inner / "nsysparse.toml"
        assert settings.read_file(inner / "nsysparse.toml") == {"launch_bound.low": 0.5}

    def test_broken_files(self, tmp_path: Path) -> None:
        broken = tmp_path / "pyproject.toml"
        broken.write_text("[tool.nsysparse\n")
        assert settings.find_file(tmp_path) is None or settings.find_file(tmp_path).parent != tmp_path
        with pytest.raises(UsageError):
            settings.read_file(broken)
        broken.write_text('[tool.nsysparse]\n"launch_bound.low" = "much"\n')
        with pytest.raises(UsageError):
            settings.read_file(broken)
        broken.write_bytes(b"\xff\xfe")
        with pytest.raises(UsageError):
            settings.read_file(broken)


def _missing(name: str) -> None:
    raise ModuleNotFoundError(name)


class TestOutcomes:
    def test_every_rule_speaks_of_every_device(self, tmp_path: Path) -> None:
        analysis = readbacks().analyze(tmp_path)
        said = {(o.rule, o.device) for o in analysis.outcomes}
        assert said >= {(r.ID, None if r.ID == "recording" else 0) for r in RULES}

    def test_a_broken_rule_is_an_outcome(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from nsysparse.rules import launch_bound, recording

        def breaks(*_: object) -> None:
            raise ZeroDivisionError("on purpose")

        monkeypatch.setattr(launch_bound, "check", breaks)
        monkeypatch.setattr(recording, "check", breaks)
        analysis = readbacks().analyze(tmp_path)
        failed = [o for o in analysis.outcomes if isinstance(o, Failed)]
        assert {(o.rule, o.device) for o in failed} == {("launch_bound", 0), ("recording", None)}
        assert "on purpose" in failed[0].error
        assert [f.rule for f in analysis.findings] == ["scalar_readback", "idle_gaps"] or analysis.findings

    def test_findings_have_ids_slices_and_plain_evidence(self, tmp_path: Path) -> None:
        analysis = readbacks().analyze(tmp_path)
        ids = [f.id for f in analysis.findings]
        assert len(ids) == len(set(ids))
        found = next(f for f in analysis.findings if f.rule == "scalar_readback")
        assert found.slice_ns is not None
        assert found.slice_ns[0] <= found.instances[0][0] < found.instances[0][1] <= found.slice_ns[1]
        document = to_dict(analysis)
        assert document["findings"][ids.index(found.id)]["id"] == "scalar_readback:0"
        assert document["lost_time"][-1]["finding"] == UNEXPLAINED

    def test_an_empty_recording(self, tmp_path: Path) -> None:
        analysis = Program().analyze(tmp_path)
        assert not analysis.findings
        assert not [o for o in analysis.outcomes if isinstance(o, (Failed, Skipped))]

    def test_a_hostile_name_stays_text(self, tmp_path: Path) -> None:
        p = Program()

        def step(_: int) -> None:
            p.launch(300 * US)
            p.copy(4, DTOH, DEVICE, PAGEABLE, US)

        serve(p, 300, step, "<script>alert(1)</script>\x00{{7*7}}")
        found = p.finding(tmp_path, "scalar_readback")
        assert "<script>alert(1)</script>" in found.detail
        assert "49" not in found.detail


def test_split_gives_an_instant_to_one_finding(tmp_path: Path) -> None:
    """A read-back between launches: its time is not launch-bound time as well."""
    p = Program()

    def step(_: int) -> None:
        for _ in range(10):
            p.launch(5 * US)
            p.think(55 * US)
        p.copy(4, DTOH, DEVICE, PAGEABLE, 100 * US)

    analysis = serve(p, 300, step).analyze(tmp_path)
    found = {f.rule: f for f in analysis.findings if isinstance(f, Finding) and f.device == 0}
    scalar, launch = found["scalar_readback"], found["launch_bound"]
    assert scalar.own_ns == scalar.bound_ns
    assert launch.own_ns == launch.bound_ns
    lost = analysis.lost["lost_ns"].sum()
    assert scalar.own_ns + launch.own_ns <= lost
    assert lost == analysis.devices[0].window.length_ns - sum(
        min(e, analysis.devices[0].window.end_ns) - s for s, e in p.kernels if s >= analysis.devices[0].window.start_ns
    )
