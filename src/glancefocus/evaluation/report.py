"""The report: one self-contained HTML page with figures, tables and a gallery of what was looked at."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit, in_order, scene_batches
from glancefocus.errors import BadRun
from glancefocus.evaluation.boxes import draw_strip, looks_taken
from glancefocus.evaluation.every_look import Comparison, seen_at_once
from glancefocus.evaluation.figures import (
    aims_figure,
    as_svg,
    curve_figure,
    exits_figure,
    look_names,
    training_figure,
)
from glancefocus.exits.rule import ExitRule
from glancefocus.files import write_file
from glancefocus.loop import look_until_sure
from glancefocus.outcome import Outcome
from glancefocus.region import top_left
from glancefocus.scene import as_batch

LARGE_PIXELS = 1_000_000  # of pictures in the gallery
FRAMES_SHOWN = 4
"""Of a clip."""

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; margin: .8rem 0; display: block; overflow-x: auto; }
td, th { padding: .25rem .8rem; border-bottom: 1px solid #eee; text-align: right; }
td:first-child, th:first-child { text-align: left; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; } .row > * { margin: 0; }
svg { max-width: 100%; height: auto; } figure { margin: 0; } figcaption, .note { color: #555; font-size: .85rem; }
.figures { display: grid; gap: 1.5rem 1rem; margin: 1rem 0; }
.figures { grid-template-columns: repeat(auto-fill, minmax(min(31rem, 100%), 1fr)); }
.figures > :last-child:nth-child(odd) { grid-column: 1 / -1; display: flex; flex-wrap: wrap; gap: 1rem; align-items: center; }
.figures > :last-child:nth-child(odd) figcaption { flex: 1 1 14rem; }
img.sheet { max-width: 100%; height: auto; }
.gallery figure { width: 15.5rem; } .gallery img { width: 100%; image-rendering: auto; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; padding: 0 .7rem; } table { font-size: .78rem; } td, th { padding: .25rem .3rem; }
  td:first-child { overflow-wrap: anywhere; } .gallery figure { width: calc(50% - .5rem); }
}
"""


def write_report(
    file: Path,
    *,
    title: str,
    comparison: Comparison,
    gallery: Sequence[tuple[str, list[str]]],
    metrics: Sequence[dict[str, Any]],
    note: str = "",
) -> None:
    """Write the page; gallery is a list of (heading, pictures as data URLs)."""
    macs = comparison.macs_after_look
    backbone = (
        None
        if comparison.backbone_accuracy is None
        else (float(comparison.backbone_macs), comparison.backbone_accuracy)
    )
    per_look = list(zip(map(float, macs), comparison.accuracy_per_look, strict=True))
    point = comparison.chosen
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(note)}</p>" if note else "",
        "<h2>Accuracy after each look</h2>",
        _table(comparison),
        '<div class="row">',
        as_svg(curve_figure(comparison.curve, backbone, per_look)),
        as_svg(
            aims_figure(
                {
                    "learnt aims": comparison.accuracy_per_look,
                    "random aims": comparison.accuracy_per_look_random_aims,
                    "centre, then corners": comparison.accuracy_per_look_centre_corner,
                }
            )
        ),
        as_svg(exits_figure(point["exits_per_look"], point["accuracy_of_exits"])),
        "</div>",
        f'<p class="note">Stopping with the bundle\'s thresholds ({_numbers(point["thresholds"][:-1])}): '
        f"{100 * point['accuracy']:.1f} % right for {point['mean_macs'] / 1e6:.2f}M multiply-adds on average.</p>",
    ]
    sections += gallery_sections(gallery)
    if metrics:
        sections += ["<h2>Training</h2>", as_svg(training_figure(metrics))]
    replace_file(file, page_of(title, sections).encode())


def page_of(title: str, sections: Sequence[str]) -> str:
    """A whole HTML page that needs no other file; the sections are HTML, the title is text."""
    body = "\n".join(sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{body}</body></html>\n'
    )


def gallery_sections(gallery: Sequence[tuple[str, list[str]]]) -> list[str]:
    """One section of HTML for each (heading, pictures as data URLs)."""
    sections = []
    for heading, urls in gallery:
        words = html.escape(heading)
        figures = "".join(f'<figure><img src="{html.escape(url)}" alt="{words}"></figure>' for url in urls)
        sections.append(f'<h2>{words}</h2><div class="row gallery">{figures}</div>')
    return sections


def table_html(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table out of (name, cells) a row, all of it HTML already; columns name the cells."""
    head = "".join(f"<th>{column}</th>" for column in columns)
    lines = (f"<tr><td>{name}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for name, cells in rows)
    return f"<table><tr><th></th>{head}</tr>{''.join(lines)}</table>"


def replace_file(file: Path, content: bytes) -> None:
    """Write a file aside and rename it into place, so that there is always a whole one; what cannot be written is said."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, lambda stream: stream.write(content))
    except OSError as error:
        raise BadRun(
            f"{file} could not be written ({error.strerror or error}). Choose another folder, or make room on the disk."
        ) from error


def gallery_of(bundle: Bundle, split: MemorySplit, rule: ExitRule, each: int = 4) -> list[tuple[str, list[str]]]:
    """Examples that were answered at the glance, and after 2, 3, ... looks; right ones first, and some that went wrong."""
    count = min(len(split), 400 // bundle.settings.frames)
    order = in_order(count, seen_at_once(bundle.settings))
    view, device = bundle.settings.view, next(bundle.net.parameters()).device
    with torch.inference_mode():
        seen = (as_batch(images.to(device), view) for images, _ in scene_batches(split, view, order))
        outcome = Outcome.join([look_until_sure(bundle.net, scene, rule) for scene in seen])
    thresholds = tuple(rule.threshold(look) for look in range(1, rule.looks + 1))
    # Drawings name classes, and why an image stopped.
    outcome = replace(outcome, classes=bundle.classes, thresholds=thresholds, score=rule.score.name)
    right = outcome.answer.cpu() == split.labels[:count]
    chosen: list[tuple[str, list[int]]] = []
    for looks in range(1, bundle.settings.looks + 1):
        rows = ((outcome.looks.cpu() == looks) & right).nonzero()[:, 0].tolist()[:each]
        words = "answered at the glance" if looks == 1 else f"answered after {looks} looks"
        chosen.append((words, rows))
    chosen.append(("answered wrongly", (~right).nonzero()[:, 0].tolist()[:each]))
    return [(heading, [_drawn(bundle, outcome, split, row) for row in rows]) for heading, rows in chosen if rows]


def _drawn(bundle: Bundle, outcome: Outcome, split: MemorySplit, row: int) -> str:
    pixels = split.images[row]
    frames = pixels if pixels.dim() == 4 else pixels[None]  # of a clip some, of a picture itself
    shown = frames[:: max(1, len(frames) // FRAMES_SHOWN)][:FRAMES_SHOWN]
    truth = bundle.classes[int(split.labels[row])]
    boxes = [_box(outcome, row, focus, pixels) for focus in range(int(outcome.looks[row]) - 1)]
    drawn = looks_taken(outcome, row, boxes, truth)
    pictures = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in shown]
    image = draw_strip(pictures, drawn, title=f"is {truth}", notes=[f"stopped: {outcome.stopped(row)}"])
    stream = io.BytesIO()
    # Of large pictures a few dozen as PNG would make a page of many megabytes.
    kind, how = ("jpeg", {"quality": 85}) if image.width * image.height > LARGE_PIXELS else ("png", {"optimize": True})
    image.save(stream, format=kind, **how)
    return f"data:image/{kind};base64," + base64.b64encode(stream.getvalue()).decode()


def _box(outcome: Outcome, row: int, focus: int, picture: Tensor) -> tuple[int, int, int, int]:
    px = int(outcome.patch_px[row, focus])
    where = outcome.where[row, focus][None].cpu()
    top, left = top_left(where, picture.shape[-2], picture.shape[-1], px)[0].tolist()
    return left, top, left + px, top + px


def _table(comparison: Comparison) -> str:
    shares = [
        ("learnt aims", comparison.accuracy_per_look),
        ("random aims", comparison.accuracy_per_look_random_aims),
        ("centre, then corners", comparison.accuracy_per_look_centre_corner),
    ]
    rows = [(name, [f"{100 * v:.1f} %" for v in values]) for name, values in shares]
    if comparison.hit_rate_per_focus is not None:
        hits = [f"{100 * v:.1f} %" for v in comparison.hit_rate_per_focus]
        rows.append(("patches that hold the whole sign", ["", *hits]))
    rows.append(("multiply-adds", [f"{m / 1e6:.2f}M" for m in comparison.macs_after_look]))
    text = table_html(look_names(len(comparison.accuracy_per_look)), rows)
    if comparison.backbone_accuracy is not None:
        ratio = comparison.mac_ratio_at_backbone_accuracy
        reached = (
            f"its accuracy is reached with {ratio:.1f} times fewer"
            if ratio is not None
            else "its accuracy is not reached"
        )
        text += (
            f"<p>The plain backbone on the whole image: {100 * comparison.backbone_accuracy:.1f} % with "
            f"{comparison.backbone_macs / 1e6:.1f}M multiply-adds; {reached}.</p>"
        )
    return text


def _numbers(values: Sequence[Any]) -> str:
    return ", ".join(f"({_numbers(v)})" if isinstance(v, (list, tuple)) else f"{v:.3f}" for v in values)
