"""Data out of folders, CSV files and the built-in world; and every way in which it can be wrong."""

import os
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.lists import read_csv, read_folder
from glancefocus.data.signs import SignsSettings
from glancefocus.data.sources import DataSettings, classes_of, open_data, open_small
from glancefocus.data.split_record import hold_out
from glancefocus.data.splits import FileSplit, MemorySplit
from glancefocus.errors import BadData, BadImage, BadSetting, UnknownName
from glancefocus.settings import ViewSettings

VIEW = ViewSettings(height_px=16, width_px=16)


def picture(path: Path, colour: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20), (colour, 0, 0)).save(path)
    return path


def pictures(folder: Path, counts: dict[str, int]) -> Path:
    """{class folder: how many pictures}"""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(folder / name / f"{number}.png", 10 * number)
    return folder


def opened(source: Path, **settings: object):  # type: ignore[no-untyped-def]
    return open_data(DataSettings(str(source), workers=0, **settings), VIEW)  # type: ignore[arg-type]


def test_a_folder_of_train_and_val_is_taken_as_it_is(tmp_path: Path) -> None:
    pictures(tmp_path, {"train/dog": 3, "train/cat": 2, "val/cat": 1, "val/dog": 1, "test/dog": 2})
    data = opened(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.val.labels.tolist() == [0, 1]
    assert data.test is not None
    assert data.test.labels.tolist() == [1, 1]
    assert data.bad_files == []
    assert classes_of(str(tmp_path)) == ("cat", "dog")


def test_one_level_of_classes_is_split_by_a_seed_that_repeats(tmp_path: Path) -> None:
    pictures(tmp_path, {"cat": 10, "dog": 20})
    one, again, other = (hold_out(read_folder(tmp_path)[0], 0.2, seed) for seed in (0, 0, 1))
    assert one == again
    held = [(path, label) for split, path, label in one if split == "val"]
    assert [label for _, label in held] == [0] * 2 + [1] * 4  # a fifth of each class
    assert held != [(path, label) for split, path, label in other if split == "val"]
    assert sorted(path for _, path, _ in one) == sorted(tmp_path.rglob("*.png"))


def test_a_train_folder_without_val_gives_some_of_it(tmp_path: Path) -> None:
    data = opened(pictures(tmp_path, {"train/cat": 5, "train/dog": 5, "test/cat": 1}))
    assert (len(data.train), len(data.val)) == (7, 3)  # a third of ten
    assert data.test is not None


def test_a_class_with_one_image_keeps_it_for_training(tmp_path: Path) -> None:
    rows = hold_out(read_folder(pictures(tmp_path, {"cat": 1, "dog": 4}))[0], 0.5, 0)
    assert [(split, label) for split, _, label in rows if label == 0] == [("train", 0)]


def test_other_files_and_hidden_ones_are_passed_over(tmp_path: Path) -> None:
    pictures(tmp_path, {"cat": 4, "dog": 4, ".cache": 2, "cat/deeper": 1})
    (tmp_path / "cat" / "notes.txt").write_text("hello")
    picture(tmp_path / "cat" / ".hidden.png")
    rows, classes = read_folder(tmp_path)
    assert classes == ("cat", "dog")
    assert len(rows) == 9  # 4 + 4 and the one in a folder deeper


@pytest.mark.parametrize("header", ["", "path,label\n", "\ufeffpath,label\n", "Image, label\n"])
def test_a_csv_of_path_and_label_with_or_without_a_first_line_of_names(header: str, tmp_path: Path) -> None:
    pictures(tmp_path / "images", {"x": 6})
    lines = [f"images/x/{number}.png, {'cat' if number % 2 else 'dog'}" for number in range(6)]
    (tmp_path / "list.csv").write_text(header + "\n".join(lines) + "\n\n", encoding="utf-8")
    data = opened(tmp_path / "list.csv", val_share=0.34)
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.val)) == (4, 2)
    again = opened(tmp_path / "list.csv", val_share=0.34)
    assert data.val.files == again.val.files


def test_a_csv_may_name_the_splits(tmp_path: Path) -> None:
    pictures(tmp_path, {"x": 5})
    rows = ["0.png,cat,train", "1.png,dog,train", "2.png,cat,val", "3.png,dog,test", "4.png,dog"]
    (tmp_path / "x" / "list.csv").write_text("path,label,split\n" + "\n".join(rows))
    data = opened(tmp_path / "x" / "list.csv")
    assert [file.name for file in data.train.files] == ["0.png", "1.png", "4.png"]
    assert [file.name for file in data.val.files] == ["2.png"]
    assert data.test is not None
    assert data.test.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty. Write lines of path,label"),
        ("path,label\n", "is empty. Write lines of path,label"),
        ("a.png\nb.png\n", r"entry 1 has 1 columns; each needs path,label"),
        ("a.png,cat\nb.png,cat\n", r"only one class \('cat'\)"),
        ("a.png,cat,train\nb.png,dog,tran\n", r"a split must be train, val or test, but got 'tran'"),
        ("a.png,cat,train\nb.png,dog,train\nc.png,eel,val\n", "the class 'eel' is in val but not in train"),
    ],
)
def test_a_csv_that_says_nothing_useful_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(BadData, match=sentence):
        read_csv(tmp_path / "list.csv")


def test_a_file_that_is_no_csv_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="is not a CSV of path,label"):
        opened(picture(tmp_path / "a.png"))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="has no class folders. Put the images of each class into a folder"):
        opened(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").mkdir()
    with pytest.raises(BadData, match="contain no images"):
        opened(tmp_path)


def test_one_class_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"has only one class \('cat'\). A classifier needs at least two"):
        opened(pictures(tmp_path / "one", {"cat": 3}))
    pictures(tmp_path / "empty", {"cat": 3, "dog": 0})
    with pytest.raises(BadData, match="readable training images of only one class"):
        opened(tmp_path / "empty")


def test_a_class_in_val_that_is_not_in_train_is_refused(tmp_path: Path) -> None:
    pictures(tmp_path, {"train/cat": 2, "train/dog": 2, "val/eel": 1})
    with pytest.raises(BadData, match=r"has the class 'eel', which is not in .*train. Every class must be in train"):
        opened(tmp_path)


def test_bad_files_are_listed_and_skipped_up_to_the_limit(tmp_path: Path) -> None:
    pictures(tmp_path, {"train/cat": 3, "train/dog": 3, "val/cat": 1, "val/dog": 1})
    for name in ("0", "1"):
        (tmp_path / "train" / "cat" / f"{name}.png").write_bytes(b"broken")
    data = opened(tmp_path, max_bad_files=2)
    assert len(data.train) == 4
    assert len(data.bad_files) == 2
    assert all("train/cat" in problem for problem in data.bad_files)
    with pytest.raises(BadData, match=r"2 of 8 files cannot be read; at most 1 may be skipped"):
        opened(tmp_path, max_bad_files=1)


def test_a_file_that_a_csv_names_and_that_is_not_there_is_a_bad_file(tmp_path: Path) -> None:
    pictures(tmp_path, {"x": 4})
    (tmp_path / "list.csv").write_text("x/0.png,cat\nx/1.png,cat\nx/2.png,dog\nx/3.png,dog\nx/4.png,dog\n")
    data = opened(tmp_path / "list.csv", val_share=0.5)
    assert len(data.bad_files) == 1
    assert "4.png" in data.bad_files[0]


def test_a_data_set_without_a_readable_file_is_refused(tmp_path: Path) -> None:
    pictures(tmp_path, {"cat": 2, "dog": 2})
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(b"broken")
    with pytest.raises(BadData, match="none of the 4 files can be read. The first error: "):
        opened(tmp_path, max_bad_files=100)


def test_a_split_without_a_readable_file_is_refused(tmp_path: Path) -> None:
    pictures(tmp_path, {"train/cat": 2, "train/dog": 2, "val/cat": 1})
    (tmp_path / "val" / "cat" / "0.png").write_bytes(b"broken")
    with pytest.raises(BadData, match="has no readable images to hold out for validation"):
        opened(tmp_path)


def test_one_image_of_each_class_is_not_enough(tmp_path: Path) -> None:
    pictures(tmp_path, {"cat": 1, "dog": 1})
    with pytest.raises(
        BadData, match=r"to hold out for validation. Give at least two images of each class, or a split val\."
    ):
        opened(tmp_path)


def test_a_name_that_is_nothing_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match=r"there is no data set named 'sings'. Did you mean 'signs'\?"):
        open_data(DataSettings("sings"), VIEW)


def test_images_can_be_held_in_memory(tmp_path: Path) -> None:
    pictures(tmp_path, {"cat": 4, "dog": 4})
    from_files, held = opened(tmp_path), opened(tmp_path, in_memory=True)
    assert isinstance(from_files.train, FileSplit)
    assert isinstance(held.train, MemorySplit)
    shutil.rmtree(tmp_path / "cat")
    assert tuple(next(iter(held.train.batches([[0, 1]])))[0].shape) == (2, 3, 16, 16)


@pytest.mark.parametrize(("cores", "workers"), [({0}, 1), ({0, 3}, 2), (set(range(64)), 2)])
def test_the_default_number_of_workers_follows_the_usable_cores_and_torch_does_not_warn(
    cores: set[int], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores, raising=False)
    settings = DataSettings("photos")
    assert settings.workers == workers
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader([0], num_workers=settings.workers)
    with pytest.warns(
        UserWarning, match="suggested max number of worker"
    ):  # what more than the usable cores would cause
        DataLoader([0], num_workers=len(cores) + 1)


def test_the_built_in_world_has_three_splits_with_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path))
    settings = DataSettings("signs", scenes=(10, 5, 5), signs=SignsSettings(height=96, width=96))
    data = open_data(settings, ViewSettings(fit="whole", height_px=96, width_px=96))
    assert data.classes == ("none", "30", "50", "80", "100")
    assert data.test is not None
    assert (len(data.train), len(data.val), len(data.test)) == (10, 5, 5)
    assert data.train.boxes is not None
    nothing_there = data.train.boxes.isnan().any(dim=1)
    assert torch.equal(nothing_there, data.train.labels == 0)
    with pytest.raises(BadSetting, match=r"scenes\[2\] must be a whole number from 5 to 1,000,000, but got 1"):
        DataSettings("signs", scenes=(10, 5, 1))


def test_scenes_of_a_world_are_shifted_in_training_small_ones_by_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path))
    view = ViewSettings(fit="whole", height_px=120, width_px=160)
    settings = DataSettings(
        "signs", scenes=(5, 5, 5), signs=SignsSettings(height=120, width=160), augment=AugmentSettings(shift_px=10)
    )
    train = open_data(settings, view).train
    plain, moved = (next(train.batches([range(5)], seed=seed))[0] for seed in (None, 1))
    assert not torch.equal(plain, moved)
    assert not train.fixed
    small = open_small(settings, view, 96, (5, 5), None, 1).train
    assert isinstance(small, MemorySplit)
    assert small.shift_px == 6


def test_class_names_that_no_bundle_can_hold_are_refused_when_data_is_opened(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"tea"):
        folder = os.fsencode(tmp_path / "photos") + b"/" + name
        os.makedirs(folder)
        Image.new("RGB", (40, 40)).save(os.fsdecode(folder + b"/a.png"))
        Image.new("RGB", (40, 40)).save(os.fsdecode(folder + b"/b.png"))
    with pytest.raises(BadData, match=r"a class name is not Unicode text \('caf\\udce9'\)\. Rename the class"):
        open_data(DataSettings(source=str(tmp_path / "photos")), ViewSettings())
    (tmp_path / "list.csv").write_text("".join(f"{n}.png,{label}\n" for n, label in enumerate(("cat", "x" * 1001) * 2)))
    with pytest.raises(
        BadData, match="a class name is a text of 1,001 characters; at most 1,000 are allowed. Rename the class"
    ):
        open_data(DataSettings(source=str(tmp_path / "list.csv")), ViewSettings())


@pytest.mark.parametrize("place", ["cat", "cat/deeper"])
def test_a_class_folder_that_may_not_be_read_is_not_taken_for_empty(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(tmp_path, {"cat": 4, "cat/deeper": 2, "dog": 4})
    scandir = os.scandir

    def refusing(path: str | Path) -> object:  # root may read everything
        if Path(path) == tmp_path / place:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(
        BadImage, match=f"the folder .*{place} cannot be read: Permission denied. Check its permissions"
    ):
        opened(tmp_path)


def test_a_class_folder_without_images_is_reported(tmp_path: Path) -> None:
    data = opened(pictures(tmp_path, {"cat": 10, "dog": 10, "eel": 0}))
    assert data.remarks == ["no training images of the class 'eel': the network cannot learn it."]
