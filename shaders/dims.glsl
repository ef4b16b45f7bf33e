// Up to eight dimensions as named scalars of the argument block, read into a local array: RANK (a spec constant of the
// kernel) says how many are in use, so that loops over them unroll.
#ifndef VKEP_DIMS_GLSL
#define VKEP_DIMS_GLSL
#define FIELDS8(P) uint P##0; uint P##1; uint P##2; uint P##3; uint P##4; uint P##5; uint P##6; uint P##7;
#define FIELDS8_INT(P) int P##0; int P##1; int P##2; int P##3; int P##4; int P##5; int P##6; int P##7;
#define READ8(P) uint[8](args.P##0, args.P##1, args.P##2, args.P##3, args.P##4, args.P##5, args.P##6, args.P##7)
#define READ8_INT(P) int[8](args.P##0, args.P##1, args.P##2, args.P##3, args.P##4, args.P##5, args.P##6, args.P##7)

// The coordinates of a flat index: dims and magic numbers for division by each (dimension 0 needs no division).
#define COORDINATES(RANK, INDEX, DIMS, MULS, SHIFTS, OUT) \
    { \
        uint rest_ = (INDEX); \
        [[unroll]] for (int d_ = int(RANK) - 1; d_ > 0; --d_) \
            rest_ = fast_divmod(rest_, DIMS[d_], MULS[d_], SHIFTS[d_], OUT[d_]); \
        OUT[0] = rest_; \
    }
#endif
