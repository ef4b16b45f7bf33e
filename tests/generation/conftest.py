"""Tiny language models, opened once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_shared import DeviceInfo
from tests import pipelines
from tests.generation.reference import Reference
from vkep.generation import Generator
from vkep.models.language import ARCHITECTURES, OPTIMUM, write_language
from vkep.session.contexts import resolve_context
from vkep.session.session import options_of


@pytest.fixture(scope="module", autouse=True)
def context_of_generators(vulkan: DeviceInfo) -> Iterator[None]:
    """It stays from one generator to the next, with its pipelines."""
    with resolve_context(options_of()) as context:
        pipelines.keep(context)
        yield
        pipelines.drop(context)


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose caches are rows of buffers, and one whose caches grow."""
    path = tmp_path_factory.mktemp("language") / str(request.param)
    write_language(path, request.param, context=96, layers=1)
    return path


@pytest.fixture(scope="module")
def generator(folder: Path) -> Iterator[Generator]:
    with Generator(folder, fallback="error") as opened:
        yield opened


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Reference:
    language = ARCHITECTURES[folder.name]
    heads = language.heads if folder.name in OPTIMUM else language.kv_heads
    return Reference(folder / "model.onnx", heads, language.size)
