"""The values that a study is made of: its runs, and the tables and drawings that are computed from finished runs."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from matplotlib.figure import Figure

from glancefocus.files import fingerprint
from glancefocus.training.settings import TrainSettings
from glancefocus.values import to_plain

if TYPE_CHECKING:
    from glancefocus.studies.exits import ExitsRun
    from glancefocus.studies.runs import Measured

Scale = Literal["tiny", "paper"]
"""tiny: small networks on a built-in data set, minutes on two cores. paper: the paper's networks and settings."""


@dataclass(frozen=True)
class Scope:
    """What the runs of a study are made for.

    data         a data set; None: the paper's, which is not here, so that runs can only be planned
    seed         of everything that is trained after the backbone
    weights      scale paper: initial weights of the backbone; "pretrained": timm's; "none": it is trained from random ones
    assignments  name=value, changes to the settings of all runs that have the stage of this name
    """

    scale: Scale
    data: str | None
    seed: int = 0
    weights: str = "pretrained"
    assignments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One training run.

    name      for people, and of its folder
    settings  with neither `start` nor `weights`, which come from other runs
    start     the run whose network it continues
    parts     only these parts of that network are taken, the others are new; empty: the whole network
    weights   the run whose plain backbone both encoders start from
    """

    name: str
    settings: TrainSettings
    start: "Run | None" = None
    parts: tuple[str, ...] = ()
    weights: "Run | None" = None

    @property
    def content(self) -> str:
        """Hash of everything that the trained network depends on; the name does not count."""
        earlier = [None if run is None else run.content for run in (self.start, self.weights)]
        return fingerprint([to_plain(self.settings), list(self.parts), earlier])

    def with_earlier(self) -> "Iterator[Run]":
        """The runs that this one builds on, the first one first, and itself."""
        for earlier in (self.weights, self.start):
            if earlier is not None:
                yield from earlier.with_earlier()
        yield self


Value = float | None


@dataclass(frozen=True)
class Row:
    """One row of a table.

    values  one sequence for each seed, with one value for each column; None: there is none
    paper   the paper's values, and their deviations where it has them
    """

    name: str
    values: Sequence[Sequence[Value]] = ()
    paper: Sequence[Value] = ()
    paper_deviation: Sequence[Value] = ()

    def mean(self, column: int) -> Value:
        known = self.known(column)
        return statistics.mean(known) if known else None

    def deviation(self, column: int) -> Value:
        """The standard deviation over the seeds; None for a single seed."""
        known = self.known(column)
        return statistics.stdev(known) if len(known) > 1 else None

    def known(self, column: int) -> list[float]:
        return [value for row in self.values if column < len(row) and (value := row[column]) is not None]


@dataclass(frozen=True)
class Table:
    """A table in the paper's form.

    name     of its files
    columns  without that of the names
    images   number of images that the shares were measured on
    unit     share: values in [0, 1], shown in percent; number: shown as they are
    ordered  whether the paper's order of the rows is compared with ours
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    images: int = 0
    unit: Literal["share", "number"] = "share"
    ordered: bool = False
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure and its caption."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Result:
    """What a study found.

    drawings   {name of the file: drawing}
    galleries  (heading, pictures as data URLs)
    remarks    sentences
    """

    tables: Sequence[Table] = ()
    drawings: Mapping[str, Drawing] = field(default_factory=dict)
    galleries: Sequence[tuple[str, Sequence[str]]] = ()
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Study:
    """One or several tables and figures of the paper.

    shows    which ones
    runs     {name: run} for one seed
    measure  computes the result from the finished runs
    exits    {name: comparison network with several exits} for one seed; None: there are none
    world    the built-in data set of the scale tiny
    seeds    number of seeds at the scales tiny and paper, unless the user says otherwise
    clips    whether it is about clips, not images
    """

    name: str
    title: str
    shows: str
    runs: Callable[[Scope], Mapping[str, Run]]
    measure: "Callable[[Measured], Result]"
    exits: "Callable[[Scope], Mapping[str, ExitsRun]] | None" = None
    world: str = "signs"
    seeds: tuple[int, int] = (1, 1)
    clips: bool = False


@dataclass(frozen=True)
class Agreement:
    """Pairs of rows whose difference here exceeds two standard errors, and those among them that the paper orders otherwise."""

    pairs: int
    otherwise: Sequence[str]

    @property
    def sentence(self) -> str:
        if self.pairs == 0:
            return "No two rows differ by more than two standard errors."
        agreeing = self.pairs - len(self.otherwise)
        sentence = (
            f"{self.pairs} pairs of rows differ by more than two standard errors in some column; "
            f"{agreeing} of them are in the paper's order."
        )
        return f"{sentence} In another order: {'; '.join(self.otherwise)}." if self.otherwise else sentence


def agreement(table: Table) -> Agreement:
    """Compare the order of the rows with the paper's, column by column, where both have values."""
    pairs, otherwise = 0, []
    for column, words in enumerate(table.columns):
        rows = [row for row in table.rows if _paper(row, column) is not None and row.known(column)]
        for place, one in enumerate(rows):
            for other in rows[place + 1 :]:
                gap, error = difference(one, other, column, table.images)
                theirs = (_paper(one, column) or 0.0) - (_paper(other, column) or 0.0)
                if abs(gap) <= 2 * error or theirs == 0:
                    continue
                pairs += 1
                if (gap > 0) != (theirs > 0):
                    higher, lower = (one, other) if gap > 0 else (other, one)
                    otherwise.append(f"{words}: {higher.name} above {lower.name} by {100 * abs(gap):.1f} points")
    return Agreement(pairs, otherwise)


def difference(one: Row, other: Row, column: int, images: int) -> tuple[float, float]:
    """The mean difference of two rows of shares, and its standard error: by seeds or by images, whichever is larger."""
    first, second = one.known(column), other.known(column)
    count = min(len(first), len(second))
    gaps = [a - b for a, b in zip(first[:count], second[:count], strict=True)]
    by_images = sum(statistics.mean(s) * (1 - statistics.mean(s)) / (len(s) * max(1, images)) for s in (first, second))
    by_seeds = statistics.variance(gaps) / count if count > 1 else 0.0
    return statistics.mean(gaps), math.sqrt(max(by_images, by_seeds))


def _paper(row: Row, column: int) -> Value:
    return row.paper[column] if column < len(row.paper) else None
