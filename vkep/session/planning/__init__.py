"""Plans of a session's graphs: made, kept for the sizes that occur, saved, and measured."""
