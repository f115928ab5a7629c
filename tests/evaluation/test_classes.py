"""Classes in the report: counts worked out by hand, hostile names, galleries of the right images."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadBundle
from glancefocus.evaluation.assess import (
    Answers,
    accuracy_by_class,
    answers_of,
    assess,
    confusion,
    examples,
    frequent_confusions,
    worst_mistakes,
)
from glancefocus.evaluation.boxes import draw_rows, sheet_of_views
from glancefocus.evaluation.figures import shortened
from glancefocus.evaluation.records import record_looks
from glancefocus.evaluation.report import Training, class_sections, noted_images, read_training_curves, write_report
from glancefocus.settings import ViewSettings

MakeBundle = Callable[..., Bundle]
GREY: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
VIEW = ViewSettings(fit="whole", height_px=64, width_px=64, **GREY)

# label, answer, confidence, look of seven images; nothing is an eel.
SEEN = [(0, 0, 0.9, 0), (0, 0, 0.8, 1), (0, 1, 0.7, 0), (1, 1, 0.9, 0), (1, 0, 0.95, 1), (1, 0, 0.6, 1), (1, 2, 0.4, 1)]


def answers(classes: tuple[str, ...] = ("cat", "dog", "eel")) -> Answers:
    label, answer, confidence, look = (np.asarray(column) for column in zip(*SEEN, strict=True))
    return Answers(classes, label, answer, confidence, look)


def noise(count: int = 9, *, flip: bool = False) -> MemorySplit:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 64, 64), generator=generator, dtype=torch.uint8)
    return MemorySplit(pixels, torch.arange(count) % 3, VIEW, flip=flip)


def test_confusions_are_counted() -> None:
    assert confusion(answers()).tolist() == [[2, 1, 0], [2, 1, 1], [0, 0, 0]]
    assert frequent_confusions(answers(), 2) == [("dog", "cat", 2), ("cat", "dog", 1)]


def test_the_worst_class_comes_first_and_one_without_images_is_left_out() -> None:
    rows = accuracy_by_class(answers())
    assert [(row.name, row.images, row.right) for row in rows] == [("dog", 4, 1), ("cat", 3, 2)]
    assert rows[0].accuracy == 0.25
    assert 0 < rows[0].low < 0.25 < rows[0].high < 1


def test_mistakes_are_shown_by_confidence_and_examples_by_look() -> None:
    assert worst_mistakes(answers(), 3) == [4, 2, 5]
    assert examples(answers(), 1) == [("Answered at the glance", [0]), ("Answered after 2 looks", [1])]
    assert examples(answers(), 5)[0] == ("Answered at the glance", [0, 3])


def test_answers_follow_the_bundles_thresholds(small_bundle: MakeBundle, tmp_path: Path) -> None:
    for thresholds, look in (((0.0, 0.0, 0.0), 0), ((1.0, 1.0, 0.0), 2)):
        bundle = small_bundle(view={"fit": "whole", **GREY}, thresholds=thresholds)
        record = record_looks(bundle, noise(), tmp_path, source="noise", name="val")
        found = answers_of(bundle, record)
        assert found.look.tolist() == [look] * 9
        assert found.answer.tolist() == record.answer[:, look].tolist()
        np.testing.assert_allclose(found.confidence, record.confidence[:, look])
        assert found.right.tolist() == (record.answer[:, look] == record.label).tolist()


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "$\\frac{1}{0}$", "=1+1", "a\nb", "x" * 300])
def test_no_class_name_becomes_markup(name: str) -> None:
    page = "".join(class_sections(answers((name, "dog", "eel"))))
    assert "<script" not in page
    assert ("&lt;script&gt;" in page) == name.startswith("<script")


def test_long_names_are_cut_beside_figures() -> None:
    assert shortened(["cat", "a very long name of a class"], 10) == ["cat", "a very lo…"]


def test_many_classes_have_a_list_instead_of_a_figure() -> None:
    many = answers(tuple(f"class {number}" for number in range(50)))
    page = "".join(class_sections(many))
    assert "<svg" not in page
    assert "Most frequent confusions" in page
    assert "<svg" in "".join(class_sections(answers()))


def test_drawings_are_pictures_inside_the_page(small_bundle: MakeBundle) -> None:
    bundle = small_bundle(view={"fit": "whole", **GREY})
    drawn = draw_rows(bundle, noise(), [0, 4])
    assert len(drawn) == 2
    assert all(re.match(r"data:image/png;base64,\w", url) for url in drawn)
    assert drawn[0] != drawn[1]


def test_the_sheet_shows_what_augmentation_changes() -> None:
    plain, mirrored = sheet_of_views(noise(), VIEW), sheet_of_views(noise(flip=True), VIEW)
    assert plain is not None
    assert mirrored is not None
    assert plain != mirrored
    clips = MemorySplit(torch.zeros(2, 4, 3, 64, 64, dtype=torch.uint8), torch.tensor([0, 1]), VIEW)
    assert sheet_of_views(clips, VIEW) is None


def test_a_whole_report_has_every_section_and_one_without_pictures_none_of_them(
    small_bundle: MakeBundle, tmp_path: Path
) -> None:
    bundle = small_bundle(view={"fit": "whole", **GREY}, thresholds=(0.4, 0.4, 0.0))
    record = record_looks(bundle, noise(), tmp_path / "looks", source="noise", name="val")
    findings = assess(bundle, record)
    row = {"stage": "aim", "stage_number": 0, "loss": 1.5, "val_accuracy": [0.3, 0.4, 0.5]}
    training = Training([row, {**row, "loss": 1.0}], {"train": 1200, "val": 9}, noise(flip=True))
    write_report(tmp_path / "all", findings, bundle, title="all", record=record, split=noise(), training=training)
    page = (tmp_path / "all" / "report.html").read_text()
    headings = re.findall(r"<h[23]>(.*?)</h[23]>", page)
    assert {"Classes", "Training", "Training images with augmentation"} <= set(headings)
    assert "1,200" in page
    assert "Most confident mistakes" in page  # an untrained network makes some
    rows = list(csv.DictReader((tmp_path / "all" / "classes.csv").read_text().splitlines()))
    assert sum(int(row["images"]) for row in rows) == 9
    write_report(tmp_path / "few", findings, bundle, title="few")
    page = (tmp_path / "few" / "report.html").read_text()
    assert not {"Classes", "Training"} & set(re.findall(r"<h[23]>(.*?)</h[23]>", page))
    assert not (tmp_path / "few" / "classes.csv").exists()


def test_a_journal_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    assert read_training_curves(tmp_path) == []
    good = {"stage": "aim", "stage_number": 1, "loss": 0.5, "val_accuracy": [0.5]}
    lines = [json.dumps(good), '{"stage": "aim", "stage_num', json.dumps({**good, "val_accuracy": [7]}), "[]"]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_training_curves(tmp_path) == [good]


def test_counts_of_images_are_checked() -> None:
    assert noted_images({"images": {"train": 3}}) == {"train": 3}
    assert noted_images({}) == {}
    with pytest.raises(BadBundle, match="notes.images.train"):
        noted_images({"images": {"train": "many"}})
