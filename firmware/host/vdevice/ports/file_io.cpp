// SPDX-License-Identifier: Apache-2.0
#include "ports/file_io.hpp"

#include "ports/steps.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>

namespace fleet::host {

Descriptor &Descriptor::operator=(Descriptor &&other) noexcept {
    if (this != &other) {
        reset();
        fd_ = other.release();
    }
    return *this;
}

int Descriptor::release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
}

void Descriptor::reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

Status disk_failure(const char *why) {
    const bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
    return {full ? Code::no_space : Code::io, why};
}

Status make_directory(const std::string &path) {
    if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
    return disk_failure("a state directory cannot be made");
}

Status write_all(int fd, Bytes bytes, std::int64_t offset) {
    while (bytes.size > 0) {
        const ssize_t n = ::pwrite(fd, bytes.data, bytes.size, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return disk_failure("a file cannot be written");
        bytes = Bytes{bytes.data + n, bytes.size - static_cast<std::size_t>(n)};
        offset += n;
    }
    return {};
}

Status read_all(int fd, MutableBytes into, std::int64_t offset) {
    while (into.size > 0) {
        const ssize_t n = ::pread(fd, into.data, into.size, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return disk_failure("a file cannot be read");
        if (n == 0) return {Code::io, "a file ends early"};
        into = MutableBytes{into.data + n, into.size - static_cast<std::size_t>(n)};
        offset += n;
    }
    return {};
}

Result<std::string> read_file(const std::string &path, std::size_t limit) {
    Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file.open()) return Status{errno == ENOENT ? Code::not_found : Code::io, "a file cannot be opened"};
    struct stat about{};
    if (::fstat(file.get(), &about) != 0) return disk_failure("a file cannot be read");
    if (static_cast<std::size_t>(about.st_size) > limit)
        return Status{Code::corrupt, "a file is larger than it may be"};
    std::string content(static_cast<std::size_t>(about.st_size), '\0');
    const Status read = read_all(file.get(), {reinterpret_cast<std::uint8_t *>(&content[0]), content.size()}, 0);
    if (!read.ok()) return read;
    return content;
}

namespace {

Status sync_directory_of(const std::string &path) {
    const std::string directory = path.substr(0, path.find_last_of('/'));
    Descriptor handle{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (!handle.open() || ::fsync(handle.get()) != 0) return disk_failure("a directory cannot be synced");
    return {};
}

Status write_new(const std::string &path, Bytes content) {
    Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
    if (!file.open()) return disk_failure("a file cannot be made");
    const Status written = write_all(file.get(), content, 0);
    if (!written.ok()) return written;
    if (::fsync(file.get()) != 0) return disk_failure("a file cannot be synced");
    return {};
}

}  // namespace

Status replace_file(const std::string &path, Bytes content) {
    const std::string new_path = path + ".new";
    at_step("file.begin");
    const Status written = write_new(new_path, content);
    if (!written.ok()) {
        ::unlink(new_path.c_str());
        return written;
    }
    at_step("file.written");
    if (::rename(new_path.c_str(), path.c_str()) != 0) return disk_failure("a file cannot be replaced");
    at_step("file.renamed");
    return sync_directory_of(path);
}

Status remove_file(const std::string &path) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return disk_failure("a file cannot be removed");
    return {};
}

}  // namespace fleet::host
