"""A bundle keeps the record of what trained it, wherever it goes; what lies there instead is refused."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.split_record import FILE, Content, RecordedFile, SplitRecord
from glancefocus.errors import BadBundle

RECORD = SplitRecord.of(
    "pets", ("cat", "dog", "eel"), [RecordedFile("train", "cat/1.png", 0, Content(9, "0" * 32))], val_share=0.2, seed=0
)


@pytest.fixture
def folder(small_bundle: Callable[..., Bundle], tmp_path: Path) -> Path:
    bundle = small_bundle()
    bundle.split = RECORD
    return bundle.save(tmp_path / "bundle")


def test_a_bundle_that_is_saved_copied_or_changed_keeps_its_record(folder: Path, tmp_path: Path) -> None:
    copied = Bundle.load(shutil.copytree(folder, tmp_path / "copied"))
    assert copied.split == RECORD
    assert "cat/1.png" not in (folder / "bundle.json").read_text()
    again = copied.save(tmp_path / "again")
    assert (again / FILE).read_bytes() == RECORD.packed
    copied.split = RECORD.with_choosing(["train"])
    copied.update(again)
    found = Bundle.load(again).split
    assert found is not None
    assert found.chosen_by == ("train",)


def test_an_older_or_imported_bundle_has_none(folder: Path) -> None:
    (folder / FILE).unlink()
    bundle = Bundle.load(folder)
    assert bundle.split is None
    bundle.update(folder)
    assert not (folder / FILE).exists()


def test_what_is_no_file_or_too_large_is_refused(folder: Path) -> None:
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)
    with pytest.raises(
        BadBundle,
        match="the record of the training data, cannot be read",
    ):
        Bundle.load(folder)
    (folder / FILE).unlink()
    with (folder / FILE).open("wb") as stream:
        stream.truncate((256 << 20) + 1)  # takes no space
    with pytest.raises(BadBundle, match="the record of the training data, cannot be read"):
        Bundle.load(folder)
