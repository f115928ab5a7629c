"""Class names that a bundle can hold: checked when data is opened, not after it was trained on."""

from collections.abc import Iterable

from glancefocus.errors import BadData, BadSetting
from glancefocus.typed import LONGEST_CLASS_NAME, text_of


def check_class_names(names: Iterable[str], source: str) -> None:
    """Refuse class names that cannot be written to a file: of folders whose names are not UTF-8, empty ones, endless ones."""
    for name in names:
        if not name.strip():
            raise BadData(f"{source} has a class without a name. Give it one.")
        try:
            text_of(name, "a class name", LONGEST_CLASS_NAME)
        except BadSetting as error:
            raise BadData(f"{source}: {error} Rename the class.") from None
