from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nsysparse.census import build, run
from nsysparse.errors import NsysparseError

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)


@needs_compiler
def test_builds_once_and_then_takes_it_from_the_cache(tmp_path: Path) -> None:
    first, second = build.build(), build.build()
    assert first.library == second.library
    assert first.library.parent == tmp_path / "cache" / "nsysparse"
    assert (first.fresh, second.fresh, build.build(force=True).fresh) == (True, False, True)
    assert [p.suffix for p in first.library.parent.iterdir()] == [".so"], "no temporary file is left"


@needs_compiler
def test_the_library_exports_one_function_and_needs_no_cupti(tmp_path: Path) -> None:
    library = build.build(folder=tmp_path).library
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm on this machine")
    out = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in out.splitlines()] == ["InitializeInjection"]
    needed = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=False).stdout
    assert "cupti" not in needed


def toolkit(root: Path, header: str) -> Path:
    """A CUDA toolkit folder with an empty library and given headers."""
    (root / "lib64").mkdir(parents=True)
    (root / "include").mkdir()
    for name in ("libcupti.so.13", "libcupti.so.2025.3.1", "libcupti.so"):
        (root / "lib64" / name).touch()
    (root / "include" / "cuda.h").touch()
    (root / "include" / "cupti_version.h").write_text("#define CUPTI_API_VERSION 130001\n")
    (root / "include" / "cupti_activity.h").write_text(header)
    return root


def test_finds_cupti_by_its_soname(tmp_path: Path) -> None:
    cupti = build.find_cupti(str(toolkit(tmp_path / "cuda", "")))
    assert cupti is not None
    assert cupti.library.name == "libcupti.so.13"
    assert cupti.version == 130001
    assert cupti.includes == (tmp_path / "cuda" / "include",)


def test_finds_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, library in (("cuda_cupti", "libcupti.so.12"), ("cuda_runtime", None)):
        (tmp_path / "nvidia" / folder / "include").mkdir(parents=True)
        (tmp_path / "nvidia" / folder / "lib").mkdir()
        if library:
            (tmp_path / "nvidia" / folder / "lib" / library).touch()
    (tmp_path / "nvidia/cuda_cupti/include/cupti_activity.h").touch()
    (tmp_path / "nvidia/cuda_runtime/include/cuda.h").touch()
    monkeypatch.setattr(build, "_toolkits", lambda: iter(()))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    cupti = build.find_cupti()
    assert cupti is not None
    assert cupti.library.name == "libcupti.so.12"
    assert len(cupti.includes) == 2


def test_no_cupti_in_a_named_folder(tmp_path: Path) -> None:
    with pytest.raises(NsysparseError, match="no libcupti"):
        build.find_cupti(str(tmp_path))


@needs_compiler
def test_builds_without_any_cupti(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_cupti", lambda root=None: None)
    built = build.build()
    assert (built.cupti, built.headers_checked, built.fresh) == (None, False, True)


@needs_compiler
def test_headers_that_do_not_compile_are_left_out(tmp_path: Path) -> None:
    built = build.build(cuda=str(toolkit(tmp_path / "cuda", "this is not C\n")))
    assert built.headers_checked is False
    assert not build.build(cuda=str(tmp_path / "cuda")).fresh


@needs_compiler
def test_record_layouts_that_differ_are_an_error(tmp_path: Path) -> None:
    wrong = "#include <stdint.h>\ntypedef struct { uint32_t kind, graphId; } CUpti_ActivityKernel8;\n"
    wrong += '_Static_assert(sizeof(CUpti_ActivityKernel8) == 1, "layout");\n'
    with pytest.raises(NsysparseError, match="static assertion"):
        build.build(cuda=str(toolkit(tmp_path / "cuda", wrong)))


@needs_compiler
def test_layouts_agree_with_the_cupti_of_this_machine() -> None:
    cupti = build.find_cupti()
    if cupti is None or not cupti.includes:
        pytest.skip("no CUPTI headers on this machine")
    assert build.build().headers_checked


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NsysparseError, match="no C compiler") as error:
        build.find_compiler()
    assert "--cc" in error.value.hint


@needs_compiler
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NsysparseError, match="cannot write"):
        build.build(folder=tmp_path / "file" / "sub")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kinds": ("kernels", "copys")}, "unknown record kind copys"),
        ({"kinds": ()}, "unknown record kind"),
        ({"interval_s": 0.0}, "out of range"),
        ({"interval_s": float("nan")}, "out of range"),
        ({"on_s": 5.0}, "go together"),
        ({"on_s": 5.0, "every_s": 2.0}, "go together"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(NsysparseError, match=said):
        run.variables(run.Settings(tmp_path, **changes), tmp_path / "lib.so")  # type: ignore[arg-type]


def test_variables(tmp_path: Path) -> None:
    settings = run.Settings(tmp_path, 0.5, ("copies",), on_s=10, every_s=60)
    assert run.variables(settings, tmp_path / "lib.so") == {
        "CUDA_INJECTION64_PATH": str(tmp_path / "lib.so"), "NSYSPARSE_CENSUS_DIR": str(tmp_path),
        "NSYSPARSE_CENSUS_INTERVAL": "0.5", "NSYSPARSE_CENSUS_KINDS": "copies", "NSYSPARSE_CENSUS_ON": "10",
        "NSYSPARSE_CENSUS_EVERY": "60",
    }  # fmt: skip


def test_build_and_run_need_the_standard_library_alone() -> None:
    code = "import sys; from nsysparse.census import build, run, dump; print([m for m in sys.modules if m in "
    code += "('polars', 'click', 'numpy', 'pyarrow', 'jinja2')])"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_the_wheel_holds_the_recorder(tmp_path: Path) -> None:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, ROOT],
                   check=True, capture_output=True)  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    assert "nsysparse/census/recorder.c" in zipfile.ZipFile(wheel).namelist()
