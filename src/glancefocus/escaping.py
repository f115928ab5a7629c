"""Makes names that come from outside safe to show: class names, notes and file names are text, never commands or markup.

one_line  for a terminal: control characters, line breaks and characters that turn text around are written as escapes
markdown  for a Markdown page: the same, and what Markdown or HTML would take for markup
csv_cell  for a table that may be opened in a spreadsheet, which runs cells that begin like a formula
"""

import re
import unicodedata

# Markup anywhere; what begins a heading, a list or a quotation; addresses that are made links by themselves.
_MARKDOWN = re.compile(r"([\\`*_\[\]|~@$]|^[#+=-]|:(?=//)|(?<=www)\.)")
_NUMBERED = re.compile(r"^([0-9]{1,9})([.)])(?= |$)")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control, format, surrogate, private, unassigned, line, paragraph
_JOINERS = "\u200c\u200d"  # of format, but part of words and of many emoji


def one_line(text: str, most: int | None = None) -> str:
    """The text on one line, without anything that a terminal would obey; cut after `most` characters."""
    line = text if text.isprintable() else "".join(map(_visible, text))
    return line if most is None or len(line) <= most else f"{line[: max(0, most - 3)]}..."


def lines_kept(text: str) -> str:
    """The same for text of several lines, whose line breaks stay."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def markdown(text: str, most: int | None = None) -> str:
    """The text as Markdown shows it: no heading, list, link, code or HTML begins in it."""
    line = " ".join(one_line(text, most).split())
    line = "".join(_HTML.get(c, c) for c in line)
    return _NUMBERED.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", line))


def csv_cell(text: str) -> str:
    """The text with an apostrophe in front where a spreadsheet would take it for a formula."""
    line = one_line(text)
    return f"'{line}" if line.startswith(_FORMULA) else line


def is_writable_text(text: str) -> bool:
    """Whether the text can be written to a file in UTF-8: a name that is not UTF-8 on disk has surrogates in Python."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _visible(character: str) -> str:
    if character in _JOINERS or unicodedata.category(character) not in _UNSEEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
