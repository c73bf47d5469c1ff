// SPDX-License-Identifier: Apache-2.0
#include "ports/mosquitto_transport.hpp"

#include <mosquitto.h>
#include <sys/socket.h>
#include <cerrno>
#include <mutex>

namespace fleet::host {

namespace {

constexpr int loop_ms = 200;
constexpr auto connect_limit = std::chrono::seconds(10);
constexpr std::size_t max_packet = 16 * 1024;  // what a device takes from its topic

void load_library() {
    static std::once_flag once;
    std::call_once(once, [] { mosquitto_lib_init(); });
}

Status refusal(int code) {
    switch (code) {
        case 1: return {Code::refused, "the broker does not speak MQTT 3.1.1"};
        case 2: return {Code::refused, "the broker refuses the client id"};
        case 4: return {Code::refused, "the broker refuses user name or password"};
        case 5: return {Code::refused, "the broker does not authorise this device"};
        default: return {Code::unavailable, "the broker is not available"};
    }
}

Status loop_end(int code) {
    switch (code) {
        case MOSQ_ERR_EAI: return {Code::unavailable, "the broker's name is not known"};
        case MOSQ_ERR_TLS: return {Code::refused, "TLS: the broker's certificate was not accepted"};
        case MOSQ_ERR_KEEPALIVE: return {Code::timeout, "the broker stopped answering"};
        case MOSQ_ERR_ERRNO:
            if (errno == ECONNREFUSED) return {Code::unavailable, "nothing listens at the broker's address"};
            break;
        default: break;
    }
    return {Code::unavailable, "the connection was lost"};
}

}  // namespace

// A Link is one connection and the thread that serves it. The thread touches
// only atomics and the handle, which libmosquitto guards.
struct MosquittoTransport::Link {
    mosquitto *handle = nullptr;
    std::thread thread;
    std::uint32_t generation = 0;
    Executor *executor = nullptr;
    std::weak_ptr<MosquittoTransport *> owner;
    std::atomic<bool> established{false}, quit{false}, over{false};

    ~Link() {
        quit = true;
        if (thread.joinable()) thread.join();
        if (handle != nullptr) mosquitto_destroy(handle);
    }

    template <typename Fn>
    void post(Fn fn) {
        executor->post([owner = owner, fn = std::move(fn)] {
            if (const auto alive = owner.lock()) fn(**alive);
        });
    }

    void report(TransportState state, Status why) {
        if (state != TransportState::up && over.exchange(true)) return;  // one end per link
        post([g = generation, state, why](MosquittoTransport &t) { t.report(g, state, why); });
    }

    void serve(std::string host, std::uint16_t port, int keepalive);
    void loop();

    static void on_connect(mosquitto *, void *self, int code);
    static void on_message(mosquitto *, void *self, const mosquitto_message *message);
};

void MosquittoTransport::Link::on_connect(mosquitto *, void *self, int code) {
    auto &link = *static_cast<Link *>(self);
    if (code != 0) {
        link.report(code <= 5 && code != 3 ? TransportState::refused : TransportState::down, refusal(code));
        return;
    }
    link.established = true;
    link.report(TransportState::up, {});
}

void MosquittoTransport::Link::on_message(mosquitto *, void *self, const mosquitto_message *message) {
    auto &link = *static_cast<Link *>(self);
    const auto size = static_cast<std::size_t>(message->payloadlen);
    if (size > max_packet) {
        link.post([g = link.generation](MosquittoTransport &t) {
            if (g == t.generation_ && t.on_too_long) t.on_too_long();
        });
        return;
    }
    std::string payload(static_cast<const char *>(message->payload), size);
    link.post([g = link.generation, payload = std::move(payload)](MosquittoTransport &t) { t.receive(g, payload); });
}

void MosquittoTransport::Link::serve(std::string host, std::uint16_t port, int keepalive) {
    const int begun = mosquitto_connect_async(handle, host.c_str(), port, keepalive);
    if (begun != MOSQ_ERR_SUCCESS) {
        report(TransportState::down, loop_end(begun));
        return;
    }
    loop();
}

void MosquittoTransport::Link::loop() {
    const auto deadline = std::chrono::steady_clock::now() + connect_limit;
    for (;;) {
        const int code = mosquitto_loop(handle, loop_ms, 1);
        if (code != MOSQ_ERR_SUCCESS) {
            report(TransportState::down, loop_end(code));
            return;
        }
        if (quit) return;
        if (!established && std::chrono::steady_clock::now() > deadline) {
            report(TransportState::down, {Code::timeout, "the broker did not answer in 10 s"});
            return;
        }
    }
}

MosquittoTransport::MosquittoTransport(Executor &executor, TlsSettings tls)
    : executor_(executor), tls_(std::move(tls)), self_(std::make_shared<MosquittoTransport *>(this)) {
    load_library();
}

MosquittoTransport::~MosquittoTransport() {
    stop(false);
}

Status MosquittoTransport::encrypt(Link &link) {
    const int code = tls_.ca_file.empty()
                         ? mosquitto_int_option(link.handle, MOSQ_OPT_TLS_USE_OS_CERTS, 1)
                         : mosquitto_tls_set(link.handle, tls_.ca_file.c_str(), nullptr, nullptr, nullptr, nullptr);
    return code == MOSQ_ERR_SUCCESS ? Status{} : Status{Code::io, "the file of trusted certificates cannot be read"};
}

Status MosquittoTransport::configure(Link &link, const BrokerSettings &s, std::string_view will_topic,
                                     std::string_view will) {
    mosquitto_threaded_set(link.handle, true);
    mosquitto_int_option(link.handle, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V311);
    mosquitto_connect_callback_set(link.handle, Link::on_connect);
    mosquitto_message_callback_set(link.handle, Link::on_message);
    if (!s.username.empty() &&
        mosquitto_username_pw_set(link.handle, s.username.c_str(), s.password.c_str()) != MOSQ_ERR_SUCCESS) {
        return {Code::invalid, "user name or password is not UTF-8"};
    }
    if (!will_topic.empty() &&
        mosquitto_will_set(link.handle, std::string(will_topic).c_str(), static_cast<int>(will.size()), will.data(), 0,
                           false) != MOSQ_ERR_SUCCESS) {
        return {Code::invalid, "the topic of the last will makes no sense"};
    }
    return s.port == tls_.port ? encrypt(link) : Status{};
}

void MosquittoTransport::connect_to(std::string host, std::uint16_t port) {
    forced_host_ = std::move(host);
    forced_port_ = port;
}

Status MosquittoTransport::start(const BrokerSettings &settings, std::string_view will_topic, std::string_view will) {
    stop(false);
    if (unplugged_) return {Code::unavailable, "there is no network"};
    BrokerSettings s = settings;
    if (!forced_host_.empty()) s.host = forced_host_, s.port = forced_port_;
    auto link = std::make_unique<Link>();
    link->generation = ++generation_;
    link->executor = &executor_;
    link->owner = self_;
    link->handle = mosquitto_new(s.client_id.empty() ? nullptr : s.client_id.c_str(), true, link.get());
    if (link->handle == nullptr) return {Code::invalid, "the client id makes no sense"};
    const Status ready = configure(*link, s, will_topic, will);
    if (!ready.ok()) return ready;
    link_ = std::move(link);
    link_->thread = std::thread([raw = link_.get(), host = s.host, port = s.port, keepalive = s.keepalive_s] {
        raw->serve(host, port, keepalive < 5 ? 5 : keepalive);
    });
    return {};
}

// A goodbye waits for the thread: it flushes what was published, then the DISCONNECT.
void MosquittoTransport::stop(bool say_goodbye) {
    if (!link_) return;
    ++generation_;
    if (say_goodbye && link_->established && !link_->over) {
        mosquitto_disconnect(link_->handle);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
        while (!link_->over && std::chrono::steady_clock::now() < deadline) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    link_.reset();
    executor_.post([owner = std::weak_ptr(self_)] {
        const auto alive = owner.lock();
        if (alive && (*alive)->on_stopped) (*alive)->on_stopped();
    });
}

Status MosquittoTransport::publish(std::string_view topic, Bytes payload, int qos, bool retain) {
    if (!link_ || !link_->established || link_->over) return {Code::unavailable, "no connection to the broker"};
    const int code = mosquitto_publish(link_->handle, nullptr, std::string(topic).c_str(),
                                       static_cast<int>(payload.size), payload.data, qos, retain);
    switch (code) {
        case MOSQ_ERR_SUCCESS: return {};
        case MOSQ_ERR_NOMEM: return {Code::no_memory, "no memory for a message"};
        case MOSQ_ERR_NO_CONN: return {Code::unavailable, "no connection to the broker"};
        default: return {Code::invalid, "the message was not accepted"};
    }
}

void MosquittoTransport::unplug() {
    unplugged_ = true;
}

void MosquittoTransport::cut() {
    if (!link_ || link_->over) return;
    const int fd = mosquitto_socket(link_->handle);
    if (fd >= 0) ::shutdown(fd, SHUT_RDWR);
}

void MosquittoTransport::deliver_twice() {
    twice_ = true;
}

void MosquittoTransport::report(std::uint32_t generation, TransportState state, Status why) {
    if (generation == generation_ && on_state) on_state(state, why);
}

void MosquittoTransport::receive(std::uint32_t generation, std::string payload) {
    for (int i = 0; i < (twice_ ? 2 : 1); ++i) {
        if (generation == generation_ && on_message) on_message(Bytes{payload});
    }
}

}  // namespace fleet::host
