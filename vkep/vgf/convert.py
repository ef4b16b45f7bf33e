"""TOSA to VGF, by the ML SDK's model converter (the package ai-ml-sdk-model-converter)."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import subprocess
import tempfile
from pathlib import Path

from vkep.cache import CacheFolder, cache_folder
from vkep.errors import VkepError

_PROJECT = "ai-ml-sdk-model-converter"
_LONGEST_MESSAGE = 2000
#: bytes on disk; a file contains its graph's constants
CACHE_LIMIT = 1 << 30
_FLATBUFFER_MARK = b"TOSA"


class ConvertError(VkepError):
    """The converter is missing, or refuses the model; the text is the converter's."""


@functools.cache
def converter() -> Path:
    """The converter's executable. Raises `ConvertError` where it is not installed."""
    try:
        spec = importlib.util.find_spec("model_converter")
    except (ImportError, ValueError) as error:
        raise ConvertError(f"looking for the package {_PROJECT}: {error}") from error
    if spec is None or not spec.submodule_search_locations:
        raise ConvertError(f"TOSA to VGF needs the package {_PROJECT}: pip install 'vkep[vgf]'")
    folder = Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(folder.rglob("model-converter*")):
        if path.is_file() and path.suffix in ("", ".exe"):
            return path
    raise ConvertError(f"the package {_PROJECT} in {folder} has no executable for this platform")


@functools.cache
def converter_version() -> str:
    """The converter's version text. Raises `ConvertError`."""
    return _run(["--version"]).decode("utf-8", "replace").strip()


class VgfCache(CacheFolder):
    """Converted files by a digest of their source; in vkep's cache folder, ``vgf/``."""

    what, suffix = "VGF", ".sealed-vgf"

    def __init__(self, folder: Path | None = None, limit: int = CACHE_LIMIT) -> None:
        super().__init__(cache_folder("vgf") if folder is None else folder, limit)


def mlir_to_vgf(source: str | bytes, *, options: tuple[str, ...] = (), cache: VgfCache | None = None) -> bytes:
    """A VGF file from TOSA 1.0 (MLIR text or bytecode, or a TOSA flatbuffer).

    A file that the same version of the converter has converted before is loaded from the disk (``cache``; None: the
    user's). Raises `ConvertError` with the converter's message for source that it does not accept.
    """
    converter()  # a missing converter is an error, whatever the cache contains
    cache = VgfCache() if cache is None else cache
    digest = hashlib.sha256(f"vkep vgf 1\0{_package_version()}\0{options}\0".encode())
    digest.update(source.encode() if isinstance(source, str) else source)
    key = digest.hexdigest()
    kept = cache.load(key)
    if kept is not None:
        return bytes(kept)
    made = _convert(source, options)
    cache.store(key, made)
    return made


@functools.cache
def _package_version() -> str:
    try:
        return importlib.metadata.version(_PROJECT)
    except importlib.metadata.PackageNotFoundError:  # its files without its metadata
        return converter_version()


def mlir_to_flatbuffer(source: str | bytes) -> bytes:
    """A TOSA flatbuffer from MLIR, for the TOSA reference model. Raises `ConvertError`."""
    return _convert(source, ("--tosa-flatbuffer",))


def _convert(source: str | bytes, options: tuple[str, ...]) -> bytes:
    data = source.encode() if isinstance(source, str) else source
    with tempfile.TemporaryDirectory(prefix="vkep-vgf-") as folder:
        # the converter distinguishes a flatbuffer from MLIR by the file's suffix
        source_path = Path(folder) / ("in.tosa" if data[4:8] == _FLATBUFFER_MARK else "in.mlir")
        target = Path(folder) / "out"
        source_path.write_bytes(data)
        _run(["--input", str(source_path), "--output", str(target), *options])
        if not target.is_file():
            raise ConvertError("the model converter ended without an error and without a file")
        return target.read_bytes()


def _run(arguments: list[str]) -> bytes:
    path = converter()
    try:
        result = subprocess.run([str(path), *arguments], capture_output=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConvertError(f"{path} cannot be run: {error}") from error
    if result.returncode:
        said = (result.stderr or result.stdout).decode("utf-8", "replace").strip()
        raise ConvertError(f"the model converter failed ({result.returncode}): {said[:_LONGEST_MESSAGE]}")
    return result.stdout
