"""Stage III: encoders and classifier go on learning with the learnt aims, which stay as they are (paper, section 3.3)."""

import torch

from glancefocus.adaptive import Policy
from glancefocus.network.policy import RandomSizes
from glancefocus.training.episode import ExploringPolicy, FixedPolicy
from glancefocus.training.stage1_recognise import RecogniseStage


class FinetuneStage(RecogniseStage):
    """Stage I with other aims and its own settings."""

    name = "finetune"

    def aims(self, generator: torch.Generator, each_row: bool = False) -> Policy:
        return FixedPolicy(RandomSizes(self.workshop.net.policy, generator, each_row=each_row))

    def learning_aims(self, generator: torch.Generator) -> Policy:
        aims = self.aims(generator)
        return ExploringPolicy(aims, self.settings.deviation, generator) if self.settings.deviation > 0 else aims
