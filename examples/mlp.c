/* SPDX-License-Identifier: Apache-2.0 */
/* The gated MLP block in plain C99: plan, ask what the operands must be, allocate, run, and check
   one element against the formula. */
#include <math.h>
#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>

enum { M = 4, D = 64, H = 160 };

/* Something that is neither constant nor symmetric. */
static void fill(float* values, int count, float scale) {
  for (int i = 0; i < count; ++i) values[i] = scale * (float)((i * 37 + 11) % 101 - 50) / 50.0F;
}

static double expected_y(const float* x, const float* gate, const float* up, const float* down) {
  double y = 0; /* row 1, column 2 */
  for (int j = 0; j < H; ++j) {
    double g = 0, u = 0;
    for (int i = 0; i < D; ++i) {
      g += (double)x[D + i] * gate[j * D + i];
      u += (double)x[D + i] * up[j * D + i];
    }
    y += g / (1 + exp(-g)) * u * down[2 * H + j];
  }
  return y;
}

static int fail(const sluice_error* error) {
  fprintf(stderr, "sluice: %s\n", error->message);
  return EXIT_FAILURE;
}

int main(void) {
  static float x[M * D], w_gate[H * D], w_up[H * D], w_down[D * H], y[M * D];
  sluice_error error;
  sluice_problem problem;
  sluice_device device;
  sluice_plan plan;

  sluice_problem_init(&problem, sizeof problem, &error);
  problem.op = SLUICE_MLP;
  problem.m = M;
  problem.d = D;
  problem.h = H;
  problem.x_dtype = problem.w_dtype = problem.y_dtype = SLUICE_FP32;
  problem.alignment_bytes = sizeof(float); /* static arrays promise no more */

  sluice_cpu_device(&device, sizeof device, &error);
  if (sluice_plan_init(&plan, &problem, &device, NULL, &error) != SLUICE_OK) return fail(&error);

  for (int i = 0; i < SLUICE_OPERAND_COUNT; ++i) {
    sluice_operand_spec spec;
    sluice_operand_query(&problem, i, &spec, sizeof spec, &error);
    if (spec.required) {
      printf("%-7s [%lld, %lld] %s\n", spec.name, (long long)spec.rows, (long long)spec.cols,
             sluice_dtype_name(spec.dtype));
    }
  }

  fill(x, M * D, 1.0F);
  fill(w_gate, H * D, 0.25F);
  fill(w_up, H * D, 0.125F);
  fill(w_down, D * H, 0.5F);
  sluice_operands operands = {.struct_size = sizeof operands,
                              .x = x,
                              .w_gate = w_gate,
                              .w_up = w_up,
                              .w_down = w_down,
                              .y = y};

  sluice_workspace workspace = {.bytes = sluice_plan_workspace_bytes(&plan)};
  void* block = malloc(workspace.bytes + 256); /* a workspace is aligned to 256 bytes */
  if (block == NULL) return EXIT_FAILURE;
  workspace.data = (char*)block + (256 - (uintptr_t)block % 256);
  if (workspace.bytes > 0 && sluice_workspace_init(workspace, &device, NULL, &error) != SLUICE_OK) {
    return fail(&error);
  }
  const sluice_run_args args = {
      .struct_size = sizeof(args), .operands = &operands, .workspace = workspace};
  if (sluice_run(&plan, &args, &error) != SLUICE_OK) return fail(&error);
  free(block);

  const double want = expected_y(x, w_gate, w_up, w_down);
  printf("%s: y[1, 2] = %f, expected %f\n", sluice_plan_variant(&plan), y[D + 2], want);
  /* fp32 accumulation over D, then over H: a few roundings a term, of terms of size about one. */
  return fabs(y[D + 2] - want) <= (D + H) * 1.2e-7 * (fabs(want) + H) ? EXIT_SUCCESS : EXIT_FAILURE;
}
