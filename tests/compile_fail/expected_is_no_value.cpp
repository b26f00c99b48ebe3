// SPDX-License-Identifier: Apache-2.0
// An Expected is not its value: it has to be asked.
// error: conversion from
#include "sluice/plan.hpp"

sluice::Plan use(const sluice::Problem& problem) {
#if defined(MISUSE)
  sluice::Plan plan = sluice::plan(problem, sluice::cpu_device());
#else
  sluice::Plan plan = *sluice::plan(problem, sluice::cpu_device());
#endif
  return plan;
}
