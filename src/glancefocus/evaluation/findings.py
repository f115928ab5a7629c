"""What an evaluation found, as plain numbers: what the report draws, what --json prints, what the CSV files hold."""

from dataclasses import asdict, dataclass, field
from typing import Any

from glancefocus.exits.curve import Point


@dataclass(frozen=True)
class Findings:
    """Everything on images that chose no threshold.

    data, chosen_on  in words: what was measured on, and what the thresholds were chosen on
    accuracy_after_look, macs_after_look  with every image taking so many looks (anytime), patches of the largest size
    ms_after_look    None where no latency was measured; device says on what
    curve            from cheap to dear
    chosen           the point of the bundle's own thresholds, with accuracy_of_exits (per look, None where nobody left)
    fixed_size_curves  {patch_px: curve} of the same network with patches of one size; empty with one size
    scores           {score: curve}: the same budgets, other exit scores
    reliability      for each look a list of bins: {"confidence", "accuracy", "count"} with means over the bin
    calibration_error  for each look, expected calibration error in [0, 1]
    verdict          whether glancefocus is worth it beside its backbone on resized images, see verdict.Verdict; None: not asked
    aims             learnt aims against others, measured when the bundle was trained, see aims.AimsCheck; None: never measured
    remarks          sentences on the images: how many that trained the network were left out, or are among them
    """

    data: str
    chosen_on: str
    images: int
    score: str
    patch_px: list[int]
    accuracy_after_look: list[float]
    macs_after_look: list[int]
    backbone_macs: int
    curve: list[Point]
    chosen: Point
    ms_after_look: list[float] | None = None
    device: str | None = None
    fixed_size_curves: dict[int, list[Point]] = field(default_factory=dict)
    scores: dict[str, list[Point]] = field(default_factory=dict)
    reliability: list[list[dict[str, float]]] = field(default_factory=list)
    calibration_error: list[float] = field(default_factory=list)
    verdict: dict[str, Any] | None = None
    aims: dict[str, Any] | None = None
    remarks: list[str] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)
