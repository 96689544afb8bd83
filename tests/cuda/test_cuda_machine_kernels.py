"""Kernels of CUDA C, compiled by NVRTC for several GPUs, on the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_machine_cases import ARCHITECTURES, Bench, compiled

from cuda_machine.faults import Fault

_MATRICES = """
extern "C" __global__ void __launch_bounds__(256) product(
    const float* __restrict__ a, const float* __restrict__ b, float* c, int m, int n, int k) {
  __shared__ float left[16][17], right[16][17];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
  for (int t = 0; t < k; t += 16) {
    left[y][x] = row < m && t + x < k ? a[row * k + t + x] : 0;
    right[y][x] = column < n && t + y < k ? b[(t + y) * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < 16; i++) sum = fmaf(left[y][i], right[i][x], sum);
    FENCE
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
"""
_ROWS = """
__device__ float power(float x) {
  float n = rintf(x * 1.44269504f), r = fmaf(n, -0.693147182f, x), p = 1.f / 720;
  p = fmaf(p, r, 1.f / 120); p = fmaf(p, r, 1.f / 24); p = fmaf(p, r, 1.f / 6);
  p = fmaf(p, r, .5f); p = fmaf(p, r, 1.f); p = fmaf(p, r, 1.f);
  return p * __int_as_float(((int)n + 127) << 23);
}
template <class F> __device__ float tree(float* shared, float value, F combine) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int d = blockDim.x / 2; d; d >>= 1) {
    int i = threadIdx.x;
    if (i < d) shared[i] = combine(shared[i], shared[i + d]);
    __syncthreads();
  }
  value = shared[0];
  __syncthreads();
  return value;
}
extern "C" __global__ void softmax(const float* a, float* result, int n) {
  extern __shared__ float shared[];
  const float* row = a + (size_t)blockIdx.x * n;
  float most = __int_as_float(0xff800000), sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
  most = tree(shared, most, [](float x, float y) { return fmaxf(x, y); });
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += power(row[i] - most);
  sum = tree(shared, sum, [](float x, float y) { return x + y; });
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    result[(size_t)blockIdx.x * n + i] = power(row[i] - most) / sum;
}
extern "C" __global__ void scan(const int* a, int* result, int n) {
  __shared__ int shared[2][128];
  int from = 0, i = threadIdx.x;
  shared[0][i] = i < n ? a[i] : 0;
  __syncthreads();
  for (int d = 1; d < 128; d *= 2, from ^= 1) {
    shared[from ^ 1][i] = shared[from][i] + (i >= d ? shared[from][i - d] : 0);
    __syncthreads();
  }
  if (i < n) result[i] = shared[from][i];
}
"""
_RANDOM = """
typedef unsigned int u32;
typedef unsigned long long u64;
extern "C" __global__ void philox(u32* result, u32 k0, u32 k1, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 c0 = i, c1 = 0, c2 = 0, c3 = 0;
  for (int round = 0; round < 10; round++) {
    u64 p = (u64)0xD2511F53u * c0;
    u32 high = __umulhi(0xCD9E8D57u, c2), low = 0xCD9E8D57u * c2;
    c0 = high ^ c1 ^ k0; c2 = (u32)(p >> 32) ^ c3 ^ k1; c1 = low; c3 = (u32)p;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  ((uint4*)result)[i] = make_uint4(c0, c1, c2, c3);
}
"""
_HALVES = """
typedef unsigned short u16;
__device__ float from(u16 h) { float f; asm("{cvt.f32.f16 %0, %1;}" : "=f"(f) : "h"(h)); return f; }
__device__ u16 to(float f) {
  u16 h;
  asm("{.reg .b16 kept; cvt.rn.f16.f32 kept, %1; mov.b16 %0, kept;}" : "=h"(h) : "f"(f));
  return h;
}
template <class T, int N> struct alignas(sizeof(T) * N) Vector {
  T s[N];
  __device__ T& operator[](int i) { return s[i]; }
};
__constant__ float factors[4] = {1.f, 2.5f, -3.f, 1e10f};
__device__ unsigned char steps[5] = {1, 2, 3, 4, 5};
extern "C" __global__ void scaled(const Vector<u16, 8>* a, Vector<u16, 8>* result) {
  Vector<u16, 8> x = a[threadIdx.x];
  for (int i = 0; i < 8; i++) x[i] = to(from(x[i]) * factors[i & 3] + steps[i % 5]);
  result[threadIdx.x] = x;
}
extern "C" __global__ void gathered(const float* a, float* result, int n) {
  float kept[8];
  for (int i = 0; i < 8; i++) kept[i] = a[8 * threadIdx.x + i];
  kept[n] += 1;
  result[threadIdx.x] = kept[(n + threadIdx.x) & 7];
}
extern "C" __global__ void chosen(const int* a, int* result) {
  int x = a[threadIdx.x], y = 0;
  switch (x) {
    case 0: y = a[1] * 7; break;
    case 1: y = x - a[2]; break;
    case 2: for (int i = 0; i < a[3]; i++) y += i * x; break;
    case 3: y = -1; break;
    case 4: y = a[4] / 3; break;
    case 5: y = a[5] % 3; break;
    default: y = 99;
  }
  result[threadIdx.x] = y;
}
"""


@pytest.fixture(params=ARCHITECTURES)
def target(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_tiled_product_of_matrices(target: str) -> None:
    bench = Bench(compiled(_MATRICES.replace("FENCE", "__syncthreads();"), target))
    m, n, k = 50, 70, 33
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape).astype("f4") for shape in ((m, k), (k, n)))
    result = np.zeros((m, n), "f4")
    pointers = [bench.array(one) for one in (a, b, result)]
    bench.launch("product", (5, 4), (16, 16), *pointers, *(np.int32(one) for one in (m, n, k)))
    want = np.zeros((m, n))
    for i in range(k):
        # Each step is rounded once: float64 holds the product and nearly always the sum.
        want = (want + a[:, i, None].astype("f8") * b[i]).astype("f4").astype("f8")
    np.testing.assert_allclose(bench.read(pointers[2], result), want, rtol=1e-6, atol=1e-6)


def test_a_missing_barrier_is_a_race(target: str) -> None:
    bench = Bench(compiled(_MATRICES.replace("FENCE", ""), target))
    array = bench.array(np.ones(32 * 32, "f4"))
    result = bench.array(np.ones(32 * 32, "f4"))
    with pytest.raises(Fault) as caught:
        bench.launch("product", (2, 2), (16, 16), array, array, result, *[np.int32(32)] * 3)
    text = str(caught.value)
    assert "a race in shared memory at" in text
    assert "no barrier is between them (kernel product)" in text
    assert "st.shared" in text
    assert "ld.shared" in text


@pytest.mark.parametrize("lanes", [64, 1 << 15])
def test_rows_of_softmax(target: str, lanes: int) -> None:
    bench = Bench(compiled(_ROWS, target), lanes=lanes)
    a = np.random.default_rng(1).standard_normal((7, 150)).astype("f4")
    pointers = [bench.array(a), bench.array(np.zeros_like(a))]
    bench.launch("softmax", 7, 64, *pointers, np.int32(150), shared=256)
    exact = np.exp(a.astype("f8") - a.max(1, keepdims=True))
    want = exact / exact.sum(1, keepdims=True)
    np.testing.assert_allclose(bench.read(pointers[1], a), want, rtol=1e-4)


def test_a_scan(target: str) -> None:
    bench = Bench(compiled(_ROWS, target))
    a = np.arange(100, dtype="i4") * 3 - 50
    pointers = [bench.array(a), bench.array(np.zeros_like(a))]
    bench.launch("scan", 1, 128, *pointers, np.int32(100))
    np.testing.assert_array_equal(bench.read(pointers[1], a), np.cumsum(a))


def _philox(counter: int, keys: tuple[int, int]) -> list[int]:
    """Philox 4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3)."""
    c, (k0, k1) = [counter, 0, 0, 0], keys
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k0, q % 2**32, p >> 32 ^ c[3] ^ k1, p % 2**32]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c


def test_philox(target: str) -> None:
    bench = Bench(compiled(_RANDOM, target))
    result = np.zeros((100, 4), "u4")
    address = bench.array(result)
    bench.launch("philox", 2, 64, address, np.uint32(7), np.uint32(2**32 - 1), np.int32(100))
    want = [_philox(number, (7, 2**32 - 1)) for number in range(100)]
    np.testing.assert_array_equal(bench.read(address, result), want)


def test_vectors_of_halves_with_module_variables(target: str) -> None:
    bench = Bench(compiled(_HALVES, target))
    a = np.random.default_rng(2).standard_normal(32 * 8).astype("f2")
    pointers = [bench.array(a), bench.array(np.zeros_like(a))]
    bench.launch("scaled", 1, 32, *pointers)
    factors = np.tile(np.array([1, 2.5, -3, 1e10], "f4"), 2)
    steps = np.array([1, 2, 3, 4, 5, 1, 2, 3], "f4")
    with np.errstate(over="ignore"):
        want = (a.reshape(-1, 8).astype("f4") * factors + steps).astype("f2")
    np.testing.assert_array_equal(bench.read(pointers[1], a).reshape(-1, 8), want)


def test_local_arrays(target: str) -> None:
    bench = Bench(compiled(_HALVES, target))
    a = np.arange(32 * 8, dtype="f4")
    pointers = [bench.array(a), bench.array(np.zeros(32, "f4"))]
    bench.launch("gathered", 1, 32, *pointers, np.int32(3))
    kept = a.reshape(32, 8).copy()
    kept[:, 3] += 1
    want = kept[np.arange(32), (3 + np.arange(32)) & 7]
    np.testing.assert_array_equal(bench.read(pointers[1], want), want)


def test_switches(target: str) -> None:
    bench = Bench(compiled(_HALVES, target))
    a = np.array([0, 1, 2, 3, 4, 5, 6, 2, 1], "i4")
    pointers = [bench.array(a), bench.array(np.zeros_like(a))]
    bench.launch("chosen", 1, 9, *pointers)
    want = [7, 1 - 2, 6, -1, 1, 2, 99, 6, 1 - 2]
    np.testing.assert_array_equal(bench.read(pointers[1], a), want)


def test_results_do_not_depend_on_the_order(target: str) -> None:
    text = compiled(_ROWS, target)
    a = np.random.default_rng(3).standard_normal((9, 70)).astype("f4")
    results = []
    for order in ("ascending", "descending", 5):
        bench = Bench(text, order=order, lanes=128)
        pointers = [bench.array(a), bench.array(np.zeros_like(a))]
        bench.launch("softmax", 9, 32, *pointers, np.int32(70), shared=128)
        results.append(bench.read(pointers[1], a))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
