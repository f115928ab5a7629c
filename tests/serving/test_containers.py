"""The container file, the Compose file and the dashboard fit together and fit the server."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from glancefocus.cli.main import app
from glancefocus.serving.metrics import Metrics

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"


@pytest.fixture(scope="module")
def services() -> Any:
    return yaml.safe_load((CONTAINERS / "compose.yaml").read_text())["services"]


def test_everything_that_is_copied_or_mounted_exists(services: Any) -> None:
    text = (CONTAINERS / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()]
    assert copied
    assert [word for word in copied if not (ROOT / word).exists()] == []
    mounted = [volume.split(":")[0] for service in services.values() for volume in service["volumes"]]
    assert [place for place in mounted if place.startswith("./") and not (CONTAINERS / place).exists()] == []
    build = services["server"]["build"]
    assert (CONTAINERS / build["context"] / build["dockerfile"]).is_file()


def test_the_container_does_not_run_as_root_and_reports_when_it_is_ready() -> None:
    lines = (CONTAINERS / "Containerfile").read_text().splitlines()
    assert "USER gf" in lines
    assert any("/health/ready" in line for line in lines)
    assert 'ENTRYPOINT ["gf", "serve"]' in lines
    extras = re.search(r"\.\[(.+?)\]", "\n".join(lines))
    assert extras is not None
    assert "serve" in extras[1].split(",")


def test_the_commands_of_the_containers_are_options_of_gf_serve(services: Any) -> None:
    text = (CONTAINERS / "Containerfile").read_text()
    commands = [services["server"]["command"], json.loads(text.rpartition("CMD ")[2])]
    for words in commands:
        words = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in words]
        _, bound, *_ = app.parse_args(["serve", *words], exit_on_error=False, print_error=False)
        assert bound.arguments["options"].host == "0.0.0.0"


def test_the_dashboard_asks_for_metrics_that_the_server_has() -> None:
    board = json.loads((CONTAINERS / "grafana/dashboards/glancefocus.json").read_text())
    known = {sample for metric in Metrics().registry.collect() for sample in _names(metric)}
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"glancefocus_\w+", target["expr"])
    }
    assert len(asked) >= 8
    assert asked - known == set()


def _names(metric: Any) -> list[str]:
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}[metric.type]
    return [metric.name + ending for ending in endings]
