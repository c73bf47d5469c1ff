package console_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
	"fleetd/web/ui"
)

// aBuild returns the files of an ESP-IDF build of the included firmware, with their folders.
func aBuild(t testing.TB, app esptest.App, tableAt uint32) []file {
	t.Helper()
	csv, err := os.ReadFile("../../firmware/partitions/4mb.csv")
	if err != nil {
		t.Fatal(err)
	}
	app.FlashSize, app.Project = 2, "fleet_unit"
	return []file{{"bootloader/bootloader.bin", app.Bootloader()}, {"partition_table/partition-table.bin",
		esptest.Table(esptest.LayOut(string(csv), tableAt))},
		{"ota_data_initial.bin", esptest.Blank()}, {"fleet_unit.bin", app.Bytes()}}
}

// sendFiles posts a form with files.
func (b *browser) sendFiles(to, board string, files ...file) *page {
	b.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	_ = w.WriteField("board", board)
	for _, f := range files {
		part, _ := w.CreateFormFile("file", f.name)
		_, _ = part.Write(f.data)
	}
	w.Close()
	return b.do(http.MethodPost, to, w.FormDataContentType(), &body)
}

// aFlashable uploads a build and releases it; it returns the image.
func (b *browser) aFlashable(app esptest.App) string {
	b.t.Helper()
	at := b.sendFiles("/flash/build", "", aBuild(b.t, app, 0x8000)...).wantRedirect("/firmware/images/")
	sum := at[strings.LastIndex(at, "/")+1:]
	b.post("/firmware/releases", url.Values{"image": {sum}, "to": {"released"}}).wantRedirect("/firmware/releases/")
	return sum
}

// A partList is the file that the installer in the browser reads.
type partList struct {
	Name, Version string
	PromptErase   bool `json:"new_install_prompt_erase"`
	Wait          int  `json:"new_install_improv_wait_time"`
	Builds        []struct {
		ChipFamily string
		Improv     bool
		Parts      []struct {
			Path   string
			Offset int64
		}
	}
}

func (b *browser) manifest(image string) (m partList) {
	b.t.Helper()
	p := b.get("/flash/" + image + "/manifest.json").wantStatus(200)
	if got := p.header.Get("Cache-Control"); got != "private, no-store" {
		b.t.Errorf("the manifest may be kept: %q", got)
	}
	if err := json.Unmarshal([]byte(p.body), &m); err != nil || len(m.Builds) != 1 {
		b.t.Fatalf("%v: %s", err, p.body)
	}
	return m
}

func TestFlash(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	b.get("/flash").wantStatus(200).wantText("#choose", "No released image").wantText("#layouts", "flasher_args.json")
	app := esptest.App{Chip: "esp32c3", Version: "1.4.0", Size: 60_000}
	sum := b.aFlashable(app)
	p := b.get("/flash").wantStatus(200)
	p.wantText("#choose", "1.4.0").wantText("#install", "0x40000").wantText("#install", "otadata").wantText(
		"#command-line",
		"esptool --chip esp32c3 --port PORT write-flash 0x0 bootloader.bin 0x8000 partition-table.bin 0xf000 ota_data_initial.bin 0x40000 app.bin")
	p.wantText("#command-line", "esptool.py --chip esp32c3 --port PORT write_flash 0x0").wantText("#join", "/xiaozhi/ota/")
	m := b.manifest(sum)
	if m.Name != "fleet_unit" || m.Version != "1.4.0" || !m.PromptErase || m.Wait == 0 ||
		m.Builds[0].ChipFamily != "ESP32-C3" || !m.Builds[0].Improv {
		t.Errorf("%+v", m)
	}
	files := aBuild(t, app, 0x8000)
	for n, want := range []struct {
		offset int64
		data   []byte
	}{{0, files[0].data}, {0x8000, files[1].data}, {0xF000, files[2].data}, {0x40000, files[3].data}} {
		part := m.Builds[0].Parts[n]
		got := b.get("/flash/" + sum + "/" + part.Path).wantStatus(200)
		if part.Offset != want.offset || got.body != string(want.data) ||
			got.header.Get("Cache-Control") != "private, no-store" {
			t.Errorf("part %d: %#x, %d bytes, kept %q; want %#x, %d bytes", n, part.Offset, len(got.body),
				got.header.Get("Cache-Control"), want.offset, len(want.data))
		}
	}
}

func TestFlashDownloads(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	app := esptest.App{Chip: "esp32", Version: "1.4.0"}
	sum, files := b.aFlashable(app), aBuild(t, app, 0x8000)
	merged := b.get("/flash/" + sum + "/merged.bin").wantStatus(200)
	if !strings.HasPrefix(merged.body, strings.Repeat("\xff", 0x1000)+"\xe9") || merged.body[0x40000:] != string(
		files[3].data) {
		t.Errorf("the merged file has %d bytes and begins with %x", len(merged.body), merged.body[:4])
	}
	// An upload splits the merged binary into the very same image.
	again := b.upload("", "", file{"merged.bin", []byte(merged.body)}).wantStatus(200)
	if got := b.confirm(again, ""); len(got) != 1 || got[0] != sum {
		t.Errorf("the merged file is taken as %v, want %s", got, sum)
	}
	packed := b.get("/flash/" + sum + "/parts.zip").wantStatus(200).body
	z, err := zip.NewReader(strings.NewReader(packed), int64(len(packed)))
	if err != nil {
		t.Fatal(err)
	}
	args, err := z.Open("flash_args")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(args)
	if want := "0x1000 bootloader.bin\n0x8000 partition-table.bin\n0xf000 ota_data_initial.bin\n0x40000 app.bin\n"; string(
		text) != want || len(z.File) != 5 {
		t.Errorf("%d files, flash_args %q, want %q", len(z.File), text, want)
	}
}

// Only operators may install, only released images, and no revoked ones.
func TestFlashRefuses(t *testing.T) {
	c := newConsole(t)
	b, viewer, stranger := c.as(fleet.RoleOperator), c.as(fleet.RoleViewer), c.browser()
	sum := b.aFlashable(esptest.App{})
	paths := []string{"/flash/" + sum + "/manifest.json", "/flash/" + sum + "/parts/0.bin", "/flash/" + sum + "/parts.zip",
		"/flash/" + sum + "/merged.bin"}
	for _, path := range paths {
		b.get(path).wantStatus(200)
		viewer.get(path).wantStatus(http.StatusForbidden)
		stranger.get(path).wantRedirect("/sign-in")
	}
	for _, path := range []string{"/parts/4.bin", "/parts/-1.bin", "/parts/00.bin", "/parts/x.bin", "/parts/0.bin/..",
		"/parts/..%2F..%2F0.bin", "/parts/99999999999999999999.bin"} {
		b.get("/flash/" + sum + path).wantStatus(http.StatusNotFound)
	}
	for _, image := range []string{strings.Repeat("0", 64), strings.ToUpper(sum), "..", "%2e%2e%2f" + sum, sum + "%00"} {
		if p := b.get("/flash/" + image + "/manifest.json"); p.status != http.StatusNotFound {
			t.Errorf("%s: %d", p.what, p.status)
		}
	}
	draft := b.anImage(esptest.App{Version: "9.9.9"}, "")
	b.get("/flash/" + draft + "/manifest.json").wantStatus(http.StatusConflict)
	b.get("/flash?image="+draft).wantStatus(200).wantText("#main", "no bootloader and partition table")
	built := b.sendFiles("/flash/build", "", aBuild(t, esptest.App{Version: "8.8.8"}, 0x10000)...).wantRedirect(
		"/firmware/images/")
	unreleased := built[strings.LastIndex(built, "/")+1:]
	b.get("/flash/" + unreleased + "/parts/0.bin").wantStatus(http.StatusConflict)
	b.get("/flash?image="+unreleased).wantStatus(200).wantText("#main", "release one that contains it first")
	c.as(fleet.RoleAdmin).post("/firmware/images/"+sum+"/revoke", url.Values{"reason": {"burns"},
		"confirm": {"2.4.3"}}).wantRedirect("/")
	for _, path := range paths {
		b.get(path).wantStatus(http.StatusConflict)
	}
	b.get("/flash").wantStatus(200).wantText("#choose", "No released image")
}

func TestFlashPolicy(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	h := b.get("/flash").header
	if got := h.Get("Content-Security-Policy"); got != ui.FlashCSP ||
		strings.Contains(strings.ReplaceAll(got, "style-src-attr 'unsafe-inline'", ""), "unsafe") || !strings.Contains(got,
		"script-src 'self';") {
		t.Errorf("the policy of the page is %q", got)
	}
	if got := h.Get("Permissions-Policy"); !strings.Contains(got, "serial=(self)") {
		t.Errorf("the page may not open serial ports: %q", got)
	}
	h = b.get("/firmware").header
	if got := h.Get("Content-Security-Policy"); strings.Contains(got, "unsafe") {
		t.Errorf("another page's policy is %q", got)
	}
	if got := h.Get("Permissions-Policy"); !strings.Contains(got, "serial=()") {
		t.Errorf("another page may open serial ports: %q", got)
	}
}

func TestFlashBuildRefuses(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	good := aBuild(t, esptest.App{Chip: "esp32c3"}, 0x8000)
	other := aBuild(t, esptest.App{Chip: "esp32"}, 0x8000)
	args := func(text string) file { return file{"flasher_args.json", []byte(text)} }
	for _, tt := range []struct {
		name, says string
		files      []file
	}{
		{"nothing", "choose the files", nil},
		{"no application", "no application", good[:3]},
		{"no table", "partition-table.bin", []file{good[0], good[3]}},
		{"another chip's bootloader", "esp32c3", []file{other[0], good[1], good[3]}},
		{"two applications", "include the application twice", append(good, other[3])},
		{"something else", "flasher_args.json", append(good, file{"notes.txt", []byte("hello")})},
		{"damaged arguments", "cannot be read", append(good, args("{"))},
		{"arguments without an address", "is not an address", append(good, args(`{"flash_files":{"here":"fleet_unit.bin"}}`))},
		{"a file is missing", "not among the files",
			append(good, args(`{"flash_files":{"0x40000":"fleet_unit.bin","0x200000":"assets.bin"}}`))},
		{"two builds mixed", "one build", append(good, args(`{"flash_files":{"0x10000":"fleet_unit.bin"}}`))},
		{"a whole flash", "alone, as an image", []file{{"m.bin", esptest.Merged(esptest.App{}.Bytes(), esptest.Partitions, 0)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.sendFiles("/flash/build", "", tt.files...).wantStatus(422).wantText("#main", tt.says)
		})
	}
	b.post("/flash/build", url.Values{"file": {"x"}}).wantStatus(422)
	if got, err := c.store.Images(t.Context(), firmware.ImageFilter{}); err != nil || len(got.Items) != 0 {
		t.Errorf("stored %d images, %v", len(got.Items), err)
	}
}

// An image that was uploaded alone gets its layout later, from the files of its build.
func TestLayoutForAnImage(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	files := aBuild(t, esptest.App{Chip: "esp32c3"}, 0x10000)
	at := b.upload("", "", files[3]).wantStatus(200)
	sum := b.confirm(at, "")[0]
	b.get("/firmware/images/"+sum).wantText("#layout", "A blank board also needs")
	to := "/flash/" + sum + "/layout"
	wrong := aBuild(t, esptest.App{Chip: "esp32c3", Version: "7.7.7"}, 0x8000)
	b.sendFiles(to, "", wrong...).wantStatus(422).wantText("#layout", "a different application")
	b.sendFiles(to, "", files[:2]...).wantRedirect("/firmware/images/" + sum)
	b.get("/firmware/images/"+sum).wantText("#layout", "0x17000").wantText("#layout", "0x10000").wantText("#layout",
		"once a release")
	spiffs := file{"assets.bin", []byte("pictures")}
	b.sendFiles(to, "", append(files[:2:2], spiffs, file{"flasher_args.json",
		[]byte(`{"flash_files":{"0x0":"bootloader/bootloader.bin","0x10000":"partition_table/partition-table.bin","0x2b000":"assets.bin"}}`)})...).
		wantRedirect("/firmware/images/" + sum)
	b.get("/firmware/images/"+sum).wantText("#layout", "0x2b000").wantText("#layout", "fleet_q")
	c.as(fleet.RoleViewer).sendFiles(to, "", files[:2]...).wantStatus(http.StatusForbidden)
	b.post("/firmware/images/"+sum+"/delete", nil).wantRedirect("/firmware/images")
	if _, err := c.store.Layout(t.Context(), sum); err == nil {
		t.Error("the layout of a deleted image is there")
	}
}

// A merged binary with a partition table that no device accepts is an image nevertheless.
func TestMergedWithoutLayout(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	hostile := append([]esptest.Partition{{Label: "<b>x</b>", Type: 1, Subtype: 0x82, Offset: 0x1000, Size: 0xFFFFF000}},
		esptest.Partitions...)
	p := b.upload("", "", file{"m.bin", esptest.Merged(esptest.App{}.Bytes(), hostile, 0)}).wantStatus(200)
	sum := b.confirm(p, "")[0]
	b.get("/firmware/images/"+sum).wantText("#layout", "cannot be used").wantText("#layout", "<b>x</b>").
		wantText("#layout", "extends to 0x100000000, beyond the flash of any board")
	b.post("/firmware/releases", url.Values{"image": {sum}, "to": {"released"}}).wantRedirect("/firmware/releases/")
	b.get("/flash/" + sum + "/manifest.json").wantStatus(http.StatusConflict)
	b.get("/flash").wantText("#layouts", "Released, but without a layout")
}

func TestFlashJoining(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	sum := b.aFlashable(esptest.App{})
	b.get("/flash").wantText("#joining", "No devices have appeared")
	answer, err := c.enrolments.Poll(enrolment.BootPoll{Device: "a085e3112233", ClientID: "c1", Board: "fresh-board",
		At: time.Now().UTC()})
	if err != nil {
		t.Fatal(err)
	}
	b.get("/flash").wantText("#joining", "fresh-board")
	next := "/flash?image=" + sum + "&since=" + "1"
	b.post("/flash/claim", url.Values{"code": {"000000"}, "next": {next}}).wantStatus(http.StatusNotFound).wantText(
		"#join", "No waiting device shows this code")
	back := b.post("/flash/claim", url.Values{"code": {answer.Activation.Code}, "next": {next}}).wantRedirect(
		"/flash?image=" + sum)
	b.get(back).wantText("#flash", "has joined the fleet")
	if got := b.post("/flash/claim", url.Values{"code": {"000000"},
		"next": {"https://evil.test/flash"}}); got.status == http.StatusSeeOther {
		t.Errorf("led to %s", got.header.Get("Location"))
	}
	c.as(fleet.RoleViewer).post("/flash/claim", url.Values{"code": {"1"}}).wantStatus(http.StatusForbidden)
}
