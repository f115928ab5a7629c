"""How likely an answer is right, given its score: what solvers make large instead of counting the answers of a few images.

Whether one of 70 images is right at some look is mostly luck, and thresholds that follow it are chosen by luck. A smooth curve of
three numbers for each look, fitted to all images, follows what the scores say on average and leaves that luck out.
"""

import numpy as np
from numpy.typing import NDArray

from glancefocus.early_exit.look_table import LookTable

SMALLEST_CHANCE = 1e-5  # scores beyond it are taken for it, on both sides; their logarithms would drown all others
PRIOR_OF_ALL = np.array([0.01, 0.3, 3.0])  # precision of the curve that all looks share, around: as sure as its score
PRIOR_OF_LOOK = np.array([1.0, 4.0, 20.0])  # precision of a look's own curve around the one that all share
STEPS = 50

Curve = NDArray[np.float64]
"""(3,) the logit of being right is c0 + c1 z + c2 z^2, with z the logit of the score, standardised over the table."""


def expected_correct(table: LookTable) -> NDArray[np.float64]:
    """(N, nodes) how likely the answer of every image at every node is right, going by its score there.

    A logistic curve for each node, held near the one of all nodes together, the less firmly the more images there are.
    """
    logit = logit_of(table.score)
    spread = float(logit.std())
    z = (logit - logit.mean()) / (spread if spread > 0 else 1.0)
    correct = table.correct.astype(np.float64)
    shared = fit_curve(z.ravel(), correct.ravel(), np.array([0.0, 1.0, 0.0]), PRIOR_OF_ALL)
    columns = [
        chance(fit_curve(own, right, shared, PRIOR_OF_LOOK), own) for own, right in zip(z.T, correct.T, strict=True)
    ]
    return np.stack(columns, axis=1)


def fit_curve(z: NDArray[np.float64], right: NDArray[np.float64], centre: Curve, precision: Curve) -> Curve:
    """The most likely curve for these answers, with a normal prior; Newton's method, which halves steps that go too far."""
    features = powers(z)

    def loss(curve: Curve) -> float:
        logit = features @ curve
        return float(np.logaddexp(0, logit).sum() - right @ logit + 0.5 * (precision * (curve - centre) ** 2).sum())

    curve, now = centre, loss(centre)
    for _ in range(STEPS):
        likely = chance(curve, z)
        slope = features.T @ (right - likely) - precision * (curve - centre)
        bend = (features * (likely * (1 - likely))[:, None]).T @ features + np.diag(precision)
        step = np.linalg.solve(bend, slope)
        size = 1.0
        while size > 1e-3 and loss(curve + size * step) > now:
            size /= 2
        if size <= 1e-3 or float(np.abs(size * step).max()) < 1e-7:
            break
        curve = curve + size * step
        now = loss(curve)
    return curve


def chance(curve: Curve, z: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) how likely answers are right."""
    return np.asarray(1 / (1 + np.exp(-np.clip(powers(z) @ curve, -30, 30))))


def powers(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.ones_like(z), z, z * z], axis=1)


def logit_of(score: NDArray[np.float32]) -> NDArray[np.float64]:
    inside = np.clip(score.astype(np.float64), SMALLEST_CHANCE, 1 - SMALLEST_CHANCE)
    return np.asarray(np.log(inside / (1 - inside)))
