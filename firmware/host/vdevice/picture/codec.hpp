// SPDX-License-Identifier: Apache-2.0
// Pictures as files: JPEG by libjpeg, PNG by libpng. What comes in is
// untrusted: its size is checked before memory is taken.
#pragma once

#include "fleet/span.hpp"
#include "fleet/status.hpp"
#include "picture/canvas.hpp"

#include <string>

namespace fleet::host {

Result<std::string> encode_jpeg(const Canvas &canvas, int quality);
Result<std::string> encode_png(const Canvas &canvas);
std::string encode_ppm(const Canvas &canvas);
Result<Canvas> decode_picture(Bytes file);  // JPEG or PNG, at most 4096 by 4096 dots

}  // namespace fleet::host
