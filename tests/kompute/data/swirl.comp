// what users of kp write: storage buffers of set 0, one workgroup an element, constants as push constants
#version 450
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer W { float w[]; };
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Push { float gain; uint period; } push;
void main() {
    uint i = gl_GlobalInvocationID.x;
    y[i] = push.gain * x[i] + w[i % push.period];
}
