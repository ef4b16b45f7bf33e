"""`SizedPlans` without a device: which signatures are planned and which share a plan. Executables only note their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.dtypes import DTYPES
from vkep.errors import InvalidInputError
from vkep.graph.weights import ArrayWeight, SizesWeight
from vkep.ir.infer import Known
from vkep.ir.program import DeferredStep, HostValue, NoValue, Over, Program, ValueSpec
from vkep.session.execution.executor import Executable
from vkep.session.planning.planned_graph import _kind
from vkep.session.planning.sized_plans import Opened, Signatures, SizedPlans, numbers_of, with_sizes
from vkep.sizes import Size, Trace, divides, fixed


class Texts(NamedTuple):
    """An array of strings."""

    shape: tuple[int, ...]


class Made(Executable):
    """Stands for an executable of a program that was lowered with these inputs."""

    def __init__(self, known: Mapping[str, Known], trace: Trace | None) -> None:
        super().__init__(Program((), {}, (), (), trace.holds() if trace is not None else None), ())
        self.known, self.trace, self.closed, self.prepared = dict(known), trace, False, False

    def at(self, sizes: Sequence[int]) -> Made:
        made = Made(self.known, self.trace)
        made.sizes = list(sizes)
        return made

    def prepare(self) -> Made:
        self.prepared = True
        return self

    def close(self) -> None:
        self.closed = True


class Maker:
    """Makes `Made`s, and lets a test decide on their inputs as lowering does."""

    def __init__(self, lower: Callable[[Mapping[str, Any]], object] = lambda known: None) -> None:
        self.lower, self.made = lower, list[Made]()

    def __call__(self, known: Mapping[str, Known], *, trace: Trace | None = None, over: Over = ()) -> Made:
        self.lower(known)
        self.made.append(Made(known, trace))
        return self.made[-1]

    @property
    def kinds(self) -> list[str]:
        return ["alone" if made.trace is None else "sizes" for made in self.made]


def plans(maker: Maker, limit: int = 8) -> SizedPlans:
    weight = ArrayWeight("w", np.ones(3, np.float32))
    return SizedPlans(maker, {"w": weight}, limit)


def shape(*dims: int) -> ValueSpec:
    return ValueSpec(DTYPES["float32"], dims)


def run(graph: SizedPlans, *dims: int, **more: Known) -> Any:
    return graph.executable({"x": shape(*dims), **more})


def test_the_second_signature_makes_what_moved_a_size_and_later_ones_take_their_numbers() -> None:
    maker = Maker()
    graph = plans(maker)
    assert run(graph, 2, 8).sizes is None
    assert run(graph, 3, 8).sizes == [3] and run(graph, 7, 8).sizes == [7]
    assert maker.kinds == ["alone", "sizes"] and graph.count == 1
    spec = maker.made[1].known["x"]
    assert isinstance(spec, ValueSpec)
    sizes: tuple[object, ...] = spec.shape
    assert isinstance(sizes[0], Size) and sizes[1:] == (8,)
    assert isinstance(maker.made[1].known["w"], ArrayWeight)
    assert run(graph, 3, 9).sizes == [3, 9]  # the other dimension moves too
    assert maker.kinds == ["alone", "sizes", "sizes"]


def test_dimensions_that_were_always_the_same_are_one_size() -> None:
    maker = Maker()
    graph = plans(maker)
    for n in (4, 6, 9):
        made = run(graph, n, 5, n)
    assert made.sizes == [9] and maker.kinds == ["alone", "sizes"]
    assert run(graph, 6, 5, 7).sizes == [6, 7]
    assert run(graph, 11, 5, 8).sizes == [11, 8] and graph.count == 2


def test_dimensions_that_the_model_leaves_open_are_sizes_too_once_another_one_is() -> None:
    opened = Opened({("x", 0): "n", ("x", 1): "m", ("y", 0): "m"})

    def made(maker: Maker, *sizes: int) -> list[Any]:
        graph = SizedPlans(maker, {}, 8, opened)
        signatures = [(4, 5, 5, sizes[0]), (6, 5, 5, sizes[1]), (6, 9, 9, sizes[1])]
        return [graph.executable({"x": shape(n, m, k), "y": shape(p)}).sizes for n, m, p, k in signatures]

    maker = Maker()
    assert made(maker, 3, 3) == [None, [6, 5], [6, 9]]  # two places of the name "m" are one size

    def needs_m(known: Mapping[str, Any]) -> None:
        if known["x"].shape[1].__class__ is Size:
            raise InvalidInputError("m is a size")

    maker = Maker(needs_m)
    assert made(maker, 3, 3)[:2] == [None, [6]] and maker.kinds[:2] == ["alone", "sizes"]


def test_other_kinds_and_the_first_sizes_of_0_and_1_are_planned_alone() -> None:
    maker = Maker()
    graph = plans(maker)
    for dims in ((4,), (1,), (0,), (4, 4)):
        assert run(graph, *dims).sizes is None
    assert run(graph, 5).sizes == [5] and run(graph, 1).sizes == [1] and run(graph, 0).sizes is None


def test_a_plan_serves_what_meets_its_conditions() -> None:
    maker = Maker(lambda known: known["x"].shape[0] > 10)
    graph = plans(maker)
    run(graph, 4)
    assert run(graph, 8).sizes == [8] and run(graph, 10).sizes == [10] and graph.count == 1
    assert run(graph, 11).sizes == [11] and graph.count == 2
    assert run(graph, 9).sizes == [9] and run(graph, 12).sizes == [12] and graph.count == 2


def test_a_size_whose_value_lowering_needs_is_none_from_then_on() -> None:
    maker = Maker(lambda known: fixed(known["x"].shape[1], "why"))
    graph = plans(maker)
    run(graph, 4, 5)
    assert run(graph, 6, 7).sizes == [6, 7] and run(graph, 9, 7).sizes == [9, 7]
    assert run(graph, 9, 8).sizes == [9] and graph.count == 2
    maker.lower = lambda known: [fixed(n, "why") for n in known["x"].shape]
    other = plans(maker)
    run(other, 4)
    assert run(other, 6).sizes is None and other.count == 0
    made = len(maker.made)
    assert not maker.made[-2].prepared and run(other, 7).sizes is None and len(maker.made) == made + 1


def test_code_that_takes_a_size_for_a_plain_number_keeps_it_fixed() -> None:
    graph = plans(Maker(lambda known: [*range(known["x"].shape[1])]))
    run(graph, 4, 5)
    assert run(graph, 6, 7).sizes == [6] and run(graph, 9, 7).sizes == [9] and graph.count == 1
    assert run(graph, 8, 8).sizes == [8] and run(graph, 3, 8).sizes == [3] and graph.count == 2


def test_models_that_lowering_with_sizes_fails_on_get_a_plan_of_their_own() -> None:
    def lower(known: Mapping[str, Any]) -> None:
        if not isinstance(known["x"].shape[0], int):
            raise TypeError("plain numbers only")

    maker = Maker(lower)
    graph = plans(maker)
    assert [run(graph, n).sizes for n in (2, 3, 4)] == [None] * 3 and maker.kinds == ["alone"] * 3


def test_wrong_inputs_are_reported_for_their_signature_only() -> None:
    def lower(known: Mapping[str, Any]) -> None:
        if known["x"].shape[0] > 5:
            raise InvalidInputError(f"got {known['x'].shape[0]}")

    graph = plans(Maker(lower))
    run(graph, 2)
    with pytest.raises(InvalidInputError, match=r"got 7$"):
        run(graph, 7)
    assert run(graph, 3).sizes == [3]


def test_sizes_far_from_a_plans_own_get_another_until_there_are_many() -> None:
    graph = plans(Maker(), limit=4)
    run(graph, 4)
    run(graph, 5)
    assert run(graph, 79).sizes == [79] and graph.count == 1
    assert run(graph, 400).sizes == [400] and graph.count == 2
    assert run(graph, 90000).sizes == [90000] and graph.count == 2


def test_numbers_that_divide_sizes_decide_between_two_plans() -> None:
    def lower(known: Mapping[str, Any]) -> None:
        n, m = known["x"].shape
        _ = divides(4, n), divides(4, m), divides(4, 3 * n + m), divides(8, n * m + 4)

    # what does not divide the first sizes is not chosen for the second ones
    for first, count in (((4, 20), 2), ((5, 7), 1)):
        graph = plans(Maker(lower))
        run(graph, *first)
        assert run(graph, 8, 12).sizes == [8, 12] and run(graph, 12, 16).sizes == [12, 16] and graph.count == 1
        for n in range(4, 20):
            for m in range(4, 20):
                assert run(graph, n, m).sizes == [n, m]
        assert graph.count == count


@pytest.mark.parametrize(
    ("first", "then", "chosen"), [((24, 18), (12, 8), 0), ((16, 8), (8, 24), 1), ((96, 64), (64, 32), 1)]
)
def test_a_product_that_is_divisible_by_chance_is_no_reason_for_a_choice(
    first: tuple[int, int], then: tuple[int, int], chosen: int
) -> None:
    """A product of halves; 4 divides it for both signatures, and for all sizes of their steps in the last cases only."""
    found: list[bool] = []

    def lower(known: Mapping[str, Any]) -> None:
        n, m = known["x"].shape
        found.append(divides(4, (n // 2) * (m // 2)))

    graph = plans(Maker(lower))
    run(graph, *first)
    run(graph, *then)
    assert found == [True, bool(chosen)] and graph.count == 1
    run(graph, 6, 6)
    assert graph.count == 1 + chosen


def test_a_quotient_that_is_divisible_by_chance_is_no_reason_for_a_choice() -> None:
    def lower(known: Mapping[str, Any]) -> None:
        n, _ = known["x"].shape
        _ = divides(4, n // 100)

    graph = plans(Maker(lower))
    for n in (417, 820, 501, 1600, 700):
        run(graph, n, 2)
    assert graph.count == 1


def test_memory_that_has_room_for_more_is_a_size_from_the_start() -> None:
    def past(n: int, capacity: int) -> ValueSpec:
        return ValueSpec(DTYPES["float32"], (3, n), (3, capacity))

    def lower(known: Mapping[str, Any]) -> None:
        n, capacity = known["x"].shape[1], known["x"].capacity[1]
        if n == capacity:  # it lies densely, which is another plan
            fixed(n, "why")

    graph = plans(Maker(lower))

    def run(n: int, capacity: int) -> Any:
        return graph.executable({"x": past(n, capacity)})

    assert run(2, 64).sizes is None
    assert run(3, 64).sizes == [3, 64] and run(7, 4096).sizes == [7, 4096] and graph.count == 1
    run(16, 16)
    assert run(9, 32).sizes == [9, 32]
    assert run(120, 128).sizes == [120, 128] and run(130, 140).sizes == [130, 140]  # no number became fixed


def test_contents_of_few_numbers_are_sizes() -> None:
    maker = Maker()
    graph = plans(maker)

    def length(n: int, *rest: int) -> ArrayWeight:
        return ArrayWeight("n", np.array([n, *rest]))

    assert run(graph, 4, n=length(7, -1)).sizes is None
    assert run(graph, 4, n=length(9, -1)).sizes == [9] and run(graph, 4, n=length(12, -1)).sizes == [12]
    known = maker.made[1].known["n"]
    assert isinstance(known, SizesWeight) and known.array()[1] == -1
    assert run(graph, 4, n=length(12, -2)).sizes == [12, 2] and run(graph, 4, n=length(14, -5)).sizes == [14, 5]
    assert graph.count == 2  # 1 and -1 are no sizes
    many = ArrayWeight("n", np.arange(17))
    assert numbers_of({"n": many}).values == ()
    assert with_sizes({"n": many}, {})["n"] is many


def test_closing_closes_the_plans_with_sizes() -> None:
    maker = Maker()
    graph = plans(maker)
    run(graph, 2)
    run(graph, 3)
    graph.close()
    assert not maker.made[0].closed and maker.made[1].closed and graph.count == 0


def test_the_numbers_of_a_signature_follow_from_those_of_the_one_before() -> None:
    dims, arrays = st.lists(st.integers(0, 5), max_size=3), st.lists(st.integers(-1, 5), max_size=3)
    spec = st.one_of(
        st.builds(ValueSpec, st.just(DTYPES["float32"]), dims.map(tuple)),
        st.builds(lambda d: ValueSpec(DTYPES["int64"], tuple(d), tuple([n + n % 2 for n in d])), dims),
        st.builds(lambda numbers: ArrayWeight("n", np.array(numbers, np.int64)), arrays),
        st.just(NoValue()),
        st.builds(lambda d: Texts(tuple(d)), dims),
    )

    def mark(known: Any) -> object:
        if isinstance(known, ArrayWeight):
            return known.array().tobytes()
        if isinstance(known, Texts):
            return (np.dtype(object), known.shape)
        return _kind(known) if isinstance(known, ValueSpec) else known

    @given(st.lists(st.tuples(st.lists(spec, min_size=2, max_size=4), st.booleans()), min_size=2, max_size=5))
    def check(runs: list[tuple[list[Known], bool]]) -> None:
        signatures = Signatures()
        for given_inputs, in_place in runs:
            inputs = {f"x{k}": known for k, known in enumerate(given_inputs)}
            marks = tuple(map(mark, given_inputs))
            inputs = {name: HostValue("object") if isinstance(k, Texts) else k for name, k in inputs.items()}
            over = (("y", "x0"),) if in_place else ()
            found, expected = (
                signatures.numbers(marks, tuple(inputs), inputs.__getitem__, over),
                numbers_of(inputs, over),
            )
            assert (found.kinds, tuple(found.values), found.growing) == expected[:3]

    check()


def test_a_program_that_waits_for_values_is_lowered_once() -> None:
    """Sizes that are known to differ are tried first; where the plan with them is not kept, the program is prepared as it is."""

    class Waits(Maker):
        def __call__(self, *args: Any, **kwargs: Any) -> Made:
            made = super().__call__(*args, **kwargs)
            made.program = Program((DeferredStep((), (), (), (), {}),), {}, ())  # under no conditions
            return made

    maker = Waits()
    assert run(SizedPlans(maker, {}, 8, Opened({("x", 0): "n"})), 3).sizes is None
    assert maker.kinds == ["alone", "sizes"] and [made.prepared for made in maker.made] == [True, False]
