"""`gf bench`: wall-clock time against the plain backbone, side by side in one run, and where the time goes."""

import json
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from glancefocus.cli.bench_output import NOT_WHOLE, TimingRows, print_timings
from glancefocus.cli.main import Display, Flag, Json, SplitName, command_options, display, words_of
from glancefocus.cli.printing import notice, print_line, print_remarks, progress_bars
from glancefocus.errors import BadBudget, BadSetting, UnknownName
from glancefocus.machine import usable_device
from glancefocus.values import BatchSize, MultiplyAdds, Rounds, Share, Threads

if TYPE_CHECKING:
    import torch

    from glancefocus.bundle.bundle import Bundle
    from glancefocus.evaluation.choosing import OwnThresholds, SameAccuracy
    from glancefocus.evaluation.records import Records
    from glancefocus.evaluation.wall_clock import Subject, Timing
    from glancefocus.exits.curve import Point
    from glancefocus.network.model import GlanceFocus
    from glancefocus.outcome import Costs
    from glancefocus.settings import ViewSettings

ROUNDS = 7
ALL_BATCHES = (1, 64, 128)
BRIEF_SECONDS = 120.0
"""Approximate duration without --rounds and --all."""
LIGHT_POLICY = {"head": "conv", "conv_kernel": 1, "conv_channels": 32, "units": 256}
# The backbone's multiply-adds divided by the network's, at equal accuracy: from the paper's table of throughput, and its text for
# MobileNetV3.
PAPER_RATIOS = {"resnet50": 1.90, "densenet121": 2.61, "densenet169": 1.84, "mobilenetv3_large_100": 1.4}

Several = Parameter(consume_multiple=True)


@command_options
@dataclass(frozen=True)
class BenchOptions:
    """Options of `gf bench`."""

    network: str
    """A bundle, its name on the hub (hf://user/name), or a preset of `gf models`, which gets random weights."""
    data: str | None = None
    """Labelled images, as for `gf evaluate`. The thresholds are then chosen so that the network is as accurate as the backbone. If
    only regions of the images are read, the network is measured alone, with the thresholds of the bundle.
    Default: images of noise; the shares that stop after each look are then those of --exits."""
    _: KW_ONLY
    runtime: Annotated[list[str] | None, Several] = None
    """Inference backends to measure, one after the other: plain, eager, compile, onnx, openvino. Default: eager, and onnx and
    openvino if they are installed."""
    batch: Annotated[list[BatchSize] | None, Several] = None
    """Batch sizes to measure. Default: 1 32."""
    threads: Threads | None = None
    """Number of CPU threads. Default: 1 for a batch of one image; otherwise one for each core."""
    exits: Annotated[list[Share] | None, Several] = None
    """Without data: the share of images that stop after each look, such as 0.5,0.2,0.1,0.1,0.1. Default: the shares measured with
    the thresholds of the bundle; for a preset, the shares with which the paper's network of that family is as accurate as its
    backbone."""
    budget_macs: MultiplyAdds | None = None
    """Instead of --exits: mean multiply-adds of an image. The shares then change by one constant factor from look to look."""
    backbone: Path | None = None
    """Weights of the plain backbone. Default: backbone.safetensors beside the bundle, where `gf train` puts it."""
    light_policy: Flag = False
    """For presets: use a small policy (1x1 convolution to 32 channels, 256 units)."""
    light_weights: bool | None = None
    """With --runtime onnx: int8 weights in memory-bound layers, for small batches. Default: off; with --all, measured with and
    without."""
    setting: Annotated[list[str] | None, Parameter(name=["--set"])] = None
    """For presets: a setting of the network as name=value, such as policy.units=128. May be repeated."""
    rounds: Rounds | None = None
    """Number of measured rounds. Each round times the backbone and the network once. Default: 3 to 7, so that everything takes
    about two minutes."""
    everything: Annotated[Flag, Parameter(name="--all")] = False
    """Measure everything: all installed runtimes (compile only on a GPU), with and without light weights, batches of 1, 64 and
    128, and 7 rounds."""
    device: str | None = None
    """Device to compute on, such as cpu or cuda:1. Default: the first GPU, or the CPU if there is none."""
    whole_split: Flag = False
    """With data: measure images per second over all images of the split, in batches of 128 (or --batch), without the time for
    reading files, as in the paper's table."""
    split: SplitName | None = None
    """With data: the images to measure on: train, val, test or all. Default: as for `gf evaluate`. Other images, or one half of
    these, are used to choose the thresholds."""
    json: Json = False

    def __post_init__(self) -> None:
        if self.exits is not None and self.budget_macs is not None:
            raise BadSetting("give the shares that stop after each look (--exits), or a --budget-macs, not both.")
        if self.whole_split and self.data is None:
            raise BadSetting("--whole-split measures all images of a data set. Name the data.")
        if self.whole_split and (len(self.batch or [1]) > 1 or len(self.runtimes or [""]) > 1):
            raise BadSetting("--whole-split measures one runtime with one batch size. Name one of each.")

    @property
    def runtimes(self) -> list[str] | None:
        return None if self.runtime is None else words_of(self.runtime)


def bench_network(options: BenchOptions) -> None:
    """Measure wall-clock time against the plain backbone, side by side, to show whether fewer multiply-adds also take less time.

    Example: gf bench runs/signs/bundle signs --runtime onnx openvino
    """
    from glancefocus.bundle.sharing import local_folder
    from glancefocus.evaluation.wall_clock import BRIEF_BATCHES, images_needed
    from glancefocus.network.presets import PRESETS
    from glancefocus.runtime.choose import RUNTIMES, check_name

    for name in options.runtimes or ():
        check_name(name, RUNTIMES)
    network, as_json = local_folder(options.network), options.json
    batches = options.batch if options.batch is not None else ALL_BATCHES if options.everything else BRIEF_BATCHES
    if not batches:
        raise BadSetting("there is nothing to measure: --batch is empty. Give at least one batch size.")
    most_images = max(map(images_needed, batches))
    if options.whole_split:
        _bench_whole_split(network, options)
        return
    with progress_bars(quiet=as_json) as progress:
        if network.exists():
            subject = bundle_subject(network, options, most_images, progress)
        elif str(network) in PRESETS:
            subject = preset_subject(options, most_images)
        else:
            raise UnknownName(
                "bundle or preset", str(network), PRESETS, "Name a bundle's folder, or a preset of `gf models`."
            )
    with display(for_programs=as_json, in_percent=True) as shown:
        rows = None if as_json else TimingRows(shown, str(network), alone=subject.backbone is None)
        timings = _measured(subject, batches, options, shown, rows)
    if as_json:
        print(json.dumps([timing.to_plain() for timing in timings], indent=1, allow_nan=False))
        return
    print_timings(subject, timings)
    if not options.everything and options.runtimes is None:
        notice("--all also measures every other installed runtime, int8 weights, and larger batches.")


def _measured(
    subject: "Subject", batches: Sequence[int], options: BenchOptions, shown: Display, rows: "TimingRows | None"
) -> list["Timing"]:
    """All cases, one after the other; in about two minutes, unless --rounds or --all was given."""
    from glancefocus.evaluation.wall_clock import bench, brief_runtimes, usual_cases

    device = next(subject.net.parameters()).device
    runtimes = brief_runtimes(device) if options.runtimes is None and not options.everything else options.runtimes
    cases = usual_cases(runtimes, batches, options.threads, device, options.light_weights)
    brief = options.rounds is None and not options.everything
    ends_at = time.perf_counter() + BRIEF_SECONDS
    timings: list[Timing] = []

    def progress(share: float) -> None:
        shown.progress("measuring", len(timings) + 0.8 * share, len(cases))  # the rest is for the time of the parts

    for case in cases:
        progress(0.0)
        # Each case gets an equal share of the time that is left, half of it for the rounds: opening a runtime takes time, too.
        seconds = 0.5 * max(0.0, ends_at - time.perf_counter()) / (len(cases) - len(timings)) if brief else None
        rounds, warm_up = options.rounds or ROUNDS, 1 if brief else 2
        timings.append(bench(subject, case, rounds=rounds, warm_up=warm_up, seconds=seconds, progress=progress))
        if rows is not None:
            rows.show(timings[-1])
    return timings


def preset_subject(options: BenchOptions, most_images: int) -> "Subject":
    """A preset with random weights on noise; the share that stops after each look is the paper's, unless options give another."""
    import torch

    from glancefocus.network.macs import count_costs
    from glancefocus.network.weights import create, make_up_weights
    from glancefocus.training.assignments import assign

    name, data = options.network, options.data
    if data is not None:
        raise BadSetting(f"{name} has random weights, which recognise nothing in {data}. Leave the data out.")
    if options.backbone is not None:
        raise BadSetting(f"{name} has random weights, and so has its backbone. Leave --backbone out.")
    changes: dict[str, Any] = {"policy": dict(LIGHT_POLICY)} if options.light_policy else {}
    for assignment in options.setting or ():
        assign(changes, assignment)
    generator = torch.Generator().manual_seed(0)
    net = make_up_weights(create(name, seed=0, **changes), generator).to(usable_device(options.device))
    return _forced(net, count_costs(net.settings), None, options, most_images, generator)


def bundle_subject(folder: Path, options: BenchOptions, most_images: int, progress: Any) -> "Subject":
    """A trained network, on data with thresholds for its backbone's accuracy, or on noise with given shares that stop."""
    import torch

    from glancefocus.bundle.bundle import load
    from glancefocus.evaluation.choosing import at_backbone_accuracy
    from glancefocus.evaluation.records import Records, looks_folder

    if options.setting or options.light_policy:
        raise BadSetting(
            "--set and --light-policy would change a network that is trained already; they are for presets. Leave them out."
        )
    bundle = load(folder, device=usable_device(options.device))
    if options.data is None:
        if options.split is not None:
            raise BadSetting(f"--split {options.split} needs data. Name the data, or leave --split out.")
        _refuse_large_noise(bundle.settings.view)
        curve = next((p for p in bundle.curve if _thresholds(p) == _plain(bundle.thresholds)), None)
        exits = None if curve is None else curve.get("exits_per_look")
        usual = None if exits is None else [count / sum(exits) for count in exits]
        generator = torch.Generator().manual_seed(0)
        return _forced(bundle.net, bundle.costs, usual, options, most_images, generator)
    if options.exits is not None or options.budget_macs is not None:
        raise BadSetting(
            "with data, thresholds are chosen so that the network is as accurate as the backbone. Leave the data out, or "
            "--exits and --budget-macs."
        )
    records = Records(bundle, options.data, looks_folder(folder), progress=progress)
    if _sees_regions(records, options):
        return _alone(records, options, most_images)
    backbone = _backbone_of(bundle, folder, options.backbone)
    found = at_backbone_accuracy(records, backbone, most_images, split=options.split)
    _print_remarks(records, options)
    return replace(_at_thresholds(bundle, backbone, found), backbone_accuracy=found.backbone_accuracy)


def _at_thresholds(
    bundle: "Bundle", backbone: "GlanceFocus | None", found: "SameAccuracy | OwnThresholds"
) -> "Subject":
    """A trained network with the thresholds that were found, and where they were measured."""
    from glancefocus.evaluation.wall_clock import Subject

    return Subject(
        bundle.net,
        backbone,
        bundle.costs,
        found.images,
        rule=bundle.exit_rule(thresholds=found.thresholds),
        accuracy=found.accuracy,
        measured_on=found.measured_on,
        chosen_on=found.chosen_on,
    )


def _refuse_large_noise(view: "ViewSettings") -> None:
    """Refuse noise in place of pictures of which only regions would be read."""
    from glancefocus.data.images import LARGE_PIXELS

    if view.fit == "whole" and view.height_px * view.width_px > LARGE_PIXELS:
        raise BadSetting(
            f"this network looks at regions of images of {view.height_px}x{view.width_px} px, and noise of that size would be held "
            "in memory whole. Name the data, whose regions are read."
        )


def _sees_regions(records: "Records", options: BenchOptions) -> bool:
    """Whether only regions are read of some of the images that are measured."""
    from glancefocus.data.scene_splits import reads_regions

    return records.made_before is None and reads_regions(records.split(records.to_measure(options.split)))


def _alone(records: "Records", options: BenchOptions, most_images: int) -> "Subject":
    """A trained network with its own thresholds on large pictures, without a backbone."""
    from glancefocus.evaluation.choosing import at_own_thresholds

    if options.backbone is not None:
        raise BadSetting(f"{NOT_WHOLE}. Leave --backbone out: glancefocus is then measured alone.")
    found = at_own_thresholds(records, most_images, split=options.split)
    _print_remarks(records, options)
    return _at_thresholds(records.bundle, None, found)


def _print_remarks(records: "Records", options: BenchOptions) -> None:
    print_remarks(records.bad_files)
    for remark in records.remarks(records.to_measure(options.split)):
        notice(remark)


def _bench_whole_split(folder: Path, options: BenchOptions) -> None:
    """Print images per second over a whole split."""
    from glancefocus.bundle.bundle import load
    from glancefocus.evaluation.choosing import at_backbone_accuracy
    from glancefocus.evaluation.records import Records, looks_folder
    from glancefocus.evaluation.throughput import whole_split
    from glancefocus.machine import device_name
    from glancefocus.runtime.choose import open_backbone, open_runtime

    if not folder.exists():
        raise BadSetting(f"--whole-split needs a trained network, and there is no bundle at {folder}. Check the path.")
    bundle, runtime = load(folder, device=usable_device(options.device)), (options.runtimes or ["eager"])[0]
    with progress_bars(quiet=options.json) as progress:
        records = Records(bundle, str(options.data), looks_folder(folder), progress=progress)
        if _sees_regions(records, options):
            raise BadSetting(
                f"--whole-split compares with the backbone and leaves out the time of reading, but {NOT_WHOLE}. Leave "
                "--whole-split out."
            )
        backbone = _backbone_of(bundle, folder, options.backbone)
        found = at_backbone_accuracy(records, backbone, 1, split=options.split)
        measured = whole_split(
            open_runtime(bundle.net, runtime),
            open_backbone(backbone, runtime),
            bundle.exit_rule(thresholds=found.thresholds),
            bundle.costs,
            records.split(records.to_measure(options.split)),
            batch=options.batch[0] if options.batch else 128,
            device=f"{device_name(bundle.device)}, {runtime}",
            progress=lambda done, images: progress("measuring", done, images),
        )
    if options.json:
        print(json.dumps(measured.to_plain(), indent=1, allow_nan=False))
        return
    print_line(
        f"{measured.images:,} images in batches of {measured.batch} on {measured.device}, without reading: glancefocus "
        f"{measured.glancefocus_per_second:,.0f} images per second ({100 * measured.accuracy:.1f} %), its backbone "
        f"{measured.backbone_per_second:,.0f} ({100 * measured.backbone_accuracy:.1f} %): {measured.time_ratio:.2f} times as many, "
        f"with {measured.mac_ratio:.2f} times fewer multiply-adds"
    )


def _backbone_of(bundle: "Bundle", folder: Path, file: Path | None) -> "GlanceFocus":
    """The bundle's network with the plain backbone as its focus encoder."""
    import copy

    from glancefocus.network.weights import load_backbone_weights
    from glancefocus.training.run_folder import BACKBONE_FILE

    file = folder.absolute().parent / BACKBONE_FILE if file is None else file
    if not file.exists():
        raise BadSetting(
            f"there is no plain backbone at {file} to compare with. Name its weights with --backbone, or leave the data out."
        )
    net = copy.deepcopy(bundle.net)
    load_backbone_weights(net.focus_encoder.backbone, file)
    return net.eval()


def _forced(
    net: "GlanceFocus",
    costs: "Costs",
    usual: Sequence[float] | None,
    options: BenchOptions,
    most_images: int,
    generator: "torch.Generator",
) -> "Subject":
    """Noise; the share that stops after each look comes from the options, from the bundle (`usual`), or from the paper."""
    from glancefocus.evaluation.wall_clock import checked_shares, forced_subject, shares_within

    looks = net.settings.looks
    if options.exits is not None:
        shares = checked_shares(options.exits, looks)
    elif options.budget_macs is not None:
        shares = shares_within(costs.macs_after_look, options.budget_macs)
    elif usual is not None:
        shares = list(usual)
    elif net.settings.backbone in PAPER_RATIOS and net.settings.frames == 1:
        budget = costs.backbone_macs / PAPER_RATIOS[net.settings.backbone]
        shares = shares_within(costs.macs_after_look, budget, falling=True)
    else:
        raise BadBudget(
            f"the shares of images that stop after each of {looks} looks are unknown. Give them with --exits, or give a "
            f"--budget-macs of {costs.macs_after_look[0]:.3g} to {costs.macs_after_look[-1]:.3g}."
        )
    return forced_subject(net, costs, shares, most_images, generator)


def _thresholds(point: "Point") -> Any:
    return _plain(point.get("thresholds"))


def _plain(thresholds: Any) -> Any:
    return None if thresholds is None else json.loads(json.dumps(thresholds))
