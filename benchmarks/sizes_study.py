"""Several patch sizes (MS-GFNet) on `signs`: sizes chosen by thresholds against each fixed size of the same network, over seeds.

    python benchmarks/sizes_study.py study --write docs/results.md

One network a seed is trained with patches of 32, 48 and 64 px drawn at random. Thresholds for each budget are chosen on the
validation scenes, for the fixed sizes directly, for chosen sizes by NSGA-II; everything is measured on the test scenes.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from results import machine, markdown_table, write_section

from glancefocus.bundle.bundle import Bundle
from glancefocus.evaluation.assess import assess, look_table
from glancefocus.evaluation.figures import as_png, draw_findings
from glancefocus.evaluation.records import Records, looks_folder
from glancefocus.exits.budget import solve_at
from glancefocus.exits.curve import patches_of
from glancefocus.exits.one_size import direct_curve
from glancefocus.machine import keep_freed_memory
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import train

BUDGETS = 9


def measure(folder: Path, seed: int) -> dict[str, Any]:
    """{"budgets", "curves": {"32": [...], ..., "chosen": [...]}, "shares"} of one trained network, accuracies on test scenes."""
    kept = folder / f"seed-{seed}.json"
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    settings = train_settings("signs", preset="gf-ms-mini-48", changes={"seed": seed})
    train(settings, folder / f"seed-{seed}")
    place = folder / f"seed-{seed}" / "bundle"
    bundle = Bundle.load(place)
    records = Records(bundle, "signs", looks_folder(place))
    val, test = look_table(bundle, records.of("val")), look_table(bundle, records.of("test"))
    budgets = [float(b) for b in np.linspace(val.cheapest, val.dearest, BUDGETS + 2)[1:-1]]
    curves: dict[str, list[float | None]] = {}
    for index, view in enumerate(bundle.settings.candidates):
        own, measured = val.fixed_size(index), test.fixed_size(index)
        accuracies = [measured.point(t)["accuracy"] for t in direct_curve(own, budgets)]
        dearest = next((i for i, budget in enumerate(budgets) if budget >= own.dearest), len(budgets) - 1)
        curves[view.name] = [a if i <= dearest else None for i, a in enumerate(accuracies)]
    points = [test.point(thresholds) for thresholds in solve_at(val, budgets)]
    curves["chosen"] = [point["accuracy"] for point in points]
    result = {
        "budgets": budgets,
        "curves": curves,
        "shares": [shares_of(point) for point in points],
        "mean_macs": [point["mean_macs"] for point in points],
        "images": len(test),
    }
    kept.write_text(json.dumps(result))
    return result


def shares_of(point: dict[str, Any]) -> list[float]:
    """Share of each patch size among all focus patches."""
    counts = np.asarray(patches_of(point), dtype=np.float64).sum(axis=0)
    shares: list[float] = (counts / max(1.0, counts.sum())).tolist()
    return shares


def last_known(accuracies: list[float | None]) -> list[float]:
    """The accuracy of a fixed size at each budget; above its highest cost the accuracy stays the same."""
    known: list[float] = []
    for accuracy in accuracies:
        known.append(known[-1] if accuracy is None else accuracy)
    return known


def cell(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def tables(results: list[dict[str, Any]]) -> tuple[str, str, str]:
    """Accuracy by size and budget, share of each size by budget, and one sentence that compares."""
    budgets, names = results[0]["budgets"], list(results[0]["curves"])
    head = [f"{budget / 1e6:.1f}M" for budget in budgets]
    rows, shares = [["patch size", *head]], [["share of patches, %", *head]]
    for index, name in enumerate(names):
        curves = [r["curves"][name] for r in results]
        cells = [cell([c[i] for c in curves]) if curves[0][i] is not None else "--" for i in range(len(budgets))]
        rows.append(["sizes chosen" if name == "chosen" else f"{name} px (fixed)", *cells])
        if name != "chosen":
            each = [statistics.mean(r["shares"][i][index] for r in results) for i in range(len(budgets))]
            shares.append([f"{name} px", *(f"{100 * share:.0f}" for share in each)])
    return markdown_table(rows), markdown_table(shares), verdict(results)


def verdict(results: list[dict[str, Any]]) -> str:
    """Chosen sizes minus the best fixed size, at every budget, over the seeds; with the standard error of their difference."""
    gaps = []
    for index in range(len(results[0]["budgets"])):
        own = [r["curves"]["chosen"][index] for r in results]
        fixed = {
            name: [last_known(r["curves"][name])[index] for r in results]
            for name in results[0]["curves"]
            if name != "chosen"
        }
        best = max(fixed.values(), key=statistics.mean)
        gap = statistics.mean(a - b for a, b in zip(own, best, strict=True))
        share = statistics.mean(own)
        gaps.append((gap, (share * (1 - share) / (len(results) * results[0]["images"])) ** 0.5))
    points = ", ".join(f"{100 * gap:+.1f}" for gap, _ in gaps)
    clearly = sum(gap < -2 * error for gap, error in gaps)
    return (
        f"Chosen sizes minus the best fixed size of the same networks, in points at each budget: {points}. "
        f"Lower by more than two standard errors of the accuracy (about {100 * 2 * max(e for _, e in gaps):.1f} points at most) "
        f"at {clearly} of {len(gaps)} budgets."
    )


def draw_shares(folder: Path, file: Path) -> None:
    """The paper's figure of the share of each patch size over the budget, for the first seed's network."""
    place = folder / "seed-0" / "bundle"
    bundle = Bundle.load(place)
    records = Records(bundle, "signs", looks_folder(place))
    findings = assess(bundle, records.of("test"), records.of("val"))
    file.write_bytes(as_png(draw_findings(findings)["patch_sizes"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    options.folder.mkdir(parents=True, exist_ok=True)
    results = [measure(options.folder, seed) for seed in range(options.seeds)]
    accuracy, shares, sentence = tables(results)
    body = (
        f"Accuracy in % on {results[0]['images']} test scenes, mean ± deviation over {options.seeds} seeds, for an average budget "
        f"of multiply-adds:\n\n{accuracy}\n\n{sentence}\n\nWhich sizes are taken (the paper's figure as a table):\n\n{shares}"
    )
    print(body)
    if options.write:
        draw_shares(options.folder, options.write.with_name("patch_sizes.png"))
        body += "\n\n![Share of each patch size among the focus patches, over multiply-adds per image, one seed](patch_sizes.png)"
        write_section(
            options.write,
            "sizes",
            title="Several patch sizes (MS-GFNet) on `signs`",
            command="python benchmarks/sizes_study.py study --write docs/results.md",
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
