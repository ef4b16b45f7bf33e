"""The Hypothesis strategy of networks."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tools.fuzz.networks import blocks, movement, steps
from tools.fuzz.networks.blocks import BLOCKS
from tools.fuzz.networks.graph import Draw, Graph, Network
from tools.fuzz.networks.movement import MOVEMENTS
from tools.fuzz.networks.quantized import QUANTIZED
from tools.fuzz.networks.sequences import SEQUENCES
from tools.fuzz.networks.steps import OPERATORS, Step

#: nodes from which no step is added
_MOST_NODES = 30
#: steps on images of whole vectors of channels, which convolutions read and write with channels last
_IMAGES: tuple[Step, ...] = (
    steps.conv, steps.pool, steps.resize, steps.channel_norm, steps.global_pool, steps.reduction, steps.binary, steps.unary,
    movement.concat, movement.split, blocks.side_by_side, blocks.group_norm, blocks.residual, blocks.pyramid, blocks.decoder,
)  # fmt: skip
_GROUPS = (OPERATORS, BLOCKS, MOVEMENTS, SEQUENCES, QUANTIZED, OPERATORS)


@st.composite
def _step(draw: Draw, g: Graph, groups: Sequence[Sequence[Step]]) -> None:
    if g.size < _MOST_NODES:
        group = draw(st.sampled_from(groups))
        g.step(draw(st.sampled_from(group)))


@st.composite
def networks(draw: Draw, kind: str = "float32", symbolic: bool = False) -> Network:
    """Networks of up to about 40 nodes. ``kind``: float32, float16 or mixed. ``symbolic``: some sizes of inputs are symbols,
    and the second run has others."""
    images = draw(st.integers(0, 3)) == 3
    g = Graph(draw, kind, symbolic, wide=images)
    forms = ["image", "sequence", "signal", "vector", "volume"][: 1 if images else None]
    for form in draw(st.lists(st.sampled_from(forms), min_size=1, max_size=2)):
        g.input(form)
    draw(st.lists(_step(g, (_IMAGES,) if images else _GROUPS), min_size=2, max_size=14))
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
