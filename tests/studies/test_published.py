"""The paper's figures are those of its tables, and every network of others has a source."""

from pathlib import Path

import pytest

from glancefocus.studies.catalogue import columns_of, networks, paper_row, sentence, source_of
from glancefocus.studies.pictures import published_on
from glancefocus.studies.results import row_beside


def test_a_row_of_the_paper_has_its_values_and_deviations_as_shares() -> None:
    values, deviations = paper_row("rewards/resnet50", "contrastive")
    assert values == pytest.approx([0.6962, 0.7365, 0.7464, 0.7514, 0.7540])
    assert deviations[0] is None
    assert deviations[1:] == pytest.approx([0.0017, 0.0006, 0.0009, 0.0009])
    assert source_of("rewards/resnet50").startswith("Table 2 of the paper (a)")


def test_a_row_that_the_paper_does_not_have_is_empty() -> None:
    row = row_beside("ablation", "another", "another", [[0.5]])
    assert (list(row.paper), list(row.paper_deviation)) == ([], [])


def test_a_size_that_cannot_use_up_a_budget_has_no_value() -> None:
    values, _ = paper_row("sizes", "96")
    assert values[columns_of("sizes").index("2.50G")] is None


def test_published_networks_have_a_cost_an_accuracy_and_a_source() -> None:
    found = networks("imagenet")
    names = {
        "MobileNetV2 1.0",
        "MnasNet-A1",
        "FBNet-C",
        "ProxylessNAS (mobile)",
        "CondenseNet (G=C=4)",
        "SACT (ResNet-101)",
    }
    assert names <= {each.name for each in found}
    for each in (*found, *networks("something-something-v1")):
        assert 0.3 < each.accuracy < 0.8
        assert 1e8 < each.macs < 1e11
        assert "Table" in each.source or "README" in each.source
    assert sentence("main").endswith("(section 5.2.1 of the paper)")


def test_published_clips_are_shown_only_beside_the_data_that_they_were_measured_on(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
    (tmp_path / "v1" / "something-something-v1-labels.csv").touch()
    (tmp_path / "v2" / "something-something-v2-labels.json").touch()
    assert [each.name for each in published_on(str(tmp_path / "v1"))] == [
        "TSM (ResNet-50, 8 frames)",
        "TSM (ResNet-50, 16 frames)",
    ]
    assert published_on(str(tmp_path / "v2")) == published_on("gestures") == []
