"""All studies by name, and the function that runs one: train what is missing, measure, write tables, figures and a page."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from glancefocus.data.lists import medium_of
from glancefocus.data.sources import classes_of
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadData, BadSetting, UnknownName
from glancefocus.machine import keep_freed_memory
from glancefocus.studies import ablation, criteria, curves, exits, fields, pictures, speed, tables
from glancefocus.studies.estimate import MacsPerSecond, StudyPlan, plan_runs
from glancefocus.studies.exits import ExitsRun, FinishedExits
from glancefocus.studies.output import PAGE, About, write_study
from glancefocus.studies.runs import Finished, Measured, OnRun, RunFolder
from glancefocus.studies.study import Result, Run, Scale, Scope, Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "main",
            "Accuracy over multiply-adds: several networks against their backbones",
            "Figure 7 (a) to (e) and Table 9 of the paper",
            curves.main_runs,
            curves.main_result,
            seeds=(1, 1),
        ),
        Study(
            "anytime",
            "Anytime prediction",
            "Figure 7 (f) of the paper",
            curves.anytime_runs,
            curves.anytime_result,
            seeds=(3, 1),
        ),
        Study(
            "msdnet",
            "MSDNet and an ensemble by depth, budgeted and anytime",
            "Figures 7 (f) and 18 of the paper",
            exits.msdnet_runs,
            exits.msdnet_result,
            exits.exits_runs,
        ),
        Study(
            "phone",
            "Accuracy over the latency of one image",
            "Figure 8 of the paper",
            speed.phone_runs,
            speed.phone_result,
            seeds=(1, 1),
        ),
        Study(
            "gpu",
            "Throughput in large batches at the backbone's accuracy",
            "Table 1 of the paper",
            speed.gpu_runs,
            speed.gpu_result,
            seeds=(1, 1),
        ),
        Study(
            "rewards",
            "Contrastive against increment reward",
            "Table 2 of the paper",
            tables.reward_runs,
            tables.reward_result,
            seeds=(3, 3),
        ),
        Study(
            "sizes",
            "Several patch sizes (MS-GFNet) against fixed ones",
            "Table 3, Figures 10 and 17 of the paper",
            tables.size_runs,
            tables.size_result,
            seeds=(2, 3),
        ),
        Study(
            "resolution",
            "Image sizes",
            "Figure 11 of the paper",
            curves.resolution_runs,
            curves.resolution_result,
            seeds=(1, 1),
        ),
        Study(
            "traffic-signs",
            "Traffic signs in large road scenes",
            "Table 4 and Figure 12 of the paper",
            fields.traffic_runs,
            fields.traffic_result,
            seeds=(1, 1),
        ),
        Study(
            "video",
            "Clips",
            "Figures 13 and 14 of the paper",
            fields.video_runs,
            fields.video_result,
            seeds=(1, 1),
            world="gestures",
            clips=True,
        ),
        Study(
            "looks",
            "The expected number of looks",
            "Figure 15 of the paper",
            curves.expected_runs,
            curves.expected_result,
            seeds=(3, 1),
        ),
        Study(
            "length-and-size",
            "Number of looks and patch size",
            "Figure 16 of the paper",
            curves.length_runs,
            curves.length_result,
            seeds=(1, 1),
        ),
        Study(
            "ablation",
            "Ablation of the parts of the network and of its training",
            "Table 5 of the paper",
            ablation.ablation_runs,
            ablation.ablation_result,
            seeds=(2, 1),
        ),
        Study(
            "policies",
            "Architectures of the policy",
            "Table 6 of the paper",
            tables.policy_runs,
            tables.policy_result,
            seeds=(2, 1),
        ),
        Study(
            "criteria",
            "Exit criteria",
            "Table 7 of the paper",
            criteria.criteria_runs,
            criteria.criteria_result,
            seeds=(3, 3),
        ),
        Study(
            "sensitivity",
            "Sensitivity to the training settings",
            "Table 8 of the paper",
            tables.sensitivity_runs,
            tables.sensitivity_result,
            seeds=(2, 1),
        ),
        Study(
            "heatmap",
            "The value of the second patch at each place",
            "Figure 5 of the paper",
            pictures.picture_runs,
            pictures.heatmap_result,
            seeds=(1, 1),
        ),
        Study(
            "gallery",
            "Looks at test images",
            "Figure 9 of the paper",
            pictures.picture_runs,
            pictures.gallery_result,
            seeds=(1, 1),
        ),
    )
}


def study_named(name: str) -> Study:
    if name not in STUDIES:
        raise UnknownName("study", name, STUDIES, f"Studies are {', '.join(STUDIES)}.")
    return STUDIES[name]


@dataclass(frozen=True)
class Order:
    """A study as it is asked for.

    data         None: the built-in data set of the study at scale tiny; at scale paper only its plan can be made
    scale        None: tiny for built-in data, otherwise paper
    seeds        None: the study's own number
    weights, assignments  see Scope
    """

    study: Study
    data: str | None = None
    scale: Scale | None = None
    seeds: int | None = None
    weights: str = "pretrained"
    assignments: tuple[str, ...] = ()

    @property
    def scope(self) -> Scope:
        """The scope of the first seed."""
        scale: Scale = self.scale or ("tiny" if self.data is None or self.data in WORLDS else "paper")
        data = self.study.world if self.data is None and scale == "tiny" else self.data
        if scale == "tiny" and data != self.study.world:
            raise BadData(
                f"at scale tiny the study {self.study.name} uses the built-in data set {self.study.world}, but got {data}. "
                "Leave the data out, or use --scale paper for your own."
            )
        return Scope(scale, data, 0, self.weights, self.assignments)

    @property
    def seed_count(self) -> int:
        return self.seeds or self.study.seeds[0 if self.scope.scale == "tiny" else 1]

    def exits(self) -> Mapping[str, Sequence[ExitsRun]]:
        """{name: one comparison network with several exits for each seed}."""
        if self.study.exits is None:
            return {}
        each = [self.study.exits(replace(self.scope, seed=seed)) for seed in range(self.seed_count)]
        return {name: [runs[name] for runs in each] for name in each[0]}

    def runs(self) -> Mapping[str, Sequence[Run]]:
        """{name: one run for each seed}."""
        scope = self.scope
        if scope.data is not None and scope.data not in WORLDS:
            _check_medium(self.study, scope.data)
        each = [self.study.runs(replace(scope, seed=seed)) for seed in range(self.seed_count)]
        return {name: [runs[name] for runs in each] for name in each[0]}

    @property
    def command(self) -> str:
        words = ["gf study", self.study.name, *([self.data] if self.data else [])]
        words += [f"--scale {self.scale}"] if self.scale else []
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        words += [f"--weights {self.weights}"] if self.weights != "pretrained" else []
        return " ".join([*words, *(f"--set {text}" for text in self.assignments)])


def _check_medium(study: Study, data: str) -> None:
    """Refuse clips for a study of images, and the other way round."""
    frames = 8 if study.clips else 1
    try:
        classes_of(data, frames)
    except BadData as error:
        noun = medium_of(frames).noun
        raise BadData(f"the study {study.name} needs {noun}: {error}") from None


def plan_study(order: Order, folder: Path, speed: MacsPerSecond | None = None) -> StudyPlan:
    """What a study would train; nothing is trained."""
    runs = [run for each in order.runs().values() for run in each]
    others = [run for each in order.exits().values() for run in each]
    return plan_runs(runs, RunFolder(folder), speed, others)


def run_study(
    order: Order,
    folder: Path,
    *,
    quiet: bool = False,
    on_run: OnRun | None = None,
    latency: Path | None = None,
) -> tuple[About, Result]:
    """Train the runs of a study that are missing, measure, and write everything into folder/NAME.

    Runs are in folder/runs and shared by all studies. A study that was stopped goes on where it stopped.
    """
    scope = order.scope
    if scope.data is None:
        raise BadSetting(
            f"the study {order.study.name} at scale paper needs the paper's data. Name its folder; --plan works without it."
        )
    keep_freed_memory()
    runs = RunFolder(folder)
    finished: dict[str, list[Finished]] = {}
    for name, each in order.runs().items():
        finished[name] = [runs.train(run, quiet=quiet, on_run=on_run) for run in each]
    others = {name: [FinishedExits(run, folder) for run in each] for name, each in order.exits().items()}
    result = order.study.measure(Measured(scope, finished, others, latency))
    about = About(order.study, scope.scale, scope.data, order.seed_count, order.command, machine_words())
    write_study(folder / order.study.name, about, result)
    return about, result


def page_of_study(folder: Path, study: Study) -> Path:
    return folder / study.name / PAGE


def machine_words() -> str:
    """What this machine computes with."""
    device = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "CPU"
    return f"{device}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
