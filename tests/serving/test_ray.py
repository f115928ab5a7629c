"""Answers on many machines. What needs a cluster is in benchmarks/ray_check.py: nodes and replicas that are killed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.predict import PredictOptions, predict
from glancefocus.cli.serve import ServeOptions
from glancefocus.errors import BadSetting

pytest.importorskip("ray", reason="this needs Ray: pip install 'glancefocus[ray]'")
import pyarrow as pa
import pyarrow.parquet as pq

from glancefocus.serving import ray_jobs
from glancefocus.serving.ray_jobs import SCHEMA, Job, Worker, finished, predict_files


@pytest.fixture(scope="module")
def folder(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle on disk."""
    path = tmp_path_factory.mktemp("bundle") / "bundle"
    small_bundle(thresholds=(0.3, 0.3, 0.0)).save(path)
    return path


@pytest.fixture
def worker(folder: Path) -> Callable[..., Worker]:
    return lambda done=(), **stopping: Worker(Job(str(folder), stopping, 2, {}), frozenset(done))


def rows(png: Callable[..., bytes], count: int, column: str = "bytes") -> pa.Table:
    return pa.Table.from_pylist([{"file": f"{number}.png", column: png(number)} for number in range(count)])


@pytest.mark.parametrize("column", ["bytes", "png"])
def test_a_worker_answers_rows_as_the_bundle_does(
    worker: Callable[..., Worker], png: Callable[..., bytes], folder: Path, column: str
) -> None:
    made = worker(looks=3)
    answers = made(rows(png, 4, column))
    assert answers.schema == SCHEMA
    expected = made.bundle.predict([png(number) for number in range(4)], looks=3).answers(2)
    for found, other in zip(answers.to_pylist(), expected, strict=True):
        assert {name: found[name] for name in ("label", "looks", "cost_macs", "views", "top")} == {
            name: other[name] for name in ("label", "looks", "cost_macs", "views", "top")
        }
        torch.testing.assert_close(torch.tensor(found["where"]), torch.tensor(other["where"]), rtol=0, atol=1e-6)
        assert len(found["boxes"]) == 2
        assert found["error"] is None
    assert [row["file"] for row in answers.to_pylist()] == ["0.png", "1.png", "2.png", "3.png"]


def test_images_as_hugging_face_stores_them_are_read(worker: Callable[..., Worker], png: Callable[..., bytes]) -> None:
    table = pa.Table.from_pylist([{"id": 7, "image": {"bytes": png(1), "path": None}}])
    (answer,) = worker()(table).to_pylist()
    assert (answer["file"], answer["error"]) == ("7", None)


def test_a_picture_that_cannot_be_read_has_an_error_and_the_others_an_answer(
    worker: Callable[..., Worker], png: Callable[..., bytes]
) -> None:
    table = pa.Table.from_pylist([{"file": "a.png", "bytes": b"no picture"}, {"file": "b.png", "bytes": png(1)}])
    bad, good = worker()(table).to_pylist()
    assert bad["label"] is None
    assert "a.png" in bad["error"]
    assert good["label"] is not None
    only_bad = worker()(table.slice(0, 1)).to_pylist()
    assert [row["error"] for row in only_bad] == [bad["error"]]


def test_files_that_were_answered_are_skipped(worker: Callable[..., Worker], png: Callable[..., bytes]) -> None:
    answers = worker(done=["0.png", "2.png"])(rows(png, 4))
    assert answers.column("file").to_pylist() == ["1.png", "3.png"]
    assert worker(done=["0.png"])(rows(png, 1)).num_rows == 0


def test_rows_without_a_name_are_refused(worker: Callable[..., Worker], png: Callable[..., bytes]) -> None:
    with pytest.raises(BadSetting, match="every row needs a name, but there is none of the columns file, path"):
        worker()(pa.Table.from_pylist([{"bytes": png(1)}]))


def test_answers_that_were_not_written_to_their_end_are_removed(tmp_path: Path) -> None:
    answers = [{"file": "a.png", "error": None}, {"file": "b.png", "error": "broken"}]
    pq.write_table(pa.Table.from_pylist(answers, schema=SCHEMA), tmp_path / "1.parquet")
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "2.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "3.parquet").write_bytes(b"")
    assert finished(tmp_path) == {"a.png": False, "b.png": True}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1.parquet"]


def test_parquet_files_of_others_are_not_removed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(BadSetting, match="does not have the columns of answers"):
        finished(tmp_path)
    assert (tmp_path / "other.parquet").is_file()


def test_a_folder_whose_pictures_are_all_answered_has_no_rows(tmp_path: Path, png: Callable[..., bytes]) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    assert ray_jobs._rows(tmp_path, {str(tmp_path / "a.png")}) is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("missing", "there is no file or folder"), ("words.txt", "neither a folder nor a .parquet or .tar file")],
)
def test_a_source_that_is_none_is_refused(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "words.txt").write_text("words")
    with pytest.raises(BadSetting, match=sentence):
        ray_jobs._rows(tmp_path / name, ())


def test_wrong_thresholds_are_refused_before_a_cluster_is_started(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="threshold"):
        predict_files(folder, tmp_path, tmp_path / "out", thresholds=[0.5])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "name it with --output"),
        ({"output": Path("out"), "files": ["a", "b"]}, "but got 2 names"),
        ({"output": Path("out"), "csv": True}, "--csv does not go together with --ray"),
    ],
)
def test_options_that_do_not_go_together_with_ray_are_refused(changes: dict[str, Any], sentence: str) -> None:
    options = {"bundle": "b", "files": ["a"], "ray": True, **changes}
    with pytest.raises(BadSetting, match=sentence):
        predict(PredictOptions(**options))


def test_replicas_are_for_ray() -> None:
    with pytest.raises(BadSetting, match="are for --ray"):
        ServeOptions(["b"], replicas=2)
    with pytest.raises(BadSetting, match="--max-replicas 1 is below --replicas 2"):
        ServeOptions(["b"], ray=True, replicas=2, max_replicas=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own code
def test_the_application_of_ray_serve_has_the_limits_of_the_server() -> None:
    from glancefocus.serving.ray_server import Scaling, application

    deployment = application({"a": "b"}, scaling=Scaling(2, 5))._bound_deployment
    assert deployment.max_ongoing_requests == 256
    found = deployment._deployment_config.autoscaling_config
    assert (found.min_replicas, found.max_replicas) == (2, 5)
    assert application({"a": "b"}, scaling=Scaling(3, 3))._bound_deployment.num_replicas == 3
