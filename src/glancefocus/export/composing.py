"""Composes looks.onnx: all looks at one image as one ONNX graph, with the loop inside, assembled from the graphs of the parts.

Names of nodes begin with their purpose, so that a profile shows where the time goes: the name of a part, or SHRINKING, CUTTING,
LEAVING. See network/parts.py for the parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glancefocus.errors import BadSetting, MissingExtra
from glancefocus.export.predict import WHOLE_PLACE
from glancefocus.network.parts import aim_part, answer_part, focus_part
from glancefocus.network.places import CENTRE_AND_CORNERS
from glancefocus.region import resized
from glancefocus.settings import GLANCE, GlanceResize, NetworkSettings

SHRINKING, CUTTING, LEAVING = "shrink", "cut", "leave"
MOST_BYTES = (1 << 31) - 1  # of one ONNX graph
OUTPUTS = ("logits", "answer", "confidence", "answers", "confidences", "where")


def covered(settings: NetworkSettings) -> tuple[int, int]:
    """Height and width of the region that a focus look sees, in an image of the view's size."""
    (seen,), view = settings.candidates, settings.view
    if seen.is_whole:
        return view.height_px, view.width_px
    px = seen.extent_px(view.height_px, view.width_px)
    return px, px


def resize_matrix(side: int, px: int, resize: GlanceResize) -> NDArray[np.float32]:
    """(px, side): resizing is linear, so that a column of pixels is resized by a product with this matrix."""
    if side == px:
        return np.eye(px, dtype=np.float32)
    with torch.inference_mode():
        matrix: NDArray[np.float32] = resized(torch.eye(side)[None, None], (px, side), resize)[0, 0].numpy()
    return matrix


def one_graph(files: Mapping[str, Path], settings: NetworkSettings) -> Any:
    """The ModelProto of all looks; files: {part: graph}."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise MissingExtra("onnx", "export") from None
    parts = {name: onnx.load(file) for name, file in files.items()}
    graph = _Composer(onnx, parts, settings).all_looks()
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
    """Puts the graphs of parts into one. Names of a part's tensors begin with the part's name, so that none clash."""

    def __init__(self, onnx: Any, parts: Mapping[str, Any], settings: NetworkSettings) -> None:
        self.onnx = onnx
        self.types = onnx.TensorProto
        self.parts = parts
        self.settings = settings

    @property
    def _uses_place(self) -> bool:
        return self.settings.policy.place or self.settings.classifier_place

    def all_looks(self) -> Any:
        types, settings, view = self.types, self.settings, self.settings.view
        units, placed = settings.policy.units, settings.policy.place
        before = ["no_policy_memory", *(["first_place"] if placed else [])]
        first, first_weights = self._first_view()
        after = ["last_policy_memory", *(["last_place"] if placed else [])]
        nodes, weights = self._part("glance", {"glances": "glances", "place": "first_place"})
        nodes = [
            *first,
            *nodes,
            self._node(LEAVING, "Shape", ["thresholds"], ["looks"]),
            self._node(LEAVING, "Sub", ["looks", "the_glance"], ["focus_looks"]),
            self._node(LEAVING, "Squeeze", ["focus_looks"], ["most"]),
            *self._unsure("glance/confidence", "none_yet", "unsure"),
            self._node(
                LEAVING,
                "Loop",
                ["most", "unsure", *(f"glance/{name}" for name in ("logits", "memory", "map")), *before],
                ["logits", "last_memory", "last_map", *after, "answers", "confidences", "where"],
                body=self._look(),
            ),
            self._node(LEAVING, "Identity", ["glance/answer"], ["answer"]),
            self._node(LEAVING, "Identity", ["glance/confidence"], ["confidence"]),
        ]
        weights += [
            self._constant("the_glance", [1], "int64"),
            self._constant("none_yet", 0, "int64"),
            self._constant("no_policy_memory", [[0.0] * units], "float32"),
            *([self._constant("whole_place", [WHOLE_PLACE], "float32")] if self._uses_place else []),
            *first_weights,
        ]
        inputs = [
            self._value("images", types.FLOAT, [1, 3, view.height_px, view.width_px]),
            self._value("thresholds", types.FLOAT, ["looks"]),
        ]
        one, each = [1], ["focused", 1]
        shapes: list[list[Any]] = [[1, "classes"], one, one, each, each, [*each, 2]]
        outputs = [
            self._value(name, types.INT64 if name.startswith("answer") else types.FLOAT, shape)
            for name, shape in zip(OUTPUTS, shapes, strict=True)
        ]
        return self.onnx.helper.make_graph(nodes, "looks", inputs, outputs, initializer=weights)

    def _first_view(self) -> tuple[list[Any], list[Any]]:
        """What the first look sees: the whole image resized, or the patch at the centre; and its place."""
        settings, view, px = self.settings, self.settings.view, self.settings.glance_px
        high, wide = view.height_px, view.width_px
        if settings.first_view == "glance":
            nodes = [  # rows x image x columns
                self._node(SHRINKING, "MatMul", ["images", "columns"], ["narrow"]),
                self._node(SHRINKING, "MatMul", ["rows", "narrow"], ["glances"]),
            ]
            weights = [
                self._constant("rows", resize_matrix(high, px, settings.glance_resize), "float32"),
                self._constant("columns", resize_matrix(wide, px, settings.glance_resize).T, "float32"),
            ]
            place = WHOLE_PLACE
        else:
            top, left = (high - px) // 2, (wide - px) // 2
            nodes = [self._node(CUTTING, "Slice", ["images", "first_start", "first_end", "first_hw"], ["glances"])]
            weights = [
                self._constant("first_start", [top, left], "int64"),
                self._constant("first_end", [top + px, left + px], "int64"),
                self._constant("first_hw", [2, 3], "int64"),
            ]
            place = np.array([0.5, 0.5, px / min(high, wide)], np.float32)
        placed = [self._constant("first_place", [place], "float32")] if self._uses_place else []
        return nodes, [*weights, *placed]

    def _look(self) -> Any:
        """The body of the loop: aim, cut the region out, look at it, and decide whether to go on."""
        types, remembered = self.types, self.settings.policy.place
        aim, aim_weights = self._aim()
        cut, cut_weights = self._region()
        placed, placed_weights = self._place()
        focus, focus_weights = self._focus()
        leave = [
            self._node(LEAVING, "Add", ["number", "one_more"], ["focused"]),
            *self._unsure("confidence_after", "focused", "go_on"),
        ]
        inputs = [
            self._value("number", types.INT64, []),
            self._value("still_unsure", types.BOOL, []),
            *(self._value(name, types.FLOAT) for name in ("logits_before", "memory", "map", "policy_memory")),
            *([self._value("place", types.FLOAT, [1, 3])] if remembered else []),
        ]
        outputs = [
            self._value("go_on", types.BOOL, []),
            *(self._value(name, types.FLOAT) for name in ("logits_after", "memory_after", "map_after")),
            self._value("policy_memory_after", types.FLOAT),
            *([self._value("place_after", types.FLOAT, [1, 3])] if remembered else []),
            self._value("answer_after", types.INT64, [1]),
            self._value("confidence_after", types.FLOAT, [1]),
            self._value("aimed_at", types.FLOAT, [1, 2]),
        ]
        return self.onnx.helper.make_graph(
            [*aim, *cut, *placed, *focus, *leave],
            "look",
            inputs,
            outputs,
            initializer=[
                *(*aim_weights, *cut_weights, *placed_weights, *focus_weights),
                self._constant("one_more", 1, "int64"),
            ],
        )

    def _region(self) -> tuple[list[Any], list[Any]]:
        """What the next look sees: the image or a square of it, resized unless it has the right size already."""
        (seen,), (high, wide) = self.settings.candidates, covered(self.settings)
        resizes = seen.is_whole or high != seen.px
        nodes, weights = ([], []) if seen.is_whole else self._square("square" if resizes else "patches")
        if resizes:
            nodes += [
                self._node(CUTTING, "MatMul", ["images" if seen.is_whole else "square", "region_columns"], ["slim"]),
                self._node(CUTTING, "MatMul", ["region_rows", "slim"], ["patches"]),
            ]
            weights += [
                self._constant("region_rows", resize_matrix(high, seen.px, seen.resize), "float32"),
                self._constant("region_columns", resize_matrix(wide, seen.px, seen.resize).T, "float32"),
            ]
        return nodes, weights

    def _square(self, result: str) -> tuple[list[Any], list[Any]]:
        """Cut a square out where the policy aims, like the network does: at floor(where x room), the product in float32."""
        view, (high, wide) = self.settings.view, covered(self.settings)
        nodes = [
            self._node(CUTTING, "Clip", ["aimed_at", "zero", "one"], ["share"]),
            self._node(CUTTING, "Mul", ["share", "room"], ["start_px"]),
            self._node(CUTTING, "Floor", ["start_px"], ["first_px"]),
            self._node(CUTTING, "Cast", ["first_px"], ["first"], to=self.types.INT64),
            self._node(CUTTING, "Reshape", ["first", "pair"], ["start"]),
            self._node(CUTTING, "Add", ["start", "region_hw"], ["end"]),
            self._node(CUTTING, "Slice", ["images", "start", "end", "hw"], [result]),
        ]
        weights = [
            self._constant("zero", 0, "float32"),
            self._constant("one", 1, "float32"),
            self._constant("pair", [2], "int64"),
            self._constant("hw", [2, 3], "int64"),
            self._constant("room", [view.height_px - high, view.width_px - wide], "float32"),
            self._constant("region_hw", [high, wide], "int64"),
        ]
        return nodes, weights

    def _place(self) -> tuple[list[Any], list[Any]]:
        """What the look covers, for the classifier and the next aim, like covered_place; nothing where neither uses it."""
        (seen,), view = self.settings.candidates, self.settings.view
        if not self._uses_place:
            return [], []
        share = seen.share_of(view.height_px, view.width_px)
        if share >= 1:
            return [self._node(CUTTING, "Identity", ["whole_place"], ["place_after"])], []
        node = self._node(CUTTING, "Concat", ["aimed_at", "covered_share"], ["place_after"], axis=1)
        return [node], [self._constant("covered_share", [[share]], "float32")]

    def _aim(self) -> tuple[list[Any], list[Any]]:
        """From the feature map of the glance first, then from that of the previous look; or the centre and the corners."""
        if self.settings.policy.kind == "centre_corner":
            return self._centre_or_corner()
        given = {name: name for name in ("map", "policy_memory", *(["place"] if self.settings.policy.place else []))}
        made = {"where": "aimed_at", "policy_memory_after": "policy_memory_after"}
        codes = [self.settings.code_of(each) for each in (GLANCE, 0)]
        if self.settings.looks == 2 or codes[0] == codes[1]:
            return self._part(aim_part(codes[0]), given | made)
        return self._chosen([aim_part(code) for code in codes], given, made)

    def _centre_or_corner(self) -> tuple[list[Any], list[Any]]:
        """One place after the other, round and round."""
        before = 1 if self.settings.first_view == "centre" else 0
        places = [*CENTRE_AND_CORNERS[before:], *CENTRE_AND_CORNERS[:before]]
        nodes = [
            self._node(CUTTING, "Mod", ["number", "places_count"], ["place_number"]),
            self._node(CUTTING, "Gather", ["rule_places", "place_number"], ["rule_place"]),
            self._node(CUTTING, "Unsqueeze", ["rule_place", "first_axis"], ["aimed_at"]),
            self._node(CUTTING, "Identity", ["policy_memory"], ["policy_memory_after"]),
        ]
        weights = [
            self._constant("places_count", len(places), "int64"),
            self._constant("rule_places", places, "float32"),
            self._constant("first_axis", [0], "int64"),
        ]
        return nodes, weights

    def _focus(self) -> tuple[list[Any], list[Any]]:
        answered = {"logits": "logits_after", "confidence": "confidence_after", "answer": "answer_after"}
        if self.settings.classifier != "cascaded":
            given = {"patches": "patches", "memory": "memory", "place": "place_after"}
            return self._part(
                focus_part(self.settings, 0), given | {"memory_after": "memory_after", "map": "map_after"} | answered
            )
        nodes, weights = self._part("focus", {"patches": "patches", "vector": "vector", "map": "map_after"})
        nodes.append(self._node("focus", "Concat", ["memory", "vector"], ["memory_after"], axis=1))
        answers = [answer_part(look) for look in range(2, self.settings.looks + 1)]
        more_nodes, more_weights = self._chosen(answers, {"memory": "memory_after"}, answered)
        return nodes + more_nodes, weights + more_weights

    def _unsure(self, confidence: str, number: str, result: str) -> list[Any]:
        """Whether the confidence is not above the threshold of the look of this number."""
        return [
            self._node(LEAVING, "Gather", ["thresholds", number], [f"{result}/threshold"]),
            self._node(LEAVING, "Greater", [confidence, f"{result}/threshold"], [f"{result}/sure"]),
            self._node(LEAVING, "Not", [f"{result}/sure"], [f"{result}/not_sure"]),
            self._node(LEAVING, "Squeeze", [f"{result}/not_sure"], [result]),
        ]

    def _chosen(
        self, names: Sequence[str], given: Mapping[str, str], made: Mapping[str, str], first: int = 0
    ) -> tuple[list[Any], list[Any]]:
        """One part for each round of the loop, counted from `first`; the last part serves all later rounds."""
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
        """The nodes and weights of a part; outside: {its input or output: name in the whole graph}."""

        def renamed(tensors: Iterable[str]) -> list[str]:
            return [tensor and outside.get(tensor, f"{name}/{tensor}") for tensor in tensors]

        nodes, weights = [], []
        for one in self.parts[name].graph.node:
            if any(attribute.HasField("g") for attribute in one.attribute):
                raise BadSetting(
                    f"the part {name!r} has a graph within its graph, which cannot be put into another one."
                )
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
        if "logits" in made and "confidence" not in made:  # exported graphs do not have this output
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
