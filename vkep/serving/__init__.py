"""Models and language models as a service: the Open Inference protocol (KServe v2) and OpenAI's API, in one process or on Ray.

See docs/serving.md. ``pip install vkep[serve]``; a service on Ray is in `vkep.ray`.
"""
