// SPDX-License-Identifier: Apache-2.0
#include "fleet/app_image.hpp"
#include "fleet/image_check.hpp"
#include "fuzz.hpp"

using namespace fleet;

namespace {

// Takes every hash for right: the fuzzer cannot find one.
class NoSum : public Sha256 {
public:
    void update(Bytes) override {}
    Digest finish() override { return {}; }
};

class NoCrypto : public Crypto {
public:
    std::unique_ptr<Sha256> sha256() override { return std::make_unique<NoSum>(); }
    Status verify_ed25519(const Ed25519Key &, Bytes, const Ed25519Signature &) override { return {}; }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    ImageHead head;
    if (parse_image_head({data, size}, head).ok()) {
        fuzz::require(head.version.size() <= 32 && head.project.size() <= 32);
        fuzz::require(head.elf_sha256.size() == 64);
    }
    NoCrypto crypto;
    ImageCheck whole(crypto);
    whole.update({data, size});
    ImageCheck pieces(crypto);
    for (std::size_t at = 0; at < size; at += 7)
        pieces.update({data + at, size - at < 7 ? size - at : 7});
    const bool sound = whole.finish().ok();
    fuzz::require(sound == pieces.finish().ok());
    if (sound) fuzz::require(whole.size() <= size && whole.size() >= 32);
    return 0;
}
