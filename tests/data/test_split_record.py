"""The record of a split: written and read back, recognises content under any name, and nothing in it is trusted."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glancefocus.data.sources import Data, DataSettings, open_data
from glancefocus.data.split_record import Content, RecordedFile, SplitRecord, content_of
from glancefocus.errors import BadData
from glancefocus.settings import ViewSettings

VIEW = ViewSettings(height_px=16, width_px=16)


def digest(number: int) -> str:
    return f"{number:032x}"


def record_of(*files: RecordedFile) -> SplitRecord:
    return SplitRecord.of("pets", ("cat", "dog"), files, val_share=None, seed=3)


FILES = (
    RecordedFile("train", "cat/a.png", 0, Content(10, digest(1))),
    RecordedFile("val", "cat/\udcff.png", 0, Content(11, digest(2))),  # a name that is not UTF-8
    RecordedFile("test", "dog/c d.png", 1, Content(12, digest(3))),
)


def test_what_was_written_is_read_back() -> None:
    record = SplitRecord(record_of(*FILES).packed)
    assert tuple(record.files()) == FILES
    assert (record.classes, record.chosen_by) == (("cat", "dog"), ("val",))
    assert {name: getattr(record.about, name) for name in ("source", "val_share", "seed", "files")} == {
        "source": "pets",
        "val_share": None,
        "seed": 3,
        "files": 3,
    }
    assert record.about.resolved == str(Path("pets").resolve())
    assert record == record_of(*FILES)  # and the same record is the same bytes


def test_a_file_is_known_by_its_content_and_training_comes_first() -> None:
    twice = RecordedFile("val", "copy.png", 0, Content(10, digest(1)))
    record = record_of(*FILES, twice)
    assert record.split_of(Content(10, digest(1))) == "train"
    assert record.split_of(Content(11, digest(2))) == "val"
    assert record.split_of(Content(11, digest(9))) is None
    assert record.split_of(None) is None
    assert [record.may_know(size) for size in (9, 10, 12)] == [False, True, True]


def test_other_images_may_choose_afterwards() -> None:
    new = RecordedFile("train", "new.png", 1, Content(13, digest(4)))
    record = record_of(*FILES).with_choosing(["val", "choosing"], [new])
    assert record.chosen_by == ("val", "choosing")
    assert record.split_of(new.content) == "choosing"
    again = record.with_choosing(["test"])
    assert tuple(again.files()) == FILES
    assert again.chosen_by == ("test",)


ABOUT = json.loads(gzip.decompress(record_of(*FILES).packed).splitlines()[0])


def packed(about: object, *lines: object) -> bytes:
    return gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in (about, *lines)), mtime=0)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "it ends too early"),
        (b"no gzip", "Not a gzipped file"),
        (record_of(*FILES).packed[:-20], "."),
        (gzip.compress(b"{}", mtime=0), "it ends too early"),
        (packed([]), "it does not begin with a table"),
        (packed({**ABOUT, "seed": "0"}), "`seed` is missing or of the wrong kind"),
        (packed({**ABOUT, "files": True}), "`files` is missing or of the wrong kind"),
        (packed({**ABOUT, "files": -1}), "`files` cannot be -1"),
        (packed({**ABOUT, "files": 10**9}), "`files` cannot be 1000000000 in"),
        (packed({**ABOUT, "files": 4}, *[["train", "a", 0, 1, digest(1)]] * 3), "it ends too early"),
        (packed({**ABOUT, "classes": [1]}), "`classes` must be a list of names"),
        (packed({**ABOUT, "chosen_by": ["all"]}), "`chosen_by` must be a list of splits"),
        (packed({**ABOUT, "format": 2}), "it has the format 2"),
        (packed(ABOUT, ["train", "a", 0, 1]), "a file must be a list of split, name, label, size and hash"),
        (packed(ABOUT, ["tra", "a", 0, 1, digest(1)]), "a split must be one of train"),
        (packed(ABOUT, [["train"], "a", 0, 1, digest(1)]), "a split must be one of train"),
        (packed(ABOUT, ["train", 7, 0, 1, digest(1)]), "the name of a file must be text"),
        (packed(ABOUT, ["train", "a", 2, 1, digest(1)]), "the label of 'a' must be a whole number from 0 to 1"),
        (packed(ABOUT, ["train", "a", 0, 1.5, digest(1)]), "the size of 'a' must be a whole number"),
        (packed(ABOUT, ["train", "a", 0, 1, "0" * 31 + "G"]), "the hash of 'a' must be 32 hexadecimal digits"),
        (packed(ABOUT, ["train", "a" * 70_000, 0, 1, digest(1)]), "a line has more than 65536 bytes"),
        (packed("a" * 17_000_000), "a line has more than"),
    ],
)
def test_a_damaged_record_is_refused_with_what_is_wrong(content: bytes, what: str) -> None:
    record = SplitRecord(content, "bundle/split.jsonl.gz")
    with pytest.raises(BadData, match=f"^bundle/split.jsonl.gz, the record of the training data, is damaged: .*{what}"):
        list(record.files())


def test_hundreds_of_thousands_of_files_take_some_tens_of_bytes_each() -> None:
    random = np.random.default_rng(0)
    count = 20_000
    hashes = [random.bytes(16).hex() for _ in range(count)]
    files = [
        RecordedFile("train", f"n{n % 1000:08d}/n{n % 1000:08d}_{n}.JPEG", n % 2, Content(100_000 + 7 * n, hashes[n]))
        for n in range(count)
    ]
    record = record_of(*files)
    assert len(record.packed) < 50 * count  # 1.3 million files: 60 MB
    assert sum(1 for _ in record.files()) == count


def picture(file: Path, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(file)


def recorded(source: Path, **settings: object) -> Data:
    return open_data(DataSettings(str(source), workers=0, **settings), VIEW, recorded=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("check_files", [True, False])
def test_a_folder_is_recorded_as_it_was_split(check_files: bool, tmp_path: Path) -> None:
    for number in range(12):
        picture(tmp_path / ("cat", "dog")[number % 2] / f"{number}.png", number)
    reported: list[tuple[str, int, int]] = []
    settings = DataSettings(str(tmp_path), workers=0, check_files=check_files)
    data = open_data(settings, VIEW, lambda *words: reported.append(words), recorded=True)
    assert data.record is not None
    files = {file.name: file for file in data.record.files()}
    assert files.keys() == {f"{('cat', 'dog')[number % 2]}/{number}.png" for number in range(12)}
    assert [f for f in files.values() if f.split == "val"] == [
        RecordedFile("val", file.relative_to(tmp_path).as_posix(), label, content_of(file))
        for file, label in zip(data.val.files, data.val.labels.tolist(), strict=True)  # type: ignore[attr-defined]
    ]
    assert len(data.val) == 4
    assert ("checking files" if check_files else "hashing files", 12, 12) in reported


def test_files_of_a_csv_are_named_relative_to_it_or_in_full(tmp_path: Path) -> None:
    for number in range(6):
        picture(tmp_path / ("in" if number % 2 else "out") / f"{number}.png", number)
    lines = [f"{number}.png,cat" if number % 2 else f"{tmp_path}/out/{number}.png,dog" for number in range(6)]
    (tmp_path / "in" / "list.csv").write_text("\n".join(lines))
    data = recorded(tmp_path / "in" / "list.csv")
    assert data.record is not None
    assert sorted(file.name for file in data.record.files()) == sorted(line.split(",")[0] for line in lines)


def test_held_out_copies_are_not_recorded_as_held_out(tmp_path: Path) -> None:
    for number in range(12):
        picture(tmp_path / ("cat", "dog")[number % 2] / f"{number}.png", number // 6)  # 2 different pictures
    data = recorded(tmp_path)
    assert any("are copies of training images" in remark for remark in data.remarks)


def test_large_files_are_distinguished_by_size_and_ends(tmp_path: Path) -> None:
    large = bytearray(17 << 20)
    contents = []
    for name, place in (("a", None), ("b", 0), ("c", len(large) - 1), ("d", len(large) // 2)):
        if place is not None:
            large[place] = 1
        (tmp_path / name).write_bytes(large)
        contents.append(content_of(tmp_path / name))
        if place is not None:
            large[place] = 0
    assert len({content.digest for content in contents}) == 3
    assert contents[0] == contents[3]  # only the middle differs, as the docstring says


def test_a_folder_of_frames_is_known_by_its_frames_in_order(tmp_path: Path) -> None:
    for name, seeds in (("one", (1, 2)), ("same", (1, 2)), ("turned", (2, 1)), ("longer", (1, 2, 3))):
        for number, seed in enumerate(seeds):
            picture(tmp_path / name / f"frame{9 + number}{name[0]}.png", seed)
    contents = {name: content_of(tmp_path / name) for name in ("one", "same", "turned", "longer")}
    assert contents["one"] == contents["same"]
    assert len({content.digest for content in contents.values()}) == 3
    assert contents["one"].size == sum(file.stat().st_size for file in (tmp_path / "one").iterdir())


def test_images_that_trained_the_network_before_are_not_held_out_from_it(tmp_path: Path) -> None:
    for number in range(24):
        picture(tmp_path / ("cat", "dog")[number % 2] / f"{number}.png", number)
    first = recorded(tmp_path)
    assert first.record is not None
    (tmp_path / "cat" / "0.png").unlink()  # wherever it is now, it has trained the network or not
    settings = DataSettings(str(tmp_path), workers=0, world_seed=1)  # another split
    second = open_data(settings, VIEW, recorded=True, before=first.record)
    assert second.record is not None
    trained = {file.content for file in first.record.files() if file.split == "train"}
    held = {file.content for file in second.record.files() if file.split == "val"}
    assert held
    assert not held & trained
    assert trained <= {file.content for file in second.record.files() if file.split == "train"}
    assert any("are copies of training images and are left out" in remark for remark in second.remarks)
