#!/usr/bin/env bash
# Installs each given wheel or sdist into a virtual environment of its own, without extras, and runs a model with it, away from
# the checkout. Needs a Vulkan driver (tools/setup.sh --system).
#
#   tools/check_package.sh dist/*.whl dist/*.tar.gz
set -euo pipefail
if (($# == 0)); then
    sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
for file in "$@"; do
    package=$(readlink -f "$file")
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "${PYTHON:-python3}" -m venv "$folder/environment"
    "$folder/environment/bin/python" -m pip install --disable-pip-version-check -q "$package"
    (
        cd "$folder"
        export VKEP_CACHE_DIR="$folder/cache"
        unset PYTHONPATH
        environment/bin/vkep --version
        environment/bin/vkep devices
        environment/bin/python - <<'PYTHON'
import numpy as np, onnx.parser, vkep

model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] a, float[3, 4] b) => (float[2, 4] y) { m = MatMul(a, b) y = Relu(m) }'
)
a, b = np.arange(6, dtype=np.float32).reshape(2, 3) - 2, np.ones((3, 4), np.float32)
with vkep.InferenceSession(model, fallback="error") as session:
    (y,) = session.run(None, {"a": a, "b": b})
np.testing.assert_allclose(y, np.maximum(a @ b, 0), rtol=1e-6)
print("a model runs, and its result is right")
PYTHON
    )
    echo "check_package: $(basename "$package") works"
    rm -rf "$folder"
done
