"""Labelled images to measure on: any part of a data set will do, as long as the network knows its labels."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from glancefocus.data.labelled import open_labelled, world_settings
from glancefocus.data.signs import CLASSES, SignsSettings
from glancefocus.data.sources import DataSettings
from glancefocus.data.splits import Split
from glancefocus.errors import BadData, UnknownName
from glancefocus.settings import ViewSettings

VIEW = ViewSettings(height_px=16, width_px=16)
PETS = ("dog", "eel", "cat")  # the order of the network, not of the alphabet


def pictures(folder: Path, counts: dict[str, int]) -> Path:
    """{class folder: how many pictures}"""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("RGB", (20, 20), (10 * number, 0, 0)).save(folder / name / f"{number}.png")
    return folder


def opened(source: Path, classes: tuple[str, ...] = PETS, **settings: object) -> dict[str, Split]:
    return open_labelled(DataSettings(str(source), workers=0, **settings), VIEW, classes).splits  # type: ignore[arg-type]


def test_splits_that_are_there_are_opened_and_labels_count_as_the_network_does(tmp_path: Path) -> None:
    splits = opened(pictures(tmp_path, {"val/cat": 2, "val/dog": 1, "test/eel": 1, "test/dog": 2}))
    assert list(splits) == ["val", "test"]
    assert splits["val"].labels.tolist() == [2, 2, 0]  # files by the alphabet: cat, cat, dog
    assert splits["test"].labels.tolist() == [0, 0, 1]
    images, labels = next(iter(splits["val"].batches([[2, 0]])))
    assert images.shape == (2, 3, 16, 16)
    assert labels.tolist() == [0, 2]


def test_train_val_and_test_come_in_their_order(tmp_path: Path) -> None:
    splits = opened(pictures(tmp_path, {"test/cat": 1, "train/cat": 3, "val/cat": 2}))
    assert {name: len(split) for name, split in splits.items()} == {"train": 3, "val": 2, "test": 1}


def test_class_folders_alone_are_one_split_named_all(tmp_path: Path) -> None:
    splits = opened(pictures(tmp_path, {"cat": 2, "eel": 1}))
    assert list(splits) == ["all"]
    assert splits["all"].labels.tolist() == [2, 2, 1]


def test_one_class_is_enough_to_measure_on(tmp_path: Path) -> None:
    assert opened(pictures(tmp_path, {"eel": 3}))["all"].labels.tolist() == [1, 1, 1]


def test_measuring_changes_no_image(tmp_path: Path) -> None:
    split = opened(pictures(tmp_path, {"eel": 1}))["all"]
    one, two = (next(iter(split.batches([[0]], seed)))[0] for seed in (1, 2))
    assert torch.equal(one, two)


def test_a_csv_without_splits_is_all_of_one(tmp_path: Path) -> None:
    pictures(tmp_path, {"x": 3})
    (tmp_path / "list.csv").write_text("path,label\nx/0.png,cat\nx/1.png,dog\nx/2.png,cat\n")
    splits = opened(tmp_path / "list.csv")
    assert list(splits) == ["all"]
    assert splits["all"].labels.tolist() == [2, 0, 2]


def test_a_csv_may_name_splits_and_what_has_none_is_for_training(tmp_path: Path) -> None:
    pictures(tmp_path, {"x": 4})
    (tmp_path / "list.csv").write_text("x/0.png,cat,test\nx/1.png,dog,val\nx/2.png,cat\nx/3.png,eel,test\n")
    splits = opened(tmp_path / "list.csv")
    assert {name: split.labels.tolist() for name, split in splits.items()} == {"train": [2], "val": [0], "test": [2, 1]}


@pytest.mark.parametrize("counts", [{"cat": 1, "fox": 1}, {"val/cat": 1, "test/fox": 1}, {"val/fox": 1}])
def test_a_label_that_is_not_a_class_of_the_network_is_refused(counts: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(
        BadData, match=r"has the label 'fox', which is not a class of the bundle. Its classes are dog, eel, cat"
    ):
        opened(pictures(tmp_path, counts))


def test_of_many_classes_only_some_are_listed(tmp_path: Path) -> None:
    classes = tuple(f"class{number}" for number in range(1000))
    with pytest.raises(BadData, match=r"Its classes are class0, class1, class2, class3, class4, class5, \.\.\.\."):
        opened(pictures(tmp_path, {"fox": 1}), classes)


def test_bad_files_are_skipped_up_to_the_limit(tmp_path: Path) -> None:
    pictures(tmp_path, {"cat": 2, "eel": 2})
    (tmp_path / "cat" / "0.png").write_bytes(b"broken")
    assert opened(tmp_path)["all"].labels.tolist() == [2, 1, 1]
    with pytest.raises(BadData, match="1 of 4 files cannot be read; at most 0 may be skipped"):
        opened(tmp_path, max_bad_files=0)


def test_data_that_is_nothing_gets_a_suggestion_or_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="there is no data set named 'sings'. Did you mean 'signs'"):
        open_labelled(DataSettings("sings"), VIEW, PETS)
    with pytest.raises(BadData, match="has no class folders"):
        opened(tmp_path)


SMALL_WORLD = SignsSettings(height=96, width=96)
WORLD_VIEW = ViewSettings(fit="whole", height_px=96, width_px=96)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSettings:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path))
    return DataSettings("signs", workers=0, scenes=(7, 6, 5), signs=SMALL_WORLD)


def test_the_built_in_world_has_all_three_splits(world: DataSettings) -> None:
    splits = open_labelled(world, WORLD_VIEW, CLASSES).splits
    assert {name: len(split) for name, split in splits.items()} == {"train": 7, "val": 6, "test": 5}


@pytest.mark.parametrize("classes", [PETS, CLASSES[::-1], (*CLASSES, "120")])
def test_a_network_of_other_classes_cannot_be_measured_on_the_world(
    classes: tuple[str, ...], world: DataSettings
) -> None:
    with pytest.raises(BadData, match="signs has the label .*, which is not a class of the bundle. Its classes are"):
        open_labelled(world, WORLD_VIEW, classes)


def test_the_world_is_drawn_as_it_was_for_training_or_at_the_size_of_the_network(world: DataSettings) -> None:
    assert world_settings("signs", world, WORLD_VIEW) == world
    other = world_settings("signs", DataSettings("pets"), WORLD_VIEW)
    assert (other.source, other.signs.height, other.signs.width) == ("signs", 96, 96)
    assert world_settings("signs", None, WORLD_VIEW) == other
    assert world_settings("pets", world, WORLD_VIEW) == DataSettings("pets")
