"""The data of a run belongs to it: where classes or files have changed, it does not go on."""

from pathlib import Path

import pytest

from glancefocus.data.split_record import FILE, Content, RecordedFile, SplitRecord
from glancefocus.errors import BadRun
from glancefocus.training.checkpoint import class_differences, data_differences, keep_data

FILES = {f"cat/{n}.png": Content(9, f"{n:032x}") for n in range(4)} | {
    f"dog/{n}.png": Content(9, f"{n + 9:032x}") for n in range(4)
}

OTHER = Content(9, "f" * 32)


def record(files: dict[str, Content] = FILES, classes: tuple[str, ...] = ("cat", "dog"), **changes: str) -> SplitRecord:
    rows = [
        RecordedFile(changes.get("split", "train"), name, int(name.startswith("dog")), content)
        for name, content in files.items()
    ]
    return SplitRecord.of("pets", classes, rows, val_share=None, seed=0)


def test_a_run_with_the_same_data_is_resumed(tmp_path: Path) -> None:
    keep_data(tmp_path, record(), begun=False)
    keep_data(tmp_path, record(), begun=True)
    assert SplitRecord((tmp_path / FILE).read_bytes()) == record()


def test_before_anything_is_learnt_data_may_change(tmp_path: Path) -> None:
    keep_data(tmp_path, record(), begun=False)
    other = record({**FILES, "dog/9.png": Content(9, "a" * 32)})
    keep_data(tmp_path, other, begun=False)
    with pytest.raises(BadRun, match=r"1 file is gone \(dog/9.png\)"):
        keep_data(tmp_path, record(), begun=True)
    assert SplitRecord((tmp_path / FILE).read_bytes()) == other


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (record({**FILES, "cat/1.png": Content(9, "f" * 32)}), "1 file changed (cat/1.png)"),
        (record({n: Content(8, c.digest) for n, c in FILES.items()}), "8 files changed (cat/0.png, cat/1.png, cat/2.png, ...)"),
        (record({**FILES, "cat/7.png": OTHER, "dog/7.png": OTHER}), "2 files are new (cat/7.png, dog/7.png)"),
        (record({n: c for n, c in FILES.items() if n != "cat/0.png"}), "1 file is gone (cat/0.png)"),
        (record({f"{n}x": c for n, c in FILES.items()}), "8 files have another name (cat/0.pngx, cat/1.pngx, cat/2.pngx, ...)"),
        (record(split="val"), "8 files went to another split (cat/0.png, cat/1.png, cat/2.png, ...)"),
        (record(classes=("dog", "cat")), "the classes have another order: class 0 was 'cat' and is 'dog'"),
    ],
)  # fmt: skip
def test_changes_of_the_data_are_named(now: SplitRecord, words: str, tmp_path: Path) -> None:
    assert list(data_differences(record(), now)) == [words]
    keep_data(tmp_path, record(), begun=False)
    with pytest.raises(BadRun) as refused:
        keep_data(tmp_path, now, begun=True)
    assert str(refused.value) == (
        f"the data of the run in {tmp_path} has changed: {words}. "
        "Restore the data to continue this run, or train in another folder (--output)."
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (("cat", "dog"), ("cat", "hound"), ["the class 'dog' is now 'hound'"]),
        (("cat", "dog"), ("cat", "dog", "eel"), ["the class 'eel' is new"]),
        (("cat", "dog", "eel"), ("cat", "fox"), ["the class 'fox' is new", "the class 'dog', 'eel' is gone"]),
        (("cat", "dog"), ("cat", "dog"), []),
    ],
)
def test_classes_that_differ_are_named(before: tuple[str, ...], after: tuple[str, ...], words: list[str]) -> None:
    assert list(class_differences(before, after)) == words


def test_a_damaged_record_is_reported_and_a_built_in_world_has_none(tmp_path: Path) -> None:
    keep_data(tmp_path, None, begun=True)
    assert not (tmp_path / FILE).exists()
    (tmp_path / FILE).write_bytes(b"broken")
    with pytest.raises(BadRun, match="is damaged: .*Or remove the file"):
        keep_data(tmp_path, record(), begun=True)
