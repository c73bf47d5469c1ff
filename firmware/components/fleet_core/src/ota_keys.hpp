// SPDX-License-Identifier: Apache-2.0
// What an upgrade notes in the store before a restart, for the run after it.
#pragma once

namespace fleet {

constexpr char job_key[] = "ota_job";
constexpr char kind_key[] = "ota_kind";
constexpr char wanted_key[] = "ota_want";  // app_elf_sha256
constexpr char why_key[] = "ota_why";      // a trial failed

constexpr char upgrade_kind[] = "upgrade";
constexpr char rollback_kind[] = "rollback";

}  // namespace fleet
