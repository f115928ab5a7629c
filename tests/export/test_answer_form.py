"""`gf predict` and exported programs print the same answers in the same form, as docs/predict.md describes it."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.main import main
from glancefocus.export.predict import FIELDS, FRAME_FIELDS
from glancefocus.settings import View

TYPES: dict[str, type | tuple[type, ...]] = {
    "file": str,
    "label": str,
    "confidence": float,
    "looks": int,
    "sure": bool,
    "threshold": (float, type(None)),
    "where": list,
    "boxes": list,
    "patch_px": list,
    "views": list,
    "cost_macs": int,
    "top": list,
    "notes": list,
}
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "predict.md"


def check_form(answered: dict[str, Any]) -> None:
    """Fails unless this is what docs/predict.md promises."""
    if "error" in answered:
        assert list(answered) == ["file", "error"]
        assert isinstance(answered["error"], str)
        return
    assert tuple(answered) == FIELDS
    for name, kind in TYPES.items():
        assert isinstance(answered[name], kind), (name, answered[name])
    focus_looks = answered["looks"] - 1
    assert len(answered["where"]) == len(answered["boxes"]) == focus_looks
    assert len(answered["patch_px"]) == len(answered["views"]) == focus_looks
    assert all(isinstance(share, float) and len(place) == 2 for place in answered["where"] for share in place)
    assert all(isinstance(edge, int) and len(box) == 4 for box in answered["boxes"] for edge in box)
    assert all(isinstance(px, int) for px in answered["patch_px"])
    assert all(View.parse(name).px == px for name, px in zip(answered["views"], answered["patch_px"], strict=True))
    assert all(list(one) == ["label", "confidence"] for one in answered["top"])
    assert all(isinstance(note, str) for note in answered["notes"])
    assert (answered["threshold"] is None) == (not answered["sure"])


@pytest.fixture
def asked(pictures: Path, grey: Path, tmp_path: Path) -> list[Path]:
    """Pictures that leave after several looks, one that is upscaled, and one that cannot be read."""
    (tmp_path / "broken.png").write_bytes(b"no picture")
    from PIL import Image

    Image.new("RGB", (20, 9), "red").save(tmp_path / "small.png")
    return [*sorted(pictures.rglob("*.png"))[:6], tmp_path / "broken.png", grey, tmp_path / "small.png"]


def printed_by_gf(bundle: Bundle, folder: Path, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    bundle.save(folder / "bundle")
    with pytest.raises(SystemExit):
        main(["predict", str(folder / "bundle"), *map(str, words)])
    return capsys.readouterr().out


def printed_by_program(folder: Path, *words: object) -> str:
    command = [sys.executable, str(folder / "predict.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def read(text: str, form: str) -> list[dict[str, Any]]:
    if form == "json":
        return list(json.loads(text))
    if form == "jsonl":
        return [json.loads(line) for line in text.splitlines()]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert all(tuple(row) == (*FIELDS, "error") for row in rows)
    return [_from_csv(row) for row in rows]


def _from_csv(row: dict[str, str]) -> dict[str, Any]:
    if row["error"]:
        return {"file": row["file"], "error": row["error"]}
    texts = ("file", "label")
    return {name: row[name] if name in texts else json.loads(row[name] or "null") for name in FIELDS}


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_both_print_the_same_in_the_same_form(
    form: str,
    onnx_folder: Path,
    exported_bundle: Bundle,
    asked: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*asked, f"--{form}", "--topk", 2)
    ours = read(printed_by_gf(exported_bundle, tmp_path, capsys, *words), form)
    theirs = read(printed_by_program(onnx_folder, *words), form)
    assert len(ours) == len(theirs) == len(asked)
    assert len({answered.get("looks") for answered in ours}) > 2
    for one, other in zip(ours, theirs, strict=True):
        check_form(one)
        check_form(other)
        for name in ("file", "label", "looks", "sure", "threshold", "boxes", "patch_px", "views", "cost_macs", "notes"):
            assert one.get(name) == other.get(name), name
        if "error" not in one:
            assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-4)
            assert [t["label"] for t in one["top"]] == [t["label"] for t in other["top"]]
    assert [answered["notes"] for answered in ours if answered.get("notes")] == [["upscaled from 20x9 px"]]


def test_both_name_the_views_of_a_network_that_has_every_kind(
    onnx_folder_of_views: Path,
    bundle_of_views: Bundle,
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = sorted(pictures.rglob("*.png"))
    ours = read(printed_by_gf(bundle_of_views, tmp_path, capsys, *files, "--jsonl"), "jsonl")
    theirs = read(printed_by_program(onnx_folder_of_views, *files, "--jsonl"), "jsonl")
    assert {name for answered in ours for name in answered["views"]} == set(bundle_of_views.settings.focus)
    for one, other in zip(ours, theirs, strict=True):
        check_form(one)
        check_form(other)
        for name in ("file", "label", "looks", "sure", "threshold", "boxes", "patch_px", "views", "cost_macs"):
            assert one[name] == other[name], name


def test_one_picture_has_the_same_form_as_several(
    onnx_folder: Path, exported_bundle: Bundle, grey: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (
        printed_by_gf(exported_bundle, tmp_path, capsys, grey, "--json"),
        printed_by_program(onnx_folder, grey, "--json"),
    ):
        (answered,) = json.loads(text)
        check_form(answered)


def test_an_exported_program_prints_lines_of_json_by_default(onnx_folder: Path, grey: Path) -> None:
    assert printed_by_program(onnx_folder, grey) == printed_by_program(onnx_folder, grey, "--jsonl")


def test_the_document_names_every_field_with_its_kind() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    kinds = {str: "text", float: "number", int: "integer", bool: "true or false", list: "list"}
    for name, kind in TYPES.items():
        first = kind if isinstance(kind, type) else kind[0]
        assert f"| `{name}` | {kinds[first]}" in text
    for name in (*FRAME_FIELDS, "error"):
        assert f"| `{name}` |" in text
