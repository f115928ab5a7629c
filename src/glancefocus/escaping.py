"""Makes text from outside (class names, notes, file names) safe to show: it must not act as commands or markup.

one_line  for a terminal: control characters, line breaks and characters that change the text direction are escaped
markdown  for a Markdown page: the same, and markup of Markdown and HTML is escaped
csv_cell  for a table that may be opened in a spreadsheet, which executes cells that begin like a formula
"""

import re
import unicodedata

# Markup anywhere; the start of a heading, a list or a quotation; addresses that become links automatically.
_MARKDOWN = re.compile(r"([\\`*_\[\]|~@$]|^[#+=-]|:(?=//)|(?<=www)\.)")
_NUMBERED = re.compile(r"^([0-9]{1,9})([.)])(?= |$)")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_FORMULA = re.compile(r"[=@\t\r]|[+-](?![0-9.]+$)")  # a number such as -1 is not a formula
_INVISIBLE = (
    "Cc",
    "Cf",
    "Cs",
    "Co",
    "Cn",
    "Zl",
    "Zp",
)  # control, format, surrogate, private, unassigned, line, paragraph
_JOINERS = "\u200c\u200d"  # format characters that are part of words and of many emoji


def one_line(text: str, most: int | None = None) -> str:
    """The text on one line, without terminal commands; cut after `most` characters."""
    line = text if text.isprintable() else "".join(map(_visible, text))
    return line if most is None or len(line) <= most else f"{line[: max(0, most - 3)]}..."


def lines_kept(text: str) -> str:
    """Text of several lines without terminal commands; line breaks are kept."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def markdown(text: str, most: int | None = None) -> str:
    """The text for a Markdown page: no heading, list, link, code or HTML begins in it."""
    line = " ".join(one_line(text, most).split())
    line = "".join(_HTML.get(c, c) for c in line)
    return _NUMBERED.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", line))


def csv_cell(text: str) -> str:
    """The text, with an apostrophe in front if a spreadsheet would execute it as a formula."""
    line = one_line(text)
    return f"'{line}" if _FORMULA.match(line) else line


def figure_text(text: str) -> str:
    """The text for a label of matplotlib, which reads text between dollar signs as formulas."""
    return one_line(text).replace("$", r"\$")


def is_writable_text(text: str) -> bool:
    """Whether the text can be written in UTF-8; a file name that is not UTF-8 contains surrogates in Python."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _visible(character: str) -> str:
    if character in _JOINERS or unicodedata.category(character) not in _INVISIBLE:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
