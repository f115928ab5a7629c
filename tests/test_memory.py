"""Freed memory is kept where the C library can be told to, and asking for it never fails."""

import subprocess
import sys

import pytest

from glancefocus.memory import keep_freed_memory

ASK_TWICE = """
import glancefocus.memory as memory
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
