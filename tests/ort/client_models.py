"""A tiny model in the form that Sentence Transformers opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE, TOKENS = 16, 32


def write_encoder(path: Path) -> None:
    """An encoder of tokens: ``last_hidden_state``."""
    rng = np.random.default_rng(2)
    info, node = helper.make_tensor_value_info, helper.make_node
    weights: dict[str, np.ndarray[Any, Any]] = {
        "table": rng.normal(0, 1, (TOKENS, SIZE)).astype(np.float32),
        "k": rng.normal(0, 1, (SIZE, SIZE)).astype(np.float32),
        "last": np.array([2], np.int64),
    }
    nodes = [
        node("Gather", ["table", "input_ids"], ["e"]),
        node("MatMul", ["e", "k"], ["projected"]),
        node("Tanh", ["projected"], ["bounded"]),
        node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask", "last"], ["wide_mask"]),
        node("Mul", ["bounded", "wide_mask"], ["last_hidden_state"]),
    ]
    outputs = [info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", SIZE])]
    inputs = [info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")]
    tensors = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_sentences(folder: Path) -> None:
    """What Sentence Transformers opens; it takes tokenizers and transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    (folder / "onnx").mkdir(parents=True)
    write_encoder(folder / "onnx" / "model.onnx")
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": TOKENS, "hidden_size": SIZE}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    words = ["[PAD]", "[UNK]", "a", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_input_names": ["input_ids", "attention_mask"]}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names).save_pretrained(str(folder))
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
    entries = [
        {"idx": int(i), "name": i, "path": p, "type": f"sentence_transformers.models.{t}"} for i, p, t in modules
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": SIZE, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
