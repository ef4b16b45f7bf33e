"""Changes to a model when it is loaded for generation."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from vkep.generation.rewrite import CHOSEN, TOKENS, for_generation
from vkep.graph.load import load_model
from vkep.models.language import ARCHITECTURES, language_model


def test_only_the_last_token_is_multiplied_by_the_vocabulary(tmp_path: Path) -> None:
    language = ARCHITECTURES["gemma2"]  # its logits are capped behind the product
    onnx.save(language_model(language), tmp_path / "model.onnx")
    read = load_model(tmp_path / "model.onnx")
    made = for_generation(read, "logits", choose=True)
    by_output = {o: node for node in made.graph.nodes for o in node.outputs}
    head = next(n for n in made.graph.nodes if any("head" in i for i in n.inputs))
    last = by_output[head.inputs[0]]
    assert last.op_type == "Slice"
    assert {"SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"} & {by_output[last.inputs[0]].op_type}
    assert [o.name for o in made.graph.outputs if o not in read.graph.outputs] == ["logits", TOKENS, CHOSEN]
    assert next(o.shape for o in made.graph.outputs if o.name == "logits") == ("batch", 1, language.vocabulary)
    assert [n.index for n in made.graph.nodes] == list(range(len(made.graph.nodes)))
    assert made.file_identity not in ("", read.file_identity)  # plans of one do not serve the other


@pytest.mark.parametrize("op", ["Softmax", "Neg"])
def test_logits_that_no_product_gives_stay(op: str) -> None:
    model = language_model(ARCHITECTURES["llama"])
    last = next(n for n in model.graph.node if "logits" in n.output)
    last.output[0] = "before"
    model.graph.node.append(helper.make_node(op, ["before"], ["logits"]))
    read = load_model(model)
    assert for_generation(read, "logits").graph.outputs == read.graph.outputs


def test_windows_keep_no_rings() -> None:
    model = language_model(ARCHITECTURES["mistral"])
    grouped = [n for n in model.graph.node if n.op_type == "GroupQueryAttention"]
    grouped[0].attribute.append(helper.make_attribute("sliding_window_cache", 1))
    made = [n for n in for_generation(load_model(model), "logits").graph.nodes if n.op_type == "GroupQueryAttention"]
    assert [n.attributes.get("sliding_window_cache") for n in made] == [None, None]
    assert [n.attributes.get("local_window_size") for n in made] == [16, None]
