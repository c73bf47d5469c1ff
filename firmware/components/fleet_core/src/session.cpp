// SPDX-License-Identifier: Apache-2.0
#include "fleet/session.hpp"

namespace fleet {
namespace {

bool is_hex128(std::string_view text) {
    return text.size() == 32 && text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

bool is_udp(JsonView udp) {
    const std::int64_t port = udp.integer_or("port", 0);
    return udp.member("server").is_string() && port >= 1 && port <= 65535 && is_hex128(udp.text("key")) &&
           is_hex128(udp.text("nonce"));
}

}  // namespace

void Session::receive(Bytes message) {
    if (on_message) on_message();
    const Result<Envelope> envelope = Envelope::parse(message.text(), limits_);
    if (!envelope.ok()) return server_.refuse_text(envelope.status());
    const std::string_view type = envelope.value().type();
    if (type == "mcp") return server_.handle(envelope.value());
    if (type == "hello") return hello(envelope.value());
    if (type == "goodbye") return goodbye(envelope.value());
    if (type == "system") return system(envelope.value());
    if (type == "alert") return alert(envelope.value());
}

void Session::hello(const Envelope &envelope) {
    const JsonView root = envelope.root();
    if (root.text("transport") != "udp" || !is_udp(root.member("udp"))) return;
    server_.set_session_id(envelope.session_id());
    channel_open_ = true;
}

// The id stays after a goodbye: stock devices go on sending it.
void Session::goodbye(const Envelope &envelope) {
    const JsonView id = envelope.root().member("session_id");
    if (id.is_string() && id.text() == server_.session_id()) channel_open_ = false;
}

void Session::system(const Envelope &envelope) {
    if (envelope.root().text("command") == "reboot" && on_reboot) on_reboot();
}

void Session::alert(const Envelope &envelope) {
    const JsonView status = envelope.root().member("status");
    const JsonView message = envelope.root().member("message");
    if (!status.is_string() || !message.is_string() || !envelope.root().member("emotion").is_string()) return;
    if (on_alert) on_alert(status.text(), message.text());
}

}  // namespace fleet
