"""Comparison networks with several exits, MSDNet and ensembles by depth: trained, measured, and compared with ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from glancefocus.data.sources import Data, DataSettings, open_data
from glancefocus.evaluation.records import exits_table, record_exits
from glancefocus.exits.table import LookTable
from glancefocus.files import fingerprint
from glancefocus.network.multi_exit import (
    MSDNET_IMAGENET,
    DepthEnsemble,
    MSDNet,
    MSDNetSettings,
    MultiExit,
    count_exits,
)
from glancefocus.settings import ViewSettings
from glancefocus.studies.curves import anytime_figure, backbone_dots, means_of
from glancefocus.studies.networks import Chain, chain
from glancefocus.studies.published import sentence
from glancefocus.studies.runs import RUNS_FOLDER, Finished, Measured
from glancefocus.studies.study import Drawing, Result, Row, Run, Scope, Table
from glancefocus.studies.tables import budget_curve, curves_figure, look_columns
from glancefocus.training.multi_exit import MultiExitTraining, train_exits
from glancefocus.values import to_plain

CHECKPOINT, _RECORDS = "last.ckpt", "looks"
# Their dearest exit costs about as much as the small backbone.
TINY_MSDNET = MSDNetSettings(exits=5, base=2, step=2, channels=8, growth=6, widths=(1, 2, 4), bottleneck=(1, 2, 4))
TINY_ENSEMBLE = ("resnet18", "resnet34")
TINY_OPTIONS: dict[str, Any] = {
    "channels": [8, 16, 24, 40],
    "stem_type": "deep",
    "stem_width": 8,
    "zero_init_last": False,
}
PAPER_ENSEMBLE = ("densenet121", "densenet169", "densenet201")
TINY_TRAINING = MultiExitTraining(epochs=8, lr=0.1, weight_decay=5e-4, batch_size=32, rates="cosine")


@dataclass(frozen=True)
class ExitsRun:
    """One comparison network and its training.

    network  an MSDNet, or the backbones of an ensemble, the cheapest first
    options  of these backbones
    """

    name: str
    network: MSDNetSettings | tuple[str, ...]
    training: MultiExitTraining
    data: DataSettings
    view: ViewSettings
    classes: int
    options: Mapping[str, Any]

    @property
    def content(self) -> str:
        """Hash of everything that the trained network depends on."""
        network = to_plain(self.network) if isinstance(self.network, MSDNetSettings) else [*self.network, self.options]
        data = {name: value for name, value in to_plain(self.data).items() if name != "workers"}
        return fingerprint([network, to_plain(self.training), data, to_plain(self.view)])

    def build(self) -> MultiExit:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.training.seed)
            if isinstance(self.network, MSDNetSettings):
                return MSDNet(self.network)
            return DepthEnsemble(self.network, self.classes, dict(self.options))

    def place(self, folder: Path) -> Path:
        """The folder of this run among all runs."""
        return folder / RUNS_FOLDER / f"{self.name}-{self.content[:12]}"

    def macs(self, images: int) -> float:
        """Multiply-adds of training on this many images."""
        costs = count_exits(self.build(), self.view.height_px, self.view.width_px)
        return 3.0 * self.training.epochs * images * costs[-1]


class FinishedExits:
    """A trained comparison network; thresholds are chosen and measured on the same images as ours."""

    def __init__(self, run: ExitsRun, folder: Path) -> None:
        """Train the network in folder/runs, from its last epoch on if it was stopped, unless it is finished."""
        self.run, place = run, run.place(folder)
        place.mkdir(parents=True, exist_ok=True)
        self.opened: Data = open_data(run.data, run.view)
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        net = run.build().to(device or "cpu")
        workers = run.data.workers
        self.net = train_exits(net, self.opened, run.view, run.training, place / CHECKPOINT, workers=workers)
        self.costs = count_exits(self.net, run.view.height_px, run.view.width_px)
        self._records = place / _RECORDS

    @property
    def measured_on(self) -> str:
        return "val" if self.opened.test is None else "test"

    def _table(self, name: str, score: str | None) -> LookTable:
        split = getattr(self.opened, name)
        run = self.run
        record = record_exits(
            self.net, split, run.view, self._records, source=run.data.source, name=name, workers=run.data.workers
        )
        return exits_table(self.net, record, run.view, score or "confidence")

    def table(self, score: str | None = None) -> LookTable:
        return self._table(self.measured_on, score)

    def choosing(self, score: str | None = None) -> LookTable | None:
        return None if self.measured_on == "val" else self._table("val", score)

    def after_looks(self) -> list[float]:
        """Accuracy if every image leaves at the first exit, the second, ..."""
        return self.table().accuracy_after_look


def exits_runs(scope: Scope) -> dict[str, ExitsRun]:
    """The comparison networks, on the same images as ours."""
    own = our_chain(scope)
    settings = own.backbone.settings
    data, view, classes = settings.data, settings.network.view, settings.network.classes

    def run(name: str, network: MSDNetSettings | tuple[str, ...], **options: Any) -> ExitsRun:
        training = replace(TINY_TRAINING if scope.scale == "tiny" else MultiExitTraining(), seed=scope.seed)
        chosen = [text for text in scope.assignments if text.startswith("backbone.epochs=")]
        if chosen:  # a changed length of training applies to all networks on whole images
            training = replace(training, epochs=int(chosen[-1].partition("=")[2]))
        return ExitsRun(name, network, training, data, view, classes, options)

    if scope.scale == "tiny":
        return {
            "MSDNet": run("msdnet", replace(TINY_MSDNET, classes=classes)),
            "ensemble by depth": run("ensemble", TINY_ENSEMBLE, **TINY_OPTIONS),
        }
    found = {name: run(name, replace(network, classes=classes)) for name, network in MSDNET_IMAGENET.items()}
    return {**found, "ensemble of DenseNets": run("ensemble-densenet", PAPER_ENSEMBLE)}


def our_chain(scope: Scope) -> Chain:
    return chain(scope, None if scope.scale == "tiny" else "gf-densenet121-96")


# Figures 7 (f) and 18.
def msdnet_runs(scope: Scope) -> dict[str, Run]:
    own = our_chain(scope)
    return {"network": own.trained, "backbone": own.backbone}


def msdnet_result(measured: Measured) -> Result:
    """Budgeted and anytime, beside ours."""
    ours, others = measured["network"], measured.exits
    curves = {"glancefocus": budget_curve(ours[0]), **{name: budget_curve(runs[0]) for name, runs in others.items()}}
    rows = {"glancefocus": Row("glancefocus", [run.after_looks() for run in ours])}
    rows |= {name: Row(name, [run.after_looks() for run in runs]) for name, runs in others.items()}
    lines = {"glancefocus": ours[0].bundle.costs.macs_after_look, **{name: r[0].costs for name, r in others.items()}}
    most = max(len(costs) for costs in lines.values())
    costs = [Row(name, [[macs / 1e6 for macs in own]]) for name, own in lines.items()]
    tables = [
        Table("anytime", "Accuracy after look or exit t, %", look_columns(most), list(rows.values()), measured.images),
        Table("cost", "Multiply-adds after look or exit t, millions", look_columns(most), costs, unit="number"),
        _at_budgets(ours, others, measured.images),
    ]
    dots = backbone_dots(measured.first("backbone"), resized=False)
    points = {name: list(zip(macs, means_of(rows[name]), strict=True)) for name, macs in lines.items()}
    drawings = {
        "budgeted": Drawing(curves_figure(curves, dots), "Budgeted: accuracy over mean multiply-adds, first seed."),
        "anytime": Drawing(
            anytime_figure(points, dots), "Anytime: accuracy if every image stops at the same look or exit."
        ),
    }
    return Result(tables, drawings, remarks=[sentence("anytime"), sentence("msdnet")])


def _at_budgets(ours: Sequence[Finished], others: Mapping[str, Sequence[Any]], images: int) -> Table:
    """Accuracy within the same budgets; None below the first exit of a network."""
    dearest = ours[0].bundle.costs.macs_after_look[-1]
    budgets = [dearest * share for share in (0.4, 0.6, 0.8, 1.0, 1.5, 2.0)]

    def best(run: Any) -> list[float | None]:
        curve = budget_curve(run)
        return [max((p["accuracy"] for p in curve if p["mean_macs"] <= budget), default=None) for budget in budgets]

    rows = [Row("glancefocus", [best(run) for run in ours])]
    rows += [Row(name, [best(run) for run in runs]) for name, runs in others.items()]
    columns = [f"{budget / 1e6:,.1f}M" for budget in budgets]
    return Table("budgeted", "Best accuracy within a mean budget of multiply-adds, %", columns, rows, images)
