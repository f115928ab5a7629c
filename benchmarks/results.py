"""Writes a named section of docs/results.md, so that every number there was put there by the program that measured it."""

import os
import platform
import re
from pathlib import Path

HEAD = "# Measured results\n\nEach section was written by the command that it names.\n"


def machine(threads: int | None = None) -> str:
    """Where it was measured, in one line: processor, cores, how torch's threads wait if that is set, versions."""
    import torch

    parts = [f"{processor()}, {os.cpu_count()} core{'s' if os.cpu_count() != 1 else ''}"]
    if threads is not None:
        parts.append(f"{threads} thread{'s' if threads != 1 else ''}")
    if "GOMP_SPINCOUNT" in os.environ:  # which `gf` sets for itself
        parts.append(f"GOMP_SPINCOUNT={os.environ['GOMP_SPINCOUNT']}")
    return ", ".join([*parts, f"Python {platform.python_version()}", f"torch {torch.__version__}"])


def processor() -> str:
    """The processor's model name, where the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def markers(name: str) -> tuple[str, str]:
    return f"<!-- results:{name}:start -->", f"<!-- results:{name}:end -->"


def write_section(file: Path, name: str, *, title: str, command: str, machine: str, body: str) -> None:
    """Put a section between its markers: over the older one, or at the end where there is none yet."""
    start, end = markers(name)
    section = f"{start}\n## {title}\n\n    {command}\n\n{machine}\n\n{body.strip()}\n{end}"
    text = file.read_text(encoding="utf-8") if file.exists() else HEAD
    if start in text and end in text:
        before, _, rest = text.partition(start)
        text = before + section + rest.partition(end)[2]
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def markdown_table(rows: list[list[str]]) -> str:
    """A table out of rows of cells; the first row is the head, every column but the first is aligned right."""
    head, *body = rows
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
