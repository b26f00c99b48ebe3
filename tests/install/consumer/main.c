/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer of the installed C API, in C99. */
#include <sluice/sluice.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  sluice_problem problem;
  sluice_device device;
  sluice_plan plan;
  sluice_error error;
  if (strcmp(sluice_version(), SLUICE_VERSION) != 0) return 1;
  if (sluice_problem_init(&problem, sizeof problem, &error) != SLUICE_OK) return 1;
  problem.m = 2;
  problem.d = 64;
  problem.h = 128;
  if (sluice_cpu_device(&device, sizeof device, &error) != SLUICE_OK) return 1;
  if (sluice_plan_init(&plan, &problem, &device, NULL, &error) != SLUICE_OK) {
    puts(error.message);
    return 1;
  }
  return sluice_plan_variant(&plan)[0] == '\0';
}
