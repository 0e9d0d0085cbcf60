"""The child's own fences, put up before a line of the student's runs; the kernel keeps them, whatever the code tries.

Source: seccomp(2) and linux/seccomp.h; system call numbers from asm/unistd.h. Imports nothing of flashlab.
"""

import ctypes
import platform
import resource
import struct

MOST_FILES = 64  # open at once: each pipe and nameless file holds memory of its own
# What keeps memory that no address space shows (nameless files, System V's shared memory and queues, kernel keys), makes
# namespaces, or looks into other processes.
KEEPERS = {
    "x86_64": {"memfd_create": 319, "memfd_secret": 447, "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240, "add_key": 248,
               "request_key": 249, "keyctl": 250, "unshare": 272, "setns": 308, "mount": 165, "ptrace": 101, "process_vm_readv": 310,
               "process_vm_writev": 311, "bpf": 321, "userfaultfd": 323, "perf_event_open": 298, "io_uring_setup": 425},
    "aarch64": {"memfd_create": 279, "memfd_secret": 447, "shmget": 194, "shmat": 196, "semget": 190, "msgget": 186, "mq_open": 180, "add_key": 217,
                "request_key": 218, "keyctl": 219, "unshare": 97, "setns": 268, "mount": 40, "ptrace": 117, "process_vm_readv": 270,
                "process_vm_writev": 271, "bpf": 280, "userfaultfd": 282, "perf_event_open": 241, "io_uring_setup": 425},
}  # fmt: skip
# Numbers of clone, fork, vfork, clone3, and of what would start another program.
CALLS = {
    "x86_64": (0xC000003E, {"clone": 56, "fork": 57, "vfork": 58, "clone3": 435, "execve": 59, "execveat": 322}),
    "aarch64": (0xC00000B7, {"clone": 220, "clone3": 435, "execve": 221, "execveat": 281}),
}
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
ALLOW, REFUSE, NOT_THERE = 0x7FFF0000, 0x00050001, 0x00050026  # SECCOMP_RET_ERRNO with EPERM and with ENOSYS
NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2


def limit(cpu_s, file_bytes, memory_bytes):
    """CPU seconds from now, bytes of a file, and bytes of address space beyond what is mapped now (None: no limit)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted = {resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime + cpu_s) + 1, resource.RLIMIT_FSIZE: file_bytes, resource.RLIMIT_CORE: 0}
    wanted |= {resource.RLIMIT_NOFILE: MOST_FILES, resource.RLIMIT_MEMLOCK: 0}
    if memory_bytes is not None and mapped() is not None:
        wanted[resource.RLIMIT_AS] = mapped() + memory_bytes
    for what, most in wanted.items():
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def mapped():
    """Bytes of address space in use, or None where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def forbid_processes():
    """No new process, thread or program from here on, and nothing of KEEPERS; says whether the kernel agreed."""
    if platform.system() != "Linux" or platform.machine() not in CALLS:
        return False
    machine, calls = CALLS[platform.machine()]
    calls = calls | KEEPERS[platform.machine()]
    rules = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, machine), (RETURN, 0, 0, REFUSE), (LOAD, 0, 0, 0)]
    for name, number in calls.items():
        rules += [(EQUAL, 0, 1, number), (RETURN, 0, 0, NOT_THERE if name == "clone3" else REFUSE)]
    if platform.machine() == "x86_64":  # numbers from 2**30 up are the x32 calls, under other numbers
        rules += [(0x35, 0, 1, 0x40000000), (RETURN, 0, 0, REFUSE)]
    rules.append((RETURN, 0, 0, ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
    header = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return libc.prctl(SET_SECCOMP, FILTER, ctypes.create_string_buffer(header), 0, 0) == 0
