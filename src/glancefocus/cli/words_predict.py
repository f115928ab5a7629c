"""The words of `gf predict`. Nothing heavy is imported before they are read."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from glancefocus.cli.words import BundleName, Json, LightWeights, Runtime, Threads
from glancefocus.errors import BadSetting, UnknownName
from glancefocus.values import BatchSize, Count, Looks, MaxPixels, Milliseconds, MultiplyAdds, Threshold


def predict(
    bundle: BundleName,
    files: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,  # a lone - is standard input
    *,
    looks: Looks | None = None,
    thresholds: Annotated[list[Threshold] | None, Parameter(consume_multiple=True)] = None,
    budget_macs: MultiplyAdds | None = None,
    budget_ms: Milliseconds | None = None,
    deadline_ms: Milliseconds | None = None,
    topk: Count = 1,
    draw: Path | None = None,
    batch_size: BatchSize = 32,
    merge_batches: bool | None = None,
    max_pixels: MaxPixels | None = None,
    camera: str | None = None,
    max_frames: Count | None = None,
    runtime: Runtime = None,
    light_weights: LightWeights = False,
    threads: Threads = None,
    json: Json = False,
    jsonl: Annotated[bool, Parameter(negative="")] = False,
    csv: Annotated[bool, Parameter(negative="")] = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Say what is in pictures or clips, after how many looks, where they went and what they cost.

    Example: gf predict runs/signs/bundle photo.jpg folder/ --draw drawings

    Example: gf predict runs/signs/bundle folder/ -o answers.csv

    Example: gf predict runs/signs/bundle --camera 0

    Parameters
    ----------
    files
        Image files, folders, or - for one image on standard input. For a network of clips video files, folders of frames, and
        folders of these.
    looks
        Take exactly this many looks (anytime answer) instead of stopping above a threshold.
    thresholds
        One score for each look but the last: stop above it. --thresholds 0.9 0.8, or 0.9,0.8, after the files. With several
        patch sizes one for each look and size, look by look.
    budget_macs
        Average multiply-adds that an answer may cost; found on the bundle's stored curve.
    budget_ms
        The same in milliseconds, where they were measured on this device (gf budget --ms).
    deadline_ms
        For each batch of pictures: the best answers so far when time is up.
    topk
        How many likely classes to name.
    draw
        Write each picture into this folder, with the looks drawn on it; of a clip four frames. Boxes are coloured by right and
        wrong where the picture's folder is named like a class.
    batch_size
        Pictures looked at together; fewer where they are large.
    merge_batches
        Undecided pictures of several batches are pooled, so that batches stay full. Answers stay the same, but for the rounding of
        --light-weights. Left out: on where there are several batches, without --draw and --deadline-ms.
    max_pixels
        Refuse pictures with more pixels than this.
    camera
        Instead of files: the number of a camera (0 is the first), an address such as rtsp://..., or a video file, whose frames
        are answered one by one. Where a camera or an address gives frames faster than they are answered, the latest counts and
        the others are dropped. Ctrl-C ends it.
    max_frames
        With --camera: end after this many answers.
    jsonl
        Print a line of JSON for each picture as soon as it is answered.
    csv
        Print CSV, a row for each picture as soon as it is answered.
    output
        Write JSON lines, CSV or JSON to this file instead; without one of those options, its suffix (.jsonl, .csv, .json) says
        which.
    """
    for word in files or ():
        if word.startswith("-") and word != "-":
            options = [f"--{name.replace('_', '-')}" for name in predict.__kwdefaults__ or ()]
            raise UnknownName(
                "option", word, options, "A file whose name begins so is named with its folder: ./-a.png."
            )
    if bool(files) == (camera is not None):
        raise BadSetting("name the pictures or folders to look at, or a --camera, and not both.")
    if max_frames is not None and camera is None:
        raise BadSetting("max-frames says when a --camera ends. Leave it out, or name one.")
    from glancefocus.bundle.hub import local_folder
    from glancefocus.cli.predict import PredictAsked, predict_files
    from glancefocus.cli.predict_output import chosen_form

    asked = PredictAsked(
        looks=looks,
        thresholds=thresholds,
        budget_macs=budget_macs,
        budget_ms=budget_ms,
        deadline_ms=deadline_ms,
        topk=topk,
        draw=draw,
        batch_size=batch_size,
        merge_batches=merge_batches,
        max_pixels=max_pixels,
        runtime=runtime,
        light_weights=light_weights,
        threads=threads,
        form=chosen_form({"json": json, "jsonl": jsonl, "csv": csv}, output),
        output=output,
    )
    if camera is not None:
        from glancefocus.cli.camera import predict_camera

        return predict_camera(local_folder(bundle), camera, asked, max_frames)
    return predict_files(local_folder(bundle), files or [], asked)
