"""From words to settings: flags, the paper's numbers for each family, assignments, and what is wrong with them."""

import copy
from pathlib import Path
from typing import Any

import pytest

from glancefocus.data.sources import default_workers
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadSetting, UnknownName
from glancefocus.network.presets import PRESETS
from glancefocus.training import recipes, world_recipes
from glancefocus.training.recipes import train_settings
from glancefocus.training.settings import AimSettings, TrainSettings

# The paper's A.2-A.4 and its released code: encoders' rate, weight decay, epochs, lambda, frozen glance encoder, stage III.
PAPER: dict[str, tuple[float, float, int, float, bool, bool]] = {
    "gf-resnet50-96": (0.01, 1e-4, 60, 1.0, False, True),
    "gf-densenet121-96": (0.01, 1e-4, 60, 1.0, False, True),
    "gf-regnety-600m-96": (0.02, 5e-5, 60, 1.0, False, True),
    "gf-mobilenetv3-large-100-96": (0.005, 1e-4, 90, 5.0, True, True),
    "gf-efficientnet-b2-128": (0.005, 1e-4, 30, 5.0, True, False),
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name in ("cat", "dog", "eel"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        (tmp_path / "pets" / name / "a.png").write_bytes(b"never read")
    return str(tmp_path / "pets")


@pytest.mark.parametrize("preset", PAPER)
def test_a_familys_defaults_are_the_papers(preset: str, folder: str) -> None:
    rate, decay, epochs, weight, frozen, finetuned = PAPER[preset]
    settings = train_settings(folder, preset=preset)
    for stage, classifier_lr in ((settings.recognise, 0.1), (settings.finetune, 0.01)):
        assert (stage.encoder_lr, stage.weight_decay, stage.epochs) == (rate, decay, epochs)
        assert (stage.own_head_weight, stage.freeze_glance, stage.freeze_encoders) == (weight, frozen, False)
        assert stage.classifier_lr == classifier_lr
    assert ("finetune" in settings.stages) is finetuned
    assert settings.batch_size == 256
    assert settings.network.classes == 3
    assert (settings.data.augment.crop, settings.data.augment.flip) == (0.08, True)


# How the authors of each family trained it: optimiser, rate for 256 images, weight decay, epochs, epochs of the warm-up, and
# label smoothing.
AUTHORS: dict[str, tuple[str, float, float, int, float, float]] = {
    "gf-resnet50-96": ("sgd", 0.1, 1e-4, 90, 0.0, 0.0),
    "gf-densenet121-96": ("sgd", 0.1, 1e-4, 90, 0.0, 0.0),
    "gf-regnety-600m-96": ("sgd", 0.8 / 4, 5e-5, 100, 5.0, 0.0),
    "gf-mobilenetv3-large-100-96": ("rmsprop", 0.1 / 16, 1e-5, 350, 5.25, 0.0),
    "gf-efficientnet-b2-128": ("rmsprop", 0.256 / 16, 1e-5, 350, 5.25, 0.1),
}


@pytest.mark.parametrize("preset", AUTHORS)
def test_encoders_are_initialised_as_the_authors_of_their_family_trained_them(preset: str, folder: str) -> None:
    optimizer, rate, decay, epochs, warmup, smoothing = AUTHORS[preset]
    settings = train_settings(folder, preset=preset)
    for stage in (settings.backbone, settings.glance):
        assert (stage.optimizer, stage.weight_decay, stage.epochs) == (optimizer, decay, epochs)
        assert (stage.lr, stage.warmup * epochs) == pytest.approx((rate, warmup), abs=1e-9)
        assert stage.label_smoothing == smoothing


def test_encoders_with_given_weights_are_adapted_for_ten_epochs(folder: str) -> None:
    settings = train_settings(folder, preset="gf-mobilenetv3-large-100-96", changes={"weights": "pretrained"})
    for stage in (settings.backbone, settings.glance):
        assert (stage.optimizer, stage.lr, stage.epochs, stage.warmup) == ("sgd", 0.01, 10, 0.0)


def test_the_defaults_of_stage_ii_are_the_papers() -> None:
    aim = AimSettings()
    assert (aim.epochs, aim.lr, aim.discount, aim.clip) == (15, 3e-4, 0.7, 0.2)
    assert (aim.value_weight, aim.entropy_weight, aim.deviation, aim.monte_carlo) == (0.5, 0.01, 0.1, 1)
    assert (aim.passes, aim.gae_lambda, aim.deviation_end, aim.normalise_returns) == (1, None, None, True)


def test_flags_become_settings(folder: str) -> None:
    settings = train_settings(
        folder,
        backbone="resnet18",
        network={"glance_px": 64, "patch_px": 48, "looks": 3, "view": {"height_px": 128, "width_px": 160}},
        data={"in_memory": True, "max_bad_files": 3, "augment": {"flip": False}, "workers": None},
        changes={"seed": 5, "batch_size": 32, "precision": "bf16", "rounds": None},
    )
    network = settings.network
    assert (network.backbone, network.glance_px, network.focus, network.looks) == ("resnet18", 64, ("48",), 3)
    assert (network.view.height_px, network.view.width_px) == (128, 160)
    assert (settings.data.in_memory, settings.data.max_bad_files, settings.data.workers) == (True, 3, default_workers())
    assert (settings.data.augment.flip, settings.data.augment.crop) == (False, 0.35)
    assert (settings.seed, settings.batch_size, settings.precision, settings.rounds) == (5, 32, "bf16", 1)


def test_the_built_in_world_needs_no_preset_and_is_drawn_at_the_size_that_is_looked_at() -> None:
    settings = train_settings("signs", network={"view": {"height_px": 480, "width_px": 640}})
    assert settings.network.classes == 5
    assert settings.network.view.fit == "whole"
    assert (settings.data.signs.height, settings.data.signs.width) == (480, 640)
    usual = train_settings("signs")
    view, signs = usual.network.view, usual.data.signs
    assert (view.height_px, view.width_px) == (signs.height, signs.width)


def test_large_scenes_have_a_recipe_of_their_own() -> None:
    small, large = (
        train_settings("signs", network={"view": {"height_px": height, "width_px": width}, "patch_px": 64})
        for height, width in ((319, 640), (640, 320))
    )
    assert small.plan() == ["backbone", "glance", "recognise", "point", "finetune", "point"]
    assert large.plan() == ["small", "backbone", "glance", "recognise", "point", "finetune", "aim"]
    assert (large.small.side_px, large.data.augment.shift_px, large.glance.evidence_weight) == (106, 16, 3.0)
    assert (small.glance.evidence_weight, small.finetune.deviation, small.data.augment.shift_px) == (0, 0, 0)
    view = {"height_px": 960, "width_px": 1280}
    own_plan = train_settings("signs", network={"view": view}, stages=["initialise,1,2"])
    assert own_plan.plan() == ["backbone", "glance", "recognise", "aim"]
    assert (own_plan.glance.evidence_weight, own_plan.batch_size) == (0, 32)


def test_only_small_scenes_have_place_memory_and_learn_to_look_elsewhere() -> None:
    def learnt(**words: Any) -> tuple[bool, float, float]:
        settings = train_settings("signs", **words)
        return settings.network.policy.place, settings.point.return_weight, settings.point.mixed_glances

    large = {"view": {"height_px": 960, "width_px": 1280}}
    assert learnt() == learnt(stages=["initialise,1,point"]) == (True, 1.0, 0.5)
    assert learnt(preset="gf-mini-48") == (True, 1.0, 0.5)
    assert learnt(network=large) == learnt(network=large, stages=["initialise,1,point"]) == (False, 0.0, 0.0)
    assert learnt(preset="gf-ms-mini-48") == (False, 0.0, 0.0)
    with pytest.raises(BadSetting, match=r"Set network.policy.place=true, or point.return_weight=0"):
        train_settings("signs", assignments=["network.policy.place=false"])
    # A policy that is a rule has nothing to remember.
    assert learnt(assignments=["network.policy.kind=random"])[1:] == (1.0, 0.5)


def test_assignments_have_types_and_override_everything_else() -> None:
    words = ["aim.epochs=3", "aim.reward=increment", "aim.gae_lambda=0.9", "aim.normalise_returns=false", "seed=7"]
    words += ["aim.deviation_end=none", "network.policy.units=64", "data.signs.height=160", "weights=a.pth", "rounds=1"]
    settings = train_settings("signs", changes={"seed": 1}, assignments=words, stages=["initialise,1,2"])
    aim = settings.aim
    assert (aim.epochs, aim.reward, aim.gae_lambda, aim.normalise_returns) == (3, "increment", 0.9, False)
    assert aim.deviation_end is None
    assert (settings.seed, settings.weights, settings.rounds) == (7, "a.pth", 1)
    assert settings.network.policy.units == 64


def test_an_assignment_leaves_the_recipe_as_it_was() -> None:
    before = copy.deepcopy(world_recipes.WORLD_RECIPES)
    changed = train_settings("signs", assignments=["point.epochs=77", "glance.lr=0.5", "data.augment.flip=false"])
    assert (changed.point.epochs, changed.glance.lr) == (77, 0.5)
    assert before == world_recipes.WORLD_RECIPES
    assert train_settings("signs").point.epochs == 6


@pytest.mark.parametrize("preset", ["gf-mini-48", "gf-ms-mini-48"])
def test_a_small_preset_on_photographs_has_a_recipe_that_fits_them_and_not_that_of_signs(
    preset: str, folder: str
) -> None:
    settings, of_signs = train_settings(folder, preset=preset), train_settings("signs", preset=preset)
    assert settings.network.backbone_options == of_signs.network.backbone_options
    assert settings.network.focus == of_signs.network.focus  # the sizes are the preset's
    assert (settings.batch_size, settings.data.augment.crop) == (4, 0.35)  # three images
    assert not settings.keep_statistics  # from random initialisation
    fitted = train_settings(folder, backbone="resnet18", changes={"weights": "none"})
    for stage in ("backbone", "glance", "recognise", "aim", "finetune"):
        assert getattr(settings, stage) == getattr(fitted, stage)
        assert getattr(settings, stage) != getattr(of_signs, stage)
    assert (settings.stages, settings.rounds) == (fitted.stages, 1)


def test_a_small_preset_in_the_other_world_does_not_have_the_recipe_of_its_own() -> None:
    settings = train_settings("gestures", preset="gf-mini-48")
    assert settings.backbone.epochs != train_settings("signs").backbone.epochs
    assert (settings.backbone.label_smoothing, settings.data.augment.crop) == (
        0.1,
        0.08,
    )  # fitted; scenes are not cropped


def test_every_recipe_belongs_to_a_preset_and_a_world_that_exist() -> None:
    assert set(world_recipes.WORLD_RECIPES) == set(WORLDS)
    assert world_recipes.SMALL_PRESETS | set(recipes.PRESET_CHANGES) <= set(PRESETS)
    own_data = {name for name in PRESETS if name.endswith(("jester", "roads"))}
    assert set(recipes.PRESET_CHANGES) == own_data


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("aim.epoch=3", r"no setting in aim named 'epoch'. Did you mean 'epochs'"),
        ("batchsize=3", r"no setting named 'batchsize'. Did you mean 'batch_size'"),
        ("aim.reward=incremnt", r"aim.reward must be one of 'contrastive', 'increment', 'cross_entropy'"),
        ("aim.epochs=many", r"aim.epochs must be a whole number from 0 to 100,000, but got 'many'"),
        ("aim.epochs", r"a setting is given as name=value, such as aim.epochs=8, but got 'aim.epochs'"),
        ("seed.value=3", r"seed.value is not a setting: seed has no parts"),
        ("aim.epochs=-1", "aim.epochs must be a whole number from 0 to 100,000, but got -1"),
        ("aim.passes=0", "aim.passes must be a whole number from 1 to 1,000, but got 0"),
        ("aim.deviation=0", "aim.deviation must be a number above 0 and at most 1,000, but got 0"),
        ("aim.clip=1.5", "aim.clip must be a number above 0 and below 1, but got 1.5"),
        ("rounds=0", "rounds must be a whole number from 1 to 10,000, but got 0"),
        ("network.looks=65", "network.looks must be a whole number from 1 to 64, but got 65"),
        ("network.looks=1", "a network with one look has nothing to aim"),
        ("stages=[]", "there is nothing to train: no stage was named"),
        ('stages=["aim","aimm"]', "there is no stage 'aimm'"),
    ],
)
def test_what_cannot_be_set_is_refused(word: str, sentence: str) -> None:
    # The seed goes before, so that it is in the table that an assignment is made to.
    with pytest.raises(BadSetting, match=sentence):
        train_settings("signs", changes={"seed": 0}, assignments=[word])


@pytest.mark.parametrize(
    ("words", "stages"),
    [
        (["initialise"], ("backbone", "glance")),
        (["1", "2", "3"], ("recognise", "aim", "finetune")),
        (["initialise,1", "aim"], ("backbone", "glance", "recognise", "aim")),
        (["joint"], ("joint",)),
        (["FINETUNE"], ("finetune",)),
    ],
)
def test_stages_are_named_as_the_paper_does_or_by_what_they_do(words: list[str], stages: tuple[str, ...]) -> None:
    assert train_settings("signs", stages=words).stages == stages


def test_a_misspelt_stage_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match=r"there is no stage named 'recognize'. Did you mean 'recognise'"):
        train_settings("signs", stages=["recognize"])


def test_stages_run_in_the_order_given() -> None:
    for stages in (
        ["recognise", "aim", "recognise", "aim"],
        ["glance", "backbone", "recognise", "finetune", "aim"],
        ["aim", "recognise"],
        ["joint", "point", "finetune", "aim"],
    ):
        assert train_settings("signs", stages=stages).plan() == stages


@pytest.mark.parametrize(
    ("stages", "rounds", "sentence"),
    [
        (
            "2,1,initialise",
            1,
            "the stage backbone trains an encoder that the stage aim builds on, so it must come before",
        ),
        (
            "joint,glance",
            1,
            "the stage glance trains an encoder that the stage joint builds on, .* stages are joint, glance",
        ),
        ("glance,small_glance", 1, "the stage small_glance prepares for the stage glance, so it must come before it"),
        ("2,point", 1, "the stage point comes after recognise .* but the stages are aim, point"),
        ("2,3,1", 2, "rounds repeats the stages aim .* so they must be the last ones, but .* aim, finetune, recognise"),
    ],
)
def test_an_order_that_cannot_work_is_refused(stages: str, rounds: int, sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        train_settings("signs", stages=[stages], changes={"rounds": rounds})


def test_rounds_repeat_stages_ii_and_iii() -> None:
    settings: TrainSettings = train_settings("signs", stages=["initialise,1,2,3"], changes={"rounds": 2})
    assert settings.plan() == ["backbone", "glance", "recognise", "aim", "finetune", "aim", "finetune"]


@pytest.mark.parametrize(
    ("stages", "setting", "stage"),
    [
        (["1,2"], "finetune.epochs=3", "finetune"),
        (["1"], "point.deviation=0.1", "point"),
        (["3"], "joint.epochs=3", "joint"),
        (["initialise"], "aim.lr=1e-4", "aim"),
        (["1,2,3"], "small.side_px=96", "small"),
    ],
)
def test_a_setting_of_a_stage_that_does_not_run_is_refused(stages: list[str], setting: str, stage: str) -> None:
    said = f"^{setting.split('=')[0]} is a setting of the stage {stage}, which does not run: the stages are "
    with pytest.raises(BadSetting, match=said):
        train_settings("signs", stages=stages, assignments=[setting])
    assert train_settings("signs", stages=[*stages, stage] if stage != "small" else ["small,1"], assignments=[setting])


def test_the_joint_stage_takes_the_settings_of_stage_two_and_tuned_rivals_those_of_the_glance() -> None:
    assert train_settings("signs", stages=["joint"], assignments=["aim.lr=0.002"]).aim.lr == 0.002
    assert train_settings("signs", stages=["1"], changes={"rivals": "tuned"}, assignments=["glance.epochs=7"])
    with pytest.raises(BadSetting, match="^glance.epochs is a setting of the stage glance, which does not run"):
        train_settings("signs", stages=["1"], assignments=["glance.epochs=7"])


def test_rounds_without_the_stages_that_they_repeat_are_refused() -> None:
    with pytest.raises(BadSetting, match="--rounds repeats the stages aim .* but the stages are backbone, glance"):
        train_settings("signs", stages=["initialise"], changes={"rounds": 2})
    with pytest.raises(BadSetting, match="--rounds repeats the stages aim"):
        train_settings("signs", stages=["initialise"], assignments=["rounds=2"])
