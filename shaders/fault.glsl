// Included after vkep.glsl by kernels whose data (indices, lengths, divisors) may break the operator's specification.
// The operand `fault` is the run's fault word, or absent (a zero address: faults are not checked); `fault_code`
// identifies the node and the reason.
//     note_fault(operand(args.fault, 3), args.fault_code);
// The first fault of a run is kept, since later ones may follow from it. A kernel goes on after a fault, so it must clamp the
// value that caused it.
#ifndef VKEP_FAULT_GLSL
#define VKEP_FAULT_GLSL
layout(buffer_reference, std430, buffer_reference_align = 4) buffer FaultWord { uint code; };

void note_fault(uvec2 address, uint code) {
    if (address != uvec2(0u)) atomicCompSwap(FaultWord(address).code, 0u, code);
}
#endif
