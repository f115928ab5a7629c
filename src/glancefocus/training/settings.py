"""Every number of training, with the paper's value (A.2-A.4) for each family of backbones as the default."""

from dataclasses import dataclass, field
from typing import Literal

from glancefocus.data.sources import DataSettings
from glancefocus.errors import BadSetting
from glancefocus.settings import NetworkSettings
from glancefocus.training.setting_checks import (
    check_aims,
    check_evidence,
    check_first_view,
    check_shared_encoder,
    check_small_scenes,
    check_zoom,
)
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
    check_fields,
)

STAGES = ("small", "backbone", "small_glance", "glance", "recognise", "point", "aim", "finetune", "joint")
ENCODER_STAGES = ("small", "backbone", "small_glance", "glance")  # each trains one encoder with its own head
REPEATED_STAGES = ("aim", "finetune")  # by TrainSettings.rounds
# The names that a user may give; the paper numbers its stages.
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

    optimizer  sgd: Nesterov momentum 0.9; adamw; rmsprop, as MobileNetV3 and EfficientNet were trained by their authors
    warmup     the learning rate grows from zero over this share of the stage, then falls along a cosine
    fresh      the glance encoder starts from random weights instead of as a copy of the focus encoder (the paper's way). Better
               where small objects look quite different at low resolution. After a stage small_glance it continues from there.
    evidence_weight  weight of a second loss of the glance encoder (beyond the paper; 0: none). Its feature map learns to show where
               the focus encoder, which sees the whole image, finds its evidence for the label. Labels alone teach a glance
               little about small objects.
    distill    weight of the divergence from the answers of the trained backbone, see teacher.py (beyond the paper); labels have the
               rest. For glances and for rivals at smaller sizes: small inputs learn far more from it than from labels.
    half_size  for the stage backbone only: whole images have half of their size in this first share of the stage. Such updates
               cost a quarter. Not compared with full size throughout.
    """

    epochs: Epochs = 90
    lr: Rate = 0.1
    weight_decay: WeightDecay = 1e-4
    optimizer: Literal["sgd", "adamw", "rmsprop"] = "sgd"
    label_smoothing: PartialShare = 0.0
    warmup: Share = 0.0
    fresh: bool = False
    evidence_weight: Weight = 0.0
    distill: Share = 0.0
    half_size: Share = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class SmallSettings(InitialiseSettings):
    """Training an encoder on small scenes of a built-in world first (beyond the paper).

    Objects are as large in small scenes as in whole ones, with less background. A network that learns nothing from whole scenes
    learns here what to look for, in a fraction of the time. Small scenes are reduced to glances by the same factor as whole
    ones, so objects in a glance have the same size in both.

    side_px  side of the small scenes
    scenes   number of scenes (train, val)
    """

    side_px: Pixels = 96
    scenes: tuple[Scenes, Scenes] = (2000, 200)


@dataclass(frozen=True)
class RecogniseSettings:
    """Stages I and III: encoders and classifier, by the loss of Eq. 6.

    own_head_weight  lambda of Eq. 6; not used with a summed classifier, whose looks learn separately
    freeze_glance    keep the glance encoder as initialised (MobileNetV3, EfficientNet)
    freeze_encoders  train the classifier only (video)
    deviation        standard deviation of the noise added to the policy's aims in stage III, as a share of the image; in the
                     paper's presets 0.1, as in stage II. Stage I aims at random anyway.
    mistaken_glances  share of the images whose glance memory in the classifier is replaced by that of another image (beyond the
                     paper). The classifier learns that patches may contradict a glance, which happens more often in new images
                     than in those that the glance encoder was trained on; 0: none
    distill          as in the stage glance, for the answer after every look and for the encoders' own heads
    aims             stage I only. random: at random places, as in the paper; a network whose policy is a rule (policy.kind) aims by
                     that rule in all stages. evidence: where the trained backbone finds its evidence for the label, with
                     noise of `deviation` (beyond the paper). known: the same at known places, in scenes that are drawn on demand
    point_weight     weight of the loss of the stage point, at known places: the policy learns along with the encoders, whose maps
                     learn to show where objects are (beyond the paper)
    random_share     share of the images that are aimed at random nevertheless, in stages I and III
    optimizer, warmup  as in the stage glance
    """

    epochs: Epochs = 60
    encoder_lr: Rate = 0.01
    classifier_lr: Rate = 0.1
    weight_decay: WeightDecay = 1e-4
    optimizer: Literal["sgd", "adamw"] = "sgd"
    own_head_weight: Weight = 1.0
    freeze_glance: bool = False
    freeze_encoders: bool = False
    deviation: PartialShare = 0.0
    mistaken_glances: PartialShare = 0.0
    distill: Share = 0.0
    aims: Literal["random", "evidence", "known"] = "random"
    random_share: Share = 0.0
    point_weight: Weight = 0.0
    warmup: Share = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class PolicyTraining:
    """The settings that all stages share that train the policy.

    deviation      standard deviation of the exploration around the policy's aim, as a share of the image
    deviation_end  the deviation changes linearly from `deviation` to this along the stage; None: it is constant
    lr_end         the same for the learning rate. Policy gradients grow as the deviation shrinks, so narrow exploration needs
                   a falling rate.
    """

    epochs: Epochs = 15
    lr: PositiveRate = 3e-4
    lr_end: PositiveRate | None = None
    deviation: PositiveRate = 0.1
    deviation_end: PositiveRate | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        stage = "point" if isinstance(self, PointSettings) else "aim"
        for name in ("lr", "deviation") if stage == "point" else ("lr",):
            start, end = getattr(self, name), getattr(self, f"{name}_end")
            if end is not None and end > start:
                setting = f"{stage}.{name}"
                raise BadSetting(f"{setting}_end must be at most {setting} ({start}), but got {end}. Lower it, too.")


@dataclass(frozen=True)
class PointSettings(PolicyTraining):
    """Supervised training of the policy: it learns to aim where the backbone finds its evidence (beyond the paper).

    A patch that misses by random exploration teaches nothing, since the random error is not an input of the policy. A patch
    that misses by the policy's own error teaches it to correct itself. So the deviation is small and falls.

    evidence_weight  weight of the distance between the aim and the place of the backbone's evidence
    crop_weight      weight of the cross-entropy of the frozen focus encoder at the aim, whose gradient reaches the policy through
                     bilinear crops, as in AdaFocus V2. The gradient is local: it corrects aims that nearly hit, and is useless
                     for a patch far from the object.
    mixed_glances    share of the images whose glance is mixed with another one, so that the policy sometimes looks at a wrong place
                     first, and learns to look elsewhere then
    return_weight    weight of the overlap of an aim with patches before it that were in vain (inhibition of return). Without it a
                     policy whose glance shows nothing aims at the most likely place again and again. Needs policy.place=true
    """

    epochs: Epochs = 5
    lr: PositiveRate = 1e-3
    lr_end: PositiveRate | None = 1e-4
    deviation: PositiveRate = 0.05
    deviation_end: PositiveRate | None = 0.005
    evidence_weight: Weight = 1.0
    crop_weight: Weight = 0.0
    mixed_glances: PartialShare = 0.0
    return_weight: Weight = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evidence_weight == 0 and self.crop_weight == 0:
            raise BadSetting(
                "point.evidence_weight and point.crop_weight are both 0, so the stage point would learn nothing. Set one of them."
            )


@dataclass(frozen=True)
class AimSettings(PolicyTraining):
    """Stage II: PPO on the frozen network (A.2).

    judge              which output gives the probability of the label that rewards are made of. classifier: the classifier after
                       all looks so far, as in the paper. own_head: the focus encoder's own head on the patch alone (beyond
                       the paper, contrastive reward only); it also rewards good aims in images that the glance already
                       classified well, so the policy learns from more images.
    monte_carlo        random patches per look that the contrastive reward compares with
    passes             over each batch; with 1, as in the paper, the ratio is 1 and clipping has no effect
    gae_lambda         generalised advantage estimation; None: discounted returns minus the critic's value, as in the paper
    normalise_returns  over looks and batch, as the released code does
    compare_together   the random patches of the contrastive reward go through the network in one batch with the chosen ones:
                       faster, and needs more memory
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
                "a patch alone has no value to compare with that of the look before it. Use aim.judge=classifier."
            )


@dataclass(frozen=True)
class JointSettings:
    """One stage instead of three: encoders, classifier and policy together (beyond the paper).

    distill_weight      weight of the loss by which earlier looks learn the last look's distribution
    whole_image_weight  weight of the cross-entropy of the focus encoder's own head on the whole image
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


# {setting: (stages in which it has no effect, why)}
_USELESS = {
    "evidence_weight": (("small", "backbone"), "it applies to the glance encoder only. Set glance.evidence_weight"),
    "distill": (("small", "backbone", "small_glance"), "only glance, recognise and finetune learn from the backbone"),
    "half_size": (("small", "small_glance", "glance"), "only the stage backbone sees whole images at full size"),
}


@dataclass(frozen=True)
class TrainSettings:
    """The settings of a whole run.

    weights  for both encoders before anything is trained: "pretrained", a file, or None (random initialisation)
    start    a bundle whose network training starts from
    stages   they run in this order
    rounds   how often stages II and III run; the policy continues from where it was (beyond the paper)
    effort   the option of the user; the epochs were already scaled by it
    teacher  weights of the same backbone, trained on the same classes, to learn from; None: the run's own, from the stage backbone
    rivals   what the run is compared with at its end: the backbone on resized images without further training (as-is), or also
             fine-tuned at several smaller sizes with the settings of the stage glance (tuned)
    calibrate         fit one temperature for each look to the validation images, so that confidences of all looks can be compared
    keep_statistics   batch norms keep the mean and variance of their pretrained weights, and are not updated: those of a few
                      images are too noisy, see docs/train.md
    keep_glances_mib  glances of a frozen encoder at images that are not augmented are encoded once per stage and kept, if all of
                      them fit into this much memory; 0: encoded with every batch
    """

    data: DataSettings
    network: NetworkSettings
    weights: str | None = None
    start: str | None = None
    teacher: str | None = None
    stages: tuple[str, ...] = ("backbone", "glance", "recognise", "aim", "finetune")
    rounds: Rounds = 1
    batch_size: TrainBatchSize = 256
    seed: Seed = 0
    effort: Literal["quick", "usual", "thorough"] = "usual"
    precision: Literal["no", "bf16", "fp16"] = "no"
    accumulation: BatchSize = 1
    checkpoint_minutes: Minutes = 5.0
    calibrate: bool = False
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
        self._check_names()
        self._check_order()
        self._check_useless()
        check_small_scenes(self)
        check_evidence(self)
        check_aims(self)
        check_first_view(self)
        check_zoom(self)
        check_shared_encoder(self)
        self._check_teacher()

    def _check_names(self) -> None:
        if not self.stages:
            raise BadSetting("there is nothing to train: no stage was named.")
        if len(self.stages) > _MOST_STAGES:
            raise BadSetting(f"a run has at most {_MOST_STAGES} stages, but got {len(self.stages)}.")
        for name in self.stages:
            if name not in STAGES:
                raise BadSetting(f"there is no stage {name!r}. Stages are {', '.join(STAGES)}.")

    def _check_order(self) -> None:
        """Stages run in the order given; refuse orders in which one stage would undo another."""
        given = f"but the stages are {', '.join(self.stages)}"
        for index, name in enumerate(self.stages):
            already_run = [other for other in self.stages[:index] if other not in ENCODER_STAGES]
            if name in ENCODER_STAGES and already_run:
                needs = f"trains an encoder that the stage {already_run[0]} builds on"
                raise BadSetting(f"the stage {name} {needs}, so it must come before it, {given}.")
        if "glance" in self.stages and "small_glance" in self.stages[self.stages.index("glance") :]:
            raise BadSetting(
                f"the stage small_glance prepares for the stage glance, so it must come before it, {given}."
            )
        if "point" in self.stages:
            before = self.stages[: self.stages.index("point")]
            if {"aim", "finetune"} & set(before) or "recognise" in self.stages[len(before) :]:
                raise BadSetting(
                    f"the stage point comes after recognise (1) and before aim (2) and finetune (3), {given}."
                )
        if self.rounds > 1 and set(self.stages[self._first_repeated() :]) - set(REPEATED_STAGES):
            raise BadSetting(
                f"rounds repeats the stages aim (2) and finetune (3), so they must be the last ones, {given}. Use rounds=1, or "
                "name these stages last."
            )

    def _check_useless(self) -> None:
        for setting, (stages, why) in _USELESS.items():
            for name in stages:
                if getattr(getattr(self, name), setting) > 0:
                    raise BadSetting(f"{name}.{setting} has no use: {why}.")

    @property
    def trains_glances(self) -> bool:
        """Whether a stage trains the glance encoder alone."""
        return bool({"small_glance", "glance"} & set(self.stages))

    def is_taught(self, stage: str) -> bool:
        """Whether a stage learns from the trained backbone."""
        if stage == "point":
            return self.is_taught("recognise") or self._points_after_finetune()
        own = getattr(self, "glance" if stage not in STAGES else stage)  # a rival is trained as the glance is
        return getattr(own, "distill", 0) > 0 or (stage == "recognise" and own.aims == "evidence")

    def _points_after_finetune(self) -> bool:
        """Whether the policy learns places of evidence when the focus encoder, which has learnt from patches, shows them badly."""
        before, _, after = " ".join(self.stages).partition("finetune")
        return "backbone" in before and "point" in after

    def _check_teacher(self) -> None:
        """A stage that learns from the backbone must come after it."""
        taught = [name for name in self.stages if self.is_taught(name)]
        if taught and self.teacher is None and "backbone" not in self.stages[: self.stages.index(taught[0])]:
            raise BadSetting(
                f"the stage {taught[0]} learns from the trained backbone, so the stage backbone must come before it. Add it, give "
                f"trained weights with --teacher, or set {taught[0]}.distill=0"
                + (" and recognise.aims=random." if self.is_taught("recognise") else ".")
            )

    def plan(self) -> list[str]:
        """The stages in the order in which they run: as given, with II and III repeated `rounds` times."""
        first = self._first_repeated()
        return [*self.stages[:first], *self.stages[first:] * self.rounds]

    def _first_repeated(self) -> int:
        return next((n for n, name in enumerate(self.stages) if name in REPEATED_STAGES), len(self.stages))
