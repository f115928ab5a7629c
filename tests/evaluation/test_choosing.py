"""Which images choose thresholds and which others measure them; what was looked at is kept and found again."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.labelled import TrainingViews
from glancefocus.data.signs import CLASSES, SignsSettings
from glancefocus.data.sources import DataSettings
from glancefocus.errors import BadData, BadSetting, UnknownName
from glancefocus.evaluation.choosing import choose_images, choosing_and_measuring
from glancefocus.evaluation.records import Records, looks_folder
from glancefocus.values import to_plain

MakeBundle = Callable[..., Bundle]


@pytest.fixture(scope="module")
def bundle(small_bundle: MakeBundle) -> Bundle:
    return small_bundle()


def pictures(folder: Path, counts: dict[str, int]) -> str:
    """{class folder: how many pictures}; returns the data's name."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return str(folder)


def looked_at(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


def test_val_chooses_and_test_measures(bundle: Bundle, tmp_path: Path) -> None:
    source = pictures(tmp_path / "pets", {"train/cat": 1, "train/dog": 1, "val/cat": 3, "val/dog": 2, "test/dog": 4})
    choice = choose_images(Records(bundle, source, tmp_path / "looks"), "held-out")
    assert (choice.choosing_words, choice.measuring_words) == (f"{source}, val", f"{source}, test")
    assert choice.choosing.label.tolist() == [0, 0, 0, 1, 1]
    assert choice.measuring.label.tolist() == [1] * 4
    assert choice.choosing_rows.tolist() == [0, 1, 2, 3, 4]
    assert choice.measuring_rows.tolist() == [0, 1, 2, 3]
    assert looked_at(tmp_path / "looks") == ["test", "val"]  # train was not needed


@pytest.mark.parametrize(("split", "name"), [("val/", "val"), ("test/", "test"), ("", "all"), ("train/", "train")])
def test_with_one_split_every_image_is_measured_with_thresholds_chosen_on_the_others(
    split: str, name: str, bundle: Bundle, tmp_path: Path
) -> None:
    source = pictures(tmp_path / "pets", {f"{split}cat": 3, f"{split}dog": 4})
    records = Records(bundle, source, tmp_path / "looks")
    crosswise = choose_images(records, "held-out")
    assert crosswise.crosswise
    assert crosswise.choosing_words == f"{source}, {name}"
    assert crosswise.measuring_words == f"{source}, {name}, each image with thresholds chosen on the others"
    assert crosswise.choosing_rows.tolist() == crosswise.measuring_rows.tolist() == list(range(7))
    choice = choose_images(records, "held-out", in_halves=True)
    assert not choice.crosswise
    assert choice.choosing_words == f"one half of {source}, {name}"
    assert choice.measuring_words == f"the other half of {source}, {name}"
    assert choice.choosing is choice.measuring
    rows = [*choice.choosing_rows.tolist(), *choice.measuring_rows.tolist()]
    assert sorted(rows) == list(range(7))
    assert looked_at(tmp_path / "looks") == [name]


def test_thresholds_are_chosen_on_training_images_as_in_the_paper_on_request(bundle: Bundle, tmp_path: Path) -> None:
    source = pictures(tmp_path / "pets", {"train/cat": 3, "val/cat": 2, "test/cat": 1})
    choice = choose_images(Records(bundle, source, tmp_path / "looks"), "train")
    assert (choice.choosing_words, choice.measuring_words) == (f"{source}, train", f"{source}, test")
    source = pictures(tmp_path / "fewer", {"train/cat": 3, "val/cat": 2})
    choice = choose_images(Records(bundle, source, tmp_path / "looks"), "train")
    assert (choice.choosing_words, choice.measuring_words) == (f"{source}, train", f"{source}, val")


def test_crops_of_a_network_without_settings_of_training_are_resized_as_in_evaluation(
    small_bundle: MakeBundle, tmp_path: Path
) -> None:
    source = pictures(tmp_path / "pets", {"train/cat": 3, "val/cat": 2})
    for how in ("bilinear", "bicubic"):
        bundle = small_bundle(view={"interpolation": how})
        views = Records(bundle, source, tmp_path / "looks", train_images=5).split("train")
        assert isinstance(views, TrainingViews)
        assert views.augment.crop_resize == how


def test_missing_training_images_are_reported(bundle: Bundle, tmp_path: Path) -> None:
    source = pictures(tmp_path / "pets", {"val/cat": 3, "test/cat": 3})
    with pytest.raises(BadData, match="pets has no training images. Leave --on out, or name data with train/"):
        choose_images(Records(bundle, source, tmp_path / "looks"), "train")
    assert not (tmp_path / "looks").exists()


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_images_for_two_halves_are_reported(count: int, bundle: Bundle, tmp_path: Path) -> None:
    source = pictures(tmp_path / "pets", {"cat": count})
    with pytest.raises(BadData, match=f"chosen on some images and measured on others, but .*pets has {count}. Give at"):
        choose_images(Records(bundle, source, tmp_path / "looks"), "held-out")


def test_other_images_cannot_choose(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="chosen on 'held-out' or 'train' images, but got 'test'"):
        choose_images(Records(bundle, "signs", tmp_path), "test")


def test_the_seed_decides_the_halves(bundle: Bundle, tmp_path: Path) -> None:
    records = Records(bundle, pictures(tmp_path / "pets", {"cat": 12}), tmp_path / "looks")
    one, again, other = (
        choose_images(records, "held-out", seed, in_halves=True).choosing_rows.tolist() for seed in (0, 0, 1)
    )
    assert one == again != other


def test_what_was_looked_at_is_not_looked_at_again(bundle: Bundle, small_bundle: MakeBundle, tmp_path: Path) -> None:
    source = pictures(tmp_path / "pets", {"cat": 4})
    reported: list[str] = []

    def records_of(asking: Bundle) -> Records:
        return Records(asking, source, tmp_path / "looks", progress=lambda what, *_: reported.append(what))

    first = records_of(bundle).of("all")
    assert "looking at all" in reported
    reported.clear()
    again = records_of(bundle).of("all")
    assert "looking at all" not in reported
    assert np.array_equal(first.confidence, again.confidence)
    records_of(small_bundle(seed=1)).of("all")
    assert "looking at all" in reported


def test_a_record_can_be_named_instead_of_the_data(bundle: Bundle, small_bundle: MakeBundle, tmp_path: Path) -> None:
    source = pictures(tmp_path / "pets", {"val/cat": 6})
    choose_images(Records(bundle, source, tmp_path / "looks"), "held-out")
    (folder,) = (tmp_path / "looks").iterdir()
    (tmp_path / "pets").rename(tmp_path / "gone")  # the images are not needed any more
    records = Records(bundle, str(folder), tmp_path / "looks")
    assert records.names == ["val"]
    choice = choose_images(records, "held-out")
    assert choice.choosing_words == f"{source}, val"
    assert len(choice.choosing_rows) == len(choice.measuring_rows) == 6
    with pytest.raises(BadData, match="has no training images"):
        choose_images(records, "train")
    with pytest.raises(BadData, match="made with another network than the bundle's"):
        choose_images(Records(small_bundle(seed=1), str(folder), tmp_path / "looks"), "held-out")


def test_unknown_labels_and_missing_data_are_reported(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(
        BadData, match="has the label 'fox', which is not a class of the bundle. Its classes are cat, dog"
    ):
        Records(bundle, pictures(tmp_path / "pets", {"fox": 4}), tmp_path / "looks").of("all")
    with pytest.raises(UnknownName, match="there is no data set named 'sings'. Did you mean 'signs'"):
        choose_images(Records(bundle, "sings", tmp_path / "looks"), "held-out")


def test_bad_files_count_against_the_limit(bundle: Bundle, tmp_path: Path) -> None:
    source = pictures(tmp_path / "pets", {"cat": 5})
    (tmp_path / "pets" / "cat" / "0.png").write_bytes(b"broken")
    assert Records(bundle, source, tmp_path / "looks").of("all").about.images == 4
    with pytest.raises(BadData, match="1 of 5 files cannot be read"):
        Records(bundle, source, tmp_path / "looks", max_bad_files=0).of("all")


def test_records_are_kept_beside_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_folder(tmp_path / "run" / "bundle") == tmp_path / "run" / "bundle-looks"
    (tmp_path / "bundle").mkdir()
    monkeypatch.chdir(tmp_path / "bundle")
    assert looks_folder(Path(".")) == tmp_path / "bundle-looks"


def test_all_images_may_be_measured_and_training_scenes_of_a_world_are_reported(
    small_bundle: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path))
    view = {"fit": "whole", "height_px": 96, "width_px": 96}
    data = DataSettings("signs", workers=0, scenes=(7, 6, 5), signs=SignsSettings(height=96, width=96))
    bundle = small_bundle(classes=5, view=view, notes={"data_settings": to_plain(data)})
    bundle.classes = CLASSES
    records = Records(bundle, "signs", tmp_path / "looks")
    assert records.to_measure() == "test"
    assert records.remarks("test") == []
    assert records.remarks("train")[0].startswith("these 7 images were used to train this network; accuracy")
    assert records.remarks("all")[0].startswith("7 of these 18 images were used to train this network")
    record = records.of(records.to_measure("all"))
    parts = [records.of(name) for name in ("train", "val", "test")]
    assert record.label.tolist() == [label for part in parts for label in part.label.tolist()]
    assert np.allclose(record.confidence, np.concatenate([part.confidence for part in parts]), atol=1e-5)
    assert not any(records.chose(name) for name in ("val", "test", "all"))
    bundle.notes["thresholds_data"] = records.of("val").about.data
    assert [records.chose(name) for name in ("val", "test", "all", "train")] == [True, False, True, False]


def test_a_bundle_without_a_record_of_its_training_images_is_reported(small_bundle: MakeBundle, tmp_path: Path) -> None:
    source = pictures(tmp_path / "pets", {"cat": 4})
    imported, older = small_bundle(), small_bundle(notes={"data_settings": to_plain(DataSettings(source))})
    assert Records(imported, source, tmp_path / "looks").remarks("all") == []
    (remark,) = Records(older, source, tmp_path / "looks").remarks("all")
    assert remark.startswith("this bundle does not record which images it was trained on.")
    records = Records(older, source, tmp_path / "looks")
    records.remember_choosing("all")  # thresholds chosen on some images do not mean that it was trained on them
    assert Records(older, source, tmp_path / "looks").remarks("all") == [remark]
    assert Records(older, source, tmp_path / "looks").chose("all")


@pytest.mark.parametrize(
    ("split", "first", "second"),
    [("val", "val", "test"), ("test", "test", None), ("all", "all", None), ("train", "train", "test")],
)
def test_the_split_that_chooses_may_be_named(
    split: str, first: str, second: str | None, bundle: Bundle, tmp_path: Path
) -> None:
    source = pictures(tmp_path / "pets", {"train/cat": 3, "val/cat": 2, "test/cat": 4})
    records = Records(bundle, source, tmp_path / "looks")
    assert choosing_and_measuring(records, "held-out", split) == (first, second)
    with pytest.raises(BadData, match="has no split 'test', only val"):
        Records(bundle, pictures(tmp_path / "other", {"val/cat": 2}), tmp_path / "looks").to_measure("test")
