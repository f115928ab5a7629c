"""Many machines: a batch job whose node is killed, and a server of two replicas of which one is killed.

    python benchmarks/ray_check.py runs/six/bundle unseen --files 5000 --looks 1

Two nodes are started on this machine (ray.cluster_utils). The first part answers many files (links to the pictures of a folder) and
kills the second node when part of the answers is written: every file must be answered once, as locally. The second part serves two
replicas, and kills the process of one while requests arrive: every request must be answered in the end.
"""

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import ray
from ray import serve
from ray.cluster_utils import Cluster
from results import machine, write_section

import glancefocus as gf
from glancefocus.data.folders import find_pictures
from glancefocus.serving.ray_jobs import predict_files
from glancefocus.serving.ray_server import Scaling, application, start
from glancefocus.serving.served import ServiceSettings

EXACT = ("label", "looks", "sure", "cost_macs", "views")


def links(pictures: list[Path], count: int, folder: Path) -> None:
    """This number of links to the pictures, in turn."""
    for number in range(count):
        picture = pictures[number % len(pictures)]
        (folder / f"{number:05d}-{picture.parent.name}{picture.suffix}").symlink_to(picture.resolve())


def batch_job(options: argparse.Namespace, pictures: list[Path], cluster: Cluster, node: Any) -> dict[str, Any]:
    """A job whose second node is killed in the middle."""
    with tempfile.TemporaryDirectory() as name:
        files, output = Path(name, "files"), Path(name, "answers")
        files.mkdir()
        links(pictures, options.files, files)
        killed_at = 0

        def kill() -> None:
            nonlocal killed_at
            while not killed_at:
                time.sleep(0.5)
                written = len(list(output.glob("*.parquet")))
                if 100 * written > options.files / 3:
                    killed_at = 100 * written
                    cluster.remove_node(node, allow_graceful=False)

        threading.Thread(target=kill, daemon=True).start()
        began = time.monotonic()
        counts = predict_files(options.bundle, files, output, looks=options.looks, workers=2)
        seconds = time.monotonic() - began
        answers = pq.read_table(output).to_pylist()
    return {
        "counts": counts,
        "killed_after": killed_at,
        "seconds": round(seconds),
        "files": len({row["file"] for row in answers}),
        "rows": len(answers),
        "different": different(answers, options, pictures),
    }


def different(answers: list[dict[str, Any]], options: argparse.Namespace, pictures: list[Path]) -> int:
    """Answers that are not those of bundle.predict on this machine."""
    bundle, local = gf.load(options.bundle), []
    for first in range(0, len(pictures), 32):
        local += bundle.predict(pictures[first : first + 32], looks=options.looks).answers(1)
    wrong = 0
    for row in answers:
        other = local[int(Path(row["file"]).name.partition("-")[0]) % len(pictures)]
        same = all(row[name] == other[name] for name in EXACT)
        wrong += not (same and abs(row["confidence"] - other["confidence"]) < 1e-4)
    return wrong


def replicas(options: argparse.Namespace, pictures: list[Path]) -> dict[str, Any]:
    """Requests to two replicas, one of which is killed."""
    settings = ServiceSettings(decoders=1)
    start(application({"default": str(options.bundle)}, settings, scaling=Scaling(2, 2, cpus=0.5)), port=options.port)
    from ray.util.state import list_actors

    actors = list_actors(filters=[("class_name", "=", "ServeReplica:glancefocus:glancefocus"), ("state", "=", "ALIVE")])
    client = gf.Client(f"http://127.0.0.1:{options.port}", retries=8)
    chosen = [pictures[number % len(pictures)] for number in range(options.requests)]
    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(client.predict, picture, looks=1) for picture in chosen]
        while sum(each.done() for each in sent) < options.requests // 3:
            time.sleep(0.1)
        os.kill(actors[0].pid, signal.SIGKILL)
        found = [each.result() for each in sent]
    expected = gf.load(options.bundle).predict(chosen, looks=1, batch_size=1).answers(1)
    same = sum(one[0].get("label") == other["label"] for one, other in zip(found, expected, strict=True))
    serve.shutdown()
    return {"replicas": len(actors), "requests": len(found), "answered_as_locally": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--looks", type=int, default=1)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--write", type=Path, help="page whose section `ray` gets the figures")
    options = parser.parse_args()
    pictures = [Path(picture) for picture in find_pictures([str(options.folder)])]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    node = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    job = batch_job(options, pictures, cluster, node)
    print(json.dumps(job), flush=True)
    served = replicas(options, pictures)
    print(json.dumps(served), flush=True)
    text = (
        f"Two nodes on this machine. Batch job of {options.files:,} files ({len(pictures)} photographs, linked), {options.looks} "
        f"look(s) each; the second node was killed after {job['killed_after']:,} answers were written: {job['rows']:,} rows, "
        f"{job['files']:,} different files, {job['different']} answers different from `bundle.predict`, {job['seconds']} s. "
        f"Ray Serve with {served['replicas']} replicas, one killed with signal 9: {served['requests']} requests, "
        f"{served['answered_as_locally']} answered as locally (the client repeats requests that fail)."
    )
    print(text)
    if options.write is not None:
        words = shlex.join(["python", *sys.argv])
        title = "Ray: a node and a replica that are killed"
        write_section(options.write, "ray", title=title, command=words, machine=machine(1), body=text)


if __name__ == "__main__":
    main()
