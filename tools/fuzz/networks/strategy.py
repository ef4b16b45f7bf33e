"""The Hypothesis strategy of networks."""

from __future__ import annotations

from hypothesis import strategies as st

from tools.fuzz.networks.blocks import BLOCKS
from tools.fuzz.networks.graph import Draw, Graph, Network
from tools.fuzz.networks.movement import MOVEMENTS
from tools.fuzz.networks.sequences import SEQUENCES
from tools.fuzz.networks.steps import OPERATORS, Step

#: nodes from which no step is added
_MOST_NODES = 30
_GROUPS = (OPERATORS, BLOCKS, MOVEMENTS, SEQUENCES, OPERATORS)


@st.composite
def _step(draw: Draw, g: Graph) -> None:
    if g.size < _MOST_NODES:
        group = draw(st.sampled_from(_GROUPS))
        g.step(draw(st.sampled_from(group)))


@st.composite
def networks(draw: Draw, kind: str = "float32", symbolic: bool = False) -> Network:
    """Networks of up to about 40 nodes. ``kind``: float32, float16 or mixed. ``symbolic``: some sizes of inputs are symbols,
    and the second run has others."""
    g = Graph(draw, kind, symbolic)
    for form in draw(
        st.lists(st.sampled_from(["image", "sequence", "signal", "vector", "volume"]), min_size=1, max_size=2)
    ):
        g.input(form)
    draw(st.lists(_step(g), min_size=2, max_size=14))
    if not g.size:
        g.step(lambda g: g.add("Relu", g.pool[0]))
    return g.network()


@st.composite
def alone(draw: Draw, step: Step, kind: str = "float32") -> Network:
    """Up to four nodes, or structures, of one kind; often one reads another."""
    g = Graph(draw, kind, False)
    for _ in range(draw(st.integers(1, 4))):
        g.step(step)
    if not g.size:
        g.step(lambda g: g.add("Relu", g.pick(form="vector")))
    return g.network()
