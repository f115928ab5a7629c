"""Files are whole or not there, links are never written through, locks have one holder."""

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from glancefocus import files
from glancefocus.files import (
    Locked,
    cache_folder,
    fingerprint,
    lock,
    remove_unfinished,
    replace_files,
    replace_folder,
    write_text,
)
from glancefocus.machine import open_file, read_file, read_stream


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "new"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "old")

    def fail(stream: object) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        files.write_file(tmp_path / "a", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "a", "x")
        with replace_folder(tmp_path / "b"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o755


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    folder = tmp_path / "x"
    for text in ("one", "two"):
        with replace_folder(folder) as aside:
            (aside / "a").write_text(text)
    assert (folder / "a").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_stays_where_its_replacement_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "a").write_text("old")

    def interrupted() -> None:
        with replace_folder(folder) as aside:
            (aside / "a").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (folder / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from glancefocus.files import write_file\n"
        f"write_file(pathlib.Path({str(tmp_path / 'a[1]')!r}), lambda s: os._exit(9))"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    remove_unfinished(tmp_path, "a[1]")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="folders are exchanged in one step on Linux only")
@pytest.mark.parametrize(("side", "content"), [("before", "old"), ("after", "new")])
def test_a_process_killed_on_either_side_of_the_exchange_leaves_a_whole_folder(
    side: str, content: str, tmp_path: Path
) -> None:
    code = f"""
import os, pathlib, signal
from glancefocus import files

exchange = files._exchange

def killed(one, other):
    if {side!r} == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    assert exchange(one, other)
    os.kill(os.getpid(), signal.SIGKILL)

files._exchange = killed
with files.replace_folder(pathlib.Path({str(tmp_path / "bundle")!r})) as aside:
    (aside / "a").write_text("new")
"""
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "a").write_text("old")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert (tmp_path / "bundle" / "a").read_text() == content
    remove_unfinished(tmp_path, "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert fingerprint(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_fingerprint_of_several_parts_is_that_of_their_bytes_in_order(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    halves = torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16)
    parts = ({"b": [1, 2.5], "a": None}, "name \udc80", b"\x00", np.array([1, 2], "<i2"), halves, tmp_path / "a")
    written = (
        b'{"a": null, "b": [1, 2.5]}' + b"name \x80" + b"\x00" + b"\x01\x00\x02\x00" + b"\x80\x3f\x00\xc0" + b"abc"
    )
    assert fingerprint(*parts) == hashlib.sha256(written).hexdigest()


def test_the_process_that_holds_a_lock_is_reported(tmp_path: Path) -> None:
    with lock(tmp_path / "lock", wait=False):
        with pytest.raises(Locked) as error, lock(tmp_path / "lock", wait=False):
            pass
        assert error.value.holder == os.getpid()
    with lock(tmp_path / "lock", wait=False):
        pass


def test_a_lock_is_not_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError), lock(tmp_path / "lock", wait=True):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_the_cache_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path / "a" / "cache"))
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700


def test_what_is_not_a_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for file, what in ((tmp_path / "pipe", "a pipe"), (tmp_path / "link", "a device"), (tmp_path, "a folder")):
        for read in (lambda f: read_file(f, 10), open_file, fingerprint):
            with pytest.raises(OSError, match=f"it is {what}"):
                read(file)


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert read_file(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_file(tmp_path / "a", 4)


def test_a_stream_without_an_end_is_left_after_the_limit() -> None:
    with open("/dev/zero", "rb") as endless, pytest.raises(OSError, match="it has more than 3,000,000 bytes"):
        read_stream(endless, 3_000_000)


def test_files_that_a_library_writes_are_moved_into_place_together(tmp_path: Path) -> None:
    (tmp_path / "graph.onnx").write_text("old")
    with replace_files(tmp_path / "graph.onnx") as aside:
        (aside / "graph.onnx").write_text("new")
        (aside / "graph.onnx.data").write_text("weights")
        assert aside.parent == tmp_path
        assert (tmp_path / "graph.onnx").read_text() == "old"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "graph.onnx": "new",
        "graph.onnx.data": "weights",
    }


def test_files_of_a_library_that_fails_are_removed(tmp_path: Path) -> None:
    (tmp_path / "graph.onnx").write_text("old")

    def write_half() -> None:
        with replace_files(tmp_path / "graph.onnx") as aside:
            (aside / "graph.onnx").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("graph.onnx", "old")]
