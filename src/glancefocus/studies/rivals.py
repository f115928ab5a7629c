"""The studies against other networks and the clock: MSDNet and ensembles by depth, latency on a phone, images per second."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from glancefocus.bundle.files import read_latency_file
from glancefocus.data.sources import Data, DataSettings, open_data
from glancefocus.errors import BadSetting
from glancefocus.evaluation.choosing import at_backbone_accuracy
from glancefocus.evaluation.figures import LINES, RED, cost_axis, new_figure
from glancefocus.evaluation.latency import measure_latency, measure_rival_times
from glancefocus.evaluation.records import exits_table, record_exits
from glancefocus.evaluation.rivals import image_size
from glancefocus.evaluation.throughput import Throughput, whole_split
from glancefocus.exits.curve import Latency
from glancefocus.exits.table import LookTable
from glancefocus.files import fingerprint
from glancefocus.machine import device_name
from glancefocus.network.model import GlanceFocus
from glancefocus.network.multi_exit import (
    MSDNET_IMAGENET,
    DepthEnsemble,
    MSDNet,
    MSDNetSettings,
    MultiExit,
    count_exits,
)
from glancefocus.network.weights import load_backbone_weights
from glancefocus.runtime.choose import open_backbone, open_runtime
from glancefocus.settings import ViewSettings
from glancefocus.studies.budgets import budget_curve, curves_figure, legend_above, look_columns
from glancefocus.studies.catalogue import paper_row, sentence, source_of
from glancefocus.studies.curves import COMPARED_NOTE, anytime_figure, backbone_dots, means_of, whole_image
from glancefocus.studies.networks import Chain, Run, Scope, chain
from glancefocus.studies.results import Drawing, Result, Row, Table
from glancefocus.studies.runs import RUNS_FOLDER, Finished, Measured, OnRun, training_stopped
from glancefocus.training.multi_exit import LOSS, MultiExitTraining, epochs_done, train_exits
from glancefocus.training.run_folder import BACKBONE_FILE, comparable_data
from glancefocus.values import to_plain

CHECKPOINT, _RECORDS = "last.ckpt", "looks"
# Their most expensive exit costs about as much as the small backbone.
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
    def stages(self) -> tuple[str, ...]:
        return ("all exits",)

    @property
    def seed(self) -> int:
        return self.training.seed

    @property
    def content(self) -> str:
        """Hash of everything that the trained network depends on."""
        network = to_plain(self.network) if isinstance(self.network, MSDNetSettings) else [*self.network, self.options]
        data = comparable_data(to_plain(self.data))
        return fingerprint([LOSS, network, to_plain(self.training), data, to_plain(self.view)])

    def build(self) -> MultiExit:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.training.seed)
            if isinstance(self.network, MSDNetSettings):
                return MSDNet(self.network)
            return DepthEnsemble(self.network, self.classes, dict(self.options))

    def place(self, folder: Path) -> Path:
        """The folder of this run among all runs."""
        return folder / RUNS_FOLDER / f"{self.name}-{self.content[:12]}"

    def state(self, folder: Path) -> str:
        """new, begun or finished."""
        done = epochs_done(self.place(folder) / CHECKPOINT)
        return "new" if done == 0 else "begun" if done < self.training.epochs else "finished"

    def macs(self, images: int) -> float:
        """Multiply-adds of training on this many images."""
        costs = count_exits(self.build(), self.view.height_px, self.view.width_px)
        return 3.0 * self.training.epochs * images * costs[-1]


class FinishedExits:
    """A trained comparison network; thresholds are chosen and measured on the same images as ours."""

    def __init__(self, run: ExitsRun, folder: Path, on_run: OnRun | None = None) -> None:
        """Train the network in folder/runs, from its last epoch on if it was stopped, unless it is finished."""
        self.run, place = run, run.place(folder)
        state = run.state(folder)
        place.mkdir(parents=True, exist_ok=True)
        if on_run is not None and state != "finished":
            on_run(run, place, "trained" if state == "new" else "continued")
        self.opened: Data = open_data(run.data, run.view)
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        net = run.build().to(device or "cpu")
        with training_stopped(place):
            self.net = train_exits(
                net, self.opened, run.view, run.training, place / CHECKPOINT, workers=run.data.workers
            )
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


BUDGETED = "Budgeted: accuracy over mean multiply-adds, first seed; diamond: the plain backbone."
AFFORDED = "--: the first exit costs more."


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
        Table(
            "anytime",
            "Top-1 accuracy after look or exit t, %",
            look_columns(most),
            list(rows.values()),
            measured.images,
        ),
        Table(
            "cost", "Multiply-adds per image after look or exit t, millions", look_columns(most), costs, unit="number"
        ),
        _at_budgets(ours, others, measured.images),
    ]
    dots = backbone_dots(measured.first("backbone"), resized=False)
    points = {name: list(zip(macs, means_of(rows[name]), strict=True)) for name, macs in lines.items()}
    drawings = {
        "budgeted": Drawing(curves_figure(curves, dots), BUDGETED),
        "anytime": Drawing(
            anytime_figure(points, dots),
            "Anytime: accuracy if every image stops at the same look or exit, mean over the seeds.",
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
    title = "Best accuracy within a budget of mean multiply-adds per image, %"
    return Table("budgeted", title, columns, rows, images, note=AFFORDED)


PHONE_NETWORKS = (
    "mobilenetv3-large-100-96",
    "mobilenetv3-large-100-128",
    "mobilenetv3-large-125-128",
    "resnet50-96",
    "resnet50-128",
)
GPU_NETWORKS = ("resnet50-96", "densenet121-96", "densenet169-96")
BATCH = 128


def _runs(scope: Scope, names: Sequence[str]) -> dict[str, Run]:
    presets = {"mini-48": "gf-mini-48"} if scope.scale == "tiny" else {name: f"gf-{name}" for name in names}
    runs: dict[str, Run] = {}
    for name, preset in presets.items():
        own = chain(scope, preset)
        runs |= {name: own.trained, f"backbone of {name}": own.backbone}
    return runs


def _networks(runs: Iterable[str]) -> list[str]:
    return [name for name in runs if not name.startswith("backbone")]


# Latency of one image: Figure 8.
def phone_runs(scope: Scope) -> dict[str, Run]:
    return _runs(scope, PHONE_NETWORKS)


def phone_result(measured: Measured) -> Result:
    figure, axes = new_figure(4.6)
    rows, devices = [], dict[str, None]()
    for number, name in enumerate(_networks(measured.runs)):
        run, backbone = measured.first(name), measured.first(f"backbone of {name}")
        latency, backbone_ms = _latency(name, run, measured.latency)
        devices[latency.words] = None
        share = whole_image(backbone_dots(backbone, resized=False))[1]
        curve = sorted((latency.mean_ms(point), point["accuracy"]) for point in budget_curve(run))
        axes.plot([ms for ms, _ in curve], [100 * s for _, s in curve], label=name, **LINES[number % len(LINES)])
        if backbone_ms is not None:
            axes.plot(backbone_ms, 100 * share, "D", color=RED, label="plain backbone" if number == 0 else None)
        reached = [ms for ms, accuracy in curve if accuracy >= share]
        ours = min(reached) if reached else None
        times = None if ours is None or backbone_ms is None else backbone_ms / ours
        rows.append(Row(name, [[100 * share, backbone_ms, ours, times]]))
    cost_axis(axes, "time per image (ms")
    legend_above(figure, axes)
    columns = ["backbone, %", "backbone, ms", "glancefocus, ms, at that accuracy", "times faster"]
    missing = COMPARED_NOTE if measured.latency is None else "The files of latencies have no times of the backbone."
    note = f"Measured on {'; '.join(devices)}. {missing}"
    table = Table("phone", "Milliseconds for one image", columns, rows, unit="number", note=note)
    drawing = Drawing(figure, "Accuracy over the mean time of an image, first seed; diamonds: the plain backbone.")
    return Result([table], {"phone": drawing}, remarks=[sentence("phone")])


def check_latencies(given: Path, runs: Iterable[str]) -> None:
    """Refuse, before hours of training, a place that does not have the milliseconds of every network of the study."""
    names = _networks(runs)
    if not given.is_dir() and len(names) > 1:
        raise BadSetting(
            f"--latency-file must be a folder here, because the study has {len(names)} networks. It must hold "
            f"{', '.join(f'{name}.json' for name in names)}, but got {given}."
        )
    for file in _latency_files(given, names):
        if not file.is_file():
            raise BadSetting(
                f"there is no file {file}, which must have the milliseconds of a network. Check --latency-file."
            )


def _latency_files(given: Path, names: Iterable[str]) -> list[Path]:
    return [given / f"{name}.json" if given.is_dir() else given for name in names]


def _latency(name: str, run: Finished, given: Path | None) -> tuple[Latency, float | None]:
    """Milliseconds of each look, and of the backbone; one thread and one image at a time, as in the paper.

    given  a file of them, or a folder with NAME.json for each network; they have no time of the backbone
    """
    if given is not None:
        (file,) = _latency_files(given, [name])
        return read_latency_file(file, run.bundle.settings), None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        size = image_size(run.split, run.bundle.settings)
        times = measure_rival_times(run.bundle, [size])
        return replace(measure_latency(run.bundle), threads=1), times.resized[size]
    finally:
        torch.set_num_threads(threads)


# Images per second: Table 1.
def gpu_runs(scope: Scope) -> dict[str, Run]:
    return _runs(scope, GPU_NETWORKS)


def gpu_result(measured: Measured) -> Result:
    rows, ratios, device = [], [], ""
    for name in _networks(measured.runs):
        found = _throughput(measured.first(name), measured.first(f"backbone of {name}"))
        device = f"{found.device}, batch {found.batch}, {found.images:,} images"
        macs = measured.first(name).bundle.costs.backbone_macs
        for what, cost, speed, share in (
            ("backbone", macs, found.backbone_per_second, found.backbone_accuracy),
            ("glancefocus", macs / found.mac_ratio, found.glancefocus_per_second, found.accuracy),
        ):
            paper, _ = paper_row("gpu", f"{name.partition('-')[0]} {what}", share=False)
            rows.append(Row(f"{name}, {what}", [[cost / 1e9, speed, 100 * share]], paper))
        missing = 100 * (found.backbone_accuracy - found.accuracy)
        ratios.append(
            f"{name}: {found.time_ratio:.2f} times the throughput with {found.mac_ratio:.2f} times fewer multiply-adds"
            + (f", {missing:.1f} points below its accuracy" if missing >= 0.05 else "")
        )
    columns = ["multiply-adds per image, G", "images per second", "accuracy, %"]
    title = f"Multiply-adds and throughput at the backbone's accuracy ({source_of('gpu')})"
    note = f"Measured on {device}. Reading images is not included."
    table = Table("gpu", title, columns, rows, unit="number", note=note)
    paper_words = (
        "In the paper, throughput is 1.86 times as high for ResNet-50, 2.07 for DenseNet-121 and 1.50 for DenseNet-169."
    )
    return Result([table], remarks=[f"glancefocus against its backbone, {'; '.join(ratios)}.", paper_words])


def _throughput(run: Finished, backbone: Finished) -> Throughput:
    """All images that are measured on, with thresholds for the backbone's accuracy, and by the backbone."""
    plain: GlanceFocus = copy.deepcopy(run.bundle.net)
    load_backbone_weights(plain.focus_encoder.backbone, backbone.folder / BACKBONE_FILE)
    plain.eval()
    found = at_backbone_accuracy(run.records, plain, 1, split=run.measured_on)
    rule, bundle = run.bundle.exit_rule(thresholds=found.thresholds), run.bundle
    net, whole = open_runtime(bundle.net, "eager"), open_backbone(plain, "eager")
    device, workers = device_name(bundle.device), run.run.settings.data.workers
    return whole_split(net, whole, rule, bundle.costs, run.split, batch=BATCH, device=device, workers=workers)
