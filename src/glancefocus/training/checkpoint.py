"""Checkpoints of a run: written aside, flushed and renamed, so that a run killed at any moment finds a whole one."""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from glancefocus.errors import BadCheckpoint, BadRun
from glancefocus.network.weights import open_safely

FORMAT = 1


def save_checkpoint(file: Path, content: dict[str, Any]) -> None:
    """Replace the checkpoint by a newer one, or leave the old one as it is."""
    write_aside(file, lambda stream: torch.save({"format": FORMAT, **content}, stream))


def load_checkpoint(file: Path) -> dict[str, Any] | None:
    """The checkpoint; None where there is none yet."""
    if not file.exists():
        return None
    try:
        content = open_safely(file)
    except BadCheckpoint as error:
        raise BadRun(f"{error} Delete it to start this run again.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadRun(f"{file} is not a checkpoint of this version. Start in another folder.")
    return content


def forget_unfinished(folder: Path, names: Iterable[str]) -> None:
    """Take away what a killed process had begun to write beside these files."""
    for name in names:
        for aside in folder.glob(f".{name}.*"):
            aside.unlink(missing_ok=True)


def write_aside(file: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file beside its place, flush it to the disk, and rename it into place."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with aside.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, file)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise BadRun(
            f"{file} could not be written ({getattr(error, 'strerror', None) or error}). What was there before is unharmed. "
            "Make room on the disk and run the same command again."
        ) from error
