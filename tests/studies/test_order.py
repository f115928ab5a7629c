"""Multiply-adds of training, worked out by hand from the costs of the parts."""

import pytest

from glancefocus.network.macs import count_costs
from glancefocus.studies.networks import Scope, chain
from glancefocus.studies.order import image_counts, training_macs

SCOPE = Scope("tiny", "signs", assignments=("data.scenes=[100,10,10]",))


def test_every_stage_costs_its_passes() -> None:
    runs = chain(SCOPE)
    costs = count_costs(runs.stage1.settings.network)
    glance, looks = costs.macs_after_look[0], costs.macs_after_look[-1]
    patches, record = looks - glance, 10 * looks
    epochs = runs.backbone.settings.backbone.epochs
    # A backward pass costs two forward passes; 10 images are validated after each epoch, and recorded at the end.
    assert training_macs(runs.backbone.settings, 100, 10) == epochs * 310 * costs.backbone_macs + record
    # Stage I keeps the encoders as they are: forward passes only.
    epochs = runs.stage1.settings.recognise.epochs
    assert training_macs(runs.stage1.settings, 100, 10) == epochs * 110 * looks + record
    # The contrastive reward compares each patch with one random patch.
    assert runs.stage2 is not None
    epochs = runs.stage2.settings.aim.epochs
    assert training_macs(runs.stage2.settings, 100, 10) == epochs * (100 * (glance + 2 * patches) + 10 * looks) + record
    # Stage III keeps the glance encoder.
    assert runs.stage3 is not None
    epochs = runs.stage3.settings.finetune.epochs
    assert training_macs(runs.stage3.settings, 100, 10) == epochs * (100 * (glance + 3 * patches) + 10 * looks) + record


def test_a_built_in_data_set_has_as_many_images_as_scenes() -> None:
    assert image_counts(chain(SCOPE).backbone.settings) == (100, 10)


def test_the_papers_data_is_assumed_where_there_is_none() -> None:
    paper = Scope("paper", None)
    assert image_counts(chain(paper, "gf-resnet50-96").backbone.settings) == (1_281_167, 50_000)
    clips = chain(paper, "gf-tsm-resnet50-96-8f")
    assert image_counts(clips.backbone.settings)[0] == pytest.approx(168_913)
    assert clips.stage3 is None  # the paper leaves it out for clips
