/* SPDX-License-Identifier: Apache-2.0 */
/* gate_mul and mlp in plain loops, as `sluice verify --foreign` calls them:

     cc -shared -fPIC -I PREFIX/include loops.c -lm -o libloops.so
     sluice verify --foreign libloops.so --device cpu */
#include <math.h>
#include <sluice/foreign.h>
#include <stdlib.h>
#include <string.h>

/* Where element (r, c) is: the formula of sluice_layout. */
static int64_t offset(const sluice_layout* l, int64_t bytes, int64_t r, int64_t c) {
  const int64_t row = l->block_rows == 0 ? r * l->row_stride_bytes
                                         : r / l->block_rows * l->block_stride_bytes +
                                               r % l->block_rows * l->row_stride_bytes;
  return row + (l->block_cols == 0
                    ? c * bytes
                    : c / l->block_cols * l->col_block_stride_bytes + c % l->block_cols * bytes);
}

static int64_t bytes_of(sluice_dtype dtype) {
  return dtype == SLUICE_FP64 ? 8 : dtype == SLUICE_FP32 ? 4 : 2;
}

static double load(const void* base, sluice_dtype dtype, const sluice_layout* layout, int64_t r,
                   int64_t c) {
  const char* from = (const char*)base + offset(layout, bytes_of(dtype), r, c);
  double wide;
  float value;
  uint16_t half;
  uint32_t bits;
  if (dtype == SLUICE_FP64) return memcpy(&wide, from, sizeof wide), wide;
  if (dtype == SLUICE_FP32) return memcpy(&value, from, sizeof value), value;
  memcpy(&half, from, sizeof half);
  bits = (uint32_t)half << 16;
  return memcpy(&value, &bits, sizeof value), value;
}

static uint16_t to_bf16(float value) { /* to nearest even */
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static void store(void* base, sluice_dtype dtype, const sluice_layout* layout, int64_t r, int64_t c,
                  double wide) {
  char* to = (char*)base + offset(layout, bytes_of(dtype), r, c);
  const float value = (float)wide;
  const uint16_t half = to_bf16(value);
  if (dtype == SLUICE_FP64) memcpy(to, &wide, sizeof wide);
  if (dtype == SLUICE_FP32) memcpy(to, &value, sizeof value);
  if (dtype == SLUICE_BF16) memcpy(to, &half, sizeof half);
}

static double activate(const sluice_gate* gate, double v) {
  switch (gate->activation) {
    case SLUICE_SILU:
      return v / (1 + exp(-gate->alpha * v));
    case SLUICE_GELU_TANH: /* 2 / sqrt(pi) / sqrt(2) */
      return v / (1 + exp(-2 * 0.7978845608028654 * (v + 0.044715 * v * v * v)));
    case SLUICE_GELU_ERF:
      return 0.5 * v * (1 + erf(v * 0.7071067811865476));
    case SLUICE_RELU:
      return v < 0 ? 0 : v; /* NaN stays NaN */
    case SLUICE_SIGMOID:
      return 1 / (1 + exp(-gate->alpha * v));
    default:
      return v;
  }
}

/* h of one element; a clamp lets NaN through. */
static double gated(const sluice_gate* gate, double g, double u) {
  const double limit = gate->limit, v = gate->gate_multiplier * g;
  const double w = u > limit ? limit : u < -limit ? -limit : u;
  return gate->output_multiplier * activate(gate, v > limit ? limit : v) * (w + gate->up_offset);
}

static sluice_status refuse(sluice_error* error, const char* why) {
  strncpy(error->message, why, sizeof error->message - 1);
  return SLUICE_UNSUPPORTED;
}

static int has_loops(sluice_dtype dtype) {
  return dtype == SLUICE_BF16 || dtype == SLUICE_FP32 || dtype == SLUICE_FP64;
}

int32_t sluice_foreign_version(void) { return SLUICE_FOREIGN_VERSION; }

sluice_status sluice_foreign_gate_mul(const sluice_problem* p, const sluice_operands* o,
                                      const sluice_device* device, void* stream,
                                      sluice_error* error) {
  (void)stream;
  if (device->backend != SLUICE_CPU) return refuse(error, "loops run on CPUs");
  if (!has_loops(p->x_dtype)) return refuse(error, "types: bf16, fp32, fp64");
  if (p->round_gate && p->x_dtype == SLUICE_BF16) return refuse(error, "round_gate");
  for (int64_t m = 0; m < p->m; ++m) {
    for (int64_t j = 0; j < p->h; ++j) {
      const double g = load(o->g, p->x_dtype, &p->layout.g_u, m, j);
      const double u = load(o->u, p->x_dtype, &p->layout.g_u, m, j);
      store(o->h, p->x_dtype, &p->layout.h, m, j, gated(&p->gate, g, u));
    }
  }
  return SLUICE_OK;
}

/* x·Wᵀ + b for one token and one row of W. */
static double project(const sluice_problem* p, const double* x, int64_t count, const void* weight,
                      const sluice_layout* layout, const void* bias, int64_t row) {
  const sluice_layout vector = {0, 0, 0, 0, 0};
  double sum = bias == NULL ? 0 : load(bias, p->w_dtype, &vector, 0, row);
  for (int64_t i = 0; i < count; ++i) sum += x[i] * load(weight, p->w_dtype, layout, row, i);
  return sum;
}

sluice_status sluice_foreign_mlp(const sluice_problem* p, const sluice_operands* o,
                                 const sluice_device* device, void* stream, sluice_error* error) {
  double *x, *h;
  (void)stream;
  if (device->backend != SLUICE_CPU) return refuse(error, "loops run on CPUs");
  if (!has_loops(p->x_dtype) || !has_loops(p->w_dtype) || !has_loops(p->y_dtype)) {
    return refuse(error, "types: bf16, fp32, fp64");
  }
  if (p->norm.enabled) return refuse(error, "norm");
  x = malloc(sizeof *x * (size_t)(p->d + p->h));
  if (x == NULL) {
    strcpy(error->message, "no memory for a token");
    return SLUICE_OUT_OF_MEMORY;
  }
  h = x + p->d;
  for (int64_t m = 0; m < p->m; ++m) {
    for (int64_t i = 0; i < p->d; ++i) x[i] = load(o->x, p->x_dtype, &p->layout.x, m, i);
    for (int64_t j = 0; j < p->h; ++j) {
      const double g = project(p, x, p->d, o->w_gate, &p->layout.w_gate_up, o->b_gate, j);
      const double u = project(p, x, p->d, o->w_up, &p->layout.w_gate_up, o->b_up, j);
      if (p->save_g_u) {
        store(o->g, p->x_dtype, &p->layout.g_u, m, j, g);
        store(o->u, p->x_dtype, &p->layout.g_u, m, j, u);
      }
      h[j] = gated(&p->gate, g, u);
    }
    for (int64_t i = 0; i < p->d; ++i) {
      double y = project(p, h, p->h, o->w_down, &p->layout.w_down, o->b_down, i);
      if (o->residual != NULL) y += load(o->residual, p->y_dtype, &p->layout.residual, m, i);
      store(o->y, p->y_dtype, &p->layout.y, m, i, y);
    }
  }
  free(x);
  return SLUICE_OK;
}
