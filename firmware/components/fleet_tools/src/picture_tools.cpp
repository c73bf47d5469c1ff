// SPDX-License-Identifier: Apache-2.0
// The screen as a picture: what it shows, a photo of it, a picture onto it.
#include "background.hpp"

#include <algorithm>
#include <cstring>

namespace fleet {

namespace {

constexpr ToolInfo info_info =
    ToolInfo("self.screen.get_info", "Information about the screen, including width, height, etc.")
        .UserOnly()
        .Repeats(Repeat::reads);

constexpr Property snapshot_properties[] = {
    Property::Text("url").Required().Describe("where the picture is posted"),
    Property::Int("quality").Range(1, 100).Default(80).Describe("of JPEG"),
    Property::Text("format").DefaultText("jpeg").AtMost(8).Describe("jpeg or png"),
};
constexpr ToolInfo snapshot_info =
    ToolInfo("self.screen.snapshot", "Snapshot the screen and upload it to a specific URL")
        .With(snapshot_properties)
        .UserOnly();

constexpr Property preview_properties[] = {
    Property::Text("url").Required().Describe("of a JPEG picture"),
};
constexpr ToolInfo preview_info =
    ToolInfo("self.screen.preview_image", "Preview an image on the screen").With(preview_properties).UserOnly();

Status get_info(void *context, Call &call) {
    const Display &d = *kit_of(context).machine->display;
    call.result.begin_json()
        .begin_object()
        .member("width", d.width())
        .member("height", d.height())
        .member("monochrome", d.monochrome())
        .end_object();
    return call.result.end_json();
}

// Pages out a picture that is whole in memory: its upload pulls, encoders push.
struct Pages {
    std::string bytes;
    std::size_t at = 0;

    Result<std::size_t> operator()(MutableBytes into) {
        const std::size_t n = std::min(into.size, bytes.size() - at);
        if (n > 0) std::memcpy(into.data, bytes.data() + at, n);
        at += n;
        return n;
    }
};

// number is the quality, flag asks for PNG.
Outcome upload_snapshot(const Job &job) {
    const bool png = job.flag;
    Pages pages;
    const auto keep = [&pages](Bytes part) -> Status {
        pages.bytes.append(part.text());
        return {};
    };
    const PictureFormat format = png ? PictureFormat::png : PictureFormat::jpeg;
    const Status taken = job.machine.display->snapshot(format, job.number, keep);
    if (!taken.ok()) return taken;
    return expect_200(job.machine.http->post_file(job.url, png ? "screenshot.png" : "screenshot.jpg",
                                                  png ? "image/png" : "image/jpeg", pages));
}

Status snapshot(void *context, Call &call) {
    Toolkit &kit = kit_of(context);
    const std::string_view format = call.args.text("format");
    if (format != "jpeg" && format != "png") return {Code::invalid, "the formats are jpeg and png"};
    return in_background(kit, call, upload_snapshot, static_cast<int>(call.args.integer("quality")), format == "png");
}

// number is the most bytes that a picture may have.
Outcome show_from(const Job &job) {
    const auto limit = static_cast<std::size_t>(job.number);
    std::string picture;
    const auto begin = [&](const HttpResponse &head) -> Status {
        if (head.status != 200) return {};  // judged below; its body is an error page
        if (head.content_length <= 0) return {Code::invalid, "the server does not say how large the picture is"};
        if (static_cast<std::uint64_t>(head.content_length) > limit) {
            return {Code::no_memory, "the picture is too large for this device"};
        }
        picture.reserve(static_cast<std::size_t>(head.content_length));
        return {};
    };
    const auto sink = [&](Bytes part) -> Status {
        if (picture.size() + part.size > limit) return {Code::no_memory, "the picture is too large for this device"};
        picture.append(part.text());
        return {};
    };
    Outcome fetched = expect_200(job.machine.http->get(job.url, 0, begin, sink));
    return fetched.status.ok() ? Outcome(job.machine.display->show_picture(Bytes{picture})) : fetched;
}

Status preview_image(void *context, Call &call) {
    Toolkit &kit = kit_of(context);
    return in_background(kit, call, show_from, static_cast<int>(kit.picture_bytes));
}

}  // namespace

Status add_picture_tools(ToolRegistry &registry, Toolkit &kit) {
    if (kit.machine->display == nullptr) return {};
    Status added = registry.add(info_info, get_info, &kit);
    if (added.ok() && kit.machine->http != nullptr) added = registry.add(snapshot_info, snapshot, &kit);
    if (added.ok() && kit.machine->http != nullptr) added = registry.add(preview_info, preview_image, &kit);
    return added;
}

}  // namespace fleet
