"""The same loops in C for comparison, compiled by gcc with FLAGS where there is a gcc."""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from kernels.kernel import THREADS, Bind, Call, RefusedError, UnavailableError

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
"""Without -fno-math-errno a root may set errno, as no other implementation does, and gcc then keeps its loop scalar."""
# copy has plain pointers: with `restrict` gcc turns it into a call of memcpy, which is another kernel.
SOURCE = r"""
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __AVX512F__
#include <immintrin.h>
#define STREAMING(NAME, SCALAR, VECTOR) \
void NAME##_streaming(ptrdiff_t n, const double *a, const double *b, double *out) { \
    ptrdiff_t i = 0; \
    for (; i < n && ((uintptr_t)(out + i) & 63); i++) out[i] = SCALAR; \
    for (; i + 8 <= n; i += 8) { \
        __m512d x = _mm512_loadu_pd(a + i), y = _mm512_loadu_pd(b + i); \
        (void)y; \
        _mm512_stream_pd(out + i, VECTOR); \
    } \
    for (; i < n; i++) out[i] = SCALAR; \
    _mm_sfence(); \
}
#else
#define STREAMING(NAME, SCALAR, VECTOR)
#endif
#define LOOP(NAME, SCALAR, VECTOR) \
void NAME(ptrdiff_t n, const double *a, const double *b, double *out) { \
    for (ptrdiff_t i = 0; i < n; i++) out[i] = SCALAR; \
} \
void NAME##_parallel(ptrdiff_t n, const double *a, const double *b, double *out) { \
    _Pragma("omp parallel for num_threads(THREADS) schedule(static)") \
    for (ptrdiff_t i = 0; i < n; i++) out[i] = SCALAR; \
} \
STREAMING(NAME, SCALAR, VECTOR)

LOOP(copy, a[i], x)
LOOP(add, a[i] + b[i], _mm512_add_pd(x, y))
LOOP(triad, a[i] + 3.0 * b[i], _mm512_add_pd(x, _mm512_mul_pd(_mm512_set1_pd(3.0), y)))
LOOP(hypotenuse, sqrt(a[i] * a[i] + b[i] * b[i]),
     _mm512_sqrt_pd(_mm512_add_pd(_mm512_mul_pd(x, x), _mm512_mul_pd(y, y))))

double sum(ptrdiff_t n, const double *a) {
    double total = 0;
    _Pragma("omp simd reduction(+:total)")
    for (ptrdiff_t i = 0; i < n; i++) total += a[i];
    return total;
}
double sum_parallel(ptrdiff_t n, const double *a) {
    double total = 0;
    _Pragma("omp parallel for simd reduction(+:total) num_threads(THREADS) schedule(static)")
    for (ptrdiff_t i = 0; i < n; i++) total += a[i];
    return total;
}

static inline uint64_t hit(uint64_t seed, uint64_t sample) {
    uint64_t z = seed + (sample + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z = z ^ (z >> 31);
    uint64_t x = z >> 33, y = (z & 0xFFFFFFFFu) >> 1;
    return x * x + y * y < ((uint64_t)1 << 62);
}
int64_t hits(uint64_t seed, int64_t n) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) found += hit(seed, i);
    return found;
}
int64_t hits_parallel(uint64_t seed, int64_t n) {
    int64_t found = 0;
    _Pragma("omp parallel for reduction(+:found) num_threads(THREADS) schedule(static)")
    for (int64_t i = 0; i < n; i++) found += hit(seed, i);
    return found;
}

double scaled_hypotenuse(double x, double y) {
    x = fabs(x), y = fabs(y);
    double small = x < y ? x : y, large = x < y ? y : x;
    if (large == 0) return 0;
    small /= large;
    return large * sqrt(1 + small * small);
}
double add_scalars(double x, double y) { return x + y; }
"""


@cache
def library() -> ctypes.CDLL:
    """Compile SOURCE, once a process. UnavailableError: there is no gcc that can do it, or what it made is not loaded,
    as from a folder that is mounted noexec."""
    if not (compiler := shutil.which("gcc")):
        raise UnavailableError("no gcc")
    with tempfile.TemporaryDirectory(prefix="ration-kernels-") as folder:
        source, made = Path(folder, "kernels.c"), Path(folder, "kernels.so")
        source.write_text(SOURCE)
        command = [compiler, *FLAGS, f"-DTHREADS={THREADS}", "-o", str(made), str(source), "-lm"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise UnavailableError(f"gcc failed: {(ran.stderr.splitlines() or ['no message'])[0]}")
        try:
            return ctypes.CDLL(str(made))
        except OSError as error:
            raise UnavailableError(str(error)) from None


def c_function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the library, with its ctypes. UnavailableError: this CPU cannot have it."""
    try:
        function = library()[name]
    except AttributeError:
        raise UnavailableError("the CPU has no AVX-512") from None
    function.restype, function.argtypes = result, arguments
    return function


def pointer(array: Any) -> int:
    """Return the address of the first element. RefusedError: the array has gaps."""
    if not array.flags.c_contiguous:
        raise RefusedError("contiguous arrays only")
    return int(array.ctypes.data)


def c_loop(name: str, *, arrays: int, result: Any = None) -> Bind:
    """Bind a function of a size and so many arrays of float64: the inputs, and the output if the kernel has one; else
    it returns a number of the type `result`."""
    function = c_function(name, result, ctypes.c_ssize_t, *(arrays * [ctypes.c_void_p]))

    def bind(inputs: tuple[Any, ...], output: Any) -> Call:
        pointers = (pointer(each) for each in (*inputs, output) if each is not None)
        return Call(
            function=function, arguments=(inputs[0].size, *pointers),
            read=lambda returned: returned if output is None else output,
        )  # fmt: skip

    return bind
