/* SPDX-License-Identifier: Apache-2.0 */
#include <sluice/foreign.h>

int32_t sluice_foreign_version(void) { return SLUICE_FOREIGN_VERSION; }
