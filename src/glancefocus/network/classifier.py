"""Classifiers: what all looks so far say together. Their memory is passed in and out, never kept."""

import torch
from torch import Tensor, nn

from glancefocus.errors import BadSetting


class RecurrentClassifier(nn.Module):
    """A GRU over the looks' vectors and one linear layer shared by all looks (paper, section 3.2 and A.1)."""

    def __init__(self, features: int, classes: int, units: int = 1024) -> None:
        super().__init__()
        self.gru = nn.GRUCell(features, units)
        self.linear = nn.Linear(units, classes)

    def remember(self, vector: Tensor, memory: Tensor | None) -> Tensor:
        """(B, units) the memory after this look."""
        remembered: Tensor = self.gru(vector, memory)
        return remembered

    def answer(self, memory: Tensor, look: int) -> Tensor:
        """(B, classes)"""
        logits: Tensor = self.linear(memory)
        return logits


class CascadedClassifier(nn.Module):
    """One linear layer for each number of looks 2..T on the concatenated vectors (paper, A.1).

    The first look is answered by the glance encoder's own head.
    """

    def __init__(self, features: int, classes: int, looks: int) -> None:
        super().__init__()
        self.linears = nn.ModuleDict({str(look): nn.Linear(look * features, classes) for look in range(2, looks + 1)})

    def remember(self, vector: Tensor, memory: Tensor | None) -> Tensor:
        """(B, looks x features) every vector so far."""
        return vector if memory is None else torch.cat([memory, vector], dim=1)

    def answer(self, memory: Tensor, look: int) -> Tensor:
        """(B, classes)"""
        if str(look) not in self.linears:
            raise BadSetting(f"this cascaded classifier has no layer for look {look}, only for {list(self.linears)}.")
        logits: Tensor = self.linears[str(look)](memory)
        return logits
