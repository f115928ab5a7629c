"""Progress bars show description, count and note on a terminal, and nothing elsewhere."""

import io

from rich.console import Console

from glancefocus.progress import ProgressBars


def shown(*, terminal: bool, in_percent: bool = False, hidden: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    with ProgressBars(console, hidden=hidden, in_percent=in_percent, redirect=False) as bars:
        bars.show("reading", 3, 10, note="fine")
        bars.show("gone", 1, 2)
        bars.remove("gone")
        bars.remove("never there")
    return stream.getvalue()


def test_a_bar_has_description_count_and_note_on_a_terminal() -> None:
    text = shown(terminal=True)
    assert "reading" in text
    assert " 3/10" in text
    assert "fine" in text
    assert "gone" not in text.splitlines()[-1]


def test_a_bar_may_show_the_share_that_is_done() -> None:
    assert " 30%" in shown(terminal=True, in_percent=True)


def test_nothing_is_shown_where_there_is_no_terminal_or_the_bars_are_hidden() -> None:
    assert shown(terminal=False).strip() == ""
    assert shown(terminal=True, hidden=True).strip() == ""
