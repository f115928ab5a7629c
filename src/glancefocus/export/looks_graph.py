"""All looks at one image as one ONNX graph: the loop is inside, and ends once the confidence is above a threshold.

    glances        (1, 3, px, px)   the image at low resolution; a graph for images of one size makes it itself
    images         (1, 3, H, W)     what patches are cut out of
    thresholds     (T,)             one for each look that may be taken
    ->
    logits         (1, classes)     after the last look that was taken
    answer, confidence              (1,) after the glance
    answers, confidences            (K, 1) after each of the K focus looks
    where                           (K, 1, 2) of each of them

It is put together from the graphs of the parts (see network/parts.py), with whatever weights these have. Names of nodes begin with
what they are for, so that a profile tells where the time goes: the name of a part, or one of SHRINKING, CUTTING, LEAVING.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glancefocus.errors import BadSetting, MissingExtra
from glancefocus.network.parts import aim_part, answer_part
from glancefocus.outcome import Outcome
from glancefocus.settings import NetworkSettings

SHRINKING, CUTTING, LEAVING = "shrink", "cut", "leave"
INPUTS = ("glances", "images", "thresholds")
MOST_BYTES = (1 << 31) - 1
OUTPUTS = ("logits", "answer", "confidence", "answers", "confidences", "where")


def fits_one_graph(settings: NetworkSettings) -> bool:
    """Images, in patches of one size: what the graph is for."""
    return settings.looks > 1 and settings.frames == 1 and len(settings.patch_px) == 1


def one_graph(
    files: Mapping[str, Path],
    settings: NetworkSettings,
    policy_units: int,
    shrinking_by: Mapping[str, NDArray[np.float32]] | None = None,
) -> Any:
    """The ModelProto of all looks.

    files         {part: graph}
    shrinking_by  `rows` (px, H) and `columns` (W, px) for images of one size, of which the graph is not given the glance then: that
                  is rows x image x columns, for resizing is a product on either side
    """
    try:
        import onnx
    except ModuleNotFoundError:
        raise MissingExtra("onnx", "export") from None
    parts = {name: onnx.load(file) for name, file in files.items()}
    graph = _Composer(onnx, parts, settings, policy_units).all_looks(shrinking_by or {})
    versions: dict[str, int] = {}
    for entry in (entry for part in parts.values() for entry in part.opset_import):
        versions[entry.domain] = max(entry.version, versions.get(entry.domain, 0))
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    )
    model.ir_version = max(part.ir_version for part in parts.values())
    if model.ByteSize() > MOST_BYTES:
        raise BadSetting(
            f"all looks in one graph take {model.ByteSize() / 1e9:.1f} GB, more than one ONNX graph can hold."
        )
    return model


class _Composer:
    """Puts the graphs of parts into others. Tensors of a part begin with its name, so that no two are called alike."""

    def __init__(self, onnx: Any, parts: Mapping[str, Any], settings: NetworkSettings, policy_units: int) -> None:
        self.onnx = onnx
        self.types = onnx.TensorProto
        self.parts = parts
        self.settings = settings
        self.units = policy_units

    def all_looks(self, shrinking_by: Mapping[str, NDArray[np.float32]]) -> Any:
        types, px, side = self.types, self.settings.patch_px[0], self.settings.glance_px
        nodes, weights = self._part("glance", {"glances": "glances"})
        sides: dict[str, list[Any]] = {"images": [1, 3, "height", "width"], "thresholds": ["looks"]}
        if shrinking_by:
            nodes = [
                self._node(SHRINKING, "MatMul", ["images", "columns"], ["narrow"]),
                self._node(SHRINKING, "MatMul", ["rows", "narrow"], ["glances"]),
                *nodes,
            ]
            sides["images"] = [1, 3, shrinking_by["rows"].shape[1], shrinking_by["columns"].shape[0]]
        else:
            sides = {"glances": [1, 3, side, side], **sides}
        nodes = [
            *nodes,
            self._node(CUTTING, "Shape", ["images"], ["image_hw"], start=2),
            self._node(CUTTING, "Sub", ["image_hw", "patch_hw"], ["room_px"]),
            self._node(CUTTING, "Cast", ["room_px"], ["room"], to=types.FLOAT),
            self._node(LEAVING, "Shape", ["thresholds"], ["looks"]),
            self._node(LEAVING, "Sub", ["looks", "the_glance"], ["focus_looks"]),
            self._node(LEAVING, "Squeeze", ["focus_looks"], ["most"]),
            *self._unsure("glance/confidence", "none_yet", "unsure"),
            self._node(
                LEAVING,
                "Loop",
                ["most", "unsure", "glance/logits", "glance/memory", "glance/map", "no_policy_memory"],
                ["logits", "last_memory", "last_map", "last_policy_memory", "answers", "confidences", "where"],
                body=self._look(),
            ),
            self._node(LEAVING, "Identity", ["glance/answer"], ["answer"]),
            self._node(LEAVING, "Identity", ["glance/confidence"], ["confidence"]),
        ]
        weights += [
            self._constant("patch_hw", [px, px], "int64"),
            self._constant("the_glance", [1], "int64"),
            self._constant("none_yet", 0, "int64"),
            self._constant("no_policy_memory", [[0.0] * self.units], "float32"),
            *(self._constant(name, value, "float32") for name, value in shrinking_by.items()),
        ]
        inputs = [self._value(name, types.FLOAT, shape) for name, shape in sides.items()]
        one, each = [1], ["focused", 1]
        shapes: list[list[Any]] = [[1, "classes"], one, one, each, each, [*each, 2]]
        outputs = [
            self._value(name, types.INT64 if name.startswith("answer") else types.FLOAT, shape)
            for name, shape in zip(OUTPUTS, shapes, strict=True)
        ]
        return self.onnx.helper.make_graph(nodes, "looks", inputs, outputs, initializer=weights)

    def _look(self) -> Any:
        """The body of the loop: aim, cut the patch out, look at it, and say whether to go on."""
        types = self.types
        aim, aim_weights = self._aim()
        cut, cut_weights = self._patch()
        focus, focus_weights = self._focus()
        leave = [
            self._node(LEAVING, "Add", ["number", "one_more"], ["focused"]),
            *self._unsure("confidence_after", "focused", "go_on"),
        ]
        inputs = [
            self._value("number", types.INT64, []),
            self._value("still_unsure", types.BOOL, []),
            *(self._value(name, types.FLOAT) for name in ("logits_before", "memory", "map", "policy_memory")),
        ]
        outputs = [
            self._value("go_on", types.BOOL, []),
            *(self._value(name, types.FLOAT) for name in ("logits_after", "memory_after", "map_after")),
            self._value("policy_memory_after", types.FLOAT),
            self._value("answer_after", types.INT64, [1]),
            self._value("confidence_after", types.FLOAT, [1]),
            self._value("aimed_at", types.FLOAT, [1, 2]),
        ]
        return self.onnx.helper.make_graph(
            [*aim, *cut, *focus, *leave],
            "look",
            inputs,
            outputs,
            initializer=[*aim_weights, *cut_weights, *focus_weights, self._constant("one_more", 1, "int64")],
        )

    def _patch(self) -> tuple[list[Any], list[Any]]:
        """Cut out where the policy aims, as scene.top_left: at floor(where x room), the product in float32."""
        nodes = [
            self._node(CUTTING, "Clip", ["aimed_at", "zero", "one"], ["share"]),
            self._node(CUTTING, "Mul", ["share", "room"], ["start_px"]),
            self._node(CUTTING, "Floor", ["start_px"], ["first_px"]),
            self._node(CUTTING, "Cast", ["first_px"], ["first"], to=self.types.INT64),
            self._node(CUTTING, "Reshape", ["first", "pair"], ["start"]),
            self._node(CUTTING, "Add", ["start", "patch_hw"], ["end"]),
            self._node(CUTTING, "Slice", ["images", "start", "end", "hw"], ["patches"]),
        ]
        weights = [
            self._constant("zero", 0, "float32"),
            self._constant("one", 1, "float32"),
            self._constant("pair", [2], "int64"),
            self._constant("hw", [2, 3], "int64"),
        ]
        return nodes, weights

    def _aim(self) -> tuple[list[Any], list[Any]]:
        """By the map of the glance first, then by that of the patch before."""
        given = {"map": "map", "policy_memory": "policy_memory"}
        made = {"where": "aimed_at", "policy_memory_after": "policy_memory_after"}
        sizes = [self.settings.glance_px, self.settings.patch_px[0]]
        if self.settings.looks == 2 or sizes[0] == sizes[1]:
            return self._part(aim_part(sizes[0]), given | made)
        return self._chosen([aim_part(px) for px in sizes], given, made)

    def _focus(self) -> tuple[list[Any], list[Any]]:
        answered = {"logits": "logits_after", "confidence": "confidence_after", "answer": "answer_after"}
        if self.settings.classifier != "cascaded":
            given = {"patches": "patches", "memory": "memory"}
            return self._part("focus", given | {"memory_after": "memory_after", "map": "map_after"} | answered)
        nodes, weights = self._part("focus", {"patches": "patches", "vector": "vector", "map": "map_after"})
        nodes.append(self._node("focus", "Concat", ["memory", "vector"], ["memory_after"], axis=1))
        answers = [answer_part(look) for look in range(2, self.settings.looks + 1)]
        more_nodes, more_weights = self._chosen(answers, {"memory": "memory_after"}, answered)
        return nodes + more_nodes, weights + more_weights

    def _unsure(self, confidence: str, number: str, result: str) -> list[Any]:
        """Not above the threshold of the look of this number."""
        return [
            self._node(LEAVING, "Gather", ["thresholds", number], [f"{result}/threshold"]),
            self._node(LEAVING, "Greater", [confidence, f"{result}/threshold"], [f"{result}/sure"]),
            self._node(LEAVING, "Not", [f"{result}/sure"], [f"{result}/not_sure"]),
            self._node(LEAVING, "Squeeze", [f"{result}/not_sure"], [result]),
        ]

    def _chosen(
        self, names: Sequence[str], given: Mapping[str, str], made: Mapping[str, str], first: int = 0
    ) -> tuple[list[Any], list[Any]]:
        """One part for each number of the loop from the first, the last part for all that follow."""
        now, *later = names
        if not later:
            return self._part(now, {**given, **made})
        branches = {}
        for branch, some in (("then_branch", [now]), ("else_branch", later)):
            inside = {old: f"{now}/{branch}/{old}" for old in made}
            nodes, weights = self._chosen(some, given, inside, first + 1)
            outputs = [self._value(name, self._type_of(old)) for old, name in inside.items()]
            branches[branch] = self.onnx.helper.make_graph(nodes, branch, [], outputs, initializer=weights)
        nodes = [
            self._node(LEAVING, "Equal", ["number", f"{now}/its_number"], [f"{now}/now"]),
            self._node(LEAVING, "If", [f"{now}/now"], list(made.values()), **branches),
        ]
        return nodes, [self._constant(f"{now}/its_number", first, "int64")]

    def _type_of(self, output: str) -> int:
        kind: int = self.types.INT64 if output == "answer" else self.types.FLOAT
        return kind

    def _part(self, name: str, outside: Mapping[str, str]) -> tuple[list[Any], list[Any]]:
        """The nodes and weights of a part; `outside`: what its inputs and outputs are called there."""

        def renamed(tensors: Iterable[str]) -> list[str]:
            return [tensor and outside.get(tensor, f"{name}/{tensor}") for tensor in tensors]

        nodes, weights = [], []
        for one in self.parts[name].graph.node:
            if any(attribute.HasField("g") for attribute in one.attribute):
                raise BadSetting(f"the part {name!r} has a graph within its graph, which cannot be put into another.")
            node = self.onnx.NodeProto()
            node.CopyFrom(one)
            node.name = f"{name}/{one.name}"
            node.input[:], node.output[:] = renamed(one.input), renamed(one.output)
            nodes.append(node)
        for one in self.parts[name].graph.initializer:
            weight = self.onnx.TensorProto()
            weight.CopyFrom(one)
            weight.name = renamed([one.name])[0]
            weights.append(weight)
        made = {output.name for output in self.parts[name].graph.output}
        if "logits" in made and "confidence" not in made:  # exported graphs do not say it
            logits, confidence, answer = renamed(["logits", "confidence", "answer"])
            shares, last = f"{name}/shares", f"{name}/of_classes"
            nodes += [
                self._node(name, "Softmax", [logits], [shares], axis=1),
                self._node(name, "ReduceMax", [shares, last], [confidence], keepdims=0),
                self._node(name, "ArgMax", [shares], [answer], axis=1, keepdims=0),
            ]
            weights.append(self._constant(last, [1], "int64"))
        return nodes, weights

    def _node(self, purpose: str, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
        return self.onnx.helper.make_node(kind, inputs, outputs, name=f"{purpose}/{outputs[0]}", **attributes)

    def _value(self, name: str, kind: int, shape: Sequence[int | str] | None = None) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, kind, shape)

    def _constant(self, name: str, value: Any, kind: str) -> Any:
        return self.onnx.numpy_helper.from_array(np.array(value, kind), name)


def outcome_of(outputs: Sequence[Any], thresholds: Sequence[float], patch_px: int) -> Outcome:
    """The graph's outputs as an outcome, as the loop's recorder would give it."""
    logits, answer, confidence, answers, confidences, where = outputs
    answered, sureness = (
        [*answer.tolist(), *answers.ravel().tolist()],
        [*confidence.tolist(), *confidences.ravel().tolist()],
    )
    looks, most = len(answered), len(thresholds)
    left = most - looks
    threshold = thresholds[looks - 1]
    sure = bool(sureness[-1] > np.float32(threshold)) and (looks < most or threshold > 0)  # see ExitRule
    aimed_at = [*where.reshape(-1, 2).tolist(), *([[math.nan, math.nan]] * left)]
    return Outcome(
        answer=torch.tensor(answered[-1:]),
        confidence=torch.tensor(sureness[-1:], dtype=torch.float32),
        looks=torch.tensor([looks]),
        sure=torch.tensor([sure]),
        logits=torch.from_numpy(logits),
        where=torch.tensor(aimed_at, dtype=torch.float32).reshape(1, most - 1, 2),
        patch_px=torch.tensor([[patch_px] * (looks - 1) + [0] * left], dtype=torch.int64),
        answer_after=torch.tensor([answered + [-1] * left]),
        confidence_after=torch.tensor([sureness + [math.nan] * left], dtype=torch.float32),
    )
