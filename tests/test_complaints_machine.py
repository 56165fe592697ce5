"""Complaints about the machine: the wrong GPU is named, secrets get out, a file cannot be opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from analyzed import NEWEST, PID, TID, US, analyze_file, analyzed, machine
from click.testing import CliRunner
from export_builder import DEVICE, DTOH, HTOD, PAGEABLE, PINNED, RELEASES, ExportBuilder, global_id, version
from export_scenario import standard_scenario

from nsysparse.analysis import Analysis
from nsysparse.cli import cli
from nsysparse.outputs.json import to_json

LABELS = tuple[tuple[str, str | None, int | None], ...]
BETWEEN = "2023.4.4.54"  # between the two tables that say which GPU a CUDA ordinal is


def labels(analysis: Analysis) -> LABELS:
    return tuple((d.device["label"], d.device["name"], d.device["sm_count"]) for d in analysis.devices)


def visible(release: str, mapping: dict[tuple[int, int], int], gpus: list[tuple[str, int]]) -> ExportBuilder:
    """An export in which every (process, ordinal) of a mapping to GPUs (name, SMs) ran one kernel."""
    b = ExportBuilder(release)
    for number, (name, sms) in enumerate(gpus):
        b.gpu(number, name, cu_device=number, sm_count=sms)
    for i, ((pid, ordinal), gpu) in enumerate(mapping.items()):
        b.cuda_device(pid, ordinal, gpu)
        t = 1_000_000 * (i + 1)
        b.launch(global_id(pid, pid), (t, t + US), (t + 2 * US, t + 10 * US), device=ordinal)
    return b


TWO = [("NVIDIA L4", 58), ("NVIDIA H200", 132)]
TWINS = [("NVIDIA H200", 132)] * 2


@pytest.mark.parametrize("release", [r for r in RELEASES if version(r) >= (2025, 1)])
def test_the_wrong_gpu_named_under_cuda_visible_devices(release: str, tmp_path: Path) -> None:
    b = visible(release, {(11, 0): 1, (11, 1): 0, (12, 0): 1}, TWO)
    assert labels(analyzed(b, tmp_path)) == (
        ("GPU 0 (NVIDIA L4)", "NVIDIA L4", 58),
        ("GPU 1 (NVIDIA H200)", "NVIDIA H200", 132),
    )


def test_the_wrong_gpu_named_when_the_export_does_not_say(tmp_path: Path) -> None:
    b = visible(BETWEEN, {(11, 0): 1, (12, 0): 0}, TWO)
    unknown = tuple((f"CUDA device 0 of process {pid}", None, None) for pid in (11, 12))
    assert labels(analyzed(b, tmp_path)) == unknown


def test_the_model_is_named_when_all_gpus_are_of_one(tmp_path: Path) -> None:
    b = visible(BETWEEN, {(11, 0): 1, (12, 0): 0}, TWINS)
    known = tuple((f"CUDA device 0 of process {pid} (NVIDIA H200)", "NVIDIA H200", 132) for pid in (11, 12))
    assert labels(analyzed(b, tmp_path)) == known


def test_the_only_gpu_is_named_in_every_release(tmp_path: Path) -> None:
    for release in RELEASES:
        b = visible(release, {(11, 0): 0}, TWINS[:1])
        assert labels(analyzed(b, tmp_path)) == (("GPU 0 (NVIDIA H200)", "NVIDIA H200", 132),), release


def test_an_ordinal_that_the_map_lacks_is_not_named_after_another_gpu(tmp_path: Path) -> None:
    b = visible(NEWEST, {(11, 0): 1}, TWO)
    b.launch(global_id(11, 11), (1000, 2000), (5000, 9000), device=1)
    assert labels(analyzed(b, tmp_path)) == (
        ("GPU 1 (NVIDIA H200)", "NVIDIA H200", 132),
        ("CUDA device 1 of process 11", None, None),
    )


def test_the_wrong_gpu_named_under_mig(tmp_path: Path) -> None:
    """Two slices of one GPU are two devices, each with its own number of multiprocessors."""
    b = visible(NEWEST, {(11, 0): 0, (12, 0): 0, (13, 0): 0}, TWINS[:1])
    slices = [("MIG-a", 16), ("MIG-b", 32), ("MIG-b", 32)]  # two processes share the second one
    for row, (uuid, sms) in zip(b.rows["TARGET_INFO_CUDA_DEVICE"], slices, strict=True):
        row.update(uuid=uuid, numMultiprocessors=sms)
    analysis = analyzed(b, tmp_path)
    assert labels(analysis) == (
        ("GPU 0 slice 1 (NVIDIA H200)", "NVIDIA H200", 16),
        ("GPU 0 slice 2 (NVIDIA H200)", "NVIDIA H200", 32),
    )
    assert [d.device["processes"] for d in analysis.devices] == ["11", "12, 13"]
    assert [d.device["memory_bytes"] for d in analysis.devices] == [None, None]  # the GPU's is not the slice's


def test_one_mig_slice_is_not_called_the_whole_gpu(tmp_path: Path) -> None:
    b = visible(NEWEST, {(11, 0): 0}, TWINS[:1])
    b.rows["TARGET_INFO_CUDA_DEVICE"][0].update(uuid="MIG-a", numMultiprocessors=16)
    assert labels(analyzed(b, tmp_path)) == (("GPU 0 slice 1 (NVIDIA H200)", "NVIDIA H200", 16),)


def test_the_second_device_of_a_process_is_seen(tmp_path: Path) -> None:
    """Synchronizations name device 0 whatever their context's device is: nothing may be counted by them."""
    b = machine(gpus=2)
    b.launch(TID, (1000, 2000), (5000, 9000), device=1)
    b.synchronize(TID, (3000, 9500), device=1)
    (only,) = analyzed(b, tmp_path).devices
    assert only.device["gpu"] == 1
    assert only.figures()["kernels_ns"] == 4000


MARK = "s3cr3t"


def with_secrets(tmp_path: Path) -> Path:
    """The standard scenario with a marker in every place where real exports hold secrets."""
    b = ExportBuilder(NEWEST)
    standard_scenario(b)
    for i, name in enumerate(("COMMAND_LINE", "ENVIRONMENT", "TARGET_HOST", "USER")):
        b.capture_option(f"PROCESS_0:{name}", f"{MARK} capture {i}")
        b.row("META_DATA_CAPTURE", name=f"{MARK} key {i}", value="x")
    b.meta("EXPORT_PARAM_INPUT_FILE", f"/home/{MARK}/report.nsys-rep")
    b.meta("EXPORT_PARAM_OUTPUT_FILE", f"/home/{MARK}/trace.sqlite")
    pid = global_id(990_001)
    b.row("ProcessStreams", globalPid=pid, filenameId=b.string(f"{MARK} file"), contentId=b.string(f"{MARK} output"))
    for name in ("Hostname", "USER", "AWS_SECRET_ACCESS_KEY"):
        b.row(
            "TARGET_INFO_SYSTEM_ENV", globalVid=1, devStateName=MARK, name=name, nameEnum=name, value=f"{MARK} {name}"
        )
    b.process(990_001, f"/opt/{MARK}/daemon --token={MARK}")
    b.thread(990_001, 990_001, f"{MARK} thread")
    b.process(70_001, f"python3 /home/{MARK}/serve.py --api-key {MARK}")
    b.diagnostic(f"Process /home/{MARK}/serve.py was launched by {MARK}")
    b.diagnostic(f"Not all CUDA events might have been collected. See /home/{MARK}/log", severity=2)
    b.string(f"{MARK} text that nothing refers to")
    for gpu in b.rows["TARGET_INFO_GPU"]:
        gpu.update(uuid=MARK, chipName="x", ctxswDevPath=f"/dev/{MARK}", ctrlDevPath=f"/dev/{MARK}")
    return b.write(tmp_path / "trace.sqlite")


def test_secrets_in_shared_reports(tmp_path: Path) -> None:
    path = with_secrets(tmp_path)
    assert path.read_bytes().count(MARK.encode()) > 20
    analysis = analyze_file(path)
    assert "Not all CUDA events".lower() in analysis.integrity.summary.lower()  # the diagnostic was read
    texts = {"json": to_json(analysis)}
    for name, arguments in {"info": ["info", str(path)], "info --json": ["info", "--json", str(path)]}.items():
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
        texts[name] = done.output.replace(str(tmp_path), "")
    report = pytest.importorskip("nsysparse.report")
    texts["html"] = report.render_report(analysis, 1000)
    for name, text in texts.items():
        assert MARK not in text, name
        assert str(tmp_path) not in text, f"{name}: a path of this machine"


def test_secrets_in_what_shipped_queries_print(tmp_path: Path) -> None:
    """Only the two that say so show diagnostics and table definitions; the others name the program's own work."""
    path = with_secrets(tmp_path)
    for query in ("kernels/by_name", "copies/by_kind", "api/by_name", "nvtx/ranges", "host/osrt"):
        done = CliRunner().invoke(cli, ["query", str(path), query, "--format", "json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)
        assert MARK not in done.output


def test_copies_from_pageable_and_pinned_memory_are_kept_apart(tmp_path: Path) -> None:
    b = machine()
    b.memcpy(TID, (1000, 2000), (1500, 1900), 100, HTOD, PAGEABLE, DEVICE)
    b.memcpy(TID, (3000, 4000), (3500, 3900), 200, HTOD, PINNED, DEVICE)
    b.memcpy(TID, (5000, 6000), (5500, 5900), 400, DTOH, DEVICE, PINNED)
    (device,) = analyzed(b, tmp_path, window="whole").devices
    rows = device.tables["copies_by_kind"].select("kind_name", "src", "dst", "bytes", "exposed_ns").rows()
    assert set(rows) == {
        ("HtoD", "Pageable", "Device", 100, 400),
        ("HtoD", "Pinned", "Device", 200, 400),
        ("DtoH", "Device", "Pinned", 400, 400),
    }
    assert PID in device.host.threads["pid"].to_list()
