// SPDX-License-Identifier: Apache-2.0
// The KvStore on Linux: one file per key, "i" and a number or "s" and text.
#pragma once

#include "fleet/ports.hpp"

#include <mutex>

namespace fleet::host {

class FileStore final : public KvStore {
public:
    explicit FileStore(std::string directory);
    Result<std::int64_t> get_int(std::string_view key) override;
    Result<std::string> get(std::string_view key) override;
    Status set_int(std::string_view key, std::int64_t value) override;
    Status set(std::string_view key, std::string_view value) override;
    Status erase(std::string_view key) override;
    Status commit() override { return {}; }  // every set is on disk when it returns

private:
    Result<std::string> path_of(std::string_view key) const;
    Result<std::string> load(std::string_view key, char kind);
    Status save(std::string_view key, const std::string &content);

    std::string directory_;
    std::mutex mutex_;  // the worker saves progress while the executor reads
};

}  // namespace fleet::host
