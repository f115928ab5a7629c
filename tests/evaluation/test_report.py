"""The report is one page that needs nothing else: its sections, tables, figures with named axes, and a gallery."""

import base64
import io
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit
from glancefocus.evaluation import report
from glancefocus.evaluation.boxes import LookDrawn, looks_taken
from glancefocus.evaluation.every_look import compare
from glancefocus.evaluation.figures import aims_figure, as_svg, curve_figure, exits_figure, training_figure
from glancefocus.evaluation.report import gallery_of, write_report
from glancefocus.outcome import Outcome
from glancefocus.settings import ViewSettings

CURVE = [
    {"mean_macs": 2e6, "accuracy": 0.7, "thresholds": [0.5, 0.5, 0.0]},
    {"mean_macs": 1e6, "accuracy": 0.5, "thresholds": [0.0, 0.0, 0.0]},
]
METRICS: list[dict[str, Any]] = [
    {"stage": "backbone", "stage_number": 1, "epoch": 1, "val_accuracy": [0.5]},
    {"stage": "aim", "stage_number": 2, "epoch": 1, "val_accuracy": [0.4, 0.5, 0.6]},
    {"stage": "aim", "stage_number": 2, "epoch": 2, "val_accuracy": [0.4, 0.6, 0.7]},
]
VOID = {"meta", "img", "br", "link", "hr", "path", "use"}


class Page(HTMLParser):
    """Reads a page, and sees that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.cells: list[str] = []
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
            self.cells.append(data)
        self.text += data


@pytest.fixture
def split() -> MemorySplit:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (12, 3, 64, 64), generator=generator, dtype=torch.uint8)
    boxes = torch.tensor([[20.0, 20, 40, 40]]).repeat(12, 1)
    view = ViewSettings(fit="whole", height_px=64, width_px=64)
    return MemorySplit(images, torch.arange(12) % 3, view, boxes=boxes)


def test_a_report_has_its_sections_and_needs_nothing_else(
    small_bundle: Callable[..., Bundle], split: MemorySplit, tmp_path: Path
) -> None:
    bundle = small_bundle(thresholds=(0.5, 0.5, 0.0), curve=CURVE)
    comparison = compare(bundle, split, backbone_accuracy=0.25)
    gallery = gallery_of(bundle, split, bundle.exit_rule())
    file = tmp_path / "report.html"
    write_report(
        file,
        title="cats <& dogs>",
        comparison=comparison,
        gallery=gallery,
        metrics=METRICS,
        note="12 images",
    )
    page = Page(file.read_text(encoding="utf-8"))
    assert page.open == []
    assert page.headings[:2] == ["cats <& dogs>", "Accuracy after each look"]
    assert page.headings[-1] == "Training"
    assert page.headings[2:-1] == [heading for heading, _ in gallery]
    assert page.figures == 4
    assert {"glance", "look 2", "look 3", "learnt aims", "random aims", "centre, then corners"} <= set(page.cells)
    assert "patches that hold the whole sign" in page.cells
    assert "The plain backbone on the whole image: 25.0 %" in page.text
    assert "12 images" in page.text
    assert all(link.startswith(("data:", "#")) for link in page.links)  # nothing is fetched
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_gallery_goes_from_the_glance_to_what_went_wrong(
    small_bundle: Callable[..., Bundle], split: MemorySplit
) -> None:
    bundle = small_bundle()
    outcome = bundle.predict_images(list(next(iter(split.batches([range(12)])))[0]), bundle.exit_rule(looks=3))
    wrong = int((outcome.answer != split.labels).sum())
    gallery = dict(gallery_of(bundle, split, bundle.exit_rule(looks=3), each=3))
    assert list(gallery) == [
        *(["answered after 3 looks"] if wrong < 12 else []),
        *(["answered wrongly"] if wrong else []),
    ]
    assert len(gallery["answered wrongly"]) == min(wrong, 3)
    for pictures in gallery.values():
        for url in pictures:
            kind, _, content = url.partition(",")
            assert kind == "data:image/png;base64"
            image = Image.open(io.BytesIO(base64.b64decode(content)))
            assert min(image.size) >= 64


def test_large_pictures_do_not_make_a_page_of_many_megabytes(
    small_bundle: Callable[..., Bundle], split: MemorySplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "LARGE_PIXELS", 1000)
    bundle = small_bundle()
    gallery = gallery_of(bundle, split, bundle.exit_rule(looks=3), each=3)
    for url in (url for _, pictures in gallery for url in pictures):
        kind, _, content = url.partition(",")
        assert kind == "data:image/jpeg;base64"
        assert Image.open(io.BytesIO(base64.b64decode(content))).format == "JPEG"


def test_the_gallery_names_answers_and_colours_them_by_right_and_wrong(
    small_bundle: Callable[..., Bundle], split: MemorySplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, drawn = small_bundle(), []

    def noted(outcome: Outcome, row: int, boxes: Sequence[Any], truth: str) -> list[LookDrawn]:
        drawn.append(looks_taken(outcome, row, boxes, truth))
        return drawn[-1]

    monkeypatch.setattr("glancefocus.evaluation.report.looks_taken", noted)
    gallery = gallery_of(bundle, split, bundle.exit_rule(looks=3), each=12)
    headings = [heading for heading, pictures in gallery for _ in pictures]
    assert len(headings) == 12
    for heading, looks in zip(headings, drawn, strict=True):
        assert {look.label for look in looks} <= set(bundle.classes)
        assert looks[-1].right == (heading != "answered wrongly")


def test_the_chosen_point_says_how_right_those_are_that_leave_at_each_look(
    small_bundle: Callable[..., Bundle], split: MemorySplit
) -> None:
    bundle = small_bundle(thresholds=(0.0, 0.5, 0.0))
    comparison = compare(bundle, split, None)
    point = comparison.chosen
    assert point["exits_per_look"] == [12, 0, 0]  # every confidence is above 0
    assert point["accuracy_of_exits"] == [pytest.approx(comparison.accuracy_per_look[0], abs=1e-6), None, None]
    assert point["mean_macs"] == bundle.costs.macs_after_look[0]


FIGURES: dict[str, tuple[Callable[[], Figure], str, str]] = {
    "curve": (
        lambda: curve_figure(CURVE, (9e6, 0.8), [(1e6, 0.5), (3e6, 0.7)]),
        "multiply-adds per image (millions, log scale)",
        "accuracy (%)",
    ),
    "curve without a backbone and points": (
        lambda: curve_figure([], None, [(1e6, 0.5)]),
        "multiply-adds per image (millions)",
        "accuracy (%)",
    ),
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
    assert [text.get_text() for text in axes.texts] == ["100 % right", "", "0 % right"]
