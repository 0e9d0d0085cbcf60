"""What the NVIDIA driver says about this machine's GPU, and whether the installed torch can use it.

The driver is asked itself (cuInit, through ctypes) and torch's version is read from its file, so neither torch nor
triton is imported: flashlab must know before they are.

Does not handle: a choice among several GPUs for kernels (they run on the first visible one), and AMD and Intel GPUs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

LEAST_CAPABILITY = (8, 0)
DEVICE = Path("/dev/nvidia0")
SCHEDULERS = (  # its command, what it sets in a job, how to ask for a GPU
    ("sbatch", "SLURM_JOB_ID", "srun --gres=gpu:1 --pty bash"),
    ("qsub", "PBS_JOBID", "qsub -I -l select=1:ngpus=1"),
)
DRIVER_ERRORS = {
    34: "a stub of libcuda was found before the real one; take the CUDA toolkit's stubs folder off LD_LIBRARY_PATH",
    100: "the NVIDIA driver sees no GPU",
    802: "the GPU's system is not ready yet (NVSwitch fabric manager); ask who runs this machine",
    803: "the NVIDIA driver and its library have different versions; restart the machine",
}
ATTRIBUTES = {"multiprocessors": 16, "l2_bytes": 38, "shared_memory_bytes": 97}  # of cuDeviceGetAttribute


@dataclass(frozen=True)
class GpuFound:
    """The first GPU the driver shows, true when Triton kernels can run on it; `reason` says why not.

    `cuda_version` is the newest CUDA the driver knows; `shared_memory_bytes` is what one block may use.
    """

    usable: bool
    reason: str = ""
    name: str = ""
    capability: tuple[int, int] | None = None
    cuda_version: tuple[int, int] | None = None
    memory_bytes: int = 0
    shared_memory_bytes: int = 0
    l2_bytes: int = 0
    multiprocessors: int = 0

    def __bool__(self) -> bool:
        return self.usable


class TorchBuild(NamedTuple):
    """The installed torch: its version, and the CUDA it was built for (None for a CPU build)."""

    version: str
    cuda: str | None

    @property
    def index(self) -> str:
        """The last part of PyTorch's index for this build, as `make lab TORCH=` takes it: "cpu" or such as "cu126"."""
        return f"cu{self.cuda.replace('.', '')}" if self.cuda else "cpu"


def ask_driver(load=ctypes.CDLL) -> GpuFound:
    """What the NVIDIA driver says about its first GPU. Only `judge()` can tell whether torch can use it."""
    try:
        cuda = load("libcuda.so.1")
    except OSError:
        return GpuFound(False, "no NVIDIA driver was found (libcuda.so.1)")
    code = cuda.cuInit(0)
    if code == 100:
        return GpuFound(False, _no_gpu())
    if code:
        return GpuFound(False, DRIVER_ERRORS.get(code, f"the NVIDIA driver does not start (cuInit returned {code})"))
    number, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)

    def ask(function: str, *arguments) -> int:
        return number.value if getattr(cuda, function)(ctypes.byref(number), *arguments) == 0 else 0

    version = ask("cuDriverGetVersion")
    if ask("cuDeviceGetCount") == 0:
        return GpuFound(False, _no_gpu())
    device = ask("cuDeviceGet", 0)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    return GpuFound(
        True,
        name=name.value.decode(),
        capability=(ask("cuDeviceGetAttribute", 75, device), ask("cuDeviceGetAttribute", 76, device)),
        cuda_version=(version // 1000, version % 1000 // 10),
        memory_bytes=size.value,
        **{field: ask("cuDeviceGetAttribute", attribute, device) for field, attribute in ATTRIBUTES.items()},
    )


def _no_gpu() -> str:
    """Why the driver sees none. It gives the same code for a number or uuid that no GPU has as for a machine without one."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return DRIVER_ERRORS[100]
    if wanted.strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    return f"with CUDA_VISIBLE_DEVICES={wanted.strip()} {DRIVER_ERRORS[100]}"


def gpus(load=ctypes.CDLL) -> list[tuple[str, str]]:
    """(name, "GPU-" and its uuid) of each GPU that the driver lets this process use, in its order; [] where it names none.

    CUDA_VISIBLE_DEVICES takes these uuids, and what they mean does not depend on what it was before.
    """
    try:
        cuda = load("libcuda.so.1")
    except OSError:
        return []
    count, device, name, uuid = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for ordinal in range(count.value):
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetName(name, len(name), device) or cuda.cuDeviceGetUuid(uuid, device):
            return []
        found.append((name.value.decode(), f"GPU-{UUID(bytes=uuid.raw)}"))
    return found


def second_gpu(load=ctypes.CDLL) -> str:
    """The uuid of another GPU with the first one's name, "" where there is none: what is measured there is kept under one name."""
    first, *others = gpus(load) or [("", "")]
    return next((uuid for name, uuid in others if name == first[0]), "")


def torch_build() -> TorchBuild | None:
    """The installed torch, read from its version file without importing it; None if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text()
    version = re.search(r"^__version__\b[^'\"]*['\"]([^'\"]+)", text, re.M)
    cuda = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)", text, re.M)
    return TorchBuild(version[1] if version else "of unknown version", cuda[1] if cuda else None)


def judge(found: GpuFound, torch: TorchBuild | None) -> GpuFound:
    """`found`, no longer usable and with the reason if the installed torch or Triton cannot use it."""
    if not found:
        return found
    reason = ""
    if torch is None:
        reason = f"torch is not installed, so nothing can use the {found.name}"
    elif torch.cuda is None:
        reason = f"torch {torch.version} is a CPU build and cannot use the {found.name}; install a CUDA build of torch"
    elif int(torch.cuda.split(".")[0]) > found.cuda_version[0]:
        knows = "{}.{}".format(*found.cuda_version)
        reason = (
            f"the driver is too old for this torch: it knows CUDA {knows}, and torch {torch.version} was built for CUDA"
            f" {torch.cuda}; update the driver or install a torch built for CUDA {found.cuda_version[0]}"
        )
    elif found.capability < LEAST_CAPABILITY:
        has, needs = ("{}.{}".format(*pair) for pair in (found.capability, LEAST_CAPABILITY))
        reason = f"the {found.name} has compute capability {has}, and kernels here need {needs} or later"
    return replace(found, usable=not reason, reason=reason)


def login_node() -> str:
    """What to do if this looks like a cluster's login node (a scheduler, no allocation, no device); else ""."""
    for command, variable, ask in SCHEDULERS:
        if shutil.which(command) and variable not in os.environ and not DEVICE.exists():
            return f"This looks like a login node ({command} is here, {variable} is not set): ask for a GPU, e.g. {ask}"
    return ""
