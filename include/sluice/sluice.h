// SPDX-License-Identifier: Apache-2.0
// The C ABI of Sluice: plan and run in plain C99. It mirrors the C++ headers, which hold the long
// form of every rule; docs/abi.md says what may change between versions.
//
// Rules of every function below:
//   memory    nothing is allocated for the caller and nothing has to be freed, but a scheduler
//   errors    SLUICE_OK, or a code that is also written to *error with a message; `error` may be
//             null. A null argument is SLUICE_INVALID_ARGUMENT, never a crash. On an error no
//             output is written and nothing is launched, unless a function says otherwise
//   threads   every function may be called from several threads at once
//   structs   one that starts with struct_size says how much of it the caller knows. Set it with
//             the struct's _init function, or to sizeof with all else zeroed and then filled
#ifndef SLUICE_SLUICE_H
#define SLUICE_SLUICE_H

#include <stddef.h>
#include <stdint.h>

#include "sluice/export.hpp"   // preprocessor only
#include "sluice/version.hpp"  // preprocessor only

#ifdef __cplusplus
extern "C" {
#endif

// Enumerators have fixed values, equal to those of the C++ enums; the types are int32_t, so that
// their size does not depend on the compiler.
typedef int32_t sluice_status;
enum {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT = 1,  ///< a documented rule was broken; the message names the operand
  SLUICE_UNSUPPORTED = 2,       ///< legal, but no variant of this build takes it on this device
  SLUICE_OUT_OF_MEMORY = 3,     ///< host or device memory ran out
  SLUICE_DEVICE_ERROR = 4,      ///< the device or its driver failed; see sluice_error.cuda_code
  SLUICE_INTERNAL = 5           ///< a bug in Sluice
};

typedef int32_t sluice_dtype;
enum {
  SLUICE_BF16 = 0,
  SLUICE_FP16 = 1,
  SLUICE_FP32 = 2,
  SLUICE_FP64 = 3,
  // GGUF's blocks of 32 columns, as a file stores them; weights only. sluice/types.hpp has the
  // bytes.
  SLUICE_Q8_0 = 4,  ///< 34 bytes: fp16 scale, 32 int8
  SLUICE_Q4_0 = 5,  ///< 18 bytes: fp16 scale, 32 nibbles, each less 8
  SLUICE_Q4_1 = 6   ///< 20 bytes: fp16 scale, fp16 minimum, 32 nibbles
};

typedef int32_t sluice_op;
enum {
  SLUICE_GATE_UP = 0,   ///< h = act(x·Wgᵀ + bg) ⊙ (x·Wuᵀ + bu); optionally stores g and u
  SLUICE_DOWN = 1,      ///< y = h·Wdᵀ + bd (+ residual)
  SLUICE_MLP = 2,       ///< y from x: gate_up, then down
  SLUICE_GATE_MUL = 3,  ///< h = act(g) ⊙ u
  SLUICE_GATE_MUL_GRAD = 4,    ///< dg, du (and h again) from g, u, dh
  SLUICE_GATE_UP_GRAD = 5,     ///< dg, du (and h again) from g, u, dy with dh = dy·Wd
  SLUICE_MLP_GRAD = 6,         ///< dx and all weight and bias gradients from x, g, u, dy
  SLUICE_NORM = 7,             ///< y = RMSNorm(x), or of x + x_residual, which x_sum then takes
  SLUICE_INPUT_GRAD = 8,       ///< dx = dg·Wg + du·Wu
  SLUICE_WEIGHT_GRAD = 9,      ///< dw_gate = dgᵀ·x, and dw_up = duᵀ·x if it is given
  SLUICE_COLUMN_SUM = 10,      ///< db_gate = the sum of dg over tokens
  SLUICE_LINEAR = SLUICE_DOWN  ///< down by its general name: K is H and N is D
};

typedef int32_t sluice_activation;
enum {
  SLUICE_SILU = 0,
  SLUICE_GELU_TANH = 1,
  SLUICE_GELU_ERF = 2,
  SLUICE_RELU = 3,
  SLUICE_SIGMOID = 4,
  SLUICE_IDENTITY = 5
};

typedef int32_t sluice_residual;
enum { SLUICE_RESIDUAL_NONE = 0, SLUICE_RESIDUAL_OPERAND = 1, SLUICE_RESIDUAL_NORM_INPUT = 2 };

typedef int32_t sluice_backend;
enum { SLUICE_CPU = 0, SLUICE_CUDA_DEVICE = 1 };

typedef int32_t sluice_choice_source;
enum {
  SLUICE_HEURISTIC = 0,
  SLUICE_FORCED = 1,
  SLUICE_TUNE_TABLE = 2,     ///< measured for this problem, on this device and build
  SLUICE_NEAREST_ENTRY = 3,  ///< measured for a problem near this one
  SLUICE_SHIPPED_TABLE = 4   ///< measured for this problem; ships with Sluice
};

typedef int32_t sluice_reduce_kind;
enum { SLUICE_REDUCE_NONE = 0, SLUICE_ALL_REDUCE = 1 };

typedef int32_t sluice_access;
enum { SLUICE_UNUSED = 0, SLUICE_READ = 1, SLUICE_WRITE = 2, SLUICE_READ_WRITE = 3 };

typedef int32_t sluice_pack_order;
enum { SLUICE_PACK_GATE_UP = 0, SLUICE_PACK_UP_GATE = 1 };

#define SLUICE_OPERAND_COUNT 28
#define SLUICE_MAX_RANKS 8
#define SLUICE_MAX_NAME 64
#define SLUICE_MAX_CONFIG 256
#define SLUICE_CONTIGUOUS (-1)  ///< row_stride_bytes of rows that follow each other without a gap

typedef struct sluice_error {
  sluice_status code;
  int32_t cuda_code;  ///< cudaError_t or CUresult where code is SLUICE_DEVICE_ERROR, else 0
  char message[320];  ///< operand, what was given, what was wanted; zero-terminated
} sluice_error;

/// Where element (r, c) of a matrix lives, in bytes from its base pointer:
///   (r / block_rows) · block_stride_bytes + (r % block_rows) · row_stride_bytes
///   + (c / block_cols) · col_block_stride_bytes + (c % block_cols) · element size
/// (weights in blocks of 32 columns: c / 32 · block size for the last two terms) with block_rows =
/// 0 for one block of all rows and block_cols = 0 for contiguous columns.
typedef struct sluice_layout {
  int64_t row_stride_bytes;  ///< SLUICE_CONTIGUOUS, at least one row, or 0 on inputs (broadcast)
  int64_t block_rows;        ///< only of w_gate_up and dw_gate_up
  int64_t block_stride_bytes;
  int64_t block_cols;  ///< only of g_u and dg_du
  int64_t col_block_stride_bytes;
} sluice_layout;

/// One layout a matrix; a gate matrix and its up matrix share one and differ in base pointers.
typedef struct sluice_layouts {
  sluice_layout x, w_gate_up, w_down, g_u, h, y, residual, x_sum, dy, dh, dg_du, dx, dw_gate_up,
      dw_down;
} sluice_layouts;

/// h = output_multiplier · act(min(gate_multiplier · g, limit)) · (clamp(u, ±limit) + up_offset)
typedef struct sluice_gate {
  sluice_activation activation;
  float alpha;              ///< silu: v · sigmoid(alpha · v); else 1
  float limit;              ///< > 0; INFINITY for no clamp
  float up_offset;          ///< finite
  float gate_multiplier;    ///< finite
  float output_multiplier;  ///< finite
} sluice_gate;

/// RMSNorm before gate_up and mlp: n = r / sqrt(mean(r²) + eps) · (norm_weight + weight_offset),
/// r = x, or x + x_residual with `add` (then r is also stored to x_sum where that is not null).
typedef struct sluice_norm {
  int32_t enabled;  ///< 0 or 1, as all flags
  int32_t add;
  float eps;            ///< > 0
  float weight_offset;  ///< finite; 1 for Gemma
} sluice_norm;

/// Of down and mlp: y = the sum over ranks of h·Wdᵀ (each rank's rounded to y_dtype; fp32, in the
/// order of ranks) + bd (+ residual), the same bits on all ranks; with norm.enabled also y_norm,
/// the RMSNorm of y with next_norm_weight. h is a rank's share. All ranks run the same problems in
/// the same order, but for `rank`, with sluice_run_args.peers.
typedef struct sluice_reduce {
  sluice_reduce_kind kind;
  int32_t rank, world;  ///< world is 2, 4 or 8
  sluice_norm norm;     ///< add is 0: residual is what it adds
} sluice_reduce;

/// What to compute: everything but the pointers. Shapes: m tokens (0 is a valid no-op), d model
/// width, h hidden width. x_dtype is the type of x, x_residual, x_sum, h, g, u, dg, du, dh, dx;
/// w_dtype that of weights, biases and norm_weight; y_dtype that of y, residual and dy; dw_dtype
/// that of weight and bias gradients. With w_dtype a block type biases and norm_weight are fp32,
/// and the columns of every weight that is read are a multiple of 32.
typedef struct sluice_problem {
  size_t struct_size;
  sluice_op op;
  sluice_dtype x_dtype, w_dtype, y_dtype, dw_dtype;
  sluice_residual residual;  ///< what is added to y (down and mlp)
  int64_t m, d, h;
  sluice_gate gate;
  sluice_norm norm;
  int32_t bias_gate_up;     ///< b_gate, b_up [H]
  int32_t bias_down;        ///< b_down [D]
  int32_t save_g_u;         ///< gate_up and mlp: also store g and u (post-bias, x_dtype)
  int32_t recompute;        ///< mlp_grad: g and u are recomputed from x, not given
  int32_t accumulate_dw;    ///< mlp_grad: weight and bias gradients are added to what is there
  int32_t save_dg_du;       ///< mlp_grad: also store dg and du (over g and u, if they are the same
                            ///< pointers and layout); they need no workspace then
  int32_t weights_static;   ///< nothing running or queued at run() writes the weights (norm_weight
                            ///< is one)
  int32_t round_gate;       ///< gate_mul and gate_mul_grad: act(g), and of dg the product of dh and
                            ///< up, are rounded to x_dtype on the way, as eager code does
  int64_t alignment_bytes;  ///< every pointer is a multiple of it and of its element (of 2 where
                            ///< that is a block); a power of two, 1 to 4096
  sluice_layouts layout;
  sluice_reduce reduce;  ///< all zero: one GPU
} sluice_problem;

/// A device, described once; plans depend on nothing else. Fields as in sluice/device.hpp.
typedef struct sluice_device {
  size_t struct_size;
  sluice_backend backend;
  int32_t arch;  ///< GPU generation: 0 none, 1 Turing, 2 Ampere, 3 Ada, 4 Hopper, 5 Blackwell
  int32_t ordinal, compute_capability, sm_count, smem_per_block_bytes, cooperative_launch;
  int32_t driver_version, runtime_version;
  int32_t threads;        ///< CPU: hardware threads that this process may use
  uint32_t simd_targets;  ///< CPU: bit 0 emulated, 1 AVX2, 2 AVX-512, 3 its BF16
  int64_t l1d_bytes, l2_bytes, l3_bytes, memory_bytes;
  char name[96];
  int32_t cublaslt_version;    ///< CUDA: of the cuBLASLt that this process found, e.g. 130100; 0
                               ///< for none
  int32_t slow_bf16_products;  ///< CPU: 1 where AVX-512 BF16 multiplies slower than FMA in fp32
  int64_t memory_bytes_per_second;  ///< GPU: its bus times its clock; 0 where unknown
} sluice_device;

/// What a tuning table recommends; an empty config leaves it to the variant.
typedef struct sluice_tune_choice {
  char variant[SLUICE_MAX_NAME];
  char config[SLUICE_MAX_CONFIG];
} sluice_tune_choice;

/// Asked by sluice_plan_init before the heuristic: non-zero with *choice filled to recommend. Pure,
/// thread-safe, no device calls; must not throw or longjmp. `problem` is the caller's own;
/// device->threads are those that the plan will use. An entry that is unknown or refuses the
/// problem is passed over. sluice_scheduler_find is one.
typedef int32_t (*sluice_tune_find)(void* user, const sluice_problem* problem,
                                    const sluice_device* device, sluice_tune_choice* choice);

/// Told by sluice_plan_init, line by line, what it chose, which variants refused the problem before
/// and why, and which tuned choice was passed over. `line` lives for the call; no line
/// end. Must not throw or longjmp.
typedef void (*sluice_log_write)(void* user, const char* line);

/// Lends a CPU plan the caller's threads: calls body(work, i), at most once for each i in
/// [0, count), and returns when the calls that it made have returned. They may run at once, on any
/// threads, or one after another; sluice_run does what is left out. What precedes it happens before
/// each call, and each call before its return. Called any number of times a run, on sluice_run's
/// thread; callable while a plan lives; must not throw or longjmp. body does neither, and needs 128
/// KiB of stack.
typedef void (*sluice_parallel_for)(void* user, int32_t count, void (*body)(void* work, int32_t i),
                                    void* work);

/// Optional wishes; all zero but struct_size is the default.
typedef struct sluice_options {
  size_t struct_size;
  const char* variant;  ///< force this variant ("cpu.simd"); null to choose
  const char* config;   ///< force this config; null to choose
  sluice_tune_find tune_find;
  void* tune_user;
  int32_t threads;             ///< CPU: at most so many, up to 65,536; 0 for all of the device's
  int32_t experimental;        ///< 1: also variants that were compiled and never run; else 0
  sluice_log_write log_write;  ///< null for silence
  void* log_user;
  sluice_parallel_for parallel_for;  ///< CPU: null for the library's own threads
  void* parallel_user;
} sluice_options;

/// Pointers into the plan's device, null where the operator does not use one. Shapes: rows follow
/// the problem; [M, D], [M, H], [H, D] (w_gate, w_up), [D, H] (w_down), vectors [H] or [D].
typedef struct sluice_operands {
  size_t struct_size;
  const void *x, *x_residual, *norm_weight;  ///< [M, D], [M, D], [D]
  const void *w_gate, *w_up, *w_down;        ///< [H, D], [H, D], [D, H]
  const void *b_gate, *b_up, *b_down;        ///< [H], [H], [D]
  const void *residual, *dy, *dh;            ///< [M, D], [M, D], [M, H]
  void *g, *u, *h, *y, *x_sum;               ///< [M, H] · 3, [M, D] · 2
  void *dg, *du, *dx;                        ///< [M, H], [M, H], [M, D]
  void *dw_gate, *dw_up, *dw_down;           ///< [H, D], [H, D], [D, H]
  void *db_gate, *db_up, *db_down;           ///< [H], [H], [D]
  const void* next_norm_weight;              ///< [D], with reduce.norm
  void* y_norm;                              ///< [M, D], with reduce.norm; y's layout
} sluice_operands;

/// Bytes of a workspace's header.
#define SLUICE_WORKSPACE_HEADER_BYTES 16384

/// Memory of one run at a time, aligned to 256 bytes. Its header is zeroed once by
/// sluice_workspace_init and keeps its contents between runs; it is the beginning of `data` or,
/// where `header` is not null, lies there: then `data` is scratch that needs
/// SLUICE_WORKSPACE_HEADER_BYTES less, and nothing of it need be kept.
typedef struct sluice_workspace {
  void* data;
  size_t bytes;
  void* header;
} sluice_workspace;

/// Bytes of the header of each peer buffer.
#define SLUICE_PEER_HEADER_BYTES 8454144

/// Memory of all ranks that this rank's GPU can read and write. Each begins with a header, zeroed
/// once, on every rank before the first run of any; the rest needs no values. Plans may share the
/// buffers whose runs take place one after another, in the same order on all ranks. A rank that
/// waits for longer than time_limit_us sets the 32-bit word at byte 12 of its own header to 1 + the
/// rank that it waited for + 256 · the tile; its y is NaN there and, from then on, everywhere,
/// until all ranks have zeroed their headers.
typedef struct sluice_peers {
  size_t struct_size;
  void* buffers[SLUICE_MAX_RANKS];  ///< of rank r as this device addresses it; multiples of 256
  size_t bytes;           ///< of each: at least sluice_plan_peer_bytes, a multiple of 512; the same
                          ///< on all ranks, for as long as the header lives
  int64_t time_limit_us;  ///< 0: no limit; at most 2^63 / 1000
  int32_t share_device;   ///< 1: ranks share a GPU; what follows a run then does not start early
  int32_t reserved;       ///< 0
} sluice_peers;

/// What one run works on: operands, a workspace (zeros where the plan needs none), and the stream
/// (a cudaStream_t; null for the default stream; not read by CPU plans).
typedef struct sluice_run_args {
  size_t struct_size;
  const sluice_operands* operands;
  sluice_workspace workspace;
  void* stream;
  const sluice_peers* peers;  ///< where the problem reduces; else not read
} sluice_run_args;

/// How gate and up [H, D] lie in one packed [2H, D]: row r of the first at packed row
/// 2 · b · (r / b) + r % b, row r of the second b rows behind it, b = block_rows. b = 1 alternates
/// single rows, b = H is two halves. A vector (a bias) has d = 1. Rows of types with blocks of
/// columns are given in bytes.
typedef struct sluice_packing {
  size_t struct_size;
  int64_t h, d;               ///< at least 1 each
  int64_t block_rows;         ///< a divisor of h
  int32_t element_bytes;      ///< 1, 2, 4 or 8
  sluice_pack_order order;    ///< which of the two is first
  int64_t gate_stride_bytes;  ///< of rows: a multiple of element_bytes and at least d of them, or
  int64_t up_stride_bytes;    ///< SLUICE_CONTIGUOUS
  int64_t packed_stride_bytes;
} sluice_packing;

/// A plan: opaque, plain memory. Copy it by assignment, share it between threads and streams;
/// valid in this process only. It owns nothing.
typedef struct sluice_plan {
  uint64_t opaque[512];
} sluice_plan;

/// What one operand must be for a problem.
typedef struct sluice_operand_spec {
  size_t struct_size;
  const char* name;  ///< static; the member's name in sluice_operands
  sluice_access access;
  int32_t required;  ///< a null pointer is an error
  sluice_dtype dtype;
  int32_t reserved;
  int64_t rows, cols;    ///< vectors have one row
  int64_t extent_bytes;  ///< from the base pointer to one past the last element
  sluice_layout layout;  ///< strides resolved: never SLUICE_CONTIGUOUS
} sluice_operand_spec;

/// The version of the library that is loaded, e.g. "0.2.0"; SLUICE_VERSION is the header's.
SLUICE_EXPORT const char* sluice_version(void);

/// Names as the command line spells them, or null for a value that does not exist. Static.
SLUICE_EXPORT const char* sluice_dtype_name(sluice_dtype dtype);
SLUICE_EXPORT const char* sluice_op_name(sluice_op op);
SLUICE_EXPORT const char* sluice_activation_name(sluice_activation activation);

/// Measured choices for one device: sluice/scheduler.hpp. Made and freed by _create and _destroy.
typedef struct sluice_scheduler sluice_scheduler;

/// Optional wishes of tuning; all zero but struct_size is the default.
typedef struct sluice_tune_options {
  size_t struct_size;
  double max_seconds;        ///< for all problems together; 0 for 60
  int64_t max_memory_bytes;  ///< device memory for operands; 0 for a quarter of the device's
  int32_t threads;           ///< as in sluice_options
  int32_t again;             ///< 1: measure also what the table knows
} sluice_tune_options;

/// How many problems became what.
typedef struct sluice_tune_report {
  size_t struct_size;
  int64_t measured;       ///< timed, and entered in the table
  int64_t known;          ///< had an entry already
  int64_t one_candidate;  ///< nothing to choose
  int64_t no_time;        ///< max_seconds were over; the nearest entry may serve
} sluice_tune_report;

/// What was taken from a file. What was not is never used.
typedef struct sluice_load_report {
  size_t struct_size;
  int64_t loaded;
  int64_t foreign;    ///< of another device, driver or build, or ranks of another cuBLASLt
  int64_t damaged;    ///< incomplete or with a wrong checksum
  char message[320];  ///< why entries were left; empty where none were
} sluice_load_report;

/// Sets the defaults: mlp, bf16 activations and weights, fp32 weight gradients, silu, contiguous
/// layouts, alignment 16, static weights, m = d = h = 0. Pass struct_size = sizeof(*problem).
/// Errors: SLUICE_INVALID_ARGUMENT for null or a struct_size below the first version's.
SLUICE_EXPORT sluice_status sluice_problem_init(sluice_problem* problem, size_t struct_size,
                                                sluice_error* error);

/// *layout = rows (weights) or columns (g, u, dg, du) of the gate and up halves in one buffer, in
/// alternating blocks of `block`: see interleaved_rows and interleaved_cols in sluice/problem.hpp.
/// Errors: SLUICE_INVALID_ARGUMENT for null, block < 1, a negative width or a dtype out of range.
SLUICE_EXPORT sluice_status sluice_interleaved_rows(int64_t block, int64_t d, sluice_dtype dtype,
                                                    sluice_layout* layout, sluice_error* error);
SLUICE_EXPORT sluice_status sluice_interleaved_cols(int64_t block, int64_t h, sluice_dtype dtype,
                                                    sluice_layout* layout, sluice_error* error);

/// Gate and up in alternating blocks of rows of `packed`, and back: all three are host memory.
/// sluice_interleaved_rows(block_rows, d, ...) is the layout by which kernels read `packed` in
/// place, the second of the two block_rows rows behind the first. Pointers are multiples of
/// element_bytes. An output's extent, from its first byte to its last row's end, may overlap
/// no other's. Errors, before a byte is written: SLUICE_INVALID_ARGUMENT for a null or misaligned
/// pointer, an h that is no multiple of block_rows, another element size or order, a stride below a
/// row, an extent of 2^60 bytes or more, and overlap.
SLUICE_EXPORT sluice_status sluice_pack_gate_up(const sluice_packing* packing, const void* gate,
                                                const void* up, void* packed, sluice_error* error);
SLUICE_EXPORT sluice_status sluice_unpack_gate_up(const sluice_packing* packing, const void* packed,
                                                  void* gate, void* up, sluice_error* error);

/// Describes the CPU that this process runs on.
SLUICE_EXPORT sluice_status sluice_cpu_device(sluice_device* device, size_t struct_size,
                                              sluice_error* error);

/// Takes from a CPU's description the SIMD targets above the one of this name: "emulated", "avx2",
/// "avx512" or "avx512_bf16", null or "" for all. Plans for it run as on a CPU without them.
/// Errors: SLUICE_INVALID_ARGUMENT for another name or a null device.
SLUICE_EXPORT sluice_status sluice_limit_simd(sluice_device* device, const char* name,
                                              sluice_error* error);

/// Number of CUDA devices; 0 without a driver or in a build without CUDA.
SLUICE_EXPORT int32_t sluice_cuda_device_count(void);

/// Describes a CUDA device; leaves the current device as it was. Errors: SLUICE_UNSUPPORTED
/// without CUDA or a driver, SLUICE_INVALID_ARGUMENT for an ordinal that does not exist,
/// SLUICE_DEVICE_ERROR where the driver fails.
SLUICE_EXPORT sluice_status sluice_cuda_device(int32_t ordinal, sluice_device* device,
                                               size_t struct_size, sluice_error* error);

/// Names of the variants of a backend, best first; null past the last. Static.
SLUICE_EXPORT const char* sluice_variant_name(sluice_backend backend, int32_t index);

/// Checks a problem by itself: dims, types, gate, layouts, flags that fit the operator.
SLUICE_EXPORT sluice_status sluice_validate(const sluice_problem* problem, sluice_error* error);

/// Describes operand `index` (the order of sluice_operands) of a valid problem. Errors:
/// SLUICE_INVALID_ARGUMENT for an index out of range or an invalid problem.
SLUICE_EXPORT sluice_status sluice_operand_query(const sluice_problem* problem, int32_t index,
                                                 sluice_operand_spec* spec, size_t struct_size,
                                                 sluice_error* error);

/// Work of a valid problem: floating-point operations (2 a multiply-add), and the fewest bytes that
/// must move. Either pointer may be null.
SLUICE_EXPORT sluice_status sluice_cost(const sluice_problem* problem, double* flops, double* bytes,
                                        sluice_error* error);

/// Chooses variant and config by arithmetic: no device call, no allocation, tens of microseconds at
/// most. `options` may be null. Errors: SLUICE_INVALID_ARGUMENT for an invalid problem or device or
/// an unknown forced name, SLUICE_UNSUPPORTED where no variant takes the problem.
SLUICE_EXPORT sluice_status sluice_plan_init(sluice_plan* plan, const sluice_problem* problem,
                                             const sluice_device* device,
                                             const sluice_options* options, sluice_error* error);

/// What a plan needs and holds; 0, "" or -1 for null and for memory that is no plan. The strings
/// live as long as the plan.
SLUICE_EXPORT size_t sluice_plan_workspace_bytes(const sluice_plan* plan);
SLUICE_EXPORT size_t sluice_plan_peer_bytes(const sluice_plan* plan);  ///< 0: no reduce
SLUICE_EXPORT const char* sluice_plan_variant(const sluice_plan* plan);
SLUICE_EXPORT const char* sluice_plan_config(const sluice_plan* plan);
SLUICE_EXPORT sluice_choice_source sluice_plan_source(const sluice_plan* plan);
SLUICE_EXPORT int32_t sluice_plan_threads(const sluice_plan* plan);

/// Launches a plan. CUDA: enqueues on `stream` and returns, without allocation or synchronisation,
/// so that it can be captured in a graph. CPU: returns when the outputs are written. The same plan
/// and inputs give the same bits, for any thread count. Concurrent calls need a workspace each. An
/// output may share a byte with nothing but these, which must match exactly: y with residual, dg
/// with g, du with u. It may lie in another operand's gaps; two operands of more than 16,384 rows
/// each (blocks of columns count as rows) only where they have one layout and repeat at one period,
/// as halves of one buffer do: all else is refused there. The workspace may not reach into any
/// operand's extent. Errors: SLUICE_INVALID_ARGUMENT for a null or misaligned pointer, overlapping
/// outputs, a workspace that is too small, misaligned or overlaps, or memory that is no plan;
/// SLUICE_DEVICE_ERROR, SLUICE_UNSUPPORTED or SLUICE_OUT_OF_MEMORY where a step cannot be encoded
/// or launched, with its kernel's message: then the steps in front of it have run and none behind
/// it. On any other error nothing is launched.
SLUICE_EXPORT sluice_status sluice_run(const sluice_plan* plan, const sluice_run_args* args,
                                       sluice_error* error);

/// Zeroes a workspace's header in stream order; once after allocating it. Errors:
/// SLUICE_INVALID_ARGUMENT for misalignment and, without a header apart, for null data or fewer
/// than SLUICE_WORKSPACE_HEADER_BYTES.
SLUICE_EXPORT sluice_status sluice_workspace_init(sluice_workspace workspace,
                                                  const sluice_device* device, void* stream,
                                                  sluice_error* error);

/// Writes one line a variant, "name: chosen, config NAME (source)", "name: fits, not chosen" or
/// "name: refused: reason", then what the chosen one is there for, "  recipe: ...", and one line a
/// step of it; or the problem's error. The text is zero-terminated and cut to `bytes`. *needed (may
/// be null) gets the bytes of the whole text with its zero; `buffer` may be null where `bytes` is
/// 0. Errors: those of null arguments; SLUICE_OUT_OF_MEMORY. A problem that no plan takes is not an
/// error here.
SLUICE_EXPORT sluice_status sluice_explain(const sluice_problem* problem,
                                           const sluice_device* device,
                                           const sluice_options* options, char* buffer,
                                           size_t bytes, size_t* needed, sluice_error* error);

/// Makes a scheduler for a device. Free it with sluice_scheduler_destroy, after the last plan that
/// asks it is made; null is nothing to free. Errors: SLUICE_OUT_OF_MEMORY.
SLUICE_EXPORT sluice_status sluice_scheduler_create(const sluice_device* device,
                                                    sluice_scheduler** scheduler,
                                                    sluice_error* error);
SLUICE_EXPORT void sluice_scheduler_destroy(sluice_scheduler* scheduler);

/// Times all variants and configs that take each of `count` problems and enters the fastest.
/// Allocates operands on the device and frees them; takes max_seconds at most, two samples and the
/// making ready of one shape's operands and one problem's candidates.
/// `options` and `report` may be null; struct_size is the report's. What was measured before an
/// error stays. Errors: SLUICE_INVALID_ARGUMENT for an invalid problem or m = 0,
/// SLUICE_UNSUPPORTED where no variant takes one, SLUICE_OUT_OF_MEMORY, SLUICE_DEVICE_ERROR.
SLUICE_EXPORT sluice_status sluice_scheduler_tune(sluice_scheduler* scheduler,
                                                  const sluice_problem* problems, size_t count,
                                                  const sluice_tune_options* options,
                                                  sluice_tune_report* report, size_t struct_size,
                                                  sluice_error* error);

/// Adds a file's entries of this device, driver and build; merges the table into a file, safe under
/// concurrent writers. A file that is missing has no entries; one that is no tuning cache of this
/// version is SLUICE_INVALID_ARGUMENT and left as it is. `report` may be null.
SLUICE_EXPORT sluice_status sluice_scheduler_load(sluice_scheduler* scheduler, const char* path,
                                                  sluice_load_report* report, size_t struct_size,
                                                  sluice_error* error);
SLUICE_EXPORT sluice_status sluice_scheduler_save(const sluice_scheduler* scheduler,
                                                  const char* path, sluice_error* error);

/// A sluice_tune_find: options.tune_find = sluice_scheduler_find, options.tune_user = scheduler.
/// Less than two microseconds, no allocation.
SLUICE_EXPORT int32_t sluice_scheduler_find(void* scheduler, const sluice_problem* problem,
                                            const sluice_device* device,
                                            sluice_tune_choice* choice);

#ifdef __cplusplus
}
#endif

#endif  // SLUICE_SLUICE_H
