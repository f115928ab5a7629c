"""Classifiers answer from all looks so far, and remember nothing themselves."""

import pytest
import torch
from torch import nn

from glancefocus.errors import BadSetting
from glancefocus.network.modules import CascadedClassifier, RecurrentClassifier


def vectors(looks: int, batch: int, features: int) -> torch.Tensor:
    return torch.randn(looks, batch, features, generator=torch.Generator().manual_seed(0))


def test_the_recurrent_classifier_is_a_gru_over_the_looks() -> None:
    classifier = RecurrentClassifier(features=6, classes=4, units=5)
    gru = nn.GRU(6, 5)
    gru.load_state_dict({f"{name}_l0": tensor for name, tensor in classifier.gru.state_dict().items()})
    sequence = vectors(4, 3, 6)
    expected, _ = gru(sequence)
    memory = None
    for look, vector in enumerate(sequence, start=1):
        memory = classifier.remember(vector, memory)
        torch.testing.assert_close(memory, expected[look - 1], rtol=0, atol=1e-6)
        assert torch.equal(classifier.answer(memory, look), classifier.linear(memory))


def test_the_recurrent_memory_starts_from_zeros() -> None:
    classifier = RecurrentClassifier(6, 4, 5)
    vector = vectors(1, 3, 6)[0]
    assert torch.equal(classifier.remember(vector, None), classifier.remember(vector, torch.zeros(3, 5)))


def test_the_cascaded_classifier_puts_the_vectors_side_by_side() -> None:
    classifier = CascadedClassifier(features=2, classes=3, looks=3)
    sequence = vectors(3, 4, 2)
    memory = None
    for vector in sequence:
        memory = classifier.remember(vector, memory)
    assert memory is not None
    assert torch.equal(memory, torch.cat(list(sequence), dim=1))
    assert torch.equal(classifier.answer(memory, 3), classifier.linears["3"](memory))
    assert torch.equal(classifier.answer(memory[:, :4], 2), classifier.linears["2"](memory[:, :4]))


def test_the_cascaded_classifier_has_one_layer_for_each_number_of_looks_from_two() -> None:
    classifier = CascadedClassifier(features=10, classes=3, looks=4)
    assert {look: tuple(layer.weight.shape) for look, layer in classifier.linears.items()} == {
        "2": (3, 20),
        "3": (3, 30),
        "4": (3, 40),
    }


@pytest.mark.parametrize("look", [1, 4])
def test_a_look_without_a_layer_is_refused(look: int) -> None:
    with pytest.raises(BadSetting, match=rf"no layer for look {look}, only for \['2', '3'\]"):
        CascadedClassifier(2, 3, looks=3).answer(torch.zeros(1, 2 * look), look)
