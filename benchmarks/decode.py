"""What reading a few frames of a long clip costs against decoding all of it, in time and in memory.

    python benchmarks/decode.py
    python benchmarks/decode.py --write docs/results.md

The clip is made here: a texture that drifts, with noise, in H.264. Both ways are measured in turns, each in a process of its own,
so that the memory of one is not that of the other.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from results import machine, markdown_table, write_section

WIDTH, HEIGHT, RATE = 1280, 720, 30
FRAMES = 8
# Runs in a process of its own: reads a clip, tells seconds and the most memory it ever had, in MiB.
READ = """
import json, resource, sys, time
import av, numpy, torch
from glancefocus.data.clips import read_clip
way, file, frames = sys.argv[1], sys.argv[2], int(sys.argv[3])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
if way == "some":
    read_clip(file, frames, lambda picture: picture.size)
else:
    with av.open(file) as container:
        for frame in container.decode(video=0):
            pass
seconds = time.perf_counter() - started
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "grown_mib": (after - before) / 1024}))
"""


def make_clip(file: Path, seconds: int, key_every: int) -> Path:
    """A clip of this length with a key frame every so many frames."""
    import av

    rng = np.random.default_rng(0)
    texture = rng.integers(0, 256, (HEIGHT // 8, WIDTH // 4, 3), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    with av.open(str(file), "w") as container:
        options = {"g": str(key_every), "preset": "ultrafast", "crf": "30"}
        stream = container.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(seconds * RATE):
            pixels = np.roll(texture, 3 * number, axis=1)[:, :WIDTH].copy()
            pixels[::16] = rng.integers(0, 256, (1, WIDTH, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file


def read(way: str, file: Path) -> dict[str, float]:
    """Seconds and MiB of reading `some` frames, or `all` of them, in a fresh process."""
    command = [sys.executable, "-c", READ, way, str(file), str(FRAMES)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    told: dict[str, float] = json.loads(done.stdout)
    return told


def measure(file: Path, rounds: int) -> dict[str, Any]:
    """Medians over rounds in which both ways take turns; the ratio is taken within each round."""
    some, everything = [], []
    for _ in range(rounds):
        everything.append(read("all", file))
        some.append(read("some", file))
    return {
        "some_s": statistics.median(r["seconds"] for r in some),
        "all_s": statistics.median(r["seconds"] for r in everything),
        "ratio": statistics.median(a["seconds"] / s["seconds"] for a, s in zip(everything, some, strict=True)),
        "some_mib": statistics.median(r["grown_mib"] for r in some),
    }


def table(rows: list[dict[str, Any]]) -> str:
    cells = [["clip", f"{FRAMES} frames, s", "all, s", "times less", f"memory for {FRAMES} frames, MiB"]]
    for row in rows:
        name = f"{row['seconds']} s, a key frame every {row['key_every'] / RATE:g} s"
        cells.append(
            [
                name,
                f"{row['some_s']:.2f}",
                f"{row['all_s']:.2f}",
                f"{row['ratio']:.1f}",
                f"{row['some_mib']:.0f}",
            ]
        )
    return markdown_table(cells)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", nargs="+", type=int, default=[60, 120], help="lengths of the clips")
    parser.add_argument(
        "--key-every", nargs="+", type=int, default=[30, 60, 250], help="frames from key frame to key frame"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for key_every in options.key_every:
            for seconds in options.seconds:
                started = time.perf_counter()
                file = make_clip(Path(folder) / f"{seconds}-{key_every}.mp4", seconds, key_every)
                print(f"made {file.name} in {time.perf_counter() - started:.0f} s", file=sys.stderr)
                rows.append({"seconds": seconds, "key_every": key_every, **measure(file, options.rounds)})
                file.unlink()
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
        return
    body = (
        f"A clip of {WIDTH}x{HEIGHT} px at {RATE} frames a second, H.264. Medians of {options.rounds} rounds in which both ways "
        "take turns, each in a process of its own; the ratio is taken within each round. How many frames must be decoded "
        "depends on how far the key frames lie apart: cameras and streams have one every second or two, x264 by itself every "
        "250 frames.\n\n"
        f"{table(rows)}"
    )
    print(body)
    if options.write:
        words = sys.argv[1:] if arguments is None else arguments
        command = f"python benchmarks/decode.py {shlex.join(words)}"
        title = f"Reading {FRAMES} frames of a long clip"
        write_section(options.write, "decode", title=title, command=command, machine=machine(), body=body)


if __name__ == "__main__":
    main()
