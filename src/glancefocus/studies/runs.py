"""Trains the runs of a study: each is found by the content of its settings, resumed if it was stopped, and never trained twice."""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import Split
from glancefocus.errors import BadRun, GlancefocusError
from glancefocus.evaluation.assess import look_table
from glancefocus.evaluation.every_look import aimed_candidate, evaluate_every_look
from glancefocus.evaluation.records import Records, looks_folder
from glancefocus.exits.table import LookTable
from glancefocus.files import fingerprint, write_text
from glancefocus.interrupts import stop_message
from glancefocus.loop import Policy
from glancefocus.machine import read_json
from glancefocus.network.build import build
from glancefocus.network.macs import count_costs
from glancefocus.network.policy import CentreCornerPolicy, RandomPolicy
from glancefocus.settings import NetworkSettings
from glancefocus.studies.networks import Run, Scope
from glancefocus.training.run import finished_bundle, load_backbone, train
from glancefocus.training.run_folder import BACKBONE_FILE, BUNDLE_FOLDER, SETTINGS_FILE, alike, settings_of
from glancefocus.training.settings import TrainSettings

RUNS_FOLDER = "runs"
_STARTS, _MEASURED = "starts", "measured"
_MOST_BYTES = 16 << 20
OnRun = Callable[[Any, Path, str], None]
"""Called with a run (or a comparison network, rivals.ExitsRun) before it is trained, its folder, and what will happen to it:
trained or continued."""


class RunFolder:
    """The runs of all studies in one folder, found by what they were trained with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / RUNS_FOLDER
        self._found: dict[str, Path] = {}

    def find(self, run: Run) -> Path | None:
        """The folder of a run, finished or not; None if there is none."""
        key = run.content
        if key in self._found:
            return self._found[key]
        if any(self.find(other) is None for other in (run.start, run.weights) if other is not None):
            return None
        wanted = self.settings(run, make=False)
        found = next((folder for folder in self._known() if _same_run(folder, wanted)), None)
        if found is not None:
            self._found[key] = found
        return found

    def is_finished(self, run: Run) -> bool:
        folder = self.find(run)
        return folder is not None and finished_bundle(settings_of(folder), folder) is not None

    def settings(self, run: Run, *, make: bool = True) -> TrainSettings:
        """The settings of a run whose earlier runs are there, with their files.

        make  write the network that it starts from, if only parts of another one are taken
        """
        settings = run.settings
        if run.weights is not None:
            settings = replace(settings, weights=str(self._folder(run.weights) / BACKBONE_FILE))
        if run.start is not None:
            settings = replace(settings, start=str(self._start(run, make=make)))
        return settings

    def train(self, run: Run, *, quiet: bool, on_run: OnRun | None = None) -> "Finished":
        """A run with everything that it builds on; what is there already is not trained again."""
        for earlier in (run.weights, run.start):
            if earlier is not None:
                self.train(earlier, quiet=quiet, on_run=on_run)
        folder, settings = self.find(run), self.settings(run)
        found = folder is not None
        folder = folder or self._new(run.name)
        if found and finished_bundle(settings_of(folder), folder) is not None:
            return Finished(run, folder)
        if on_run is not None:
            on_run(run, folder, "continued" if found else "trained")
        with training_stopped(folder):
            train(settings, folder, quiet=quiet, track=())
        return Finished(run, folder)

    def _folder(self, run: Run) -> Path:
        folder = self.find(run)
        if folder is None:
            raise BadRun(f"the run {run.name} is needed first, but {self.folder} has none with its settings.")
        return folder

    def _start(self, run: Run, *, make: bool) -> Path:
        """The bundle that a run starts from: that of another run, or one with some of its parts."""
        assert run.start is not None
        earlier = self._folder(run.start)
        if not run.parts:
            return earlier / BUNDLE_FOLDER
        settings = run.settings
        key = fingerprint([settings.network.to_hash(), settings.seed, list(run.parts)])[:12]
        place = earlier / _STARTS / key
        if make and not place.is_dir():
            with_parts(Bundle.load(earlier / BUNDLE_FOLDER), settings.network, run.parts, settings.seed).save(place)
        return place

    def _known(self) -> Iterator[Path]:
        if self.folder.is_dir():
            yield from sorted(folder for folder in self.folder.iterdir() if (folder / SETTINGS_FILE).is_file())

    def _new(self, name: str) -> Path:
        """A folder that is not there yet."""
        plain = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")
        number, folder = 1, self.folder / plain
        while os.path.lexists(folder):
            number += 1
            folder = self.folder / f"{plain}-{number}"
        return folder


def with_parts(bundle: Bundle, network: NetworkSettings, parts: Sequence[str], seed: int) -> Bundle:
    """A new network with these parts of a bundle's; the others have random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = build(network)
    for part in parts:
        getattr(net, part).load_state_dict(getattr(bundle.net, part).state_dict())
    return Bundle(net, bundle.classes, count_costs(network), notes=dict(bundle.notes), split=bundle.split)


def _same_run(folder: Path, wanted: TrainSettings) -> bool:
    """Whether a folder holds a run with these settings; paths of other runs are compared from the folder of all runs on."""
    try:
        found = settings_of(folder)
    except GlancefocusError:
        return False  # damaged, or of another program: it is left alone
    same_origin = _origin(found) == _origin(wanted)
    return same_origin and alike(replace(found, start=wanted.start, weights=wanted.weights), wanted)


def _origin(settings: TrainSettings) -> list[str | None]:
    return [None if path is None else _below_runs(path) for path in (settings.start, settings.weights)]


def _below_runs(path: str) -> str:
    parts = Path(path).parts
    places = [place for place, part in enumerate(parts) if part == RUNS_FOLDER]
    return "/".join(parts[places[-1] + 1 :]) if places else path


def training_stopped(folder: Path) -> AbstractContextManager[None]:
    """The message that is printed if the program is stopped while a run is trained in this folder."""
    return stop_message(
        lambda at_once: (
            f"stopped while {folder.name} was trained; what is finished is kept in {folder.parent}. "
            "Run the same command again to continue."
        )
    )


AIMS: dict[str, Callable[[int], Policy]] = {
    "random": lambda candidate: RandomPolicy([candidate], torch.Generator().manual_seed(1)),
    "centre_corner": CentreCornerPolicy,
}


class Finished:
    """A finished run, and what is measured on it; measurements that take time are kept in its folder.

    Measured on test images; without any, on the validation images, with thresholds chosen on the other half of them.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.folder = folder

    @functools.cached_property
    def bundle(self) -> Bundle:
        bundle = Bundle.load(self.folder / BUNDLE_FOLDER)
        return (
            bundle.to(torch.accelerator.current_accelerator() or "cpu") if torch.accelerator.is_available() else bundle
        )

    @functools.cached_property
    def records(self) -> Records:
        source, workers = self.run.settings.data.source, self.run.settings.data.workers
        return Records(self.bundle, source, looks_folder(self.folder / BUNDLE_FOLDER), workers=workers)

    @property
    def measured_on(self) -> str:
        return "test" if "test" in self.records.names else "val"

    @property
    def split(self) -> Split:
        """The images that are measured on."""
        return self.records.split(self.measured_on)

    def table(self, score: str | None = None, seed: int = 0) -> LookTable:
        """Every look at the images that are measured on."""
        return look_table(self.bundle, self.records.of(self.measured_on), score, seed)

    def choosing(self, score: str | None = None, seed: int = 1) -> LookTable | None:
        """The same for the images that thresholds are chosen on; None: on halves of the others."""
        if self.measured_on == "val":
            return None
        return look_table(self.bundle, self.records.of("val"), score, seed)

    def after_looks(self, aims: str = "learnt") -> list[float]:
        """Accuracy if every image takes 1, 2, ... looks; aims: learnt, random or centre_corner."""
        if aims == "learnt":
            return self.table().accuracy_after_look
        return list(self.kept(f"looks-{aims}", lambda: self._looked_with(aims)))

    def _looked_with(self, aims: str) -> list[float]:
        policy = AIMS[aims](aimed_candidate(self.bundle.settings))
        workers = self.run.settings.data.workers
        return evaluate_every_look(self.bundle.net, self.split, policy, workers=workers).accuracy_per_look

    def hits(self) -> list[float] | None:
        """Share of the focus looks that show the whole object; None if its places are unknown."""
        boxes = self.split.boxes
        if boxes is None:
            return None
        return list(
            self.kept("hits", lambda: evaluate_every_look(self.bundle.net, self.split).hit_rate_per_focus(boxes))
        )

    def backbone(self) -> Any:
        """The network whose focus encoder is the plain backbone that this run trained."""
        net = load_backbone(self.run.settings, self.folder)
        if net is None:
            raise BadRun(f"{self.folder} has no {BACKBONE_FILE}. Delete the folder to train it again.")
        return net.to(self.bundle.device)

    def kept(self, name: str, compute: Callable[[], Any]) -> Any:
        """A measurement as JSON values: read from the folder of the run, or computed and written there."""
        file = self.folder / _MEASURED / f"{name}.json"
        network = self.bundle.fingerprint
        if file.is_file():
            found = read_json(file, _MOST_BYTES)
            if isinstance(found, dict) and found.get("network") == network:
                return found.get("value")
        value = compute()
        file.parent.mkdir(exist_ok=True)
        write_text(file, json.dumps({"network": network, "value": value}, allow_nan=False))
        return value


@dataclass(frozen=True)
class Measured:
    """The finished runs of a study: {name: one for each seed}.

    exits    comparison networks with several exits, in the same way
    latency  a file with milliseconds that were measured elsewhere, or a folder with one for each network; None: measured here
    """

    scope: Scope
    runs: Mapping[str, Sequence[Finished]]
    exits: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    latency: Path | None = None

    def __getitem__(self, name: str) -> Sequence[Finished]:
        return self.runs[name]

    def first(self, name: str) -> Finished:
        return self.runs[name][0]

    @property
    def images(self) -> int:
        """Number of images that are measured on."""
        return len(next(iter(self.runs.values()))[0].split)
