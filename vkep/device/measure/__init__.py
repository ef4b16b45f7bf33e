"""Measuring a device without a session, for ``vkep explain --time``, ``vkep bench`` and the benchmarks: kernel calls on
separate buffers, their times, and the best rates that the device reaches. Runs of models do not use it.
"""
