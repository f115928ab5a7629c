"""`gf predict --camera`: answers for frames of a camera, a stream or a video file, one by one as they come."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rich.text import Text

from glancefocus.cli.answering import answers_of, draw
from glancefocus.cli.predict import PredictAsked, open_bundle
from glancefocus.cli.predict_output import Answer, Output, Summary, opened_output
from glancefocus.cli.printing import output as standard_output
from glancefocus.cli.seeing import see_picture
from glancefocus.data.frame_streams import FrameStream
from glancefocus.errors import BadSetting
from glancefocus.escaping import lines_kept
from glancefocus.export.standalone.predict import FIELDS, FRAME_FIELDS


class LineOutput:
    """A line for each frame, for people."""

    def __init__(self) -> None:
        self.console = standard_output()

    def write(self, said: Answer, stopped: str) -> None:
        line = (
            f"{said['seconds']:8.2f} s  frame {said['frame']:<5}  {said['label']} {said['confidence']:.3f}  "
            f"{said['looks']} looks, {stopped}  {said['cost_macs'] / 1e6:,.1f}M"
        )
        self.console.print(Text(lines_kept(line)), soft_wrap=True)

    def close(self) -> None:
        pass


def predict_camera(bundle_folder: Path, source: str, asked: PredictAsked, max_frames: int | None) -> int:
    """Answer frames until there are no more, or enough, or Ctrl-C; then print the summary. Returns 0."""
    bundle, rule = open_bundle(bundle_folder, asked, batch=1)
    if bundle.settings.frames > 1:
        raise BadSetting(
            f"this network looks at clips of {bundle.settings.frames} frames, but --camera answers single frames. "
            "Give video files without --camera, or a network for images."
        )
    summary = Summary(bundle.costs.backbone_macs, "frames")
    with ExitStack() as stack:
        stream = stack.enter_context(FrameStream(source, asked.max_pixels))
        output: Output = LineOutput()
        if asked.form is not None:
            output = stack.enter_context(opened_output(asked.form, asked.output, (*FIELDS, *FRAME_FIELDS)))
        try:
            summary.started = time.perf_counter()
            for frame in stream.frames():
                seen = see_picture(bundle, source, frame.picture, asked.draw is not None)
                ends_at = None if asked.deadline_ms is None else time.perf_counter() + asked.deadline_ms / 1000
                outcome = bundle.predict_images([seen.image], rule, 1, ends_at)
                (said,) = answers_of(outcome, [seen], asked.topk)
                output.write(said | {"frame": frame.number, "seconds": round(frame.seconds, 3)}, outcome.stopped(0))
                if asked.draw is not None:
                    draw(outcome, 0, seen, asked.draw, frame.number)
                summary.add(said)
                if summary.answered == max_frames:
                    break
        except KeyboardInterrupt:
            pass  # the usual way to end
        summary.dropped = stream.dropped
    print(f"gf: {summary.words()}", file=sys.stderr)
    return 0
