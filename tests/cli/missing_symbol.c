/* SPDX-License-Identifier: Apache-2.0 */
/* Needs a function of a library that it was not linked with. */
#include <sluice/foreign.h>

int32_t not_linked_with(void);
int32_t sluice_foreign_version(void) { return not_linked_with(); }
