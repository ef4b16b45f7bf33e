"""The table of com.microsoft's operators in docs/operators.md."""

from __future__ import annotations

import json

import onnxruntime
import pytest

from tools.backend_suite import contrib, contrib_schemas


def test_the_page_has_the_table() -> None:
    page = contrib.PATH.read_text()
    assert contrib.section() in page, "python -m tools.backend_suite.contrib --write"
    assert contrib.replaced(page) == page


def test_each_operator_has_a_kernel_or_a_reason() -> None:
    kernels, ours = set(json.loads(contrib.KERNELS.read_text())["kernels"]), set(contrib.declared())
    assert len(kernels) > 100
    assert kernels - ours == set(contrib.REASONS)
    assert not ours & set(contrib.REASONS)


@pytest.mark.skipif(
    json.loads(contrib.KERNELS.read_text())["version"] != onnxruntime.__version__, reason="another version's schemas"
)
def test_each_difference_to_a_schema_has_a_reason() -> None:
    assert not contrib_schemas.unexplained()


def test_the_tables_of_sources_are_read(tmp_path: object) -> None:
    from pathlib import Path

    root = Path(str(tmp_path))
    lines = {
        "cpu": "BuildKernelCreateInfo<ONNX_OPERATOR_TYPED_KERNEL_CLASS_NAME(kCpuExecutionProvider, kMSDomain, 1, float, CDist)>,",
        "cuda": "BuildKernelCreateInfo<CUDA_MS_OP_CLASS_NAME(1, GroupNorm)>, BuildKernelCreateInfo<CUDA_X(kOnnxDomain, 1, Gelu)>",
        "webgpu": "BuildKernelCreateInfo<class ONNX_OPERATOR_KERNEL_CLASS_NAME(kWebGpu, kMSDomain, 1, BiasAdd)>,",
    }
    for name, text in lines.items():
        table = root / f"onnxruntime/contrib_ops/{name}/{name}_contrib_kernels.cc"
        table.parent.mkdir(parents=True)
        table.write_text(text)
    found = contrib.read(root)
    assert found["GroupNorm"] == ["CUDA"]
    assert found["BiasAdd"] == ["WebGPU"]
    assert "CUDA" not in found["Gelu"]
    assert found["CDist"] == ["CPU"]
