"""A look record is small, complete or absent, and describes its network and data."""

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glancefocus.errors import BadData, UnknownName
from glancefocus.exits.record import LookRecord, RecordAbout, view_label, view_words, writing_record

TWO_SIZES = ("32", "48")


def about(images: int = 4, looks: int = 3, views: tuple[str, ...] = ("32",)) -> RecordAbout:
    return RecordAbout("net-1", "data-1", "pets", "val", images, looks, views)


def columns(count: int, nodes: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    scores = {name: random.random((count, nodes), dtype=np.float32) for name in ("confidence", "entropy", "value")}
    return {**scores, "answer": random.integers(0, 5, (count, nodes)), "label": random.integers(0, 5, count)}


def written(folder: Path, described: RecordAbout | None = None, batch_size: int = 3) -> dict[str, NDArray[Any]]:
    """Write a record batch by batch, as it is done in earnest; returns what went into it."""
    described = about() if described is None else described
    content = columns(described.images, described.nodes)
    with writing_record(folder, described) as writer:
        for start in range(0, described.images, batch_size):
            writer.add(**{name: values[start : start + batch_size] for name, values in content.items()})
    return content


@pytest.mark.parametrize(("views", "nodes"), [(("32",), 3), (TWO_SIZES, 1 + 2 + 4)])
def test_what_was_written_is_read_again(views: tuple[str, ...], nodes: int, tmp_path: Path) -> None:
    described = about(images=7, views=views)
    content = written(tmp_path / "deep" / "record", described)
    record = LookRecord.load(tmp_path / "deep" / "record")
    assert record.about == described
    assert described.nodes == nodes
    for name, values in content.items():
        assert np.array_equal(getattr(record, name), values), name
    assert record.confidence.shape == (7, nodes)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["record"]


def test_fifty_thousand_images_with_five_looks_take_well_under_ten_million_bytes(tmp_path: Path) -> None:
    described = about(images=50_000, looks=5)
    written(tmp_path / "record", described, batch_size=10_000)
    # three scores of 4 bytes and an answer of 2 for each look, and a label of 2: 72 bytes an image
    used = sum(path.stat().st_size for path in (tmp_path / "record").iterdir())
    assert 3_600_000 < used < 3_610_000
    assert len(LookRecord.load(tmp_path / "record").table(tuple(range(5)))) == 50_000


def test_a_record_is_mapped_and_not_read(tmp_path: Path) -> None:
    written(tmp_path / "record")
    record = LookRecord.load(tmp_path / "record")
    assert isinstance(record.confidence, np.memmap)
    assert isinstance(record.answer, np.memmap)


def test_a_table_has_the_score_that_was_asked_for_and_the_costs_of_every_node(tmp_path: Path) -> None:
    content = written(tmp_path / "record", about(images=6, looks=2, views=TWO_SIZES))
    record = LookRecord.load(tmp_path / "record")
    for score in ("confidence", "entropy", "value"):
        table = record.table((10, 20, 30), score=score, ms=(1.0, 2.0, 2.5))
        assert np.array_equal(table.score, content[score])
    assert table.sizes == 2
    assert table.looks == 2
    assert table.macs.tolist() == [10.0, 20.0, 30.0]
    assert table.ms is not None
    assert table.ms.tolist() == [1.0, 2.0, 2.5]
    assert table.correct.tolist() == (content["answer"] == content["label"][:, None]).tolist()
    assert record.table((10, 20, 30)).ms is None


def test_the_random_score_repeats_by_its_seed(tmp_path: Path) -> None:
    written(tmp_path / "record", about(images=100))
    record = LookRecord.load(tmp_path / "record")
    one, again, other = (record.table((1, 2, 3), score="random", seed=seed).score for seed in (3, 3, 4))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert one.shape == (100, 3)
    assert 0 <= one.min() < one.max() < 1


def test_an_unknown_score_gets_a_suggestion(tmp_path: Path) -> None:
    written(tmp_path / "record")
    with pytest.raises(UnknownName, match="there is no exit score named 'entropie'. Did you mean 'entropy'?"):
        LookRecord.load(tmp_path / "record").table((1, 2, 3), score="entropie")


@pytest.mark.parametrize("name", ["confidence", "entropy", "value"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_scores_that_are_not_numbers_are_refused_and_nothing_is_left(name: str, number: float, tmp_path: Path) -> None:
    content = columns(4, 3)
    content[name][2, 1] = number
    with (
        pytest.raises(BadData, match="the network's scores are not numbers; its weights are broken"),
        writing_record(tmp_path / "record", about()) as writer,
    ):
        writer.add(**content)
    assert list(tmp_path.iterdir()) == []


class Stopped(BaseException):
    """As if the user pressed Ctrl-C."""


def test_an_interrupted_writing_leaves_nothing(tmp_path: Path) -> None:
    content = columns(2, 3)
    with pytest.raises(Stopped), writing_record(tmp_path / "record", about()) as writer:  # noqa: PT012
        writer.add(**content)
        raise Stopped
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_writing_leaves_an_older_record_as_it_was(tmp_path: Path) -> None:
    content = written(tmp_path / "record")
    with pytest.raises(Stopped), writing_record(tmp_path / "record", about()):
        raise Stopped
    assert np.array_equal(LookRecord.load(tmp_path / "record").confidence, content["confidence"])
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


def test_too_few_images_are_not_a_record(tmp_path: Path) -> None:
    with (
        pytest.raises(BadData, match="3 of 4 images were looked at; the look record was not kept"),
        writing_record(tmp_path / "record", about(images=4)) as writer,
    ):
        writer.add(**columns(3, 3))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(BadData, match="the look record cannot be written to .*file: File exists"),
        writing_record(tmp_path / "file" / "record", about()),
    ):
        pass


def test_a_record_of_another_network_or_other_data_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "record")
    record = LookRecord.load(tmp_path / "record")
    record.check_made_for("net-1")
    record.check_made_for("net-1", "data-1")
    with pytest.raises(BadData, match="made with another network than the bundle's. Leave it out"):
        record.check_made_for("net-2", "data-1")
    with pytest.raises(BadData, match=r"is of other data \(pets, val\). Leave it out: it is made again"):
        record.check_made_for("net-1", "data-2")


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "about.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 3},
        {"views": "32"},
        {"views": [3.5]},
        {"views": []},
        {"views": [True]},
        {"patch_px": [32]},
        {"looks": "three"},
        {"looks": -1},
        {"looks": 10**9},
        {"looks": 60, "views": ["32", "48"]},
        {"images": None},
        {"images": 2.5},
        {"images": 10**12},
        {"source": 3},
        {"more": 1},
    ],
)
def test_a_record_with_a_damaged_description_is_reported(changes: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path / "record")
    edit(tmp_path / "record", **changes)
    wrong = "another format" if "format" in changes else next(iter(changes))
    with pytest.raises(BadData, match=rf"record is not a look record, or it is damaged.*{wrong}"):
        LookRecord.load(tmp_path / "record")


def test_scores_in_a_file_that_are_not_finite_are_reported_when_they_are_used(tmp_path: Path) -> None:
    written(tmp_path / "record")
    scores = np.load(tmp_path / "record" / "value.npy")
    scores[1, 1] = np.nan
    np.save(tmp_path / "record" / "value.npy", scores)
    record = LookRecord.load(tmp_path / "record")
    record.table((1, 2, 3))
    with pytest.raises(BadData, match="of pets is damaged: value holds numbers that are not finite"):
        record.table((1, 2, 3), score="value")


def test_a_full_disk_is_reported_before_the_first_look_and_nothing_is_left(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with (
            pytest.raises(BadData, match="cannot be written to .*: File too large. Make room on the disk"),
            writing_record(tmp_path / "record", about(images=10_000)),
        ):
            raise AssertionError("not reached")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_while_a_record_is_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.posix_fallocate")  # as on systems without it
    content = columns(5_000, 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with (  # noqa: PT012
            pytest.raises(BadData, match="the look record cannot be written to .*: File too large"),
            writing_record(tmp_path / "record", about(images=10_000)) as writer,
        ):
            writer.add(**content)
            resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, hard))
            writer.add(**content)
            raise AssertionError("not reached")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3", "{}", '{"format": 1}'])
def test_a_description_of_something_else_is_reported(content: str, tmp_path: Path) -> None:
    written(tmp_path / "record")
    (tmp_path / "record" / "about.json").write_text(content)
    with pytest.raises(BadData, match="record is not a look record, or it is damaged"):
        LookRecord.load(tmp_path / "record")


@pytest.mark.parametrize("name", ["confidence", "entropy", "value", "answer", "label"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut short", "text", "objects"])
def test_a_damaged_file_is_reported(damage: str, name: str, tmp_path: Path) -> None:
    written(tmp_path / "record")
    file = tmp_path / "record" / f"{name}.npy"
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "objects":
        np.save(file, np.array([{}, None]), allow_pickle=True)
    else:
        file.write_bytes({"empty": b"", "cut short": content[:-5], "text": b"hello"}[damage])
    with pytest.raises(BadData, match="record is not a look record, or it is damaged"):
        LookRecord.load(tmp_path / "record")


@pytest.mark.parametrize("changes", [{"images": 5}, {"looks": 4}, {"views": ["32", "48"]}])
def test_files_that_do_not_fit_together_are_reported(changes: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path / "record")
    edit(tmp_path / "record", **changes)
    with pytest.raises(BadData, match="confidence.npy does not fit the record's other files. Remove the folder"):
        LookRecord.load(tmp_path / "record")


def test_a_folder_of_something_else_is_not_a_look_record(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="is not a look record"):
        LookRecord.load(tmp_path)
    with pytest.raises(BadData, match="is not a look record"):
        LookRecord.load(tmp_path / "none")


def test_a_record_of_the_first_format_is_read(tmp_path: Path) -> None:
    written(tmp_path / "record")
    file = tmp_path / "record" / "about.json"
    plain = json.loads(file.read_text())
    plain |= {"format": 1, "patch_px": [int(name) for name in plain.pop("views")]}
    file.write_text(json.dumps(plain))
    assert LookRecord.load(tmp_path / "record").about.views == ("32",)


def test_candidate_views_are_named_for_people():
    assert [view_label(name) for name in ("96", "whole@160")] == ["96 px", "whole@160"]
    assert view_words(["32", "48"]) == "patches of 32, 48 px"
    assert view_words(["32", "whole@96"]) == "views 32, whole@96"
    assert view_words(["whole@96"]) == "the view whole@96"
