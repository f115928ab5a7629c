"""What is wrong with the classes of a data set: names that cannot be stored, and classes with too few images."""

from collections import Counter
from collections.abc import Iterable, Sequence

from glancefocus.data.splits import Row
from glancefocus.errors import BadData, BadSetting
from glancefocus.values import LONGEST_CLASS_NAME, text_of


def check_class_names(names: Iterable[str], source: str) -> None:
    """Refuse class names that cannot be written to a file: empty, too long, or from folders whose names are not UTF-8."""
    for name in names:
        if not name.strip():
            raise BadData(f"{source} has a class with an empty name. Rename it.")
        try:
            text_of(name, "a class name", LONGEST_CLASS_NAME)
        except BadSetting as error:
            raise BadData(f"{source}: {error} Rename the class.") from None


TOO_FEW = 10
"""A class with fewer images is reported; it is split as far as possible."""


def small_classes(rows: Sequence[Row], classes: Sequence[str], noun: str) -> list[str]:
    """Sentences on classes that have too few images for training and for measuring."""
    images = Counter((split, label) for split, _, label in rows)
    empty = [name for label, name in enumerate(classes) if images["train", label] == 0]
    counts = {name: images["train", label] + images["val", label] for label, name in enumerate(classes)}
    few = [f"{name!r} ({counts[name]})" for name in classes if counts[name] < TOO_FEW and name not in empty]
    sentences = []
    if empty:
        names = _some([repr(name) for name in empty])
        sentences.append(f"no training {noun} of {_classes(len(empty))} {names}: the network cannot learn it.")
    if few:
        sentences.append(
            f"fewer than {TOO_FEW} {noun} of {_classes(len(few))} {_some(few)}: too few to learn from, and the accuracy on the few "
            f"that are held out is unreliable. Add {noun}."
        )
    return sentences


def _classes(count: int) -> str:
    return "the class" if count == 1 else f"{count} classes,"


def _some(words: list[str]) -> str:
    return ", ".join(words[:5]) + (", ..." if len(words) > 5 else "")
