// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include "fleet/app_image.hpp"
#include "fleet/image_check.hpp"

#include <cstring>

namespace fleet::test {

void FakeSystem::random(MutableBytes into) const {
    for (std::size_t i = 0; i < into.size; i++) {
        seed = seed * 1664525 + 1013904223;
        into.data[i] =
            fixed_random >= 0 ? static_cast<std::uint8_t>(fixed_random) : static_cast<std::uint8_t>(seed >> 24);
    }
}

Result<HttpResponse> FakeHttp::get(std::string_view url, std::int64_t range_from,
                                   FunctionRef<Status(const HttpResponse &)> begin, FunctionRef<Status(Bytes)> sink) {
    const std::size_t n = asked_from.size();
    asked_from.push_back(range_from);
    const auto file = files.find(std::string(url));
    const bool partial = ranges && range_from > 0;
    HttpResponse r;
    r.status = file == files.end() ? 404 : partial ? 206 : 200;
    if (n < get_status.size() && get_status[n]) r.status = get_status[n];
    r.etag = etag;
    std::string_view body = file == files.end() ? std::string_view() : std::string_view(file->second);
    if (partial) body = body.substr(static_cast<std::size_t>(range_from));
    if (says_length) r.content_length = static_cast<std::int64_t>(body.size());
    if (Status s = begin(r); !s.ok()) return s;
    const std::int64_t cut = n < cut_at.size() ? cut_at[n] : -1;
    const bool whole = cut < 0 || static_cast<std::size_t>(cut) >= body.size();
    if (!whole) body = body.substr(0, static_cast<std::size_t>(cut));
    for (; !body.empty(); body.remove_prefix(std::min(piece, body.size()))) {
        if (on_piece) on_piece();
        if (Status s = sink(Bytes(body.substr(0, piece))); !s.ok()) return s;
    }
    return whole ? Result<HttpResponse>(r) : Status{Code::unavailable, "connection reset"};
}

Result<HttpResponse> FakeHttp::post(std::string_view url, const HttpHeader *list, std::size_t count, Bytes body,
                                    std::string &reply, std::size_t) {
    posted.push_back(std::string(url) + "\n" + std::string(body.text()));
    headers.clear();
    for (std::size_t i = 0; i < count; i++)
        headers[list[i].name] = list[i].value;
    std::vector<Answer> &queue = answers[std::string(url)];
    if (queue.empty()) return Status{Code::unavailable, "no route"};
    const Answer a = queue.front();
    if (queue.size() > 1) queue.erase(queue.begin());
    if (a.unreachable) return Status{Code::unavailable, "no route"};
    reply = a.body;
    HttpResponse r;
    r.status = a.status;
    return r;
}

FakeUpdater::FakeUpdater(FakeSystem &system) : system_(system) {
    slots[0].info = {"ota_0", "1.0.0", std::string(64, 'a'), 1 << 20, SlotState::valid};
    slots[1].info = {"ota_1", "", "", 1 << 20, SlotState::undefined};
}

Result<SlotInfo> FakeUpdater::other() const {
    if (single) return Status{Code::not_found, "this board has a single slot"};
    return slots[1 - current].info;
}

Status FakeUpdater::begin(std::uint32_t, std::uint32_t resume_from) {
    if (powerless && powerless()) return {Code::io, "no power"};
    Slot &s = slots[1 - current];
    if (resume_from > s.bytes.size()) return {Code::invalid, "there is not so much in the slot"};
    s.bytes.resize(resume_from);
    s.info.state = SlotState::undefined;
    return {};
}

Status FakeUpdater::write(Bytes chunk) {
    if (broken) return {Code::io, "flash write failed"};
    if (powerless && powerless()) return {Code::io, "no power"};
    slots[1 - current].bytes.append(chunk.text());
    return {};
}

Status FakeUpdater::finish() {
    if (powerless && powerless()) return {Code::io, "no power"};
    ImageCheck check(crypto_);
    check.update(Bytes(slots[1 - current].bytes));
    return check.finish();
}

Status FakeUpdater::read_back(std::uint32_t offset, MutableBytes into) {
    const std::string &bytes = slots[1 - current].bytes;
    if (offset + into.size > bytes.size()) return {Code::io, "past the end"};
    std::memcpy(into.data, bytes.data() + offset, into.size);
    return {};
}

Status FakeUpdater::boot_other() {
    if (cannot_switch) return {Code::io, "otadata cannot be written"};
    if (powerless && powerless()) return {Code::io, "no power"};
    Slot &s = slots[1 - current];
    next = 1 - current;
    if (s.info.state != SlotState::valid) s.info.state = SlotState::fresh;
    if (s.bytes.empty()) return {};
    ImageHead head;
    (void)parse_image_head(Bytes(s.bytes), head);
    s.info.version = head.version;
    s.info.elf_sha256 = head.elf_sha256;
    return {};
}

Status FakeUpdater::mark_valid() {
    if (broken) return {Code::io, "otadata cannot be written"};
    if (powerless && powerless()) return {Code::io, "no power"};
    slots[current].info.state = SlotState::valid;
    return {};
}

Status FakeUpdater::mark_invalid() {
    if (powerless && powerless()) return {Code::io, "no power"};
    slots[current].info.state = SlotState::invalid;
    next = 1 - current;
    return {};
}

void FakeUpdater::boot() {
    SlotState &state = slots[next].info.state;
    if (state == SlotState::pending_verify) {  // restarted without having proved itself
        state = SlotState::aborted;
        next = 1 - next;
    } else if (state == SlotState::fresh) {
        state = SlotState::pending_verify;
    }
    current = next;
    system_.info.version = slots[current].info.version;
    system_.info.elf_sha256 = slots[current].info.elf_sha256;
}

FakeMachine::FakeMachine() {
    machine.board = {"fleet-devkit", "fleet-devkit-s3", "Example", "en-US"};
    machine.executor = &executor;
    machine.clock = &clock;
    machine.transport = &transport;
    machine.http = &http;
    machine.store = &store;
    machine.updater = &updater;
    machine.system = &system;
    machine.crypto = &crypto;
    machine.network = &network;
    machine.display = &display;
}

std::string make_image(std::string_view version, std::size_t size, std::uint16_t chip, std::string_view project,
                       std::uint8_t secure_version) {
    std::string image(32, '\0');
    image[0] = '\xE9';
    image[1] = 1;
    image[12] = static_cast<char>(chip & 0xff);
    image[13] = static_cast<char>(chip >> 8);
    image[23] = 1;
    for (int i = 0; i < 4; i++)
        image[28 + i] = static_cast<char>(size >> (8 * i));
    std::string data(size, '\0');
    data.replace(0, 4, "\x32\x54\xCD\xAB");
    data[4] = static_cast<char>(secure_version);
    data.replace(16, version.size(), version);
    data.replace(48, project.size(), project);
    for (std::size_t i = 144; i < 176; i++)
        data[i] = static_cast<char>(version.back() + i);  // the elf's hash
    for (std::size_t i = 256; i < size; i++)
        data[i] = static_cast<char>(i * 7 + i / 256);
    std::uint8_t sum = 0xEF;
    for (const char c : data)
        sum ^= static_cast<std::uint8_t>(c);
    image += data;
    image.resize((image.size() + 16) / 16 * 16, '\0');
    image.back() = static_cast<char>(sum);
    SodiumCrypto crypto;
    auto hash = crypto.sha256();
    hash->update(Bytes(image));
    const Digest d = hash->finish();
    return image.append(reinterpret_cast<const char *>(d.data()), d.size());
}

}  // namespace fleet::test
