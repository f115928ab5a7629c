"""Freed memory is kept if the C library allows it; limits of containers and shells count like the memory of the machine."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from glancefocus import machine as memory
from glancefocus.machine import available_bytes, is_out_of_memory, keep_freed_memory

ASK_TWICE = """
import glancefocus.machine as memory
answers = [memory.keep_freed_memory(), memory.keep_freed_memory(1 << 20)]
assert len(bytearray(50_000_000)) == 50_000_000
print(answers)
"""


def test_it_says_whether_it_was_possible_and_may_be_asked_twice() -> None:
    # In a process of its own: it changes how all memory is kept from there on.
    done = subprocess.run([sys.executable, "-c", ASK_TWICE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() in ("[True, True]", "[False, False]")


def test_on_other_systems_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False


def test_no_more_is_available_than_the_machine_has() -> None:
    assert 0 < available_bytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("line", "mount", "limit", "usage", "reclaimable"),
    [
        ("0::/jobs/one", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        (
            "4:cpu,memory:/jobs/one",
            "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_cgroups_and_their_parents_limit_what_is_available(
    tmp_path: Path, line: str, mount: str, limit: str, usage: str, reclaimable: str
) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/self/cgroup", f"9:name=systemd:/\n{line}\n")
    for folder, most, used in (("jobs/one", "max", 100), ("jobs", "5000", 3000), (".", "9000", 8000)):
        write(f"{mount}/{folder}/{limit}", f"{most}\n")
        write(f"{mount}/{folder}/{usage}", f"{used}\n")
        write(f"{mount}/{folder}/memory.stat", f"anon 1\n{reclaimable} 500\n")
    assert list(memory._allowed_by_cgroups(tmp_path)) == [2500, 1500]  # 5000 - 3000 + 500, 9000 - 8000 + 500


def test_without_cgroups_nothing_is_limited(tmp_path: Path) -> None:
    assert list(memory._allowed_by_cgroups(tmp_path)) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there is no ulimit on Windows")
def test_ulimit_limits_what_is_available() -> None:
    code = """
import resource
from glancefocus.machine import available_bytes
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))
print(available_bytes())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert 0 < int(done.stdout) < 4 << 30


def test_memory_that_ran_out_is_recognised() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 48, dtype=torch.uint8)
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
