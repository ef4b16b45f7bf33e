"""The reader of ONNX Runtime's C++ operator tests, on a checkout of two files that this test writes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tools.ort_suite import judge, packed, results
from tools.ort_suite.__main__ import compare, read_cases
from tools.ort_suite.cases import Case
from tools.ort_suite.judge import Verdict
from tools.ort_suite.record import record
from tools.ort_suite.sources import blocks, flatten, root_of_tests, without

ROOT = Path(__file__).resolve().parents[2]

HEADER = """#pragma once
#include "core/framework/tensor.h"
namespace onnxruntime { namespace test {
template <typename T> std::vector<T> Doubled(const std::vector<T>& v) {
  std::vector<T> out;
  for (const T& x : v) out.push_back(static_cast<T>(x + x));
  return out;
}
} }
"""

TESTS = """#include "gtest/gtest.h"
#include "test/common/doubled.h"
#include "test/providers/provider_test_utils.h"
namespace onnxruntime {
namespace test {
// a brace in a comment: {
TEST(Adds, Halves) {
  OpTester test("Add", 14);
  test.AddInput<MLFloat16>("A", {2}, {MLFloat16(1.5f), MLFloat16(2.f)});
  test.AddInput<MLFloat16>("B", {2}, {MLFloat16(1.5f), MLFloat16(2.f)}, true);
  test.AddOutput<MLFloat16>("C", {2}, {MLFloat16(3.f), MLFloat16(4.f)});
  test.Run();
}
template <typename T> class Typed : public ::testing::Test {};
using Kinds = ::testing::Types<float, int32_t>;
TYPED_TEST_SUITE(Typed, Kinds);
TYPED_TEST(Typed, Doubles) {
  std::vector<TypeParam> v{1, 2, 3};
  for (int64_t opset : {7, 14}) {
    OpTester test("Add", static_cast<int>(opset));
    test.AddInput<TypeParam>("A", {3}, v);
    test.AddInput<TypeParam>("B", {3}, v);
    test.AddOutput<TypeParam>("C", {3}, Doubled(v));
    test.Run();
  }
}
static void Leaky(float alpha, BaseTester::ExpectResult expect, float wanted) {
  OpTester test("LeakyRelu", 16);
  test.AddAttribute("alpha", alpha);
  test.AddInput<float>("X", {1, 2}, {-1.f, std::numeric_limits<float>::infinity()});
  test.AddOutput<float>("Y", {1, 2}, {wanted, std::numeric_limits<float>::infinity()});
  test.Run(expect, "");
}
TEST(Relus, Leaky) { Leaky(0.25f, OpTester::ExpectResult::kExpectSuccess, -0.25f); }
TEST(Relus, Misread) { Leaky(0.25f, OpTester::ExpectResult::kExpectSuccess, 5.f); }
TEST(Shapes, Fail) {
  OpTester test("MatMul", 13);
  test.AddInput<float>("A", {2, 3}, {1, 2, 3, 4, 5, 6});
  test.AddInput<float>("B", {2, 3}, {1, 2, 3, 4, 5, 6});
  test.AddOutput<float>("Y", {2, 3}, {1, 2, 3, 4, 5, 6});
  test.Run(OpTester::ExpectResult::kExpectFailure, "dimension mismatch");
}
TEST(Strange, NeedsMore) {
  InferenceSession session;
  session.Run();
}
TEST(Strange, Crashes) {
  OpTester test("Abs", 13);
  test.AddInput<float>("X", {1}, {-1.f});
  test.AddOutput<float>("Y", {1}, {1.f});
  test.Run();
  auto fetches = test.GetFetches();
  ASSERT_EQ(fetches[0].Get<Tensor>().Data<float>()[0], 1.f);
  test.Run();
}
}
}
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name, text in (("common/doubled.h", HEADER), ("providers/cpu/math/adds_test.cc", TESTS)):
        path = folder / "onnxruntime" / "test" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_file_is_one_text_in_blocks(checkout: Path) -> None:
    root = root_of_tests(checkout)
    text = flatten(root / "providers/cpu/math/adds_test.cc", root)
    assert "Doubled(const" in text and "gtest" not in text and "core/framework" not in text
    parts = blocks(text)
    assert sum(p.is_test for p in parts) == 7
    halves = next(p for p in parts if p.is_test)
    assert text[halves.start : halves.end].startswith("TEST(Adds, Halves)") and text[halves.end - 1] == "}"
    rest = without(text, [halves])
    assert "Halves" not in rest and rest.count("\n") == text.count("\n") and "class Typed" in rest
    with pytest.raises(FileNotFoundError, match="a checkout of ONNX Runtime's sources"):
        root_of_tests(checkout / "onnxruntime" / "test" / "providers")


@pytest.fixture(scope="module")
def cases(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("needs a C++ compiler")
    cache = tmp_path_factory.mktemp("cache")
    found = read_cases(checkout, cache, 1)
    kept = record(checkout / "onnxruntime/test/providers/cpu/math/adds_test.cc", checkout, cache)
    assert kept.left_out == ("TEST(Strange, NeedsMore) {: 'InferenceSession' was not declared in this scope",)
    assert kept.ended_early == ("Strange.Crashes threw",)
    (checkout / "cache").write_text(str(cache))
    return {c.name.partition(":")[2]: c for c in found}


@pytest.mark.parametrize("end", ["exit(127)", "abort()"])
def test_tests_that_do_not_start(cases: dict[str, Case], checkout: Path, tmp_path: Path, end: str) -> None:
    path = tmp_path / "onnxruntime" / "test" / "providers" / "cpu" / "ends_test.cc"
    path.parent.mkdir(parents=True)
    path.write_text(f"static const int ends = (std::{end}, 0);\nTEST(Adds, Never) {{}}\n")
    cache = Path((checkout / "cache").read_text())
    if end == "abort()":
        assert record(path, tmp_path, cache).ended_early == ("the tests after these: ended by signal 6",)
    else:
        with pytest.raises(RuntimeError, match="the tests do not start, status 127"):
            record(path, tmp_path, cache)


def test_the_parts_of_a_test(cases: dict[str, Case]) -> None:
    assert set(cases) == {
        "Adds.Halves#0",
        *(f"Typed/{k}.Doubles#{n}" for k in (0, 1) for n in (0, 1)),
        "Relus.Leaky#0",
        "Relus.Misread#0",
        "Shapes.Fail#0",
        "Strange.Crashes#0",
    }
    halves = cases["Adds.Halves#0"]
    assert halves.operator == "Add" and not halves.must_fail
    assert halves.text == "opset 14 (float16[2], float16[2] weight)"
    np.testing.assert_array_equal(halves.feeds()["in0"], np.array([1.5, 2], np.float16))
    assert [t.name for t in halves.model().graph.initializer] == ["in1"]
    doubled = cases["Typed/1.Doubles#1"]
    assert doubled.record["opset"] == 14
    np.testing.assert_array_equal(doubled.expected()["out0"], np.array([2, 4, 6], np.int32))
    leaky = cases["Relus.Leaky#0"]
    assert [(a.name, a.f) for a in leaky.model().graph.node[0].attribute] == [("alpha", 0.25)]
    assert leaky.difference({"out0": np.array([[-0.25, np.inf]], np.float32)}) == ""
    assert "expected -0.25" in leaky.difference({"out0": np.array([[-0.26, np.inf]], np.float32)})
    assert cases["Shapes.Fail#0"].must_fail


def test_verdicts(cases: dict[str, Case], checkout: Path, vulkan: None) -> None:
    by_name = {name: judge.on_cpu_provider(case).verdict for name, case in cases.items()}
    assert by_name.pop("Relus.Misread#0") == judge.MISREAD
    assert by_name.pop("Shapes.Fail#0") == judge.FAILS
    assert set(by_name.values()) == {judge.RIGHT}
    assert judge.on_vkep(cases["Adds.Halves#0"]).verdict == judge.VULKAN
    assert judge.on_vkep(cases["Shapes.Fail#0"]).verdict == judge.REFUSED
    assert judge.on_vkep(cases["Relus.Misread#0"]).verdict == judge.WRONG

    out, cache = checkout / "results.json", (checkout / "cache").read_text()
    command = [sys.executable, "-m", "tools.ort_suite", str(checkout), "--cache", cache, "--match", "Relus|Shapes"]
    done = subprocess.run([*command, "--json", str(out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 files, 7 tests: 9 cases read; 1 tests left out" in done.stdout and "1 misread" in done.stdout
    results = json.loads(out.read_text())
    assert [(v["operator"], v["verdict"]) for v in results] == [("LeakyRelu", "vulkan"), ("MatMul", "refused")]


def test_comparison_with_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = tmp_path / "before.json"
    before = {"a": judge.WRONG, "b": judge.VULKAN, "c": judge.RAN, "d": judge.DECLINED}
    baseline.write_text(json.dumps([{"name": n, "verdict": v} for n, v in before.items()]))
    now = [Verdict(n, "Op", v) for n, v in (("a", judge.VULKAN), ("b", judge.VULKAN), ("c", judge.REFUSED))]
    assert compare(now, baseline) == 0
    assert "0 worse, 2 better" in capsys.readouterr().out
    assert compare([*now, Verdict("d", "Op", judge.WRONG, "why")], baseline) == 1
    assert "WORSE Op d: declined, now wrong: why\n1 worse, 2 better" in capsys.readouterr().out


def test_counts_that_are_kept_by_operator(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    texts = "Tile: input 'x' has an element type that no kernel takes"
    first = [
        Verdict("a", "Tile", "vulkan"),
        Verdict("b", "Tile", "cpu", texts),
        Verdict("c", "Abs", "wrong", "output 0: 1"),
    ]
    results.keep(results.CASES, [*first, Verdict("d", "Abs", "refused", must_fail=True)], path)
    results.keep(results.CASES, [Verdict("c", "Abs", "vulkan")], path)  # a later run of one operator
    text = results.section(path)
    assert "| C++ cases | 3 | 100.0% | 66.7% | 2 | 1 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| C++ cases that must fail | 1 | 100.0% |  | 0 | 0 | 1 | 0 | 0 | 0 | 0 |" in text
    assert "| Tile | 2 | 1 | texts (1) |" in text
    assert "| Abs |" not in text


def test_cases_in_one_file(cases: dict[str, Case], tmp_path: Path) -> None:
    path = tmp_path / "cases.xz"
    assert packed.write(cases.values(), path) == len(cases) and packed.is_packed(path)
    again = {c.name.partition(":")[2]: c for c in packed.read(path)}
    assert {name: case.digest for name, case in again.items()} == {name: case.digest for name, case in cases.items()}


def test_another_devices_counts_have_rows_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.keep(results.CASES, [Verdict("a", "Tile", "vulkan")], path)
    here = [Verdict("a", "Tile", "wrong"), Verdict("d", "Abs", "refused", must_fail=True)]
    results.keep(results.CASES, here, path, device="a GPU")
    text = results.section(path)
    assert "| C++ cases | 1 | 100.0% | 100.0% | 1 |" in text and "| C++ cases, on a GPU | 1 | 0.0% |" in text
    assert "| C++ cases that must fail, on a GPU | 1 | 100.0% |  |" in text


def test_the_page_has_the_counts() -> None:
    page = results.PAGE.read_text()
    assert results.replaced(page) == page, "python -m tools.ort_suite FOLDER --write"
