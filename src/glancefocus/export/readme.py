"""README.md of an exported folder, for whoever finds it."""

from typing import Any

from glancefocus.escaping import markdown
from glancefocus.export.formats import Format
from glancefocus.export.script import packages


def export_readme(about: dict[str, Any], to: Format) -> str:
    """What is in the folder, how to run it, and how well it does what its network did."""
    graphs = "\n".join(
        f"| `{graph['file']}` | {_ends(graph['inputs'])} | {_ends(graph['outputs'])} |" for graph in about["graphs"]
    )
    kind = "int8" if about["int8"] else "full precision"
    what = "pictures" if about["frames"] == 1 else f"clips of {about['frames']} frames, each in a folder,"
    source = markdown(about["compared"]["source"])
    return f"""# A glance-and-focus network for {to.name}, {kind}

It looks at {what} quickly first ({about["glance_px"]} px), then at up to {about["looks"] - 1} patches of
{", ".join(map(str, about["patch_px"]))} px, and stops once its score is above the threshold of a look.
{len(about["classes"])} classes.

    pip install {" ".join(packages(to))}
    python predict.py photo.jpg

`predict.py` is the whole loop; it needs nothing else. It prints a line of JSON for each picture; `--json` prints one array, `--csv`
a table. `sure` means that the score was above its `threshold`, however large that is, and not that the answer is right.
 `glancefocus.json` holds what the loop needs beside the graphs: view,
classes, thresholds, operating points, costs. Programs in other languages run the same graphs:

| graph | in | out |
|---|---|---|
{graphs}

{_one_file(about)}Before it was put here it was compared with the network it was made from, on {source}:

{_compared(about)}
"""


def _one_file(about: dict[str, Any]) -> str:
    one = about.get("one_graph")
    if one is None:
        return ""
    size = tuple(one["inputs"][0]["shape"])
    found = one["compared"]
    return f"""`{one["file"]}` is all of them in one, with the loop inside. It is given `images` {size}, normalised as `view` in
`glancefocus.json` says, and `thresholds`, one for each look (`one_graph`, there). It gives `logits` after the last look;
`answer` and `confidence` after the glance; `answers`, `confidences` and `where` (y, x in 0 to 1) after each closer look, of which
there are fewer where it stopped earlier. Of {found["images"]} images {found["same_answers"]} had the same answer, and
{found["same_looks"]} took as many looks.

"""


def _ends(ends: list[dict[str, Any]]) -> str:
    return "<br>".join(f"{end['name']} {tuple(end['shape'])}".replace("'", "") for end in ends)


def _compared(about: dict[str, Any]) -> str:
    lines = [
        "| looking | images | same answers | same looks | largest difference of a confidence |",
        "|---|---:|---:|---:|---:|",
    ]
    for way, found in about["compared"]["ways"].items():
        lines.append(
            f"| {way} | {found['images']} | {found['same_answers']} | {found['same_looks']} "
            f"| {found['confidence_difference']:.1e} |"
        )
    told = "\n".join(lines)
    if about["int8"]:
        found = about["int8"]
        told += (
            f"\n\nInt8, on {markdown(found['source'])}: {100 * found['accuracy_after']:.1f} % right, "
            f"{100 * found['accuracy_before']:.1f} % before; calibrated with {found['calibration_images']} images of "
            f"{markdown(found['calibration_source'])}."
        )
    return told
