# Writes OUTPUT, a header with SLUICE_BUILD_ID: a hash of the files listed in LIST and of SETTINGS, then
# DESCRIPTION. Measurements of one build are no measurements of another: docs/scheduler.md.
#   cmake -D LIST=… -D SOURCE=… -D SETTINGS=… -D DESCRIPTION=… -D OUTPUT=… -P WriteBuildId.cmake
file(STRINGS ${LIST} files)
list(SORT files)
set(parts "${SETTINGS}")
foreach(name ${files})
  file(SHA256 ${SOURCE}/${name} sum)
  string(APPEND parts "\n${name} ${sum}")
endforeach()
string(SHA256 sum "${parts}")
string(SUBSTRING ${sum} 0 16 sum)
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"// SPDX-License-Identifier: Apache-2.0
// Generated from the library's sources.
#pragma once

#define SLUICE_BUILD_ID \"${sum} ${DESCRIPTION}\"
")
