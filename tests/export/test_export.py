"""`gf export`: what is written, what it is compared with, and what is refused with nothing written."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.main import main
from glancefocus.errors import BadExport, MissingExtra
from glancefocus.export import contents, deliver
from glancefocus.export.compare import calibration_samples, made_up, open_sample
from glancefocus.export.contents import FORMATS, Format
from glancefocus.export.deliver import Int8, export_bundle
from glancefocus.network.model import GlanceFocus

Described = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="module")
def bundle_folder(exported_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported_bundle.save(tmp_path_factory.mktemp("export") / "bundle")


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["export", *map(str, words)])
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert "Traceback" not in printed.err
    assert printed.out == ""
    return printed.err


def test_an_export_holds_graphs_loop_description_and_readme(onnx_folder: Path, described: Described) -> None:
    about = described(onnx_folder)
    assert sorted(file.name for file in onnx_folder.iterdir()) == [
        *("README.md", "aim_32.onnx", "focus.onnx", "glance.onnx", "glancefocus.json", "looks.onnx", "predict.py"),
    ]
    assert [graph["name"] for graph in about["graphs"]] == ["glance", "aim_32", "focus"]
    assert about["graphs"][2]["inputs"] == [
        {"name": "patches", "shape": ["batch", 3, 32, 32]},
        {"name": "memory", "shape": ["batch", 16]},
    ]
    assert (about["classes"], about["looks"], about["score"]) == (["cat", "dog", "eel"], 3, "confidence")
    assert "same answers" in (onnx_folder / "README.md").read_text()
    assert list(onnx_folder.parent.iterdir()) == [onnx_folder]


def test_candidate_views_are_described_and_have_graphs(onnx_folder_of_views: Path, described: Described) -> None:
    about = described(onnx_folder_of_views)
    assert (about["format"], about["place"]) == (2, True)
    assert about["candidates"] == [
        {"name": "32", "px": 32, "extent": 32, "share": 0.5, "graph": "focus_32"},
        {"name": "0.5@48", "px": 48, "extent": 0.5, "share": 0.5, "graph": "focus_0.5@48"},
        {"name": "40px@48", "px": 48, "extent": 40, "share": 0.625, "graph": "focus_40px@48"},
        {"name": "whole@64", "px": 64, "extent": None, "share": 1.0, "graph": "focus_whole@64"},
    ]
    graphs = {graph["name"]: graph for graph in about["graphs"]}
    names = ["32", "0.5@48", "40px@48", "whole@64"]
    assert graphs.keys() == {"glance", *(f"aim_{name}" for name in names), *(f"focus_{name}" for name in names)}
    assert [given["name"] for given in graphs["aim_0.5@48"]["inputs"]] == [
        *("map", "policy_memory", "next_size", "place"),
    ]
    for graph in graphs.values():
        assert (onnx_folder_of_views / graph["file"]).is_file()
        assert re.fullmatch("[a-z0-9_.@]+[.]onnx", graph["file"])  # safe on every system
    assert list(about["compared"]["ways"]) == [
        *("stopping above thresholds", *(f"every look, {name}" for name in names)),
    ]
    assert "views 32, 0.5@48, 40px@48, whole@64" in (onnx_folder_of_views / "README.md").read_text()
    assert not (onnx_folder_of_views / "looks.onnx").exists()


def test_graphs_with_dots_in_their_names_are_converted_to_openvino(
    onnx_folder_of_views: Path, bundle_of_views: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino", reason="needs the extra openvino")
    monkeypatch.setattr(
        contents, "write_onnx", lambda part, file: shutil.copy(onnx_folder_of_views / f"{part.name}.onnx", file)
    )
    export_bundle(bundle_of_views, tmp_path / "out", "openvino")
    written = {file.name for file in (tmp_path / "out").iterdir()}
    for view in bundle_of_views.settings.focus:
        assert {f"focus_{view}.xml", f"focus_{view}.bin", f"aim_{view}.xml", f"aim_{view}.bin"} <= written


def test_every_way_of_looking_was_compared(onnx_folder: Path, described: Described) -> None:
    compared = described(onnx_folder)["compared"]
    assert compared["source"] == "made-up pictures"
    assert list(compared["ways"]) == ["stopping above thresholds", "every look"]
    for found in compared["ways"].values():
        assert (found["images"], found["same_answers"], found["same_looks"]) == (32, 32, 32)
        assert found["confidence_difference"] < 1e-5
    assert compared["ways"]["stopping above thresholds"]["exits_per_look"][0] == 16
    assert compared["ways"]["every look"]["exits_per_look"] == [0, 0, 32]


def test_the_command_compares_on_the_images_that_are_named(
    bundle_folder: Path,
    onnx_folder: Path,
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    described: Described,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("openvino", reason="needs the extra openvino")
    # OpenVINO converts ONNX graphs, and those of this bundle have been written already.
    monkeypatch.setattr(contents, "write_onnx", lambda part, file: shutil.copy(onnx_folder / f"{part.name}.onnx", file))
    words = ["export", bundle_folder, "--to", "openvino", "-o", tmp_path / "out", "--images", pictures, "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--max-images", "9"])
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["graphs"] == ["glance.xml", "aim_32.xml", "focus.xml"]
    own = printed["compared"]["ways"]["stopping above thresholds"]
    assert (own["images"], own["same_answers"], own["same_looks"]) == (9, 9, 9)
    assert own["accuracy_before"] == own["accuracy_after"] == 1.0  # the folders are named as the network answers
    assert described(tmp_path / "out")["runtime"] == "openvino"


@pytest.fixture
def graphs_of_before(onnx_folder: Path, described: Described, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the graphs that were written before, whatever the network: converting takes seconds."""

    def copy_graphs(net: GlanceFocus, to: Format, folder: Path, progress: Any = None) -> list[dict[str, Any]]:
        graphs: list[dict[str, Any]] = described(onnx_folder)["graphs"]
        for graph in graphs:
            shutil.copy(onnx_folder / graph["file"], folder)
        return graphs

    monkeypatch.setattr(deliver, "write_graphs", copy_graphs)


@pytest.mark.usefixtures("graphs_of_before")
def test_graphs_that_answer_otherwise_are_not_put_in_place(small_bundle: Callable[..., Bundle], tmp_path: Path) -> None:
    with pytest.raises(BadExport, match=r"do not answer as the network does on \d+ of 32 images.*Nothing was written"):
        export_bundle(small_bundle(seed=1), tmp_path / "out", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_left_alone(
    bundle_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    printed = refused(capsys, bundle_folder, "--to", "onnx", "-o", tmp_path)
    assert printed == f"gf: {tmp_path} exists and is not an export; it was left as it is. Choose another place.\n"
    (tmp_path / "glancefocus.json").write_text("{}")
    assert "is not an export" in refused(capsys, bundle_folder, "--to", "onnx", "-o", tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--to", "onxx"], "there is no format named 'onxx'. Did you mean 'onnx'?"),
        (["--to", "onnx", "--int8"], "int8 needs images to calibrate with: name labelled data with --calibrate DATA."),
        (["--to", "onnx", "--calibrate", "signs"], "--calibrate is for int8. Add --int8, or leave it out"),
        (["--to", "litert", "--int8", "--calibrate", "signs"], "int8 is for onnx, openvino, not for litert."),
        (["--to", "onnx", "--max-images", "0"], "--max-images must be a whole number from 1 to 1,000,000, but got 0."),
        (["--to", "onnx", "--images", "sings"], "there is no data set named 'sings'. Did you mean 'signs'?"),
        (
            ["--to", "onnx", "--int8", "--calibrate", "signs", "--max-drop", "-1"],
            "--max-drop must be a number from 0 to 100, but got -1",
        ),
    ],
)
def test_a_mistake_is_reported_in_a_sentence_and_nothing_is_written(
    bundle_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert sentence in refused(capsys, bundle_folder, "-o", tmp_path / "out", *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("to", "package", "advice"),
    [
        ("onnx", "onnxruntime", r"pip install -c constraints.txt -e '.\[export\]' \(in the folder"),
        ("openvino", "openvino", r"pip install -c constraints.txt -e '.\[openvino\]' \(in the folder"),
        ("litert", "litert_torch", "make environment-litert"),
        ("executorch", "executorch", "make environment-executorch"),
    ],
)
def test_a_missing_package_is_reported_with_how_to_install_it(
    exported_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, package: str, advice: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Missing(package), *sys.meta_path])
    with pytest.raises(MissingExtra, match=f"needs the package '{package}'.*{advice}"):
        export_bundle(exported_bundle, tmp_path / "out", to)
    assert list(tmp_path.iterdir()) == []


class _Missing:
    """Finds nothing where one package would be."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=self.package)


def test_an_export_replaces_an_older_one(onnx_folder: Path, exported_bundle: Bundle, tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    (place / "glancefocus.json").write_text((onnx_folder / "glancefocus.json").read_text())
    (place / "old.onnx").write_text("old")
    with deliver._placed(place) as aside:
        (aside / "new").write_text("new")
    assert [file.name for file in place.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [place]


def test_samples_are_spread_over_a_sorted_data_set(exported_bundle: Bundle, pictures: Path) -> None:
    whole = open_sample(exported_bundle, str(pictures))
    some = whole.at_most(5)
    assert (len(whole), len(some)) == (24, 5)
    assert whole.labels is not None
    assert some.labels is not None
    assert (some.labels[0], some.labels[-1]) == (whole.labels[0], whole.labels[-1])
    assert list(whole.labels) == sorted(whole.labels)
    unlabelled = open_sample(exported_bundle, str(next(path for path in pictures.iterdir() if path.is_dir())))
    assert unlabelled.labels is None


def test_images_that_calibrate_do_not_measure(exported_bundle: Bundle, pictures: Path) -> None:
    one, two = calibration_samples(exported_bundle, str(pictures))
    assert set(map(str, one.sources)).isdisjoint(map(str, two.sources))
    assert len(one) + len(two) == 24


@pytest.mark.usefixtures("graphs_of_before")
def test_int8_graphs_are_smaller_and_their_accuracy_is_reported(
    exported_bundle: Bundle, onnx_folder: Path, pictures: Path, tmp_path: Path, described: Described
) -> None:
    about = export_bundle(exported_bundle, tmp_path / "out", "onnx", int8=Int8(str(pictures), max_drop=0.5))
    int8 = about["int8"]
    assert int8 == described(tmp_path / "out")["int8"]
    assert int8["covers"] in ("everything", "convolutions")
    assert (int8["accuracy_before"], int8["calibration_images"], int8["images"]) == (1.0, 12, 12)
    assert int8["accuracy_after"] == about["compared"]["ways"]["stopping above thresholds"]["accuracy_after"]
    whole = {file.name for file in onnx_folder.iterdir()}
    assert {file.name for file in (tmp_path / "out").iterdir()} == whole - {"looks.onnx"}  # that is of full precision
    assert "one_graph" not in about
    glance = tmp_path / "out" / "glance.onnx"
    assert b"QuantizeLinear" in glance.read_bytes()
    assert glance.stat().st_size < (onnx_folder / "glance.onnx").stat().st_size


def test_int8_that_loses_too_much_is_refused(exported_bundle: Bundle) -> None:
    sample = made_up(exported_bundle.settings, count=1)
    with pytest.raises(BadExport, match="in int8 97.0 % of 1 images .* are right, 98.5 % before.*more than 1 points"):
        deliver._refuse_drop(0.985, 0.970, 0.01, sample)
    deliver._refuse_drop(0.985, 0.975, 0.01, sample)


def test_every_format_is_named_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in FORMATS)
