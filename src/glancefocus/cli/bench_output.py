"""What `gf bench` prints: the table of ratios row by row, and where the time goes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from glancefocus.cli.main import Display, output
from glancefocus.cli.printing import print_line

if TYPE_CHECKING:
    from glancefocus.evaluation.wall_clock import Subject, Timing

NOT_WHOLE = "of these pictures only regions are read, and a backbone would have to see them whole"
_NOTHING = "--"
# Columns of the table of ratios: their widths, and their widths if there is room for the quartiles.
_COLUMNS = {
    "runtime": (13, 20),
    "batch": (5, 5),
    "threads": (7, 7),
    "backbone": (8, 24),
    "glancefocus": (11, 24),
    "fewer_macs": (10, 10),
    "less_time": (9, 9),
    "quotient": (8, 8),
}
_WIDE = 115  # width of a terminal with room for them


class TimingRows:
    """The table of ratios, printed row by row.

    alone  there is no backbone to compare with
    """

    def __init__(self, shown: Display, network: str, *, alone: bool = False) -> None:
        self.shown = shown
        title = f"{network} against its plain backbone: milliseconds per image, ratios of multiply-adds and of time"
        if alone:
            title = f"{network}: milliseconds per image"
        shown.show(Text(title, style="italic"))
        self._print([name.replace("_", " ") for name in _COLUMNS], style="bold")

    def show(self, t: "Timing") -> None:
        backbone = self._ms(t.backbone_ms, t.backbone_ms_low, t.backbone_ms_high)
        own = self._ms(t.glancefocus_ms, t.glancefocus_ms_low, t.glancefocus_ms_high)
        ratios = [_NOTHING if ratio is None else f"{ratio:.2f}" for ratio in (t.mac_ratio, t.time_ratio, t.quotient)]
        self._print([t.runtime_words, str(t.batch), str(t.threads), backbone, own, *ratios])

    def _ms(self, median: float | None, low: float | None, high: float | None) -> str:
        """Milliseconds, with their quartiles if there is room."""
        if median is None:
            return _NOTHING
        return f"{median:.2f} ({low:.2f}-{high:.2f})" if self.shown.console.width >= _WIDE else f"{median:.2f}"

    def _print(self, cells: Sequence[str], style: str = "") -> None:
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        wide = self.shown.console.width >= _WIDE
        for width, roomy in _COLUMNS.values():
            right = table.columns != []
            table.add_column(min_width=roomy if wide else width, no_wrap=True, justify="right" if right else "left")
        table.add_row(*cells, style=style)
        self.shown.show(table)


def print_timings(subject: "Subject", timings: Sequence["Timing"]) -> None:
    output().print(_shares(timings))
    exits = timings[0].exits
    print_line(
        f"of {sum(exits)} images {' / '.join(map(str, exits))} stopped after look {' / '.join(map(str, range(1, len(exits) + 1)))}"
    )
    if subject.backbone is None and subject.accuracy is not None:
        print_line(
            f"accuracy on {subject.measured_on}: {100 * subject.accuracy:.1f} %, with the bundle's own thresholds, which were "
            f"chosen on {subject.chosen_on}"
        )
        print_line(
            f"There is no comparison with a backbone: {NOT_WHOLE}. The times include opening and reading the pictures."
        )
    if subject.accuracy is not None and subject.backbone_accuracy is not None:
        print_line(
            f"accuracy on {subject.measured_on}: {100 * subject.accuracy:.1f} %, backbone {100 * subject.backbone_accuracy:.1f} %; "
            f"the thresholds were chosen on {subject.chosen_on}, to be as accurate as the backbone there"
        )


def _shares(timings: Sequence["Timing"]) -> Table:
    from glancefocus.evaluation.latency import SHARES

    table = Table(title="where the time of glancefocus goes, in %, and the milliseconds of each look")
    table.add_column("runtime", no_wrap=True)
    for name in ("batch", *(share.replace("_", " ") for share in SHARES), "looks"):
        table.add_column(name, justify="right")
    for t in timings:
        shares = [f"{100 * t.shares[name]:.1f}" for name in SHARES]
        table.add_row(t.runtime_words, str(t.batch), *shares, " / ".join(f"{ms:.2f}" for ms in t.ms_per_look))
    return table
