// SPDX-License-Identifier: Apache-2.0
// The CoreDump on Linux: a file that the crash handler wrote, one line of
// summary first.
#pragma once

#include "fleet/ports.hpp"

namespace fleet::host {

class FileCoreDump final : public CoreDump {
public:
    explicit FileCoreDump(std::string path) : path_(std::move(path)) {}
    bool present() const override { return size() > 0; }
    std::uint32_t size() const override;
    Status read(std::uint32_t offset, MutableBytes into) const override;
    std::string summary() const override;
    Status erase() override;

private:
    std::string path_;
};

// write_core_dump_on_crash makes fatal signals write the file and reset the
// device with the reason "panic".
void write_core_dump_on_crash(const std::string &path);

}  // namespace fleet::host
