"""A checkpoint is read field by field: what is damaged or foreign is refused by its name, and nothing is trained."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glancefocus.errors import BadRun
from glancefocus.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("_tiny_world")
Tiny = Callable[..., TrainSettings]
TRIES = int(os.environ.get("GLANCEFOCUS_FUZZ", "200"))


@pytest.fixture(scope="module")
def half_done(
    _tiny_world: None, tiny_settings: Tiny, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainSettings, dict[str, Any]]:
    """The checkpoint of a joint stage, which has two optimisers, after its first epoch of two."""
    folder = tmp_path_factory.mktemp("run")
    found = tiny_settings(stages=["point", "joint"], point={"epochs": 1}, joint={"epochs": 1})
    train(found, folder, quiet=True)
    whole = tiny_settings(stages=["point", "joint"], point={"epochs": 1}, joint={"epochs": 2})
    kept: dict[str, Any] = {}

    class Enough(BaseException):
        pass

    with pytest.MonkeyPatch.context() as patch:

        def keep(file: Path, content: Checkpoint) -> None:
            save_checkpoint(file, content)
            if content.stage == 1 and content.epoch == 1:
                kept.update(torch.load(file, weights_only=True))
                raise Enough

        patch.setattr("glancefocus.training.loop.save_checkpoint", keep)
        with pytest.raises(Enough):
            train(whole, tmp_path_factory.mktemp("whole"), quiet=True)
    return whole, kept


def changed(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy in which one field has another value; path names it with dots."""
    first, _, rest = (path, "", "") if path in content else path.partition(".")  # names of tensors have dots
    key: Any = int(first) if first.isdigit() else first
    if isinstance(content, list):
        return [changed(part, rest, value) if number == key else part for number, part in enumerate(content)]  # type: ignore[return-value]
    copy = dict(content)
    if rest:
        copy[key] = changed(content[key], rest, value)
    elif value is DELETED:
        del copy[key]
    else:
        copy[key] = value(content[key]) if callable(value) else value
    return copy


DELETED = object()
WEIGHT = "net.classifier.linear.bias"
WRONG: list[tuple[str, Any, str]] = [
    ("stage", 99, "stage is 99, but there are 2 stages"),
    ("stage", -1, "stage must not be negative, but is -1"),
    ("stage", True, "stage must be a whole number, but is True"),
    ("epoch", "1", "epoch must be a whole number, but is '1'"),
    ("epoch", 7, "epoch 7 and step 0 are beyond the 2 epochs of 3 steps of the stage joint"),
    ("step", 1.0, "step must be a whole number, but is 1.0"),
    ("step", 99, "epoch 1 and step 99 are beyond"),
    ("plan", ["point", "dance"], "plan names 'dance', which is not a stage"),
    ("plan", "joint", "plan must be a list of stages"),
    ("net", DELETED, "net is missing"),
    ("sums", DELETED, "sums is missing"),
    ("sums", {"loss": "much"}, "sums.loss must be a finite number, but is 'much'"),
    ("sums", {"loss": float("nan")}, "sums.loss must be a finite number, but is nan"),
    ("journal_length", -5, "journal_length must not be negative"),
    (WEIGHT, DELETED, "net.classifier.linear.bias is missing"),
    ("net.more", torch.zeros(1), "net.more is unknown"),
    (WEIGHT, 3, "net.classifier.linear.bias must be a tensor, but is 3"),
    (WEIGHT, torch.zeros(3), r"net.classifier.linear.bias must be of shape \[5\]"),
    (WEIGHT, lambda t: t.double(), "net.classifier.linear.bias must be of .* but is .*float64"),
    (WEIGHT, lambda t: t.to_sparse(), "(?s)net.classifier.linear.bias must be a dense tensor|sparse tensors"),
    (WEIGHT, lambda t: t / 0, "net.classifier.linear.bias holds numbers that are not finite"),
    ("optimizer", 3, "optimizer must be a table"),
    ("optimizer.state", DELETED, "optimizer.state is missing"),
    ("optimizer.param_groups", [], "optimizer.param_groups has 0 groups, but 1 are needed"),
    ("optimizer.param_groups.0.params", [5], r"optimizer.param_groups\[0\] is not that of this stage"),
    ("optimizer.param_groups.0.lr", float("inf"), r"optimizer.param_groups\[0\].lr must be a finite number"),
    ("optimizer.state.0.exp_avg", torch.zeros(2), "optimizer.state.0.exp_avg must be of shape"),
    ("optimizer.state.0.exp_avg", lambda t: t * float("nan"), "optimizer.state.0.exp_avg holds numbers that are"),
    ("optimizer.state.0.step", "x", "optimizer.state.0.step must be a finite number"),
    ("stage_state.best_policy", DELETED, "stage_state.best_policy is missing"),
    ("stage_state.best_policy", {"x": torch.zeros(1)}, "stage_state.best_policy.* is missing"),
    ("stage_state.best_accuracy", 0.5, "stage_state.best_accuracy must be a list of numbers"),
    ("stage_state.recognise_optimizer.state.0.momentum_buffer", torch.zeros(2), "stage_state.recognise_optimizer.state.0"),
    ("evidence.centre", torch.zeros(3, 3), r"evidence.centre must be of shape \[3, 2\]"),
    ("evidence.seen_by", 5, "evidence.seen_by must be a text"),
    ("scaler", [], "scaler must be a table"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "said"), WRONG, ids=[f"{path}-{n}" for n, (path, _, _) in enumerate(WRONG)])
def test_a_field_that_is_wrong_is_named(
    path: str, value: Any, said: str, half_done: tuple[TrainSettings, dict[str, Any]], tmp_path: Path
) -> None:
    whole, content = half_done
    train_settings_only(whole, tmp_path)
    torch.save(changed(content, path, value), tmp_path / "last.ckpt")
    before = (tmp_path / "last.ckpt").read_bytes()
    with pytest.raises(BadRun, match=said) as error:
        train(whole, tmp_path, quiet=True)
    assert "last.ckpt" in str(error.value)
    assert "Delete it to start this run again" in str(error.value)
    assert (tmp_path / "last.ckpt").read_bytes() == before


def train_settings_only(whole: TrainSettings, folder: Path) -> None:
    from glancefocus.training.run_folder import locked, prepare_folder

    with locked(folder):
        prepare_folder(folder, whole)


def test_a_checkpoint_is_resumed(half_done: tuple[TrainSettings, dict[str, Any]], tmp_path: Path) -> None:
    whole, content = half_done
    train_settings_only(whole, tmp_path)
    torch.save(content, tmp_path / "last.ckpt")
    train(whole, tmp_path, quiet=True)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["stage"] == 2


def test_a_checkpoint_of_version_0_1_0_is_resumed(
    half_done: tuple[TrainSettings, dict[str, Any]], tmp_path: Path
) -> None:
    """It has a field that is not used any more, and its folder a file that is not written any more."""
    whole, content = half_done
    train_settings_only(whole, tmp_path)
    (tmp_path / "best.safetensors").write_bytes(b"not read")
    torch.save({**content, "best_accuracy": 0.75}, tmp_path / "last.ckpt")
    train(whole, tmp_path, quiet=True)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["stage"] == 2


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from([torch.zeros(2), torch.tensor(float("nan")), torch.zeros(2, dtype=torch.complex64)]),
)


@settings(max_examples=TRIES, deadline=None)
@given(name=st.sampled_from([*Checkpoint.__dataclass_fields__, "format"]), value=ODD)
def test_no_value_of_any_field_is_a_traceback(name: str, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.ckpt"
    good = {
        "format": 1,
        "plan": ["aim"],
        "stage": 0,
        "epoch": 0,
        "step": 0,
        "net": {},
        "evidence": None,
        "optimizer": None,
        "stage_state": {},
        "scaler": None,
        "sums": {},
        "journal_length": 0,
    }
    torch.save({**good, name: value}, file)
    try:
        found = load_checkpoint(file)
    except BadRun as error:
        assert name in str(error) or name == "format"  # noqa: PT017
    else:
        assert found is not None
        assert 0 <= found.stage <= len(found.plan)
