"""driver.py: what is made of the NVIDIA driver's answers, with a driver that is played."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashlab import driver
from flashlab.driver import GpuFound, TorchBuild, ask_driver, gpus, judge, login_node, second_gpu, torch_build

ROOT = Path(__file__).parents[1]
H200 = GpuFound(
    True, "", "NVIDIA H200", (9, 0), (12, 4), memory_bytes=150_754_820_096, shared_memory_bytes=232_448, l2_bytes=2**20 * 60, multiprocessors=132
)
ATTRIBUTES = {75: 9, 76: 0, 16: 132, 38: 2**20 * 60, 97: 232_448}


class PlayedDriver:
    """libcuda as far as ask_driver calls it."""

    def __init__(self, init=0, count=1):
        self.init, self.count = init, count

    def cuInit(self, flags):
        return self.init

    def cuDriverGetVersion(self, out):
        out._obj.value = 12040
        return 0

    def cuDeviceGetCount(self, out):
        out._obj.value = self.count
        return 0

    def cuDeviceGet(self, out, ordinal):
        out._obj.value = 7
        return 0

    def cuDeviceGetName(self, out, size, device):
        assert device == 7
        out.value = b"NVIDIA H200"
        return 0

    def cuDeviceTotalMem_v2(self, out, device):
        out._obj.value = 150_754_820_096
        return 0

    def cuDeviceGetAttribute(self, out, attribute, device):
        assert device == 7
        out._obj.value = ATTRIBUTES[attribute]
        return 0


def test_a_gpu_is_described_from_the_drivers_answers():
    assert ask_driver(lambda name: PlayedDriver()) == H200


def test_no_driver():
    def load(name):
        raise OSError(f"{name}: cannot open shared object file")

    assert ask_driver(load) == GpuFound(False, "no NVIDIA driver was found (libcuda.so.1)")


@pytest.mark.parametrize(
    "played, reason",
    [
        (PlayedDriver(init=100), "the NVIDIA driver sees no GPU"),
        (PlayedDriver(count=0), "the NVIDIA driver sees no GPU"),
        (PlayedDriver(init=803), "the NVIDIA driver and its library have different versions; restart the machine"),
        (PlayedDriver(init=999), "the NVIDIA driver does not start (cuInit returned 999)"),
    ],
)
def test_a_driver_without_a_gpu_says_why(played, reason, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = ask_driver(lambda name: played)
    assert not found and found.reason == reason


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_not_called_missing(hidden, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert ask_driver(lambda name: PlayedDriver(init=100)).reason == "CUDA_VISIBLE_DEVICES hides every GPU"


@pytest.mark.parametrize("wanted", ["7", "GPU-deadbeef", "NoDevFiles", "0"])
@pytest.mark.parametrize("played", [PlayedDriver(init=100), PlayedDriver(count=0)], ids=["cuInit", "count"])
def test_a_variable_that_leaves_no_gpu_is_named(wanted, played, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f" {wanted}")
    assert ask_driver(lambda name: played).reason == f"with CUDA_VISIBLE_DEVICES={wanted} the NVIDIA driver sees no GPU"


# -- several GPUs -------------------------------------------------------------------------------------------------------------
class PlayedDriverOfMany(PlayedDriver):
    """GPUs of these names; the n-th has n in each byte of its uuid."""

    def __init__(self, *names, uuids=0, **options):
        super().__init__(count=len(names), **options)
        self.names, self.uuids = names, uuids

    def cuDeviceGet(self, out, ordinal):
        out._obj.value = ordinal + 40
        return 0

    def cuDeviceGetName(self, out, size, device):
        out.value = self.names[device.value - 40].encode()
        return 0

    def cuDeviceGetUuid(self, out, device):
        out.raw = bytes([device.value - 40]) * 16
        return self.uuids


UUIDS = [f"GPU-{n}{n}{n}{n}-{n}{n}-{n}{n}-{n}{n}-{n}{n}{n}{n}{n}{n}" for n in ("00", "01", "02")]


def test_gpus_are_told_apart_by_their_uuids():
    assert gpus(lambda name: PlayedDriverOfMany("H200", "T400", "H200")) == list(zip(("H200", "T400", "H200"), UUIDS))


@pytest.mark.parametrize(
    "played, second",
    [
        (PlayedDriverOfMany("H200", "H200"), UUIDS[1]),
        (PlayedDriverOfMany("H200", "T400", "H200"), UUIDS[2]),  # a display's card is not taken for another of the first
        (PlayedDriverOfMany("RTX 4090", "T400"), ""),
        (PlayedDriverOfMany("H200"), ""),  # also a machine in MIG mode, of which CUDA shows one instance
        (PlayedDriverOfMany(), ""),
        (PlayedDriverOfMany("H200", "H200", init=100), ""),
        (PlayedDriverOfMany("H200", "H200", uuids=1), ""),
    ],
)
def test_a_second_gpu_is_another_of_the_firsts_name(played, second):
    assert second_gpu(lambda name: played) == second


def test_without_a_driver_there_is_no_second_gpu():
    def load(name):
        raise OSError

    assert gpus(load) == [] and second_gpu(load) == ""


# -- torch's build ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text, build",
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", TorchBuild("2.13.0+cpu", None)),
        ("__version__ = '2.11.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\n", TorchBuild("2.11.0+cu130", "13.0")),
        ('__version__ = "2.12.0"\ncuda = "12.6"\n', TorchBuild("2.12.0", "12.6")),
    ],
)
def test_torchs_build_is_read_from_its_file(text, build, tmp_path, monkeypatch):
    (tmp_path / "version.py").write_text(text)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: spec)
    assert torch_build() == build


def test_torchs_build_is_what_torch_says():
    import torch

    assert torch_build() == TorchBuild(torch.__version__, torch.version.cuda)


def test_no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: None)
    assert torch_build() is None


# -- the verdict --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cuda", ["12.1", "12.8"])  # any CUDA 12: a driver runs what its major version made
def test_a_gpu_that_torch_can_use_is_usable(cuda):
    assert judge(H200, TorchBuild("2.13.0", cuda)) == H200


def change(**fields):
    return driver.replace(H200, **fields)


@pytest.mark.parametrize(
    "found, torch, reason",
    [
        (H200, None, "torch is not installed, so nothing can use the NVIDIA H200"),
        (
            H200,
            TorchBuild("2.13.0+cpu", None),
            "torch 2.13.0+cpu is a CPU build and cannot use the NVIDIA H200; install a CUDA build of torch",
        ),
        (
            H200,
            TorchBuild("2.13.0", "13.0"),
            "the driver is too old for this torch: it knows CUDA 12.4, and torch 2.13.0 was built for CUDA 13.0; update the"
            " driver or install a torch built for CUDA 12",
        ),
        (
            change(name="Tesla T4", capability=(7, 5)),
            TorchBuild("2.13.0", "12.6"),
            "the Tesla T4 has compute capability 7.5, and kernels here need 8.0 or later",
        ),
    ],
)
def test_a_gpu_that_cannot_be_used_says_why(found, torch, reason):
    judged = judge(found, torch)
    assert not judged and judged.reason == reason and judged.name == found.name


def test_capability_8_0_is_enough():
    assert judge(change(capability=(8, 0)), TorchBuild("2.13.0", "12.6"))


def test_no_gpu_keeps_its_reason():
    none = GpuFound(False, "the NVIDIA driver sees no GPU")
    assert judge(none, None) == none


# -- login nodes --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine on which only the named commands are on PATH, and no job runs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(driver, "DEVICE", tmp_path / "nvidia0")

    def put(command):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)

    return SimpleNamespace(put=put, device=tmp_path / "nvidia0")


@pytest.mark.parametrize("cuda, index", [(None, "cpu"), ("12.6", "cu126"), ("13.0", "cu130")])
def test_a_build_is_called_as_pytorchs_index_is(cuda, index):
    assert TorchBuild("2.13.0", cuda).index == index


def test_a_login_node_is_told(machine):
    machine.put("sbatch")
    assert login_node() == (
        "This looks like a login node (sbatch is here, SLURM_JOB_ID is not set): ask for a GPU, e.g. srun --gres=gpu:1 --pty bash"
    )


def test_a_pbs_login_node_is_told(machine):
    machine.put("qsub")
    assert "qsub -I" in login_node()


def test_an_allocation_is_no_login_node(machine, monkeypatch):
    machine.put("sbatch")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert login_node() == ""


def test_a_machine_with_a_gpu_is_no_login_node(machine):
    machine.put("sbatch")
    machine.device.touch()
    assert login_node() == ""


def test_a_machine_without_a_scheduler_is_no_login_node(machine):
    assert login_node() == ""


# -- the tests' own workers ----------------------------------------------------------------------------------------------------
WORKER = """
import runpy, subprocess, os
from pathlib import Path
Path.glob = lambda self, pattern: iter([Path("/dev/nvidia0")])
subprocess.run = lambda arguments, **options: type("Done", (), {{"stdout": {answer!r}}})
runpy.run_path("tests/conftest.py")
print(os.environ.get("CUDA_VISIBLE_DEVICES"))
"""


@pytest.mark.parametrize("answer, worker, seen", [("GPU-a GPU-b\n", "gw1", "GPU-b,GPU-a"), ("GPU-a\n", "gw1", "7"), ("\n", "gw1", "7"), ("GPU-a GPU-b\n", None, "7")])
def test_a_worker_turns_the_gpus_that_the_driver_names_and_else_leaves_what_was_set(answer, worker, seen, monkeypatch):
    """Eight files in /dev and one GPU that may be used: "1,2,...,0" would hide it, and every GPU test of that worker be skipped."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    done = subprocess.run([sys.executable, "-c", WORKER.format(answer=answer)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == [seen], done.stderr


def test_the_workers_question_is_answered_here():
    code = re.search(r'code = "(.*)"', (ROOT / "tests/conftest.py").read_text())[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split() == [uuid for _, uuid in gpus()]
