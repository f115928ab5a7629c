"""The studies that change one thing at a time: rewards, parts of the network, policies, settings of training."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glancefocus.evaluation.verdict import macs_words
from glancefocus.studies.budgets import MAIN_PRESET, after_look_drawing, look_columns
from glancefocus.studies.catalogue import source_of
from glancefocus.studies.networks import WITHOUT_POLICY, Chain, Run, Scope, again, chain
from glancefocus.studies.results import Result, Row, Table, row_beside
from glancefocus.studies.runs import Finished, Measured

# Rewards: Table 2.
REWARDS = {"increment": "increments", "contrastive": "contrastive"}
REWARD_PRESETS: dict[str, dict[str, str | None]] = {
    "tiny": {"resnet50": None},
    "paper": {
        "resnet50": "gf-resnet50-96",
        "mobilenet": "gf-mobilenetv3-large-100-128",
        "efficientnet": "gf-efficientnet-b2-128",
    },
}


def reward_runs(scope: Scope) -> dict[str, Run]:
    """Stage II with each reward, on the same network after stage I; every seed has a new policy."""
    runs = {}
    for key, preset in REWARD_PRESETS[scope.scale].items():
        base = chain(replace(scope, seed=0), preset).stage1
        for reward in REWARDS:
            name = f"{base.name.removesuffix('-stage1')}-{reward}"
            changes = {"aim.reward": reward}
            runs[f"{key}/{reward}"] = again(
                scope, "aim", base, name, preset=preset, changes=changes, parts=WITHOUT_POLICY
            )
    return runs


def reward_result(measured: Measured) -> Result:
    tables, drawings = [], {}
    for key in REWARD_PRESETS[measured.scope.scale]:
        runs = {reward: measured[f"{key}/{reward}"] for reward in REWARDS}
        rows = [
            row_beside(f"rewards/{key}", reward, REWARDS[reward], [run.after_looks() for run in own])
            for reward, own in runs.items()
        ]
        looks = len(rows[0].values[0])
        title = f"Top-1 accuracy after stage II, % ({source_of(f'rewards/{key}')})"
        tables.append(Table(f"rewards-{key}", title, look_columns(looks), rows, measured.images, ordered=True))
        drawings[f"rewards-{key}"] = after_look_drawing(rows, "Accuracy if every image takes t looks, after stage II.")
        tables += hit_tables(f"hits-{key}", {REWARDS[reward]: own for reward, own in runs.items()}, measured.images)
    note = (
        "All policies are trained on one network after stage I, without stage III. Each seed starts with a new policy."
    )
    return Result(tables, drawings, remarks=[note])


def hit_tables(name: str, runs: Mapping[str, Sequence[Finished]], images: int) -> list[Table]:
    """How many focus looks show the whole object, for {name of a row: runs}; none where its place is unknown."""
    hits = {words: [run.hits() for run in own] for words, own in runs.items()}
    if any(found is None for own in hits.values() for found in own):
        return []
    rows = [Row(words, [found or [] for found in own]) for words, own in hits.items()]
    columns = [f"look {look}" for look in range(2, len(rows[0].values[0]) + 2)]
    return [Table(name, "Focus looks that show the whole object, %", columns, rows, images)]


# Parts of the network and of its training: Table 5.
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
# The paper trains both encoders in stages I and III. The recipe of the built-in data set keeps both in stage I: most of its random
# patches show no sign, and the focus encoder would lose what it has learnt. In stage III it keeps the glance encoder, which would
# leave one that was not fine-tuned as it is.
TRAINED = {"finetune.freeze_glance": False}


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
    hits = hit_tables("hits", {name: measured[key] for key, name in ROWS.items()}, measured.images)
    return Result([table, *hits], {"ablation": drawing}, remarks=[remark])


# Policies: Table 6.
def _policy(head: str, units: int, **more: int) -> dict[str, Any]:
    return {"head": head, "units": units, **more}


POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "linear-1024": ("two linear layers, 1024 units", _policy("linear", 1024)),
    "linear-512": ("two linear layers, 512 units", _policy("linear", 512)),
    "linear-256": ("two linear layers, 256 units", _policy("linear", 256)),
    "conv3-32": ("3x3 convolution to 32 channels, 256 units", _policy("conv", 256, conv_kernel=3, conv_channels=32)),
    "conv1-64": ("1x1 convolution to 64 channels, 256 units", _policy("conv", 256, conv_kernel=1, conv_channels=64)),
    "conv1-32": ("1x1 convolution to 32 channels, 256 units", _policy("conv", 256, conv_kernel=1, conv_channels=32)),
    "conv1-16": ("1x1 convolution to 16 channels, 256 units", _policy("conv", 256, conv_kernel=1, conv_channels=16)),
}


# Seven networks have stage III of their own, so at scale tiny it is half as long as in other studies.
SHORT_STAGE3 = {"finetune.epochs": 2}


def policy_runs(scope: Scope) -> dict[str, Run]:
    """Stages II and III with each policy, on the same network after stage I."""
    preset = MAIN_PRESET[scope.scale]
    base = chain(scope, preset).stage1
    runs = {}
    for key, (_, policy) in POLICIES.items():
        own: dict[str, Any] = {"preset": preset, "network": {"policy": policy}}
        aimed = again(scope, "aim", base, f"policy-{key}-stage2", parts=WITHOUT_POLICY, **own)
        changes = SHORT_STAGE3 if scope.scale == "tiny" else {}
        runs[key] = again(scope, "finetune", aimed, f"policy-{key}-stage3", changes=changes, **own)
    return runs


def policy_result(measured: Measured) -> Result:
    rows, costs = [], []
    for key, (words, _) in POLICIES.items():
        runs = measured[key]
        row = row_beside("policies", key, words, [run.after_looks() for run in runs])
        paper_macs, *paper = row.paper  # of a step, in millions; it was divided by 100 like the percentages
        rows.append(replace(row, paper=paper))
        own = [[run.bundle.costs.policy_macs / 1e6] for run in runs[:1]]
        costs.append(Row(words, own, [None if paper_macs is None else 100 * paper_macs]))
    looks = len(rows[0].values[0])
    title = f"Top-1 accuracy with each policy, % ({source_of('policies')})"
    encoder = measured.first("conv1-32").bundle.costs.encoder_macs
    tables = [
        Table("policies", title, look_columns(looks), rows, measured.images, ordered=True),
        Table("cost", "Multiply-adds of one aim, millions", ["millions"], costs, unit="number"),
    ]
    spread = [max(mean_at(rows, c)) - min(mean_at(rows, c)) for c in range(looks)]
    remark = (
        f"Largest difference between policies, in points: {', '.join(f'{100 * gap:.1f}' for gap in spread)} at t=1, 2, ... "
        f"The encoder on a glance costs {macs_words(encoder)}."
    )
    drawing = after_look_drawing(rows, "Accuracy if every image takes t looks, with each policy.")
    return Result(tables, {"policies": drawing}, remarks=[remark])


def mean_at(rows: Sequence[Row], column: int) -> list[float]:
    return [mean for row in rows if (mean := row.mean(column)) is not None]


# Sensitivity: Table 8.
LAMBDAS, RATES, LENGTHS = (0, 1, 2, 5, 10), (0.1, 1.0, 10.0), (0.5, 1.0, 1.5)


def sensitivity_runs(scope: Scope) -> dict[str, Run]:
    """Lambda, the encoders' learning rate and the epochs of stages I and III, each changed in turn."""
    preset = MAIN_PRESET[scope.scale]
    usual = chain(scope, preset)
    assert usual.stage3 is not None
    runs = {"usual": usual.stage3}
    for weight in LAMBDAS:
        if weight != 1:
            runs[f"lambda-{weight:g}"] = _varied(
                scope, preset, usual, f"lambda-{weight:g}", {"own_head_weight": weight}
            )
    for factor in RATES:
        if factor != 1:
            rate = usual.stage3.settings.finetune.encoder_lr * factor
            runs[f"lr-{factor:g}"] = _varied(scope, preset, usual, f"lr-{factor:g}", {"encoder_lr": round(rate, 6)})
    for factor in LENGTHS:
        if factor != 1:
            runs[f"epochs-{factor:g}"] = _varied(scope, preset, usual, f"epochs-{factor:g}", {}, factor)
    return runs


def _varied(
    scope: Scope, preset: str | None, usual: Chain, name: str, both: Mapping[str, Any], length: float = 1.0
) -> Run:
    """The last run of a network with these settings of stages I and III."""
    assert usual.stage2 is not None
    assert usual.stage3 is not None
    first, third = usual.stage1.settings.recognise, usual.stage3.settings.finetune
    changes: dict[str, Any] = {
        f"{stage}.{key}": value for stage in ("recognise", "finetune") for key, value in both.items()
    }
    if length != 1:
        changes |= {f"{stage}.epochs": max(1, round(length * epochs)) for stage, epochs in
                    (("recognise", first.epochs), ("finetune", third.epochs))}  # fmt: skip
    elif first.freeze_encoders:
        # Stage I trains the classifier only, so that these settings have no effect there.
        return again(scope, "finetune", usual.stage2, f"{name}-stage3", preset=preset, changes=changes)
    varied = chain(scope, preset, name=name, changes=changes)
    assert varied.stage3 is not None
    return varied.stage3


def sensitivity_result(measured: Measured) -> Result:
    words = {f"lambda-{weight:g}": f"lambda = {weight:g}" for weight in LAMBDAS}
    words |= {f"lr-{factor:g}": f"learning rate x {factor:g}" for factor in RATES}
    words |= {f"epochs-{factor:g}": f"epochs x {factor:g}" for factor in LENGTHS}
    usual = {"lambda-1", "lr-1", "epochs-1"}
    rows = []
    for key, name in words.items():
        runs = measured["usual" if key in usual else key]
        shown = f"{name} (unchanged)" if key in usual else name
        rows.append(row_beside("sensitivity", key, shown, [run.after_looks() for run in runs]))
    looks = len(rows[0].values[0])
    remarks = []
    if measured.first("usual").run.settings.recognise.freeze_encoders:
        remarks.append(
            "On this data set stage I trains the classifier only, so lambda and the learning rate have an effect in stage III only."
        )
    title = f"Top-1 accuracy, % ({source_of('sensitivity')})"
    last = [statistics.mean(row.known(looks - 1)) for row in rows]
    remarks.append(f"Accuracy at t={looks} over all settings: {100 * min(last):.1f} to {100 * max(last):.1f} %.")
    table = Table("sensitivity", title, look_columns(looks), rows, measured.images, ordered=True)
    return Result(
        [table], {"sensitivity": after_look_drawing(rows, "Accuracy if every image takes t looks.")}, remarks=remarks
    )
