"""TensorBoard's event files, written by the training itself and not by a thread: a full disk is noticed where it happens."""

import os
import secrets
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


class EventFile:
    """A new event file in a folder. Raises ImportError without TensorBoard, OSError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        name = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        )
        self._stream = (folder / name).open("xb")
        self._records = RecordWriter(self._stream)
        self._write(file_version="brain.Event:2")

    def add(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        """Numbers by their names, at this step of their curves."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars]
        self._write(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been said
            self._stream.close()

    def _write(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self._stream.flush()
