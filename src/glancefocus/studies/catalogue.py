"""Which studies there are, what the paper found in each, and what other papers published; quick to import."""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from glancefocus.errors import UnknownName


@dataclass(frozen=True)
class Study:
    """One or several tables and figures of the paper; `order.PARTS` has its runs and how they are measured.

    shows  which tables and figures
    world  the built-in data set of the scale tiny
    seeds  number of seeds at the scales tiny and paper, if --seeds is not given
    clips  whether it is about clips, not images
    """

    name: str
    title: str
    shows: str
    seeds: tuple[int, int] = (1, 1)
    world: str = "signs"
    clips: bool = False


_ALL = (
    Study(
        "main", "Accuracy over multiply-adds: several networks against their backbones", "Figure 7 (a) to (e), Table 9"
    ),
    Study("anytime", "Anytime prediction", "Figure 7 (f)", seeds=(3, 1)),
    Study("msdnet", "MSDNet and an ensemble by depth, budgeted and anytime", "Figures 7 (f) and 18"),
    Study("phone", "Accuracy over the latency of one image", "Figure 8"),
    Study("gpu", "Throughput in large batches at the backbone's accuracy", "Table 1"),
    Study("rewards", "Contrastive against increment reward", "Table 2", seeds=(3, 3)),
    Study("sizes", "Several patch sizes (MS-GFNet) against fixed ones", "Table 3, Figures 10 and 17", seeds=(1, 3)),
    Study("resolution", "Image sizes", "Figure 11"),
    Study("traffic-signs", "Traffic signs in large road scenes", "Table 4, Figure 12"),
    Study("video", "Clips", "Figures 13 and 14", world="gestures", clips=True),
    Study("looks", "The expected number of looks", "Figure 15", seeds=(3, 1)),
    Study("length-and-size", "Number of looks and patch size", "Figure 16"),
    Study("ablation", "Ablation of the parts of the network and of its training", "Table 5"),
    Study("policies", "Architectures of the policy", "Table 6"),
    Study("criteria", "Exit criteria", "Table 7", seeds=(3, 3)),
    Study("sensitivity", "Sensitivity to the training settings", "Table 8"),
    Study("heatmap", "The value of the second patch at each place", "Figure 5"),
    Study("gallery", "Looks at test images", "Figure 9"),
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}


def study_named(name: str) -> Study:
    if name not in STUDIES:
        raise UnknownName("study", name, STUDIES, f"Studies are {', '.join(STUDIES)}.")
    return STUDIES[name]


FILE = "published.json"


@dataclass(frozen=True)
class PublishedNetwork:
    """One network of another paper: accuracy in [0, 1], multiply-adds for an image or a clip, and where that is written."""

    name: str
    data: str
    accuracy: float
    macs: float
    source: str


@functools.cache
def _content() -> dict[str, Any]:
    text = resources.files("glancefocus.studies").joinpath(FILE).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def source_of(table: str) -> str:
    """Where a table of the paper is."""
    return str(_content()["tables"][table]["source"])


def columns_of(table: str) -> list[str]:
    return list(_content()["tables"][table]["columns"])


def paper_row(table: str, row: str, *, share: bool = True) -> tuple[list[float | None], list[float | None]]:
    """(values, deviations) of one row; share: percent become shares. Without a row of this name both are empty."""
    found = _content()["tables"][table]
    scale = 100 if share else 1
    parts = (found["rows"].get(row, []), found["deviations"].get(row, []))
    values, deviations = ([None if value is None else value / scale for value in part] for part in parts)
    return values, deviations


def sentence(study: str) -> str:
    """A statement in the text of the paper, with its place."""
    fact = _content()["facts"][study]
    return f"{fact['sentence']} ({fact['source']})"


def networks(data: str) -> list[PublishedNetwork]:
    """The published networks on a data set."""
    return [PublishedNetwork(**each) for each in _content()["networks"] if each["data"] == data]
