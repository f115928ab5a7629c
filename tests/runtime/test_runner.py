"""A network taken apart answers as the whole one does."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from glancefocus.loop import every_look, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import take_apart
from glancefocus.network.policy import RandomCandidates
from glancefocus.runtime.runner import PartsRunner


def in_parts(net: GlanceFocus) -> GlanceFocus:
    modules = {part.name: part.module for part in take_apart(net)}

    def run(part: str, *inputs: Tensor) -> Sequence[Tensor]:
        outputs = modules[part](*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else outputs

    return net.computed_by(PartsRunner.of(net, run), "parts")


def test_parts_answer_as_the_whole(small_net: Callable[..., GlanceFocus], kind: dict[str, Any]) -> None:
    net = small_net(**kind).eval()
    settings = net.settings
    frames = () if settings.frames == 1 else (settings.frames,)
    scene = torch.randn(8, *frames, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    rule = every_look(settings.looks)
    answers = []
    for looking in (net, in_parts(net)):
        sizes = RandomCandidates(looking.policy, torch.Generator().manual_seed(0), each_row=True)  # type: ignore[arg-type]
        with torch.inference_mode():
            answers.append(look_until_sure(looking, scene, rule, sizes))
    whole, parts = answers
    assert set(whole.candidate.flatten().tolist()) == set(range(len(settings.candidates)))
    assert torch.equal(whole.looks, parts.looks)
    assert torch.equal(whole.candidate, parts.candidate)
    for one, other in ((whole.logits, parts.logits), (whole.where.nan_to_num(), parts.where.nan_to_num())):
        torch.testing.assert_close(one, other)


def test_examples_fit_the_parts(small_net: Callable[..., GlanceFocus], kind: dict[str, Any]) -> None:
    for part in take_apart(small_net(**kind)):
        for px in part.px or (None,):
            with torch.inference_mode():
                outputs = part.module(*part.example(2, px))
            outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
            assert len(outputs) == len(part.outputs)
            assert {output.shape[0] for output in outputs} == {2}
