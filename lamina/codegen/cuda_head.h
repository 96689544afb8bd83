// The head of every text in CUDA C++. NVRTC compiles it without any other header.
//
// CUDA's own vectors have no operators. So a vector is a structure whose operators work lane by
// lane. The compiler keeps the lanes in registers, and loads an aligned vector of 16 bytes at once.

typedef unsigned char U8;
typedef unsigned short U16;
typedef unsigned int U32;
typedef unsigned long long U64;
typedef signed char S8;
typedef short S16;
typedef int S32;
typedef long long S64;

#define INLINE static __device__ __forceinline__
#define EACH_LANE _Pragma("unroll") for (int k = 0; k < N; ++k)

template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
    typedef T Element;
    static const int count = N;
    T lanes[N];
};

// A vector of one number in all lanes, or of one for each lane.
template <typename V, typename T>
INLINE V vector(T number) {
    const int N = V::count;
    V made;
    EACH_LANE made.lanes[k] = (typename V::Element)number;
    return made;
}
template <typename V, typename T, typename... Others>
INLINE V vector(T first, Others... others) {
    return V{{(typename V::Element)first, (typename V::Element)others...}};
}

// Operators

#define OPERATOR(operation)                                                     \
    template <typename T, int N>                                                \
    INLINE Vector<T, N> operator operation(Vector<T, N> a, Vector<T, N> b) {    \
        EACH_LANE a.lanes[k] = (T)(a.lanes[k] operation b.lanes[k]);            \
        return a;                                                               \
    }
OPERATOR(+)
OPERATOR(-)
OPERATOR(*)
OPERATOR(/)
OPERATOR(%)
OPERATOR(&)
OPERATOR(|)
OPERATOR(^)
OPERATOR(<<)
OPERATOR(>>)

template <typename T, int N>
INLINE Vector<T, N> operator-(Vector<T, N> a) {
    EACH_LANE a.lanes[k] = -a.lanes[k];
    return a;
}
template <typename T, int N>
INLINE Vector<T, N> operator&(Vector<T, N> a, int number) {
    return a & vector<Vector<T, N>>(number);
}

// The integers of as many bytes as a lane has: all bits are set if a comparison holds.
template <int bytes> struct Mask;
template <> struct Mask<1> { typedef S8 Integer; };
template <> struct Mask<2> { typedef S16 Integer; };
template <> struct Mask<4> { typedef S32 Integer; };
template <> struct Mask<8> { typedef S64 Integer; };
template <typename T, int N>
using MaskOf = Vector<typename Mask<sizeof(T)>::Integer, N>;

#define COMPARISON(relation)                                                    \
    template <typename T, int N>                                                \
    INLINE MaskOf<T, N> operator relation(Vector<T, N> a, Vector<T, N> b) {     \
        MaskOf<T, N> made;                                                      \
        EACH_LANE made.lanes[k] = a.lanes[k] relation b.lanes[k] ? -1 : 0;      \
        return made;                                                            \
    }
COMPARISON(==)
COMPARISON(!=)
COMPARISON(<)
COMPARISON(<=)
COMPARISON(>)
COMPARISON(>=)

template <typename T, int N>
INLINE MaskOf<T, N> operator!=(Vector<T, N> a, int number) {
    return a != vector<Vector<T, N>>(number);
}
template <typename M, typename T, int N>
INLINE Vector<T, N> selected(Vector<M, N> mask, Vector<T, N> yes, Vector<T, N> no) {
    EACH_LANE yes.lanes[k] = mask.lanes[k] ? yes.lanes[k] : no.lanes[k];
    return yes;
}

// Conversions

template <typename To, typename From>
INLINE To bits(From value) {
    To made;
    memcpy(&made, &value, sizeof(To));
    return made;
}
// Registers have 32 bits. NVRTC makes a jump of `?` between structures.
template <typename T, int N>
INLINE Vector<T, N> selected(bool condition, Vector<T, N> yes, Vector<T, N> no) {
    if constexpr (sizeof(T) < 4 && sizeof(T) * N >= 4) {
        typedef Vector<U32, sizeof(T) * N / 4> Words;
        return bits<Vector<T, N>>(selected(condition, bits<Words>(yes), bits<Words>(no)));
    }
    EACH_LANE yes.lanes[k] = condition ? yes.lanes[k] : no.lanes[k];
    return yes;
}
template <typename V, typename T, int N>
INLINE V converted(Vector<T, N> value) {
    V made;
    EACH_LANE made.lanes[k] = (typename V::Element)value.lanes[k];
    return made;
}
// Conversions of floats beyond the integers are undefined, and avoided.
template <typename To, typename T>
INLINE To nearest(T value, To least, To most, T low, T high) {
    return value >= high ? most : value > low ? (To)value : least;
}
template <typename V, typename T, int N, typename I>
INLINE V nearest(Vector<T, N> value, I least, I most, T low, T high) {
    typedef typename V::Element To;
    V made;
    EACH_LANE made.lanes[k] = nearest<To, T>(value.lanes[k], (To)least, (To)most, low, high);
    return made;
}

// The beginning of a kernel

// A kernel may be launched before the one before it has ended (PTX ISA, griddepcontrol). It waits for
// the end, which implies the end of all earlier ones, because the one before it has waited too. The
// next kernel is launched when all groups of this one have begun.
INLINE void await_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// Warps of all their 32 items

template <int distance, typename T>
INLINE T of_later_item(T value) {
    const int N = sizeof(T) / 4;
    Vector<U32, N> words = bits<Vector<U32, N>>(value);
    EACH_LANE asm volatile("shfl.sync.down.b32 %0, %0, %1, 31, 0xffffffff;"
                           : "+r"(words.lanes[k])
                           : "n"(distance));
    return bits<T>(words);
}

// Vectors that are aligned like one element

template <typename T, int N>
INLINE Vector<T, N> loaded(const T *address) {
    Vector<T, N> made;
    EACH_LANE made.lanes[k] = address[k];
    return made;
}
template <typename T, int N>
INLINE void stored(Vector<T, N> value, T *address) {
    EACH_LANE address[k] = value.lanes[k];
}

// Functions that CUDA has for scalars

#define FUNCTION(name)                                                          \
    template <typename T, int N>                                                \
    INLINE Vector<T, N> name(Vector<T, N> a) {                                  \
        EACH_LANE a.lanes[k] = name(a.lanes[k]);                                \
        return a;                                                               \
    }
FUNCTION(fabs)
FUNCTION(sqrt)

template <typename T, int N>
INLINE Vector<T, N> copysign(Vector<T, N> a, Vector<T, N> b) {
    EACH_LANE a.lanes[k] = copysign(a.lanes[k], b.lanes[k]);
    return a;
}
template <typename T, int N>
INLINE Vector<T, N> fma(Vector<T, N> a, Vector<T, N> b, Vector<T, N> c) {
    EACH_LANE a.lanes[k] = fma(a.lanes[k], b.lanes[k], c.lanes[k]);
    return a;
}

// float16 and bfloat16, whose bits are a U16

INLINE float from_half(U16 bits) {
    float made;
    asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(bits));
    return made;
}
INLINE U16 to_half(float value) {
    U16 made;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made) : "f"(value));
    return made;
}
template <int N>
INLINE Vector<float, N> from_half(Vector<U16, N> a) {
    Vector<float, N> made;
    EACH_LANE made.lanes[k] = from_half(a.lanes[k]);
    return made;
}
#if __CUDA_ARCH__ >= 800
INLINE U16 to_bfloat16(float value) {
    U16 made;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(made) : "f"(value));
    return made;
}
// Two floats in one instruction.
#define ROUNDING(name, type)                                                    \
    template <int N>                                                            \
    INLINE Vector<U16, N> name(Vector<float, N> a) {                            \
        Vector<U32, N / 2> pairs;                                               \
        _Pragma("unroll") for (int k = 0; k < N; k += 2)                        \
            asm("cvt.rn." type ".f32 %0, %1, %2;"                               \
                : "=r"(pairs.lanes[k / 2])                                      \
                : "f"(a.lanes[k + 1]), "f"(a.lanes[k]));                        \
        return bits<Vector<U16, N>>(pairs);                                     \
    }
ROUNDING(to_half, "f16x2")
ROUNDING(to_bfloat16, "bf16x2")
#else
template <int N>
INLINE Vector<U16, N> to_half(Vector<float, N> a) {
    Vector<U16, N> made;
    EACH_LANE made.lanes[k] = to_half(a.lanes[k]);
    return made;
}
#endif
template <char operation>
INLINE U16 half_operation(U16 a, U16 b) {
    U16 made;
    if constexpr (operation == '+') asm("add.rn.f16 %0, %1, %2;" : "=h"(made) : "h"(a), "h"(b));
    if constexpr (operation == '-') asm("sub.rn.f16 %0, %1, %2;" : "=h"(made) : "h"(a), "h"(b));
    if constexpr (operation == '*') asm("mul.rn.f16 %0, %1, %2;" : "=h"(made) : "h"(a), "h"(b));
    return made;
}
template <char operation, int N>
INLINE Vector<U16, N> half_operation(Vector<U16, N> a, Vector<U16, N> b) {
    EACH_LANE a.lanes[k] = half_operation<operation>(a.lanes[k], b.lanes[k]);
    return a;
}

// Matrices of warps (PTX ISA, "Warp-level matrix instructions" and "Data movement and conversion
// instructions: cp.async"). Which devices have an instruction is known when a kernel is written.
//
// A matrix of eight rows of 16 bytes is held by a warp: each item has 32 bits, two neighbours of 16
// bits or one element of TF32. Item `4 r + c` has word `c` of row `r`.

// The shared memory that a launch adds to the kernel's arrays, aligned for warpgroups.
extern __shared__ __align__(1024) U8 launched_memory[];

INLINE U32 in_shared(const void *address) { return (U32)__cvta_generic_to_shared(address); }

// Loads four such matrices from local memory. Items 8 i to 8 i + 7 give the addresses of the rows of
// matrix i, which are aligned to 16 bytes.
INLINE Vector<U32, 4> load_matrices(const U8 *row) {
    Vector<U32, 4> made;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(made.lanes[0]), "=r"(made.lanes[1]), "=r"(made.lanes[2]),
                   "=r"(made.lanes[3])
                 : "r"(in_shared(row))
                 : "memory");
    return made;
}
// The same; the matrices are transposed.
INLINE Vector<U32, 4> load_matrices_transposed(const U8 *row) {
    Vector<U32, 4> made;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(made.lanes[0]), "=r"(made.lanes[1]), "=r"(made.lanes[2]),
                   "=r"(made.lanes[3])
                 : "r"(in_shared(row))
                 : "memory");
    return made;
}

// Adds a product to 16 x 8 floats; K is 16, or 8 for TF32. The left operand is in four words (rows 0
// to 7 of the first half of K, rows 8 to 15 of it, then the same for the last half of K), the right
// one, transposed, in two. The sums are two neighbours of rows 0 to 7, and of rows 8 to 15.
#define SUMS "+f"(c.lanes[0]), "+f"(c.lanes[1]), "+f"(c.lanes[2]), "+f"(c.lanes[3])

#if __CUDA_ARCH__ >= 800
INLINE Vector<float, 4> multiply_bfloat16(Vector<U32, 4> a, U32 low, U32 high,
                                          Vector<float, 4> c) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : SUMS
        : "r"(a.lanes[0]), "r"(a.lanes[1]), "r"(a.lanes[2]), "r"(a.lanes[3]), "r"(low), "r"(high));
    return c;
}
INLINE Vector<float, 4> multiply_float16(Vector<U32, 4> a, U32 low, U32 high,
                                         Vector<float, 4> c) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : SUMS
        : "r"(a.lanes[0]), "r"(a.lanes[1]), "r"(a.lanes[2]), "r"(a.lanes[3]), "r"(low), "r"(high));
    return c;
}
INLINE Vector<float, 4> multiply_tf32(Vector<U32, 4> a, U32 low, U32 high, Vector<float, 4> c) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : SUMS
        : "r"(a.lanes[0]), "r"(a.lanes[1]), "r"(a.lanes[2]), "r"(a.lanes[3]), "r"(low), "r"(high));
    return c;
}
// Begins to copy 16 bytes from a buffer to local memory. Outside of bounds they become zero.
INLINE void copy_async(U8 *target, const U8 *source, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(in_shared(target)), "l"(__cvta_generic_to_global(source)),
                   "r"(inside ? 16 : 0)
                 : "memory");
}
// Ends a batch of copies.
INLINE void commit_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// Waits for all batches but the last ones.
template <int number>
INLINE void await_copies() { asm volatile("cp.async.wait_group %0;" : : "n"(number) : "memory"); }
#else
// K is 8 in this instruction.
INLINE Vector<float, 4> multiply_float16(Vector<U32, 4> a, U32 low, U32 high,
                                         Vector<float, 4> c) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : SUMS
        : "r"(a.lanes[0]), "r"(a.lanes[1]), "r"(low));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : SUMS
        : "r"(a.lanes[2]), "r"(a.lanes[3]), "r"(high));
    return c;
}
#endif

// Matrices of warpgroups, of four warps (PTX ISA, "Asynchronous warpgroup level matrix
// instructions"). Only sm_90a has them.
//
// A tile in local memory is one of K and m, or of K and n. It consists of panels that begin at
// multiples of 1024 bytes, one after the other. A row of a panel has 128 bytes, which are neighbours
// along K, or along m or n; rows are neighbours along the other axis. Chunk c of 16 bytes of row r is
// at chunk c xor (r mod 8) of the row. A descriptor says where 64 of m, or all n, and a few of K
// begin; beyond an address by some bytes, it is larger by a sixteenth of them.

// The registers of sums in asm, and the sums.
#define NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
    "%30, %31"
#define NAMES_64 NAMES_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, " \
    "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
    "%59, %60, %61, %62, %63"
#define NAMES_128 NAMES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, " \
    "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, " \
    "%91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
    "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, " \
    "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
    "%126, %127"
#define SUMS_4(k) "+f"(c.lanes[k]), "+f"(c.lanes[k + 1]), "+f"(c.lanes[k + 2]), "+f"(c.lanes[k + 3])
#define SUMS_16(k) SUMS_4(k), SUMS_4(k + 4), SUMS_4(k + 8), SUMS_4(k + 12)
#define SUMS_32 SUMS_16(0), SUMS_16(16)
#define SUMS_64 SUMS_32, SUMS_16(32), SUMS_16(48)
#define SUMS_128 SUMS_64, SUMS_16(64), SUMS_16(80), SUMS_16(96), SUMS_16(112)

// Begins to add a product of two tiles, given by their descriptors, to 64 x n floats; K is 16, or 8
// for TF32. Items have the sums of 16 x 8 as in `multiply_float16`, for one such 8 of n
// after the other: n / 2 floats. Rows run along m or n where an operand is `across`. It then counts as
// transposed; only tiles of 16 bits can be. Both operands are scaled by 1.
#define TILES_PRODUCT(n, kind, sums, operands)                                              \
    if constexpr (N == sums)                                                                \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n kind " {" NAMES_##sums "}, "    \
                     operands ";"                                                           \
                     : SUMS_##sums                                                          \
                     : "l"(a), "l"(b), "n"(left_across), "n"(right_across));
#define TILES_PRODUCTS(name, kind, across_64, across_128, across_256)                       \
    template <int left_across, int right_across, int N>                                     \
    INLINE Vector<float, N> multiply_tiles_##name(U64 a, U64 b, Vector<float, N> c) {       \
        TILES_PRODUCT(64, kind, 32, "%32, %33, 1, 1, 1" across_64)                          \
        TILES_PRODUCT(128, kind, 64, "%64, %65, 1, 1, 1" across_128)                        \
        TILES_PRODUCT(256, kind, 128, "%128, %129, 1, 1, 1" across_256)                     \
        return c;                                                                           \
    }
TILES_PRODUCTS(bfloat16, "k16.f32.bf16.bf16", ", %34, %35", ", %66, %67", ", %130, %131")
TILES_PRODUCTS(float16, "k16.f32.f16.f16", ", %34, %35", ", %66, %67", ", %130, %131")
TILES_PRODUCTS(tf32, "k8.f32.tf32.tf32", "", "", "")

// The descriptor of the begin of a tile. The bytes of a panel are 16 if rows run along K. It has
// addresses in units of 16 bytes: the begin; the distance of panels; the distance of eight rows, 1024 bytes;
// and the mode of 128 bytes in which chunks are exchanged.
INLINE U64 describe_tile(const U8 *begin, U64 panel) {
    return in_shared(begin) >> 4 | panel >> 4 << 16 | 64ull << 32 | 1ull << 62;
}
// What was written to local memory is visible to products that begin after the next barrier.
INLINE void make_visible() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }
// Ends a batch of products, and waits for the batch before it.
INLINE void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
    asm volatile("wgmma.wait_group.sync.aligned 1;" : : : "memory");
}
// Come before the products of a batch, and wait for all products. Instructions that write sums stay
// before these, and those that read them after.
#define ON_SUMS(name, instruction)                                                          \
    template <int N>                                                                        \
    INLINE Vector<float, N> name(Vector<float, N> c) {                                      \
        if constexpr (N == 32) asm volatile(instruction : SUMS_32 : : "memory");            \
        if constexpr (N == 64) asm volatile(instruction : SUMS_64 : : "memory");            \
        if constexpr (N == 128) asm volatile(instruction : SUMS_128 : : "memory");          \
        return c;                                                                           \
    }
ON_SUMS(begin_products, "wgmma.fence.sync.aligned;")
ON_SUMS(finish_products, "wgmma.wait_group.sync.aligned 0;")
