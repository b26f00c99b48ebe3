/* SPDX-License-Identifier: Apache-2.0 */
/* examples/foreign/loops.c with an error planted in it, the one that SLUICE_TEST_PLANT names: what
   `sluice verify --foreign` must catch. Without it nothing is wrong. */
#define sluice_foreign_version right_version
#define sluice_foreign_gate_mul right_gate_mul
#define sluice_foreign_mlp right_mlp
#include "../../examples/foreign/loops.c"
#undef sluice_foreign_version
#undef sluice_foreign_gate_mul
#undef sluice_foreign_mlp
#include <pthread.h>
#include <unistd.h>

static int planted(const char* name) {
  const char* plant = getenv("SLUICE_TEST_PLANT");
  return plant != NULL && strcmp(plant, name) == 0;
}

/* Still in the library's code when the program ends. */
static void* wait_for_ever(void* nothing) {
  for (;;) usleep(100);
  return nothing;
}

SLUICE_EXPORT int32_t sluice_foreign_version(void) {
  pthread_t thread;
  if (planted("thread")) pthread_create(&thread, NULL, wait_for_ever, NULL);
  return planted("version") ? SLUICE_FOREIGN_VERSION + 1 : SLUICE_FOREIGN_VERSION;
}

/* h with act(g) rounded to bf16 before it is multiplied by u. */
static void round_once_more(const sluice_problem* p, const sluice_operands* o) {
  sluice_layout vector = {0, 0, 0, 0, 0};
  for (int64_t m = 0; m < p->m; ++m) {
    for (int64_t j = 0; j < p->h; ++j) {
      const double g = load(o->g, p->x_dtype, &p->layout.g_u, m, j);
      const double u = load(o->u, p->x_dtype, &p->layout.g_u, m, j);
      uint16_t act;
      store(&act, SLUICE_BF16, &vector, 0, 0, activate(&p->gate, g));
      store(o->h, p->x_dtype, &p->layout.h, m, j, load(&act, SLUICE_BF16, &vector, 0, 0) * u);
    }
  }
}

/* What is wrong about an output of `rows` rows after it was computed right. */
static void spoil(void* out, sluice_dtype dtype, const sluice_layout* layout, int64_t rows,
                  int64_t cols) {
  if (planted("past_end")) store(out, dtype, layout, rows - 1, cols, 1);
  for (int64_t r = 0; r < rows && planted("column"); ++r) { /* within rtol = 1e-2 */
    store(out, dtype, layout, r, cols - 1, 1.009 * load(out, dtype, layout, r, cols - 1));
  }
}

SLUICE_EXPORT sluice_status sluice_foreign_gate_mul(const sluice_problem* given,
                                                    const sluice_operands* operands,
                                                    const sluice_device* device, void* stream,
                                                    sluice_error* error) {
  sluice_problem p = *given;
  sluice_operands o = *operands;
  sluice_status status;
  if (planted("error")) {
    strcpy(error->message, "the kernel did not start");
    return SLUICE_DEVICE_ERROR;
  }
  if (planted("last_row")) --p.m;
  if (planted("swap")) o.g = operands->u, o.u = operands->g;
  status = right_gate_mul(&p, &o, device, stream, error);
  if (status != SLUICE_OK) return status;
  if (planted("rounding")) round_once_more(&p, &o);
  spoil(o.h, p.x_dtype, &p.layout.h, p.m, p.h);
  return SLUICE_OK;
}

SLUICE_EXPORT sluice_status sluice_foreign_mlp(const sluice_problem* given,
                                               const sluice_operands* operands,
                                               const sluice_device* device, void* stream,
                                               sluice_error* error) {
  sluice_problem p = *given;
  sluice_operands o = *operands;
  sluice_status status;
  if (planted("last_row")) --p.m;
  if (planted("swap")) o.w_gate = operands->w_up, o.w_up = operands->w_gate;
  if (planted("input")) store((void*)o.x, p.x_dtype, &p.layout.x, 0, 0, 3);
  status = right_mlp(&p, &o, device, stream, error);
  if (status != SLUICE_OK) return status;
  spoil(o.y, p.y_dtype, &p.layout.y, p.m, p.d);
  return SLUICE_OK;
}
