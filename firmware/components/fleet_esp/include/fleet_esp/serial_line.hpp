// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

#include <functional>
#include <string_view>

namespace fleet::esp {

// SerialLine reads what comes in on the console's line, which the log uses as
// well: UART 0, or the chip's own USB.
class SerialLine {
public:
    explicit SerialLine(Executor &executor) : executor_(executor) {}

    Status start();
    void send(std::string_view bytes);
    // turn waits for bytes and posts them; its task calls it for ever.
    void turn();

    std::function<void(Bytes)> on_bytes;

private:
    static void run(void *self);

    Executor &executor_;
};

}  // namespace fleet::esp
