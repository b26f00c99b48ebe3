/* SPDX-License-Identifier: Apache-2.0 */
/* A shared library that knows nothing of sluice/foreign.h. */
int nothing_of_ours(void);
int nothing_of_ours(void) { return 0; }
