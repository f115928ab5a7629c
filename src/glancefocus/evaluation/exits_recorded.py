"""Look records of comparison networks with several exits: an exit is recorded like a look, so solvers and curves work alike."""

from collections.abc import Callable
from pathlib import Path

import torch

from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.evaluation.records import data_fingerprint
from glancefocus.exits.record import LookRecord, RecordAbout, writing_record
from glancefocus.exits.table import LookTable
from glancefocus.files import fingerprint
from glancefocus.look import as_batch
from glancefocus.loop import entropy
from glancefocus.network.multi_exit import MultiExit, count_exits
from glancefocus.settings import ViewSettings
from glancefocus.values import one_line


@torch.inference_mode()
def record_exits(
    net: MultiExit,
    split: Split,
    view: ViewSettings,
    folder: Path,
    *,
    source: str,
    name: str,
    batch_size: int = 64,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> LookRecord:
    """The record of a split: read from the folder if it is there for this network and these images, otherwise made.

    Whole images are seen at full resolution. The arguments are those of records.record_looks.
    """
    net.eval()
    tensors = [value for named in sorted(net.state_dict().items()) for value in named]
    device = next(net.parameters()).device
    about = RecordAbout(
        network=fingerprint([repr(net), view.height_px, view.width_px], *tensors),
        data=data_fingerprint(split),
        source=one_line(source, 1000),
        split=name,
        images=len(split),
        looks=net.exit_count,
        views=(f"whole@{max(view.height_px, view.width_px)}",),
    )
    place = folder / f"{name}-{about.network[:8]}-{about.data[:8]}"
    if place.exists():
        record = LookRecord.load(place)
        record.check_made_for(about.network, about.data)
        return record
    with writing_record(place, about) as writer:
        for images, labels in scene_batches(split, view, in_order(len(split), batch_size), None, workers):
            answers = torch.stack([a.float().cpu() for a in net(as_batch(images.to(device), view).whole)], dim=1)
            confidence, answer = answers.softmax(dim=2).max(dim=2)
            most = torch.log(torch.tensor(float(answers.shape[2])))
            spread = entropy(answers.flatten(0, 1)).reshape(answers.shape[:2]) / most
            columns = {"confidence": confidence, "entropy": 1 - spread, "value": torch.ones_like(confidence)}
            arrays = {column: values.numpy() for column, values in columns.items()}
            writer.add(labels.numpy(), answer=answer.numpy(), **arrays)
            if progress is not None:
                progress(writer.done, len(split))
    return LookRecord.load(place)


def exits_table(net: MultiExit, record: LookRecord, view: ViewSettings, score: str = "confidence") -> LookTable:
    """The look table of a record, with the multiply-adds of each exit."""
    return record.table(count_exits(net, view.height_px, view.width_px), score=score)
