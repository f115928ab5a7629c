"""Temperatures that calibrate confidences, and the calibration error."""

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from glancefocus.data.splits import MemorySplit
from glancefocus.evaluation import choosing
from glancefocus.evaluation.assess import reliability
from glancefocus.evaluation.choosing import best_temperature, fit_temperatures
from glancefocus.network.model import GlanceFocus


def calibrated() -> tuple[Tensor, Tensor]:
    """Four images with confidence 0.75, three of them right, and ten with 0.9, nine of them right."""
    odds = torch.tensor([3.0] * 4 + [9.0] * 10)
    logits = torch.stack([odds.log(), torch.zeros(14)], dim=1)
    return logits, torch.tensor([0, 0, 0, 1] + [0] * 9 + [1])


@pytest.mark.parametrize("factor", [1.0, 3.0, 0.25])
def test_the_temperature_undoes_a_factor_of_the_logits(factor: float) -> None:
    logits, labels = calibrated()
    assert best_temperature(factor * logits, labels) == pytest.approx(factor, rel=0.001)


def test_a_known_temperature_is_recovered_from_answers_that_were_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40_000, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    plain = best_temperature(logits, labels)
    assert plain == pytest.approx(1, rel=0.02)
    assert best_temperature(3 * logits, labels) == pytest.approx(3 * plain, rel=0.01)


def test_a_temperature_stays_between_its_ends() -> None:
    logits = torch.tensor([[0.1, 0.0], [0.1, 0.0]])
    assert best_temperature(logits, torch.tensor([0, 0])) == pytest.approx(0.05, rel=0.01)  # always right: ever surer
    assert best_temperature(logits, torch.tensor([1, 1])) == pytest.approx(20, rel=0.01)  # always wrong: never sure
    assert best_temperature(logits, torch.tensor([0, 1])) == pytest.approx(20, rel=0.01)  # no better than chance


def test_every_look_gets_its_own_temperature(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net()
    with torch.no_grad():
        for parameter in net.classifier.parameters():
            parameter.mul_(4)
    pixels = torch.randint(0, 256, (12, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    split = MemorySplit(pixels, torch.arange(12) % 3, net.settings.view)
    expected = []
    with torch.inference_mode():
        images, labels = next(iter(split.batches([range(12)])))
        look = net.glance(images)
        for number in (1, 2, 3):
            expected.append(best_temperature(look.logits, labels))
            look = net.focus(look, net.policy.aim(look)) if number < 3 else look
    assert fit_temperatures(net, split, batch_size=5) == pytest.approx(expected, rel=0.001)


class NotedSplit:
    """Noise, with a note of which images were asked for."""

    def __init__(self, count: int) -> None:
        self.labels = torch.arange(count) % 3
        self.boxes: Tensor | None = None
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for indexes in order:
            self.asked += indexes
            yield torch.randn(len(indexes), 3, 64, 64), self.labels[list(indexes)]


def test_a_sample_is_enough_for_a_temperature(
    small_net: Callable[..., GlanceFocus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "MOST_FOR_TEMPERATURES", 5)
    split = NotedSplit(12)
    assert len(fit_temperatures(small_net(), split)) == 3
    assert split.asked == [0, 3, 6, 9]  # every third of twelve is at most five, and spread over all


def test_bins_are_means_over_confidences_of_equal_width() -> None:
    confidence = torch.tensor([0.31, 0.35, 0.39, 0.5, 0.98, 1.0])
    correct = torch.tensor([True, False, False, True, True, False])
    bins, error = reliability(confidence, correct, bins=5)  # 0 to 0.2, to 0.4, to 0.6, to 0.8, to 1
    assert [entry["count"] for entry in bins] == [0, 3, 1, 0, 2]
    assert [entry["confidence"] for entry in bins] == pytest.approx([0.1, 0.35, 0.5, 0.7, 0.99], abs=1e-6)
    assert [entry["accuracy"] for entry in bins] == pytest.approx([0, 1 / 3, 1, 0, 0.5], abs=1e-6)
    # (3 x |0.35 - 1/3| + 1 x |0.5 - 1| + 2 x |0.99 - 0.5|) / 6
    assert error == pytest.approx((0.05 + 0.5 + 0.98) / 6, abs=1e-6)


def test_calibrated_confidences_have_no_calibration_error() -> None:
    logits, labels = calibrated()
    confidence, answer = logits.softmax(dim=1).max(dim=1)
    _, error = reliability(confidence, answer == labels)
    assert error == pytest.approx(0, abs=1e-6)
    surer, _ = (3 * logits).softmax(dim=1).max(dim=1)
    _, error = reliability(surer, answer == labels)
    # odds of 27 and 729: 0.964 instead of 0.75, and 0.999 instead of 0.9
    assert error == pytest.approx((4 * (27 / 28 - 0.75) + 10 * (729 / 730 - 0.9)) / 14, abs=1e-6)
    assert math.isfinite(error)
