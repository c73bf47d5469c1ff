// SPDX-License-Identifier: Apache-2.0
#include "fleet/app_image.hpp"
#include "fleet/base64.hpp"
#include "fleet/image_check.hpp"
#include "fleet/manifest.hpp"
#include "machine.hpp"
#include "vectors.hpp"

#include <doctest/doctest.h>

#include <cstring>

using namespace fleet;
using namespace fleet::test;

namespace {

std::string decoded(JsonView v) {
    std::string bytes(v.text().size(), '\0');
    const Result<std::size_t> n =
        decode_base64(v.text(), {reinterpret_cast<std::uint8_t *>(bytes.data()), bytes.size()});
    REQUIRE(n.ok());
    bytes.resize(n.value());
    return bytes;
}

bool sound(const std::string &image) {
    SodiumCrypto crypto;
    ImageCheck check(crypto);
    check.update(Bytes(image));
    return check.finish().ok();
}

Result<ImageHead> head_of(const std::string &image) {
    ImageHead head;
    const Status s = parse_image_head(Bytes(image), head);
    return s.ok() ? Result<ImageHead>(head) : s;
}

const ImageTarget this_target{9, 1, "fleet_unit"};

}  // namespace

TEST_SUITE("image") {
    TEST_CASE("heads of the vectors") {
        const JsonDocument doc = load_vectors("app_image.json");
        for (JsonView c = doc.root().member("cases").first(); c.exists(); c = c.next()) {
            CAPTURE(text_of(c.member("name")));
            const std::string image = decoded(c.member("image_base64"));
            const JsonView expect = c.member("expect");
            const std::string reason = text_of(expect.member("reason"));
            const Result<ImageHead> head = head_of(image);
            if (expect.member("valid_app").is_true()) {
                REQUIRE(head.ok());
                CHECK(sound(image));
                CHECK(head.value().version == expect.member("version").text());
                if (expect.member("chip_id").exists())
                    CHECK(head.value().chip == expect.member("chip_id").integer().value());
                if (expect.member("project").exists()) CHECK(head.value().project == expect.member("project").text());
                if (expect.member("elf_sha256").exists())
                    CHECK(head.value().elf_sha256 == expect.member("elf_sha256").text());
            } else if (reason == "chip_id") {
                CHECK(check_target(head.value(), {9, 0, "xiaozhi"}).code == Code::wrong_target);
            } else {
                // A bootloader is sound as an image; its head gives it away.
                CHECK((!head.ok() || !sound(image)));
            }
        }
    }

    TEST_CASE("every single damaged byte of an image is noticed") {
        const std::string image = make_image("2.0.0", 300);
        CHECK(sound(image));
        for (std::size_t at = 0; at < image.size(); at++) {
            std::string copy = image;
            copy[at] = static_cast<char>(copy[at] ^ 0x20);
            CHECK_FALSE(sound(copy));
            CHECK_FALSE(sound(image.substr(0, at)));
        }
        CHECK(sound(image + "signature"));
    }

    TEST_CASE("targets") {
        const auto head = [](const std::string &image) { return head_of(image).value(); };
        CHECK(check_target(head(make_image("2", 300)), this_target).ok());
        CHECK(check_target(head(make_image("2", 300, 5)), this_target).code == Code::wrong_target);
        CHECK(check_target(head(make_image("2", 300, 9, "xiaozhi")), this_target).code == Code::wrong_target);
        CHECK(check_target(head(make_image("2", 300, 9, "fleet_unit", 0)), this_target).code == Code::wrong_target);
        CHECK(check_target(head(make_image("2", 300, 9, "fleet_unit", 2)), this_target).ok());
    }

    TEST_CASE("a head says whether a hash follows, and is there whole or not at all") {
        std::string image = make_image("2", 300);
        CHECK(head_of(image).value().hash_appended);
        CHECK(head_of(image).value().segments == 1);
        CHECK(head_of(image.substr(0, image_head_bytes)).ok());
        CHECK_FALSE(head_of(image.substr(0, image_head_bytes - 1)).ok());
        image[22] = 1;
        image[23] = 0;
        CHECK_FALSE(head_of(image).value().hash_appended);
        for (const auto &[segments, good] :
             {std::pair<char, bool>{'\0', false}, {'\1', true}, {'\x10', true}, {'\x11', false}}) {
            image[1] = segments;
            CHECK(head_of(image).ok() == good);
        }
    }

    TEST_CASE("an image of sixteen segments, most of them empty") {
        const auto image = [](int segments) {
            std::string text = make_image("2", 300);
            text[1] = static_cast<char>(segments);
            text[23] = 0;  // the checksum alone
            const char sum = text[text.size() - 33];
            text.resize(32 + 300);
            text.append(static_cast<std::size_t>(segments - 1) * 8, '\0');
            text.resize((text.size() + 16) / 16 * 16, '\0');
            text.back() = sum;
            return text;
        };
        CHECK(sound(image(2)));
        SodiumCrypto crypto;
        ImageCheck check(crypto);
        check.update(Bytes(image(2) + "more"));
        REQUIRE(check.finish().ok());
        CHECK(check.size() == image(2).size());
        CHECK(sound(image(16)));
        CHECK_FALSE(sound(image(17)));
    }

    TEST_CASE("fields without a NUL end with the field") {
        std::string image = make_image("2", 300);
        image.replace(48, 32, std::string(32, 'v'));
        CHECK(head_of(image).value().version == std::string(32, 'v'));
    }

    TEST_CASE("manifests") {
        SodiumCrypto crypto;
        const Ed25519Key key = public_key(1);
        const std::string text = "{\"project\":\"p\",\"version\":\"2\",\"chip\":9,\"size\":5,\"sha256\":\"" +
                                 std::string(64, 'a') + "\",\"secure_version\":1,\"not_before\":7}";
        Manifest m;
        const auto code = [&](const std::string &stated, const std::string &signature) {
            return open_manifest(crypto, key, stated, signature, m).code;
        };
        REQUIRE(code(text, sign_base64(1, text)) == Code::ok);
        CHECK(m.chip == 9);
        CHECK(m.not_before_ms == 7);
        CHECK(code(text + " ", sign_base64(1, text)) == Code::corrupt);
        CHECK(code(text, sign_base64(2, text)) == Code::corrupt);
        CHECK(code(text, "AAAA") == Code::corrupt);
        CHECK(code(text, "") == Code::corrupt);
        CHECK(code(text, "!") == Code::corrupt);
        // A signature without its last byte, which is 0: sixteen texts have one such on average.
        for (std::string padded = text; padded.size() < text.size() + 500; padded += ' ') {
            std::string signature = sign_base64(1, padded);
            std::uint8_t raw[64];
            REQUIRE(decode_base64(signature, {raw, sizeof raw}).ok());
            if (raw[63] != 0) continue;
            CHECK(code(padded, signature) == Code::ok);
            CHECK(code(padded, encode_base64({raw, 63})) == Code::corrupt);
        }
        const auto replaced = [&text](const char *a, const char *b) {
            return std::string(text).replace(text.find(a), std::strlen(a), b);
        };
        for (const std::string &bad :
             {replaced("\"chip\":9", "\"chip\":-1"), replaced("\"size\":5", "\"size\":0"),
              replaced("\"size\":5", "\"size\":-5"), replaced("aaa", "aa"), replaced("\"chip\":9,", "")}) {
            CHECK_MESSAGE(code(bad, sign_base64(1, bad)) == Code::invalid, bad);
        }
        const std::string longest = text + std::string(1024 - text.size(), ' ');
        CHECK(code(longest, sign_base64(1, longest)) == Code::ok);
        CHECK(code(longest + " ", sign_base64(1, longest + " ")) == Code::no_space);
        const std::string esp32 = replaced("\"chip\":9", "\"chip\":0");
        CHECK(code(esp32, sign_base64(1, esp32)) == Code::ok);
        for (const char *bad : {"{}", "[]", "x"}) {
            CHECK(code(bad, sign_base64(1, bad)) == Code::invalid);
        }
    }
}
