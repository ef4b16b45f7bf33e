"""The same context as the VGF tests."""

from tests.vgf.conftest import bench, graph_context

__all__ = ["bench", "graph_context"]
