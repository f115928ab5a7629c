"""`export_bundle`: graphs, loop and description written aside, compared with the network, and put in place only if they agree."""

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadExport, BadSetting
from glancefocus.escaping import is_writable_text
from glancefocus.export.compare import compare, refuse_differences, ways_of_looking
from glancefocus.export.formats import FORMATS, Format, format_named
from glancefocus.export.manifest import check_exportable, describe, is_export, write_manifest
from glancefocus.export.one_file import fits_one_file, write_one_file
from glancefocus.export.samples import (
    COVERAGES,
    Sample,
    accuracy,
    calibration_samples,
    made_up,
    open_sample,
    quantise,
    record_feeds,
)
from glancefocus.export.script import predict_script
from glancefocus.export.standalone.loop import Looker
from glancefocus.export.writing import export_readme, onnx_to_openvino, write_graphs
from glancefocus.files import replace_folder, write_text
from glancefocus.progress import Progress
from glancefocus.values import shown


@dataclass(frozen=True)
class Int8:
    """How to make int8 graphs.

    calibrate  labelled data; some of it calibrates, other images of it measure what was lost
    images     at most so many calibrate
    max_drop   share of right answers that may be lost; where more is, nothing is written
    """

    calibrate: str
    images: int = 128
    max_drop: float = 0.01


def export_bundle(
    bundle: Bundle,
    folder: str | Path,
    to: str = "onnx",
    *,
    images: str | None = None,
    max_images: int = 200,
    int8: Int8 | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a folder that answers as the bundle does, without glancefocus; what its glancefocus.json says.

    to          onnx, openvino, executorch or litert
    images      data or a folder of pictures to compare on; None: made-up pictures, of int8 those that measure it
    max_images  so many of them at most
    """
    chosen, folder = format_named(to), Path(folder)
    check_exportable(bundle)
    _check_place(folder)
    if int8 is not None and chosen.batch is not None:
        whole = ", ".join(name for name, one in FORMATS.items() if one.batch is None)
        raise BadSetting(f"int8 is for {whole}, not for {to}. Leave --int8 out, or choose one of these.")
    if max_images < 1:
        raise BadSetting(f"an export is compared on at least one image, but max_images is {max_images}.")
    chosen.check_installed()
    # What is compared with is the network itself, on the CPU, whichever runtime or device the bundle uses.
    bundle = replace(bundle, net=bundle.net if bundle.device.type == "cpu" else copy.deepcopy(bundle.net).cpu())
    if int8 is not None and images == int8.calibrate:
        images = None  # it would calibrate and measure with the same images; divided, it does both
    sample = open_sample(bundle, images) if images is not None else None
    with _placed(folder) as aside:
        if int8 is None:
            sample = (sample or made_up(bundle.settings)).at_most(max_images)
            about = _full_precision(bundle, chosen, sample, aside, progress)
        else:
            about = _quantised(bundle, chosen, sample, int8, max_images, aside, progress)
        about = write_manifest(about, aside)
        write_text(aside / "predict.py", predict_script(chosen))
        write_text(aside / "README.md", export_readme(about, chosen))
    return about


def _full_precision(
    bundle: Bundle, to: Format, sample: Sample, folder: Path, progress: Progress | None
) -> dict[str, Any]:
    about = describe(bundle, to, write_graphs(bundle.net, to, folder, progress))
    looker = open_looker(write_manifest(about, folder), folder, to)
    about["compared"] = {"source": sample.words, "ways": {}}
    for words, thresholds in ways_of_looking(bundle).items():
        found = compare(bundle, looker, sample, thresholds, progress)
        refuse_differences(found, words)
        about["compared"]["ways"][words] = found.to_plain()
    if to.name == "onnx" and fits_one_file(bundle):
        about["one_graph"] = write_one_file(bundle, about, folder, sample)
    return about


def _quantised(
    bundle: Bundle,
    to: Format,
    sample: Sample | None,
    asked: Int8,
    max_images: int,
    folder: Path,
    progress: Progress | None,
) -> dict[str, Any]:
    """Full precision first, compared as ever; then the same graphs in int8, with what that cost."""
    onnx = FORMATS["onnx"]
    onnx.check_installed()
    calibration, held_out = calibration_samples(bundle, asked.calibrate)
    if sample is not None and sample.labels is not None:
        held_out = sample
    measuring, calibrating = held_out.at_most(max_images), calibration.at_most(asked.images)
    whole, ways = folder / "whole", ways_of_looking(bundle)
    whole.mkdir()
    about = _full_precision(bundle, onnx, (sample or measuring).at_most(max_images), whole, progress)
    full = open_looker(write_manifest(about, whole), whole, onnx)
    rights = _quantise_all(about, full, whole, folder, calibrating, ways, progress)
    best = max(rights, key=lambda coverage: rights[coverage])  # of equals the first, which covers most
    about["graphs"] = [_deliver(graph, folder / best, folder, to) for graph in about["graphs"]]
    for used in (whole, *(folder / coverage for coverage in COVERAGES)):
        shutil.rmtree(used)
    about |= {"runtime": to.name, "compared": {"source": measuring.words, "ways": {}}}
    about.pop("one_graph", None)  # that of full precision
    looker = open_looker(write_manifest(about, folder), folder, to)
    for words, thresholds in ways.items():
        found = compare(bundle, looker, measuring, thresholds, progress)
        about["compared"]["ways"][words] = found.to_plain()
    told = next(iter(about["compared"]["ways"].values()))
    _refuse_drop(told["accuracy_before"], told["accuracy_after"], asked.max_drop, measuring)
    about["int8"] = {
        "covers": best,
        "calibration_source": calibrating.words,
        "calibration_images": len(calibrating),
        "calibration_accuracy": rights,
        "source": measuring.words,
        "images": len(measuring),
        "accuracy_before": told["accuracy_before"],
        "accuracy_after": told["accuracy_after"],
    }
    return about


def _quantise_all(
    about: dict[str, Any],
    full: Looker,
    whole: Path,
    folder: Path,
    sample: Sample,
    ways: dict[str, Any],
    progress: Progress | None,
) -> dict[str, float]:
    """Int8 graphs of each coverage, in a folder named like it: the share of calibration images that it answers rightly."""
    feeds, own = record_feeds(full, sample, ways), next(iter(ways.values()))
    rights: dict[str, float] = {}
    for number, coverage in enumerate(COVERAGES, start=1):
        (folder / coverage).mkdir()
        quantise(about, whole, feeds, coverage, folder / coverage)
        rights[coverage] = accuracy(open_looker(about, folder / coverage, FORMATS["onnx"]), sample, own)
        if progress is not None:
            progress("quantising", number, len(COVERAGES))
    return rights


def open_looker(about: dict[str, Any], folder: Path, to: Format, threads: int = 1) -> Looker:
    """The loop around the graphs in a folder."""
    files = {graph["name"]: folder / graph["file"] for graph in about["graphs"]}
    return Looker(about, to.graphs()(files, threads))


def _deliver(graph: dict[str, Any], source: Path, folder: Path, to: Format) -> dict[str, Any]:
    """Put an int8 graph in place, in the format that was asked for."""
    file = folder / f"{graph['name']}{to.suffix}"
    if to.name == "openvino":
        onnx_to_openvino(source / graph["file"], file)
    else:
        shutil.move(source / graph["file"], file)
    return {**graph, "file": file.name}


def _refuse_drop(before: float, after: float, max_drop: float, sample: Sample) -> None:
    if before - after > max_drop + 1e-9:
        raise BadExport(
            f"in int8 {100 * after:.1f} % of {len(sample)} images ({sample.words}) are right, {100 * before:.1f} % before: "
            f"a loss of more than {100 * max_drop:g} points. Calibrate with more images, or allow it with --max-drop."
        )


def _check_place(folder: Path) -> None:
    if not is_writable_text(os.path.abspath(folder)):  # the libraries that write graphs cannot open it
        raise BadExport(f"the name {shown(str(folder))} is not UTF-8. Choose another place.")
    if folder.exists() and (folder.is_file() or (any(folder.iterdir()) and not is_export(folder))):
        raise BadExport(f"{folder} exists and is not an export; it was left as it is. Choose another place.")


@contextmanager
def _placed(folder: Path) -> Iterator[Path]:
    """replace_folder, whose failures to write are said."""
    try:
        with replace_folder(folder) as aside:
            yield aside
    except OSError as error:
        raise BadExport(f"the export cannot be written to {folder}: {error.strerror or error}.") from error
