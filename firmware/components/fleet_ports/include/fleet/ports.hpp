// SPDX-License-Identifier: Apache-2.0
// What the core needs of the machine it runs on, as interfaces: implemented by
// fleet_esp on ESP-IDF, by host/vdevice on Linux, and by fakes in tests.
//
// The core is single-threaded on the Executor. Ports call back only through
// Executor::post, never from a thread of their own, so that tests pump by hand
// with a fake clock. No type of ESP-IDF or POSIX appears here.
#pragma once

#include "fleet/crypto.hpp"
#include "fleet/hook.hpp"
#include "fleet/span.hpp"
#include "fleet/status.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fleet {

// Executor runs functions one after another.
class Executor {
public:
    virtual ~Executor() = default;
    virtual void post(std::function<void()> fn) = 0;
    virtual void post_after(std::uint32_t ms, std::function<void()> fn) = 0;
    // work runs fn on a worker, for jobs that block: downloads, uploads. There
    // is one worker; jobs queue.
    virtual void work(std::function<void()> fn) = 0;
};

class Clock {
public:
    virtual ~Clock() = default;
    virtual std::int64_t mono_us() const = 0;  // since boot, never jumps
    virtual std::int64_t unix_ms() const = 0;  // 0 while not synced
    virtual bool synced() const = 0;
    virtual void set_unix_ms(std::int64_t ms, std::int32_t zone_minutes) = 0;  // from the boot poll's server_time
};

enum class TransportState : std::uint8_t { down, connecting, up, refused };

struct BrokerSettings {
    std::string host;
    std::uint16_t port = 0;  // 8883 means TLS
    std::string client_id;
    std::string username;
    std::string password;
    std::string publish_topic;
    std::uint16_t keepalive_s = 60;
    bool sign_connect = false;  // the password goes with a signature: connect_password
};

// Transport is one MQTT connection. Reconnecting is the core's business: a
// transport tries once per start().
class Transport {
public:
    virtual ~Transport() = default;
    virtual Status start(const BrokerSettings &settings, std::string_view will_topic, std::string_view will) = 0;
    // stop does not wait. With a goodbye, what was published leaves first, then
    // a DISCONNECT; on_stopped says when that is over, well or not.
    virtual void stop(bool say_goodbye) = 0;
    virtual Status publish(std::string_view topic, Bytes payload, int qos, bool retain) = 0;
    Hook<void(Bytes payload)> on_message;         // whole messages, any topic
    Hook<void()> on_too_long;                     // one came that is longer than this link takes
    Hook<void(TransportState, Status)> on_state;  // down and refused say why
    Hook<void()> on_stopped;
};

struct HttpResponse {
    int status = 0;
    std::int64_t content_length = -1;  // -1: none was stated
    std::string etag;
};

struct HttpHeader {
    const char *name;
    std::string value;
};

// HttpClient blocks: call it on the worker. No redirects, bounded times, and no
// more than one request at once. A status other than 2xx is an answer, not a
// failure; a body shorter than its content_length is one (unavailable).
class HttpClient {
public:
    virtual ~HttpClient() = default;
    // get calls begin once with the answer's head, then streams the body into
    // sink. Either stops the transfer by a failure, which get then returns.
    // range_from > 0 asks for the rest of the file; the answer's status says
    // whether the server went along (206) or starts over (200).
    virtual Result<HttpResponse> get(std::string_view url, std::int64_t range_from,
                                     FunctionRef<Status(const HttpResponse &)> begin,
                                     FunctionRef<Status(Bytes)> sink) = 0;
    virtual Result<HttpResponse> post(std::string_view url, const HttpHeader *headers, std::size_t header_count,
                                      Bytes body, std::string &reply, std::size_t reply_limit) = 0;
    // post_file uploads one multipart part named "file"; source fills its buffer
    // and returns 0 at the end.
    virtual Result<HttpResponse> post_file(std::string_view url, std::string_view file_name,
                                           std::string_view media_type,
                                           FunctionRef<Result<std::size_t>(MutableBytes)> source) = 0;
};

// KvStore keeps settings over restarts. Keys have at most 15 characters (NVS).
class KvStore {
public:
    virtual ~KvStore() = default;
    virtual Result<std::int64_t> get_int(std::string_view key) = 0;
    virtual Result<std::string> get(std::string_view key) = 0;
    virtual Status set_int(std::string_view key, std::int64_t value) = 0;
    virtual Status set(std::string_view key, std::string_view value) = 0;
    virtual Status erase(std::string_view key) = 0;  // a key that is not there is ok
    virtual Status commit() = 0;
};

enum class SlotState : std::uint8_t { fresh, pending_verify, valid, invalid, aborted, undefined };

struct SlotInfo {
    std::string label;  // "ota_0"
    std::string version;
    std::string elf_sha256;
    std::uint32_t size = 0;  // of the partition
    SlotState state = SlotState::undefined;
};

constexpr const char *to_string(SlotState state) {
    switch (state) {
        case SlotState::fresh: return "new";
        case SlotState::pending_verify: return "pending_verify";
        case SlotState::valid: return "valid";
        case SlotState::invalid: return "invalid";
        case SlotState::aborted: return "aborted";
        case SlotState::undefined: break;
    }
    return "undefined";
}

// Updater writes the slot that is not running: on the worker from begin to
// finish, while running and other are asked on the executor.
class Updater {
public:
    virtual ~Updater() = default;
    virtual SlotInfo running() const = 0;
    virtual Result<SlotInfo> other() const = 0;  // not_found on boards with a single app
    // begin opens the other slot; resume_from > 0 keeps what was written so far.
    virtual Status begin(std::uint32_t image_size, std::uint32_t resume_from) = 0;
    virtual Status write(Bytes chunk) = 0;
    virtual Status finish() = 0;  // checks what was written: magic, chip, segments, checksum, hash
    virtual void abort() = 0;
    virtual Status read_back(std::uint32_t offset, MutableBytes into) = 0;  // of the other slot
    virtual Status boot_other() = 0;                                        // at the next restart
    virtual Status mark_valid() = 0;
    virtual Status mark_invalid() = 0;  // the next restart goes back to the other slot
};

enum class ResetReason : std::uint8_t { power_on, software, panic, watchdog, brownout, deep_sleep, external, other };

constexpr const char *to_string(ResetReason reason) {
    switch (reason) {
        case ResetReason::power_on: return "power_on";
        case ResetReason::software: return "software";
        case ResetReason::panic: return "panic";
        case ResetReason::watchdog: return "watchdog";
        case ResetReason::brownout: return "brownout";
        case ResetReason::deep_sleep: return "deep_sleep";
        case ResetReason::external: return "external";
        case ResetReason::other: break;
    }
    return "other";
}

struct ChipInfo {
    const char *model = "";  // "esp32s3"
    std::uint16_t image_id = 0;
    std::uint8_t cores = 1;
    std::uint16_t revision = 0;  // major*100+minor
    std::uint32_t flash_size = 0;
};

// AppInfo is the description inside the running image.
struct AppInfo {
    std::string project;
    std::string version;
    std::string compile_time;
    std::string idf_version;
    std::string elf_sha256;  // 64 hex digits
    std::uint32_t secure_version = 0;
};

class System {
public:
    virtual ~System() = default;
    // Not [[noreturn]]: a fake of a test comes back, so callers return at once.
    virtual void restart() = 0;
    virtual const AppInfo &app() const = 0;
    virtual ResetReason reset_reason() const = 0;
    // The heap inside the chip: PSRAM is slow, plenty, and no help to Wi-Fi and TLS.
    virtual std::uint32_t heap_free() const = 0;
    virtual std::uint32_t heap_min() const = 0;
    virtual std::uint32_t heap_largest() const = 0;
    virtual ChipInfo chip() const = 0;
    virtual std::string mac() const = 0;  // "a0:85:e3:11:22:33"
    virtual void random(MutableBytes into) const = 0;
    virtual std::string partition_table_json() const = 0;  // for the boot poll
    virtual void feed_watchdog() = 0;
    // stacks names each task, and how many bytes of its stack have never been used.
    virtual void stacks(FunctionRef<void(std::string_view task, std::uint32_t never_used)>) const {}
    virtual Result<int> temperature() const { return Status{Code::unsupported, "no sensor"}; }  // tenths of a degree
};

enum class PictureFormat : std::uint8_t { jpeg, png };

class Display {
public:
    virtual ~Display() = default;
    virtual int width() const = 0;
    virtual int height() const = 0;
    virtual bool monochrome() const = 0;
    virtual Status snapshot(PictureFormat format, int quality, FunctionRef<Status(Bytes)> sink) = 0;
    virtual Status show_picture(Bytes jpeg) = 0;
    virtual void show_text(std::string_view title, std::string_view text) = 0;
    virtual Status set_brightness(int percent) = 0;
    virtual Result<int> brightness() const = 0;  // unsupported without a backlight
    virtual Status set_theme(std::string_view theme) = 0;
    virtual std::string theme() const = 0;
};

class Network {
public:
    virtual ~Network() = default;
    virtual bool connected() const = 0;
    virtual int rssi() const = 0;  // dBm; 0 where it means nothing
    virtual int channel() const = 0;
    virtual std::string ip() const = 0;
    virtual std::string ssid() const = 0;
    Hook<void(bool)> on_change;
};

class Identity {
public:
    virtual ~Identity() = default;
    virtual std::string serial() const = 0;                                  // "" without one in the fuses
    virtual Result<std::string> hmac(std::string_view challenge) const = 0;  // 64 hex digits
};

class CoreDump {
public:
    virtual ~CoreDump() = default;
    virtual bool present() const = 0;
    virtual std::uint32_t size() const = 0;
    virtual Status read(std::uint32_t offset, MutableBytes into) const = 0;
    virtual std::string summary() const = 0;  // task, pc, backtrace; one line
    virtual Status erase() = 0;
};

class Led {
public:
    virtual ~Led() = default;
    virtual Status set_rgb(std::uint8_t r, std::uint8_t g, std::uint8_t b) = 0;
};

class Speaker {
public:
    virtual ~Speaker() = default;
    virtual Status set_volume(int percent) = 0;
    virtual int volume() const = 0;
};

enum class PhotoSize : std::uint8_t { full, small };  // small: 2 KB at most, for an answer of the device itself

// Camera blocks: take runs on the worker.
class Camera {
public:
    virtual ~Camera() = default;
    virtual Status take(PhotoSize size, FunctionRef<Status(Bytes)> sink) = 0;  // a JPEG
};

class Battery {
public:
    virtual ~Battery() = default;
    virtual Result<int> level() const = 0;  // percent
    virtual bool charging() const = 0;
};

// BoardInfo names the product; both names match [a-z0-9.-]+.
struct BoardInfo {
    const char *type = "";  // the family
    const char *name = "";  // the exact variant
    const char *manufacturer = "";
    const char *language = "en-US";
};

// Machine is everything a board is made of; null means the board has none.
struct Machine {
    BoardInfo board;
    Executor *executor = nullptr;
    Clock *clock = nullptr;
    Transport *transport = nullptr;
    HttpClient *http = nullptr;
    KvStore *store = nullptr;
    Updater *updater = nullptr;
    System *system = nullptr;
    Crypto *crypto = nullptr;
    Network *network = nullptr;
    Identity *identity = nullptr;
    CoreDump *core_dump = nullptr;
    Display *display = nullptr;
    Speaker *speaker = nullptr;
    Led *led = nullptr;
    Camera *camera = nullptr;
    Battery *battery = nullptr;
};

}  // namespace fleet
