"""A folder of large pictures: pictures a second when they are read part by part, against decoding each of them first.

    python benchmarks/large_folder.py runs/photos/bundle photos/ --count 200

Both ways take turns in one process, batch by batch. It also counts how many answers are the same.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.data.folders import find_pictures
from glancefocus.data.images import read_picture
from glancefocus.outcome import Outcome


def both_ways(bundle: Bundle, files: list[Path], batch_size: int) -> tuple[list[Outcome], list[Outcome], float, float]:
    """Outcomes of all batches, read part by part and decoded first, and the seconds that each way took."""
    parts, decoded, parts_s, decoded_s = [], [], 0.0, 0.0
    for start in range(0, len(files), batch_size):
        batch = files[start : start + batch_size]
        started = time.perf_counter()
        parts.append(bundle.predict(batch))
        between = time.perf_counter()
        decoded.append(bundle.predict([read_picture(file) for file in batch]))
        parts_s, decoded_s = parts_s + between - started, decoded_s + time.perf_counter() - between
    return parts, decoded, parts_s, decoded_s


def summary(parts: Outcome, decoded: Outcome, parts_s: float, decoded_s: float) -> dict[str, Any]:
    """The numbers that are reported."""
    same = sum(one == other for one, other in zip(parts.label, decoded.label, strict=True))
    difference = (parts.logits.softmax(dim=1) - decoded.logits.softmax(dim=1)).abs().max()
    return {
        "pictures": len(parts),
        "by_parts_per_second": len(parts) / parts_s,
        "decoded_per_second": len(parts) / decoded_s,
        "ratio": decoded_s / parts_s,
        "same_answers": same,
        "same_looks": int((parts.looks == decoded.looks).sum()),
        "largest_difference_of_probabilities": float(difference),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200, help="largest number of pictures")
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args(arguments)
    bundle = gf.load(options.bundle)
    files = find_pictures([options.folder])[: options.count]
    bundle.predict(files[0])  # not counted: the first prediction loads libraries
    parts, decoded, parts_s, decoded_s = both_ways(bundle, files, options.batch_size)
    print(json.dumps(summary(Outcome.join(parts), Outcome.join(decoded), parts_s, decoded_s), indent=1))


if __name__ == "__main__":
    main()
