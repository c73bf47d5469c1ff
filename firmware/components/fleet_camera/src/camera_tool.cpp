// SPDX-License-Identifier: Apache-2.0
#include "fleet/camera_tool.hpp"

#include "fleet/boot_poll.hpp"
#include "fleet/hex.hpp"
#include "fleet/later.hpp"

#include <iterator>
#include <memory>

namespace fleet {

namespace {

constexpr std::size_t max_answer = 7 * 1024;  // fleetd's limit, too

constexpr Property photo_properties[] = {
    Property::Text("question").Required().AtMost(1024).Describe("what is to be found out about the photo"),
};
constexpr ToolInfo photo_info =
    ToolInfo("self.camera.take_photo",
             "Take a photo with the device's camera and answer a question about it. Use this "
             "tool when the user asks the device to look at something.")
        .With(photo_properties);

// A Photo is one call. It is deleted with its answer.
struct Photo {
    const Machine &machine;
    McpServer &server;
    Ticket ticket;
    std::size_t most;  // bytes of a picture
    std::string url, token, client, question;
    std::string answer;  // text of the server, or the picture itself
    Status outcome;
    int http = 0;  // a status that was not expected
};

std::string make_boundary(const System &system) {
    std::uint8_t random[16];
    system.random({random, sizeof random});
    return "----fleet" + encode_hex({random, sizeof random});
}

Status expose(Photo &photo, PhotoSize size, std::string &into) {
    const std::size_t before = into.size();
    const auto keep = [&](Bytes part) -> Status {
        if (part.size > photo.most - (into.size() - before)) return {Code::no_memory, "the photo is too large"};
        into.append(part.text());
        return {};
    };
    return photo.machine.camera->take(size, keep);
}

// upload makes the form in memory: cameras come with PSRAM, and the length of a form
// has to be known before it is sent.
Status upload(Photo &photo) {
    const std::string boundary = make_boundary(*photo.machine.system);
    std::string form = "--" + boundary + "\r\nContent-Disposition: form-data; name=\"question\"\r\n\r\n";
    form.append(photo.question).append("\r\n--").append(boundary);
    form.append(
        "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"camera.jpg\"\r\n"
        "Content-Type: image/jpeg\r\n\r\n");
    if (Status s = expose(photo, PhotoSize::full, form); !s.ok()) return s;
    form.append("\r\n--").append(boundary).append("--\r\n");
    const HttpHeader headers[] = {
        {"Device-Id", photo.machine.system->mac()},
        {"Client-Id", photo.client},
        {"Content-Type", "multipart/form-data; boundary=" + boundary},
        {"Authorization", "Bearer " + photo.token},
    };
    const std::size_t count = std::size(headers) - (photo.token.empty() ? 1 : 0);
    const auto sent = photo.machine.http->post(photo.url, headers, count, Bytes(form), photo.answer, max_answer);
    if (!sent.ok()) return sent.status();
    if (sent.value().status == 200) return {};
    photo.http = sent.value().status;
    return {Code::unavailable, "the server did not take the photo, status "};
}

void answer(void *self) {
    const std::unique_ptr<Photo> photo(static_cast<Photo *>(self));
    photo->server.finish(photo->ticket, [&photo](ToolResult &result) -> Status {
        const Status &s = photo->outcome;
        if (photo->http != 0) return result.fail(s.code, s.why, std::to_string(photo->http));
        if (!s.ok()) return s;
        return photo->url.empty() ? result.image("image/jpeg", Bytes(photo->answer)) : result.text(photo->answer);
    });
}

void run(void *self) {
    Photo &photo = *static_cast<Photo *>(self);
    photo.outcome = photo.url.empty() ? expose(photo, PhotoSize::small, photo.answer) : upload(photo);
    post(photo.machine, {answer, &photo});
}

bool has_control(std::string_view text) {
    for (const char c : text) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return true;
    }
    return false;
}

}  // namespace

// read_vision takes an address whole or not at all: a cut token would only be refused.
void CameraTool::read_vision(JsonView capabilities) {
    const JsonView vision = capabilities.member("vision");
    if (!vision.is_object()) return;
    const std::string_view url = vision.text("url");
    const std::string_view token = vision.text("token");
    if (url.size() > max_url || token.size() > max_token || has_control(token)) return;
    url_ = url;
    token_ = token;
}

// Without an address the photo itself is the answer: a small one, since answers are.
Status CameraTool::take_photo(void *self, Call &call) {
    CameraTool &tool = *static_cast<CameraTool *>(self);
    Toolkit &kit = *tool.kit_;
    if (!tool.url_.empty()) {
        if (Status allowed = kit.unit->check_url(tool.url_); !allowed.ok()) return allowed;
    }
    const Result<Ticket> ticket = call.defer();
    if (!ticket.ok()) return ticket.status();
    const Machine &m = *kit.machine;
    auto *photo = new Photo{m,
                            kit.unit->server(),
                            ticket.value(),
                            kit.picture_bytes,
                            tool.url_,
                            tool.token_,
                            client_id(*m.store, *m.system),
                            std::string(call.args.text("question")),
                            {},
                            {},
                            0};
    work(m, {run, photo});
    return {};
}

Status CameraTool::add(ToolRegistry &registry, Toolkit &kit) {
    if (kit.machine->camera == nullptr) return {};
    kit_ = &kit;
    kit.unit->server().on_capabilities = [this](JsonView capabilities) { read_vision(capabilities); };
    return registry.add(photo_info, take_photo, this);
}

}  // namespace fleet
