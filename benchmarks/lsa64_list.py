"""Writes the list that splits clips of signs by their signers, so that nobody who is tested on was learnt from.

    python benchmarks/lsa64_list.py CLIPS -o lsa64.csv
    gf train lsa64.csv --backbone ... --frames 8 -o runs/lsa64

CLIPS has a folder for each sign, with a folder of frames, or a video, for each clip, named SIGN_SIGNER_REPETITION.
"""

import argparse
import csv
from pathlib import Path


def rows(clips: Path, val: set[str], test: set[str]) -> list[tuple[str, str, str]]:
    """(path, sign, split) of every clip."""
    found = []
    for sign in sorted(p for p in clips.iterdir() if p.is_dir()):
        for clip in sorted(p for p in sign.iterdir() if not p.name.startswith(".")):
            signer = clip.stem.split("_")[1]
            split = "test" if signer in test else "val" if signer in val else "train"
            found.append((str(clip.resolve()), sign.name, split))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--val", nargs="+", default=["008"], help="signers that choose")
    parser.add_argument("--test", nargs="+", default=["009", "010"], help="signers that measure")
    options = parser.parse_args()
    listed = rows(options.clips, set(options.val), set(options.test))
    with options.output.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("path", "label", "split"), *listed])
    counts = {split: sum(row[2] == split for row in listed) for split in ("train", "val", "test")}
    print(f"{options.output}: {counts}")


if __name__ == "__main__":
    main()
