"""The page in a real browser: upload, looks, slider, error, charts, keyboard; at the width of a desktop and of a phone."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glancefocus.bundle.bundle import Bundle

pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright: pip install playwright")
from playwright.sync_api import Page, expect, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 740}


@pytest.fixture(scope="module")
def open_page(running: Any) -> Iterator[Callable[..., Page]]:
    """Opens the page in a browser that is installed on this machine."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("there is no browser: install one with `apt-get install chromium` (see docs/contributing.md)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )

        def opened(size: dict[str, int] = DESKTOP, dark: bool = False) -> Page:
            page = browser.new_page(viewport=size, color_scheme="dark" if dark else "light", reduced_motion="reduce")  # type: ignore[arg-type]
            page.problems = []  # type: ignore[attr-defined]
            page.on("pageerror", lambda error: page.problems.append(str(error)))  # type: ignore[attr-defined]
            page.on("requestfailed", lambda request: page.problems.append(request.url))  # type: ignore[attr-defined]
            page.on("request", lambda request: _refuse_others(page, request.url, running.url))
            page.goto(running.url)
            return page

        yield opened
        browser.close()


def _refuse_others(page: Any, url: str, own: str) -> None:
    if not url.startswith((own, "data:", "blob:")):
        page.problems.append(f"the page asks another server: {url}")


@pytest.fixture
def photo(tmp_path: Path, png: Callable[..., bytes]) -> Path:
    file = tmp_path / "photo.png"
    file.write_bytes(png(5, (200, 150)))
    return file


def test_a_picture_shows_its_answer_looks_and_boxes(
    open_page: Callable[..., Page], running: Any, photo: Path, curved_bundle: Bundle
) -> None:
    page = open_page()
    page.set_input_files("#file", photo)
    (answer,) = running.predict(content=photo.read_bytes()).json()
    expect(page.locator("#label")).to_have_text(f"{answer['label']}, {100 * answer['confidence']:.1f}\xa0%")
    expect(page.locator("#looks li")).to_have_count(answer["looks"])
    expect(page.locator("#looks li").first).to_contain_text("Glance at the whole picture")
    expect(page.locator("#boxes rect")).to_have_count(answer["looks"] - 1)
    left, top, right, bottom = answer["boxes"][0]
    box = page.locator("#boxes rect").first
    assert [float(box.get_attribute(name) or -1) for name in ("x", "y", "width", "height")] == [
        *(left, top, right - left, bottom - top)
    ]
    expect(page.locator("#image")).to_have_attribute("alt", "photo.png")
    assert page.problems == []  # type: ignore[attr-defined]


def test_the_slider_changes_budget_accuracy_and_looks(open_page: Callable[..., Page], photo: Path) -> None:
    page = open_page()
    page.set_input_files("#file", photo)
    expect(page.locator("#looks li")).to_have_count(3)
    expect(page.locator("#budget-words")).to_have_text("The thresholds that are in force on the server.")
    page.locator("#budget").focus()
    page.keyboard.press("Home")  # with the keyboard: the cheapest budget
    expect(page.locator("#budget-words")).to_contain_text("accuracy 50.0 % on held-out pictures")
    expect(page.locator("#looks li")).to_have_count(1)
    expect(page.locator("#boxes rect")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#budget-words")).to_contain_text("accuracy 70.0 %")
    assert "accuracy 70.0\xa0%" in (page.locator("#budget").get_attribute("aria-valuetext") or "")
    assert page.problems == []  # type: ignore[attr-defined]


def test_an_error_is_shown_in_the_servers_sentence_and_goes_away(
    open_page: Callable[..., Page], photo: Path, tmp_path: Path
) -> None:
    page = open_page()
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    page.set_input_files("#file", broken)
    expect(page.get_by_role("alert")).to_have_text(
        "broken.png is not an image in a known format. Convert it to JPEG, PNG, WebP or TIFF."
    )
    expect(page.locator("#unseen")).to_have_text("broken.png cannot be shown here.")
    page.set_input_files("#file", photo)
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#unseen")).to_be_hidden()
    expect(page.locator("#looks li")).to_have_count(3)


def test_charts_show_what_was_answered(open_page: Callable[..., Page], running: Any, photo: Path) -> None:
    page = open_page()
    running.predict(content=photo.read_bytes(), params={"looks": 2})
    expect(page.locator("#throughput rect").first).to_be_attached()
    expect(page.locator("#exits-words")).to_contain_text("look 2:")
    assert "median" in (page.locator("#latency").get_attribute("aria-label") or "")
    for times in page.locator(".times").all():
        expect(times).to_have_text("2 min ago1 min agonow")
    expect(page.locator("#exits-most")).to_have_text("100\u00a0%")
    expect(page.locator("#latency-most")).to_contain_text("ms")


def test_everything_can_be_reached_with_the_keyboard(open_page: Callable[..., Page], photo: Path) -> None:
    for chosen in (False, True):
        page = open_page()
        expect(page.locator("#budget")).to_be_enabled()
        if chosen:
            page.set_input_files("#file", photo)
            expect(page.locator("#looks li")).to_have_count(3)
        reached = []
        for _ in range(2):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id"))
        assert reached == ["file", "budget"]
    for name in ("Picture", "Answer", "The last two minutes"):
        expect(page.get_by_role("region", name=name)).to_be_visible()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_wider_than_the_screen(
    open_page: Callable[..., Page], photo: Path, size: dict[str, int], dark: bool
) -> None:
    page = open_page(size, dark)
    page.set_input_files("#file", photo)
    expect(page.locator("#looks li")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(18, 20, 28)") == dark
