"""The report of findings: a page that needs no other file, the same numbers as JSON and CSV, and every figure as a file."""

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadRun
from glancefocus.evaluation.assess import Findings
from glancefocus.evaluation.figures import (
    accuracy_per_look_figure,
    as_svg,
    draw_findings,
    exit_scores_figure,
    expected_looks,
    expected_looks_figure,
    patch_sizes_figure,
    patches_per_size,
    reliability_figure,
    trade_off_figure,
)
from glancefocus.evaluation.report import write_report
from glancefocus.evaluation.tables import (
    budget_table,
    evenly,
    flat,
    gallery_sections,
    percent,
    point_within,
    ranks,
    summary_tables,
)
from glancefocus.evaluation.verdict import macs_words
from glancefocus.exits.curve import Point

MakeBundle = Callable[..., Bundle]
PICTURE = "data:image/png;base64,AAAA"
EVERY_FIGURE = {
    "accuracy_over_macs",
    "accuracy_over_ms",
    "accuracy_per_look",
    "exits",
    "expected_looks",
    "patch_sizes",
    "exit_scores",
    "reliability",
}


def point(budget_millions: float, accuracy: float, exits: list[int], **more: Any) -> Point:
    return {
        "budget_macs": budget_millions * 1e6,
        "mean_macs": budget_millions * 0.95e6,
        "accuracy": accuracy,
        "accuracy_low": accuracy - 0.02,
        "accuracy_high": accuracy + 0.01,
        "thresholds": [0.8, 0.7, 0.0],
        "exits_per_look": exits,
        **more,
    }


def one_size() -> Findings:
    """Ten images, three looks, patches of 48 px; time was not measured."""
    curve = [point(10, 0.5, [10, 0, 0]), point(20, 0.7, [5, 3, 2]), point(30, 0.8, [0, 0, 10])]
    return Findings(
        data="signs, test",
        chosen_on="signs, validation",
        images=10,
        score="confidence",
        views=["48"],
        accuracy_after_look=[0.5, 0.6, 0.8],
        macs_after_look=[9_500_000, 19_000_000, 28_500_000],
        backbone_macs=57_000_000,
        curve=curve,
        chosen={**curve[1], "accuracy_of_exits": [0.8, 2 / 3, 0.5]},
        scores={"confidence": curve, "random": [{**each, "accuracy": each["accuracy"] - 0.1} for each in curve]},
        reliability=[
            [{"confidence": 0.0, "accuracy": 0.0, "count": 0}, {"confidence": 0.75, "accuracy": 0.5, "count": 10}],
            [{"confidence": 0.25, "accuracy": 0.0, "count": 2}, {"confidence": 0.85, "accuracy": 0.75, "count": 8}],
            [{"confidence": 0.45, "accuracy": 0.5, "count": 2}, {"confidence": 0.95, "accuracy": 0.875, "count": 8}],
        ],
        calibration_error=[0.25, 0.13, 0.07],
    )


def two_sizes() -> Findings:
    """The same with patches of 32 and 48 px, and milliseconds."""
    plain = one_size()
    patches = [[[0, 0], [0, 0]], [[3, 2], [1, 1]], [[0, 10], [0, 10]]]
    thresholds = [[0.4, 0.8], [0.3, 0.7], [0.0, 0.0]]
    curve = [
        {**each, "mean_ms": each["mean_macs"] / 1e7, "thresholds": thresholds, "patches_per_look_and_size": counts}
        for each, counts in zip(plain.curve, patches, strict=True)
    ]
    small = [point(10, 0.52, [10, 0, 0], mean_ms=0.9), point(20, 0.65, [0, 0, 10], mean_ms=1.8)]
    large = [point(10, 0.48, [10, 0, 0], mean_ms=0.9), point(20, 0.66, [5, 3, 2], mean_ms=1.9)]
    return replace(
        plain,
        views=["32", "48"],
        curve=curve,
        chosen={**curve[1], "accuracy_of_exits": [0.8, None, 0.5]},
        ms_after_look=[1.0, 1.9, 2.8],
        device="one <core> & more",
        fixed_size_curves={"32": small, "48": [*large, point(30, 0.79, [0, 0, 10], mean_ms=2.8)]},
    )


class Page(HTMLParser):
    """The text, cells, headings and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self.figures = 0
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.figures += tag == "svg"
        self.links += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.open.pop() != tag:  # <meta> and <img> are never closed
            pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        self.text += data


@pytest.fixture(scope="module")
def folder(small_bundle: MakeBundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sizes, milliseconds, scores, calibration."""
    folder = tmp_path_factory.mktemp("evaluation") / "made" / "for us"
    write_report(folder, two_sizes(), small_bundle(), title="cats <& dogs>")
    return folder


def lines_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_the_page_needs_nothing_from_outside(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.figures == 8
    assert all(link.startswith(("data:", "#")) for link in page.links)
    addresses = re.findall(r'[^\s<>]*https?://[^\s"<>]*', text)
    assert {address.partition("=")[0] for address in addresses} == {"xmlns", "xmlns:xlink"}
    assert not re.search(r"<script|<link|<iframe|@import|url\((?!#)", text)


def test_what_comes_from_outside_is_text_and_never_markup(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.headings[0] == "cats <& dogs>"
    assert "measured on one <core> & more." in page.text
    assert "<core>" not in text
    (gallery,) = gallery_sections([("seen <twice>", [PICTURE, PICTURE])])
    assert Page(gallery).headings == ["seen <twice>"]
    assert Page(gallery).links == [PICTURE, PICTURE]


def test_the_page_states_what_was_measured_and_what_the_thresholds_achieve(
    small_bundle: MakeBundle, tmp_path: Path
) -> None:
    write_report(tmp_path, one_size(), small_bundle(), title="ten")
    text = Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "Measured on signs, test: 10 images. Thresholds were chosen on signs, validation." in text
    # 57 million / 19 million = 3; (5 x 1 + 3 x 2 + 2 x 3) / 10 = 1.7.
    assert (
        "With the bundle's own thresholds on the confidence (0.800 at the glance, 0.700 at look 2), 70.0 % of the answers are "
        "correct (95 % interval 68.0 to 71.0 %), for 19.0M multiply-adds on average, 3.0 times fewer than the backbone on the "
        "whole image (57.0M), with 1.70 looks on average."
    ) in text


def test_every_figure_is_a_whole_svg_and_a_whole_png(folder: Path) -> None:
    files = {path.name for path in (folder / "figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in EVERY_FIGURE for kind in ("svg", "png")}
    for name in EVERY_FIGURE:
        root = ElementTree.parse(folder / "figures" / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        with Image.open(folder / "figures" / f"{name}.png") as image:
            image.load()
            assert image.format == "PNG"
            assert image.width == 810  # 5.4 inches of 150 dots


def test_the_json_is_the_findings(folder: Path) -> None:
    plain = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
    assert Findings(**plain) == two_sizes()


def test_the_rows_of_the_tables_are_the_points_of_the_findings(folder: Path) -> None:
    findings = two_sizes()
    curve = lines_of(folder / "curve.csv")
    assert [float(line["mean_macs"]) for line in curve] == [each["mean_macs"] for each in findings.curve]
    assert {name: float(value) for name, value in curve[1].items()} == {
        "budget_macs": 20e6,
        "mean_macs": findings.curve[1]["mean_macs"],
        "mean_ms": findings.curve[1]["mean_ms"],
        "accuracy": 0.7,
        "accuracy_low": 0.7 - 0.02,
        "accuracy_high": 0.7 + 0.01,
        "expected_looks": 1.7,
        "leave_after_look_1": 5,
        "leave_after_look_2": 3,
        "leave_after_look_3": 2,
        "threshold_look_1_32px": 0.4,
        "threshold_look_1_48px": 0.8,
        "threshold_look_2_32px": 0.3,
        "threshold_look_2_48px": 0.7,
        "threshold_look_3_32px": 0,
        "threshold_look_3_48px": 0,
        "patches_look_2_32px": 3,
        "patches_look_2_48px": 2,
        "patches_look_3_32px": 1,
        "patches_look_3_48px": 1,
    }
    scores = lines_of(folder / "scores.csv")
    assert [(line["score"], float(line["accuracy"])) for line in scores] == [
        (score, each["accuracy"]) for score, points in findings.scores.items() for each in points
    ]
    sizes = lines_of(folder / "fixed_sizes.csv")
    assert [(line["view"], float(line["accuracy"])) for line in sizes] == [
        ("32", 0.52), ("32", 0.65), ("48", 0.48), ("48", 0.66), ("48", 0.79),
    ]  # fmt: skip
    bins = lines_of(folder / "reliability.csv")
    assert len(bins) == 6
    assert {name: float(value) for name, value in bins[3].items()} == {
        "look": 2, "confidence": 0.85, "accuracy": 0.75, "count": 8,
    }  # fmt: skip


def test_a_threshold_of_one_size_is_one_column() -> None:
    line = flat(point(10, 0.5, [10, 0, 0], thresholds=(0.8, 0.7, 0.0)), ["48"])
    assert "thresholds" not in line
    assert {name: value for name, value in line.items() if name.startswith("threshold")} == {
        "threshold_look_1": 0.8,
        "threshold_look_2": 0.7,
        "threshold_look_3": 0.0,
    }


def test_one_size_and_no_time_leave_their_figures_out_and_take_old_ones_away(
    small_bundle: MakeBundle, tmp_path: Path
) -> None:
    (tmp_path / "figures").mkdir()
    stale = [tmp_path / "fixed_sizes.csv", tmp_path / "figures" / "patch_sizes.svg"]
    foreign = tmp_path / "figures" / "mine.svg"
    for file in (*stale, foreign):
        file.write_text("of another evaluation")
    write_report(tmp_path, one_size(), small_bundle(), title="ten")
    left = EVERY_FIGURE - {"patch_sizes", "accuracy_over_ms"}
    assert {path.name for path in (tmp_path / "figures").glob("*.png")} == {f"{name}.png" for name in left}
    assert not any(file.exists() for file in stale)
    assert foreign.exists()
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "milliseconds" not in page.text
    assert "sizes chosen" not in page.text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "curve.csv", "figures", "findings.json", "reliability.csv", "report.html", "scores.csv",
    ]  # fmt: skip


def test_views_that_are_not_patches_at_full_resolution_are_named(small_bundle: MakeBundle, tmp_path: Path) -> None:
    sizes = two_sizes()
    small, large = sizes.fixed_size_curves.values()
    findings = replace(sizes, views=["32", "whole@48"], fixed_size_curves={"32": small, "whole@48": large})
    write_report(tmp_path, findings, small_bundle(focus=["32", "whole@48"]), title="ten")
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "a glance at 32 px, views 32, whole@48, up to 3 looks." in page.text
    assert "Fixed views, and views chosen per look" in page.text
    rows = [row for row in page.rows if row]
    assert [row[0] for row in rows if row[0].endswith(("(fixed)", " chosen"))] == [
        "32 px (fixed)", "whole@48 (fixed)", "views chosen",
    ]  # fmt: skip
    assert ["threshold for whole@48", "0.800", "0.700", ""] in rows
    assert "patch sizes" not in page.text
    lines = draw_findings(findings)["accuracy_over_macs"].axes[0].get_legend_handles_labels()[1]
    assert {"early exit, views chosen", "whole@48 only", "32 px only"} <= set(lines)
    assert "patches_look_2_whole@48" in lines_of(tmp_path / "curve.csv")[0]


def test_a_folder_that_cannot_be_made_is_a_sentence(small_bundle: MakeBundle, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(BadRun, match="could not be written .* Choose another folder"):
        write_report(
            tmp_path / "taken", replace(one_size(), curve=[], scores={}, reliability=[]), small_bundle(), title="ten"
        )


def test_what_is_not_a_number_is_refused_before_anything_is_written(small_bundle: MakeBundle, tmp_path: Path) -> None:
    broken = replace(one_size(), accuracy_after_look=[0.5, float("nan"), 0.8])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_report(tmp_path / "report", broken, small_bundle(), title="ten")
    assert not (tmp_path / "report").exists()


def test_expected_looks_weigh_each_look_by_the_images_that_stop_there() -> None:
    assert expected_looks(point(20, 0.7, [5, 3, 2])) == 1.7
    assert expected_looks(point(20, 0.7, [0, 0, 4])) == 3.0
    (axes,) = expected_looks_figure(one_size().curve, one_size().chosen).axes
    curve, star = axes.lines
    assert curve.get_xydata().tolist() == [[1.0, 50.0], [1.7, 70.0], [3.0, 80.0]]
    assert star.get_xydata().tolist() == [[1.7, 70.0]]


def test_the_best_and_the_second_best_of_a_column_are_found_among_those_that_are_there() -> None:
    assert ranks([0.5, 0.7, None, 0.6]) == [None, 1, None, 2]
    assert ranks([0.7, 0.7, 0.6]) == [1, 1, 2]
    assert ranks([None, None]) == [None, None]


def test_a_budget_is_answered_by_the_point_within_it_and_not_past_the_end_of_a_curve() -> None:
    curve = [point(10, 0.5, [10, 0, 0]), point(20, 0.7, [5, 3, 2])]
    assert point_within(curve, 20e6) is curve[1]
    assert point_within(curve, 20e6 * (1 + 1e-12)) is curve[1]
    assert point_within(curve, 19e6) is curve[0]
    assert point_within(curve, 21e6) is None
    assert point_within(curve, 9e6) is None
    assert point_within([], 9e6) is None


def test_what_reads_the_same_is_marked_the_same() -> None:
    curves = {
        "one": [point(10, 0.7001, [1])],
        "two": [point(10, 0.7004, [1])],  # both read 70.0 %
        "three": [point(10, 0.65, [1])],
        "four": [point(5, 0.9, [1])],
    }
    text = budget_table(curves, [10e6], 10, {1: "strong", 2: "u"})
    assert re.findall(r"<td>(.*?)</td>", text) == [
        "one", "<strong>70.0 %</strong>", "two", "<strong>70.0 %</strong>", "three", "<u>65.0 %</u>", "four", "--",
    ]  # fmt: skip


def test_the_page_holds_the_tables_of_the_paper(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    rows = [row for row in Page(text).rows if row]
    sizes = rows.index(["32 px (fixed)", "52.0 %", "65.0 %", "--"])
    assert rows[sizes - 1 : sizes + 3] == [
        ["", "10.0M", "20.0M", "30.0M"],
        ["32 px (fixed)", "52.0 %", "65.0 %", "--"],
        ["48 px (fixed)", "48.0 %", "66.0 %", "79.0 %"],
        ["sizes chosen", "50.0 %", "70.0 %", "80.0 %"],
    ]
    assert "<td><u>50.0 %</u></td><td><strong>70.0 %</strong></td><td><strong>80.0 %</strong></td>" in text
    scores = rows.index(["random", "40.0 %", "60.0 %", "70.0 %"])  # random comes first, as in the paper
    assert rows[scores + 1] == ["confidence", "50.0 %", "70.0 %", "80.0 %"]
    assert ["images that stop here", "50.0 %", "30.0 %", "20.0 %"] in rows
    assert ["of these correct", "80.0 %", "", "50.0 %"] in rows
    assert ["threshold for 48 px", "0.800", "0.700", ""] in rows


def test_budgets_are_chosen_evenly_with_both_ends() -> None:
    assert evenly(range(9), 5) == [0, 2, 4, 6, 8]
    assert evenly(range(40), 2) == [0, 39]
    assert evenly([3, 4], 5) == [3, 4]


def test_numbers_are_written_with_as_many_digits_as_they_are_worth() -> None:
    assert [macs_words(macs) for macs in (9_500_000, 31_240_000, 1_250_000_000)] == ["9.50M", "31.2M", "1.25G"]
    assert percent(0.87654, 1000) == "87.7 %"
    assert percent(0.87654, 1001) == "87.65 %"


def test_patches_of_a_size_are_counted_over_all_focus_looks_as_shares_of_all() -> None:
    curve = two_sizes().curve
    assert [patches_per_size(each) for each in curve] == [[0, 0], [4, 3], [0, 20]]
    (axes,) = patch_sizes_figure(curve, ["32", "48"]).axes
    lower, upper = axes.collections
    # No image has a focus look at the first point, so it has no share; 4 of 7 patches at the second are small, none at the third.
    assert {round(float(y), 4) for y in lower.get_paths()[0].vertices[:, 1]} == {0.0, 57.1429}
    assert {round(float(y), 4) for y in upper.get_paths()[0].vertices[:, 1]} == {0.0, 57.1429, 100.0}
    assert lower.get_hatch() != upper.get_hatch()


def test_empty_bins_are_not_drawn() -> None:
    findings = one_size()
    axes, counts = reliability_figure(findings.reliability, findings.calibration_error).axes
    assert (counts.get_xlabel(), counts.get_ylabel()) == ("confidence (%)", "images")
    assert sum(bar.get_height() for bar in counts.patches[: len(findings.reliability[0])]) == sum(
        each["count"] for each in findings.reliability[0]
    )
    diagonal, glance, *_ = axes.lines
    assert diagonal.get_xydata().tolist() == [[0.0, 0.0], [100.0, 100.0]]
    assert glance.get_xydata().tolist() == [[75.0, 50.0]]
    assert glance.get_label() == "glance (error 25.0 %)"


def test_the_trade_off_shows_the_interval_the_looks_and_what_the_backbone_costs() -> None:
    (axes,) = trade_off_figure(two_sizes(), "macs").axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["early exit, sizes chosen"].get_xydata().tolist() == [
        [pytest.approx(9.5), 50.0], [pytest.approx(19.0), 70.0], [pytest.approx(28.5), 80.0],
    ]  # fmt: skip
    assert lines["fixed number of looks"].get_ydata().tolist() == [50.0, 60.0, 80.0]
    assert list(lines["backbone's cost, whole image"].get_xdata()) == [57.0, 57.0]
    assert {"32 px only", "48 px only", "this bundle's thresholds"} <= set(lines)
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(48.0), pytest.approx(81.0))
    (axes,) = trade_off_figure(two_sizes(), "ms").axes
    assert not any("backbone" in line.get_label() for line in axes.lines)


@pytest.mark.parametrize(("backbone_macs", "scale"), [(38_000_000, "linear"), (38_100_000, "log")])
def test_costs_are_logarithmic_where_they_are_more_than_four_times_apart(backbone_macs: int, scale: str) -> None:
    (axes,) = trade_off_figure(replace(one_size(), backbone_macs=backbone_macs), "macs").axes
    assert axes.get_xscale() == scale  # 4 times 9.5 million is 38 million
    assert axes.get_xlabel().endswith("log scale)") == (scale == "log")


def test_lines_differ_in_more_than_their_colours() -> None:
    figures: list[Figure] = [
        trade_off_figure(two_sizes(), "macs"),
        exit_scores_figure({name: one_size().curve for name in ("random", "entropy", "confidence", "value")}),
        reliability_figure(one_size().reliability, []),
    ]
    for figure in figures:
        looks = [(line.get_marker(), line.get_linestyle()) for line in figure.axes[0].lines]
        assert len(set(looks)) == len(looks)


def test_every_figure_names_its_axes_and_is_the_same_every_time() -> None:
    names = {name: figure.axes[0] for name, figure in draw_findings(two_sizes()).items()}
    assert set(names) == EVERY_FIGURE
    macs = "multiply-adds per image (millions, log scale)"
    assert {name: (axes.get_xlabel(), axes.get_ylabel()) for name, axes in names.items()} == {
        "accuracy_over_macs": (macs, "accuracy (%)"),
        "accuracy_over_ms": ("time per image (ms)", "accuracy (%)"),
        "accuracy_per_look": ("", "accuracy (%)"),
        "exits": ("", "images that stop here (%)"),
        "expected_looks": ("expected number of looks E(t)", "accuracy (%)"),
        "patch_sizes": ("multiply-adds per image (millions)", "share of the focus looks (%)"),
        "exit_scores": ("multiply-adds per image (millions)", "accuracy (%)"),
        "reliability": ("", "accuracy (%)"),  # the counts below it name the shared axis
    }
    assert as_svg(accuracy_per_look_figure([0.5, 0.6])) == as_svg(accuracy_per_look_figure([0.5, 0.6]))


def test_the_terminal_shows_every_look_and_some_budgets() -> None:
    findings = replace(two_sizes(), data="signs [test]")
    console = Console(width=120, file=io.StringIO(), record=True)
    for table in summary_tables(findings):
        console.print(table)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]
    assert ["accuracy", "50.0 %", "60.0 %", "80.0 %"] in rows
    assert ["milliseconds", "1.00", "1.90", "2.80"] in rows
    assert ["20.0M", "19.0M", "1.90", "70.0 %", "68.0 to 71.0 %", "50 %", "30 %", "20 %"] in rows
    assert summary_tables(findings)[0].title == "signs \\[test]: 10 images"
    assert len(summary_tables(replace(findings, curve=[]))) == 1
