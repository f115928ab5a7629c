"""The journal can be read again, also after a run was killed while it wrote."""

import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from glancefocus.errors import BadRun
from glancefocus.training.journal import EpochRow, Journal, read_metrics

ROW = EpochRow("aim", 1, 1, 2, {"loss": 0.25, "val_accuracy": [0.5, 0.75]}, 12.5, aims={"better": True})
# As runs of version 0.1.0 wrote it.
LINE = (
    '{"stage": "aim", "stage_number": 1, "epoch": 1, "epochs": 2, "loss": 0.25, "val_accuracy": [0.5, 0.75], '
    '"images_per_s": 12.5, "aims": {"better": true}}'
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path, writes=True, quiet=True)
    yield made
    made.close()


def test_rows_are_read_as_they_were_written(journal: Journal, tmp_path: Path) -> None:
    journal.epoch(ROW)
    journal.epoch(replace(ROW, epoch=2, aims=None))
    assert read_metrics(tmp_path) == [ROW, replace(ROW, epoch=2, aims=None)]
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[0] == LINE
    assert read_metrics(tmp_path / "none") == []


def test_a_last_line_that_was_cut_off_is_left_out(journal: Journal, tmp_path: Path) -> None:
    journal.epoch(ROW)
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write(LINE[:-9])
    assert read_metrics(tmp_path) == [ROW]


@pytest.mark.parametrize("line", ["", "{", "[]", "3", "null", '{"epoch": 1}', '{"stage": 7}', "[" * 100_000])
def test_a_line_that_is_something_else_is_reported(line: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{LINE}\n{line}\n{LINE}\n")
    with pytest.raises(BadRun, match="metrics.jsonl is damaged: line 2 is not an epoch: "):
        read_metrics(tmp_path)


def test_a_link_is_not_written_through(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(BadRun, match="metrics.jsonl could not be written"):
        journal.epoch(ROW)
    with pytest.raises(BadRun, match="metrics.jsonl could not be written"):
        journal.rewind(0)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_full_disk_raises_a_clear_error(journal: Journal, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(BadRun, match=r"could not be written \(File too large\). The last checkpoint is unchanged"):
            journal.epoch(replace(ROW, stage="x" * 60_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_metrics(tmp_path) == []
