"""A page for a run: the model's graph, the timeline, memory and contexts in one HTML file."""

from vkep.view.page import Page, read_document

__all__ = ["Page", "read_document"]
