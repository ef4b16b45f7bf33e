"""Tiny models in the forms that other programs open: onnxruntime-genai, Optimum, Sentence Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, KV_HEADS, SIZE, LAYERS, TOKENS = 4, 2, 16, 2, 32
WIDTH = HEADS * SIZE


def write_model(folder: Path) -> None:
    """Write both files: layers of a projection and GroupQueryAttention, with the nodes around them that such models have."""
    rng = np.random.default_rng(1)
    info, node = helper.make_tensor_value_info, helper.make_node
    angle = np.outer(np.arange(256), 1 / 100.0 ** (np.arange(SIZE // 2) * 2 / SIZE))
    weights = {
        "cos": np.cos(angle).astype(np.float32),
        "sin": np.sin(angle).astype(np.float32),
        "table": rng.normal(0, 1, (TOKENS, WIDTH)).astype(np.float32),
        "head": rng.normal(0, 0.3, (WIDTH, TOKENS)).astype(np.float32),
        "one": np.array([1], np.int64),
        "axis": np.array([1], np.int64),
    }
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch", "length"]),
        info("attention_mask", TensorProto.INT64, ["batch", "total"]),
    ]
    outputs = [info("logits", TensorProto.FLOAT, ["batch", "length", TOKENS])]
    nodes = [
        node("ReduceSum", ["attention_mask", "axis"], ["seen"], keepdims=0),
        node("Sub", ["seen", "one"], ["last"]),
        node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        node("Shape", ["attention_mask"], ["mask_shape"]),
        node("Gather", ["mask_shape", "axis"], ["mask_length"]),
        node("Squeeze", ["mask_length"], ["mask_scalar"]),
        node("Cast", ["mask_scalar"], ["total"], to=TensorProto.INT32),
        node("Gather", ["table", "input_ids"], ["x0"]),
    ]
    for layer in range(LAYERS):
        weights[f"w{layer}"] = rng.normal(0, 0.12, (WIDTH, WIDTH + 2 * KV_HEADS * SIZE)).astype(np.float32)
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        inputs += [info(n, TensorProto.FLOAT, ["batch", KV_HEADS, "past", SIZE]) for n in past]
        outputs += [info(n, TensorProto.FLOAT, ["batch", KV_HEADS, "total", SIZE]) for n in present]
        nodes += [
            node("MatMul", [f"x{layer}", f"w{layer}"], [f"qkv{layer}"]),
            node(
                "GroupQueryAttention",
                [f"qkv{layer}", "", "", *past, "lengths", "total", "cos", "sin"],
                [f"y{layer}", *present],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
                do_rotary=1,
            ),
            node("Add", [f"x{layer}", f"y{layer}"], [f"x{layer + 1}"]),
        ]
    nodes.append(node("MatMul", [f"x{LAYERS}", "head"], ["logits"]))
    tensors = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")
    caches = {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
    results = {f"present_{part}_names": f"present.%d.{part}" for part in ("key", "value")}
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": SIZE,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **caches},
        "outputs": {"logits": "logits", **results},
    }
    model = {
        "type": "llama",
        "vocab_size": TOKENS,
        "context_length": 128,
        "bos_token_id": 1,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "decoder": decoder,
    }
    search = {"do_sample": False, "max_length": 64, "past_present_share_buffer": False}
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": search}))


def write_encoder(path: Path, *, classify: bool) -> None:
    """An encoder of tokens: ``logits`` of three classes, or ``last_hidden_state``."""
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
    if classify:
        weights["head"] = rng.normal(0, 1, (SIZE, 3)).astype(np.float32)
        nodes.append(node("ReduceMean", ["last_hidden_state"], ["pooled"], axes=[1], keepdims=0))
        nodes.append(node("MatMul", ["pooled", "head"], ["logits"]))
        outputs = [info("logits", TensorProto.FLOAT, ["batch", 3])]
    inputs = [info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")]
    tensors = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _bert(**more: object) -> str:
    config = {"model_type": "bert", "hidden_size": SIZE, "num_hidden_layers": 1, "num_attention_heads": 2}
    return json.dumps({**config, "vocab_size": TOKENS, "max_position_embeddings": 64, **more})


def write_classifier(folder: Path) -> None:
    """What Optimum opens: ``model.onnx`` and ``config.json``."""
    folder.mkdir()
    write_encoder(folder / "model.onnx", classify=True)
    (folder / "config.json").write_text(_bert(architectures=["BertForSequenceClassification"], num_labels=3))


def write_sentences(folder: Path) -> None:
    """What Sentence Transformers opens; it takes tokenizers and transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    (folder / "onnx").mkdir(parents=True)
    write_encoder(folder / "onnx" / "model.onnx", classify=False)
    (folder / "config.json").write_text(_bert(architectures=["BertModel"]))
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
