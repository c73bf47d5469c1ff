// SPDX-License-Identifier: Apache-2.0
#include "mkimage/image_writer.hpp"

#include "boot/esp_image.hpp"
#include "ports/openssl_crypto.hpp"

#include <algorithm>

namespace fleet::host {

namespace {

void put32(std::string &out, std::uint32_t v) {
    for (int i = 0; i < 4; ++i)
        out += static_cast<char>(v >> (8 * i));
}

void put_text(std::string &out, const std::string &text, std::size_t width) {
    out += text.substr(0, width - 1);
    out.append(width - std::min(text.size(), width - 1), '\0');
}

std::string sha256(const std::string &bytes) {
    const auto sum = OpensslCrypto().sha256();
    sum->update(Bytes{bytes});
    const Digest digest = sum->finish();
    return {reinterpret_cast<const char *>(digest.data()), digest.size()};
}

std::string build_hash(const ImageSpec &s) {
    std::string all;
    for (const std::string *part : {&s.project, &s.version, &s.idf_version, &s.date, &s.time, &s.payload}) {
        all += *part;
        all += '\0';
    }
    put32(all, s.chip_id);
    put32(all, s.secure_version);
    put32(all, s.size);
    return sha256(all);
}

std::string header(const ImageSpec &s, std::uint32_t segment) {
    std::string out = {'\xE9', 1, 2, '\x2F'};
    put32(out, 0x40374000);
    out += {'\xEE', 0, 0, 0};
    out += static_cast<char>(s.chip_id);
    out += static_cast<char>(s.chip_id >> 8);
    out += std::string("\0\0\0\xFF\xFF\0\0\0\0\x01", 10);  // any revision; a hash follows
    put32(out, 0x3C000020);
    put32(out, segment);
    return out;
}

std::string description(const ImageSpec &s, const std::string &elf) {
    std::string out;
    put32(out, 0xABCD5432);
    put32(out, s.secure_version);
    out.append(8, '\0');
    put_text(out, s.version, 32);
    put_text(out, s.project, 32);
    put_text(out, s.time, 16);
    put_text(out, s.date, 16);
    put_text(out, s.idf_version, 32);
    out += elf;
    out.append(descriptor_size - out.size(), '\0');
    return out;
}

// Filler does not compress, and is the same for the same build.
std::string filler(const std::string &seed, std::size_t size) {
    std::string out, block = seed;
    while (out.size() < size)
        out += block = sha256(block);
    out.resize(size);
    return out;
}

void seal(std::string &image) {
    std::uint8_t sum = 0xEF;
    for (std::size_t i = descriptor_offset; i < image.size(); ++i) {
        sum = static_cast<std::uint8_t>(sum ^ static_cast<std::uint8_t>(image[i]));
    }
    while (image.size() % 16 != 15)
        image += '\0';
    image += static_cast<char>(sum);
    image += sha256(image);
}

}  // namespace

std::string make_image(const ImageSpec &spec) {
    const std::string elf = build_hash(spec);
    std::string content = spec.payload + std::string(4 - spec.payload.size() % 4, '\0');
    const std::size_t used = payload_offset + content.size() + 48;
    if (spec.size > used) content += filler(elf, (spec.size - used) / 4 * 4);
    std::string image = header(spec, static_cast<std::uint32_t>(descriptor_size + content.size()));
    image += description(spec, elf) + content;
    seal(image);
    return image;
}

}  // namespace fleet::host
