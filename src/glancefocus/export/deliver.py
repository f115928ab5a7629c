"""`export_bundle`: writes graphs, predict.py and glancefocus.json, and puts them in place only if they agree with the network."""

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadExport, BadSetting
from glancefocus.export import predict
from glancefocus.export.compare import (
    COVERAGES,
    Sample,
    Thresholds,
    accuracy,
    calibration_samples,
    compare,
    made_up,
    open_sample,
    quantise,
    record_feeds,
    refuse_differences,
    ways_of_looking,
)
from glancefocus.export.contents import (
    FORMATS,
    ExportManifest,
    Format,
    check_exportable,
    describe,
    export_readme,
    format_named,
    is_export,
    onnx_to_openvino,
    write_graphs,
    write_manifest,
)
from glancefocus.export.looks_graph import fits_one_graph, write_looks_graph
from glancefocus.export.predict import Graph, Looker, open_network
from glancefocus.files import replace_folder, write_text
from glancefocus.progress import Progress
from glancefocus.values import is_writable_text, shown


@dataclass(frozen=True)
class Int8:
    """How to make int8 graphs.

    calibrate  labelled data; some images calibrate, others measure the loss of accuracy
    images     largest number of images to calibrate with
    max_drop   largest loss of accuracy, as a share; if more is lost, nothing is written
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
) -> ExportManifest:
    """Write a folder that answers as the bundle does, without glancefocus; returns the content of its glancefocus.json.

    to          onnx, openvino, executorch or litert
    images      data or a folder of pictures to compare on; None: synthetic pictures, or with int8 the images that measure it
    max_images  largest number of images to compare on
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
    # The export is compared with the torch network on the CPU, whatever runtime or device the bundle uses.
    bundle = replace(bundle, net=bundle.net if bundle.device.type == "cpu" else copy.deepcopy(bundle.net).cpu())
    if int8 is not None and images == int8.calibrate:
        images = None  # calibrate and measure on different images of it
    sample = open_sample(bundle, images) if images is not None else None
    with _placed(folder) as aside:
        if int8 is None:
            sample = (sample or made_up(bundle.settings)).at_most(max_images)
            manifest = _full_precision(bundle, chosen, sample, aside, progress)
        else:
            manifest = _quantised(bundle, chosen, sample, int8, max_images, aside, progress)
        manifest = write_manifest(manifest, aside)
        shutil.copyfile(predict.__file__, aside / "predict.py")
        write_text(aside / "README.md", export_readme(manifest, chosen))
    return manifest


def _full_precision(
    bundle: Bundle, to: Format, sample: Sample, folder: Path, progress: Progress | None
) -> ExportManifest:
    """Write and compare the graphs of a bundle."""
    manifest = describe(bundle, to, write_graphs(bundle.net, to, folder, progress))
    looker = open_network(write_manifest(manifest, folder), folder)
    manifest["compared"] = {"source": sample.words, "ways": {}}
    for words, thresholds in ways_of_looking(bundle).items():
        found = compare(bundle, looker, sample, thresholds, progress)
        refuse_differences(found, words)
        manifest["compared"]["ways"][words] = found.to_plain()
    if to.name == "onnx" and fits_one_graph(bundle):
        manifest["one_graph"] = write_looks_graph(bundle, manifest["graphs"], folder, sample)
    return manifest


def _quantised(
    bundle: Bundle,
    to: Format,
    sample: Sample | None,
    asked: Int8,
    max_images: int,
    folder: Path,
    progress: Progress | None,
) -> ExportManifest:
    """Write and compare full precision first; then quantise the same graphs, and measure the loss of accuracy."""
    onnx = FORMATS["onnx"]
    onnx.check_installed()
    calibration, held_out = calibration_samples(bundle, asked.calibrate)
    if sample is not None and sample.labels is not None:
        held_out = sample
    measuring, calibrating = held_out.at_most(max_images), calibration.at_most(asked.images)
    whole, ways = folder / "whole", ways_of_looking(bundle)
    whole.mkdir()
    manifest = _full_precision(bundle, onnx, (sample or measuring).at_most(max_images), whole, progress)
    full = open_network(write_manifest(manifest, whole), whole)
    rights = _quantise_all(manifest, full, whole, folder, calibrating, ways, progress)
    best = max(rights, key=lambda coverage: rights[coverage])  # the first of equals, which covers most
    manifest["graphs"] = [_deliver(graph, folder / best, folder, to) for graph in manifest["graphs"]]
    for used in (whole, *(folder / coverage for coverage in COVERAGES)):
        shutil.rmtree(used)
    manifest["runtime"], manifest["compared"] = to.name, {"source": measuring.words, "ways": {}}
    manifest.pop("one_graph", None)  # it is of full precision
    looker = open_network(write_manifest(manifest, folder), folder)
    for words, thresholds in ways.items():
        found = compare(bundle, looker, measuring, thresholds, progress)
        manifest["compared"]["ways"][words] = found.to_plain()
    measured = next(iter(manifest["compared"]["ways"].values()))
    _refuse_drop(measured["accuracy_before"], measured["accuracy_after"], asked.max_drop, measuring)
    manifest["int8"] = {
        "covers": best,
        "calibration_source": calibrating.words,
        "calibration_images": len(calibrating),
        "calibration_accuracy": rights,
        "source": measuring.words,
        "images": len(measuring),
        "accuracy_before": measured["accuracy_before"],
        "accuracy_after": measured["accuracy_after"],
    }
    return manifest


def _quantise_all(
    manifest: ExportManifest,
    full: Looker,
    whole: Path,
    folder: Path,
    sample: Sample,
    ways: dict[str, Thresholds],
    progress: Progress | None,
) -> dict[str, float]:
    """Write int8 graphs of each coverage into a folder of its name; returns the accuracy of each on the calibration images."""
    feeds, own = record_feeds(full, sample, ways), next(iter(ways.values()))
    rights: dict[str, float] = {}
    for number, coverage in enumerate(COVERAGES, start=1):
        (folder / coverage).mkdir()
        quantise(manifest, whole, feeds, coverage, folder / coverage)
        rights[coverage] = accuracy(open_network(manifest, folder / coverage), sample, own)
        if progress is not None:
            progress("quantising", number, len(COVERAGES))
    return rights


def _deliver(graph: Graph, source: Path, folder: Path, to: Format) -> Graph:
    """Put an int8 graph in place, in the requested format."""
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
    """replace_folder, with a sentence for what cannot be written."""
    try:
        with replace_folder(folder) as aside:
            yield aside
    except OSError as error:
        raise BadExport(f"the export cannot be written to {folder}: {error.strerror or error}.") from error
