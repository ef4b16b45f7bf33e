// Declares `args`, the argument block whose members ARGS_BODY lists: in push constants or, with ARGS_IN_MEMORY, behind a
// pointer. ARGS_BODY is defined before the include.
#ifdef ARGS_IN_MEMORY
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer ArgsBlock ARGS_BODY;
layout(push_constant, std430) uniform Push { ArgsBlock args; };
#else
layout(push_constant, std430) uniform Push ARGS_BODY args;
#endif
