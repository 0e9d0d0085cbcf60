"""turn.py: two processes never hold one GPU, those who wait have an order and are told it, and who dies stops nobody."""

import fcntl
import multiprocessing
import os
import stat
import time
from pathlib import Path

import pytest
import torch

from flashlab.bench import turn as module
from flashlab.bench.turn import taken, turn, wait_s
from flashlab.errors import ERRORS

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHLAB_LOCKS", str(tmp_path / "turns"))
    monkeypatch.setattr(module, "POLL_S", 0.02)
    return tmp_path / "turns"


def hold(name, ready, stop=None, log=None):
    """In a process of its own: take the turn, say so by the file `ready`, keep it until there is a file `stop`."""
    module._held.clear()
    with taken(name, say=lambda *_, **__: None):
        note(log, "in")
        ready.touch()
        while stop and not stop.exists():
            time.sleep(0.01)
        time.sleep(0.02)
        note(log, "out")


def note(log, what):
    if log:
        with log.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")


def start(*arguments):
    process = FORK.Process(target=hold, args=arguments, daemon=True)
    process.start()
    return process


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def holder(tmp_path):
    """A process that holds "gpu"."""
    process = start("gpu", tmp_path / "ready", tmp_path / "stop")
    until((tmp_path / "ready").exists)
    yield process
    (tmp_path / "stop").touch()
    process.join(20)


def test_a_taken_gpu_is_waited_for_and_given_up_after_the_stated_wait(holder, monkeypatch):
    monkeypatch.setenv("FLASHLAB_WAIT_S", "0.2")
    said, start = [], time.monotonic()
    with pytest.raises(ERRORS["gpu_busy"][0]) as caught, taken("gpu", say=lambda text, flush: said.append(text)):
        pytest.fail("it was taken twice")
    assert str(caught.value) == (
        "gpu was still taken after 0.2 s, with 1 before you. Try again later, wait longer (FLASHLAB_WAIT_S=900), or read recorded"
        " results: flashlab.bench.records.load()."
    )
    assert time.monotonic() - start >= 0.2 and said == ["Waiting for the GPU: 1 before you; after 0.2 s this gives up."]
    assert "gpu" not in module._held


def test_the_place_in_the_queue_is_told(holder, folder, tmp_path, monkeypatch):
    second = start("gpu", tmp_path / "second")
    until(lambda: len(list(folder.glob("*.ticket"))) == 2)
    monkeypatch.setenv("FLASHLAB_WAIT_S", "0.3")
    said = []
    with pytest.raises(TimeoutError, match="with 2 before you"), taken("gpu", say=lambda text, flush: said.append(text)):
        pass
    assert said[0].startswith("Waiting for the GPU: 2 before you") and not (tmp_path / "second").exists()
    second.kill()
    second.join(20)


def test_the_place_in_the_queue_is_told_again_when_it_moves(holder, folder, tmp_path, monkeypatch):
    second = start("gpu", tmp_path / "second")
    until(lambda: len(list(folder.glob("*.ticket"))) == 2)
    said = []

    def say(text, flush):
        said.append(text)
        if len(said) == 1:  # the one before us leaves the queue
            second.kill()
            second.join(20)
        else:
            (tmp_path / "stop").touch()

    monkeypatch.setenv("FLASHLAB_WAIT_S", "20")
    with taken("gpu", say=say):
        pass
    assert [text.partition(";")[0] for text in said] == [f"Waiting for the GPU: {ahead} before you" for ahead in (2, 1)]


def test_the_lock_itself_is_taken_too(folder, monkeypatch):
    """Two tickets of one moment may not see each other: then the lock decides."""
    monkeypatch.setenv("FLASHLAB_WAIT_S", "0.1")
    folder.mkdir()
    with (folder / "gpu.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="with 1 before you"), taken("gpu"):
            pass


def test_another_gpu_is_free(holder):
    with taken("another"):
        assert module._held == {"another": 1}


def test_who_is_killed_stops_nobody(holder):
    holder.kill()
    holder.join(20)
    with taken("gpu"):
        assert module._held == {"gpu": 1}


def test_processes_take_turns(tmp_path):
    crowd = [start("gpu", tmp_path / "ready", None, tmp_path / "log") for _ in range(6)]
    for process in crowd:
        process.join(30)
    steps = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [what for what, _ in steps] == ["in", "out"] * 6
    pids = [pid for _, pid in steps]
    assert len(set(pids)) == 6 and pids[::2] == pids[1::2]  # who comes in goes out before the next comes in


def test_a_turn_inside_a_turn_is_the_same_turn():
    with taken("gpu"), taken("gpu"):
        assert module._held == {"gpu": 2}
    assert module._held == {}


def test_a_fault_inside_ends_the_turn(folder):
    with pytest.raises(ZeroDivisionError), taken("gpu"):
        1 / 0
    assert module._held == {} and list(folder.glob("*.ticket")) == []
    with taken("gpu"):
        pass


def test_dead_tickets_are_passed_over_and_old_ones_cleared(folder):
    folder.mkdir()
    old, young = (folder / f"gpu.{n:020}.1.ticket" for n in (1, 2))
    for ticket in (old, young):
        ticket.touch()
    os.utime(old, (1, 1))
    with taken("gpu"):
        assert not old.exists() and young.exists()


def test_files_are_for_all_users(folder):
    before = os.umask(0o077)
    try:
        with taken("gpu"):
            modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777 and modes == {".ticket": 0o666, ".lock": 0o666}


def test_a_link_laid_out_for_us_is_not_followed(folder, tmp_path):
    folder.mkdir()
    (folder / "gpu.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError), taken("gpu"):
        pass
    assert not (tmp_path / "precious").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_said_once_and_stops_nobody(folder, capsys):
    folder.mkdir(mode=0o500)
    for _ in range(2):
        with taken("gpu"):
            assert module._held == {"gpu": 1}
    assert module._held == {} and capsys.readouterr().out == (
        f"No turns are taken on the GPU: {folder} cannot be written to. Set FLASHLAB_LOCKS to a folder that everyone may write to.\n"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_a_folder_that_cannot_be_looked_at_stops_nobody(tmp_path, monkeypatch):
    (tmp_path / "private").mkdir(mode=0)
    monkeypatch.setenv("FLASHLAB_LOCKS", str(tmp_path / "private" / "turns"))
    with taken("gpu"):
        assert module._held == {"gpu": 1}


def test_a_file_in_the_folder_s_place_stops_nobody(folder, capsys):
    folder.touch()
    with taken("gpu"):
        pass
    assert "No turns are taken" in capsys.readouterr().out


def test_a_folder_that_is_there_keeps_its_modes(folder, tmp_path):
    """A link in /tmp could point to the home of whoever runs this: its modes are not ours to change."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    folder.symlink_to(home)
    with taken("gpu"):
        pass
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_process_forked_meanwhile_does_not_keep_the_turn(tmp_path):
    with taken("gpu"):
        child = FORK.Process(target=time.sleep, args=(20,), daemon=True)
        child.start()
    other = start("gpu", tmp_path / "ready")
    other.join(10)
    child.kill()
    child.join(10)
    assert other.exitcode == 0 and (tmp_path / "ready").exists()


@pytest.mark.parametrize("given, seconds", [("", 300), ("0", 0), ("900", 900), (" 2.5", 2.5)])
def test_the_wait_is_a_number_of_seconds(monkeypatch, given, seconds):
    monkeypatch.setenv("FLASHLAB_WAIT_S", given)
    assert wait_s() == seconds


@pytest.mark.parametrize("given", ["-1", "soon", "inf", "1e3"])
def test_a_wait_that_cannot_be_is_refused(monkeypatch, given):
    monkeypatch.setenv("FLASHLAB_WAIT_S", given)
    with pytest.raises(ERRORS["wait_s"][0]) as caught:
        wait_s()
    assert str(caught.value) == f"FLASHLAB_WAIT_S is {given!r}; it must be a number of seconds of at least 0, such as 300."


def test_a_cpu_has_no_turns(folder):
    with turn("cpu"):
        assert not folder.exists()


def test_a_gpu_has_turns_a_cap_and_neighbours_told_once(monkeypatch, capsys):
    capped = []
    monkeypatch.setattr(module, "cap", capped.append)
    monkeypatch.setattr(module, "_uuid", lambda device: f"GPU-{torch.device(device).index or 0}")
    monkeypatch.setattr(module.neighbours, "others", lambda uuid: [module.neighbours.Neighbour(7, uuid, "alice", None)])
    module._introduce.cache_clear()
    for _ in range(2):
        with turn("cuda:1"):
            assert module._held == {"GPU-1": 1}
    module._introduce.cache_clear()
    assert capped == ["cuda:1", "cuda:1"]
    said = "Also on this GPU: GPU-1 (process 7 of alice). Timings taken beside other work are slower and less steady.\n"
    assert capsys.readouterr().out == said


@pytest.mark.gpu
def test_on_a_gpu_the_lock_bears_the_gpus_own_name(folder):
    with turn("cuda"):
        [lock] = folder.glob("*.lock")
    assert lock.name.startswith("GPU-") and len(lock.stem) == 40 and Path(folder / lock).exists()
