"""Numbers with bounds, as types: what a setting or an option may be is written once, in the hint that declares it.

    looks: Looks = 5        # Annotated[int, Range(1, 64)]

Settings check their fields by these hints (`settings.check_fields`), and so does the command line before it calls a verb
(`commands.options`). Upper bounds are far above what is useful, and low enough that a typing error or a foreign file cannot exhaust
memory, threads or time.
"""

import math
import numbers
import os
import reprlib
import typing
from dataclasses import dataclass
from typing import Annotated, Any

from glancefocus.errors import BadSetting


@dataclass(frozen=True)
class Range:
    """The numbers from `least` to `most`, these two included unless `above` or `below` says otherwise.

    above  the number must be above `least`
    below  the number must be below `most`
    """

    least: float
    most: float
    above: bool = False
    below: bool = False

    def __contains__(self, number: float) -> bool:
        """False for NaN and for infinities, too."""
        low = self.least < number if self.above else self.least <= number
        high = number < self.most if self.below else number <= self.most
        return low and high and not math.isinf(number)

    def words(self, kind: type) -> str:
        """In words: "a whole number from 1 to 64", "a number above 0 and at most 1"."""
        noun = "a whole number" if kind is int else "a number"
        least, most = _digits(self.least), _digits(self.most)
        if math.isinf(self.most):
            return noun
        if not self.above and not self.below:
            return f"{noun} from {least} to {most}"
        return f"{noun} {'above' if self.above else 'of at least'} {least} and {'below' if self.below else 'at most'} {most}"


ANY_NUMBER = Range(-math.inf, math.inf)


def checked_number(kind: type, bounds: Range, value: Any, name: str) -> Any:
    """The value as an int or a float (`kind`) within the bounds; raises BadSetting, which says the name, for everything else.

    A whole number may stand for a float; a float never stands for a whole number, nor does a bool for either.
    """
    fits = not isinstance(value, bool) and isinstance(value, numbers.Integral if kind is int else numbers.Real)
    if fits and _number(value) in bounds:
        return kind(value)
    raise BadSetting(f"{name} must be {bounds.words(kind)}, but got {shown(value)}.")


def checked(hint: Any, value: Any, name: str) -> Any:
    """A value by one of the types below: checked(Looks, looks, "looks")."""
    kind, bounds = typing.get_args(hint)[:2]
    return checked_number(kind, bounds, value, name)


def read_number(kind: type, bounds: Range, text: str, name: str) -> Any:
    """The same for a number that was written down: 2e8 and 1_000 are read as Python does, 64.0 and 1e3 count as whole."""
    value = _written(text)
    if kind is int and isinstance(value, float) and value in bounds and value.is_integer():
        value = int(value)
    try:
        return checked_number(kind, bounds, value, name)
    except BadSetting:
        raise BadSetting(f"{name} must be {bounds.words(kind)}, but got {shortened(text) or repr(text)}.") from None


def _written(text: str) -> float | None:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:  # also for more digits than Python converts
            pass
    return None


def shown(value: Any) -> str:
    """A value as a sentence quotes it, cut where it is long. Lists within lists are cut before they are written out."""
    return shortened(_BRIEF.repr(value) if isinstance(value, (list, tuple, dict, set)) else repr(value))


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxlist, _BRIEF.maxtuple, _BRIEF.maxdict, _BRIEF.maxstring = 3, 20, 20, 20, 80


def shortened(text: str, most: int = 80) -> str:
    """A text on one line of at most so many characters."""
    line = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _number(value: Any) -> float:
    """An int stays an int, so that large ones are compared exactly; other kinds of numbers become floats."""
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _digits(number: float) -> str:
    if math.isfinite(number) and number == int(number) and abs(number) < 1e19:
        return f"{int(number):,}"
    return f"{number:g}"


_CORES = os.cpu_count() or 1

# Sizes of images and networks
Pixels = Annotated[int, Range(8, 16_384)]
Shift = Annotated[int, Range(0, 16_384)]
MaxPixels = Annotated[int, Range(64, 2**34)]
Classes = Annotated[int, Range(2, 1_000_000)]
Looks = Annotated[int, Range(1, 64)]
Frames = Annotated[int, Range(1, 256)]
Units = Annotated[int, Range(1, 65_536)]
Kernel = Annotated[int, Range(1, 31)]
ShiftDivisor = Annotated[int, Range(0, 65_536)]
Colour = Annotated[float, Range(-1000, 1000)]
ColourDeviation = Annotated[float, Range(0, 1000, above=True)]

# Shares, weights and rates
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, above=True)]
PartialShare = Annotated[float, Range(0, 1, below=True)]
InnerShare = Annotated[float, Range(0, 1, above=True, below=True)]
Weight = Annotated[float, Range(0, 1_000_000)]
Rate = Annotated[float, Range(0, 1000)]
PositiveRate = Annotated[float, Range(0, 1000, above=True)]
WeightDecay = Annotated[float, Range(0, 1000)]
Points = Annotated[float, Range(0, 100)]

# Counts
Epochs = Annotated[int, Range(0, 100_000)]
Rounds = Annotated[int, Range(1, 10_000)]
Passes = Annotated[int, Range(1, 1000)]
Count = Annotated[int, Range(1, 1_000_000)]
Scenes = Annotated[int, Range(5, 1_000_000)]
BadFiles = Annotated[int, Range(0, 1_000_000_000)]
BatchSize = Annotated[int, Range(1, 65_536)]
TrainBatchSize = Annotated[int, Range(2, 65_536)]
Seed = Annotated[int, Range(0, 2**63 - 1)]

# Resources: what is asked of the machine
Threads = Annotated[int, Range(1, min(1024, max(16, 4 * _CORES)))]
Workers = Annotated[int, Range(0, min(1024, max(64, 4 * _CORES)))]
Processes = Annotated[int, Range(1, min(1024, max(16, 4 * _CORES)))]
Mebibytes = Annotated[int, Range(0, 2**24)]

# Budgets and times
MultiplyAdds = Annotated[float, Range(0, 1e18, above=True)]
Milliseconds = Annotated[float, Range(0, 1e9, above=True)]
WaitingMs = Annotated[float, Range(0, 1e9)]
Minutes = Annotated[float, Range(0, 1_000_000)]
Threshold = Annotated[float, Range(-1e6, 1e6)]
