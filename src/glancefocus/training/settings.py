"""Every number of training, with the paper's value (A.2-A.4) for each family of backbones as the default."""

import math
from dataclasses import dataclass, field
from typing import Literal

from glancefocus.data.sources import DataSettings
from glancefocus.data.worlds.names import WORLDS
from glancefocus.errors import BadSetting
from glancefocus.settings import NetworkSettings, check_fields
from glancefocus.values import (
    BatchSize,
    Epochs,
    InnerShare,
    Mebibytes,
    Minutes,
    PartialShare,
    Passes,
    Pixels,
    PositiveRate,
    Rate,
    Rounds,
    Scenes,
    Seed,
    Share,
    TrainBatchSize,
    Weight,
    WeightDecay,
)

STAGES = ("small", "backbone", "small_glance", "glance", "recognise", "point", "aim", "finetune", "joint")
# What a user may say for them; the paper numbers its stages.
STAGE_WORDS = {
    "initialise": ("backbone", "glance"),
    "1": ("recognise",),
    "2": ("aim",),
    "3": ("finetune",),
    **{name: (name,) for name in STAGES},
}
_MOST_STAGES = 100
Reward = Literal["contrastive", "increment", "cross_entropy"]


@dataclass(frozen=True)
class InitialiseSettings:
    """Training one encoder with its own head: on whole images (the baseline to beat), or on glances.

    optimizer  sgd: Nesterov momentum 0.9; adamw
    warmup     the rate grows from zero over this share of the stage, then falls along a cosine
    fresh      the glance encoder starts from nothing instead of from the focus encoder (the paper's way); better where small
               things look altogether different at low resolution. After a stage small_glance it goes on from there.
    evidence_weight  of a second loss of the glance encoder (beyond the paper; 0: none): its map is to show where the focus encoder,
               seeing whole images, finds its evidence for the label. Of small things labels alone teach a glance little.
    """

    epochs: Epochs = 90
    lr: Rate = 0.1
    weight_decay: WeightDecay = 1e-4
    optimizer: Literal["sgd", "adamw"] = "sgd"
    label_smoothing: PartialShare = 0.0
    warmup: Share = 0.0
    fresh: bool = False
    evidence_weight: Weight = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class SmallSettings(InitialiseSettings):
    """Training an encoder first on small scenes of a built-in world (beyond the paper).

    What matters is as large in small scenes as in whole ones, and there is less beside it: a network that finds nothing to hold on
    to in whole scenes learns what to look for here, in a fraction of the time. The glance encoder sees glances in which things are
    as small as in those of whole scenes.

    side_px  of the small scenes
    scenes   (train, val)
    """

    side_px: Pixels = 96
    scenes: tuple[Scenes, Scenes] = (2000, 200)


@dataclass(frozen=True)
class RecogniseSettings:
    """Stages I and III: encoders and classifier, by the loss of Eq. 9.

    own_head_weight  lambda of Eq. 9
    freeze_glance    keep the glance encoder as initialised (MobileNetV3, EfficientNet)
    freeze_encoders  train the classifier only (video)
    deviation        of the aims that stage III learns with, around where the policy aims: where images do not change from epoch to
                     epoch, patches do; 0, the paper's: exactly there. Stage I aims at random anyway.
    mistaken_glances  the share of images after whose glance the classifier remembers that of another image (beyond the paper): it
                     learns that patches may prove a glance wrong, which happens more often in new images than in those that the
                     glance encoder learnt from; 0: none
    """

    epochs: Epochs = 60
    encoder_lr: Rate = 0.01
    classifier_lr: Rate = 0.1
    weight_decay: WeightDecay = 1e-4
    own_head_weight: Weight = 1.0
    freeze_glance: bool = False
    freeze_encoders: bool = False
    deviation: PartialShare = 0.0
    mistaken_glances: PartialShare = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class PolicyTraining:
    """What the stages that train the policy share.

    deviation      of the aims that it learns from, around where it would aim, a share of the image
    deviation_end  it goes from `deviation` to this along the stage; None: it stays
    lr_end         the same for the rate: steps grow as the deviation shrinks, so that narrow exploration wants a falling rate
    """

    epochs: Epochs = 15
    lr: PositiveRate = 3e-4
    lr_end: PositiveRate | None = None
    deviation: PositiveRate = 0.1
    deviation_end: PositiveRate | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        stage = "point" if isinstance(self, PointSettings) else "aim"
        if self.lr_end is not None and self.lr_end > self.lr:
            raise BadSetting(
                f"the rate falls from {stage}.lr to {stage}.lr_end, but got {self.lr} and {self.lr_end}. Lower the end, too."
            )
        if stage == "point" and self.deviation_end is not None and self.deviation_end > self.deviation:
            raise BadSetting(
                f"the deviation falls from point.deviation to point.deviation_end, but got {self.deviation} and "
                f"{self.deviation_end}. Lower the end, too."
            )


@dataclass(frozen=True)
class PointSettings(PolicyTraining):
    """Teaching the policy where the backbone, seeing whole images, finds the evidence for their labels (beyond the paper).

    Of patches that miss by chance it learns nothing, since it does not get to know by how much; of those that miss by its own
    mistake it learns to set itself right. So the deviation falls.
    """

    epochs: Epochs = 5
    lr: PositiveRate = 1e-3
    lr_end: PositiveRate | None = 1e-4
    deviation: PositiveRate = 0.05
    deviation_end: PositiveRate | None = 0.005


@dataclass(frozen=True)
class AimSettings(PolicyTraining):
    """Stage II: PPO on the frozen network (A.2).

    judge              who says what a patch was worth, by the probability of the label: the classifier after all looks so far, the
                       paper's; or, with the contrastive reward, the focus encoder's own head by the patch alone (beyond the
                       paper), which has something to say of images, too, that the glance knew already: where these are many,
                       policies learn from all of them
    monte_carlo        random patches a look that the contrastive reward compares with
    passes             over each batch; with 1, as in the paper, the ratio is 1 and the clip never acts
    gae_lambda         generalised advantages; None: discounted returns less the critic's value, as in the paper
    normalise_returns  over looks and batch, as the released code does
    compare_together   the random patches of the contrastive reward go through the network in one batch with the chosen ones, which
                       is faster and takes as much more memory
    """

    reward: Reward = "contrastive"
    judge: Literal["classifier", "own_head"] = "classifier"
    monte_carlo: Passes = 1
    discount: Share = 0.7
    clip: InnerShare = 0.2
    value_weight: Weight = 0.5
    entropy_weight: Weight = 0.01
    passes: Passes = 1
    gae_lambda: Share | None = None
    normalise_returns: bool = True
    compare_together: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge == "own_head" and self.reward != "contrastive":
            raise BadSetting(
                f"aim.judge=own_head goes with aim.reward=contrastive only, but got {self.reward}: "
                "a patch alone says nothing of the one before it."
            )


@dataclass(frozen=True)
class JointSettings:
    """One stage instead of three: encoders, classifier and policy together (beyond the paper).

    distill_weight      of the last look's distribution taught to the earlier looks
    whole_image_weight  of the focus encoder's own answer on the whole image
    """

    epochs: Epochs = 60
    encoder_lr: Rate = 0.01
    classifier_lr: Rate = 0.1
    weight_decay: WeightDecay = 1e-4
    own_head_weight: Weight = 1.0
    distill_weight: Weight = 1.0
    whole_image_weight: Weight = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TrainSettings:
    """A whole run.

    weights  for both encoders before anything is trained: "pretrained", a file, or None
    start    a bundle whose whole network training goes on from
    rounds   how often stages II and III are gone through, the policy going on from where it was (beyond the paper)
    effort   what the user asked for; the epochs follow from it when the settings are made
    rivals   what the run is compared with at its end: the backbone on resized images as it is, or also tuned at two smaller sizes
             with the epochs of the stage backbone
    keep_statistics   batch norms keep the mean and variance that they came with: those of a few images are too uncertain to learn
                      pretrained networks anew by, see docs/train.md
    keep_glances_mib  a frozen encoder's glances at images that do not change are encoded once a stage, where all of them take no
                      more memory than this; 0: with every batch
    """

    data: DataSettings
    network: NetworkSettings
    weights: str | None = None
    start: str | None = None
    stages: tuple[str, ...] = ("backbone", "glance", "recognise", "aim", "finetune")
    rounds: Rounds = 1
    batch_size: TrainBatchSize = 256
    seed: Seed = 0
    effort: Literal["quick", "usual", "thorough"] = "usual"
    precision: Literal["no", "bf16", "fp16"] = "no"
    accumulation: BatchSize = 1
    checkpoint_minutes: Minutes = 5.0
    keep_statistics: bool = False
    keep_glances_mib: Mebibytes = 1024
    rivals: Literal["none", "as-is", "tuned"] = "as-is"
    small: SmallSettings = field(default_factory=SmallSettings)
    backbone: InitialiseSettings = field(default_factory=InitialiseSettings)
    small_glance: SmallSettings = field(default_factory=SmallSettings)
    glance: InitialiseSettings = field(default_factory=InitialiseSettings)
    recognise: RecogniseSettings = field(default_factory=RecogniseSettings)
    point: PointSettings = field(default_factory=PointSettings)
    aim: AimSettings = field(default_factory=AimSettings)
    finetune: RecogniseSettings = field(default_factory=lambda: RecogniseSettings(classifier_lr=0.01))
    joint: JointSettings = field(default_factory=JointSettings)

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.stages) > _MOST_STAGES:
            raise BadSetting(f"a run has at most {_MOST_STAGES} stages, but got {len(self.stages)}.")
        for name in self.stages:
            if name not in STAGES:
                raise BadSetting(f"there is no stage {name!r}. Stages are {', '.join(STAGES)}.")
        for name, small in (("small", self.small), ("small_glance", self.small_glance)):
            if name in self.stages and self.data.source not in WORLDS:
                raise BadSetting(
                    f"the stage {name} draws small scenes of a built-in world ({', '.join(WORLDS)}), "
                    f"which {self.data.source} is not. Leave it out."
                )
            least_px = math.ceil(4 * self.data.signs.radius_max_px)
            if name in self.stages and self.data.source == "signs" and small.side_px < least_px:
                raise BadSetting(
                    f"signs with a radius of up to {self.data.signs.radius_max_px:g} px do not fit the small scenes of the stage "
                    f"{name}, which have {small.side_px}x{small.side_px} px. Set {name}.side_px to at least {least_px}."
                )
        if {"small_glance", "glance"} <= set(self.stages) and self.stages.index("glance") < self.stages.index(
            "small_glance"
        ):
            raise BadSetting("the stage small_glance prepares for the stage glance, so it must come before it.")
        self._check_evidence()
        if "point" in self.stages:
            before = self.stages[: self.stages.index("point")]
            if {"aim", "finetune"} & set(before) or "recognise" in self.stages[len(before) :]:
                raise BadSetting(
                    "the stage point comes after recognise (1) and before aim (2) and finetune (3), but got "
                    f"{', '.join(self.stages)}."
                )
        if not self.stages:
            raise BadSetting("there is nothing to train: no stage was named.")
        if self.network.looks < 2 and {"point", "aim", "joint"} & set(self.stages):
            raise BadSetting("a network with one look has nothing to aim. Use at least 2 looks.")

    def _check_evidence(self) -> None:
        """Only a glance encoder learns from evidence, and only from a focus encoder that has learnt before."""
        for name in ("small", "backbone"):
            if getattr(self, name).evidence_weight > 0:
                raise BadSetting(
                    f"{name}.evidence_weight is for nobody: the focus encoder has no one to learn from where things are. "
                    "Set it to 0, and glance.evidence_weight instead."
                )
        for name in ("small_glance", "glance"):
            if name not in self.stages or getattr(self, name).evidence_weight == 0:
                continue
            if self.network.shared_encoder:
                raise BadSetting(
                    f"{name}.evidence_weight needs two encoders, one to learn from the other where things are, but this network "
                    f"shares one. Set {name}.evidence_weight=0."
                )
            if {"small", "backbone"} & set(self.stages[self.stages.index(name) :]):
                raise BadSetting(
                    f"with {name}.evidence_weight the stage {name} learns from the focus encoder where things are, so the stages "
                    "small and backbone must come before it."
                )

    def plan(self) -> list[str]:
        """The stages in the order in which they run; II and III are repeated `rounds` times."""
        once = [name for name in self.stages if name not in ("aim", "finetune")]
        again = [name for name in self.stages if name in ("aim", "finetune")]
        return once + again * self.rounds
