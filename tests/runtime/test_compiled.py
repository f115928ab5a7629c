"""torch.compile: the same answers for any batch."""

from collections.abc import Callable

import pytest
import torch

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.loop import every_look, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import Part, take_apart
from glancefocus.network.policy import RandomCandidates
from glancefocus.runtime.backends import CompiledRunner, EagerRunner
from glancefocus.runtime.choose import made_up_images
from glancefocus.runtime.runner import PartsRunner

# torch's own insides, while it compiles
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@pytest.fixture
def parts(small_net: Callable[..., GlanceFocus]) -> list[Part]:
    return take_apart(small_net(classifier="cascaded", first_answer="own_head", looks=2))


def test_compiled_parts_answer_as_eager_ones_for_any_batch(parts: list[Part]) -> None:
    aim, answer = (next(part for part in parts if part.name == name) for name in ("aim_32", "answer_2"))
    compiled, eager = CompiledRunner(parts, backend="eager"), EagerRunner(parts)
    for part in (aim, answer):
        for batch in (1, 3, 2):
            inputs = part.example(batch, generator=torch.Generator().manual_seed(batch))
            for one, other in zip(compiled(part.name, *inputs), eager(part.name, *inputs), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_compiled_views_of_every_kind_answer_as_eager_ones(small_net: Callable[..., GlanceFocus]) -> None:
    policy = {"units": 16, "conv_channels": 4, "place": True}
    net = small_net(focus=("48", "0.5@48", "whole@64"), classifier="summed", policy=policy)
    parts = take_apart(net)
    images = made_up_images(net.settings, 6, torch.device("cpu"))
    outcomes = []
    for run in (CompiledRunner(parts, backend="eager"), EagerRunner(parts)):
        looking = net.computed_by(PartsRunner.of(net, run))
        views = RandomCandidates(looking.policy, torch.Generator().manual_seed(0), each_row=True)  # type: ignore[arg-type]
        with torch.no_grad():
            outcomes.append(look_until_sure(looking, images, every_look(3), views))
    compiled, eager = outcomes
    assert set(eager.candidate.flatten().tolist()) == {0, 1, 2}
    torch.testing.assert_close(compiled.logits, eager.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(compiled.where, eager.where, rtol=1e-5, atol=1e-5)


def test_torch_really_compiles(parts: list[Part]) -> None:
    """One product, which needs no compiler: kernels in C++ take torch half a minute."""
    answer = parts[-1]
    compiled = CompiledRunner([answer])
    inputs = answer.example(2, generator=torch.Generator().manual_seed(0))
    (logits,) = compiled("answer_2", *inputs)
    with torch.inference_mode():
        torch.testing.assert_close(logits, answer.module(*inputs), rtol=1e-5, atol=1e-5)
    assert not logits.requires_grad


def test_without_a_compiler_there_is_one_clear_sentence(parts: list[Part], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BadSetting, match="needs a C\\+\\+ compiler, and there is no no-such-compiler"):
        CompiledRunner(parts)


def test_an_unknown_mode_gets_a_suggestion(parts: list[Part]) -> None:
    with pytest.raises(UnknownName, match="no mode of torch.compile named 'reduce-overheads'. Did you mean 'reduce-ov"):
        CompiledRunner(parts, mode="reduce-overheads")
