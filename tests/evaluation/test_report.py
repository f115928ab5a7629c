"""One report for all verbs: sections for a comparison of aims, drawings, and figures with named axes."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit
from glancefocus.evaluation import boxes
from glancefocus.evaluation.assess import answers_of, assess
from glancefocus.evaluation.boxes import LookDrawn, draw_rows, looks_taken
from glancefocus.evaluation.every_look import AimsCheck, compare
from glancefocus.evaluation.figures import Epoch, aims_figure, as_svg, exits_figure, training_figure
from glancefocus.evaluation.records import record_looks
from glancefocus.evaluation.report import Training, write_report
from glancefocus.exits.curve import Point
from glancefocus.outcome import Outcome
from glancefocus.settings import ViewSettings

CURVE: list[Point] = [
    {"mean_macs": 2e6, "accuracy": 0.7, "thresholds": [0.5, 0.5, 0.0]},
    {"mean_macs": 1e6, "accuracy": 0.5, "thresholds": [0.0, 0.0, 0.0]},
]
METRICS: list[Epoch] = [
    {"stage": "backbone", "stage_number": 1, "val_accuracy": [0.5]},
    {"stage": "aim", "stage_number": 2, "val_accuracy": [0.4, 0.5, 0.6]},
    {"stage": "aim", "stage_number": 2, "val_accuracy": [0.4, 0.6, 0.7]},
]
VOID = {"meta", "img", "br", "link", "hr", "path", "use"}


class Page(HTMLParser):
    """Reads a page, and sees that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.pictures: list[str] = []
        self.links: list[str] = []
        self.figures = 0
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        if tag == "img":
            self.pictures.append(named["src"] or "")
        if tag == "svg":
            self.figures += 1
        self.links += [named[name] or "" for name in ("src", "href") if named.get(name)]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        self.text += data


@pytest.fixture
def split() -> MemorySplit:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (12, 3, 64, 64), generator=generator, dtype=torch.uint8)
    boxes = torch.tensor([[20.0, 20, 40, 40]]).repeat(12, 1)
    view = ViewSettings(fit="whole", height_px=64, width_px=64)
    return MemorySplit(images, torch.arange(12) % 3, view, boxes=boxes)


def test_a_report_with_a_comparison_has_its_sections_and_needs_no_other_file(
    small_bundle: Callable[..., Bundle], split: MemorySplit, tmp_path: Path
) -> None:
    bundle = small_bundle(thresholds=(0.5, 0.5, 0.0), curve=CURVE)
    comparison = compare(bundle, split, backbone_accuracy=0.25)
    record = record_looks(bundle, split, tmp_path / "looks", source="noise", name="test")
    aims = AimsCheck(better=False, sentence="Aims are <no> better.", accuracy_learnt=(0.0,))  # the comparison is newer
    write_report(
        tmp_path / "made",
        replace(assess(bundle, record), aims=aims),
        bundle,
        title="cats <& dogs>",
        record=record,
        split=split,
        training=Training(METRICS, {"train": 7}),
        comparison=comparison,
    )
    page = Page((tmp_path / "made" / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert page.headings[:5] == ["cats <& dogs>", "Where it looks", "Accuracy for a budget", "Looks", "When it stops"]
    assert page.headings[5] == "Classes"
    assert page.headings[-1] == "Training"
    looks = [f"{100 * share:.1f} %" for share in comparison.accuracy_per_look]
    assert ["learnt aims", *looks] in page.rows
    assert {"random aims", "centre, then corners"} <= {row[0] for row in page.rows}
    hits = comparison.hit_rate_per_focus
    assert hits is not None
    assert ["focus looks with the whole object", "", *(f"{100 * share:.1f} %" for share in hits)] in page.rows
    assert "The plain backbone on the whole image: 25.0 %" in page.text
    assert "Aims are <no> better." in page.text
    assert "12 images of noise, test" in page.text
    assert all(link.startswith(("data:", "#")) for link in page.links)  # nothing is fetched
    assert (tmp_path / "made" / "figures" / "aims.svg").is_file()


def test_aims_that_were_measured_in_training_are_shown_where_there_is_no_newer_comparison(
    small_bundle: Callable[..., Bundle], split: MemorySplit, tmp_path: Path
) -> None:
    bundle = small_bundle(thresholds=(0.5, 0.5, 0.0))
    record = record_looks(bundle, split, tmp_path / "looks", source="noise", name="test")
    aims = AimsCheck(
        better=True,
        sentence="Aims are better.",
        accuracy_learnt=(0.5, 0.75, 0.875),
        accuracy_random=(0.5, 0.5, 0.625),
        accuracy_centre=(0.5, 0.625, 0.625),
    )
    write_report(tmp_path / "made", replace(assess(bundle, record), aims=aims), bundle, title="a")
    page = Page((tmp_path / "made" / "report.html").read_text(encoding="utf-8"))
    assert ["learnt aims", "50.0 %", "75.0 %", "87.5 %"] in page.rows
    assert "on validation images" in page.text
    write_report(tmp_path / "made", assess(bundle, record), bundle, title="a")
    page = Page((tmp_path / "made" / "report.html").read_text(encoding="utf-8"))
    assert "Where it looks" not in page.headings
    assert not (tmp_path / "made" / "figures" / "aims.svg").exists()  # of the report before


def test_large_pictures_do_not_make_a_page_of_many_megabytes(
    small_bundle: Callable[..., Bundle], split: MemorySplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = small_bundle()
    for limit, form in ((10**9, "PNG"), (1000, "JPEG")):
        monkeypatch.setattr(boxes, "_LARGE_PIXELS", limit)
        for url in draw_rows(bundle, split, [0, 5]):
            kind, _, content = url.partition(",")
            assert kind == f"data:image/{form.lower()};base64"
            image = Image.open(io.BytesIO(base64.b64decode(content)))
            assert image.format == form
            assert min(image.size) >= 64


def test_drawings_name_answers_and_colour_them_by_right_and_wrong(
    small_bundle: Callable[..., Bundle], split: MemorySplit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle, drawn = small_bundle(), []

    def recorded(outcome: Outcome, row: int, boxes: Sequence[Any], truth: str, first: Any) -> list[LookDrawn]:
        drawn.append(looks_taken(outcome, row, boxes, truth, first))
        return drawn[-1]

    monkeypatch.setattr(boxes, "looks_taken", recorded)
    draw_rows(bundle, split, range(12))
    answers = answers_of(bundle, record_looks(bundle, split, tmp_path, source="noise", name="test"))
    assert len(drawn) == 12
    for looks, right in zip(drawn, answers.right.tolist(), strict=True):
        assert {look.label for look in looks} <= set(bundle.classes)
        assert looks[-1].right == right
        assert len(looks) == 3  # without thresholds every look is taken


def test_the_chosen_point_has_the_accuracy_of_the_images_that_leave_at_each_look(
    small_bundle: Callable[..., Bundle], split: MemorySplit
) -> None:
    bundle = small_bundle(thresholds=(0.0, 0.5, 0.0))
    comparison = compare(bundle, split, None)
    point = comparison.chosen
    assert point["exits_per_look"] == [12, 0, 0]  # every confidence is above 0
    assert point["accuracy_of_exits"] == [pytest.approx(comparison.accuracy_per_look[0], abs=1e-6), None, None]
    assert point["mean_macs"] == bundle.costs.macs_after_look[0]


FIGURES: dict[str, tuple[Callable[[], Figure], str, str]] = {
    "aims": (lambda: aims_figure({"learnt": [0.5, 0.6]}), "looks (the first is the glance)", "accuracy (%)"),
    "exits": (lambda: exits_figure([3, 0, 1], [1.0, None, 0.0]), "", "images that stop here (%)"),
    "training": (lambda: training_figure(METRICS), "epoch", "validation accuracy (%)"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_names_its_axes_and_is_the_same_every_time(name: str) -> None:
    make, across, up = FIGURES[name]
    figure = make()
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == (across, up)
    text = as_svg(figure)
    assert text.startswith("<svg")
    assert text.rstrip().endswith("</svg>")
    assert text == as_svg(make())


def test_the_bars_of_exits_are_shares_of_all_images() -> None:
    (axes,) = exits_figure([3, 0, 1], [1.0, None, 0.0]).axes
    assert [bar.get_height() for bar in axes.patches] == [75.0, 0.0, 25.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["glance", "look 2", "look 3"]
    assert [text.get_text() for text in axes.texts] == ["100 % correct", "", "0 % correct"]
