// SPDX-License-Identifier: Apache-2.0
#include "ports/file_core_dump.hpp"

#include "ports/file_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>

namespace fleet::host {

namespace {
constexpr std::size_t max_summary = 240;
}

std::uint32_t FileCoreDump::size() const {
    struct stat about{};
    return ::stat(path_.c_str(), &about) == 0 ? static_cast<std::uint32_t>(about.st_size) : 0;
}

Status FileCoreDump::read(std::uint32_t offset, MutableBytes into) const {
    const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file.open()) return {Code::not_found, "there is no core dump"};
    return read_all(file.get(), into, offset);
}

std::string FileCoreDump::summary() const {
    const Result<std::string> file = read_file(path_, 64 * 1024);
    return file.ok() ? file.value().substr(0, file.value().find('\n')).substr(0, max_summary) : "";
}

Status FileCoreDump::erase() {
    return remove_file(path_);
}

}  // namespace fleet::host
