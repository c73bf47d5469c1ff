// SPDX-License-Identifier: Apache-2.0
#include "ports/synthetic_camera.hpp"

#include "picture/codec.hpp"

#include <iterator>
#include <string>

namespace fleet::host {

namespace {

constexpr Colour bars[] = {{235, 235, 235}, {220, 200, 40}, {40, 190, 200}, {60, 180, 75},
                           {190, 70, 180},  {200, 50, 45},  {45, 70, 190},  {20, 20, 20}};

}  // namespace

Status SyntheticCamera::take(PhotoSize size, FunctionRef<Status(Bytes)> sink) {
    const bool small = size == PhotoSize::small;
    Canvas canvas(small ? 96 : 640, small ? 72 : 480);
    const int count = static_cast<int>(std::size(bars)), width = canvas.width / count;
    for (int i = 0; i < count; i++)
        canvas.fill(i * width, 0, width, canvas.height, bars[i]);
    const std::string seconds = std::to_string(clock_.mono_us() / 1'000'000) + " s";
    canvas.text(4, canvas.height / 2, small ? 1 : 4, seconds, {255, 255, 255});
    const Result<std::string> jpeg = encode_jpeg(canvas, small ? 40 : 80);
    return jpeg.ok() ? sink(Bytes(jpeg.value())) : jpeg.status();
}

}  // namespace fleet::host
