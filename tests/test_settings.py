"""Settings of the environment: what cannot be read is said, with the setting, its value and what is allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest

import poly
from poly import settings
from poly.errors import PolyError, SettingWarning

PROGRAM = "A[i] = 2 * x[i]"


@pytest.mark.parametrize(("name", "text", "allowed"), [
    ("POLYLOOM_CACHE_SIZE", "2GB", "megabytes"), ("POLYLOOM_CACHE_SIZE", "-1", "megabytes"),
    ("POLYLOOM_CACHE_SIZE", "9" * 30, "megabytes"), ("POLYLOOM_CACHE_SIZE", "1.5", "megabytes"),
    ("POLYLOOM_JOBS", "two", "number of processes"), ("POLYLOOM_JOBS", "0", "from 1 to"),
    ("POLYLOOM_JOBS", "²", "from 1"), ("POLYLOOM_KEPT", "1e3", "megabytes"),
    ("POLYLOOM_SPIN", "soon", "microseconds"), ("POLYLOOM_SPIN", "-3", "microseconds"),
    ("POLYLOOM_SPIN", "nan", "microseconds"), ("POLYLOOM_SPIN", "1e300", "microseconds"),
    ("POLYLOOM_CORES", "1;2", "0,2,4-7"), ("POLYLOOM_CORES", "5-2", "0,2,4-7"), ("POLYLOOM_CORES", "0-", "0,2,4-7"),
    ("POLYLOOM_CORES", "0-99999999999", "numbers of cores"), ("POLYLOOM_CORES", ",", "0,2,4-7"),
])  # fmt: skip
def test_what_cannot_be_read_is_an_error(
    name: str, text: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(PolyError) as found:
        poly.compile(poly.parse(PROGRAM, x=(4,)))
    assert name in str(found.value) and text[:20] in str(found.value) and allowed in str(found.value)


def test_einsum_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_JOBS", "0")
    with pytest.raises(PolyError, match="POLYLOOM_JOBS"):
        poly.einsum("ab,bc->ac", np.ones((3, 37)), np.ones((37, 5)))
    monkeypatch.delenv("POLYLOOM_JOBS")
    assert poly.einsum("ab,bc->ac", np.ones((3, 37)), np.ones((37, 5)))[0, 0] == 37


def test_what_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    core = min(os.sched_getaffinity(0))
    for name, text, read, value in (
        ("CACHE_SIZE", "7", settings.cache_megabytes, 7), ("CACHE_SIZE", "", settings.cache_megabytes, 512),
        ("KEPT", "0", settings.kept_megabytes, 0), ("KEPT", "", settings.kept_megabytes, 512),
        ("JOBS", " 3 ", settings.compiling_processes, 3), ("SPIN", "8", settings.spin_seconds, 8e-6),
        ("SPIN", "", settings.spin_seconds, None), ("CORES", "any", settings.worker_cores, ()),
        ("CORES", f"{core}, {core}-{core}", settings.worker_cores, (core, core)),
        ("CACHE", "OFF", settings.cache_folder, None),
    ):  # fmt: skip
        monkeypatch.setenv(f"POLYLOOM_{name}", text)
        assert read() == value


def test_a_name_that_is_no_setting_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_CAHCE", "off")
    with pytest.warns(SettingWarning, match="POLYLOOM_CAHCE .*is no setting; did you mean POLYLOOM_CACHE") as told:
        settings.check_settings()
    assert told[0].filename == __file__
    with catch_warnings():
        simplefilter("error")
        settings.check_settings()


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("POLYLOOM_CACHE", str(blocked / "cache"))
    with pytest.warns(SettingWarning, match="POLYLOOM_CACHE is .*nothing is kept"):
        settings.check_settings()
    with catch_warnings():
        simplefilter("error")
        monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "new" / "cache"))
        settings.check_settings()


def test_more_threads_than_cores_take_turns_and_that_is_said() -> None:
    cores = len(os.sched_getaffinity(0))
    x = np.arange(40_000, dtype=np.float32)
    program = (
        "program double()\ninput x: f32[40000]\noutput A: f32[40000]\ns[i]: A[i] = 2.0*x[i] where 0 <= i < 40000\n"
    )
    with pytest.warns(SettingWarning, match=rf"threads={cores + 97}, but {cores} core") as told:
        kernel = poly.compile(program, threads=cores + 97)
    assert told[0].filename == __file__
    np.testing.assert_array_equal(kernel(x), 2 * x)
    with pytest.warns(SettingWarning, match=f"threads={cores + 96}"):
        np.testing.assert_array_equal(poly.einsum("i->i", x, threads=cores + 96), x)
    with catch_warnings():
        simplefilter("error")
        poly.compile(program, threads=cores)
        poly.compile(program, "s16", threads=cores + 97)  # an accelerator has no threads
    with pytest.raises(PolyError, match="threads=5000"):
        poly.compile(program, threads=5000)


def test_a_cache_where_others_may_write_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the caller's line, also while the package imports more of itself."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "own").mkdir(0o700)
    code = "import poly, warnings\nwarnings.simplefilter('always')\npoly.einsum('ij,jk', [[1]], [[2]])\n"
    (tmp_path / "script.py").write_text(code)
    root = str(Path(poly.__file__).parents[1])
    for folder, told in (("open", True), ("own", False), ("off", False)):
        chosen = folder if folder == "off" else str(tmp_path / folder)
        environment = {**os.environ, "POLYLOOM_CACHE": chosen, "PYTHONPATH": root}
        command = [sys.executable, str(tmp_path / "script.py")]
        found = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert found.returncode == 0
        assert ("script.py:3: SettingWarning" in found.stderr and "your own folder" in found.stderr) == told
