"""Comparison networks with several exits learn, go on after a stop, and give look records that solvers take."""

from pathlib import Path

import numpy as np
import pytest
import torch

from glancefocus.data.sources import Data
from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadRun
from glancefocus.evaluation.records import exits_table, record_exits
from glancefocus.exits.budget import solve_curve, solve_within
from glancefocus.network.multi_exit import MSDNet, MSDNetSettings, count_exits
from glancefocus.settings import ViewSettings
from glancefocus.training.multi_exit import MultiExitTraining, accuracy_of_exits, train_exits

VIEW = ViewSettings(fit="whole", height_px=32, width_px=32)
SETTINGS = MSDNetSettings(
    classes=2, exits=3, base=1, step=1, channels=8, growth=4, widths=(1, 2), bottleneck=(1, 2), stem="small"
)
TRAINING = MultiExitTraining(epochs=4, batch_size=32, lr=0.05, rates="cosine")


def coloured(count: int, seed: int) -> MemorySplit:
    """Noise that is a little redder or a little greener."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 200, (count, 3, 32, 32), generator=generator)
    labels = torch.arange(count) % 2
    images[torch.arange(count), labels] += 40
    return MemorySplit(images.to(torch.uint8), labels, VIEW)


@pytest.fixture(scope="module")
def data() -> Data:
    return Data(coloured(256, 0), coloured(96, 1), ("red", "green"))


def fresh() -> MSDNet:
    torch.manual_seed(0)
    return MSDNet(SETTINGS)


@pytest.fixture(scope="module")
def trained(data: Data, tmp_path_factory: pytest.TempPathFactory) -> MSDNet:
    net = train_exits(fresh(), data, VIEW, TRAINING, tmp_path_factory.mktemp("msdnet") / "last.ckpt")
    assert isinstance(net, MSDNet)
    return net


def test_all_exits_learn(trained: MSDNet, data: Data) -> None:
    assert min(accuracy_of_exits(trained, data.val, VIEW)) > 0.9


def test_every_exit_learns_by_its_own_whole_loss(tmp_path: Path) -> None:
    net = fresh()
    last_layers = [classifier.get_submodule("linear") for classifier in net.classifiers]
    for layer in last_layers:
        torch.nn.init.zeros_(layer.get_parameter("weight"))
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    data = Data(MemorySplit(images, torch.tensor([0, 0]), VIEW), coloured(2, 1), ("red", "green"))
    train_exits(net, data, VIEW, MultiExitTraining(epochs=1, batch_size=2, lr=0.05), tmp_path / "last.ckpt")
    for layer in last_layers:
        # Both classes have a probability of 0.5, so the gradient is (-0.5, 0.5); Nesterov's first step is 0.05 * 1.9 times that.
        bias = layer.get_parameter("bias").detach()
        torch.testing.assert_close(bias, torch.tensor([0.0475, -0.0475]), rtol=0, atol=1e-7)


def test_a_training_that_was_stopped_ends_as_one_that_was_not(trained: MSDNet, data: Data, tmp_path: Path) -> None:
    file, reached = tmp_path / "last.ckpt", []

    class Stop(Exception):
        pass

    def stop(epoch: int, accuracy: list[float]) -> None:
        reached.append(epoch)
        if epoch == 2:
            raise Stop

    with pytest.raises(Stop):
        train_exits(fresh(), data, VIEW, TRAINING, file, on_epoch=stop)
    again = train_exits(fresh(), data, VIEW, TRAINING, file, on_epoch=lambda epoch, accuracy: reached.append(epoch))
    assert reached == [1, 2, 3, 4]
    for name, tensor in trained.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    with pytest.raises(BadRun, match="another network, or with other settings"):
        train_exits(fresh(), data, VIEW, MultiExitTraining(epochs=5), file)


def test_exits_are_recorded_like_looks_and_solved_for_budgets(trained: MSDNet, data: Data, tmp_path: Path) -> None:
    record = record_exits(trained, data.val, VIEW, tmp_path, source="colours", name="val")
    again = record_exits(trained, data.val, VIEW, tmp_path, source="colours", name="val")
    assert np.array_equal(record.confidence, again.confidence)
    table = exits_table(trained, record, VIEW)
    assert table.accuracy_after_look == accuracy_of_exits(trained, data.val, VIEW)
    macs = count_exits(trained, 32, 32)
    assert tuple(table.macs) == macs
    budget = (macs[0] + macs[1]) / 2
    point = table.point(solve_within(table, budget))
    assert macs[0] <= point["mean_macs"] <= budget
    assert len(solve_curve(table)) > 1
