"""Held-out means held out: networks that know random labels by heart are measured at chance level on the data that trained them."""

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadRun
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.values import from_plain

Run = Callable[..., Any]
CLASSES = ("ant", "bee", "cow", "dog", "eel")
CHANCE_AT_MOST = 0.5  # one in five by chance; of 25 images half are right once in 3,000 tries


@dataclass(frozen=True)
class Trained:
    """A run on random labels: its data, its bundle, how many images or clips trained and how many did not."""

    layout: str
    data: Path
    bundle: Path
    trained: int
    held_out: int
    noun: str = "images"


def picture(file: Path, seed: int) -> None:
    """A few coloured squares."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((32, 32), Image.Resampling.NEAREST).save(file)


def make_data(folder: Path, layout: str) -> Path:
    """75 pictures (of clips two frames each) of random labels; with train/ and test/ 25 more for test."""
    labels = np.random.default_rng(5).integers(0, 5, 100)
    for number in range(100 if layout == "train and test" else 75):
        name = CLASSES[labels[number]]
        if layout == "csv":
            picture(folder / "images" / f"{number}.png", number)
        elif layout == "clips":
            for frame in range(2):
                picture(folder / name / str(number) / f"{frame}.png", 2 * number + frame)
        else:
            split = {"flat": "", "train and test": "train" if number < 75 else "test"}[layout]
            picture(folder / split / name / f"{number}.png", number)
    if layout != "csv":
        return folder
    lines = [f"images/{number}.png,{CLASSES[labels[number]]}" for number in range(75)]
    (folder / "list.csv").write_text("\n".join(["img,label", *lines]))
    return folder / "list.csv"


def settings_of(data: Path, layout: str) -> TrainSettings:
    network: dict[str, Any] = {"classifier_units": 16}
    if layout == "clips":
        network = {"frames": 2, "classifier": "cascaded", "first_answer": "own_head"}
    return from_plain(
        TrainSettings,
        {
            "data": {"source": str(data), "workers": 0, "in_memory": True, "augment": {"crop": 1.0, "flip": False}},
            "network": {
                "backbone": "test_resnet",
                "classes": 5,
                "glance_px": 24,
                "focus": ["16"],
                "looks": 2,
                "policy": {"units": 8, "conv_channels": 2},
                "view": {"fit": "stretch", "height_px": 32, "width_px": 32},
                **network,
            },
            "stages": ["recognise"],
            "batch_size": 10,
            "recognise": {"epochs": 16, "encoder_lr": 0.03, "classifier_lr": 0.1, "weight_decay": 0.0},
        },
    )


@pytest.fixture(scope="module")
def run_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """A run on random labels in this layout, trained once."""

    @functools.cache
    def run(layout: str) -> Trained:
        folder = tmp_path_factory.mktemp("random")
        data = make_data(folder / "photos", layout)
        train(settings_of(data, layout), folder / "run", quiet=True)
        noun = "clips" if layout == "clips" else "images"
        return Trained(layout, data, folder / "run" / "bundle", 50, 25, noun)

    return run


@pytest.fixture(params=["flat", "csv", "train and test", "clips"])
def trained(request: pytest.FixtureRequest, run_on: Callable[[str], Trained]) -> Trained:
    return run_on(request.param)


@pytest.fixture
def flat(run_on: Callable[[str], Trained]) -> Trained:
    return run_on("flat")


def test_random_labels_known_by_heart_are_measured_at_chance_level(gf: Run, trained: Trained) -> None:
    quick = ("--no-latency", "--json")
    by_heart = gf("evaluate", trained.bundle, trained.data, "--split", "train", *quick)
    assert by_heart["images"] == trained.trained
    assert by_heart["accuracy_after_look"][-1] > 0.9
    assert by_heart["remarks"] == [
        f"these 50 {trained.noun} were used to train this network; accuracy on new ones will be lower."
    ]
    found = gf("evaluate", trained.bundle, trained.data, *quick)
    assert found["images"] == trained.held_out
    figures = [*found["accuracy_after_look"], found["chosen"]["accuracy"], *(p["accuracy"] for p in found["curve"])]
    assert max(figures) < CHANCE_AT_MOST
    if trained.layout == "train and test":
        assert found["data"] == f"{trained.data}, test"
        assert found["chosen_on"] == f"{trained.data}, val"
        assert found["remarks"] == []
    else:
        assert found["data"] == f"{trained.data}, val"
        assert found["chosen_on"] == "parts of these images for the other parts, in turns"
        assert found["remarks"] == [
            f"50 of 75 {trained.noun} in {trained.data} were used to train this network and are left out."
        ]
    everything = gf("evaluate", trained.bundle, trained.data, "--split", "all", *quick)
    count = 100 if trained.layout == "train and test" else 75
    assert everything["images"] == count
    assert everything["remarks"][0].startswith(f"50 of these {count} {trained.noun} were used to train this network")


def test_budgets_are_chosen_and_measured_on_held_out_images(gf: Run, trained: Trained, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(trained.bundle, tmp_path / "bundle"))
    found = gf("budget", bundle, trained.data, "--curve", "--json")
    assert max(found["on_these"]["accuracy"], *(p["accuracy"] for p in found["curve"])) < CHANCE_AT_MOST
    if trained.layout == "train and test":
        words = f"{trained.data}, val", f"{trained.data}, test"
    else:
        words = f"{trained.data}, val", f"{trained.data}, val, each image with thresholds chosen on the others"
    assert (found["chosen_on"], found["measured_on"]) == words
    # The thresholds are measured on images that did not choose them, also where the same data is given again.
    again = gf("evaluate", bundle, trained.data, "--no-latency", "--json")
    assert again["chosen"]["accuracy"] < CHANCE_AT_MOST
    paper = gf("budget", bundle, trained.data, "--on", "train", "--curve", "--no-store", "--json")
    assert paper["on_those"]["accuracy"] > 0.9
    assert paper["on_these"]["accuracy"] < CHANCE_AT_MOST
    assert "were used to train this network" in paper["remarks"][0]


def test_bench_measures_on_images_that_chose_nothing(gf: Run, flat: Trained, tmp_path: Path) -> None:
    net = Bundle.load(flat.bundle).net
    weights = {name: tensor.clone() for name, tensor in net.focus_encoder.backbone.state_dict().items()}
    safetensors.torch.save_file(weights, tmp_path / "backbone.safetensors")
    words = ("bench", flat.bundle, flat.data, "--backbone", tmp_path / "backbone.safetensors", "--runtime", "plain")
    quick = ("--batch", 4, "--threads", 1, "--rounds", 1)
    (row,) = gf(*words, *quick, "--json")
    assert row["accuracy"] < CHANCE_AT_MOST
    (row,) = gf(*words, *quick, "--split", "train", "--json")
    assert row["accuracy"] > 0.8
    printed = gf(*words, *quick)
    assert f"accuracy on the other half of {flat.data}, val: " in printed
    assert f"thresholds were chosen on one half of {flat.data}, val" in printed


def test_training_images_are_recognised_when_renamed_copied_or_listed_elsewhere(
    gf: Run, flat: Trained, tmp_path: Path
) -> None:
    for number, file in enumerate(sorted(flat.data.rglob("*.png"))):
        target = tmp_path / "copies" / file.parent.name / f"renamed-{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    for number in range(10):
        picture(tmp_path / "copies" / CLASSES[number % 5] / f"new-{number}.png", 1000 + number)
    quick = ("--no-latency", "--json")
    found = gf("evaluate", flat.bundle, tmp_path / "copies", *quick)
    assert found["images"] == 35
    assert found["remarks"] == [
        f"50 of 85 images in {tmp_path / 'copies'} were used to train this network and are left out. "
        "10 images are new since training."
    ]
    copies = sorted((tmp_path / "copies").rglob("*.png"))
    lines = [f"{file},{file.parent.name},test" for file in copies]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    listed = gf("evaluate", flat.bundle, tmp_path / "list.csv", *quick)
    assert (listed["images"], listed["data"]) == (35, f"{tmp_path / 'list.csv'}, test")
    new = tmp_path / "new"
    for file in copies:
        if file.name.startswith("new-"):
            (new / file.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, new / file.parent.name / file.name)
    unseen = gf("evaluate", flat.bundle, new, *quick)
    assert (unseen["images"], unseen["data"], unseen["remarks"]) == (10, f"{new}, all", [])


def test_nothing_but_training_images_is_refused(gf: Run, flat: Trained, tmp_path: Path) -> None:
    record = Bundle.load(flat.bundle).split
    assert record is not None
    for file in record.files():
        if file.split == "train":
            (tmp_path / "seen" / CLASSES[file.label]).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(flat.data / file.name, tmp_path / "seen" / file.name)
    for verb, more in (("evaluate", ()), ("budget", ("--curve",))):
        sentence = gf(verb, flat.bundle, tmp_path / "seen", *more, code=2)
        assert (
            f"all 50 images in {tmp_path / 'seen'} were used to train this network: none is left to measure it on."
            in sentence
        )
        assert "with --split train." in sentence
    assert "has no split 'test', only train, val" in gf("evaluate", flat.bundle, flat.data, "--split", "test", code=2)
    assert "contradict each other" in gf(
        "budget", flat.bundle, flat.data, "--curve", "--on", "train", "--split", "val", code=2
    )


def test_thresholds_chosen_on_other_data_are_not_measured_on_it(gf: Run, flat: Trained, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(flat.bundle, tmp_path / "bundle"))
    for number in range(24):
        picture(tmp_path / "new" / CLASSES[number % 5] / f"{number}.png", 1000 + number)
    quick = ("--no-latency", "--json")
    before = gf("evaluate", bundle, tmp_path / "new", *quick)
    assert before["chosen_on"] == f"{flat.data}, val"
    gf("budget", bundle, tmp_path / "new", "--curve")
    for number in range(24, 30):  # also where there are more images by now
        picture(tmp_path / "new" / CLASSES[number % 5] / f"{number}.png", 1000 + number)
    after = gf("evaluate", bundle, tmp_path / "new", *quick)
    assert after["images"] == 30
    assert after["chosen_on"] == "parts of these images for the other parts, in turns"
    again = gf("evaluate", bundle, flat.data, *quick)  # these have not chosen the thresholds that the bundle has now
    assert again["chosen_on"].startswith(f"{tmp_path / 'new'}, all")
    moved = Bundle.load(bundle).split
    assert moved is not None
    assert sum(file.split == "train" for file in moved.files()) == 50


def test_a_damaged_record_is_a_sentence_and_does_not_keep_a_bundle_from_answering(
    gf: Run, flat: Trained, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(flat.bundle, tmp_path / "bundle"))
    (bundle / "split.jsonl.gz").write_bytes(b"broken")
    file = next(flat.data.rglob("*.png"))
    assert gf("predict", bundle, file, "--json")
    assert "split.jsonl.gz, the record of the training data, is damaged" in gf("evaluate", bundle, flat.data, code=2)


def test_a_run_whose_classes_or_files_changed_is_not_resumed(tmp_path: Path) -> None:
    data = make_data(tmp_path / "photos", "flat")
    settings = settings_of(data, "flat")
    settings = replace(settings, recognise=replace(settings.recognise, epochs=1))
    train(settings, tmp_path / "run", quiet=True)
    before = (tmp_path / "run" / "bundle" / "bundle.json").read_bytes()
    (data / "bee").rename(data / "wasp")
    with pytest.raises(
        BadRun, match=r"the class 'bee' is now 'wasp'; \d+ files have another name \(wasp/.*\)\. Restore"
    ):
        train(settings, tmp_path / "run", quiet=True)
    (data / "wasp").rename(data / "bee")
    file = sorted((data / "cow").iterdir())[0]
    content = file.read_bytes()
    picture(file, 12345)
    with pytest.raises(BadRun, match=rf"has changed: 1 file changed \(cow/{file.name}\)\. Restore the data"):
        train(settings, tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "bundle" / "bundle.json").read_bytes() == before
    file.write_bytes(content)
    train(settings, tmp_path / "run", quiet=True)
