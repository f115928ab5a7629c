"""`gf bench`: wall clock against the plain backbone, side by side in one run, and where the time goes."""

import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from glancefocus.bench.forced_exits import checked_shares, shares_within
from glancefocus.bench.same_accuracy import subject_at_backbone_accuracy
from glancefocus.bench.time_shares import SHARES
from glancefocus.bench.wall_clock import (
    BRIEF_BATCHES,
    Subject,
    Timing,
    bench,
    brief_runtimes,
    forced_subject,
    images_needed,
    usual_cases,
)
from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.loading import load
from glancefocus.cli.printing import Display, display, notice, output, progress_bars, say, tell_bad_files
from glancefocus.costs import Costs
from glancefocus.errors import BadBudget, BadSetting, UnknownName
from glancefocus.evaluation.choosing import Records, looks_folder
from glancefocus.exits.curve import Point
from glancefocus.network.build import create, make_up_weights
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.presets import PRESETS
from glancefocus.network.weights import load_backbone_weights
from glancefocus.runtime.choose import RUNTIMES, check_name
from glancefocus.training.recipes import assign

ROUNDS = 7
ALL_BATCHES = (1, 64, 128)
BRIEF_SECONDS = 120.0
"""How long a measurement takes, about, unless more is asked for."""
LIGHT_POLICY = {"head": "conv", "conv_kernel": 1, "conv_channels": 32, "units": 256}
# How many times fewer multiply-adds at the backbone's accuracy: the paper's table of throughput, and for MobileNetV3 its text.
PAPER_RATIOS = {"resnet50": 1.90, "densenet121": 2.61, "densenet169": 1.84, "mobilenetv3_large_100": 1.4}


# Columns of the table of ratios: their widths, and those where there is room for the quartiles.
_COLUMNS = {
    "runtime": (13, 20),
    "batch": (5, 5),
    "threads": (7, 7),
    "backbone": (8, 24),
    "glancefocus": (11, 24),
    "fewer_macs": (10, 10),
    "less_time": (9, 9),
    "quotient": (8, 8),
}
_WIDE = 115  # of a terminal that has room for them


@dataclass(frozen=True)
class BenchAsked:
    """What the user asked for, see words_bench.

    runtimes, batches, rounds  None: what answers most questions in about two minutes
    everything                 all runtimes, larger batches, all rounds
    """

    runtimes: Sequence[str] | None = None
    batches: Sequence[int] | None = None
    threads: int | None = None
    exits: Sequence[float] | None = None
    budget_macs: float | None = None
    backbone: Path | None = None
    light_policy: bool = False
    light_weights: bool | None = None
    changes: Sequence[str] = ()
    rounds: int | None = None
    split: str | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        if self.exits is not None and self.budget_macs is not None:
            raise BadSetting("say which shares leave after each look (--exits), or a --budget-macs, not both.")
        for name in self.runtimes or ():
            check_name(name, RUNTIMES)


def bench_network(network: str, data: str | None, asked: BenchAsked, *, as_json: bool) -> None:
    """Measure every case, and print what came of it, rows as they come."""
    batches = asked.batches if asked.batches is not None else ALL_BATCHES if asked.everything else BRIEF_BATCHES
    if not batches:
        raise BadSetting("there is nothing to measure: no batch was named.")
    most_images = max(map(images_needed, batches))
    with progress_bars(quiet=as_json) as progress:
        if Path(network).exists():
            subject = bundle_subject(Path(network), data, asked, most_images, progress)
        elif network in PRESETS:
            subject = preset_subject(network, data, asked, most_images)
        else:
            raise UnknownName(
                "bundle or preset", network, PRESETS, "Name a bundle's folder, or a preset of `gf models`."
            )
    with display(for_programs=as_json, in_percent=True) as shown:
        rows = None if as_json else TimingRows(shown, network)
        timings = _measured(subject, batches, asked, shown, rows)
    if as_json:
        print(json.dumps([timing.to_plain() for timing in timings], indent=1, allow_nan=False))
        return
    _print(subject, timings)
    if not asked.everything and asked.runtimes is None:
        notice("--all measures every runtime that is installed, with int8 weights, too, and larger batches.")


def _measured(
    subject: Subject, batches: Sequence[int], asked: BenchAsked, shown: Display, rows: "TimingRows | None"
) -> list[Timing]:
    """Every case one after the other, in about two minutes unless the rounds or everything was asked for."""
    device = next(subject.net.parameters()).device
    runtimes = brief_runtimes(device) if asked.runtimes is None and not asked.everything else asked.runtimes
    cases = usual_cases(runtimes, batches, asked.threads, device, asked.light_weights)
    brief = asked.rounds is None and not asked.everything
    ends_at = time.perf_counter() + BRIEF_SECONDS
    timings: list[Timing] = []

    def tell(share: float) -> None:
        shown.tell("measuring", len(timings) + 0.8 * share, len(cases))  # the rest is for where the time goes

    for case in cases:
        tell(0.0)
        # Of what is left of the time each case has its share, half of it for the rounds: opening a runtime takes some, too.
        seconds = 0.5 * max(0.0, ends_at - time.perf_counter()) / (len(cases) - len(timings)) if brief else None
        options = {"rounds": asked.rounds or ROUNDS, "warm_up": 1 if brief else 2}
        timings.append(bench(subject, case, **options, seconds=seconds, progress=tell))
        if rows is not None:
            rows.show(timings[-1])
    return timings


class TimingRows:
    """The table of ratios, printed row by row."""

    def __init__(self, shown: Display, network: str) -> None:
        self.shown = shown
        title = f"{network} against its plain backbone: milliseconds an image, times fewer multiply-adds and less time"
        shown.show(Text(title, style="italic"))
        self._print([name.replace("_", " ") for name in _COLUMNS], style="bold")

    def show(self, t: Timing) -> None:
        wide = self.shown.console.width >= _WIDE
        backbone, own = f"{t.backbone_ms:.2f}", f"{t.glancefocus_ms:.2f}"
        if wide:
            backbone += f" ({t.backbone_ms_low:.2f}-{t.backbone_ms_high:.2f})"
            own += f" ({t.glancefocus_ms_low:.2f}-{t.glancefocus_ms_high:.2f})"
        ratios = [f"{ratio:.2f}" for ratio in (t.mac_ratio, t.time_ratio, t.quotient)]
        self._print([t.runtime_words, str(t.batch), str(t.threads), backbone, own, *ratios])

    def _print(self, cells: Sequence[str], style: str = "") -> None:
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        wide = self.shown.console.width >= _WIDE
        for width, roomy in _COLUMNS.values():
            right = table.columns != []
            table.add_column(min_width=roomy if wide else width, no_wrap=True, justify="right" if right else "left")
        table.add_row(*cells, style=style)
        self.shown.show(table)


def preset_subject(name: str, data: str | None, asked: BenchAsked, most_images: int) -> Subject:
    """A preset with made-up weights, and noise of which the paper's shares leave after each look, unless others were asked for."""
    if data is not None:
        raise BadSetting(f"{name} has made-up weights, which recognise nothing in {data}. Leave the data out.")
    if asked.backbone is not None:
        raise BadSetting(f"{name} has made-up weights, and so has its backbone. Leave --backbone out.")
    changes: dict[str, Any] = {"policy": dict(LIGHT_POLICY)} if asked.light_policy else {}
    for assignment in asked.changes:
        assign(changes, assignment)
    generator = torch.Generator().manual_seed(0)
    net = make_up_weights(create(name, seed=0, **changes), generator)
    return _forced(net, count_costs(net.settings), None, asked, most_images, generator)


def bundle_subject(folder: Path, data: str | None, asked: BenchAsked, most_images: int, progress: Any) -> Subject:
    """A trained network at its backbone's accuracy on data, or with forced exits on noise."""
    if asked.changes or asked.light_policy:
        raise BadSetting("a bundle is trained as it is; --set and --light-policy are for presets. Leave them out.")
    bundle = load(folder)
    if data is None:
        if asked.split is not None:
            raise BadSetting(
                f"--split {asked.split} is a part of the data, but no data was named. Name it, or leave --split out."
            )
        curve = next((p for p in bundle.curve if _thresholds(p) == _plain(bundle.thresholds)), None)
        exits = None if curve is None else curve.get("exits_per_look")
        usual = None if exits is None else [count / sum(exits) for count in exits]
        generator = torch.Generator().manual_seed(0)
        return _forced(bundle.net, bundle.costs, usual, asked, most_images, generator)
    if asked.exits is not None or asked.budget_macs is not None:
        raise BadSetting(
            "with data thresholds are such that glancefocus is as accurate as the backbone. Leave the data out, or "
            "--exits and --budget-macs."
        )
    backbone = _backbone_of(bundle, folder, asked.backbone)
    records = Records(bundle, data, looks_folder(folder), progress=progress)
    subject = subject_at_backbone_accuracy(records, backbone, most_images, split=asked.split)
    tell_bad_files(records.bad_files)
    for remark in records.remarks(records.to_measure(asked.split)):
        notice(remark)
    return subject


def _backbone_of(bundle: Bundle, folder: Path, file: Path | None) -> GlanceFocus:
    """The bundle's network with the plain backbone as its focus encoder."""
    from glancefocus.training.run_folder import BACKBONE_FILE

    file = folder.absolute().parent / BACKBONE_FILE if file is None else file
    if not file.exists():
        raise BadSetting(
            f"there is no plain backbone at {file} to be as accurate as. Name its weights with --backbone, or leave the data out."
        )
    net = copy.deepcopy(bundle.net)
    load_backbone_weights(net.focus_encoder.backbone, file)
    return net.eval()


def _forced(
    net: GlanceFocus,
    costs: Costs,
    usual: Sequence[float] | None,
    asked: BenchAsked,
    most_images: int,
    generator: torch.Generator,
) -> Subject:
    """Noise, of which a share leaves after each look that was asked for, or is usual for the bundle, or is the paper's."""
    looks = net.settings.looks
    if asked.exits is not None:
        shares = checked_shares(asked.exits, looks)
    elif asked.budget_macs is not None:
        shares = shares_within(costs.macs_after_look, asked.budget_macs)
    elif usual is not None:
        shares = list(usual)
    elif net.settings.backbone in PAPER_RATIOS and net.settings.frames == 1:
        budget = costs.backbone_macs / PAPER_RATIOS[net.settings.backbone]
        shares = shares_within(costs.macs_after_look, budget, falling=True)
    else:
        raise BadBudget(
            f"nobody has said how many images leave after each of {looks} looks. Say it with --exits, or give a --budget-macs of "
            f"{costs.macs_after_look[0]:.3g} to {costs.macs_after_look[-1]:.3g}."
        )
    return forced_subject(net, costs, shares, most_images, generator)


def _thresholds(point: Point) -> Any:
    return _plain(point.get("thresholds"))


def _plain(thresholds: Any) -> Any:
    return None if thresholds is None else json.loads(json.dumps(thresholds))


def _print(subject: Subject, timings: Sequence[Timing]) -> None:
    output().print(_shares(timings))
    exits = timings[0].exits
    say(
        f"of {sum(exits)} images {' / '.join(map(str, exits))} left after look {' / '.join(map(str, range(1, len(exits) + 1)))}"
    )
    if subject.accuracy is not None and subject.backbone_accuracy is not None:
        say(
            f"accuracy on {subject.measured_on}: {100 * subject.accuracy:.1f} %, backbone {100 * subject.backbone_accuracy:.1f} %; "
            f"thresholds were chosen on {subject.chosen_on} to be as accurate as the backbone there"
        )


def _shares(timings: Sequence[Timing]) -> Table:
    table = Table(title="where the time of glancefocus goes, in %, and milliseconds of each look")
    table.add_column("runtime", no_wrap=True)
    for name in ("batch", *(share.replace("_", " ") for share in SHARES), "looks"):
        table.add_column(name, justify="right")
    for t in timings:
        shares = [f"{100 * t.shares[name]:.1f}" for name in SHARES]
        table.add_row(t.runtime_words, str(t.batch), *shares, " / ".join(f"{ms:.2f}" for ms in t.ms_per_look))
    return table
