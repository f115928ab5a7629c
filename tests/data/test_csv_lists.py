"""A CSV of files and labels: a first line of names is not a class, and files that are missing are named."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glancefocus.data.lists import read_labelled_csv, without_missing
from glancefocus.data.sources import DataSettings, classes_of, open_data
from glancefocus.errors import BadData
from glancefocus.settings import ViewSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return tmp_path


LINES = [f"{number}.png,{('cat', 'dog')[number % 2]}" for number in range(6)]


def listed(folder: Path, *lines: str) -> Path:
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    return folder / "list.csv"


@pytest.mark.parametrize(
    "header", ["image_path,class", "img,label", "Filename,Label", "file name,class-name", "img_path,species", "path,x"]
)
def test_typical_names_of_columns_are_no_class(header: str, folder: Path) -> None:
    remarks: list[str] = []
    rows, classes = read_labelled_csv(listed(folder, header, *LINES), remarks)
    assert classes == ("cat", "dog")
    assert [(split, file.name, label) for split, file, label in rows[:2]] == [("all", "0.png", 0), ("all", "1.png", 1)]
    assert len(rows) == 6
    assert remarks == []
    assert classes_of(str(folder / "list.csv")) == ("cat", "dog")


def test_a_header_with_a_split(folder: Path) -> None:
    lines = [f"{line},{'val' if number % 3 else 'train'}" for number, line in enumerate(LINES)]
    rows, classes = read_labelled_csv(listed(folder, "filename,label,split", *lines))
    assert classes == ("cat", "dog")
    assert [split for split, _, _ in rows] == ["train", "val", "val"] * 2


def test_a_header_may_name_columns_in_another_order_and_more_of_them(folder: Path) -> None:
    lines = [f"{number},{line.split(',')[1]},7,{line.split(',')[0]}" for number, line in enumerate(LINES)]
    rows, classes = read_labelled_csv(listed(folder, "id,label,age,image", *lines))
    assert classes == ("cat", "dog")
    assert rows[1] == ("all", folder / "1.png", 1)


def test_another_first_line_that_is_not_a_file_is_taken_for_column_names_and_reported(folder: Path) -> None:
    remarks: list[str] = []
    _, classes = read_labelled_csv(listed(folder, "Bild,Tier", *LINES), remarks)
    assert classes == ("cat", "dog")
    assert remarks == [
        f"the first line of {folder / 'list.csv'} (Bild,Tier) was taken for column names, because 'Bild' is not a file."
    ]


@pytest.mark.parametrize("first", ["gone.png,eel", "gone.MP4,eel", "clip7,cat"])
def test_a_missing_file_is_no_header(first: str, folder: Path) -> None:
    rows, _ = read_labelled_csv(listed(folder, first, *LINES))
    assert len(rows) == 7


def test_a_file_that_is_called_like_a_header_is_a_file(folder: Path) -> None:
    (folder / "0.png").rename(folder / "image")
    rows, _ = read_labelled_csv(listed(folder, "image,cat", *LINES[1:]))
    assert rows[0] == ("all", folder / "image", 0)


def test_missing_files_are_counted_and_named(folder: Path) -> None:
    lines = [*LINES, *(f"sub/{number}.jpg,dog" for number in range(5))]
    path = listed(folder, *lines)
    rows, _ = read_labelled_csv(path)
    with pytest.raises(
        BadData, match=r"5 of the 11 files in the list .*list.csv do not exist: .*sub/0.jpg, .*, \.\.\.\. "
    ) as e:
        without_missing(rows, path, 4)
    assert f"relative to the folder of the CSV, {folder}" in str(e.value)
    there, sentences = without_missing(rows, path, 5)
    assert len(there) == 6
    assert sentences[0] == f"{path} lists {folder}/sub/0.jpg, which does not exist."
    view = ViewSettings(height_px=16, width_px=16)
    for check_files in (True, False):  # also where files are not read before training
        data = open_data(DataSettings(str(path), workers=0, check_files=check_files), view)
        assert len(data.bad_files) == 5
        assert len(data.train) + len(data.val) == 6
    with pytest.raises(BadData, match="6 of the 6 files"):
        without_missing([("all", folder / f"no{n}.png", 0) for n in range(6)], path, 10)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [(",cat", "entry 7 has no path"), ("0.png,", "entry 7 has no label"), ("x" * 300 + ",cat", "")],
)
def test_an_entry_without_path_or_label_is_refused(line: str, sentence: str, folder: Path) -> None:
    path = listed(folder, *LINES, line)
    if sentence:
        with pytest.raises(BadData, match=sentence):
            read_labelled_csv(path)
    else:  # too long to be a name of a file
        assert len(without_missing(read_labelled_csv(path)[0], path, 1)[0]) == 6
