"""The paper's checkpoints give the authors' answers here; anything else than such a checkpoint gives one sentence."""

import builtins
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import glancefocus as gf
from glancefocus.errors import BadCheckpoint, UnknownName
from glancefocus.look import Look
from glancefocus.loop import ExitRule
from glancefocus.network.build import build
from glancefocus.network.checkpoints import (
    MODELS,
    classifier_tensors,
    encoder_tensors,
    load_official,
    policy_tensors,
)
from glancefocus.network.model import GlanceFocus
from glancefocus.network.presets import PRESETS

ANSWERED = ("densenet121_96", "efficientnet_b2_128", "mobilenetv3_large_100_96", "regnety_600m_96", "resnet50_96")


def answers(net: GlanceFocus, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (looks, B, classes) and locations (looks - 1, B, 2) of every look."""
    logits, locations = [], []
    with torch.inference_mode():
        look = net.glance(images)
        logits.append(look.logits)
        while look.number < net.settings.looks:
            look = net.focus(look, net.policy.aim(look))
            logits.append(look.logits)
            assert look.aim is not None
            locations.append(look.aim.where)
    return torch.stack(logits), torch.stack(locations)


def saved(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


# Both key styles among the five models: each family has its own code for names, none has any for the prefix.
@pytest.mark.parametrize(("model", "bare"), [(name, index % 2 == 1) for index, name in enumerate(ANSWERED)])
def test_the_papers_models_answer_as_the_authors_code_does(
    model: str, bare: bool, official: types.ModuleType, tmp_path: Path
) -> None:
    path = saved(official.checkpoint(model, bare=bare), tmp_path / "model.pth.tar")
    net = load_official(path).net
    expected = official.answers(model)
    logits, locations = answers(net, official.images(official.MODELS[model].image_px))
    assert logits.shape == (official.MODELS[model].looks, 2, 1000)
    off = (logits[:, :, :50] - expected["logits"]).abs().amax(dim=(1, 2)) / expected["largest"]
    assert float(off.max()) < 1e-3
    assert float((locations - expected["locations"]).abs().max()) < 1e-4


@pytest.fixture(scope="module")
def mobilenet(official: types.ModuleType) -> dict[str, Any]:
    content: dict[str, Any] = official.checkpoint("mobilenetv3_large_100_96")
    return content


FIELDS = ("model_name", "patch_size", "flops")


def untold(content: dict[str, Any]) -> dict[str, Any]:
    """As the authors' training script saves it: no `module.`, nothing said about what it is, optimisers inside."""
    bare = {
        part: {name.removeprefix("module."): tensor for name, tensor in content[part].items()}
        for part in ("model_prime_state_dict", "model_state_dict", "fc", "policy")
    }
    return {**bare, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}, "epoch": 3}


def test_both_key_styles_and_told_or_untold_give_the_same_network(mobilenet: dict[str, Any], tmp_path: Path) -> None:
    told = load_official(saved(mobilenet, tmp_path / "told.pth.tar")).net
    path = saved(untold(mobilenet), tmp_path / "untold.pth.tar")
    given = load_official(path, model="mobilenetv3_large_100", patch_px=96, looks=3).net
    assert given.settings == told.settings
    one, two = told.state_dict(), given.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_gf_load_gives_a_bundle_that_answers_with_names(mobilenet: dict[str, Any], tmp_path: Path) -> None:
    bundle = gf.load(saved(mobilenet, tmp_path / "model.pth.tar"), device="cpu")
    assert len(set(bundle.classes)) == 1000
    assert bundle.classes[207] == "golden retriever"
    outcome = bundle.predict(torch.rand(1, 3, 224, 224))
    assert outcome.label[0] in bundle.classes
    assert outcome.looks.tolist() == [3]  # the file has no thresholds


def test_what_the_file_does_not_say_must_be_given(mobilenet: dict[str, Any], tmp_path: Path) -> None:
    path = saved(untold(mobilenet), tmp_path / "untold.pth.tar")
    with pytest.raises(BadCheckpoint, match=r"does not say its model. Give it: --model \(in Python model=\)"):
        load_official(path)
    with pytest.raises(BadCheckpoint, match=r"does not say its patch-px. Give it: --patch-px \(in Python patch_px=\)"):
        load_official(path, model="mobilenetv3_large_100")
    with pytest.raises(BadCheckpoint, match=r"does not say its looks. Give it: --looks"):
        load_official(path, model="mobilenetv3_large_100", patch_px=96)


def test_what_is_given_may_not_contradict_the_file(mobilenet: dict[str, Any], tmp_path: Path) -> None:
    path = saved(mobilenet, tmp_path / "model.pth.tar")
    with pytest.raises(BadCheckpoint, match="says that its model is 'mobilenetv3_large_100', not 'resnet50'"):
        load_official(path, model="resnet50")
    with pytest.raises(BadCheckpoint, match="says that its patch-px is 96, not 128"):
        load_official(path, patch_px=128)
    with pytest.raises(BadCheckpoint, match="was made for 3 looks, not for 4"):
        load_official(path, looks=4)


def test_fewer_looks_than_the_file_has_may_be_taken(mobilenet: dict[str, Any], tmp_path: Path) -> None:
    net = load_official(saved(mobilenet, tmp_path / "model.pth.tar"), looks=2).net
    assert net.settings.looks == 2
    assert [n for n in net.state_dict() if n.startswith("classifier.")] == [
        "classifier.linears.2.weight",
        "classifier.linears.2.bias",
    ]


def test_a_misspelt_model_gets_a_suggestion(mobilenet: dict[str, Any], tmp_path: Path) -> None:
    path = saved(untold(mobilenet), tmp_path / "untold.pth.tar")
    with pytest.raises(UnknownName, match="no model of the paper named 'resnet5'. Did you mean 'resnet50'"):
        load_official(path, model="resnet5", patch_px=96, looks=3)


def test_another_model_than_the_files_says_what_does_not_fit(mobilenet: dict[str, Any], tmp_path: Path) -> None:
    path = saved(untold(mobilenet), tmp_path / "untold.pth.tar")
    with pytest.raises(BadCheckpoint, match=r"does not fit the glance encoder: of its tensors .* of another shape"):
        load_official(path, model="mobilenetv3_large_125", patch_px=96, looks=3)
    with pytest.raises(BadCheckpoint, match=r"does not fit the policy: .*linears.0.weight is \(256, 288\) instead of"):
        load_official(path, model="mobilenetv3_large_100", patch_px=128, looks=3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("patch_size", 7),
        ("patch_size", "96"),
        ("patch_size", 10**30),
        ("model_name", ["resnet50"]),
        ("flops", "three"),
        ("flops", torch.tensor(3.0)),
        ("flops", [1.0] * 10_001),
        ("budgeted_batch_classification", [[1e8], [70.0]]),
        ("budgeted_batch_classification", {"macs": 1}),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_its_name(
    field: str, value: Any, mobilenet: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(BadCheckpoint, match=field):
        load_official(saved({**with_thresholds(mobilenet), field: value}, tmp_path / "model.pth.tar"))


@pytest.mark.parametrize(
    "model",
    ["mobilenetv3_large_125_128", "densenet201_96", "regnety_1.6g_96", "efficientnet_b3_144", "regnety_600m_96"],
)
def test_the_names_and_shapes_of_other_models_are_all_found(model: str, official: types.ModuleType) -> None:
    facts = official.MODELS[model]
    preset = PRESETS[MODELS[facts.name]].settings
    settings = replace(preset, glance_px=facts.patch_px, focus=(str(facts.patch_px),), looks=facts.looks)
    with torch.device("meta"):
        net = build(settings)
        parts = {
            part: {name: torch.empty(shape) for name, shape in tensors.items()}
            for part, tensors in official.shapes(model).items()
        }
    found = {
        "glance_encoder.backbone": encoder_tensors(parts["model_prime_state_dict"]),
        "focus_encoder.backbone": encoder_tensors(parts["model_state_dict"]),
        "classifier": classifier_tensors(parts["fc"], facts.looks),
        "policy": policy_tensors(parts["policy"]),
    }
    ours = {name: tuple(t.shape) for name, t in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    theirs = {
        f"{part}.{name}": tuple(tensor.shape)
        for part, tensors in found.items()
        for name, tensor in tensors.items()
        if not name.endswith("num_batches_tracked")
    }
    assert theirs == ours


def test_a_deviation_that_is_stored_with_the_policy_is_left_out(official: types.ModuleType) -> None:
    stored = {name: torch.empty(shape) for name, shape in official.shapes("resnet50_96")["policy"].items()}
    assert "action_var" not in stored  # a plain attribute in the released code, which is not saved
    with_deviation = policy_tensors({**stored, "action_var": torch.full((2,), 0.1)})
    assert with_deviation.keys() == policy_tensors(stored).keys()


def with_thresholds(content: dict[str, Any], **more: Any) -> dict[str, Any]:
    """39 operating points: the first lets everybody go at once, the last nobody before the end."""
    table = torch.full((39, 3), 0.5)
    table[:, 0] = torch.linspace(0.3, 1.0, 39)
    table[0, 0], table[38, 0], table[:, 2] = -1e8, 1e8, -1e8
    return {**content, "dynamic_threshold": table, **more}


def test_the_thresholds_in_the_file_become_the_curve(
    mobilenet: dict[str, Any], tmp_path: Path, look_with: Callable[..., Look]
) -> None:
    macs, accuracy = [1e8 + i * 1e6 for i in range(39)], [70.0 + min(i, 30) / 10 for i in range(39)]
    content = with_thresholds(mobilenet, budgeted_batch_classification=[macs, accuracy])
    curve = load_official(saved(content, tmp_path / "model.pth.tar")).curve
    assert len(curve) == 39
    assert curve[0]["thresholds"][0] == 0.0
    assert curve[38]["thresholds"][0] == 1.0
    assert {point["thresholds"][2] for point in curve} == {0.0}
    assert (curve[5]["mean_macs"], curve[5]["accuracy"]) == (1.05e8, pytest.approx(0.705))
    # The authors let an image go at a threshold, we above it: one exactly at it must leave here too.
    at_half = look_with([0.5], number=2)
    assert at_half.confidence.item() == 0.5
    rule = ExitRule(curve[5]["thresholds"])
    assert rule.leaves(at_half).item()
    assert rule.thresholds[1] == pytest.approx(0.5, abs=1e-7)
    assert rule.leaves(look_with([0.4, 0.9])).all().item()


def test_the_bundle_stops_at_the_cheapest_point_that_is_as_good_as_the_best(
    mobilenet: dict[str, Any], tmp_path: Path
) -> None:
    macs, accuracy = [1e8 + i * 1e6 for i in range(39)], [70.0 + min(i, 30) / 10 for i in range(39)]
    content = with_thresholds(mobilenet, budgeted_batch_classification=[macs, accuracy])
    bundle = gf.load(saved(content, tmp_path / "model.pth.tar"), device="cpu")
    # The best is 73.0 from point 30 on; 72.9 of point 29 is within a tenth of a percentage point.
    assert bundle.thresholds == tuple(bundle.curve[29]["thresholds"])
    assert list(bundle.exit_rule(budget_macs=1.1e8).thresholds) == bundle.curve[10]["thresholds"]


def test_without_accuracies_the_bundle_takes_the_middle_point(mobilenet: dict[str, Any], tmp_path: Path) -> None:
    bundle = gf.load(saved(with_thresholds(mobilenet), tmp_path / "model.pth.tar"), device="cpu")
    assert bundle.thresholds == tuple(bundle.curve[19]["thresholds"])


@pytest.mark.parametrize("table", [torch.zeros(39, 4), [[0.1, 0.2], [0.1]], "high"])
def test_thresholds_of_another_shape_are_refused(table: Any, mobilenet: dict[str, Any], tmp_path: Path) -> None:
    path = saved({**mobilenet, "dynamic_threshold": table}, tmp_path / "model.pth.tar")
    with pytest.raises(BadCheckpoint, match="the checkpoint's thresholds"):
        load_official(path)


class Hostile:
    """A pickle that, when opened trustingly, would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return builtins.open, (str(self.path), "w")


@pytest.mark.parametrize("new_format", [True, False])
def test_a_hostile_pickle_is_refused_and_does_nothing(
    new_format: bool, mobilenet: dict[str, Any], tmp_path: Path
) -> None:
    target, path = tmp_path / "written-by-the-pickle", tmp_path / "model.pth.tar"
    content = {**mobilenet, "flops": Hostile(target)}
    torch.save(content, path, _use_new_zipfile_serialization=new_format)
    with pytest.raises(BadCheckpoint, match="opening it could run foreign code; it was not opened"):
        load_official(path)
    assert not target.exists()


@pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
def test_a_truncated_file_is_said_to_be_damaged(share: float, tmp_path: Path) -> None:
    path = saved({"model_state_dict": {"weight": torch.zeros(10_000)}}, tmp_path / "model.pth.tar")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(BadCheckpoint, match="is not a torch checkpoint, or it is damaged"):
        load_official(path)


@pytest.mark.parametrize("content", [b"accuracy: 0.9\n", b"\x00", b"\x89PNG\r\n", b'{"model": 1}', b"\x80\x02}q\x00X"])
def test_a_file_of_another_kind_is_not_a_checkpoint(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pth.tar"
    path.write_bytes(content)
    with pytest.raises(BadCheckpoint, match="is not a torch checkpoint, or it is damaged"):
        load_official(path)


@pytest.mark.parametrize("content", [{"state_dict": {"w": torch.zeros(3)}}, [1, 2], torch.zeros(3), {"fc": 1}])
def test_a_checkpoint_of_something_else_says_what_it_must_hold(content: Any, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="is not a checkpoint of the paper: it must hold model_prime_state_dict"):
        load_official(saved(content, tmp_path / "model.pth.tar"))


def test_a_missing_file_an_empty_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="there is no checkpoint at"):
        load_official(tmp_path / "none.pth.tar")
    with pytest.raises(BadCheckpoint, match="is a folder, not a checkpoint"):
        load_official(tmp_path)
    (tmp_path / "empty.pth.tar").touch()
    with pytest.raises(BadCheckpoint, match="is empty"):
        load_official(tmp_path / "empty.pth.tar")
