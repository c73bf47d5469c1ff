// SPDX-License-Identifier: Apache-2.0
// ESP-IDF played on the host: each namespace is one part of it, with what tests
// script and what they look at. Nothing runs on its own; time passes only while
// somebody waits.
#pragma once

#include "fleet_esp/task_executor.hpp"

#include "driver/gpio.h"
#include "esp_core_dump.h"
#include "esp_http_client.h"
#include "esp_http_server.h"
#include "esp_jpeg_common.h"
#include "esp_ota_ops.h"
#include "esp_system.h"
#include "esp_wifi.h"
#include "mqtt_client.h"
#include "network_provisioning/manager.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fake {

// Everything as after power-on.
void reset();

namespace rtos {
extern std::int64_t now_us;
extern int tasks;                                    // made
extern std::map<std::string, std::uint32_t> stacks;  // bytes never used, by task
extern int tasks_to_refuse;                          // from the first on
extern void *current;                                // the task that runs
extern int watchdog_feeds;
extern std::int64_t last_feed_us, longest_unfed_us;  // between two feeds
extern std::int64_t longest_turn_us;                 // of the executor, without its waiting
// pass lets time go by; the tasks of esp-mqtt run meanwhile.
void pass(std::int64_t us);
// run lets the executor and its worker work for so long of fake time.
void run(fleet::esp::TaskExecutor &executor, std::uint32_t ms);
}  // namespace rtos

namespace events {
void post(esp_event_base_t base, std::int32_t id, void *data);
}

namespace nvs {
struct Value {
    bool is_int = false;
    std::int64_t number = 0;
    std::string blob;
};
extern std::map<std::string, Value> values;
extern esp_err_t init_result, write_result;
extern int erases, commits;
}  // namespace nvs

namespace ota {
struct Slot {
    esp_partition_t partition = {};
    std::string flash;
    esp_app_desc_t desc = {};
    bool described = false;
    esp_ota_img_states_t state = ESP_OTA_IMG_UNDEFINED;
};
extern std::vector<Slot> slots;  // the first one runs; with one slot there is no other
extern const esp_partition_t *boots;
extern std::size_t erase_mode, resumed_at;
extern esp_err_t begin_result, write_result, end_result, boot_result;
extern bool rollback_possible, marked_valid, marked_invalid, aborted;
// describe_other is what a written image says of itself.
void describe(Slot &slot, const char *project, const char *version, std::uint32_t secure_version);
}  // namespace ota

namespace http {
struct Answer {
    esp_err_t open_result = ESP_OK;
    std::int64_t length = 0;  // as esp_http_client_fetch_headers gives it
    int status = 200;
    bool chunked = false;
    std::string etag;
    std::string body;
    std::size_t breaks_at = std::string::npos;  // of the body
    int break_result = 0;                       // of the read that comes then
    std::int64_t read_us = 0;                   // time that each read of the socket takes
    std::size_t read_size = 1000;               // bytes that each read of the socket gives
    std::size_t framing = 0;                    // bytes before the body that raise no event
};
struct Request {
    std::string url;
    bool post = false;
    int length = 0;
    bool redirects = false;
    esp_err_t (*attach)(void *) = nullptr;  // of certificates
    std::map<std::string, std::string> headers;
    std::string body;
};
extern std::deque<Answer> answers;  // for the next requests; an empty queue refuses
extern std::vector<Request> requests;
extern int open_clients;
extern int reads;  // of the body, by the firmware
Answer answer(std::string body, int status = 200);
}  // namespace http

// esp-mqtt's task and its lock, in fake time. As read in espressif/esp-mqtt 1.1.0:
// a turn of its loop receives, sends one message that was queued, and then waits up to
// MQTT_POLL_READ_TIMEOUT_MS for input. A publish writes at once, and waits while the
// lock is held: by a connect, or by a write that TCP does not take. After a lost link
// the task sleeps for half of reconnect_timeout_ms at a time, and stop waits for it.
namespace mqtt {
constexpr std::int64_t poll_us = 1'000'000;
constexpr std::int64_t write_us = 3'000;  // of a publish, measured over TCP
struct Sent {
    std::string topic, payload;
    bool was_null = false;
    int qos = 0;
    bool retain = false;
    std::int64_t at_us = 0;
};
enum class Link { idle, connecting, up, down };
struct Client {
    std::string host, client_id, username, password, will_topic, will;
    std::uint32_t port = 0;
    int keepalive = 0, reconnect_ms = 0, timeout_ms = 0;
    bool tls = false, reconnects = true, has_username = false;
    bool started = false, stopped = false, disconnected = false, destroyed = false;
    bool running = false;  // its task
    bool stalled = false;  // TCP takes no more bytes
    Link link = Link::idle;
    std::int64_t due_us = 0;                // the next turn of its loop
    std::int64_t locked_us = 0;             // until then its lock is held
    std::int64_t closed_us = 0;             // when its DISCONNECT left
    esp_err_t (*attach)(void *) = nullptr;  // of certificates
    esp_mqtt_client_handle_t handle = nullptr;
    esp_event_handler_t handler = nullptr;
    void *arg = nullptr;
    std::deque<Sent> queue;
    std::vector<Sent> sent;  // on the wire
};
extern std::vector<Client *> clients;  // in the order they were made
extern int publish_result;
extern esp_err_t start_result;
Client &last();
void up(Client &client);
void down(Client &client);
void refuse(Client &client, esp_mqtt_connect_return_code_t code);
void message(Client &client, const std::string &text, std::size_t piece = 1024);
// turn_before runs the turn that is due first, if one is until then.
bool turn_before(std::int64_t until_us);
}  // namespace mqtt

namespace wifi {
extern wifi_config_t stored;
extern int connects, disconnects, starts, access_points;
extern int collisions;  // attempts while the station was connecting or connected
extern bool connecting, associated;
extern std::vector<wifi_ap_record_t> found;
extern esp_err_t init_result, scan_result, connect_result;
void got_ip();
void lost_ip();
void lost(int reason);
}  // namespace wifi

namespace provisioning {
extern bool initialized, started;
extern std::string service, salt, verifier, code;
extern int resets;
extern wifi_config_t configured;
extern esp_err_t srp_result, configure_result;
extern void *shared_server;     // an httpd_handle_t of the firmware's
extern bool shared_server_ran;  // when the manager removed its handlers
void raise(network_prov_cb_event_t event);
}  // namespace provisioning

// The server of the setup page.
namespace web {
struct Handler {
    std::string uri;
    int method;
    esp_err_t (*handler)(httpd_req_t *);
};
struct Client {
    int method = HTTP_GET;
    std::string uri = "/", host = "192.168.4.27", body;
    std::size_t announced = 0;  // length of the body that it announces, if another one
    std::size_t piece = 1000;   // bytes of the body that it sends at once,
    std::int64_t pause_us = 0;  // after so long
    bool resets = false;        // the connection, instead of sending
};
struct Reply {
    int status = 0;  // 0: none
    std::map<std::string, std::string> headers;
    std::string body;
    bool kept = false;    // the connection, for another request
    bool closed = false;  // and its memory is free
};
extern bool running;
extern httpd_config_t config;
extern esp_err_t start_result;
extern std::vector<Handler> handlers;
extern std::map<int, httpd_err_handler_func_t> errors;
Reply send(const Client &client);
}  // namespace web

// The one UDP socket: that of the access point's name server.
namespace udp {
extern int opened, closed, port;
extern std::uint32_t address;  // in network order
extern esp_err_t bind_result;
extern std::deque<std::string> incoming;
extern std::vector<std::string> sent;
}  // namespace udp

namespace dhcp {
extern std::uint32_t name_server;
extern int offer, starts;
}  // namespace dhcp

namespace chip {
extern esp_reset_reason_t reset_reason;
extern int restarts;
extern std::string serial;  // in the fuses
extern bool has_hmac_key;
extern std::map<int, int> pins;
extern float celsius;
extern std::uint8_t next_random;
}  // namespace chip

// esp-tls and the bundle, as far as a connection shows its certificate.
namespace tls {
extern std::string parsed;         // what the last private authority was read from
extern std::uint32_t bundle_sees;  // flags that reached the bundle's own check
// connect attaches, and checks a certificate with these flags: 0 is a good one.
std::uint32_t connect(esp_err_t (*attach)(void *), std::uint32_t flags);
}  // namespace tls

namespace i2c {
extern bool answers;
extern std::map<int, std::string> registers;  // of the one device
extern int address;                           // of it
extern std::vector<std::string> written;      // each without an answer
}  // namespace i2c

namespace core_dump {
extern bool present;
extern int checks;  // each sums the whole dump
extern std::string bytes, reason;
extern esp_core_dump_summary_t summary;
}  // namespace core_dump

namespace lights {
extern std::map<int, std::uint32_t> duty;  // of a channel
extern std::map<int, int> pin;             // of a channel
extern std::uint32_t rgb;
extern esp_err_t result;
}  // namespace lights

namespace screen {
extern std::vector<std::uint8_t> dots;  // what the panel shows, as it was sent
extern int width, height;
extern esp_err_t result;
extern bool hangs;
extern std::uint16_t jpeg_width, jpeg_height;  // of the next picture decoded
extern bool bad_jpeg;
extern int live_codecs;
}  // namespace screen

namespace heap {
extern std::uint32_t asked;                                  // the capabilities of the last question
extern std::vector<std::unique_ptr<std::uint8_t[]>> blocks;  // in use
}  // namespace heap

namespace serial {
extern std::string incoming, outgoing;
extern esp_err_t result;
}  // namespace serial

namespace log {
extern std::string text;  // what went to the console
// write logs a piece of a line, as the Wi-Fi library does.
void write(const std::string &piece);
}  // namespace log

}  // namespace fake
