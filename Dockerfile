# An image with vkep and Mesa's Vulkan drivers (AMD, Intel, CPU), from a wheel in dist/: docs/guides/docker.md.
# tests/packaging/test_docker.py runs the steps without Docker.
FROM python:3.12-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends libvulkan1 mesa-vulkan-drivers && rm -rf /var/lib/apt/lists/*
COPY dist/vkep-*.whl /wheels/
RUN pip install --no-cache-dir "$(ls /wheels/vkep-*.whl)[cpu]"
RUN useradd --create-home vkep && install -d -m 700 -o vkep -g vkep /var/cache/vkep
USER vkep
ENV NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility VKEP_CACHE_DIR=/var/cache/vkep
VOLUME /var/cache/vkep
ENTRYPOINT ["vkep"]
CMD ["doctor"]
