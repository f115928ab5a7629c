"""Published sets of pictures are read as they were published: ImageNet in two layouts, and the Swedish traffic signs."""

import io
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from glancefocus.data.augmentation import AugmentSettings, augmented, relit
from glancefocus.data.labelled import open_labelled
from glancefocus.data.lists import medium_of
from glancefocus.data.published import Sign, speed_limit
from glancefocus.data.sources import DataSettings, open_data, split_rows
from glancefocus.data.split_record import content_of
from glancefocus.errors import BadData
from glancefocus.evaluation.records import data_fingerprint
from glancefocus.network.presets import PRESETS
from glancefocus.settings import ViewSettings
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import train

VIEW = ViewSettings(height_px=32, width_px=32)
FISH, SHARK = "n01440764", "n01484850"


def picture(file: Path, size: tuple[int, int] = (40, 32)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    red = sum(map(ord, str(file))) % 256
    Image.new("RGB", size, (red, 120, 60)).save(file, format="JPEG")


@pytest.fixture
def challenge(tmp_path: Path) -> Path:
    """The challenge's layout, with two classes that are not in alphabetical order."""
    images = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    for name in (FISH, SHARK):
        for number in range(3):
            picture(images / "train" / name / f"{name}_{number}.JPEG")
    for number in (1, 2):
        picture(images / "val" / f"ILSVRC2012_val_0000000{number}.JPEG")
    (tmp_path / "LOC_synset_mapping.txt").write_text(
        f"{SHARK} great white shark, white shark\n{FISH} tench, Tinca tinca\n"
    )
    (tmp_path / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\n"
        f"ILSVRC2012_val_00000002,{SHARK} 85 1 499 272 {FISH} 1 1 2 2 \n"
        f"ILSVRC2012_val_00000001,{FISH} 85 1 499 272 \n"
    )
    return tmp_path


def test_the_challenge_has_its_own_order_and_a_list_for_validation(challenge: Path) -> None:
    data = open_data(DataSettings(str(challenge)), VIEW)
    assert data.classes == (SHARK, FISH)
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.val.labels.tolist() == [1, 0]  # in the order of the images


def test_validation_images_may_be_sorted_into_classes(challenge: Path) -> None:
    val = challenge / "ILSVRC" / "Data" / "CLS-LOC" / "val"
    for number, name in ((1, FISH), (2, SHARK)):
        (val / name).mkdir()
        (val / f"ILSVRC2012_val_0000000{number}.JPEG").rename(val / name / f"{number}.JPEG")
    (challenge / "LOC_val_solution.csv").unlink()
    assert open_data(DataSettings(str(challenge)), VIEW).val.labels.tolist() == [0, 1]


def test_a_challenge_that_is_not_whole_gets_its_sentence(challenge: Path) -> None:
    (challenge / "LOC_val_solution.csv").write_text(
        f"ImageId,PredictionString\nILSVRC2012_val_00000002,{SHARK} 1 1 2 2\n"
    )
    with pytest.raises(BadData, match="1 of 2 validation images are not in .*, such as ILSVRC2012_val_00000001.JPEG"):
        open_data(DataSettings(str(challenge)), VIEW)
    (challenge / "LOC_val_solution.csv").unlink()
    with pytest.raises(BadData, match="LOC_val_solution.csv, which names their classes, is needed"):
        open_data(DataSettings(str(challenge)), VIEW)
    (challenge / "ILSVRC").rename(challenge / "elsewhere")
    with pytest.raises(BadData, match="but no ILSVRC/Data/CLS-LOC/train"):
        open_data(DataSettings(str(challenge)), VIEW)


def test_imagenet_1k_has_the_class_at_the_end_of_each_name(tmp_path: Path) -> None:
    for number, name in enumerate((FISH, SHARK, FISH)):
        picture(tmp_path / f"train_images_{number % 2}" / f"{name}_{number}_{name}.JPEG")
    picture(tmp_path / "val_images" / f"ILSVRC2012_val_00000001_{SHARK}.JPEG")
    picture(tmp_path / "test_images" / "ILSVRC2012_test_00000001.JPEG")  # without a label
    data = open_data(DataSettings(str(tmp_path)), VIEW)
    assert data.classes == (FISH, SHARK)
    assert sorted(data.train.labels.tolist()) == [0, 0, 1]
    assert data.val.labels.tolist() == [1]
    assert data.test is None
    measured = open_labelled(DataSettings(str(tmp_path)), VIEW, (FISH, SHARK))
    assert {name: len(split) for name, split in measured.splits.items()} == {"train": 3, "val": 1}


def test_folders_of_classes_stay_folders_of_classes(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for number in range(3):
            picture(tmp_path / "train" / name / f"{number}.jpg")
            picture(tmp_path / "val" / name / f"{number}.jpg")
    assert open_data(DataSettings(str(tmp_path)), VIEW).classes == ("cat", "dog")


ANNOTATIONS = {
    "clear_70.jpg": "VISIBLE, 120.0, 90.0, 100.0, 70.0, PROHIBITORY, 70_SIGN;",
    "largest_50.jpg": "VISIBLE, 110, 80, 100, 70, PROHIBITORY, 80_SIGN;VISIBLE, 140, 110, 100, 70, PROHIBITORY, 50_SIGN;",
    "blurred.jpg": "BLURRED, 120, 90, 100, 70, PROHIBITORY, 70_SIGN;",
    "seen_80.jpg": "OCCLUDED, 220, 190, 100, 70, PROHIBITORY, 70_SIGN;VISIBLE, 110, 80, 100, 70x, PROHIBITORY, 80_SIGN;",
    "other.jpg": "VISIBLE, 120, 90, 100, 70, INFORMATION, PEDESTRIAN_CROSSING;",
    "empty.jpg": "",
    "misc.jpg": "MISC_SIGNS;",
}
EXPECTED = {"clear_70.jpg": "70", "largest_50.jpg": "50", "seen_80.jpg": "80", "empty.jpg": "none", "misc.jpg": "none"}


@pytest.fixture
def roads(tmp_path: Path) -> Path:
    """A small made-up copy in the published layout, of scenes of 64x48 px."""
    for place in ("Set1", "Set2"):
        lines = []
        for copy in range(4 if place == "Set1" else 1):
            for name, signs in ANNOTATIONS.items():
                picture(tmp_path / place / f"{copy}_{name}", (64, 48))
                lines.append(f"{copy}_{name}:{signs}")
        (tmp_path / place / "annotations.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_traffic_signs_are_filtered_as_published(roads: Path) -> None:
    rows, classes = split_rows(DataSettings(str(roads)), medium_of(1))
    assert classes == ("none", "50", "70", "80")
    tested = {file.name.partition("_")[2]: classes[label] for split, file, label in rows if split == "test"}
    assert tested == EXPECTED
    assert [split for split, _, _ in rows].count("test") == 5
    assert [split for split, _, _ in rows].count("train") + [split for split, _, _ in rows].count("val") == 20


def test_signs_decide_by_visibility_then_by_size() -> None:
    assert speed_limit([]) == 0
    assert speed_limit([Sign("VISIBLE", 9.0, "STOP")]) is None
    assert speed_limit([Sign("SIDE_ROAD", 900.0, "50_SIGN"), Sign("VISIBLE", 9.0, "70_SIGN")]) == 2
    assert speed_limit([Sign("VISIBLE", 8.0, "50_SIGN"), Sign("VISIBLE", 9.0, "80_SIGN")]) == 3
    assert speed_limit([Sign("BLURRED", 8.0, "50_SIGN")]) is None


def test_annotations_that_do_not_fit_get_their_sentence(roads: Path) -> None:
    (roads / "Set2" / "0_empty.jpg").unlink()
    with pytest.raises(BadData, match="1 images of the annotations are not in .*0_empty.jpg. Unpack Set1Part0"):
        open_data(DataSettings(str(roads)), VIEW)
    (roads / "Set1" / "annotations.txt").write_text("a.jpg:VISIBLE, here;\n")
    with pytest.raises(BadData, match=r"line 1 has a sign that cannot be read \('VISIBLE, here'\)"):
        open_data(DataSettings(str(roads)), VIEW)
    (roads / "Set1" / "annotations.txt").write_text("no colon\n")
    with pytest.raises(BadData, match="line 1 has no colon"):
        open_data(DataSettings(str(roads)), VIEW)


def test_the_preset_for_roads_is_the_papers(roads: Path) -> None:
    preset = PRESETS["gf-resnet18-192-roads"]
    assert (preset.settings.backbone, preset.settings.focus, preset.settings.glance_px) == ("resnet18", ("192",), 192)
    assert (preset.settings.view.height_px, preset.settings.view.width_px) == (960, 1280)
    settings = train_settings(str(roads), preset="gf-resnet18-192-roads")
    assert settings.network.classes == 4
    augment = settings.data.augment
    assert (augment.flip, augment.crop, augment.shift_px, augment.shift_share, augment.light) == (
        False,
        1,
        100,
        0.8,
        0.8,
    )


def test_the_preset_for_roads_trains_on_the_published_layout(
    roads: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every stage of its recipe for one epoch, on scenes, glances and patches that are six times smaller."""
    few = [f"{stage}.epochs=1" for stage in ("backbone", "glance", "recognise", "aim", "finetune")]
    settings = train_settings(
        str(roads),
        preset="gf-resnet18-192-roads",
        network={"view": {"height_px": 160, "width_px": 216}, "glance_px": 32, "focus": ("32",)},
        data={"workers": 0},
        changes={"weights": None, "batch_size": 4},
        assignments=[*few, "data.augment.shift_px=17"],
    )
    bundle = train(settings, tmp_path_factory.mktemp("run"), quiet=True)
    assert bundle.classes == ("none", "50", "70", "80")
    outcome = bundle.predict(sorted((roads / "Set2").glob("*.jpg")), looks=settings.network.looks)
    assert outcome.looks.tolist() == [settings.network.looks] * 7
    assert {*outcome.label} <= {*bundle.classes}


def test_light_changes_in_a_share_of_the_images() -> None:
    view = ViewSettings(fit="whole")
    grey = Image.new("RGB", (8, 8), (128, 128, 128))
    plain = augmented(grey, view, AugmentSettings(crop=1, flip=False), 0)
    changed = [augmented(grey, view, AugmentSettings(crop=1, flip=False, light=0.8), seed) for seed in range(200)]
    share = sum(not torch.equal(image, plain) for image in changed) / 200
    assert 0.7 < share < 0.9
    colours = torch.stack([(image[0, 0, 0] * view.std[0] + view.mean[0]) for image in changed])
    assert 0.8 * 0.502 - 0.1 <= float(colours.min()) < float(colours.max()) <= 1.2 * 0.502 + 0.1
    doubled = relit(plain, view, 2.0, 0.5)[1, 3, 3] * view.std[1] + view.mean[1]
    assert float(doubled) == pytest.approx(2 * 128 / 255 + 0.5, abs=1e-6)


def test_a_share_of_the_images_is_shifted() -> None:
    view = ViewSettings(fit="whole")
    dotted = Image.new("RGB", (16, 16))
    dotted.putpixel((8, 8), (255, 255, 255))
    plain = augmented(dotted, view, AugmentSettings(crop=1, flip=False), 0)
    settings = AugmentSettings(crop=1, flip=False, shift_px=4, shift_share=0.5)
    moved = sum(not torch.equal(augmented(dotted, view, settings, seed), plain) for seed in range(200))
    assert 0.35 < moved / 200 < 0.6


def shard(file: Path, samples: dict[str, bytes]) -> None:
    with tarfile.open(file, "w") as archive:
        for name, content in samples.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))


def jpeg(red: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (40, 32), (red, 120, 60)).save(stream, format="PNG")
    return stream.getvalue()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in range(2):
        samples = {}
        for sample in range(4):
            samples |= {
                f"{number}{sample}.png": jpeg(100 * number + sample),
                f"{number}{sample}.cls": str(sample % 2).encode(),
            }
        shard(tmp_path / f"imagenet-train-{number:06d}.tar", samples)
    val = {
        "a/7.png": jpeg(7),
        "a/7.json": b'{"label": 1, "width": 40}',
        "a/8.png": jpeg(8),
        "a/8.txt": b"0\n",
        "a/9.png": b"",
    }
    shard(tmp_path / "imagenet-val-000000.tar", val)
    return tmp_path


def test_shards_are_read_in_place(shards: Path) -> None:
    (shards / "classes.txt").write_text("tench\nshark\n")
    data = open_data(DataSettings(str(shards), hold_mib=0), VIEW, recorded=True)
    assert data.classes == ("tench", "shark")
    assert data.train.labels.tolist() == [0, 1] * 4
    assert data.val.labels.tolist() == [1, 0]  # a picture without a label is left out
    images, labels = next(iter(data.train.batches([[5, 0]])))
    assert labels.tolist() == [1, 0]
    red = images[:, 0, 16, 16] * VIEW.std[0] + VIEW.mean[0]
    assert (red * 255).round().tolist() == [101, 0]
    assert data.record is not None
    assert len(list(data.record.files())) == 10
    measured = open_labelled(DataSettings(str(shards)), VIEW, data.classes, record=data.record)
    assert {name: len(split) for name, split in measured.splits.items()} == {"train": 8, "val": 2}
    assert len(data_fingerprint(measured.splits["val"])) > 8


def test_a_picture_in_a_shard_is_known_when_it_is_unpacked(shards: Path, tmp_path: Path) -> None:
    data = open_data(DataSettings(str(shards)), VIEW, recorded=True)
    assert data.record is not None
    unpacked = tmp_path / "unpacked" / "0" / "any.png"
    unpacked.parent.mkdir(parents=True)
    unpacked.write_bytes(jpeg(102))
    assert data.record.split_of(content_of(unpacked)) == "train"


def test_bad_shards_get_their_sentence(shards: Path) -> None:
    (shards / "classes.txt").write_text("tench\n")
    with pytest.raises(BadData, match="has 1 lines, but a label is 1, counted from 0"):
        open_data(DataSettings(str(shards)), VIEW)
    (shards / "classes.txt").unlink()
    assert open_data(DataSettings(str(shards)), VIEW).classes == ("0", "1")
    shard(shards / "train-9.tar", {"1.png": jpeg(1), "1.json": b"{}"})
    with pytest.raises(BadData, match=r"train-9.tar/1.json holds no label that can be read"):
        open_data(DataSettings(str(shards)), VIEW)
    (shards / "train-9.tar").write_bytes(b"nothing like a tar file" * 100)
    with pytest.raises(BadData, match=r"train-9.tar cannot be read as a tar file"):
        open_data(DataSettings(str(shards)), VIEW)
