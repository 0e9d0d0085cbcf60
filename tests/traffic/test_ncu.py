"""ncu.py: the command line, the text that comes back, and what each fault means."""

import subprocess
import sys
import time
from pathlib import Path

import fake_ncu as fake
import pytest

from flashlab.errors import ERRORS
from flashlab.traffic import ncu
from flashlab.traffic.launches import METRICS

NAMES = '"Kernel Name","Block Size","Grid Size"'
# As ncu 2025.3 wrote it on an H200 with automatic units, cut to five columns of metrics.
AUTOMATIC = """\
==PROF== Connected to process 609 (/usr/bin/python3.12)
==PROF== Profiling "forward_kernel" - 0: 0%....50%....100% - 3 passes
==PROF== Profiling "void at::native::fill<4>(int, T2)" - 1: 0%....50%....100% - 1 pass
==WARNING== Data collection happened without fixed GPU frequencies. Profiling results may be inconsistent.
==PROF== Disconnected from process 609
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes_read.sum","gpu__time_duration.sum","launch__shared_mem_per_block","lts__t_bytes.sum","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
"","","","","","","","","","","","Mbyte","us","Kbyte/block","Gbyte","%"
"0","609","python3.12","127.0.0.1","forward_kernel","1","7","(128, 1, 1)","(2048, 1, 1)","0","9.0","12.65","1,020.48","66.57","3.72","55.98"
"1","609","python3.12","127.0.0.1","void at::native::fill<4, ""x"">(int, T2)","1","7","(64, 2, 1)","(16, 1, 1)","0","9.0","0","2.5","0","0.1","n/a"
"""


def test_every_unit_is_brought_to_bytes_ms_and_percent():
    first, second = ncu.parse(AUTOMATIC, fake.METRIC_NAMES)
    assert first["Kernel Name"] == "forward_kernel" and first["Block Size"] == "(128, 1, 1)"
    numbers = [value for name, value in first.items() if "__" in name]
    assert numbers == pytest.approx([12_650_000, 1.02048, 66_570, 3.72e9, 55.98])
    assert second["Kernel Name"] == 'void at::native::fill<4, "x">(int, T2)'
    assert second["gpu__time_duration.sum"] == pytest.approx(0.0025)
    assert second["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"] is None


@pytest.mark.parametrize(
    "unit, value",
    [("byte", 5), ("Kbyte", 5e3), ("Mbyte", 5e6), ("Gbyte", 5e9), ("ns", 5e-6), ("nsecond", 5e-6), ("us", 5e-3), ("usecond", 5e-3)]
    + [("ms", 5), ("msecond", 5), ("second", 5e3), ("%", 5), ("register/thread", 5), ("byte/block", 5), ("Kbyte/block", 5e3), ("", 5)],
)
def test_a_unit(unit, value):
    (row,) = ncu.parse(f'{NAMES},"a__b"\n"","","","{unit}"\n"k","x","y","5"\n', ["a__b"])
    assert row["a__b"] == pytest.approx(value)


def test_an_unknown_unit_is_refused():
    with pytest.raises(ERRORS["ncu_unit"][0], match="^ncu gave dram__bytes_read.sum in 'furlong', which is none of byte, Kbyte, "):
        ncu.parse(f'{NAMES},"dram__bytes_read.sum"\n"","","","furlong"\n"k","x","y","5"\n', ["dram__bytes_read.sum"])


def test_columns_nobody_asked_for_may_have_any_unit():
    (row,) = ncu.parse(f'{NAMES},"launch__sm_count","a__b"\n"","","","SM","byte"\n"k","x","y","132","5"\n', ["a__b"])
    assert row == {"Kernel Name": "k", "Block Size": "x", "Grid Size": "y", "a__b": 5}


@pytest.mark.parametrize("text", ["", "==PROF== Connected\n==WARNING== No kernels were profiled.\n", '"ID","Kernel Name","a__b"\n'])
def test_no_table_is_no_rows(text):
    assert ncu.parse(text, ["a__b"]) == []


@pytest.mark.parametrize("text", ['"ID","Section"\n"",""\n', f'"ID",{NAMES},"a__b"\n"0","k","x","y","1"\n', '"ID","Kernel Name","a__b"\n"","","byte"\n'])
def test_another_table_is_refused(text):
    with pytest.raises(ERRORS["ncu_table"][0], match="^ncu's table begins with ID, .*, and lacks kernels' names and sizes or a row of units. Count with"):
        ncu.parse(text, ["a__b"])


def test_a_torn_last_line_is_left_out():
    assert len(ncu.parse(AUTOMATIC.rstrip()[:-40] + '"', fake.METRIC_NAMES)) == 1


def test_the_command_line():
    line = ncu.command("/opt/ncu", ["a.sum", "b.sum"], Path("/tmp/log"), ["python", "-m", "child"])
    assert line[0] == "/opt/ncu" and line[-3:] == ["python", "-m", "child"]
    text = " ".join(line)
    for option in ("--profile-from-start off", "--clock-control none", "--cache-control all", "--csv --page raw", "--print-units base"):
        assert option in text
    assert "--log-file /tmp/log --metrics a.sum,b.sum python" in text
    assert not any("clock" in part and part != "--clock-control" for part in line)  # the GPU's settings are left alone


def test_ncu_is_found_on_path_or_asked_for(tmp_path, monkeypatch):
    fake.install(tmp_path, monkeypatch, {})
    assert ncu.find() == str(tmp_path / "bin" / "ncu") and ncu.version(ncu.find()) == "2025.3.1.0"
    assert ncu.version("/no/such/ncu") == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError) as caught:
        ncu.find()
    assert str(caught.value) == (
        f"there is no ncu on PATH ({tmp_path}), and only Nsight Compute reads the GPU's counters. Install nsight-compute (it"
        " comes with the CUDA toolkit) and put ncu on PATH."
    )


# -- faults -------------------------------------------------------------------------------------------------------------
PERMISSION = (
    "==PROF== Connected to process 7 (/usr/bin/python3)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU"
    " Performance Counters on the target device 0. For instructions see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
)


def test_closed_counters_are_told_apart():
    for log, output in ((PERMISSION, ""), ("", PERMISSION)):
        fault = ncu.fault(log, 1, output)
        assert type(fault) is ERRORS["ncu_closed"][0]
        assert str(fault) == (
            "the GPU's counters are closed to you (ERR_NVGPUCTRPERM). Run it as root, or ask whoever runs this machine for the driver's"
            " option NVreg_RestrictProfilingToAdminUsers=0; in a container it needs --cap-add SYS_ADMIN."
        )


def test_a_failing_child_shows_its_last_words():
    log = "==PROF== Connected\n==ERROR== The application returned an error code (1).\n"
    fault = ncu.fault(log, 1, "Traceback\n  File x\nline 3\nImportError: no torch\n")
    assert type(fault) is ERRORS["ncu_failed"][0]
    assert str(fault) == (
        "ncu ended with exit status 1; it said: The application returned an error code (1).; File x; line 3; ImportError: no torch."
        " Mend what it names, then count again."
    )
    assert "said: nothing." in str(ncu.fault("", 9, ""))


def test_an_error_counts_although_the_status_is_0_and_warnings_do_not():
    assert "LibraryNotLoaded" in str(ncu.fault("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", 0, ""))
    assert ncu.fault(AUTOMATIC, 0, "a warning of torch\n") is None


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path):
    mark = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(mark)!r}).write_text(str(time.time())); time.sleep(0.05)"
    parent = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(60)"
    with pytest.raises(ERRORS["ncu_timeout"][0], match="^ncu had not ended after 1 s and was stopped; nothing was counted. Count fewer or smaller"):
        ncu.run([sys.executable, "-c", parent], tmp_path / "output", timeout_s=1)
    before = mark.read_text() if mark.exists() else ""
    time.sleep(0.3)
    assert (mark.read_text() if mark.exists() else "") == before


def test_what_a_command_prints_is_kept_and_the_caller_looks_in_meanwhile(tmp_path):
    calls = []
    status = ncu.run(["sh", "-c", "echo one; echo two >&2; exit 3"], tmp_path / "output", timeout_s=20, meanwhile=lambda: calls.append(1))
    assert status == 3 and (tmp_path / "output").read_text() == "one\ntwo\n" and calls


def test_one_that_ignores_the_request_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu, "END_S", 0.3)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    ncu.end(process)
    assert process.poll() == -9
    ncu.end(process)  # ended already: nothing to do
    process.stdout.close()


def test_the_text_is_added_to_what_is_kept(tmp_path):
    ncu.keep("one\n", tmp_path / "new" / "log")
    ncu.keep("two\n", tmp_path / "new" / "log")
    assert (tmp_path / "new" / "log").read_text() == "one\ntwo\n"


def test_the_fake_writes_a_table_that_can_be_read():
    (row,) = fake.rows([("forward_kernel", 512)])
    assert row["Grid Size"] == "(512, 1, 1)" and row[METRICS["time_ms"][0]] == pytest.approx(1.02048)
