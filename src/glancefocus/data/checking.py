"""Goes once through the files of a data set before they are used: finds those that cannot be read, and hashes the others."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from glancefocus.data.content import Content, content_of, content_size
from glancefocus.data.csv_lists import is_there
from glancefocus.data.media import Medium
from glancefocus.data.splits import Row
from glancefocus.errors import BadData, BadImage

Progress = Callable[[str, int, int], None]


@dataclass
class Checked:
    """Rows whose files can be used.

    contents  of each of these rows; None where it was not asked for
    bad       what is wrong with the files that are left out
    odd       what is odd about files that are used, such as clips with fewer frames than are looked at
    """

    rows: list[Row] = field(default_factory=list)
    contents: list[Content | None] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


def check_files(
    rows: Sequence[Row],
    medium: Medium,
    *,
    read: bool,
    hashed: Callable[[int], bool] | None,
    max_bad_files: int,
    progress: Progress | None = None,
) -> Checked:
    """Read and hash files, several at a time. Up to max_bad_files that cannot be read are left out; one more is refused.

    read    decode each file as training will; False: only that it is there is found out
    hashed  whether a file of this size is hashed; None: none is
    """

    def look_at(row: Row) -> tuple[Content | None, tuple[str, ...], str | None]:
        try:
            odd = medium.check(row[1]) if read else ()
            wanted = hashed is not None and hashed(content_size(row[1]))
            return content_of(row[1]) if wanted else None, odd, None
        except BadImage as error:
            return None, (), str(error)

    checked = Checked()
    what = "checking files" if read else "hashing files"
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for number, (row, (content, odd, wrong)) in enumerate(zip(rows, pool.map(look_at, rows), strict=True), start=1):
            if wrong is None:
                checked.rows.append(row)
                checked.contents.append(content)
                checked.odd += odd
            else:
                checked.bad.append(wrong)
            if progress is not None:
                progress(what, number, len(rows))
    if not checked.rows:
        raise BadData(f"none of the {len(rows)} files can be read. The first says: {checked.bad[0]}")
    if len(checked.bad) > max_bad_files:
        shown = " ".join(checked.bad[:3])
        raise BadData(
            f"{len(checked.bad)} of {len(rows)} files cannot be read, more than the {max_bad_files} that may be skipped "
            f"(--max-bad-files). The first: {shown}"
        )
    return checked


def without_missing(rows: list[Row], listed_in: Path, max_bad_files: int) -> tuple[list[Row], list[str]]:
    """The rows of a list whose files are there, and a sentence for each of the others; too many of these are refused."""
    there: list[Row] = []
    missing: list[Row] = []
    for row in rows:
        (there if is_there(row[1].parent, row[1].name) else missing).append(row)
    if len(missing) > max_bad_files or not there:
        names = ", ".join(str(file) for _, file, _ in missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise BadData(
            f"{len(missing)} of the {len(rows)} files that {listed_in} lists are not there: {names}. "
            f"Paths are relative to the folder of the CSV, {listed_in.parent.resolve()}."
        )
    return there, [f"there is no file {file}, which {listed_in} lists." for _, file, _ in missing]
