"""Every runtime answers as the network does, and the fastest is chosen by measuring."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glancefocus.errors import BadSetting, MissingExtra, UnknownName
from glancefocus.look import as_scene
from glancefocus.loop import CandidateRule, ExitRule, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import Part, take_apart, with_best
from glancefocus.outcome import Outcome
from glancefocus.runtime import choose
from glancefocus.runtime.choose import (
    CHOICES_FILE,
    RuntimeOptions,
    graphs_of,
    installed,
    made_up_images,
    open_backbone,
    open_runtime,
)
from glancefocus.runtime.onnx_writing import part_fingerprint

CPU = torch.device("cpu")


def outcome(net: GlanceFocus, looking: Any) -> Outcome:
    """Of 8 images of noise, of which about a half leaves after each look."""
    settings = net.settings
    scene = as_scene(made_up_images(settings, 8, CPU))
    with torch.inference_mode():
        score = net.glance(scene).confidence.sort().values
        low, middle, high = (float(score[i - 1 : i + 1].mean()) for i in (2, 4, 6))  # between two images, never on one
        count = len(settings.candidates)
        if count == 1:
            rule = ExitRule([middle] * settings.looks)
        else:
            rule = CandidateRule([[low, middle, high][-count:]] * settings.looks, candidates=count)
        return look_until_sure(looking, scene, rule)


@pytest.mark.parametrize("runtime", ["plain", "eager", "onnx", "openvino"])
def test_every_runtime_gives_the_same_answers_after_the_same_looks(
    small_net: Callable[..., GlanceFocus], graph_cache: Path, kind: dict[str, Any], runtime: str
) -> None:
    net = small_net(**kind)
    expected = outcome(net, net)
    found = outcome(net, open_runtime(net, runtime, cache=graph_cache))
    assert len(set(expected.looks.tolist())) > 1
    assert torch.equal(found.looks, expected.looks)
    assert torch.equal(found.sure, expected.sure)
    assert torch.equal(found.candidate, expected.candidate)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.answer_after, expected.answer_after)
    torch.testing.assert_close(
        found.confidence_after.nan_to_num(), expected.confidence_after.nan_to_num(), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(found.where.nan_to_num(), expected.where.nan_to_num(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("runtime", ["plain", "eager", "onnx", "openvino"])
def test_the_plain_backbone_runs_in_every_runtime_too(
    small_net: Callable[..., GlanceFocus], graph_cache: Path, runtime: str
) -> None:
    net = small_net()
    images = made_up_images(net.settings, 3, CPU)
    with torch.inference_mode():
        expected = net.focus_encoder.own_head(net.focus_encoder(images).vector)
    answer = open_backbone(net, runtime, cache=graph_cache)
    torch.testing.assert_close(answer(images), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(answer(images[:1]), expected[:1], rtol=1e-4, atol=1e-4)


def test_light_weights_leave_the_answers_nearly_as_they_were(
    small_net: Callable[..., GlanceFocus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights keep 7 bits, and so do inputs: each of the few products in a row may be off by about 1/127."""
    monkeypatch.setattr("glancefocus.runtime.onnx_writing.HEAVY", 0)  # heads of small networks are not worth it
    net = small_net()
    images = made_up_images(net.settings, 4, CPU)
    light = open_runtime(net, "onnx", cache=tmp_path, options=RuntimeOptions(light_weights=True))
    with torch.inference_mode():
        expected, found = net.glance(images), light.glance(images)
        aims = net.policy.aim(expected), light.policy.aim(found)
    spread = expected.logits.abs().max()
    assert 0 < (found.logits - expected.logits).abs().max() < 0.05 * spread
    assert (aims[0].where - aims[1].where).abs().max() < 0.02
    assert (found.map - expected.map).abs().max() < 0.05 * expected.map.abs().max()


def test_the_cache_forgets_what_was_not_used_for_the_longest_time(
    small_net: Callable[..., GlanceFocus], graph_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = small_net()
    parts = [with_best(part) for part in take_apart(net)]
    with graphs_of(parts, graph_cache) as files:
        shutil.copytree(next(iter(files.values())).parent, tmp_path / "graphs")
    own = [tmp_path / "graphs" / file.name for file in files.values()]
    hashes = [file.with_name(f"{file.name}.sha256") for file in own]
    for file in (tmp_path / "graphs").iterdir():
        if file not in [*own, *hashes]:
            file.unlink()
    for days, name in ((3, "old"), (1, "new"), (2, "older")):
        (tmp_path / "graphs" / f"{name}.onnx").write_bytes(bytes(1000))
        os.utime(tmp_path / "graphs" / f"{name}.onnx", (1e9 - 86400 * days,) * 2)
    (tmp_path / "graphs" / ".half.onnx.1").mkdir()
    monkeypatch.setattr(choose, "MOST_KEPT_BYTES", sum(file.stat().st_size for file in [*own, *hashes]) + 2500)
    own[0].rename(own[0].with_suffix(".away"))
    monkeypatch.setattr(choose, "write_onnx", lambda part, file: file.with_suffix(".away").rename(file))
    with graphs_of(parts, tmp_path):
        left = {file.name for file in (tmp_path / "graphs").iterdir()}
    assert left == {*(file.name for file in [*own, *hashes]), "new.onnx", "older.onnx", ".half.onnx.1", ".lock"}


def test_a_graph_that_was_changed_in_the_cache_is_written_again_and_never_run(
    small_net: Callable[..., GlanceFocus], graph_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = small_net()
    parts = [with_best(part) for part in take_apart(net)]
    with graphs_of(parts, graph_cache) as files:
        (tmp_path / "graphs").mkdir()
        for file in files.values():
            for each in (file, file.with_name(f"{file.name}.sha256")):
                shutil.copy(each, tmp_path / "graphs")
    kept = {name: tmp_path / "graphs" / file.name for name, file in files.items()}
    whole = {name: file.read_bytes() for name, file in kept.items()}
    rewritten: list[str] = []

    def write(part: Part, file: Path) -> None:
        rewritten.append(part.name)
        file.write_bytes(whole[part.name])

    monkeypatch.setattr(choose, "write_onnx", write)
    changed, other, *_ = kept
    kept[changed].write_bytes(whole[changed][:-1] + b"x")
    kept[other].with_name(f"{kept[other].name}.sha256").unlink()
    for expected in ([changed, other], []):
        rewritten.clear()
        with graphs_of(parts, tmp_path) as files:
            assert sorted(rewritten) == sorted(expected)
            assert {name: file.read_bytes() for name, file in files.items()} == whole


def test_the_cache_of_graphs_is_private_and_its_lock_is_never_a_link(
    small_net: Callable[..., GlanceFocus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(choose, "write_onnx", lambda part, file: file.write_bytes(b"graph"))
    (tmp_path / "precious").write_text("mine")
    parts = take_apart(small_net())
    with graphs_of(parts):
        pass
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    (tmp_path / "cache" / "graphs" / ".lock").unlink()
    (tmp_path / "cache" / "graphs" / ".lock").symlink_to(tmp_path / "precious")
    with graphs_of(parts):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_graphs_come_out_of_the_cache_the_second_time(
    small_net: Callable[..., GlanceFocus], graph_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = small_net()
    open_runtime(net, "onnx", cache=graph_cache)
    monkeypatch.setattr("glancefocus.runtime.choose.write_onnx", None)
    open_runtime(net, "openvino", cache=graph_cache)
    with torch.no_grad():
        net.classifier.linear.bias += 1
    with pytest.raises(TypeError), graphs_of(take_apart(net), graph_cache):
        pass  # other weights are another graph, which would have to be written


def test_graphs_of_the_same_weights_differ_where_a_view_is_another_candidate(
    small_net: Callable[..., GlanceFocus],
) -> None:
    """A summed classifier has a weight for each candidate, and 48 is the second one here, the first one there."""
    one, other = (
        take_apart(small_net(focus=focus, classifier="summed")) for focus in (("32", "48"), ("48", "whole@48"))
    )
    first, second = (next(part for part in parts if part.name == "focus_48") for parts in (one, other))
    second.module.load_state_dict(first.module.state_dict())
    assert part_fingerprint(first) != part_fingerprint(second)


def test_exported_graphs_are_run_instead_of_the_cache(
    small_net: Callable[..., GlanceFocus], graph_cache: Path, tmp_path: Path
) -> None:
    net = small_net()
    with graphs_of(take_apart(net), graph_cache) as files:
        for part, file in files.items():
            (tmp_path / f"{part}.onnx").write_bytes(file.read_bytes())
    options = RuntimeOptions(graphs=tmp_path)
    expected = outcome(net, net)
    for runtime in ("onnx", "openvino"):
        found = outcome(net, open_runtime(net, runtime, cache=None, options=options))
        assert torch.equal(found.looks, expected.looks)
    (tmp_path / "glance.onnx").write_bytes(b"no graph")
    for runtime, name in (("onnx", "ONNX Runtime"), ("openvino", "OpenVINO")):
        with pytest.raises(BadSetting, match=f"glance.onnx is not a graph that {name} can run"):
            open_runtime(net, runtime, cache=None, options=options)
    (tmp_path / "glance.onnx").unlink()
    with pytest.raises(BadSetting, match="has no graph glance.onnx, which this network needs"):
        open_runtime(net, "onnx", options=options)


def test_auto_measures_once_and_remembers(
    small_net: Callable[..., GlanceFocus], graph_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = small_net()
    asked = []

    def slow_but_openvino(networks: dict[str, Any], images: torch.Tensor) -> dict[str, float]:
        asked.append((sorted(networks), images.shape[0]))
        return {name: 1.0 if name == "openvino" else 2.0 for name in networks}

    monkeypatch.setattr(choose, "measure", slow_but_openvino)
    for batch in (2, 2, 5):
        looking = open_runtime(net, "auto", batch=batch, cache=graph_cache)
        assert type(looking.runner.run).__name__ == "OpenVinoRunner"  # type: ignore[union-attr]
    assert asked == [(["eager", "onnx", "openvino"], 2), (["eager", "onnx", "openvino"], 5)]
    choices = json.loads((graph_cache / CHOICES_FILE).read_text())
    assert {choice["runtime"] for choice in choices.values()} == {"openvino"}
    assert len(choices) == 2
    (graph_cache / CHOICES_FILE).write_text("{")  # damaged: as good as none
    open_runtime(net, "auto", batch=2, cache=graph_cache)
    assert len(asked) == 3


def test_auto_really_measures(small_net: Callable[..., GlanceFocus], graph_cache: Path, tmp_path: Path) -> None:
    net = small_net()
    (tmp_path / "graphs").symlink_to(graph_cache / "graphs")
    expected = outcome(net, net)
    found = outcome(net, open_runtime(net, "auto", cache=tmp_path))
    assert torch.equal(found.looks, expected.looks)
    (choice,) = json.loads((tmp_path / CHOICES_FILE).read_text()).values()
    assert choice["runtime"] == min(choice["ms"], key=choice["ms"].get)
    assert all(ms > 0 for ms in choice["ms"].values())


def test_mistakes_are_reported(small_net: Callable[..., GlanceFocus], monkeypatch: pytest.MonkeyPatch) -> None:
    net = small_net()
    with pytest.raises(UnknownName, match="no runtime named 'onxx'. Did you mean 'onnx'"):
        open_runtime(net, "onxx")
    with pytest.raises(UnknownName, match="no runtime named 'auto'"):
        open_backbone(net, "auto")
    with pytest.raises(BadSetting, match="threads must be a whole number from 1 to .*, but got 0"):
        open_runtime(net, "eager", threads=0)
    with pytest.raises(BadSetting, match="light_weights is for the runtime onnx, not for 'openvino'"):
        open_runtime(net, "openvino", options=RuntimeOptions(light_weights=True))
    with pytest.raises(BadSetting, match="'auto' chooses by itself"):
        open_runtime(net, "auto", options=RuntimeOptions(light_weights=True))
    with pytest.raises(BadSetting, match="batch must be a whole number from 1 to 65,536, but got 0"):
        open_runtime(net, "auto", batch=0)


@pytest.mark.parametrize(
    ("runtime", "missing", "extra"), [("onnx", "onnxruntime", "export"), ("openvino", "openvino", "openvino")]
)
def test_a_missing_package_says_which_extra_to_install(
    small_net: Callable[..., GlanceFocus],
    graph_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    runtime: str,
    missing: str,
    extra: str,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    with pytest.raises(
        MissingExtra,
        match=f"needs the package '{missing}'. Install it with: pip install -c constraints.txt -e '..{extra}.'",
    ):
        open_runtime(small_net(), runtime, cache=graph_cache)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    assert runtime not in installed(CPU)


def test_threads_are_set_for_torch_and_the_runtime(small_net: Callable[..., GlanceFocus], graph_cache: Path) -> None:
    before = torch.get_num_threads()
    try:
        looking = open_runtime(small_net(), "onnx", threads=2, cache=graph_cache)
        assert torch.get_num_threads() == 2
        for session in looking.runner.run.sessions.values():  # type: ignore[attr-defined]
            assert session.get_session_options().intra_op_num_threads == 2
    finally:
        torch.set_num_threads(before)
