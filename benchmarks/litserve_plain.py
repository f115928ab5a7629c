"""LitServe with a bundle, for serving.py: batches of whole requests, with workers that decode and compute.

python benchmarks/litserve_plain.py runs/signs/plain --port 8001 --workers 2
"""

import argparse
import base64
from typing import Any

import litserve

import glancefocus as gf


class Classifier(litserve.LitAPI):
    """Answers as `gf serve` does, as far as serving.py reads the answers."""

    def __init__(self, bundle: str, runtime: str | None, threads: int, **batching: Any) -> None:
        super().__init__(**batching)
        self.bundle_folder, self.runtime, self.threads = bundle, runtime, threads

    def setup(self, device: str) -> None:
        self.bundle = gf.load(self.bundle_folder, runtime=self.runtime, threads=self.threads, device="cpu", batch=1)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # an annotation would change what LitServe passes
        return self.bundle.view(base64.b64decode(request["image"]))

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, batch: list[Any]) -> list[str]:
        return self.bundle.predict(batch, batch_size=len(batch)).label

    def unbatch(self, output: list[str]) -> list[str]:
        return output

    def encode_response(self, output: str) -> list[dict[str, str]]:
        return [{"label": output}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--full-batch", type=int, default=32)
    parser.add_argument("--wait-ms", type=float, default=5.0)
    parser.add_argument("--runtime")
    options = parser.parse_args()
    api = Classifier(
        options.bundle,
        options.runtime,
        options.threads,
        max_batch_size=options.full_batch,
        batch_timeout=options.wait_ms / 1000,
    )
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=options.workers, timeout=60)
    server.run(host="127.0.0.1", port=options.port, num_api_servers=1, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
