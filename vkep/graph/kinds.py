"""What a file is that is not an ONNX model: the most frequent wrong downloads and formats, by their first bytes."""

from __future__ import annotations

_HTML = (b"<!doctype html", b"<html", b"<head", b"<?xml")
#: first bytes, from an offset on, and what the file is
_SIGNATURES = (
    (0, b"version https://git-lfs.github.com/", "a pointer of Git LFS, not the file itself: `git lfs pull` fetches it"),
    (0, b"PK\x03\x04", "a ZIP archive, as torch.save writes (export the model to ONNX) or one to unpack"),
    (0, b"\x1f\x8b", "compressed by gzip: unpack it"),
    (0, b"\xfd7zXZ\0", "compressed by xz: unpack it"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it"),
    (0, b"\x89HDF\r\n", "an HDF5 file, as Keras writes: export the model to ONNX"),
    (0, b"GGUF", "a GGUF file: export the model to ONNX"),
    (0, b"\x80\x02", "a pickle, as torch.save writes: export the model to ONNX"),
    (4, b"TFL3", "a TensorFlow Lite model: export the model to ONNX"),
    (4, b"ET12", "an ExecuTorch program: vkep.executorch runs it"),
    (8, b'{"', "a safetensors file: export the model to ONNX"),
)


def other_kind(start: bytes) -> str:
    """What a file is that begins so and can be no ONNX model; empty where that is not known."""
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:16].lower().startswith(_HTML):
        return "an HTML page or XML text: the download failed, or needs a login"
    found = (
        kind for offset, sign, kind in _SIGNATURES if start[offset:].startswith(sign) and _ends_number(start, offset)
    )
    return next(found, "")


def _ends_number(start: bytes, offset: int) -> bool:
    """Whether the bytes before a signature may end a small little-endian number. A model's ``producer_name``, which is there
    too, has no byte of 0."""
    return not offset or start[offset - 1] == 0
