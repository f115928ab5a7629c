"""The model card: a header that the hub's own reader understands, counts, the baseline and the verdict; nothing breaks out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.sharing import model_card

MakeBundle = Callable[..., Bundle]

NOTES: dict[str, Any] = {
    "data": "/home/anna/photos",
    "images": {"train": 1200, "val": 300},
    "weights": "pretrained",
    "license": "apache-2.0",
    "validation_accuracy_per_look": [0.5, 0.75, 0.875],
    "verdict": {
        "outcome": "worth it",
        "sentence": "Worth it: 3.0 points more than resizing.",
        "images": 300,
        "points": [
            {
                "kind": "backbone",
                "name": "backbone at 64 px",
                "accuracy": 0.81,
                "accuracy_low": 0.75,
                "accuracy_high": 0.86,
                "mean_macs": 9e6,
            },
            {"kind": "glancefocus", "name": "glancefocus", "accuracy": 0.84, "mean_macs": 8.5e6},
        ],
    },
}


def card_of(bundle: Bundle, folder: Path) -> ModelCard:
    bundle.save(folder)
    return ModelCard.load(folder / "README.md")


def test_the_hub_reads_the_header(small_bundle: MakeBundle, tmp_path: Path) -> None:
    card = card_of(small_bundle(notes=NOTES), tmp_path / "bundle")
    header = card.data.to_dict()
    assert header["library_name"] == "glancefocus"
    assert header["pipeline_tag"] == "image-classification"
    assert header["license"] == "apache-2.0"
    assert header["base_model"] == "timm/test_resnet.r160_in1k"
    results = card.data.eval_results
    assert results is not None
    assert [(r.metric_type, r.metric_value, r.dataset_name) for r in results] == [
        ("accuracy", 0.875, "photos"),  # not where they lie on the disk
        ("accuracy", 0.84, "photos"),
    ]
    assert [r.metric_name for r in results] == ["accuracy after 3 looks", "accuracy, stopping above the thresholds"]


def test_a_network_of_clips_is_filed_under_videos(small_bundle: MakeBundle, tmp_path: Path) -> None:
    clips = small_bundle(frames=2, shift_div=4, classifier="cascaded", first_answer="own_head")
    header = card_of(clips, tmp_path / "bundle").data.to_dict()
    assert header["pipeline_tag"] == "video-classification"
    assert "model-index" not in header  # nothing was measured
    assert "base_model" not in header


def test_counts_baseline_and_verdict_are_on_the_page(small_bundle: MakeBundle, tmp_path: Path) -> None:
    page = card_of(small_bundle(notes=NOTES), tmp_path / "bundle").text
    assert "**Images**: 1,200 train, 300 val" in page
    assert "Worth it: 3.0 points more than resizing." in page
    assert "| backbone at 64 px | 81.0 % | 75.0 to 86.0 % | 9.0M |" in page
    assert "| glancefocus | 84.0 % |  | 8.5M |" in page


EVIL = 'x"\n---\nlibrary_name: evil\n# owned\u2028\x85{}[]: & *\ud83d\x07'


@pytest.mark.parametrize(
    "notes",
    [
        {"data": EVIL, "license": EVIL, "weights": EVIL, "validation_accuracy_per_look": [0.5]},
        {"images": {EVIL: 3, "val": True, "test": 10**400, "train": "many"}},
        {"images": 3, "verdict": "none", "validation_accuracy_per_look": 0.5},
        {"verdict": {"sentence": EVIL, "points": [{"name": EVIL, "accuracy": 0.5, "mean_macs": 10**400}]}},
        {"verdict": {"points": [3, {"accuracy": "high"}, {"accuracy": float("nan")}]}},
        {"data": "photos", "validation_accuracy_per_look": [10**400]},
    ],
)
def test_notes_of_any_kind_stay_text(small_bundle: MakeBundle, notes: dict[str, Any]) -> None:
    bundle = small_bundle()
    page = model_card(bundle.settings, bundle.classes, bundle.costs, notes, [])
    page.encode("utf-8")
    card = ModelCard(page)
    assert card.data.library_name == "glancefocus"
    assert not any(line.startswith(("# owned", "library_name: evil")) for line in page.splitlines())
    assert page.count("\n---\n") == 1
