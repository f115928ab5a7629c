"""The words of `gf export`. Nothing heavy is imported before they are read."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from glancefocus.cli.words import BundleName, Json
from glancefocus.values import Count, Points


def export(
    bundle: BundleName,
    *,
    to: str,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    images: str | None = None,
    max_images: Count = 200,
    int8: Annotated[bool, Parameter(negative="")] = False,
    calibrate: str | None = None,
    max_drop: Points = 1.0,
    json: Json = False,
) -> None:
    """Write a network as graphs for another runtime, with a program beside them that does not need glancefocus.

    Before it is put in place it is compared with the network: answers and numbers of looks must be the same.

    Example: gf export runs/signs/bundle --to onnx -o exported/signs --images signs

    Parameters
    ----------
    to
        onnx, openvino, executorch or litert. The last two need environments of their own, see docs/export.md.
    output
        The folder to write; an older export there is replaced.
    images
        What to compare on: data as for `gf evaluate`, or any folder of pictures. Left out: made-up pictures.
    max_images
        Compare on at most this many of them.
    int8
        Graphs of 8-bit numbers, for onnx and openvino; needs --calibrate.
    calibrate
        Labelled data for int8: some images of it calibrate, others measure what was lost.
    max_drop
        Points of accuracy that int8 may lose; where it loses more, nothing is written.
    """
    from glancefocus.bundle.hub import local_folder
    from glancefocus.cli.export import ExportAsked, export_folder

    export_folder(
        local_folder(bundle), output, ExportAsked(to, images, max_images, int8, calibrate, max_drop), as_json=json
    )
