// two outputs of other types than the input, and the workgroup's size by a specialization constant
#version 450
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const float LIMIT = 0.0;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Below { int below[]; };
layout(set = 0, binding = 2) writeonly buffer Twice { double twice[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= x.length()) return;
    below[i] = x[i] < LIMIT ? -1 : 1;
    twice[i] = double(x[i]) * 2.0LF;
}
