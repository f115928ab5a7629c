"""Contrastive against increment reward on `signs`, in the form of the paper's table: stage II only, on one stage-I network.

    python benchmarks/reward_study.py study --weights demo/run/backbone.safetensors --write docs/results.md

The stage-I network is trained once; for each seed a fresh policy is trained on it with each reward, and measured on test scenes.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from results import machine, markdown_table, write_section

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.sources import open_data
from glancefocus.evaluation.every_look import evaluate_every_look
from glancefocus.network.build import build
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import train

REWARDS = ("increment", "contrastive")


def fresh_policy(base: Bundle, seed: int, folder: Path) -> Path:
    """The stage-I network with a new policy, as a bundle to start from."""
    torch.manual_seed(seed)
    base.net.policy.load_state_dict(build(base.settings).policy.state_dict())
    return base.save(folder)


def measure(folder: Path, reward: str, seed: int, base: Bundle) -> dict[str, Any]:
    """Stage II with this reward and seed; accuracy after each look and hits, on test scenes."""
    result = folder / f"{reward}-{seed}.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    start = fresh_policy(base, seed, folder / f"start-{seed}")
    settings = train_settings(
        "signs",
        stages=["2"],
        changes={"start": str(start), "seed": seed},
        assignments=[f"aim.reward={reward}"],
    )
    bundle = train(settings, folder / f"{reward}-{seed}")
    test = open_data(settings.data, settings.network.view).test
    assert test is not None
    assert test.boxes is not None
    evaluation = evaluate_every_look(bundle.net, test)
    measured = {
        "accuracy_per_look": evaluation.accuracy_per_look,
        "hit_rate_per_focus": evaluation.hit_rate_per_focus(test.boxes),
    }
    result.write_text(json.dumps(measured))
    return measured


def cell(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", help="a trained backbone to start from; otherwise it is trained too")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    stages = ["glance,1"] if options.weights else ["initialise,1"]
    train(
        train_settings("signs", stages=stages, changes={"weights": options.weights}),
        options.folder / "stage1",
    )
    base = Bundle.load(options.folder / "stage1" / "bundle")
    runs = {
        reward: [measure(options.folder, reward, seed, base) for seed in range(options.seeds)] for reward in REWARDS
    }
    looks = base.settings.looks
    recipe = train_settings("signs", stages=["2"])
    epochs = recipe.aim.epochs * recipe.rounds
    head = [
        "reward",
        "glance",
        *(f"look {n}, %" for n in range(2, looks + 1)),
        *(f"hits {n}, %" for n in range(2, looks + 1)),
    ]
    rows = [head]
    for reward, results in runs.items():
        accuracy = [cell([r["accuracy_per_look"][look] for r in results]) for look in range(1, looks)]
        hits = [cell([r["hit_rate_per_focus"][look] for r in results]) for look in range(looks - 1)]
        rows.append([reward, f"{100 * results[0]['accuracy_per_look'][0]:.1f}", *accuracy, *hits])
    body = (
        f"{markdown_table(rows)}\n\nMean ± deviation over {options.seeds} seeds, all on one "
        f"stage-I network, after {epochs} epochs of stage II and without stage III, on 1000 "
        "test scenes. Hits: patches that hold the whole sign."
    )
    print(body)
    if options.write:
        write_section(
            options.write,
            "rewards",
            title="Contrastive against increment reward",
            command="python benchmarks/reward_study.py study --weights demo/run/backbone.safetensors --write docs/results.md",
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
