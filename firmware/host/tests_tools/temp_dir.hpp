// SPDX-License-Identifier: Apache-2.0
// A directory for one test, gone at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace fleet::test {

class TempDir {
public:
    TempDir() {
        char name[] = "/tmp/vdevice-test-XXXXXX";
        path_ = mkdtemp(name);
    }
    ~TempDir() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempDir(const TempDir &) = delete;
    TempDir &operator=(const TempDir &) = delete;
    const std::string &path() const { return path_; }
    std::string operator/(const char *name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

}  // namespace fleet::test
