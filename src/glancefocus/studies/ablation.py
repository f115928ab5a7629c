"""The ablation study: other ways to choose patches, one encoder, no glance, no fine-tuning of the glance encoder, no stage III."""

from typing import Any

from glancefocus.studies.networks import chain
from glancefocus.studies.published import row_beside, source_of
from glancefocus.studies.runs import Measured
from glancefocus.studies.study import Result, Run, Scope, Table
from glancefocus.studies.tables import MAIN_PRESET, after_look_drawing, look_columns

ROWS = {
    "random": "random policy",
    "random_glance": "random policy + glance step",
    "centre_corner": "centre-corner policy",
    "centre_corner_glance": "centre-corner policy + glance step",
    "single_encoder": "without the glance encoder (one encoder)",
    "without_glance": "without the glance step (centre crop first)",
    "without_fine_tuning": "glance encoder not fine-tuned on glances",
    "without_stage3": "without stage III",
    "whole": "the whole network",
}
# {row: changes to the network} for rows without a learnt policy. These have no stage II; stages I and III aim by their rule.
BY_RULE: dict[str, dict[str, Any]] = {
    "random": {"first_view": "random", "policy": {"kind": "random"}},
    "random_glance": {"policy": {"kind": "random"}},
    "centre_corner": {"first_view": "centre", "policy": {"kind": "centre_corner"}},
    "centre_corner_glance": {"policy": {"kind": "centre_corner"}},
}
# The paper trains both encoders in stages I and III. The recipe of the built-in data set does not, which would leave an encoder
# that was not fine-tuned as it is.
TRAINED = {"recognise.freeze_encoders": False, "finetune.freeze_glance": False}


def ablation_runs(scope: Scope) -> dict[str, Run]:
    preset = MAIN_PRESET[scope.scale]
    changes = TRAINED if scope.scale == "tiny" else {}
    variants: dict[str, dict[str, Any]] = {
        **{key: {"network": network} for key, network in BY_RULE.items()},
        "single_encoder": {"network": {"shared_encoder": True}, "fine_tuned": False},
        "without_glance": {"network": {"first_view": "centre"}},
        "without_fine_tuning": {"fine_tuned": False},
        "whole": {},
    }
    chains = {
        key: chain(scope, preset, name=f"ablation-{key}", changes=changes, **own) for key, own in variants.items()
    }
    runs = {key: own.trained for key, own in chains.items()}
    before = chains["whole"].stage2
    assert before is not None
    return {**runs, "without_stage3": before}


def ablation_result(measured: Measured) -> Result:
    rows = [
        row_beside("ablation", key, name, [run.after_looks() for run in measured[key]]) for key, name in ROWS.items()
    ]
    looks = len(rows[0].values[0])
    title = f"Top-1 accuracy of variants, % ({source_of('ablation')})"
    table = Table("ablation", title, look_columns(looks), rows, measured.images, ordered=True)
    remark = "Rows without a learnt policy are trained in stages I and III with the aims of their rule, and measured with them."
    drawing = after_look_drawing(rows, "Accuracy if every image takes t looks.")
    return Result([table], {"ablation": drawing}, remarks=[remark])
