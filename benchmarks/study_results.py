"""Copies the tables of finished studies into docs/study-results.md.

gf study rewards && python benchmarks/study_results.py studies rewards --write docs/study-results.md
"""

import argparse
import json
import re
from pathlib import Path

from results import write_section


def section(folder: Path, name: str, file: Path) -> None:
    """Write one study as a section; its figures stay in its own folder."""
    numbers = json.loads((folder / name / "study.json").read_text(encoding="utf-8"))
    text = (folder / name / "study.md").read_text(encoding="utf-8")
    body = text.split("\n\n", 2)[2].replace(f" {numbers['machine']}.", "", 1)  # without title, command and machine
    body = re.sub(r"^!\[.*?\]\(.*?\)\n?", "", body, flags=re.MULTILINE)
    body = re.sub(r"^## (.*)$", r"**\1**", body, flags=re.MULTILINE)
    write_section(
        file,
        f"study-{name}",
        title=f"Study `{name}`: {lowered(numbers['title'])}",
        command=numbers["command"],
        machine=numbers["machine"],
        body=body,
    )


def lowered(title: str) -> str:
    """The title inside a sentence; names such as MSDNet stay as they are."""
    return title if title[1:2].isupper() else title[0].lower() + title[1:]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of all studies")
    parser.add_argument("names", nargs="+", help="studies to copy")
    parser.add_argument("--write", type=Path, required=True)
    options = parser.parse_args(words)
    for name in options.names:
        section(options.folder, name, options.write)


if __name__ == "__main__":
    main()
