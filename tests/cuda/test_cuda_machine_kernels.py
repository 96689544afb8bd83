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
"""


@pytest.fixture(params=ARCHITECTURES)
def target(request: pytest.FixtureRequest) -> str:
    return request.param


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
