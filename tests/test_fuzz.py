"""Whatever stands in a bundle, a released checkpoint or a look record: an answer or a sentence, in bounded time and memory.

GLANCEFOCUS_FUZZ=2000 tries as many examples of each.
"""

import copy
import gzip
import json
import os
import resource
import shutil
import signal
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.data.split_record import DIGEST_DIGITS, Content, RecordedFile, SplitRecord
from glancefocus.errors import GlancefocusError
from glancefocus.exits.curve import Latency
from glancefocus.exits.record import LookRecord, RecordAbout, writing_record
from glancefocus.machine import device_name
from glancefocus.network import checkpoints as official
from glancefocus.network.model import GlanceFocus
from glancefocus.network.presets import PRESETS, Preset
from glancefocus.network.weights import open_safely

IMAGE = np.zeros((64, 64, 3), dtype=np.uint8)
EXAMPLES = os.environ.get("GLANCEFOCUS_FUZZ")
SLOWEST_S, MOST_MEMORY_KB = 60, 1_500_000


def tries(usually: int) -> settings:
    """This many examples, always the same; if GLANCEFOCUS_FUZZ is set, that many, and new ones each time."""
    count = usually if EXAMPLES is None else int(EXAMPLES)
    checks = list(HealthCheck)
    return settings(
        max_examples=count, derandomize=EXAMPLES is None, deadline=None, database=None, suppress_health_check=checks
    )


ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 64, 10**4, 10**6, 10**9, 10**12, 2**31, 2**63, -(2**63), 10**30),
    *(0.5, -0.5, 1.5, 1e-300, 1e300, -1e18, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "a",
        "3",
        "\ud800",
        "\x1b[31m",
        "hf-hub:x/y",
        "local-dir:/etc",
        "../../etc/passwd",
        "x" * 5000,
        "\n# a",
        "résnet",
    ),
    *([], [0], [1.5], [None], [[1]], [1] * 70, ["a"] * 3, [[]] * 3, [[0.5, 0.5]] * 3, [10**9, 10**9], [0.1, 0.2, 0.3]),
    *({}, {"a": 1}, {"32": 1}, {"": None}, {"thresholds": [0.1, 0.2, 0.0]}),
]


def paths(plain: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value lies: the keys and indexes that lead there."""
    yield so_far
    inside = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in inside:
        yield from paths(value, (*so_far, key))


@st.composite
def changed(draw: st.DrawFn, plain: Any) -> Any:
    """The same with one to three changes: a value that is odd, missing, doubled, deeper or under another name."""
    made = copy.deepcopy(plain)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from([path for path in paths(made) if path]))
        holder = made
        for step in way:
            holder = holder[step]
        what = draw(st.sampled_from(("odd", "odd", "odd", "scaled", "missing", "extra", "nested", "renamed")))
        _change(holder, last, what, copy.deepcopy(draw(st.sampled_from(ODD))))
    return made


def _change(holder: Any, key: Any, what: str, odd: Any) -> None:
    value = holder[key]
    if what == "missing":
        del holder[key]
    elif what == "nested":
        holder[key] = [value]
    elif what == "scaled" and isinstance(value, (int, float)):
        holder[key] = value * (odd if isinstance(odd, (int, float)) else -7)
    elif what == "extra" and isinstance(holder, dict):
        holder["extra"] = odd
    elif what == "extra":
        holder.append(odd)
    elif what == "renamed" and isinstance(holder, dict):
        holder[f"{key}s"] = holder.pop(key)
    else:
        holder[key] = odd


@contextmanager
def bounded() -> Iterator[None]:
    """Fail where the block takes longer than SLOWEST_S, or this process more than MOST_MEMORY_KB beyond what it had."""

    def stop(number: int, frame: types.FrameType | None) -> None:
        raise AssertionError(f"it takes longer than {SLOWEST_S} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SLOWEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert taken < MOST_MEMORY_KB, f"it takes {taken:,} kB"


def use(bundle: Bundle, folder: Path) -> None:
    """Everything that reads the fields of a bundle."""
    for asked in ({}, {"budget_macs": 2e7}, {"budget_ms": 2.0}, {"looks": 2}):
        with suppress(GlancefocusError):
            json.dumps(bundle.predict(IMAGE, **asked).confidence.tolist(), allow_nan=False)
    bundle.update(folder)
    (folder / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def bundle_folder(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    point = {"thresholds": [0.5, 0.6, 0.0], "mean_macs": 6e6, "accuracy": 0.7, "exits_per_look": [3, 2, 1]}
    here = {"device": device_name(torch.device("cpu")), "threads": torch.get_num_threads(), "batch_size": 1}
    bundle = replace(
        small_bundle(thresholds=(0.5, 0.5, 0.0), curve=[point, {**point, "mean_macs": 9e6}], notes={"data": "photos"}),
        temperatures=(1.0, 1.5, 2.0),
        latencies=[Latency(**here, glance_ms=1.0, focus_ms=((1.0,), (1.0,)))],
    )
    return bundle.save(tmp_path_factory.mktemp("fuzz") / "bundle")


@pytest.fixture(scope="module")
def bundle_plain(bundle_folder: Path) -> Any:
    return json.loads((bundle_folder / "bundle.json").read_text())


@tries(200)
@given(data=st.data())
def test_any_field_of_a_bundle(data: st.DataObject, bundle_folder: Path, bundle_plain: Any) -> None:
    (bundle_folder / "bundle.json").write_text(json.dumps(data.draw(changed(bundle_plain))))
    with bounded(), suppress(GlancefocusError):
        use(gf.load(bundle_folder, device="cpu"), bundle_folder)


def _quantised(tensor: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants to be rid of them
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


ODD_TENSORS: list[Callable[[torch.Tensor], Any]] = [
    lambda t: t.to(torch.int8),
    lambda t: t.to(torch.bool),
    lambda t: t.to(torch.complex64),
    lambda t: t.half(),
    lambda t: t.double() * 1e300,
    lambda t: t.float() * torch.nan,
    lambda t: t.float() + torch.inf,
    lambda t: t.float() * 3e38,
    lambda t: t.reshape(-1),
    lambda t: t.reshape(-1)[:0],  # some tensors have no dimension
    lambda t: t[None],
    lambda t: torch.zeros(1, device="meta").expand(10**6, 10**6),
    lambda t: torch.zeros(1).expand(10**5, 10**5),
    lambda t: torch.zeros(()).expand(t.shape),
    lambda t: t.float().to_sparse(),
    lambda t: _quantised(t.float()),
    lambda t: t.tolist(),
    *(lambda t, odd=odd: odd for odd in ODD),
]


@pytest.fixture(scope="module")
def tiny_checkpoint(small_net: Callable[..., GlanceFocus]) -> dict[str, Any]:
    """As the released files are, of a network that is built in a moment."""
    net = small_net(classifier="recurrent")
    encoder = {f"module.{name}": tensor for name, tensor in net.glance_encoder.backbone.state_dict().items()}
    names = {
        "conv.": "state_encoder.0.",
        "linears.0.": "state_encoder.3.",
        "actor.": "actor.0.",
        "critic.": "critic.0.",
    }
    return {
        "model_name": "tiny",
        "patch_size": 32,
        "flops": [1.0, 2.0, 3.0],
        "dynamic_threshold": torch.full((4, 3), 0.5),
        "budgeted_batch_classification": [[1e6, 2e6, 3e6, 4e6], [50.0, 60.0, 70.0, 80.0]],
        "model_prime_state_dict": encoder,
        "model_state_dict": dict(encoder),
        "fc": _renamed(net.classifier.state_dict(), {"linear.": "fc.", "gru.": "rnn."}),
        "policy": _renamed(net.policy.state_dict(), {**names, "gru.": "gru."}),
    }


def _renamed(state: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    made = {}
    for name, tensor in state.items():
        ours = next((ours for ours in names if name.startswith(ours)), "")
        made[names.get(ours, "") + name.removeprefix(ours) + ("_l0" if ours == "gru." else "")] = tensor
    return made


@pytest.fixture
def tiny_model(small_net: Callable[..., GlanceFocus], monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.setitem(official.MODELS, "tiny", "tiny")
    monkeypatch.setitem(PRESETS, "tiny", Preset("tiny", small_net().settings))
    return official


def test_the_tiny_checkpoint_is_one(tiny_checkpoint: Any, tiny_model: types.ModuleType, tmp_path: Path) -> None:
    torch.save(tiny_checkpoint, tmp_path / "a.pth.tar")
    assert len(tiny_model.load_official(tmp_path / "a.pth.tar").curve) == 4


@tries(50)
@given(data=st.data())
def test_any_field_and_tensor_of_a_released_checkpoint(
    data: st.DataObject, tiny_checkpoint: Any, tiny_model: types.ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain = copy.deepcopy(tiny_checkpoint)
    fields = {k: v for k, v in plain.items() if not isinstance(v, (dict, torch.Tensor))}
    made = {**plain, **data.draw(changed(fields))} if data.draw(st.booleans()) else dict(plain)
    for _ in range(data.draw(st.integers(0, 2))):
        part = data.draw(st.sampled_from(sorted(official.PARTS)))
        name = data.draw(st.sampled_from(sorted(plain[part])))
        made[part] = {**plain[part], name: data.draw(st.sampled_from(ODD_TENSORS))(plain[part][name])}
    if data.draw(st.integers(0, 9)) == 0:
        made[data.draw(st.sampled_from(sorted(plain)))] = data.draw(st.sampled_from(ODD))
    new_format, damage = data.draw(st.booleans()), data.draw(DAMAGE)
    looks = data.draw(st.sampled_from((None, None, 2, 0, 10**9)))
    file = tmp_path_factory.getbasetemp() / "fuzzed.pth.tar"
    torch.save(made, file, _use_new_zipfile_serialization=new_format)
    _damage(file, damage)
    with bounded(), suppress(GlancefocusError):
        bundle = gf.load(file, device="cpu", looks=looks)
        use(bundle, bundle.save(tmp_path_factory.getbasetemp() / "imported"))


DAMAGE = (
    st.none()
    | st.none()
    | st.tuples(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255))), st.floats(0.01, 2))
)
"""Which bytes are changed to what; which share of the file is left."""


def _damage(file: Path, damage: tuple[list[tuple[int, int]], float] | None) -> None:
    content = bytearray(file.read_bytes())
    for place, value in damage[0] if damage is not None else ():
        content[place % len(content)] = value
    file.write_bytes(content[: max(1, int(len(content) * (1.0 if damage is None else damage[1])))])


@tries(50)
@given(data=st.data())
def test_any_weights_file_of_a_bundle(data: st.DataObject, bundle_folder: Path, bundle_plain: Any) -> None:
    (bundle_folder / "bundle.json").write_text(json.dumps(bundle_plain))
    file, kept = bundle_folder / "model.safetensors", bundle_folder.with_name("kept.safetensors")
    if not kept.exists():
        shutil.copy(file, kept)
    tensors = safetensors.torch.load_file(kept)
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(tensors)))
        made = data.draw(st.sampled_from(ODD_TENSORS))(tensors[name])
        if (
            isinstance(made, torch.Tensor)
            and made.layout is torch.strided
            and not made.is_quantized
            and made.numel() < 10**6
        ):
            tensors[name] = made.contiguous()
    safetensors.torch.save_file(tensors, file)
    _damage(file, data.draw(DAMAGE))
    try:
        with bounded(), suppress(GlancefocusError):
            use(gf.load(bundle_folder, device="cpu"), bundle_folder)
    finally:
        shutil.copy(kept, file)


@tries(200)
@given(content=st.binary(max_size=400), start=st.sampled_from([b"PK\x03\x04", b"\x80\x02", b"", b"\x80\x02}q\x00X"]))
def test_any_bytes_as_a_checkpoint(content: bytes, start: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any.pth"
    file.write_bytes(start + content)
    with bounded(), suppress(GlancefocusError):
        open_safely(file)


ARRAYS: list[Callable[[], Any]] = [
    lambda: np.zeros((6, 3), np.float64),
    lambda: np.zeros((6, 4), np.float32),
    lambda: np.full((6, 3), np.nan, np.float32),
    lambda: np.full((6, 3), np.inf, np.float32),
    lambda: np.full((6, 3), 7.0, np.float32),
    lambda: np.array([[None] * 3] * 6, dtype=object),
    lambda: np.zeros((), np.float32),
    lambda: np.zeros((0, 3), np.float32),
    lambda: np.asfortranarray(np.zeros((6, 3), np.float32)),
    lambda: np.zeros(6, dtype=[("a", "<f4")]),
]


@pytest.fixture(scope="module")
def record_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record") / "val"
    about = RecordAbout("net", "data", "photos", "val", 6, 3, ("32",))
    scores = np.full((6, 3), 0.5, np.float32)
    with writing_record(folder, about) as writer:
        writer.add(np.zeros(6), confidence=scores, entropy=scores, value=scores, answer=np.zeros((6, 3)))
    return folder


@tries(200)
@given(data=st.data())
def test_any_look_record(data: st.DataObject, record_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed-record"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(record_folder, folder)
    if data.draw(st.booleans()):
        about = json.loads((folder / "about.json").read_text())
        (folder / "about.json").write_text(json.dumps(data.draw(changed(about))))
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(("confidence", "entropy", "value", "answer", "label")))
        np.save(folder / f"{name}.npy", data.draw(st.sampled_from(ARRAYS))())
        _damage(folder / f"{name}.npy", data.draw(DAMAGE))
    with bounded(), suppress(GlancefocusError):
        record = LookRecord.load(folder)
        for score in ("confidence", "entropy", "value", "random"):
            table = record.table((1, 2, 3), score=score)
            json.dumps(table.point(table.stay()), allow_nan=False)


@pytest.fixture(scope="module")
def split_lines() -> list[Any]:
    files = [RecordedFile(split, f"{split}/{n}.png", n % 2, Content(100 + n, f"{n:0{DIGEST_DIGITS}x}"))
             for n, split in enumerate(("train", "train", "val", "test"))]  # fmt: skip
    record = SplitRecord.of("photos", ("cat", "dog"), files, val_share=0.2, seed=0)
    return [json.loads(line) for line in gzip.decompress(record.packed).splitlines()]


@tries(200)
@given(data=st.data())
def test_any_record_of_a_split(
    data: st.DataObject, split_lines: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = data.draw(changed(split_lines))
    file = tmp_path_factory.getbasetemp() / "split.jsonl.gz"
    file.write_bytes(gzip.compress("".join(f"{json.dumps(line)}\n" for line in made).encode(), 1))
    _damage(file, data.draw(DAMAGE))
    with bounded(), suppress(GlancefocusError):
        record = SplitRecord(file.read_bytes(), "split.jsonl.gz")
        assert len(record.classes) >= 0
        assert record.may_know(100) in (True, False)
        record.with_choosing(("val",))
