"""Inputs that break an operator's specification, drawn by the thousand, and memory that no kernel leaves unseen."""
