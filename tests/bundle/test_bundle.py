"""A bundle is saved whole or not at all, is checked when it is loaded, and takes any kind of picture."""

import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import glancefocus as gf
from glancefocus import files
from glancefocus.bundle import predicting
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadBudget, BadBundle, BadImage, BadSetting
from glancefocus.exits.curve import Latency
from glancefocus.machine import device_name
from glancefocus.outcome import Costs

MakeBundle = Callable[..., Bundle]


def pixels(height: int = 64, width: int = 64, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def bundle(small_bundle: MakeBundle) -> Bundle:
    return small_bundle()


@pytest.fixture
def folder(bundle: Bundle, tmp_path: Path) -> Path:
    return bundle.save(tmp_path / "bundle")


def edit(folder: Path, **changes: Any) -> None:
    """Change the settings file as a damaged disk or a careless hand might."""
    file = folder / "bundle.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


VARIANTS: dict[str, dict[str, Any]] = {
    "recurrent": {},
    "cascaded": {"classifier": "cascaded"},
    "shared encoder": {"shared_encoder": True},
    "several candidate views": {"focus": ("32", "48")},
    "options for the backbone": {"backbone": "resnet18", "backbone_options": {"channels": [8, 16, 24, 32]}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_loaded_bundle_answers_as_the_saved_one(variant: str, small_bundle: MakeBundle, tmp_path: Path) -> None:
    curve = [{"thresholds": [0.5, 0.5, 0.0], "mean_macs": 1e6, "accuracy": 0.5}]
    thresholds: tuple[Any, ...] = (0.9, 0.8, 0.0)
    if variant == "several candidate views":
        thresholds = ((0.5, 0.9), (0.8, 0.4), (0.0, 0.0))
        curve = [{**curve[0], "thresholds": [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]}]
    bundle = small_bundle(**VARIANTS[variant], thresholds=thresholds, curve=curve, notes={"accuracy": 0.5})
    loaded = Bundle.load(bundle.save(tmp_path / "deep" / "bundle"))
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    one, two = bundle.predict(images, looks=3), loaded.predict(images, looks=3)
    assert torch.equal(one.logits, two.logits)
    assert torch.equal(one.where, two.where)
    assert one.label == two.label
    assert loaded.settings == bundle.settings
    assert loaded.costs == bundle.costs
    assert loaded.thresholds == thresholds
    assert loaded.curve == curve
    assert loaded.notes == {"accuracy": 0.5}
    assert (loaded.net.glance_encoder is loaded.net.focus_encoder) == bundle.settings.shared_encoder


def test_a_bundle_of_a_single_look_is_loaded_again(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle(looks=1)
    loaded = Bundle.load(bundle.save(tmp_path / "bundle"))
    assert torch.equal(bundle.predict(pixels()).logits, loaded.predict(pixels()).logits)


def test_gf_load_answers_as_the_saved_bundle_and_saves_the_same_again(
    bundle: Bundle, folder: Path, tmp_path: Path
) -> None:
    loaded = gf.load(folder, device="cpu")
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loaded.predict(images).logits, bundle.predict(images).logits, rtol=0, atol=1e-5)
    again = loaded.save(tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (again / "bundle.json").read_text() == (folder / "bundle.json").read_text()


def test_a_shared_encoder_is_stored_once(small_bundle: MakeBundle, tmp_path: Path) -> None:
    folder = small_bundle(shared_encoder=True).save(tmp_path / "bundle")
    names = safetensors.torch.load_file(folder / "model.safetensors")
    assert not any(name.startswith("focus_encoder.") for name in names)


def test_the_folder_has_settings_weights_and_a_card_for_people(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle(notes={"trained_on": "fjärilar"})
    folder = bundle.save(tmp_path / "bundle")
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "bundle.json", "model.safetensors"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "# test_resnet, up to 3 looks" in card
    assert "cat, dog, eel" in card
    assert "trained on: fjärilar" in card
    assert f"| 3 | {bundle.costs.macs_after_look[2] / 1e6:,.1f}M |" in card
    assert json.loads((folder / "bundle.json").read_text())["format"] == 1


def test_saving_replaces_an_older_bundle_and_leaves_nothing_else_behind(
    small_bundle: MakeBundle, folder: Path, tmp_path: Path
) -> None:
    (folder / "left-over").touch()
    small_bundle(seed=5).save(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "bundle.json", "model.safetensors"]


def test_saving_into_an_empty_folder_works(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    bundle.save(".")
    assert (empty / "bundle.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


def test_a_foreign_folder_is_refused_and_left_as_it_is(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"precious")
    with pytest.raises(BadBundle, match="exists and is not a bundle; it was left as it is"):
        bundle.save(tmp_path / "photos")
    assert (tmp_path / "photos" / "a.jpg").read_bytes() == b"precious"
    with pytest.raises(BadBundle, match="exists and is not a bundle"):
        bundle.save(tmp_path / "photos" / "a.jpg")
    assert [p.name for p in tmp_path.rglob("*")] == ["photos", "a.jpg"]


def test_a_place_that_cannot_be_written_is_reported(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadBundle, match="the bundle cannot be written to .*: File exists"):
        bundle.save(tmp_path / "file" / "bundle")


@pytest.mark.parametrize("notes", [{"a": object()}, {"a": float("nan")}])
def test_a_failure_while_saving_leaves_the_old_bundle_as_it_was(
    notes: dict[str, Any], small_bundle: MakeBundle, folder: Path, tmp_path: Path
) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises((TypeError, ValueError)):  # JSON has no word for these; a mistake of ours, not of the user's
        small_bundle(seed=5, notes=notes).save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_failure_while_putting_in_place_brings_the_old_bundle_back(
    small_bundle: MakeBundle, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    rename, calls = Path.rename, iter(range(10))

    def rename_but_not_the_second_time(path: Path, target: Path) -> Path:
        if next(calls) == 1:
            raise OSError(28, os.strerror(28))
        return rename(path, target)

    monkeypatch.setattr(
        files, "_exchange", lambda one, other: False
    )  # as where folders cannot be exchanged in one step
    monkeypatch.setattr(Path, "rename", rename_but_not_the_second_time)
    with pytest.raises(BadBundle, match="cannot be written to .*: No space left on device"):
        small_bundle(seed=5).save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_missing_folder_and_a_folder_of_something_else_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match=r"there is no bundle at .*none"):
        gf.load(tmp_path / "none")
    with pytest.raises(BadBundle, match=r"is not a bundle: it has no bundle.json"):
        gf.load(tmp_path)


def test_missing_weights_are_reported(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadBundle, match=r"has no model.safetensors. Copy the whole folder again"):
        gf.load(folder)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_truncated_weights_are_reported_as_damaged(share: float, folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(BadBundle, match=r"model.safetensors is damaged"):
        gf.load(folder)


def test_weights_of_another_network_say_what_does_not_fit(
    small_bundle: MakeBundle, folder: Path, tmp_path: Path
) -> None:
    other = small_bundle(classifier_units=17).save(tmp_path / "other")
    (other / "model.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(BadBundle, match=r"does not fit the network: .*classifier.gru.weight_ih is .* instead of"):
        gf.load(folder)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"format": 1', b"\xff\xfe\x00", b"[" * 100_000, b'{"format": 1, "classes": nope}']
)
def test_settings_that_are_no_json_are_reported_as_damaged(content: bytes, folder: Path) -> None:
    (folder / "bundle.json").write_bytes(content)
    with pytest.raises(BadBundle, match=r"bundle.json is damaged"):
        gf.load(folder)


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"format": "one"}'])
def test_json_of_something_else_is_not_the_settings_of_a_bundle(content: str, folder: Path) -> None:
    (folder / "bundle.json").write_text(content)
    with pytest.raises(BadBundle, match="is not the settings of a bundle"):
        gf.load(folder)


def test_a_bundle_of_a_newer_format_asks_for_an_update(folder: Path) -> None:
    edit(folder, format=2)
    with pytest.raises(BadBundle, match="has format 2, this glancefocus reads up to 1. Update glancefocus"):
        gf.load(folder)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"network": None}, "does not describe a network: network must be a table"),
        ({"network": {"backbone": "test_resnett"}}, "does not describe a network: there is no backbone named"),
        (
            {"network": {"backbone": "test_resnet", "looks": "many"}},
            "network.looks must be a whole number from 1 to 64",
        ),
        ({"costs": None}, "is damaged: costs must be a table of names and values, but got None"),
        ({"costs": {"encoder_macs": 3}}, "is damaged: costs.encoder_with_head_macs is missing"),
        ({"classes": ["cat", "dog"]}, "answers with 3 classes, but 2 names were given"),
        ({"classes": None}, "is damaged: classes must be a list, but got None"),
        ({"classes": "cat"}, "is damaged: classes must be a list, but got 'cat'"),
        ({"classes": ["cat", 3, "eel"]}, r"is damaged: classes\[1\] must be a text, but got 3"),
        ({"thresholds": [0.5]}, "is damaged: thresholds must have 3 thresholds, one for each look"),
        ({"thresholds": ["high", 1, 2]}, r"is damaged: thresholds\[0\] must be a number from .*, but got 'high'"),
        ({"thresholds": 0.5}, "is damaged: thresholds must be a list, but got 0.5"),
        ({"curve": None}, "is damaged: curve must be a list, but got None"),
        ({"curve": [{"mean_macs": 1}]}, r"is damaged: curve\[0\].thresholds is missing"),
        (
            {"curve": [{"thresholds": [0, 0, 0], "accuracy": 70}]},
            r"curve\[0\].accuracy must be a number from 0 to 1, but got 70",
        ),
        (
            {"curve": [{"thresholds": [0, 0, 0], "exits_per_look": [0, 0, 0]}]},
            r"exits_per_look must count images for each of 3 looks",
        ),
        ({"notes": [1]}, r"is damaged: notes must be a table of names and values, but got \[1\]"),
        ({"temperatures": [1.0]}, r"do not fit its network: there must be 3 temperatures above 0, but got \[1.0\]"),
        ({"temperatures": [1.0, 0.0, 1.0]}, r"is damaged: temperatures\[1\] must be a number from 1e-06 to"),
        ({"temperatures": "hot"}, "is damaged: temperatures must be a list, but got 'hot'"),
        ({"latencies": [{"device": "a chip"}]}, r"is damaged: latencies\[0\].threads is missing"),
        ({"latencies": 3}, "is damaged: latencies must be a list, but got 3"),
        ({"score": 3}, "is damaged: score must be a text, but got 3"),
        (
            {"thresholds": [0.5, 0.5, 0.0], "score": "sureness"},
            "do not fit its network: there is no exit score named 'sureness'",
        ),
        (
            {"thresholds": [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]},
            r"is damaged: thresholds\[0\] must be a number from .*, but got \[0.5, 0.5\]",
        ),
    ],
)
def test_settings_that_cannot_be_are_reported(changes: dict[str, Any], sentence: str, folder: Path) -> None:
    edit(folder, **changes)
    with pytest.raises(BadBundle, match=sentence):
        gf.load(folder)


def test_costs_of_another_network_are_refused(bundle: Bundle) -> None:
    with pytest.raises(BadBundle, match="costs was counted for another network"):
        Bundle(bundle.net, bundle.classes, Costs(1, 1, {32: 1}, 1, (1, 1), 1))
    with pytest.raises(BadBundle, match="costs was counted for another network"):
        Bundle(bundle.net, bundle.classes, Costs(1, 1, {48: 1}, 1, (1, 1, 1), 1))


def test_the_wrong_number_of_classes_is_refused(bundle: Bundle) -> None:
    with pytest.raises(BadBundle, match="answers with 3 classes, but 4 names were given"):
        Bundle(bundle.net, ("a", "b", "c", "d"), bundle.costs)


def test_a_bundle_is_loaded_without_settings_of_a_checkpoint(folder: Path) -> None:
    with pytest.raises(BadSetting, match="is a bundle, which contains model, patch_px and looks"):
        gf.load(folder, model="resnet50")


def kinds_of_picture(array: np.ndarray[Any, Any], folder: Path) -> Iterator[Any]:
    picture = Image.fromarray(array)
    path = folder / "picture.png"
    picture.save(path)
    file = io.BytesIO()
    picture.save(file, "PNG")
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    yield from (path, str(path), file.getvalue(), picture, array, tensor, tensor / 255, tensor.double() / 255)


def test_every_kind_of_picture_gives_the_same_answer(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle(view={"fit": "whole"})  # resizing differs a little between Pillow and torch
    kinds = list(kinds_of_picture(pixels(), tmp_path))
    together = bundle.predict(kinds)
    assert len(together) == len(kinds)
    torch.testing.assert_close(together.logits, together.logits[:1].expand(len(kinds), -1), rtol=0, atol=1e-5)
    for kind in kinds:
        alone = bundle.predict(kind)
        assert len(alone) == 1
        torch.testing.assert_close(alone.logits, together.logits[:1], rtol=0, atol=1e-5)


def test_pictures_are_resized_and_cropped_as_the_view_says(bundle: Bundle) -> None:
    outcome = bundle.predict([pixels(50, 90), pixels(200, 64)])
    assert outcome.looks.tolist() == [3, 3]
    assert outcome.where.shape == (2, 2, 2)


def test_a_batch_tensor_is_several_pictures_whatever_the_batch_size(bundle: Bundle) -> None:
    images = torch.rand(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    whole = bundle.predict(images)
    assert len(whole) == 5
    assert whole.costs == bundle.costs
    for batch_size in (1, 2, 5):
        parts = bundle.predict(images, batch_size=batch_size)
        torch.testing.assert_close(parts.logits, whole.logits, rtol=0, atol=1e-5)


def test_pictures_of_any_sizes_are_seen_whole_in_one_batch(small_bundle: MakeBundle) -> None:
    bundle = small_bundle(view={"fit": "whole"})
    pictures = [pixels(64, 200), pixels(33, 40, seed=1), pixels(150, 32, seed=2)]
    outcome = bundle.predict(pictures)
    for row, picture in enumerate(pictures):
        alone = bundle.predict(picture)
        torch.testing.assert_close(outcome.logits[row], alone.logits[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(outcome.where[row], alone.where[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("fit", ["whole", "crop", "stretch"])
def test_an_image_smaller_than_a_patch_is_upscaled_with_a_note(small_bundle: MakeBundle, fit: str) -> None:
    bundle = small_bundle(view={"fit": fit})
    outcome = bundle.predict([pixels(31, 90), pixels(64, 64), pixels(1, 1)], batch_size=2)
    assert outcome.notes == (("upscaled from 90x31 px",), (), ("upscaled from 1x1 px",))
    assert outcome.looks.tolist() == [3, 3, 3]
    assert bundle.predict([pixels(64, 64)]).notes == ()
    assert small_bundle(view={"fit": fit}, looks=1).predict(pixels(31, 90)).notes == ()  # nothing is cut out of it


def test_an_upscaled_image_is_answered_as_if_it_had_been_upscaled_before(small_bundle: MakeBundle) -> None:
    bundle = small_bundle(view={"fit": "whole"})
    small = Image.fromarray(pixels(16, 24))
    before = small.resize((48, 32), Image.Resampling.BILINEAR)
    torch.testing.assert_close(bundle.predict(small).logits, bundle.predict(before).logits, rtol=0, atol=1e-6)


def test_large_images_are_answered_as_small_ones_are(small_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = small_bundle(view={"fit": "whole"})
    pictures = [pixels(70, 90), pixels(70, 90, seed=1), pixels(40, 41, seed=2), pixels(90, 70, seed=3)]
    expected = bundle.predict(pictures)
    monkeypatch.setattr("glancefocus.data.images.LARGE_PIXELS", 5000)  # the third alone is normalised beforehand
    for merge in (False, True):
        found = bundle.predict(pictures, merge=merge)
        torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.where, expected.where, rtol=0, atol=1e-5)
    monkeypatch.setattr("glancefocus.region.FLOATS_PER_CALL", 5000)  # one channel after the other
    torch.testing.assert_close(bundle.predict(pictures).logits, expected.logits, rtol=0, atol=1e-5)


def test_batches_of_large_images_are_smaller(small_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = small_bundle(view={"fit": "whole"})
    batches: list[int] = []
    look = predicting.look_until_sure

    def noted(net: Any, scene: Any, *more: Any) -> Any:
        batches.append(scene.count)
        return look(net, scene, *more)

    monkeypatch.setattr(predicting, "look_until_sure", noted)
    monkeypatch.setattr("glancefocus.machine.MOST_BATCH_BYTES", 64 * 64 * 3 * 4 * 2)  # two of the usual size
    outcome = bundle.predict([pixels(64, 64), pixels(200, 200), *[pixels(64, 64, seed=n) for n in range(3)]])
    assert batches == [1, 1, 2, 1]
    assert len(outcome) == 5


def test_an_outcome_says_why_an_image_stopped(small_bundle: MakeBundle) -> None:
    bundle = small_bundle()
    above = bundle.predict(pixels(64, 64), thresholds=[0.0, 0.5])
    assert (above.threshold(0), above.stopped(0)) == (0.0, "above threshold 0.00")
    bundle.score = "entropy"
    assert bundle.predict(pixels(64, 64), thresholds=[-1.0, 0.5]).stopped(0) == "all stop here"
    bundle.score = "confidence"
    every = bundle.predict(pixels(64, 64), looks=2)
    assert (every.threshold(0), every.stopped(0)) == (None, "out of looks")
    late = bundle.predict(pixels(64, 64), deadline_ms=1e-6)
    assert (late.looks.tolist(), late.stopped(0)) == ([1], "out of time")
    assert replace(above, thresholds=None).stopped(0) == "above its threshold"


@pytest.mark.parametrize(
    ("picture", "sentence"),
    [
        (torch.full((3, 64, 64), 200.0), r"floats must be within \[0, 1\], but this one ranges from 200 to 200"),
        (torch.randn(3, 64, 64), r"floats must be within \[0, 1\]"),
        (np.zeros((64, 64, 3), np.float32), r"an array must be uint8 \(height, width, 3\), but got float32"),
        (np.zeros((64, 64), np.uint8), r"an array must be uint8 \(height, width, 3\), but got uint8 \(64, 64\)"),
        (np.zeros((0, 64, 3), np.uint8), "an image of 0x64 px has no pixels"),
        (b"", "is empty"),
        (b"not a picture", "not an image"),
        ("/nowhere/a.jpg", "there is no file /nowhere/a.jpg"),
    ],
)
def test_what_is_no_picture_is_refused(picture: Any, sentence: str, bundle: Bundle) -> None:
    with pytest.raises(BadImage, match=sentence):
        bundle.predict(picture)


def test_no_pictures_at_all_are_refused(bundle: Bundle) -> None:
    with pytest.raises(BadImage, match="there are no pictures to look at"):
        bundle.predict([])


def test_a_batch_holds_at_least_one(bundle: Bundle) -> None:
    with pytest.raises(BadSetting, match="batch_size must be a whole number from 1 to 65,536, but got 0"):
        bundle.predict(pixels(), batch_size=0)


def test_the_given_number_of_looks_is_taken(bundle: Bundle) -> None:
    for looks in (1, 2, 3):
        outcome = bundle.predict(pixels(), looks=looks)
        assert outcome.looks.tolist() == [looks]
        assert outcome.cost_macs.tolist() == [bundle.costs.macs_after_look[looks - 1]]
        assert not outcome.sure.any()


def test_thresholds_may_leave_out_the_last_look(bundle: Bundle) -> None:
    assert bundle.exit_rule(thresholds=[0.5, 0.6]).thresholds == (0.5, 0.6, 0.0)
    assert bundle.exit_rule(thresholds=[0.5, 0.6, 0.7]).thresholds == (0.5, 0.6, 0.7)
    outcome = bundle.predict([pixels(), pixels(seed=1)], thresholds=[0.0, 0.0])
    assert outcome.looks.tolist() == [1, 1]
    assert outcome.sure.all()


def test_the_bundles_own_thresholds_are_the_default(small_bundle: MakeBundle) -> None:
    bundle = small_bundle(thresholds=(0.0, 1.0, 0.0))
    assert bundle.predict(pixels()).looks.tolist() == [1]
    assert bundle.predict(pixels(), looks=3).looks.tolist() == [3]


def test_a_budget_chooses_the_most_accurate_point_within_it(small_bundle: MakeBundle) -> None:
    spent = small_bundle().costs.macs_after_look
    cheap, middling = spent[0] * 1.1, spent[1]
    curve = [
        {"thresholds": [0.1, 0.1, 0.0], "mean_macs": cheap, "accuracy": 0.6},
        {"thresholds": [0.5, 0.5, 0.0], "mean_macs": middling, "accuracy": 0.8},
        {"thresholds": [0.4, 0.4, 0.0], "mean_macs": middling * 1.01, "accuracy": 0.7},
    ]
    bundle = small_bundle(curve=curve)
    assert bundle.exit_rule(budget_macs=cheap).thresholds == (0.1, 0.1, 0.0)
    assert bundle.exit_rule(budget_macs=middling * 1.02).thresholds == (0.5, 0.5, 0.0)
    assert bundle.exit_rule(budget_macs=spent[2]).thresholds == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("asked", "error", "sentence"),
    [
        ({"looks": 0}, BadSetting, "looks must be a whole number from 1 to 64, but got 0"),
        ({"looks": 4}, BadSetting, "takes 1 to 3 looks, not 4"),
        ({"thresholds": [0.5]}, BadSetting, "takes 3 looks, so it needs 2 thresholds, but got 1"),
        ({"thresholds": []}, BadSetting, "needs 2 thresholds, but got 0"),
        ({"thresholds": [0.5, float("nan")]}, BadSetting, "a threshold must be a number, but got nan"),
        ({"looks": 2, "thresholds": [0.5, 0.5]}, BadSetting, "not several of them"),
        ({"looks": 2, "budget_macs": 1e9}, BadSetting, "not several of them"),
        (
            {"budget_macs": 10.0},
            BadBudget,
            r"a budget of 10 multiply-adds is less than one glance \(.*\). Multiply-adds are counted one by one",
        ),
        ({"budget_macs": float("nan")}, BadSetting, "budget_macs must be a number above 0"),
    ],
)
def test_a_way_of_stopping_that_cannot_be_is_refused(
    asked: dict[str, Any], error: type[Exception], sentence: str, bundle: Bundle
) -> None:
    with pytest.raises(error, match=sentence):
        bundle.predict(pixels(), **asked)


def test_a_budget_needs_operating_points(bundle: Bundle) -> None:
    with pytest.raises(BadBudget, match="no operating points"):
        bundle.predict(pixels(), budget_macs=float(bundle.costs.macs_after_look[1]))


def latency_here(**changes: Any) -> Latency:
    """A millisecond for every look, measured where the tests run."""
    here = {"device": device_name(torch.device("cpu")), "threads": torch.get_num_threads(), "batch_size": 1}
    return Latency(**{**here, "glance_ms": 1.0, "focus_ms": ((1.0,), (1.0,)), **changes})


def test_how_a_bundle_stops_survives_saving(small_bundle: MakeBundle, tmp_path: Path) -> None:
    latencies = [latency_here(), latency_here(device="another chip", focus_ms=((0.5,), (0.25,)))]
    bundle = replace(
        small_bundle(thresholds=(0.9, 0.8, 0.0)), score="entropy", temperatures=(1.5, 0.7, 1.0), latencies=latencies
    )
    loaded = gf.load(bundle.save(tmp_path / "bundle"), device="cpu")
    assert loaded.score == "entropy"
    assert loaded.temperatures == (1.5, 0.7, 1.0)
    assert loaded.latencies == latencies
    assert loaded.exit_rule().score.name == "entropy"
    assert loaded.exit_rule().temperatures == (1.5, 0.7, 1.0)
    assert loaded.exit_rule(looks=2).temperatures == (1.5, 0.7)


def test_a_bundle_from_before_there_were_scores_stops_by_confidence(folder: Path) -> None:
    file = folder / "bundle.json"
    plain = json.loads(file.read_text())
    for name in ("score", "temperatures", "latencies"):
        del plain[name]
    del plain["costs"]["focus_policy_macs"]
    file.write_text(json.dumps({**plain, "thresholds": [0.5, 0.5, 0.0]}))
    loaded = gf.load(folder, device="cpu")
    assert (loaded.score, loaded.temperatures, loaded.latencies) == ("confidence", None, [])
    # 0.5 is more than fresh weights are ever sure of three classes
    assert loaded.predict(pixels()).cost_macs.tolist() == [loaded.costs.macs_after_look[2]]


def test_an_update_writes_thresholds_and_leaves_weights_and_other_files_alone(bundle: Bundle, folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    weights = folder / "model.safetensors"
    before, was_written = weights.read_bytes(), weights.stat().st_mtime_ns
    loaded = gf.load(folder, device="cpu")
    loaded.thresholds = (0.25, 0.5, 0.0)
    loaded.curve = [{"thresholds": [0.25, 0.5, 0.0], "mean_macs": 1e6, "accuracy": 0.5}]
    loaded.notes = {"thresholds_chosen_on": "pets, val"}
    loaded.update(folder)
    assert (weights.read_bytes(), weights.stat().st_mtime_ns) == (before, was_written)
    assert (folder / "notes.txt").read_text() == "mine"
    names = ["README.md", "bundle.json", "model.safetensors", "notes.txt"]
    assert sorted(path.name for path in folder.iterdir()) == names
    again = gf.load(folder, device="cpu")
    assert again.thresholds == (0.25, 0.5, 0.0)
    assert again.curve == loaded.curve
    assert "pets, val" in (folder / "README.md").read_text()
    assert again.fingerprint == bundle.fingerprint


def test_an_update_of_a_bundle_that_is_gone_is_reported(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="the bundle .*none cannot be written: No such file or directory"):
        bundle.update(tmp_path / "none")


def test_a_fingerprint_is_that_of_what_is_answered(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle()
    same = small_bundle()
    assert bundle.fingerprint == same.fingerprint
    same.thresholds, same.score, same.notes = (0.1, 0.2, 0.0), "entropy", {"a": 1}
    same.curve, same.latencies = [{"thresholds": [0.1, 0.2, 0.0], "mean_macs": 1.0}], [latency_here()]
    assert bundle.fingerprint == same.fingerprint
    assert gf.load(same.save(tmp_path / "bundle"), device="cpu").fingerprint == bundle.fingerprint
    assert small_bundle(seed=1).fingerprint != bundle.fingerprint
    assert small_bundle(view={"mean": (0.0, 0.0, 0.0)}).fingerprint != bundle.fingerprint
    with torch.no_grad():
        next(iter(same.net.classifier.parameters())).view(-1)[0] += 1e-3
    assert bundle.fingerprint != same.fingerprint
    warm = replace(bundle, temperatures=(1.0, 1.0, 2.0))
    warmer = replace(bundle, temperatures=(1.0, 1.0, 3.0))
    assert len({bundle.fingerprint, warm.fingerprint, warmer.fingerprint}) == 3


def test_a_bundle_that_names_patch_sizes_instead_of_views_is_read(
    small_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    bundle = small_bundle(focus=("32", "48"))
    folder = bundle.save(tmp_path / "bundle")
    plain = json.loads((folder / "bundle.json").read_text())
    assert plain["network"].pop("focus") == ["32", "48"]
    plain["network"]["patch_px"] = [32, 48]
    (folder / "bundle.json").write_text(json.dumps(plain))
    assert gf.load(folder).settings == bundle.settings
