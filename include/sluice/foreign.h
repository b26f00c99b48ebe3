// SPDX-License-Identifier: Apache-2.0
// What a library exports so that `sluice verify --foreign LIBRARY` can check its kernels: Sluice's
// cases, fp64 oracle and computed bounds against somebody else's gated MLP. Plain C99. The types
// are those of sluice.h; nothing of Sluice is called or linked:
//
//   cc -shared -fPIC -I PREFIX/include kernels.c -o libkernels.so
//   sluice verify --foreign libkernels.so
//
// Export sluice_foreign_version and any of the other functions. One that is not there is not
// checked. All have the same type:
//
//   problem    what to compute: shapes, types, gate, flags, layouts. Its strides are resolved, none
//              is SLUICE_CONTIGUOUS. `alignment_bytes` divides every address
//   operands   the addresses; shapes, types and layouts as sluice_problem says. Null: an operand
//              that the operator does not have or the problem does not ask for, and an optional
//              output that the case leaves out (dx, x_sum, dw_*, db_*; h of a gradient). Inputs are
//              not written to, nor anything but the elements of outputs: gaps and neighbours hold
//              canaries. Outputs hold NaN before the first of two calls and zeros before the
//              second, unless they are inputs too: y of a residual, dg and du of g and u may be the
//              same memory, and with accumulate_dw weight and bias gradients are added to
//   device     where the addresses are, from --device: host memory (SLUICE_CPU), or memory of CUDA
//              device `ordinal`, which is the current one
//   stream     CUDA: a cudaStream_t, never the default stream. Enqueue on it, or be done when the
//              function returns; inputs are ready. CPU: null
//   error      message may be set; all zero before the call
//
// It returns SLUICE_OK; SLUICE_UNSUPPORTED, which skips the case, with the reason as the message;
// or another code, which fails it, with what went wrong. No operand outlives the call. Calls come
// from one thread. Scratch is the library's own; it stays loaded to the end of the process.
//
// Bounds allow any order of summation in fp32 or wider and the roundings of docs/numerics.md.
// Kernels that store every intermediate result in x's type round more often: --unfused.
#ifndef SLUICE_FOREIGN_H
#define SLUICE_FOREIGN_H

#include "sluice/sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

/// The version of this interface: goes up when a struct or a rule changes in a way that a library
/// compiled before would not follow.
#define SLUICE_FOREIGN_VERSION 1

typedef sluice_status sluice_foreign_function(const sluice_problem* problem,
                                              const sluice_operands* operands,
                                              const sluice_device* device, void* stream,
                                              sluice_error* error);

/// Returns SLUICE_FOREIGN_VERSION. The only function that must be there.
SLUICE_EXPORT int32_t sluice_foreign_version(void);

// x [M, D]; w_gate, w_up [H, D]; w_down [D, H]; g, u, h [M, H]; y [M, D]. act and ⊙: sluice_gate.

/// h = act(n·w_gateᵀ + b_gate) ⊙ (n·w_upᵀ + b_up), with n = x or, by problem->norm, RMSNorm of x;
/// stores also g and u (save_g_u) and x_sum.
SLUICE_EXPORT sluice_foreign_function sluice_foreign_gate_up;
/// y = h·w_downᵀ + b_down + residual
SLUICE_EXPORT sluice_foreign_function sluice_foreign_down;
/// gate_up, then down; its h is stored nowhere.
SLUICE_EXPORT sluice_foreign_function sluice_foreign_mlp;
/// h = act(g) ⊙ u
SLUICE_EXPORT sluice_foreign_function sluice_foreign_gate_mul;
/// dg, du (and h again) from g, u, dh
SLUICE_EXPORT sluice_foreign_function sluice_foreign_gate_mul_grad;
/// dg, du (and h again) from g, u, dy, with dh = dy·w_down
SLUICE_EXPORT sluice_foreign_function sluice_foreign_gate_up_grad;
/// dx, dw_gate, dw_up, dw_down, db_gate, db_up, db_down from x, dy and g, u (or without them:
/// recompute)
SLUICE_EXPORT sluice_foreign_function sluice_foreign_mlp_grad;
/// y = RMSNorm(x), or of x + x_residual, which x_sum then takes
SLUICE_EXPORT sluice_foreign_function sluice_foreign_norm;
/// dx = dg·w_gate + du·w_up
SLUICE_EXPORT sluice_foreign_function sluice_foreign_input_grad;
/// dw_gate = dgᵀ·x, dw_up = duᵀ·x
SLUICE_EXPORT sluice_foreign_function sluice_foreign_weight_grad;
/// db_gate = the sum of dg over tokens
SLUICE_EXPORT sluice_foreign_function sluice_foreign_column_sum;

/// What a caller hands to sluice_foreign_verify in place of a library; null for what it lacks.
typedef struct sluice_foreign_functions {
  size_t struct_size;
  sluice_foreign_function *gate_up, *down, *mlp, *gate_mul, *gate_mul_grad, *gate_up_grad,
      *mlp_grad, *norm, *input_grad, *weight_grad, *column_sum;
} sluice_foreign_functions;

/// `sluice verify --foreign` in the caller's process, for kernels that no shared library can hold,
/// such as Python's. In libsluice_verify.so, not in libsluice. argv[0] is the command that reports
/// name; the others are the verb's cases and options. Reports go to standard output; returns the
/// program's exit code (2 also where struct_size is not that of this version).
SLUICE_EXPORT int32_t sluice_foreign_verify(int32_t argc, const char* const* argv,
                                            const sluice_foreign_functions* functions);

#ifdef __cplusplus
}
#endif

#endif  // SLUICE_FOREIGN_H
