"""Every operator of the Vulkan backend's registry: imported, run by onnxruntime and on Vulkan, held to PyTorch's results."""

from __future__ import annotations

import pytest

from gpu_shared.context import SharedGpuContext
from tests.aten import blobs
from tests.aten.all_cases import CASES
from tests.aten.stored import DROPPED, NO_CALL, REGISTRY, expected_of, read_stored
from tests.aten.values import Array, Case
from vkep import InferenceSession
from vkep.aten import aten, find, import_vk_graph, unsupported_operators
from vkep.aten.registry import AtenDeclarationError


@pytest.fixture(scope="module")
def stored() -> dict[str, Array]:
    return read_stored()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_an_operator_gives_pytorchs_results(
    case: Case, stored: dict[str, Array], shared_context: SharedGpuContext
) -> None:
    expected = expected_of(case, stored)
    blob = blobs.blob_of(case, expected)
    graph = blob.graph()
    assert unsupported_operators(graph) == []
    imported = import_vk_graph(graph, blob.data)
    proto = blobs.model_proto(imported.model)
    types = blobs.recorded_types(blob)
    feeds = {**blob.feeds, **{state.input: state.initial.array() for state in imported.states}}
    blobs.assert_close(blobs.by_onnxruntime(proto, feeds), expected, case.tolerance, types)
    with InferenceSession(proto, context=shared_context, fallback="error") as session:
        blobs.assert_close(session.run(None, feeds), expected, max(case.tolerance, 2e-5), types)


def test_every_case_has_a_name_of_its_own() -> None:
    names = [c.id for c in CASES]
    assert sorted(names) == sorted(set(names))


def test_every_operator_of_the_registry_is_declared() -> None:
    assert [name for name in REGISTRY if find(name) is None] == sorted(NO_CALL)


@pytest.mark.parametrize(
    ("written", "declared"),
    [
        ("sdpa_with_kv_cache.default", "llama.sdpa_with_kv_cache.default"),  # as a blob has it
        ("llama::update_cache", "llama.update_cache.default"),  # as the registry has it
        ("sym_size.int", "aten.sym_size.int"),
        ("<built-in function add>", "add"),
        ("add", "add"),
        ("", None),
        ("nothing.default", None),
    ],
)
def test_an_operator_is_found_by_every_name_that_is_written(written: str, declared: str | None) -> None:
    operator = find(written)
    assert (operator and operator.name) == declared


def test_a_declaration_is_checked() -> None:
    with pytest.raises(AtenDeclarationError, match=r"aten.relu.default is declared twice"):
        aten("aten.relu.default")(lambda b, x: x)
    with pytest.raises(AtenDeclarationError, match="mutates \\['y'\\], which are no parameters"):
        aten("test.operator.default", mutates=("y",))(lambda b, x: x)


def test_every_operator_of_the_registry_has_a_case() -> None:
    tested = {operator.name for c in CASES if (operator := find(c.name))}
    named = {operator.name for name in set(REGISTRY) - NO_CALL - DROPPED if (operator := find(name))}
    assert named - tested == set()
    assert len(REGISTRY) == 157
