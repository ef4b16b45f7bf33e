"""``python -m tools.bench.scale``: rates of vkep on Ray, a campaign of kills, and a capacity plan from the rates."""
