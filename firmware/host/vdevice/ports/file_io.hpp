// SPDX-License-Identifier: Apache-2.0
// Files as flash: a small file is replaced whole or not at all.
#pragma once

#include "fleet/span.hpp"
#include "fleet/status.hpp"

#include <string>

namespace fleet::host {

// A Descriptor closes its file.
class Descriptor {
public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    ~Descriptor() { reset(); }
    Descriptor(Descriptor &&other) noexcept : fd_(other.release()) {}
    Descriptor &operator=(Descriptor &&other) noexcept;
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;

    [[nodiscard]] bool open() const { return fd_ >= 0; }
    [[nodiscard]] int get() const { return fd_; }
    int release();
    void reset();

private:
    int fd_;
};

Status make_directory(const std::string &path);
Result<std::string> read_file(const std::string &path, std::size_t limit);
// replace_file writes a new file, syncs, renames, and syncs the directory.
Status replace_file(const std::string &path, Bytes content);
Status remove_file(const std::string &path);  // one that is not there is ok
Status write_all(int fd, Bytes bytes, std::int64_t offset);
Status read_all(int fd, MutableBytes into, std::int64_t offset);
Status disk_failure(const char *why);  // no_space or io, by errno

}  // namespace fleet::host
