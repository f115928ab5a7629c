"""ImageNet's classes are known by their WordNet ids and their synonyms, too."""

from pathlib import Path

import pytest
from PIL import Image

from glancefocus.data.labelled import are_imagenet, class_numbers, imagenet_classes, open_labelled
from glancefocus.data.sources import DataSettings
from glancefocus.errors import BadData
from glancefocus.settings import ViewSettings

CLASSES = imagenet_classes(1000)


def test_wordnet_ids_and_synonyms_are_names_of_the_thousand_classes() -> None:
    assert CLASSES[:3] == ("tench", "goldfish", "great white shark")
    names = ["n01440764", "n15075141", "tench", "Tinca tinca", "great_white_shark", "n02012849", "n03126707"]
    assert class_numbers(CLASSES, names) == {
        "n01440764": 0,
        "tench": 0,
        "Tinca tinca": 0,
        "great_white_shark": 2,
        "n02012849": 134,
        "n03126707": 517,
        "n15075141": 999,
    }
    # Two classes are called crane, a bird and a machine: that name alone says nothing.
    assert class_numbers(CLASSES, ["crane", "n00000000"]) == {}


def test_networks_of_other_classes_have_their_own_names_only() -> None:
    assert not are_imagenet(("cat", "dog"))
    assert not are_imagenet(tuple(str(number) for number in range(1000)))
    assert not are_imagenet(CLASSES[::-1])
    assert class_numbers(CLASSES[::-1], ["n01440764", "tench"]) == {"tench": 999}
    assert imagenet_classes(3) == ("0", "1", "2")


def test_folders_named_by_wordnet_id_are_measured_as_the_classes_they_are(tmp_path: Path) -> None:
    for name in ("n01443537", "n01440764", "n01484850"):
        (tmp_path / "val" / name).mkdir(parents=True)
        Image.new("RGB", (20, 20)).save(tmp_path / "val" / name / "a.png")
    view = ViewSettings(height_px=16, width_px=16)
    opened = open_labelled(DataSettings(str(tmp_path)), view, CLASSES)
    assert opened.splits["val"].labels.tolist() == [0, 1, 2]
    (tmp_path / "val" / "n00000001").mkdir()
    with pytest.raises(BadData, match="has the label 'n00000001', which is not a class of the bundle"):
        open_labelled(DataSettings(str(tmp_path)), view, CLASSES)
