"""The studies of time: accuracy over the latency on a phone, and images per second in large batches."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from glancefocus.bundle.files import read_latency_file
from glancefocus.evaluation.choosing import at_backbone_accuracy
from glancefocus.evaluation.figures import LINES, RED, cost_axis, new_figure
from glancefocus.evaluation.latency import measure_latency, measure_rival_times
from glancefocus.evaluation.rivals import image_size
from glancefocus.evaluation.throughput import Throughput, whole_split
from glancefocus.exits.curve import Latency
from glancefocus.machine import device_name
from glancefocus.network.model import GlanceFocus
from glancefocus.network.weights import load_backbone_weights
from glancefocus.runtime.choose import open_backbone, open_runtime
from glancefocus.studies.curves import backbone_dots, whole_image
from glancefocus.studies.networks import chain
from glancefocus.studies.published import paper_row, sentence, source_of
from glancefocus.studies.runs import Finished, Measured
from glancefocus.studies.study import Drawing, Result, Row, Run, Scope, Table
from glancefocus.studies.tables import budget_curve, legend_above
from glancefocus.training.run_folder import BACKBONE_FILE

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


def _networks(measured: Measured) -> list[str]:
    return [name for name in measured.runs if not name.startswith("backbone")]


# Latency of one image: Figure 8.
def phone_runs(scope: Scope) -> dict[str, Run]:
    return _runs(scope, PHONE_NETWORKS)


def phone_result(measured: Measured) -> Result:
    figure, axes = new_figure(4.6)
    rows, devices = [], []
    for number, name in enumerate(_networks(measured)):
        run, backbone = measured.first(name), measured.first(f"backbone of {name}")
        latency, backbone_ms = _latency(name, run, measured.latency)
        devices.append(latency.words)
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
    table = Table(
        "phone", "Milliseconds for one image", columns, rows, unit="number", note=f"Measured on {devices[0]}."
    )
    drawing = Drawing(figure, "Accuracy over the mean time of an image, first seed.")
    return Result([table], {"phone": drawing}, remarks=[sentence("phone")])


def _latency(name: str, run: Finished, given: Path | None) -> tuple[Latency, float | None]:
    """Milliseconds of each look, and of the backbone; one thread and one image at a time, as in the paper.

    given  a file of them, or a folder with NAME.json for each network; they have no time of the backbone
    """
    if given is not None:
        return read_latency_file(given / f"{name}.json" if given.is_dir() else given, run.bundle.settings), None
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
    for name in _networks(measured):
        found = _throughput(measured.first(name), measured.first(f"backbone of {name}"))
        device = f"{found.device}, batch {found.batch}, {found.images:,} images"
        macs = measured.first(name).bundle.costs.backbone_macs
        for what, cost, speed, share in (
            ("backbone", macs, found.backbone_per_second, found.backbone_accuracy),
            ("glancefocus", macs / found.mac_ratio, found.glancefocus_per_second, found.accuracy),
        ):
            paper, _ = paper_row("gpu", f"{name.partition('-')[0]} {what}", share=False)
            rows.append(Row(f"{name}, {what}", [[cost / 1e9, speed, 100 * share]], paper))
        ratios.append(
            f"{found.time_ratio:.2f} times the throughput with {found.mac_ratio:.2f} times fewer multiply-adds"
        )
    columns = ["multiply-adds, G", "images per second", "accuracy, %"]
    title = f"Multiply-adds and throughput at the backbone's accuracy ({source_of('gpu')})"
    note = f"Measured on {device}. Reading images is not included."
    table = Table("gpu", title, columns, rows, unit="number", note=note)
    paper_words = (
        "In the paper, throughput is 1.86 times as high for ResNet-50, 2.07 for DenseNet-121 and 1.50 for DenseNet-169."
    )
    return Result([table], remarks=[f"glancefocus against its backbone: {'; '.join(ratios)}.", paper_words])


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
