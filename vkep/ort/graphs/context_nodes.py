"""EPContext nodes: a compiled model is an ONNX model whose islands are such nodes, with their data inside or beside
it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkep.errors import InvalidModelError, UnsupportedModelError
from vkep.files import read_file
from vkep.graph.model import Node
from vkep.ort.boundary import NULL, ffi
from vkep.ort.names import EP_NAME

if TYPE_CHECKING:
    from vkep.ort.api import Ort

OP_TYPE, DOMAIN = "EPContext", "com.microsoft"
_INT, _STRING = 1, 5  # OrtOpAttrType


@dataclass(frozen=True)
class ContextSettings:
    """The settings in a session's ``ep.context_*`` entries."""

    enabled: bool = False
    embed: bool = False
    path: str = ""  #: of the compiled model

    @classmethod
    def from_entries(cls, entries: Mapping[str, str]) -> ContextSettings:
        """Read the session's configuration entries."""
        return cls(
            entries.get("ep.context_enable", "0") == "1",
            entries.get("ep.context_embed_mode", "0") == "1",
            entries.get("ep.context_file_path", ""),
        )

    def data_file(self, model_path: str, name: str) -> Path:
        """The path for the data of one island, beside the compiled model. Raises `UnsupportedModelError` where the
        model will not be a file."""
        path = self.path or (model_path.removesuffix(".onnx") + "_ctx.onnx" if model_path else "")
        if not path:
            raise UnsupportedModelError(
                "compiling a model given as bytes needs a place for the data: set ep.context_file_path, or embed it "
                "(ep.context_embed_mode = 1)"
            )
        return Path(path).parent / f"{Path(path).stem}_{name}.vkep"


def is_context(node: Node) -> bool:
    """Whether a node is an EPContext of vkep's."""
    return node.op_type == OP_TYPE and node.domain == DOMAIN and node.attributes.get("source") == EP_NAME


def read_data(node: Node, folder: Path | None) -> bytes:
    """The data of an EPContext node. Raises `InvalidModelError` where it is not found."""
    text = str(node.attributes.get("ep_cache_context", ""))
    if node.attributes.get("embed_mode", 1):
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:
            raise InvalidModelError(f"{node.title}: the embedded data is damaged ({error})") from error
    if folder is None:
        raise InvalidModelError(f"{node.title}: the data is in the file {text!r}; open the model by its path")
    try:
        path = (folder / text).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # no path, or a circle of links
        raise InvalidModelError(f"{node.title}: the data's file {text!r} is no path: {error}") from error
    if not path.is_relative_to(folder.resolve()):
        raise InvalidModelError(f"{node.title}: the data's file {text!r} is not beside the model (in {folder})")
    return read_file(path, f"data file of {node.title}", InvalidModelError)


def data_place(node: Node) -> str:
    """Where the data of an EPContext node is stored, for messages."""
    embedded = node.attributes.get("embed_mode", 1)
    return node.title if embedded else f"{node.title}, file {str(node.attributes.get('ep_cache_context', ''))!r}"


def make_node(
    ort: Ort,
    settings: ContextSettings,
    model_path: str,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    data: bytes,
    info: str,
) -> Any:
    """Create an OrtNode (ONNX Runtime owns it) for one island; writes its data file unless the data is embedded."""
    if settings.embed:
        stored = base64.b64encode(data)
    else:
        path = settings.data_file(model_path, name)
        path.write_bytes(data)
        stored = path.name.encode()
    editor, api = ort.api.GetModelEditorApi(), ort.api
    attributes = [
        _attribute(ort, "main_context", 1),
        _attribute(ort, "embed_mode", int(settings.embed)),
        _attribute(ort, "ep_cache_context", stored),
        _attribute(ort, "source", EP_NAME.encode()),
        _attribute(ort, "partition_name", name.encode()),
        _attribute(ort, "ep_sdk_version", info.encode()),
    ]
    try:
        texts = [[ffi.new("char[]", n.encode()) for n in names] for names in (inputs, outputs)]
        arrays = [ffi.new("char const *[]", t) for t in texts]
        out = ffi.new("OrtNode **")
        ort.check(
            editor.CreateNode(
                OP_TYPE.encode(),
                DOMAIN.encode(),
                name.encode(),
                arrays[0],
                len(inputs),
                arrays[1],
                len(outputs),
                ffi.new("OrtOpAttr *[]", attributes),
                len(attributes),
                out,
            )
        )
    except BaseException:
        for attribute in attributes:
            api.ReleaseOpAttr(attribute)
        raise
    return out[0]


def _attribute(ort: Ort, name: str, content: int | bytes) -> Any:
    if isinstance(content, int):
        data, length, kind = ffi.new("int64_t *", content), 1, _INT
    else:
        data, length, kind = ffi.new("char[]", content), len(content), _STRING
    made = ort.get(ort.api.CreateOpAttr, "OrtOpAttr *", name.encode(), data, length, kind)
    assert made != NULL
    return made
