// SPDX-License-Identifier: Apache-2.0
// What an upgrade notes in the store before a restart, for the run after it.
#pragma once

namespace fleet {

constexpr char kJob[] = "ota_job";
constexpr char kKind[] = "ota_kind";
constexpr char kWanted[] = "ota_want";  // app_elf_sha256
constexpr char kWhy[] = "ota_why";      // a trial failed

constexpr char kUpgrade[] = "upgrade";
constexpr char kRollback[] = "rollback";

}  // namespace fleet
