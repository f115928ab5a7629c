"""One pass over a split: every look at every image, each computed once, kept for the same network and the same images only."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.splits import FileSplit, MemorySplit
from glancefocus.errors import BadData
from glancefocus.evaluation.every_look import evaluate_every_look
from glancefocus.evaluation.records import data_fingerprint, record_looks
from glancefocus.exits.record import LookRecord
from glancefocus.loop import Entropy, Value
from glancefocus.settings import ViewSettings

MakeBundle = Callable[..., Bundle]
GREY: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
VIEW = ViewSettings(fit="whole", height_px=64, width_px=64, **GREY)


@pytest.fixture(scope="module")
def make_bundle(small_bundle: MakeBundle) -> MakeBundle:
    """Makes bundles that see images as the splits here do."""
    return functools.partial(small_bundle, view={"fit": "whole", **GREY})


def noise(count: int = 10, seed: int = 0) -> MemorySplit:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 64, 64), generator=generator, dtype=torch.uint8)
    return MemorySplit(pixels, torch.arange(count) % 3, VIEW)


def recorded(bundle: Bundle, split: Any, folder: Path, **more: Any) -> tuple[LookRecord, list[tuple[int, int]]]:
    """The record, and the progress reported while it was made; empty if it existed already."""
    reported: list[tuple[int, int]] = []
    record = record_looks(
        bundle, split, folder, source="noise", name="val", progress=lambda *at: reported.append(at), **more
    )
    return record, reported


def test_with_one_size_a_record_is_what_every_look_gives(make_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle, split = make_bundle(), noise()
    record, reported = recorded(bundle, split, tmp_path, batch_size=4)
    assert reported == [(4, 10), (8, 10), (10, 10)]
    every = evaluate_every_look(bundle.net, split)
    assert record.answer.tolist() == every.outcome.answer_after.tolist()
    assert record.label.tolist() == every.labels.tolist()
    np.testing.assert_allclose(record.confidence, every.outcome.confidence_after.numpy(), rtol=0, atol=1e-5)
    assert record.about.images == 10
    assert (record.about.looks, record.about.views) == (3, ("32",))
    assert (record.about.source, record.about.split) == ("noise", "val")
    assert (record.about.network, record.about.data) == (bundle.fingerprint, data_fingerprint(split))
    assert record.table(bundle.costs.macs_of_tree()).accuracy_after_look == pytest.approx(
        every.accuracy_per_look, abs=1e-6
    )


def test_a_view_of_the_whole_image_is_encoded_once_for_all_sequences_of_views(
    make_bundle: MakeBundle, tmp_path: Path
) -> None:
    bundle, split = make_bundle(focus=("0.5@32", "whole@64"), classifier="summed", whole_encoder=True), noise(4)
    assert bundle.net.whole_encoder is not None
    seen: list[int] = []
    hook = bundle.net.whole_encoder.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[0]))
    record, _ = recorded(bundle, split, tmp_path)
    hook.remove()
    assert seen == [4]  # of the seven looks of the tree three are at whole@64
    images, _ = next(iter(split.batches([range(4)])))
    with torch.inference_mode():
        for column, views in enumerate([(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]):
            look = bundle.net.glance(images)
            for candidate in views:
                look = bundle.net.focus(look, bundle.net.policy.aim(look, candidate))
            confidence = bundle.calibration().calibrated(look).confidence
            np.testing.assert_allclose(record.confidence[:, column], confidence.numpy(), rtol=0, atol=1e-5)


def test_all_scores_of_every_look_are_written(make_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle, split = make_bundle(looks=2), noise(4)
    record, _ = recorded(bundle, split, tmp_path)
    with torch.inference_mode():
        glance = bundle.net.glance(next(iter(split.batches([range(4)])))[0])
        aim = bundle.net.policy.aim(glance)
        focus = bundle.net.focus(glance, aim)
    np.testing.assert_allclose(record.entropy[:, 0], Entropy().of(glance, None).numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(record.entropy[:, 1], Entropy().of(focus, None).numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(record.value[:, 0], Value().of(glance, aim).numpy(), rtol=0, atol=1e-6)
    assert record.value[:, 1].tolist() == [1.0] * 4  # after the last look there is nothing to expect


def test_with_several_sizes_every_sequence_is_looked_at_once(make_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = make_bundle(patch_px=(32, 48))
    seen: dict[str, list[tuple[int, int]]] = {"glance": [], "focus": []}

    def noting(name: str) -> Callable[[Any, tuple[Tensor, ...]], None]:
        return lambda module, inputs: seen[name].append((int(inputs[0].shape[0]), int(inputs[0].shape[-1])))

    bundle.net.glance_encoder.register_forward_pre_hook(noting("glance"))
    bundle.net.focus_encoder.register_forward_pre_hook(noting("focus"))
    record, _ = recorded(bundle, noise(5), tmp_path)
    assert seen["glance"] == [(5, 32)]
    # 2 patches after the glance, 4 after them; all five images at once
    assert seen["focus"] == [(5, 32), (5, 48), (5, 32), (5, 48), (5, 32), (5, 48)]
    assert record.confidence.shape == (5, 1 + 2 + 4)


def test_the_columns_of_a_tree_are_its_nodes_level_by_level(make_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle, split = make_bundle(patch_px=(32, 48)), noise(3)
    record, _ = recorded(bundle, split, tmp_path)
    net = bundle.net
    for column, path in enumerate([(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]):
        with torch.inference_mode():
            look = net.glance(next(iter(split.batches([range(3)])))[0])
            for candidate in path:
                look = net.focus(look, net.policy.aim(look, candidate))
        np.testing.assert_allclose(record.confidence[:, column], look.confidence.numpy(), rtol=0, atol=1e-5)
        assert record.answer[:, column].tolist() == look.logits.argmax(dim=1).tolist()


def test_a_record_is_made_once_for_the_same_network_and_the_same_images(
    make_bundle: MakeBundle, tmp_path: Path
) -> None:
    bundle = make_bundle()
    first, reported = recorded(bundle, noise(), tmp_path)
    assert reported
    again, reported = recorded(make_bundle(), noise(), tmp_path)
    assert reported == []
    assert np.array_equal(first.confidence, again.confidence)
    assert len(list(tmp_path.iterdir())) == 1
    bundle.thresholds, bundle.score = (0.1, 0.1, 0.0), "entropy"
    assert recorded(bundle, noise(), tmp_path)[1] == []  # what a bundle stops by changes nothing that it answers


def test_another_network_or_other_images_are_looked_at_anew(make_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = make_bundle()
    record, _ = recorded(bundle, noise(), tmp_path)
    other_labels = MemorySplit(noise().images, torch.zeros(10, dtype=torch.long), VIEW)
    for split in (noise(seed=1), noise(9), other_labels):
        assert recorded(bundle, split, tmp_path)[1]
    bundle.temperatures = (1.0, 2.0, 1.0)
    warm, reported = recorded(bundle, noise(), tmp_path)
    assert reported
    assert np.array_equal(warm.confidence[:, 0], record.confidence[:, 0])
    assert bool((warm.confidence[:, 1] < record.confidence[:, 1]).all())
    assert np.array_equal(warm.answer, record.answer)
    with torch.no_grad():
        next(iter(bundle.net.parameters())).view(-1)[0] += 1e-3
    assert recorded(bundle, noise(), tmp_path)[1]
    assert len(list(tmp_path.iterdir())) == 6


def test_a_damaged_record_is_reported_and_not_used(make_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = make_bundle()
    recorded(bundle, noise(), tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / "value.npy").write_bytes(b"")
    with pytest.raises(BadData, match="is not a look record, or it is damaged .* Remove it"):
        recorded(bundle, noise(), tmp_path)


def test_broken_weights_are_reported_and_no_record_is_left(make_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = make_bundle()
    with torch.no_grad():
        next(iter(bundle.net.classifier.parameters())).fill_(torch.nan)
    with pytest.raises(BadData, match="the network's scores are not numbers; its weights are broken"):
        recorded(bundle, noise(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def files(folder: Path, sides: dict[str, int]) -> FileSplit:
    for name, side in sides.items():
        Image.new("RGB", (side, side)).save(folder / name)
    paths = [folder / name for name in sides]
    return FileSplit(paths, torch.arange(len(paths)) % 2, VIEW, AugmentSettings())


def test_files_are_identified_by_path_size_time_and_label(tmp_path: Path) -> None:
    split = files(tmp_path, {"a.png": 8, "b.png": 8})
    known = {data_fingerprint(split)}
    assert data_fingerprint(split) in known
    for other in ({"a.png": 8, "b.png": 80}, {"a.png": 8, "c.png": 8}, {"a.png": 8}, {"b.png": 8, "a.png": 8}):
        found = data_fingerprint(files(tmp_path, other))
        assert found not in known
        known.add(found)
    split.labels = torch.tensor([1, 1])
    assert data_fingerprint(split) not in known


def test_a_picture_replaced_by_another_of_the_same_size_is_noticed(tmp_path: Path) -> None:
    split = files(tmp_path, {"a.bmp": 8})
    before, written = data_fingerprint(split), (tmp_path / "a.bmp").stat()
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.bmp")
    os.utime(tmp_path / "a.bmp", ns=(written.st_atime_ns, written.st_mtime_ns + 1))  # whatever the clock's steps are
    assert (tmp_path / "a.bmp").stat().st_size == written.st_size
    assert data_fingerprint(split) != before


def test_a_folder_is_the_same_data_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = files(tmp_path, {"a.png": 8})
    monkeypatch.chdir(tmp_path)
    relative = FileSplit([Path("a.png")], split.labels, VIEW, AugmentSettings())
    assert data_fingerprint(relative) == data_fingerprint(split)
