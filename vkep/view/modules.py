"""The module of a model's source program that a node comes from, as exporters write it into ONNX files."""

from __future__ import annotations

import ast
from collections.abc import Mapping

#: key of `onnx.NodeProto.metadata_props` in files of torch.onnx with ``dynamo=True``: a list's text, from the whole model
#: ("") to the node, each with the names before it: ``['', 'encoder', 'encoder.layers.0', 'addmm']``
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
_LONGEST = 4096


def module_of(name: str, metadata: Mapping[str, str]) -> str:
    """The names of the modules around a node, from the outermost on, joined by "/"; empty where the file has none.

    They are in the node's metadata (torch.onnx with ``dynamo=True``), or in its name before the last "/" (torch.onnx's
    older exporter, tf2onnx, Keras: ``/encoder/layers.0/MatMul``).
    """
    scopes = _scopes(metadata.get(NAME_SCOPES, ""))
    if scopes:
        outer = ["", *scopes]
        return "/".join(one.removeprefix(f"{before}.") for before, one in zip(outer, scopes, strict=False))
    return "/".join(part for part in name.split("/")[:-1] if part)


def _scopes(text: str) -> list[str]:
    """The modules of `NAME_SCOPES`: without the whole model and the node itself."""
    if not text or len(text) > _LONGEST:
        return []
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return []
    return [one for one in found[:-1] if one]
